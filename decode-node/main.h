// A decode node as part of a program: engine, core, and the thread that runs steps. `turn` belongs to the loop thread; the engine
// belongs to the node's engine thread while a step runs, and to nobody else.
//
// With a plane it fetches what prefill nodes have read: link peers 0 … sources − 1 are prefill nodes, which it makes itself known to and
// proves (prove.h). All other link peers are routers, at most BT_DECODE_ROUTERS_MAX at a time.
#pragma once

#include "common/engine/engine.h"
#include "common/node/link.h"
#include "common/node/plane.h"
#include "decode-node/core.h"

typedef struct {
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;          // not 0
    uint32_t max_sequences;  // as the engine was opened with, not 0
    uint32_t chunk_tokens;   // as the engine was opened with, ≥ max_sequences
    uint32_t logit_rows;     // as the engine was opened with; 0 = max_sequences
    uint32_t queue_max;      // reserves waiting for room; 0 = 2 × max_sequences
    float prefill_share;     // of a step's tokens that prompts may take while answers are written, 0 = 0.5
    bt_time lease;           // 0 = 30 s
    uint32_t sources;        // link peers that are prefill nodes; ≤ BT_DECODE_SOURCES_MAX
    uint64_t prompt_weights; // digest of those that read prompts there (bt_model_foresee); 0 = the engine's own
    bool lone;               // nobody can take over: when the device breaks, sequences end with an error
    // Called from the engine thread when a step is done: the loop has to call turn. Must not wait.
    void (*wake)(void *arg);
    void *wake_arg;
} bt_decode_node_options;

typedef struct bt_decode_node bt_decode_node;

// Of one fetch: what bt_plane_options.fetch_blocks_max has to be; fetches_max: max_sequences; peers_max: sources.
#define BT_DECODE_FETCH_BLOCKS 1024

// Starts the engine thread. Engine, link and plane stay the caller's and outlive the node; the engine's pool is the plane's. `plane` NULL:
// it fetches nothing and reads all prompts itself.
bt_err bt_decode_node_open(bt_decode_node **out, const bt_decode_node_options *options, bt_engine *engine,
                           bt_link *link, bt_plane *plane, bt_why *why);
// Waits for the step that runs, ends the thread. NULL is fine.
void bt_decode_node_close(bt_decode_node *node);

// Does what is due. Returns when it wants to be called again: `now` or earlier means without sleeping.
bt_time bt_decode_node_turn(bt_decode_node *node, bt_time now);

void bt_decode_node_drain(bt_decode_node *node, bt_time now); // admits nothing new; what runs goes on
bool bt_decode_node_idle(const bt_decode_node *node);         // nothing runs or waits: drained
// The device is of no use any more. The caller ends the program and its links, whereby routers move what is here to other nodes. Unless
// the node is `lone` it has said nothing of the step that failed, and no turn does anything any more.
bool bt_decode_node_is_broken(const bt_decode_node *node);
void bt_decode_node_stats(const bt_decode_node *node, bt_decode_stats *out);

// A prefill node as this one sees it.
typedef struct {
    char name[BT_NODE_NAME_MAX]; // "" = never met
    uint64_t epoch;              // 0 = no link
    bool refused;                // of another model, layout or weights; the log names it
    bool ready;                  // prompts may come from it
    const char *path;            // how blocks come, once they were proved to; else ""
    char transport[64];
    double gb_per_s; // of the proof
} bt_decode_source;
void bt_decode_node_source(const bt_decode_node *node, uint32_t source, bt_decode_source *out);
