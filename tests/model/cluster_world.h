// A cluster in virtual time: the router's core, prefill and decode cores, links with delays, a transfer that reads real (fake) caches,
// and clients that know what they should hear. A seed draws sizes, faults and their moments; after every event checkers ask that
// nothing was lost, repeated, different or leaked.
#pragma once

#include "decode-node/core.h"
#include "prefill-node/core.h"
#include "router/core.h"
#include "tests/support/fake_engine.h"

#include "common/base/rng.h"

#define CLUSTER_CONTEXT 96
#define CLUSTER_VOCAB 40
#define CLUSTER_CLIENTS_MAX 128
#define CLUSTER_NODES_MAX 4 // of a kind
#define CLUSTER_BLOCKS_MAX 256
#define CLUSTER_MEMBERS (1 + 2 * CLUSTER_NODES_MAX) // the router, prefill nodes, decode nodes

typedef struct {
    bt_request_id id;
    bool alive, wished, odd, has_end;
    bt_finish wish;
    int32_t ids[CLUSTER_CONTEXT + 1]; // prompt, and the answer as received
    uint32_t prompt, answer, max_tokens;
    uint64_t seed;
    bt_time cancel_at, deadline;
} cluster_client;

typedef struct {
    uint64_t epoch, generation, hash; // of the block's cells when it was stamped
} cluster_trailer;

typedef struct {
    bt_transfer_block blocks[CLUSTER_BLOCKS_MAX];
    uint32_t count;
    uint32_t source; // prefill node
    uint64_t source_epoch, user;
    bt_time ends; // BT_TIME_NEVER: it never completes by itself
    bt_time deadline;
    bool active, flips, breaks, cancelled;
} cluster_fetch;

typedef struct {
    bool exists, up;
    uint64_t epoch;
    bt_time back_at, step_ends, frozen_until;
    fake_engine engine;
    // Prefill:
    bt_prefill_core *prefill;
    bt_prefill_actions *prefill_out;
    const bt_prefill_batch *reading;
    cluster_trailer trailers[CLUSTER_BLOCKS_MAX];
    // Decode:
    bt_decode_core *decode;
    bt_decode_actions *decode_out;
    const bt_decode_batch *writing;
    cluster_fetch fetches[16];
    bt_time proved_at[CLUSTER_MEMBERS]; // when the memory of a prefill node's program was read
    uint64_t proving[CLUSTER_MEMBERS];  // its epoch
} cluster_node;

typedef struct cluster_letter {
    struct cluster_letter *next;
    bt_time at;
    bt_message *message;
} cluster_letter;

// One direction of a link.
typedef struct {
    cluster_letter *first, *last;
    bt_time last_at;
} cluster_pipe;

typedef struct {
    uint32_t cut, lose, kill, freeze, device;                  // one in so many events; 0 = never
    uint32_t fetch_break, fetch_flip, fetch_never, fetch_late; // one in so many fetches
} cluster_faults;

typedef struct {
    bt_rng rng;
    uint64_t seed;
    bt_time now;
    cluster_faults faults;
    bool lossy, failing, differs;
    bool planted; // the bug: fetches believe what they read
    bool found;   // a wrong token was seen
    bt_router *router;
    bt_router_actions *router_out;
    cluster_node nodes[CLUSTER_MEMBERS]; // [0] is the router's place and empty
    uint32_t prefills, decodes;
    cluster_pipe pipes[CLUSTER_MEMBERS][CLUSTER_MEMBERS]; // [from][to]
    bool linked[CLUSTER_MEMBERS][CLUSTER_MEMBERS];
    bt_time link_at[CLUSTER_MEMBERS][CLUSTER_MEMBERS]; // when it comes up again
    bt_decode_limits decode_limits;
    bt_prefill_limits prefill_limits;

    cluster_client clients[CLUSTER_CLIENTS_MAX];
    uint32_t client_count, alive;
    bt_time next_arrival, arrival_gap;
    uint64_t epochs, events;
    // What became of them:
    uint32_t accepted, refused, stopped, full, cancelled, failed, degraded, no_node;
    uint64_t moves, tokens, remote, remote_failed, fetched, refetched, kills;
    uint64_t stale; // blocks read that had been lent anew
    uint64_t log;   // hash of all decisions: equal for equal seeds
} cluster;

void cluster_open(cluster *w, uint64_t seed, uint32_t prefills, uint32_t decodes, bool differs, bool faults);
// Lets `clients` requests come and everything end, then waits until every lease is over; fails when something does not end.
void cluster_run(cluster *w, uint32_t clients);
void cluster_close(cluster *w);
