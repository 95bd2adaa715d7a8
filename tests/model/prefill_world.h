// A prefill node's edge with the real engine on the tiny model, a real data plane and real sockets; router and decode nodes are played.
// One thread. For the cases in test_prefill_engine.c.
//
//     prefill_truth.c     the engine, and what it computes by itself
//     prefill_players.c   what decode nodes and the router say and do
//     prefill_world.c     opens, turns and closes it all
#pragma once

#include "common/net/nng_link.h"
#include "prefill-node/main.h"
#include "tests/support/test.h"

#define BLOCK_TOKENS 16
#define CONTEXT 160
#define PROMPT_BLOCKS (CONTEXT / BLOCK_TOKENS)
#define PROMPTS 12
#define READERS 2
#define LEASE (2 * BT_SECOND) // of nodes whose threads may stand still for a while on a crowded machine
#define LONG (20 * BT_SECOND)

typedef struct {
    int32_t ids[CONTEXT];
    uint32_t count;
    int32_t token;   // that follows, by an engine of our own
    uint8_t *blocks; // its cache, [PROMPT_BLOCKS]
    // What came of it:
    bt_offer_block offered[PROMPT_BLOCKS];
    uint32_t offered_count, landed, offers;
    bool last, over;
    int32_t offered_token, told_token;
    bt_finish finish;
    bt_err err;
} prompt;

typedef struct {
    bt_link *link;
    bt_plane *plane;
    uint8_t *pool; // prompt p lands at block p · PROMPT_BLOCKS
    uint64_t epoch;
    char name[8];
    bool up, proved, silent; // silent: no TAKEN
    uint64_t source;         // epoch of the prefill node
    uint32_t losses, bad_fetches;
    bt_transfer_cause cause; // of the last bad one
} reader;

typedef struct {
    bt_link link;
    bt_link *under;
    bt_message_kind refuses; // the next message of this kind
    bool then_down;          // and then says that the peer's link is down
    uint32_t down;           // such a peer, or NOBODY
} picky_link;

#define NOBODY UINT32_MAX

// Whose memory the prefill node's pool is: the program's; that, and the engine's own beside it, as on a GPU; the device's, as where GPUs
// read each other.
typedef enum { POOL_PLAIN, POOLS_APART, POOL_OF_DEVICE, POOLS_CASES } pools_case;

typedef struct {
    bt_loop *loop;
    int wakes;
    bt_watch watch;
    bt_engine *engine;
    bt_plane *plane;
    bt_transfer *transfer;
    picky_link link;
    bt_prefill_node *node;
    char url[64];
    bt_link *router;
    bool router_up;
    reader readers[READERS];
    bt_transfer_path path;
    pools_case pools;
    uint64_t epoch;
} world;

extern world w;
extern prompt prompts[PROMPTS];
extern bt_kv_layout layout;

// prefill_truth.c

// With `transfers` its pool is w.transfer, which is opened for w.epoch and w.path.
bt_engine *open_engine(uint32_t blocks, bool transfers);
bt_plane_options plane_options(uint32_t peers);
void draw_prompts(void); // with what an engine of our own makes of them; those of one family begin alike
void free_prompts(void);
// Are the first `tokens` of the two blocks the same bytes? What lies behind them is nobody's.
bool same_tokens(const uint8_t *a, const uint8_t *b, uint32_t tokens);

// prefill_players.c

bt_ticket ticket_of(const reader *r, uint32_t q);
void describe(reader *r, uint64_t epoch);
void fetch(reader *r, uint32_t q, uint32_t first, uint32_t count); // of what was offered for prompt q
void ask(uint32_t q, const reader *r);                             // the router: prompt q, for this decode node
void hear_all(void);

// prefill_world.c

void open_world(bt_transfer_path path, uint32_t blocks);
void open_world_as(bt_transfer_path path, uint32_t blocks, pools_case pools);
void close_world(void);
void open_prefill(uint64_t epoch, uint32_t blocks);
void close_prefill(void);
void open_link(void); // of the prefill node; its address is another one each time
bt_link *dial(void);
void open_reader(reader *r, uint64_t epoch);
void close_reader(reader *r);
void wake(void *arg);
void turn(void);
void turn_for(bt_time span);

#define TURN_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        bt_time until = bt_time_now() + LONG;                                                                          \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(bt_time_now() < until, "never: %s", #condition);                                             \
            turn();                                                                                                    \
        }                                                                                                              \
    } while (0)
