// What the files of the simulated world share. Nobody else includes this.
#pragma once

#include "tests/sim/world.h"

#include <stdlib.h>
#include <string.h>

// Ends the program with the seed, the moment and the last decisions.
_Noreturn void world_fail(const world *w, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define MUST(w, condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            world_fail(w, __FILE__, __LINE__, "%s", #condition);                                                       \
    } while (0)

static inline uint32_t
draw(world *w, uint32_t least, uint32_t most)
{
    return least + (uint32_t)bt_rng_below(&w->rng, most - least + 1);
}

static inline bool
one_in(world *w, uint32_t n)
{
    return n > 0 && bt_rng_below(&w->rng, n) == 0;
}

// Does the fault strike on this occasion? Counted.
static inline bool
strikes(world *w, world_fault fault)
{
    bool does = one_in(w, w->one_in[fault]);

    w->totals.injected[fault] += does;
    return does;
}

static inline void
earlier(bt_time *next, bt_time at)
{
    if (at < *next)
        *next = at;
}

static inline bt_time
later(bt_time a, bt_time b)
{
    return a > b ? a : b;
}

static inline bool
is_awake(const world *w, uint32_t member)
{
    return w->members[member].up && w->members[member].frozen_until <= w->now;
}

static inline bool
is_cut(const world *w, uint32_t from, uint32_t to)
{
    return w->cut_until[from][to] > w->now;
}

// log.c
void world_say(world *w, const char *what, uint32_t member, uint32_t other, bt_message_kind kind, uint64_t a,
               uint64_t b, uint64_t c);
void world_say_message(world *w, const char *what, uint32_t member, uint32_t other, const bt_message *message);
const char *world_name(uint32_t member, char out[8]);
void world_watch_aborts(world *w); // an assert of a core prints the last decisions too

// links.c
typedef enum { WORLD_SENT, WORLD_BUSY } world_sent;

void world_links_open(world *w);
world_sent world_post(world *w, uint32_t from, uint32_t peer, const bt_message *message);
void world_lose_link(world *w, uint32_t self, uint32_t peer,
                     const char *why); // `self` closes it, and its core hears so
void world_links_turn(world *w);
void world_links_next(const world *w, bt_time *next);
void world_close_links_of(world *w, uint32_t member, bool silently); // its program ended
void world_reset_stale(world *w, uint32_t member); // it started: who still spoke to what was there before is told
void world_links_close(world *w);

// nodes.c
typedef enum { WORLD_UP, WORLD_DOWN, WORLD_MESSAGE } world_news;

void world_tell(world *w, uint32_t self, uint32_t peer, world_news news, const bt_message *message);
void world_feed_router(world *w, uint32_t self, const bt_router_event *event);
void world_feed_prefill(world *w, uint32_t self, const bt_prefill_event *event);
void world_feed_decode(world *w, uint32_t self, const bt_decode_event *event);
uint64_t world_engine_weights(const world *w,
                              uint64_t digest); // as the fake engine counts them: 0 where all are the same
void world_start(world *w, uint32_t self);
void world_stop(world *w, uint32_t self, bool silently);
void world_member_turn(world *w, uint32_t self);
void world_member_next(const world *w, uint32_t self, bt_time *next);

// transfer.c
void world_fetch_begin(world *w, uint32_t self, const bt_decode_fetch *wanted);
void world_fetch_cancel(world *w, uint32_t self, uint64_t user);
void world_fetches_turn(world *w, uint32_t self);
void world_fetches_next(const world *w, uint32_t self, bt_time *next);
void world_source_dies(world *w, uint32_t member); // before its memory goes
uint64_t world_block_hash(const uint64_t *cells);  // [WORLD_BLOCK]

// proof.c
void world_proof_hear(world *w, uint32_t self, uint32_t source, uint64_t epoch); // a HELLO, after the core
void world_proof_down(world *w, uint32_t self, uint32_t source);                 // its link
bool world_is_connected(const world *w, uint32_t self, uint32_t source, uint64_t epoch);
void world_proofs_turn(world *w, uint32_t self);
void world_proofs_next(const world *w, uint32_t self, bt_time *next);

// clients.c
void world_arrive(world *w);
void world_clients_turn(world *w);
void world_clients_next(const world *w, bt_time *next);
void world_hear_tokens(world *w, uint32_t router, const bt_router_action *action);
void world_hear_end(world *w, uint32_t router, const bt_router_action *action);
void world_lose_clients(world *w, uint32_t router);

// faults.c
void world_draw_faults(world *w);
void world_faults_turn(world *w);
void world_faults_end(world *w);
void world_cut_path(world *w, uint32_t from, uint32_t to, bt_time span);

// check.c
void world_check_member(world *w, uint32_t self); // after an event of its core
void world_check_all(world *w);                   // after a turn
uint64_t world_landing_generation(const world *w, uint32_t self, bt_block block);
