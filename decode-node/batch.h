// Who is in the next step. Every sequence that writes is, with its one token; prompts share what is left of chunk_tokens, the shortest
// rest first, with ageing so that long ones do not starve. While answers are written, prompts get at most prefill_tokens of a step:
// that bounds the time between two tokens. Which tokens come out does not depend on any of this (DESIGN 1.7); only when does.
#pragma once

#include "decode-node/core.h"
#include "decode-node/room.h"

typedef struct {
    bt_batch batch;
    bt_batch_item *items; // [sequences]
    uint32_t *slots;      // [sequences] of the items
    uint32_t *order;      // [sequences] scratch: prompts to choose from
    uint32_t tokens;      // of all items
    uint64_t begun;       // steps so far
} bt_batcher;

bt_err bt_batcher_init(bt_batcher *batcher, const bt_decode_limits *limits);
void bt_batcher_fini(bt_batcher *batcher); // accepts a zeroed one

// Fills in batch and slots, takes the blocks that the step writes, marks its sequences in_step. False when there is nothing to do.
bool bt_batcher_fill(bt_batcher *batcher, const bt_decode_limits *limits, bt_sequences *sequences, bt_room *room,
                     bt_time now);
