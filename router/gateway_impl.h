// What the parts of the RPC edge share: gateway.c (messages, small answers), gateway_call.c (calls), gateway_request.c (arguments).
#pragma once

#include "common/wire/gateway.h"
#include "router/call.h"
#include "router/gateway.h"

// A call under way.
typedef struct bt_gateway_call {
    bt_router_gateway *gateway;
    bt_call *call; // NULL = free
    uint32_t conn;
    uint64_t id;
    uint32_t credits;
    bool named; // its first Reply is out
    bool dirty; // on the list of those that may have something to send
    struct bt_gateway_call *next, *next_dirty;
} bt_gateway_call;

typedef struct {
    uint64_t calls[BT_GATEWAY_METHODS + 1]; // by method; the last: unknown ones
    uint64_t malformed;
} bt_gateway_counts;

struct bt_router_gateway {
    bt_loop *loop;
    bt_router_gateway_options options;
    bt_calls *calls;
    bt_sp *sp;
    bt_turn turn;
    bt_time opened;
    bt_gateway_call *pool, *free; // [calls_max]
    bt_gateway_call **of_conn;    // [connections_max] lists
    bt_gateway_call *dirty;
    bool cancelled; // since the last turn: the link has something for the nodes
    bt_wire_scratch read, write;
    bt_gateway_counts counts;
};

// gateway.c
// False: the connection is closed now, and its calls are gone.
bool bt_gateway_send(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_reply *reply);
void bt_gateway_refuse(bt_router_gateway *gateway, uint32_t conn, uint64_t id, bt_str name,
                       const bt_openai_error *error);

// gateway_call.c
bt_gateway_call *bt_gateway_find(const bt_router_gateway *gateway, uint32_t conn, uint64_t id);
void bt_gateway_start(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request);
void bt_gateway_give_credit(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request);
void bt_gateway_cancel(bt_gateway_call *asked);                   // with its last Reply
void bt_gateway_leave(bt_router_gateway *gateway, uint32_t conn); // all calls of a client who is gone
void bt_gateway_wake(bt_router_gateway *gateway, uint32_t conn);  // there is room again
void bt_gateway_pump(bt_router_gateway *gateway);

// gateway_request.c: a bt_text_parse
bt_err bt_gateway_parse(bt_text_job *job, const bt_openai_limits *limits, bool *special);
