// A prefill node as part of a program: engine, core, the thread that runs steps, and what of the transfer is control. `turn` belongs to the
// loop thread; the engine belongs to the node's engine thread while a step runs, and to nobody else. The engine's pool is memory of the
// plane's transfer.
//
//     link     routers and decode nodes, all of whom dial us: peer n of the link is peer n of the core
//     HELLO, DESCRIPTION from a decode node → bt_plane_connect, so that its fetches are served (readers.h); ours go out with the core's
//     greeting, in answer to a HELLO
//     finished blocks get their trailers here, between a step and the offer
//
// Order at the end: the node, the engine, the plane.
#pragma once

#include "common/engine/engine.h"
#include "common/node/link.h"
#include "common/node/plane.h"
#include "prefill-node/core.h"

typedef struct {
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;         // not 0; the transfer was opened with it too
    uint32_t max_sequences; // of a step, as the engine was opened with; not 0
    uint32_t chunk_tokens;  // as the engine was opened with
    uint32_t logit_rows;    // as the engine was opened with; 0 = max_sequences
    uint32_t prompts;       // here at once: waiting, read or held; 0 = 4 × max_sequences
    bt_time lease;          // 0 = 30 s
    bt_time hold_max;       // 0 = 10 leases
    bool lone;              // nobody can take over: when the device breaks, prompts end with an error
    // Called from the engine thread when a step is done: the loop has to call turn. Must not wait. The plane has a wake of its own.
    void (*wake)(void *arg);
    void *wake_arg;
} bt_prefill_node_options;

typedef struct bt_prefill_node bt_prefill_node;

// Starts the engine thread. Engine, link and plane stay the caller's and outlive the node. The plane was opened for at least
// BT_PREFILL_PEERS_MAX peers.
bt_err bt_prefill_node_open(bt_prefill_node **out, const bt_prefill_node_options *options, bt_engine *engine,
                            bt_link *link, bt_plane *plane, bt_why *why);
// Waits for the step that runs, ends the thread. NULL is fine.
void bt_prefill_node_close(bt_prefill_node *node);

// Does what is due. Returns when it wants to be called again: `now` or earlier means without sleeping.
bt_time bt_prefill_node_turn(bt_prefill_node *node, bt_time now);

void bt_prefill_node_drain(bt_prefill_node *node, bt_time now); // admits nothing new; what runs goes on
bool bt_prefill_node_idle(const bt_prefill_node *node);         // nothing is read, held or waits: drained
// The device is of no use any more. The caller ends the program and its links, whereby routers move what is here to other nodes. Unless
// the node is `lone` it has said nothing of the step that failed, and no turn does anything any more.
bool bt_prefill_node_is_broken(const bt_prefill_node *node);

typedef struct {
    bt_prefill_stats core;
    uint32_t readers; // decode programs that are connected in the plane
    uint64_t stamped_blocks;
    bt_time stamp_time;            // on the loop: the checksums of those
    uint64_t refused_descriptions; // of another epoch or layout than the HELLO's, or from nobody we know
    uint64_t resets;               // peers begun anew since a message to them was lost
} bt_prefill_node_stats;
void bt_prefill_node_get_stats(const bt_prefill_node *node, bt_prefill_node_stats *out);
