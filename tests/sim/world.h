// A cluster in virtual time: routers, prefill nodes and decode nodes as their real cores, links that delay, lose, cut and overtake, a
// transfer that reads real (fake) caches while they change, and clients that know what they should hear. A seed draws sizes, limits,
// which faults there are at all and when they strike; after every event checkers ask that nothing was lost, repeated, different or
// leaked, that no state was reached by a forbidden move, and that nobody waits for what is free.
//
//     world.c     opening, time, the turn of everything          clients.c   who asks, what they hear, how they leave
//     nodes.c     cores and their edges: feed, step, start, stop  faults.c    which faults strike, when and whom
//     links.c     connections as common/net promises them         check.c     what must hold after every event
//     proof.c     whose memory a decode node can read
//     transfer.c  fetches: late, torn, partial, of the dead       log.c       every decision as a line of text; the last ones on failure
//
// A cell of a cache is a hash of the tokens before it, and a token a hash of the cells attended to (tests/support/fake_engine.h): one
// stale or foreign block anywhere changes the answer. A run is a function of its seed: its log is the same to the byte.
#pragma once

#include "decode-node/core.h"
#include "prefill-node/core.h"
#include "router/core.h"
#include "tests/support/fake_engine.h"

#include "common/base/rng.h"

#include <stdio.h>

#define WORLD_CONTEXT 96
#define WORLD_VOCAB 40
#define WORLD_BLOCK 4u
#define WORLD_END_ID 0
#define WORLD_CLIENTS_MAX 1024
#define WORLD_BLOCKS_MAX 256
#define WORLD_FETCHES_MAX 16
#define WORLD_FETCH_BLOCKS (WORLD_CONTEXT / WORLD_BLOCK)
#define WORLD_SLOTS_MAX 1024 // sequences of a decode node, prompts of a prefill node, requests of a router

// Members: routers, prefill nodes, decode nodes.
#define WORLD_ROUTERS_MAX 3u
#define WORLD_NODES_MAX 4u // of a kind
#define WORLD_PREFILL_0 WORLD_ROUTERS_MAX
#define WORLD_DECODE_0 (WORLD_PREFILL_0 + WORLD_NODES_MAX)
#define WORLD_MEMBERS (WORLD_DECODE_0 + WORLD_NODES_MAX)
#define WORLD_PAIRS_MAX (WORLD_ROUTERS_MAX * 2 * WORLD_NODES_MAX + WORLD_NODES_MAX * WORLD_NODES_MAX)
#define WORLD_PEERS_MAX BT_DECODE_PEERS_MAX
#define WORLD_CONNS 4 // of a pair: one that lives, others that one side has not given up yet

#define WORLD_SILENCE (3 * BT_SECOND) // of a link (common/net/nng_link.h)
#define WORLD_LEASE (3 * BT_SECOND)

typedef enum {
    WORLD_CUT,          // both ways between two members
    WORLD_CUT_ONE_WAY,  // one way
    WORLD_CUT_OFF,      // a member hears and reaches nobody
    WORLD_CUT_PLANE,    // no KV blocks between two nodes that speak to each other otherwise
    WORLD_KILL,         // a node's program; it is back later with another epoch
    WORLD_KILL_ROUTER,  // the same, and its clients are lost with it
    WORLD_POWER,        // as a kill, but nobody is told: its peers notice by its silence
    WORLD_FREEZE,       // stopped, and goes on
    WORLD_DRAIN,        // leaves in good order
    WORLD_MUTE,         // no heartbeats come from one to another, though all else does
    WORLD_DEVICE,       // a step fails and spoils what it held
    WORLD_LOSE_TOKENS,  // a TOKENS message is dropped above the link
    WORLD_DROP_FRAME,   // a frame is lost: the next one shows the gap, the connection closes
    WORLD_LATE_FRAME,   // a frame comes after the next one: the same
    WORLD_TWICE_FRAME,  // a frame comes twice: the link drops the second
    WORLD_OVERTAKE,     // ABORT and HEARTBEAT go before what waits for credit, as they may
    WORLD_NARROW,       // queues of links hold a few messages: BUSY
    WORLD_FETCH_BREAK,  // comes in part
    WORLD_FETCH_FLIP,   // a bit differs
    WORLD_FETCH_NEVER,  // never ends by itself
    WORLD_FETCH_LATE,   // reads long after it was asked to: what lies there may have been lent anew
    WORLD_CANCEL_LATE,  // a cancelled fetch holds its landing blocks for up to a second
    WORLD_FETCH_TORN,   // trailers and contents are read at different times
    WORLD_DEAD_SUCCESS, // the peer dies, and the transport says that all came
    WORLD_CLIENT_GONE,  // a client vanishes, at a moment or in a phase
    WORLD_CLIENT_SLOW,  // reads too slowly and is dropped
    WORLD_BAD_REQUEST,  // too long, or with ids that there are not
    WORLD_FULL_POOLS,   // pools of both kinds hold one sequence or little more
    WORLD_FAULTS
} world_fault;

