// The HTTP edge: OpenAI's API on one side, the router's core on the other.
//
//     POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize
//     GET  /v1/models, /v1/models/NAME, /health (the process lives), /ready (requests are taken), /metrics, /v1/cluster,
//          /v1/trace/ID (where a request's time went, for Perfetto), /
//
// It listens from open on; until bt_router_http_set_model everything but /health and /metrics answers 503. A call becomes
// n × prompts requests to the core, whose answers are put together or streamed with their `index`. A client that goes away
// in whatever phase cancels them. All on the loop's thread.
#pragma once

#include "common/config/config.h"
#include "common/net/http.h"
#include "common/text/tokenizer.h"
#include "router/main.h"
#include "router/metrics.h"

typedef struct {
    const char *name, *link;
    const char *status; // its own HTTP, HOST:PORT; NULL or "" = none
    bt_node_role role;
} bt_router_address;

typedef struct {
    bt_http_limits http;
    uint32_t calls_max;   // answered at once; more are a 429
    uint32_t choices_max; // of one call: n × prompts
    uint32_t answers_max; // of all calls
    uint32_t text_workers;
    bt_time request_time_max; // from arrival to the end; BT_TIME_NEVER = none
    const bt_text_list *keys; // borrowed; none = everyone may
    char model[128];          // the name that clients use
    uint32_t trace_requests;  // whose spans GET /v1/trace/ID shows; 0 = none
    // For /v1/cluster, borrowed: how the cluster and this router are called, and the nodes as configured, in the order of the link's peers.
    const char *cluster, *router;
    const bt_router_address *nodes; // [node_count]; none = those that are met
    uint32_t node_count;
    // Appends what else is to be measured, Prometheus text; may be NULL.
    void (*more_metrics)(void *self, bt_buf *out, const char *labels);
    void *more_self;
} bt_router_http_options;

typedef struct bt_router_http bt_router_http;
typedef struct bt_calls bt_calls; // router/call.h

bt_err bt_router_http_open(bt_router_http **out, bt_loop *loop, const bt_router_http_options *options, bt_why *why);
// Before the edge of the core and the tokenizer go. NULL is fine.
void bt_router_http_close(bt_router_http *http);

// What bt_router_edge_open is given as callbacks; valid from open on.
bt_router_callbacks bt_router_http_callbacks(bt_router_http *http);

// The calls, for another edge beside this one (router/gateway.h), which closes before it.
bt_calls *bt_router_http_calls(bt_router_http *http);

// The model is loaded: requests are taken. Borrowed; once. `name` is used where the options have none.
bt_err bt_router_http_set_model(bt_router_http *http, bt_router_edge *edge, const bt_tokenizer *tokenizer,
                                uint32_t context, const char *name, bt_why *why);

// Takes no new calls (503) and no new connections; what runs goes on. `idle` once nothing does.
void bt_router_http_drain(bt_router_http *http);
bool bt_router_http_idle(const bt_router_http *http);

uint16_t bt_router_http_port(const bt_router_http *http);
