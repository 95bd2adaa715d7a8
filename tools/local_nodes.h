// The nodes of `baton local`: one decode node; and where prompts are read by other weights than answers are written by, a prefill node
// beside it. Links are loopbacks, blocks travel by the host transport from one part of this process to the other: a cluster in one box.
//
//     bt_local_nodes_load(&nodes, &options, why)     any thread; seconds to minutes
//     bt_local_nodes_open(&nodes, why)               the loop's, as all that follows
//     bt_router_edge_open(…, nodes.router_link, …)
//     bt_local_nodes_turn(&nodes, now)               after the router's turn; requests once bt_local_nodes_ready says so
//     bt_local_nodes_close(&nodes)                   after the router's edge; closes router_link too
#pragma once

#include "decode-node/main.h"
#include "prefill-node/main.h"
#include "tools/machine.h"
#include "tools/settings.h"

typedef struct {
    bt_engine_settings engine;
    const char *model;       // path; borrowed until load returns
    uint32_t prompt_weights; // bt_load_weights of a prefill node; BT_LOCAL_ONE_WEIGHTS = none: all by engine.weights
    uint32_t queue;          // reservations that wait
    void (*wake)(void *arg); // any thread: the loop has to call turn
    void *wake_arg;
} bt_local_nodes_options;

#define BT_LOCAL_ONE_WEIGHTS UINT32_MAX

typedef struct {
    bt_local_nodes_options options;
    uint64_t epochs[2];
    uint64_t prompt_weights;         // digest
    bt_machine decoding, prefilling; // the latter's engine is NULL without a prefill node
    bt_link *router_link;            // peer 0 is the decode node, 1 the prefill node
    bt_link *decode_link, *prefill_link;
    bt_decode_node *decode;
    bt_prefill_node *prefill; // NULL
} bt_local_nodes;

// On an error close it.
bt_err bt_local_nodes_load(bt_local_nodes *nodes, const bt_local_nodes_options *options, bt_why *why);
bt_err bt_local_nodes_open(bt_local_nodes *nodes, bt_why *why);
void bt_local_nodes_close(bt_local_nodes *nodes); // accepts a zeroed one

// When it wants to be called again; `now`: without sleeping.
bt_time bt_local_nodes_turn(bt_local_nodes *nodes, bt_time now);

// Prompts can be read as the settings say. Turns bring it about, soon after open.
bool bt_local_nodes_ready(const bt_local_nodes *nodes);

// A device is of no use any more: what was on it has ended with errors, and so would all that comes.
bool bt_local_nodes_broken(const bt_local_nodes *nodes);

// Prometheus text of all of them; `labels` may be NULL.
void bt_local_nodes_metrics(const bt_local_nodes *nodes, bt_buf *out, const char *labels);
