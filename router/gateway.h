// The RPC edge: proto/gateway.proto over nng's pair0 wire protocol (common/net/sp.h) on one side, the router's calls on the other.
//
// Any program with nng and protobuf can ask, in any language; common/client is the one in C. Each client has a connection of its own and
// may have many calls under way. A stream's Replies cost credits, and are not written either while the client's socket is full: what is
// new waits with the answer, in one piece, and the next Reply is that much larger. So a client that is slow holds back itself alone,
// and when it is slower than the limits allow, its call ends with RESOURCE_EXHAUSTED.
//
// The calls are shared with the HTTP edge, so limits and metrics count both. All on the loop's thread.
#pragma once

#include "common/net/sp.h"

typedef struct bt_calls bt_calls; // router/call.h

typedef struct {
    bt_sp_options sp;
    uint32_t calls_each_max; // under way on one connection; more are RESOURCE_EXHAUSTED
} bt_router_gateway_options;

typedef struct bt_router_gateway bt_router_gateway;

// Listens at once; until the model is there calls are UNAVAILABLE. After the turn of the router's core was added to the loop, so that
// what that turn brings goes out in the same one. The calls outlive the gateway.
bt_err bt_router_gateway_open(bt_router_gateway **out, bt_loop *loop, bt_calls *calls,
                              const bt_router_gateway_options *options, bt_why *why);
void bt_router_gateway_close(bt_router_gateway *gateway); // what its clients have under way is cancelled; NULL is fine

// As bt_router_http_drain and _idle: no new connections; the calls' own draining refuses new calls. NULL is fine for both.
void bt_router_gateway_drain(bt_router_gateway *gateway);
bool bt_router_gateway_idle(const bt_router_gateway *gateway);

uint16_t bt_router_gateway_port(const bt_router_gateway *gateway);
// Appends its metrics as Prometheus text. NULL is fine.
void bt_router_gateway_write_metrics(const bt_router_gateway *gateway, bt_buf *out, const char *labels);
