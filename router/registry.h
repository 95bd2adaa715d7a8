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
    bt_heartbeat load; // as it says
    bt_time heard;
    bt_time busy_until;     // it or its link refused a reserve: none before
    uint64_t tokens_number; // of the last TOKENS message
    // As we count:
    uint32_t requests;  // given to it and not over
    uint32_t reserving; // of them without a ticket
    uint64_t blocks;    // worst case of those
} bt_node;

typedef struct {
    bt_node nodes[BT_ROUTER_NODES_MAX];
    uint32_t up; // READY
} bt_registry;

void bt_registry_met(bt_registry *registry, uint32_t node, bt_time now);
void bt_registry_lost(bt_registry *registry, uint32_t node); // its requests must have left it
void bt_registry_hello(bt_registry *registry, uint32_t node, const bt_hello *hello, bt_time now);

// Blocks that the request may come to hold there.
uint32_t bt_registry_worst_blocks(const bt_node *node, const bt_request *request);
void bt_registry_count(bt_registry *registry, uint32_t node, bt_request *request); // sets request->node
void bt_registry_uncount(bt_registry *registry, bt_request *request);              // clears it

// Tokens of the longest sequence that some ready node can hold; 0 when none is ready.
uint32_t bt_registry_longest(const bt_registry *registry);
// A ready node that is not draining?
bool bt_registry_open(const bt_registry *registry);
