// Which prompts go into the next step: shortest rest first, with ageing, several prompts a step. Private to the node's core.
#pragma once

#include "prefill-node/core.h"
#include "prefill-node/job.h"

typedef struct {
    bt_batch batch;
    bt_batch_item *items; // [sequences]
    uint32_t *slots;      // [sequences] of the items
    uint32_t *order;      // [prompts] scratch: those to choose from
    uint32_t tokens;      // of all items
    uint64_t begun;       // steps so far
} bt_chunker;

bt_err bt_chunker_init(bt_chunker *chunker, const bt_prefill_limits *limits);
void bt_chunker_fini(bt_chunker *chunker); // accepts a zeroed one

// Fills in batch and slots and marks its prompts in_step. False when there is nothing to do.
bool bt_chunker_fill(bt_chunker *chunker, const bt_prefill_limits *limits, bt_prompts *prompts, bt_time now);
