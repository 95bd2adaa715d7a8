// Decides what happens to requests: who is let in, where each runs, when it is over. Knows no sockets, no clock and no text: its edge
// (router/main.h) gives it each event with the time it happened and carries out the actions it fills in. One thread.
// Everything is allocated at open.
//
//     ARRIVED → QUEUED → RESERVING → PREFILLING → (FETCHING) → DECODING → DONE | FAILED | CANCELLED      router/request.h
//
// A node that is lost puts its requests back into the queue with the answer they have; they go on elsewhere, or when it is back, and
// the client sees neither a gap nor a repeat.
//
// A decode node comes first; whether a prefill node reads the prompt is decided when the decode node has said what it has of it
// (place.h). Nodes of both kinds are peers of the same link and say in their HELLO what they are.
#pragma once

#include "common/wire/message.h"
#include "router/breaker.h"
#include "router/expect.h"

#define BT_MAX_TOKENS_REST UINT32_MAX // the client named no max_tokens: all that the context has left
#define BT_ROUTER_NODES_MAX 4096      // that limits.nodes_max may be
#define BT_ROUTER_ACTIONS_MAX 1024

// How nodes are chosen. The others are what others do, for comparison: by the number of requests alone, or by lot; both send each
// prompt of at least remote_tokens_min to a prefill node, whatever that costs.
typedef enum { BT_PLACE_OURS, BT_PLACE_LEAST_LOAD, BT_PLACE_RANDOM } bt_place_policy;

typedef struct {
    uint32_t nodes_max;          // peers of the link; 0 = 64
    uint32_t requests_max;       // in the router at once, queued or running; 0 = 256
    uint32_t queue_max;          // of them waiting for a node; 0 = requests_max
    uint32_t context;            // prompt + answer of one request, as the model's nodes have it
    uint32_t vocab;              // ids at or above are refused; 0 = not checked
    uint32_t max_tokens_default; // where the client named none: at most this many; 0 = the rest of the context
    uint64_t epoch;              // drawn by the edge, not 0
    bt_time heartbeat;           // 0 = 1 s
    bt_time node_silence;        // after which a node counts as lost; 0 = 10 s
    uint64_t seed;               // of the hash that breaks ties between nodes
    uint32_t remote_tokens_min;  // prompts with fewer tokens to compute stay at the decode node; 0 = 512
    bt_time slo_ttft;            // who would wait longer for a first token is told to come back (BUSY); 0 = nobody is
    uint32_t affinity_entries;   // of the table of what nodes have read, 32 bytes each; 0 = 4096 for each of nodes_max
    uint32_t affinity_tokens;    // of a prompt that an entry stands for; 0 = 256
    bt_time degrade_after;       // without a prefill node that must read a prompt: so long it waits for one; 0 = 2 s
    bt_place_policy place;
    bt_breaker_limits breaker;
    bool two_weights; // prefill nodes hold other weights than decode nodes: known before the first of them is met
    bool inexact;     // prompts may be read by whichever weights are at hand (placement.exact: false)
    // [nodes_max] what each must be, borrowed; who is not, is refused. NULL = nodes are taken as they come.
    const bt_router_expected *expected;
} bt_router_limits;

// A request, tokenized and checked by the text edge. Arrays and structs are borrowed and copied.
typedef struct {
    uint64_t tag;     // the edge's own; comes back with every action
    const char *name; // the client's, for logs here and at nodes; NULL = none; at most BT_JOB_NAME_MAX
    const int32_t *ids;
    uint32_t count;
    const bt_sampling *sampling;
    uint32_t max_tokens;
    bool prompt_logprobs;
    const int32_t *end_ids; // none where the client said ignore_eos
    uint32_t end_count;
    uint64_t session; // hash of the session key; 0 = none
    bt_time deadline; // absolute; BT_TIME_NEVER = none
    uint8_t priority; // 0 first; each step counts like two seconds of waiting, so nothing starves
} bt_router_arrival;

typedef enum {
    BT_ROUTER_ARRIVED,
    BT_ROUTER_CANCEL,    // ignored when the request is over
    BT_ROUTER_NODE_UP,   // a link came up
    BT_ROUTER_NODE_DOWN, // and went
    BT_ROUTER_NODE_BUSY, // the link did not take this RESERVE now
    BT_ROUTER_NODE_MESSAGE,
    BT_ROUTER_DRAIN, // admits nothing from now on
    BT_ROUTER_TICK,
} bt_router_event_kind;

typedef struct {
    bt_router_event_kind kind;
    bt_router_arrival arrival; // ARRIVED
    bt_request_id request;     // CANCEL, NODE_BUSY
    bt_finish reason;          // CANCEL: BT_FINISH_CANCELLED, or BT_FINISH_STOP when a stop string was met
    uint32_t node;             // NODE_…: the link's peer, < nodes_max
    const bt_message *message; // NODE_MESSAGE
} bt_router_event;

typedef enum {
    BT_ROUTER_ACCEPTED,
    BT_ROUTER_REJECTED, // with err: TOO_LONG, INVALID → 400; BUSY → 429; PEER (no node) and CLOSED (draining) → 503
    BT_ROUTER_TO_NODE,
    BT_ROUTER_TOKENS,
    BT_ROUTER_FINISHED,
} bt_router_action_kind;

