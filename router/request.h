// The router's requests: a fixed table of slots, the states a request goes through, and which moves between them are legal.
//
//     FREE → ARRIVED → QUEUED → RESERVING → PREFILLING → FETCHING → DECODING → DONE | FAILED | CANCELLED → FREE
//                        ↑          │            │           │          │
//                        └──────────┴────────────┴───────────┴──────────┘   refused for now, or the node was lost
//
// Private to the router's core. One thread.
#pragma once

#include "common/wire/message.h"

typedef enum {
    BT_REQUEST_FREE,
    BT_REQUEST_ARRIVED,
    BT_REQUEST_QUEUED,     // waits for a node
    BT_REQUEST_RESERVING,  // asked a decode node for room
    BT_REQUEST_PREFILLING, // its prompt is being read
    BT_REQUEST_FETCHING,   // its KV blocks are on their way between nodes
    BT_REQUEST_DECODING,   // its answer is being written
    BT_REQUEST_DONE,
    BT_REQUEST_FAILED,
    BT_REQUEST_CANCELLED,
    BT_REQUEST_STATES
} bt_request_state;

#define BT_REQUEST_NONE UINT32_MAX

typedef struct {
    bt_request_state state;
    uint32_t generation;
    uint64_t tag, session;
    uint8_t priority;
    bt_time arrived, deadline;
    bt_time first_token;            // 0 = none yet
    char name[BT_JOB_NAME_MAX + 1]; // the client's, for logs

    int32_t *ids; // [context] prompt, then the answer as far as it was given out
    uint32_t prompt_count, answer_count, max_tokens;
    uint64_t *keys; // [context / affinity step] of the prompt's beginnings, for the weights with digest `key_weights`
    uint32_t key_count;
    uint64_t key_weights;
    bool prompt_logprobs;
    uint32_t scored_next; // position of the next prompt score, from 1
    bt_sampling sampling;
    uint32_t end_count;
    int32_t end_ids[BT_END_IDS_MAX];

    uint32_t attempt;       // RESERVEs sent so far
    uint32_t node;          // where it is, BT_REQUEST_NONE while queued
    uint32_t node_blocks;   // counted there for it
    bool probes;            // its breaker is half-open, and this is the probe
    uint32_t decode_failed; // the decode node that failed it last
    uint32_t retries;
    // Where its prompt is read, if not at `node`:
    uint32_t prefill;        // BT_REQUEST_NONE = nowhere else
    uint32_t prefill_at;     // where `prefill_tokens` are counted, BT_REQUEST_NONE = nowhere
    uint32_t prefill_tokens; // still to be computed, as counted
    uint32_t prefill_failed; // the prefill node that failed it last
    uint32_t prefill_failures;
    bool prefill_probes;
    bool degraded;
    uint32_t cached_tokens; // at `node`, by its ticket
    uint32_t found_tokens;  // of the prompt, in the prefix cache of whoever read it: what the client hears
    uint32_t moves;
    bt_phases phases; // of the time to the first token
    bt_err failed;    // why the last node failed it

    // Of the attempt that runs, for logs and traces; times are 0 until they come.
    uint32_t reads_at; // the prefill node, also after it has done its part; BT_REQUEST_NONE = the decode node
    uint32_t answer_before;
    bt_time placed, ticketed, read, joined;
    bt_phases reading, answering; // as the prefill node, and the decode node, reported them

    bt_time rank;   // in the queue: lower goes first
    uint32_t place; // in the queue's heap
    uint32_t next;  // in the list of free slots
} bt_request;

bool bt_request_may_move(bt_request_state from, bt_request_state to);
// Asserts that the move is legal.
void bt_request_move(bt_request *request, bt_request_state to);

static inline bool
bt_request_at_node(const bt_request *request)
{
    return request->state >= BT_REQUEST_RESERVING && request->state <= BT_REQUEST_DECODING;
}

typedef struct {
    bt_request *slots; // [capacity]
    int32_t *ids;      // [capacity, context]
    uint64_t *keys;    // [capacity, keys_max]
    uint32_t capacity, context;
    uint32_t used;          // slots that are not FREE
    uint32_t free;          // first of the list of free slots
    uint32_t *queue;        // [capacity] the queued ones, a heap by rank
    uint32_t queued;        // how many
    uint64_t queued_tokens; // of their prompts
} bt_requests;

bt_err bt_requests_init(bt_requests *requests, uint32_t capacity, uint32_t context, uint32_t keys_max);
void bt_requests_fini(bt_requests *requests); // accepts a zeroed one

// A slot in state ARRIVED with a generation of its own; NULL when all are taken.
bt_request *bt_requests_take(bt_requests *requests);
void bt_requests_release(bt_requests *requests, bt_request *request); // from DONE, FAILED, CANCELLED or ARRIVED
// NULL when it is over: the slot is free or has another tenant.
bt_request *bt_requests_find(bt_requests *requests, bt_request_id id);
// The router's own handle, and the one that nodes are given.
bt_request_id bt_requests_id(const bt_requests *requests, const bt_request *request);
bt_request_id bt_requests_attempt(const bt_requests *requests, const bt_request *request);

// Into QUEUED and out of it again.
void bt_requests_enqueue(bt_requests *requests, bt_request *request);
void bt_requests_dequeue(bt_requests *requests, bt_request *request, bt_request_state to);
// Who goes next: by arrival, each step of priority counting like two seconds and each token of the prompt like a tenth of a millisecond:
// the short ones of one moment go first, and nobody starves. NULL when the queue is empty.
bt_request *bt_requests_first(bt_requests *requests);
