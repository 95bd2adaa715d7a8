// `baton local` in virtual time: the router's edge and core, a decode core, a link that can be cut, the fake engine, and clients that
// come, stop and leave as a seed draws. After every event checkers ask that nothing was lost, repeated, different or leaked.
#pragma once

#include "decode-node/core.h"
#include "router/main.h"
#include "tests/support/cut_link.h"
#include "tests/support/fake_engine.h"

#include "common/base/rng.h"

#define WORLD_CONTEXT 96
#define WORLD_VOCAB 40
#define WORLD_CLIENTS_MAX 256

// One request as its client sees it.
typedef struct {
    bt_request_id id;
    bool alive, wished;
    bt_finish wish;
    int32_t ids[WORLD_CONTEXT + 1]; // prompt, and the answer as received
    uint32_t prompt, answer, max_tokens, scored_next, stop_at;
    bool scores, has_end;
    uint64_t seed;
    bt_time cancel_at, deadline;
} world_client;

typedef struct {
    uint32_t device, cut, lose, refuse; // one in so many events; 0 = never
} world_faults;

typedef struct {
    bt_rng rng;
    bt_time now;
    world_faults faults;
    bool lossy, failing; // what may have happened, also after the faults have stopped
    cut_link *link;
    bt_router_edge *router;
    bt_decode_core *node;
    bt_decode_limits limits;
    fake_engine engine;
    bt_decode_actions *actions;
    const bt_batch *running;
    uint64_t running_hash; // of the batch as it was begun
    bt_time step_ends, router_wants;

    world_client clients[WORLD_CLIENTS_MAX];
    uint32_t client_count, alive;
    bt_time next_arrival, arrival_gap;
    uint64_t events;
    // What became of them:
    uint32_t accepted, refused, stopped, full, cancelled, failed;
    uint64_t moves, tokens, cached;
} world;

void world_open(world *w, uint64_t seed, bool faults);
// Lets `clients` requests come and everything end; fails the test when it does not within bounded time.
void world_run(world *w, uint32_t clients);
void world_close(world *w);