typedef struct {
    bt_router_action_kind kind;
    bt_request_id request; // ACCEPTED, TOKENS, FINISHED; TO_NODE with RESERVE
    uint64_t tag;          // of the request, or of the arrival rejected
    union {
        struct {
            bt_err err;
            uint32_t tokens, tokens_max; // TOO_LONG: what was asked for and what there is
            bt_time retry_after;         // BUSY, PEER, CLOSED
        } rejected;
        struct {
            uint32_t node;
            bt_message message;
        } to_node;
        struct {
            uint32_t first, count; // of the answer
            const bt_token_result *results;
            uint32_t scored_first, scored_count; // of the prompt: positions ≥ 1
            const bt_token_result *scored;
            bool degraded;    // as below, as far as it is known
            bt_time ttft;     // with the first token: since arrival, else 0
            bt_phases phases; // of it
        } tokens;
        struct {
            bt_finish finish;
            bt_err err;
            bt_usage usage; // completion_tokens = those given out in TOKENS
            bt_phases phases;
            bt_time ttft, total; // since arrival; ttft 0 when there was no token
            uint32_t moves;      // from node to node
            bool degraded;       // read by other weights than it should have been: no prefill node could be used
        } finished;
    };
} bt_router_action;

// Filled by one step. What it points to is good until the next step.
typedef struct {
    uint32_t count;
    bt_router_action action[BT_ROUTER_ACTIONS_MAX];
} bt_router_actions;

// Why a request went from node to node.
typedef enum {
    BT_MOVE_LOST,   // its decode node was lost
    BT_MOVE_SOURCE, // its prefill node was, or the blocks did not come
    BT_MOVE_ENDED,  // the node ended it for its own reasons: a lease, a drain
    BT_MOVE_ERROR,  // a retry: the node failed it
    BT_MOVE_CAUSES
} bt_move_cause;

const char *bt_move_cause_name(bt_move_cause cause);

// What became of a request at the nodes that it was given to: one for each RESERVE that did not come back at once.
typedef struct {
    bt_request_id request;
    uint64_t tag;
    const char *name;
    uint32_t decode, prefill; // nodes; prefill: BT_ROUTER_NOWHERE = the decode node read the prompt
    bool moved;               // it left, because of `cause`; else it is over, with `finish`
    bt_move_cause cause;
    bt_finish finish;
    bt_err err;
    // 0 = did not happen. read: the prefill node said so; joined: the decode node's first word of the answer.
    bt_time placed, ticketed, read, joined, first_token, ended;
    bt_phases reading, answering; // as the prefill node, and the decode node, reported them
    bt_phases phases;             // of the first token, if there was one
    uint32_t prompt_tokens, cached_tokens, answer_before, answer_tokens; // of the answer before, and in all
} bt_router_attempt;

#define BT_ROUTER_NOWHERE UINT32_MAX

typedef struct bt_router bt_router;

bt_err bt_router_open(bt_router **out, const bt_router_limits *limits, bt_why *why);
void bt_router_close(bt_router *router); // NULL is fine

// Never fails: what cannot be done becomes an action that says so.
void bt_router_step(bt_router *router, bt_time now, const bt_router_event *event, bt_router_actions *out);

// The attempts that ended in the last step, [count]; good until the next.
const bt_router_attempt *bt_router_attempts(const bt_router *router, uint32_t *count);

// When step wants a TICK if nothing else happens first.
bt_time bt_router_next_deadline(const bt_router *router);

// Is there a node that would take a request now?
bool bt_router_ready(const bt_router *router);

typedef struct {
    // Now:
    uint32_t queued, running, nodes_up;
    int64_t leak; // load counted on nodes that no request accounts for; zero, always
    // Since open:
    uint64_t arrived, accepted, rejected_invalid, rejected_too_long, rejected_busy, rejected_no_node;
    uint64_t rejected_late; // of the busy: their first token would have come later than slo_ttft
    uint64_t done_stop, done_length, cancelled, failed;
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t moves; // requests put back, all causes
    uint64_t moves_by[BT_MOVE_CAUSES];
    uint64_t retries[2]; // of errors, by the role of the node that failed
    uint64_t retries_by[BT_ERR_COUNT];
    uint64_t retries_refused; // errors that went to the client: two retries were in vain, or errors are too many
    uint64_t breakers_opened;
    uint64_t remote;        // prompts given to prefill nodes
    uint64_t remote_failed; // of them, not read or not fetched there
    uint64_t degraded;      // prompts read by other weights than they should have been
    uint64_t late_messages; // for requests that were over
    uint64_t bad_messages;  // out of order, out of limits, or out of place
    uint64_t deadlines_missed;
} bt_router_stats;

void bt_router_get_stats(const bt_router *router, bt_router_stats *out);

typedef enum {
    BT_NODE_DOWN,    // no link
    BT_NODE_MET,     // a link, no HELLO yet
    BT_NODE_REFUSED, // its HELLO is not what limits.expected says; asked again with every heartbeat
    BT_NODE_READY,   // may be given requests, unless it drains
} bt_node_state;

// What the router knows of a node. What it points to is good until the next step.
typedef struct {
    bt_node_state state;
    const bt_hello *hello;            // REFUSED, READY
    const bt_heartbeat *load;         // READY: as it says, its sources aside
    const bt_router_refusal *refusal; // REFUSED
    bt_time heard;
    uint32_t requests, prompts; // that we gave it and are not over
    uint64_t prefill_tokens;    // of those prompts
    uint64_t blocks;            // that those requests may come to hold
    uint64_t prefill_rate;      // tokens a second as measured; 0 = not yet
    bt_breaker_state breaker;
} bt_router_node;

void bt_router_get_node(const bt_router *router, uint32_t node, bt_router_node *out);
// Has the decode node proved that it can fetch from this prefill node?
bool bt_router_is_pair(const bt_router *router, uint32_t decode, uint32_t prefill);
// As they hold, with what was 0 filled in. Nodes are numbered below nodes_max.
const bt_router_limits *bt_router_get_limits(const bt_router *router);
