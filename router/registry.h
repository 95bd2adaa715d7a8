// The nodes as the router knows them: what they said they are, when they were last heard, and the load the router gave them.
//
// Load is counted when a request is given to a node, before anything is sent, and lowered once on every way out (DESIGN 4.3).
// Private to the router's core. One thread.
#pragma once

#include "common/wire/message.h"
#include "router/core.h"
#include "router/request.h"

typedef enum {
    BT_NODE_DOWN,  // no link
    BT_NODE_MET,   // a link, no HELLO yet
    BT_NODE_READY, // may be given requests, unless it drains
} bt_node_state;

typedef struct {
    bt_node_state state;
    bt_hello hello;
    bt_heartbeat load;                // as it says; its sources lie below
    uint64_t sources[BT_SOURCES_MAX]; // of a decode node: programs of prefill nodes that it can fetch from
    bt_time heard;
    bt_time busy_until;     // it or its link refused a reserve: none before
    uint64_t tokens_number; // of the last TOKENS message
    // As we count:
    uint32_t requests;       // given to it and not over
    uint32_t reserving;      // of them without a ticket
    uint64_t blocks;         // worst case of those
    uint32_t prompts;        // being read there
    uint64_t prefill_tokens; // of them, to be computed
    uint64_t prefill_rate;   // tokens a second as measured; 0 = not yet
} bt_node;

typedef struct {
    bt_node nodes[BT_ROUTER_NODES_MAX];
    uint32_t up;             // READY
    uint64_t prompt_weights; // of the prefill nodes, as last heard; 0 = there was none
} bt_registry;

void bt_registry_met(bt_registry *registry, uint32_t node, bt_time now);
void bt_registry_lost(bt_registry *registry, uint32_t node); // its requests must have left it
void bt_registry_hello(bt_registry *registry, uint32_t node, const bt_hello *hello, bt_time now);

void bt_registry_heartbeat(bt_registry *registry, uint32_t node, const bt_heartbeat *heartbeat);

// Blocks that the request may come to hold there.
uint32_t bt_registry_worst_blocks(const bt_node *node, const bt_request *request);
void bt_registry_count(bt_registry *registry, uint32_t node, bt_request *request); // sets request->node
void bt_registry_uncount(bt_registry *registry, bt_request *request);              // clears it

// The same for a prompt of so many tokens that is read at `node`, whichever kind that is; sets and clears request->prefill_at.
void bt_registry_count_prefill(bt_registry *registry, uint32_t node, bt_request *request, uint32_t tokens);
void bt_registry_uncount_prefill(bt_registry *registry, bt_request *request); // may be called when nothing is counted
// A prompt of so many tokens took so long there.
void bt_registry_measure_prefill(bt_registry *registry, uint32_t node, uint32_t tokens, bt_time duration);

static inline bool
bt_node_decodes(const bt_node *node)
{
    return node->state == BT_NODE_READY && node->hello.role == BT_NODE_DECODE;
}

// Can blocks go from this prefill node to that decode node?
bool bt_node_fetches_from(const bt_node *decode, const bt_node *prefill);
// Is there a pair of nodes that reads a prompt at one and answers at the other, drains not counted?
bool bt_registry_paired(const bt_registry *registry);

// Tokens of the longest sequence that some ready decode node can hold; 0 when none is ready.
uint32_t bt_registry_longest(const bt_registry *registry);
// A ready decode node that is not draining?
bool bt_registry_open(const bt_registry *registry);
