// What happens to nodes, in the log: NODE-READY, NODE-DRAINS, NODE-LOST, NODE-REFUSED, NODE-BREAKER, each once. Part of the core's edge.
#pragma once

#include "router/core.h"

typedef struct {
    bt_node_state state;
    uint64_t epoch;
    bool draining;
    bt_breaker_state breaker;
    const char *refused; // the field
    char name[BT_NODE_NAME_MAX];
} bt_router_note;

// Compares the node with what was noted of it last.
void bt_router_note_node(bt_router_note *note, const bt_router *router, uint32_t node);
