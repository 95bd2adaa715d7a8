// What the files of the simulated cluster share: world.c (time, router, clients) and node.c (nodes, links, transfers).
#pragma once

#include "common/base/rng.h"
#include "decode-node/core.h"
#include "prefill-node/core.h"
#include "tools/sim/queue.h"
#include "tools/sim/world.h"

#define SIM_ROUTER UINT32_MAX // as a member; nodes are numbered from 0, prefill nodes first
#define SIM_BLOCK_TOKENS 32u
#define SIM_VOCAB 0x7fffffffu

typedef enum {
    SIM_ARRIVE,  // the next row
    SIM_LETTER,  // what: a letter
    SIM_STEPPED, // node, of that life
    SIM_FETCHED, // node, of that life; what: the fetch
    SIM_TICK,    // node, or SIM_ROUTER
    SIM_SAMPLE,
    SIM_KILL,
    SIM_RESTART, // node
} sim_event_kind;

typedef struct {
    uint32_t from, to;           // members
    uint32_t from_life, to_life; // what is on its way when either dies is lost
    bt_message *message;
} sim_letter;

typedef struct {
    uint64_t epoch, generation;
} sim_trailer;

typedef struct {
    uint32_t source, count;
    uint64_t epoch, user;
    bt_time deadline;
    bool cancelled, late; // late: its deadline comes first
    bt_transfer_block blocks[];
} sim_fetch;

typedef struct {
    bool prefill, up;
    uint32_t life; // starts so far
    uint64_t epoch;
    uint32_t island, place; // the island, and the number in it among its kind
    bt_prefill_core *reader;
    bt_decode_core *writer;
    const bt_batch *reading;
    const bt_batch *writing;
    bt_time step_began, tick_at, busy;
    bt_time sends_until, receives_until; // transfers that were begun
    sim_trailer *trailers;               // [blocks] of prefill nodes
    sim_fetch **fetches;                 // [sequences] of decode nodes, NULL = none; owned by their event
    uint64_t computed;                   // prompt tokens, in lives that are over
} sim_node;

typedef struct {
    const sim_setup *setup;
    sim_result *result;
    sim_queue queue;
    bt_rng rng;
    bt_time now;
    bt_router *router;
    bt_time router_tick;
    sim_node *nodes;
    uint32_t islands;
    bt_decode_limits decode_limits;
    bt_prefill_limits prefill_limits;
    uint32_t context;

    int32_t *prompt; // [context] of the row that arrives
    uint32_t next_row, open, waiting, answering;
    uint64_t epochs;
    bt_err err; // not BT_OK: the run is over
    bt_why *why;

    bt_router_actions *router_out; // of whichever core acts
    bt_prefill_actions *prefill_out;
    bt_decode_actions *decode_out;
} sim_world;

// The first failure ends the run and is what is reported.
void sim_fail(sim_world *w, bt_err err, const char *format, ...) __attribute__((format(printf, 3, 4)));
void sim_later(sim_world *w, bt_time at, sim_event_kind kind, uint32_t node, void *what);
void sim_post(sim_world *w, uint32_t from, uint32_t to, const bt_message *message);
void sim_feed_router(sim_world *w, const bt_router_event *event);
int32_t sim_answer_id(uint32_t row, uint32_t position); // what the engine draws there

// node.c
bt_err sim_nodes_open(sim_world *w);
void sim_nodes_close(sim_world *w);
void sim_node_start(sim_world *w, uint32_t self);
void sim_node_kill(sim_world *w, uint32_t self);
void sim_node_deliver(sim_world *w, const sim_letter *letter);
void sim_node_stepped(sim_world *w, uint32_t self);
void sim_node_fetched(sim_world *w, uint32_t self, sim_fetch *fetch);
void sim_node_tick(sim_world *w, uint32_t self);
void sim_nodes_check_idle(sim_world *w); // sim_fail() where something is left
uint64_t sim_node_computed(const sim_node *node);