extern const char *const world_fault_names[WORLD_FAULTS];

// Bugs of the edges around the cores, planted to see that they are found.
typedef enum {
    WORLD_NO_BUG,
    WORLD_BUG_BELIEVE,    // a fetch believes what it read
    WORLD_BUG_SUM_ONLY,   // … if the checksum is right, whichever life of the block it is of
    WORLD_BUG_LATE_WRITE, // a cancelled fetch is called over while its bytes still land
    WORLD_BUG_NO_TAKEN,   // TAKEN is lost now and then, and nobody notices
    WORLD_BUG_NO_ABORT,   // ABORT is lost now and then, and nobody notices
    WORLD_BUG_NO_GAP,     // the link loses frames and does not notice
    WORLD_BUG_TOKENS,     // a TOKENS message is numbered anew after one was lost
    WORLD_BUGS
} world_bug;

extern const char *const world_bug_names[WORLD_BUGS];

typedef struct world world;

typedef struct {
    uint64_t seed;
    uint32_t routers, prefills, decodes; // 0 routers = 1
    bool differs;                        // prefill nodes hold other weights
    bool draws_faults;                   // which there are is drawn
    bool draws_sizes;                    // of the cluster too: the numbers above are its most
    world_bug bug;
    FILE *log;              // every decision as a line; NULL = none
    void (*tune)(world *w); // changes what was drawn before anybody starts; NULL = nothing
} world_options;

typedef struct {
    uint32_t router; // member
    bt_request_id id;
    bool alive, wished, odd, has_end, scores, accepted;
    bt_finish wish;
    bt_err refusal;
    int32_t ids[WORLD_CONTEXT + 1]; // prompt, and the answer as received
    uint32_t prompt, answer, max_tokens, scored_next;
    uint32_t own_tail;   // of the prompt, like no other's (test_peer_*.c)
    uint32_t stop_at;    // answer tokens at which its stop string is found; 0 = never
    uint32_t gone_state; // bt_request_state in which it vanishes; 0 = none
    uint32_t unread;     // tokens that a slow client has not read
    bt_time read_gap, read_at;
    uint64_t seed, session;
    bt_time arrived, cancel_at, deadline;
} world_client;

typedef struct {
    uint64_t epoch, generation, hash; // of the block's cells when it was stamped
} world_trailer;

typedef struct {
    bt_transfer_block blocks[WORLD_FETCH_BLOCKS];
    uint32_t count;
    uint32_t source; // member
    uint64_t source_epoch, user;
    bt_time peeks, ends; // when the first half of a torn read is taken; NEVER: it does not end by itself
    bt_time deadline;
    bool active, flips, breaks, cancelled, refused;
    bool torn, trailers_first; // which half is read first
    bool peeked, dead;         // what was read so far is in `seen`
    uint32_t dead_good;        // blocks that came before the source died
    struct {
        world_trailer trailer;
        uint64_t cells[WORLD_BLOCK];
    } seen[WORLD_FETCH_BLOCKS];
    uint64_t landing[WORLD_FETCH_BLOCKS]; // generations of the landing blocks, which must not change
} world_fetch;

// A prefill node's memory, as the edge of a decode node has it.
typedef struct {
    uint64_t heard; // epoch of its HELLO; 0 = none since the link came
    uint64_t epoch; // of the program that is connected, or to be
    bool proved, told;
    bt_time due, pause, lost;
} world_proof;

// What a checker remembers of a slot between two events.
typedef struct {
    uint32_t state, generation, attempt;
    bt_time orphan_since; // 0 = it has its partner
    uint32_t answer;      // tokens that the client has, and since when
    bt_time answer_since;
} world_shadow;

typedef enum { WORLD_LINK_GOOD, WORLD_LINK_ANEW, WORLD_LINK_CLOSES } world_link_state;

typedef struct {
    bool exists, up, draining;
    bt_node_role role;
    uint64_t epoch;
    bt_time clock; // of its host, ahead of w->now: what cores are told and say is on it
    bt_time back_at, step_ends, frozen_until, leaves_at;
    fake_engine engine;
    world_shadow shadows[WORLD_SLOTS_MAX];
    world_link_state link_failed[WORLD_PEERS_MAX]; // a send was refused: the core has to hear of it
    bool any_failed;

    bt_router *router;
    bt_router_actions *router_out;
    bt_time head_since; // the head of its queue could go since
    uint64_t head;

    bt_prefill_core *prefill;
    bt_prefill_actions *prefill_out;
    const bt_batch *reading;
    world_trailer trailers[WORLD_BLOCKS_MAX];

    bt_decode_core *decode;
    bt_decode_actions *decode_out;
    const bt_batch *writing;
    world_fetch fetches[WORLD_FETCHES_MAX];
    world_proof proofs[WORLD_NODES_MAX];
} world_member;

