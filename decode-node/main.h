// A decode node as part of a program: engine, core, and the thread that runs steps. `turn` belongs to the loop thread; the engine
// belongs to the node's engine thread while a step runs, and to nobody else.
#pragma once

#include "common/engine/engine.h"
#include "common/node/link.h"
#include "decode-node/core.h"

typedef struct {
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;         // not 0
    uint32_t max_sequences; // as the engine was opened with, not 0
    uint32_t chunk_tokens;  // as the engine was opened with, ≥ max_sequences
    uint32_t logit_rows;    // as the engine was opened with; 0 = max_sequences
    uint32_t queue_max;     // reserves waiting for room; 0 = 2 × max_sequences
    float prefill_share;    // of a step's tokens that prompts may take while answers are written, 0 = 0.5
    bt_time lease;          // 0 = 30 s
    // Called from the engine thread when a step is done: the loop has to call turn. Must not wait.
    void (*wake)(void *arg);
    void *wake_arg;
} bt_decode_node_options;

typedef struct bt_decode_node bt_decode_node;

// Starts the engine thread. Engine and link stay the caller's; both outlive the node.
bt_err bt_decode_node_open(bt_decode_node **out, const bt_decode_node_options *options, bt_engine *engine,
                           bt_link *link, bt_why *why);
// Waits for the step that runs, ends the thread. NULL is fine.
void bt_decode_node_close(bt_decode_node *node);

// Does what is due. Returns when it wants to be called again: `now` or earlier means without sleeping.
bt_time bt_decode_node_turn(bt_decode_node *node, bt_time now);

void bt_decode_node_drain(bt_decode_node *node, bt_time now); // admits nothing new; what runs goes on
bool bt_decode_node_idle(const bt_decode_node *node);         // nothing runs or waits: drained
void bt_decode_node_stats(const bt_decode_node *node, bt_decode_stats *out);
