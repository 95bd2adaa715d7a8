// The router's loop turn: pulls from the link, feeds the core, carries out its actions. Text, HTTP and RPC sit on top of this header.
// One thread, the loop's. Callbacks run inside turn, submit, cancel and drain. A callback may call cancel (as a stop string
// found in on_tokens does; it is acted on before the outer call returns), and nothing else of this header.
//
//     bt_router_edge_submit(edge, now, &arrival, &answer);       → id, or an error with what the client should hear
//     on_tokens … on_tokens, on_finished                          exactly one on_finished for each id, nothing after it
//     bt_router_edge_cancel(edge, now, id, BT_FINISH_CANCELLED)   → on_finished follows before it returns, if the request still was
//
// What submit and cancel send lies in the link until the other side's turn: whoever calls them outside a turn lets one of both sides
// follow before it sleeps.
#pragma once

#include "common/node/link.h"
#include "router/core.h"

// Borrowed until the callback returns.
typedef struct {
    bt_request_id request;
    uint64_t tag;
    uint32_t first, count; // of the answer; an end token, if one was drawn, is the last
    const bt_token_result *results;
    uint32_t scored_first, scored_count; // of the prompt, where prompt_logprobs were asked for: positions from 1
    const bt_token_result *scored;
    // Read by other weights than it should have been; known with the first tokens, unless the request moves later.
    bool degraded;
    bt_time ttft;     // with the first token: since the submit, else 0
    bt_phases phases; // of it
} bt_router_tokens;

typedef struct {
    bt_request_id request;
    uint64_t tag;
    bt_finish finish;
    bt_err err;
    bt_usage usage;
    bt_phases phases;
    bt_time ttft, total;
    uint32_t moves;
    bool degraded;
} bt_router_finished;

// Names as the nodes say; prefill: NULL = the decode node read the prompt.
typedef struct {
    const bt_router_attempt *what;
    const char *decode, *prefill;
} bt_router_attempted;

typedef struct {
    void (*on_tokens)(void *arg, const bt_router_tokens *tokens);
    void (*on_finished)(void *arg, const bt_router_finished *finished);
    void *arg;
    // What a node did for a request, when that is over there: before on_finished, none or several. May be NULL; calls nothing.
    void (*on_attempt)(void *arg, const bt_router_attempted *attempted);
} bt_router_callbacks;

typedef struct bt_router_edge bt_router_edge;

// The link stays the caller's and is closed after the edge.
bt_err bt_router_edge_open(bt_router_edge **out, const bt_router_limits *limits, bt_link *link,
                           const bt_router_callbacks *callbacks, bt_why *why);
void bt_router_edge_close(bt_router_edge *edge); // NULL is fine

// Does what is due. Returns when it wants to be called again: `now` or earlier means without sleeping.
bt_time bt_router_edge_turn(bt_router_edge *edge, bt_time now);

typedef struct {
    bt_request_id request;       // BT_OK
    uint32_t tokens, tokens_max; // BT_ERR_TOO_LONG: prompt + max_tokens asked for, and the limit
    bt_time retry_after;         // BUSY, PEER, CLOSED
} bt_router_answer;

// BT_ERR_TOO_LONG and INVALID → 400, BUSY → 429, PEER (no node is there) and CLOSED (draining) → 503. Copies what it keeps.
bt_err bt_router_edge_submit(bt_router_edge *edge, bt_time now, const bt_router_arrival *arrival,
                             bt_router_answer *out);

// `reason` is BT_FINISH_CANCELLED or BT_FINISH_STOP, and what on_finished then says, also where the answer came to its own end in
// the very message whose on_tokens called this. An id that is over is ignored.
void bt_router_edge_cancel(bt_router_edge *edge, bt_time now, bt_request_id request, bt_finish reason);

void bt_router_edge_drain(bt_router_edge *edge, bt_time now); // refuses what comes; what runs goes on
bool bt_router_edge_ready(const bt_router_edge *edge);
void bt_router_edge_stats(const bt_router_edge *edge, bt_router_stats *out);
// The nodes, for those who ask how the cluster is; their changes are logged as NODE-….
const bt_router *bt_router_edge_core(const bt_router_edge *edge);