typedef struct world_letter {
    struct world_letter *next;
    bt_time at;
    bt_message *message; // NULL: its sender closed the connection
} world_letter;

// One direction of a connection.
typedef struct {
    world_letter *first, *last;
    bt_time last_at;
    uint32_t count;
    bool gap;         // a frame is missing before what comes next
    uint64_t skipped; // TOKENS messages that were lost and not counted (WORLD_BUG_TOKENS)
} world_pipe;

// Side 0 dialled, side 1 listens. Either may take it for open after the other has closed.
typedef struct {
    bool up[2];
    uint32_t peer[2];   // as this side's core numbers the other
    bt_time expires[2]; // when this side has heard nothing for too long
    bt_time since;
    world_pipe pipe[2]; // from this side
} world_conn;

typedef struct {
    uint32_t member[2];
    bt_time dial_at;
    world_conn conns[WORLD_CONNS];
} world_pair;

typedef struct {
    uint64_t accepted, refused, no_node, bad, unreachable, stopped, full, cancelled, failed, lost_with_router;
    uint64_t degraded, moves, tokens, scored, remote, remote_failed, fetched, refetched, stale, events;
    uint64_t injected[WORLD_FAULTS];
} world_totals;

#define WORLD_LINES 240

typedef struct {
    bt_time at;
    const char *what;
    uint32_t member, other;
    bt_message_kind kind;
    uint64_t a, b, c;
} world_line;

struct world {
    bt_rng rng;
    world_options options;
    bt_time now;
    uint32_t one_in[WORLD_FAULTS]; // of so many occasions; 0 = never
    bool lossy, failing;           // what clients may then hear
    uint32_t queue_max;            // of a pipe
    world_member members[WORLD_MEMBERS];
    world_pair pairs[WORLD_PAIRS_MAX];
    uint32_t pair_count;
    world_conn *conn_of[WORLD_MEMBERS][WORLD_PEERS_MAX];
    uint32_t member_of[WORLD_MEMBERS][WORLD_PEERS_MAX];
    bt_time cut_until[WORLD_MEMBERS][WORLD_MEMBERS]; // [from][to]
    bt_time plane_cut_until[WORLD_MEMBERS][WORLD_MEMBERS];
    bt_time mute_until[WORLD_MEMBERS][WORLD_MEMBERS]; // [from][to]
    bt_router_limits router_limits;
    bt_decode_limits decode_limits;
    bt_prefill_limits prefill_limits;

    struct {
        bt_time at; // 0 = none
        uint32_t member;
        bt_block block;
    } late_writes[64]; // of WORLD_BUG_LATE_WRITE

    world_client clients[WORLD_CLIENTS_MAX];
    uint32_t client_count, first_alive, alive;
    bt_time next_arrival, arrival_gap;
    uint64_t epochs;
    world_totals totals;
    world_line lines[WORLD_LINES]; // the last ones
    uint64_t line_count;
    uint64_t hash; // of all lines: equal for equal seeds
};

// A world is large: callers keep it static. Everything in `options` but `log` decides what happens.
void world_open(world *w, const world_options *options);
// Lets so many requests come and everything end, then waits until every lease is over. What must hold and does not ends the program
// with a line that names it, the seed and the last decisions.
void world_run(world *w, uint32_t clients);
void world_close(world *w);

void world_add(world_totals *sum, const world_totals *totals);
// One line for persons, and one JSON object's inside (no braces) for machines.
void world_print(FILE *file, const world_totals *totals);
void world_print_json(FILE *file, const world_totals *totals);

// For scripted cases (test_peer_faults.c): a world without chance of its own, moved by hand.
void world_advance(world *w, bt_time span);           // everything due within is done
uint32_t world_ask(world *w, const world_client *as); // `as` gives prompt, max_tokens, ids …; → its number
void world_cancel(world *w, uint32_t client);
void world_kill(world *w, uint32_t member, bt_time away);
void world_cut_pair(world *w, uint32_t a, uint32_t b, bt_time span, bool both);
void world_freeze(world *w, uint32_t member, bt_time span);
void world_drain(world *w, uint32_t member);
bt_time world_local(const world *w, uint32_t member);                               // now, on its host's clock
void world_inject(world *w, uint32_t from, uint32_t to, const bt_message *message); // as if `from` had said it
void world_check_home(world *w); // every block is home, nobody waits, holds or runs
