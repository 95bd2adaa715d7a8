// Who may hold which blocks: the pool, the prefix index, and the promises made to sequences that have not taken all they may need.
//
//     available (free + idle in the prefix cache)  ≥  promised            always: a sequence with room never waits for blocks
//
// Private to the node's core. One thread.
#pragma once

#include "decode-node/sequence.h"

typedef struct {
    bt_kv_pool *pool;
    bt_kv_prefix *prefix;
    uint32_t block_tokens;
    uint64_t weights;  // digest of those that read prompts: what the index finds was written by them
    bool others_write; // and those that write answers are others: no token of an answer is looked for
    uint32_t promised; // sum of worst − table.count over sequences with room
} bt_room;

bt_err bt_room_init(bt_room *room, uint32_t blocks, uint32_t block_tokens, uint64_t prompt_weights, uint64_t weights);
void bt_room_fini(bt_room *room); // accepts a zeroed one

// Blocks that prompt and answer can come to need: all but the last token drawn are written.
uint32_t bt_room_worst(const bt_room *room, uint32_t prompt_count, uint32_t max_tokens);

// Promises the worst case, less what the prefix index already has, which goes into the table. False leaves all as it was.
bool bt_room_grant(bt_room *room, bt_sequence *sequence);

// The table covers `tokens` afterwards, out of the promise.
void bt_room_take(bt_room *room, bt_sequence *sequence, uint32_t tokens);

// Puts the blocks that `computed` has filled into the prefix index. No step runs.
void bt_room_index(bt_room *room, bt_sequence *sequence);

// Gives back table and promise.
void bt_room_release(bt_room *room, bt_sequence *sequence);

// What the prefix index holds is in doubt: forgets all of it.
void bt_room_forget(bt_room *room);
