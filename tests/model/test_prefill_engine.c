// The prefill node's edge with the real engine on the tiny model, a real data plane and real sockets. What this file plays is a router and
// decode nodes: what they fetch is, bit for bit, what an engine of their own computes.
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/kv/table.h"
#include "common/kv/trailer.h"
#include "common/net/nng_link.h"
#include "prefill-node/main.h"
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BLOCK_TOKENS 16
#define CONTEXT 160
#define PROMPT_BLOCKS (CONTEXT / BLOCK_TOKENS)
#define PROMPTS 12
#define READERS 2
#define LEASE (400 * BT_MILLISECOND)
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

static struct {
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
    uint64_t epoch;
} w;

static prompt prompts[PROMPTS];
static bt_kv_layout layout;

// ---- a link that loses what it is told to ----

static bool
picky_receive(bt_link *link, bt_link_event *out)
{
    picky_link *picky = (picky_link *)link;

    if (picky->down != NOBODY) {
        *out = (bt_link_event){.kind = BT_LINK_DOWN, .peer = picky->down};
        picky->down = NOBODY;
        return true;
    }
    return bt_link_receive(picky->under, out);
}

static bt_err
picky_send(bt_link *link, uint32_t peer, const bt_message *message)
{
    picky_link *picky = (picky_link *)link;

    if (picky->refuses == message->kind) {
        picky->refuses = BT_MESSAGE_NONE;
        picky->down = picky->then_down ? peer : NOBODY;
        return BT_ERR_NO_MEMORY;
    }
    return bt_link_send(picky->under, peer, message);
}

static bool
picky_pending(const bt_link *link)
{
    return bt_link_pending(((const picky_link *)link)->under);
}

static void
picky_close(bt_link *link)
{
    bt_link_close(((picky_link *)link)->under);
}

static const bt_link_ops picky_ops = {
    .receive = picky_receive, .send = picky_send, .pending = picky_pending, .close = picky_close};

// ---- the engine, and what it computes by itself ----

static bt_plane_options
plane_options(uint32_t peers)
{
    return (bt_plane_options){.peers_max = peers, .fetches_max = 6 * PROMPTS, .fetch_blocks_max = PROMPT_BLOCKS};
}

static void
wake(void *arg)
{
    eventfd_write(*(int *)arg, 1);
}

static bt_err
give_pool(void *arg, const bt_kv_layout *of, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    bt_plane_options plane = plane_options(BT_PREFILL_PEERS_MAX);
    bt_transfer_options o = {
        .epoch = w.epoch, .layout = *of, .blocks = blocks, .path = w.path, .listen = "127.0.0.1:0"};
    bt_err err;

    (void)arg;
    bt_plane_size_transfer(&plane, &o);
    err = bt_transfer_open(&w.transfer, &o, why);
    if (err == BT_OK)
        *memory = bt_transfer_pool(w.transfer);
    return err;
}

static bt_engine *
open_engine(uint32_t blocks, bool transfers)
{
    const char *path = "/tmp/baton-test-prefill-engine.gguf";
    bt_engine_options options = {
        .model = {.path = path, .weights = BT_LOAD_KEEP},
        .device = {.kind = BT_DEVICE_CPU, .threads = 1},
        .kv_format = BT_KV_INT8,
        .kv_block_tokens = BLOCK_TOKENS,
        .kv_blocks = blocks,
        .max_sequences = 4,
        .chunk_tokens = 40,
        .context = CONTEXT,
        .kv_pool = transfers ? give_pool : NULL,
    };
    bt_engine *engine;
    bt_why why;

    bt_test_write_tiny_gguf_as(path, BT_TINY_Q8_0);
    ck_assert_msg(bt_engine_open(&engine, &options, &why) == BT_OK, "%s", why.text);
    unlink(path);
    return engine;
}

static void
compute_alone(bt_engine *engine, prompt *p)
{
    uint32_t blocks[PROMPT_BLOCKS];

    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        blocks[i] = i;
    for (uint32_t at = 0; at < p->count; at += 32) {
        uint32_t count = p->count - at < 32 ? p->count - at : 32;
        bt_token_result drawn;
        bt_step_result result = {.drawn = &drawn};
        bt_batch_item item = {.ids = p->ids + at,
                              .count = count,
                              .position = at,
                              .blocks = blocks,
                              .want = at + count == p->count ? BT_LOGITS_LAST : BT_LOGITS_NONE,
                              .history = p->ids,
                              .prompt_count = p->count,
                              .next_id = -1};

        ck_assert_int_eq(bt_engine_step(engine, &item, 1, &result), BT_OK);
        p->token = drawn.id;
    }
    p->blocks = malloc(PROMPT_BLOCKS * layout.block_bytes);
    memcpy(p->blocks, bt_engine_kv_pool(engine), PROMPT_BLOCKS * layout.block_bytes);
}

// Prompts of one family begin alike.
static void
draw_prompts(void)
{
    bt_engine *engine = open_engine(PROMPT_BLOCKS, false);
    bt_rng rng = {20261130};

    layout = *bt_engine_kv_layout(engine);
    memset(prompts, 0, sizeof prompts);
    for (uint32_t q = 0; q < PROMPTS; q++) {
        prompt *p = &prompts[q];

        p->count = q == 0 ? 1 : q == 1 ? CONTEXT : 1 + (uint32_t)bt_rng_below(&rng, CONTEXT);
        for (uint32_t i = 0; i < p->count; i++)
            p->ids[i] = 5 + (int32_t)(i < 64 ? bt_mix64(q % 3 * 4096 + i) % 290 : bt_rng_below(&rng, 290));
        p->offered_token = p->told_token = -1;
        compute_alone(engine, p);
    }
    bt_engine_close(engine);
}

static void
free_prompts(void)
{
    for (uint32_t q = 0; q < PROMPTS; q++)
        free(prompts[q].blocks);
}

// Are the first `tokens` of the two blocks the same bytes? What lies behind them is nobody's.
static bool
same_tokens(const uint8_t *a, const uint8_t *b, uint32_t tokens)
{
    for (uint32_t layer = 0; layer < layout.layers; layer++) {
        for (uint32_t head = 0; head < layout.kv_heads; head++) {
            const uint8_t *va = bt_kv_v(&layout, (uint8_t *)a, layer, head),
                          *vb = bt_kv_v(&layout, (uint8_t *)b, layer, head);
            size_t dim = layout.head_dim;

            if (memcmp(bt_kv_k(&layout, (uint8_t *)a, layer, head), bt_kv_k(&layout, (uint8_t *)b, layer, head),
                       tokens * dim) != 0 ||
                memcmp(bt_kv_k_scales(&layout, (uint8_t *)a, layer, head),
                       bt_kv_k_scales(&layout, (uint8_t *)b, layer, head),
                       tokens * (dim / layout.k_scale_group) * 2) != 0 ||
                memcmp(bt_kv_v_scales(&layout, (uint8_t *)a, layer, head),
                       bt_kv_v_scales(&layout, (uint8_t *)b, layer, head), tokens * 2) != 0)
                return false;
            for (size_t i = 0; i < tokens * dim; i++) {
                size_t at = i / dim / 4 * dim * 4 + i % dim * 4 + i / dim % 4; // [token / 4][dim][4]

                if (va[at] != vb[at])
                    return false;
            }
        }
    }
    return true;
}

// ---- what decode nodes and the router say ----

static bt_message
hello_of(bt_node_role role, const char *name, uint64_t epoch)
{
    bt_message message = {.kind = BT_MESSAGE_HELLO};

    message.hello = (bt_hello){.role = role,
                               .epoch = epoch,
                               .model = bt_engine_model(w.engine)->family,
                               .weights = bt_engine_model(w.engine)->digest,
                               .layout = bt_kv_layout_fingerprint(&layout),
                               .sequences = PROMPTS,
                               .blocks = PROMPTS * PROMPT_BLOCKS,
                               .block_tokens = BLOCK_TOKENS,
                               .context = CONTEXT};
    snprintf(message.hello.name, sizeof message.hello.name, "%s", name);
    return message;
}

static bt_ticket
ticket_of(const reader *r, uint32_t q)
{
    return (bt_ticket){.epoch = r->epoch, .slot = q, .generation = 1, .layout = bt_kv_layout_fingerprint(&layout)};
}

static void
describe(reader *r, uint64_t epoch)
{
    bt_message message = {.kind = BT_MESSAGE_DESCRIPTION};

    message.description = (bt_description){
        .epoch = epoch, .layout = bt_kv_layout_fingerprint(&layout), .blocks = PROMPTS * PROMPT_BLOCKS};
    message.description.bytes = bt_plane_description(r->plane, &message.description.byte_count);
    ck_assert_int_eq(bt_link_send(r->link, 0, &message), BT_OK);
}

static void
take(reader *r, uint32_t q)
{
    bt_message message = {.kind = BT_MESSAGE_TAKEN};

    message.taken = (bt_taken){.ticket = ticket_of(r, q), .block_count = prompts[q].landed};
    if (!r->silent && r->up)
        bt_link_send(r->link, 0, &message);
}

static void
fetch(reader *r, uint32_t q, uint32_t first, uint32_t count)
{
    bt_transfer_block blocks[PROMPT_BLOCKS];

    for (uint32_t i = 0; i < count; i++)
        blocks[i] = (bt_transfer_block){prompts[q].offered[first + i].block, q * PROMPT_BLOCKS + first + i,
                                        prompts[q].offered[first + i].generation};
    ck_assert_int_eq(bt_plane_fetch(r->plane, 0, r->source, blocks, count, bt_time_now() + LONG, q), BT_OK);
}

static void
hear_offer(reader *r, const bt_offer *offer)
{
    prompt *p = &prompts[offer->ticket.slot];

    ck_assert_uint_eq(offer->ticket.epoch, r->epoch);
    ck_assert_uint_eq(offer->epoch, w.epoch);
    ck_assert_uint_eq(offer->first_position, p->offered_count * BLOCK_TOKENS);
    ck_assert_uint_le(p->offered_count + offer->block_count, PROMPT_BLOCKS);
    memcpy(p->offered + p->offered_count, offer->blocks, offer->block_count * sizeof *offer->blocks);
    p->offered_count += offer->block_count;
    p->offers++;
    p->last = offer->last;
    if (offer->has_token)
        p->offered_token = offer->token.id;
}

static void
hear_prefill_node(reader *r, const bt_message *message)
{
    if (message->kind == BT_MESSAGE_HELLO) {
        r->source = message->hello.epoch;
        describe(r, r->epoch);
    } else if (message->kind == BT_MESSAGE_DESCRIPTION) {
        const bt_description *d = &message->description;

        if (!bt_plane_connected(r->plane, 0, d->epoch))
            ck_assert_int_eq(bt_plane_connect(r->plane, 0, d->epoch, d->bytes, d->byte_count, bt_time_now() + LONG),
                             BT_OK);
    } else if (message->kind == BT_MESSAGE_OFFER) {
        hear_offer(r, &message->offer);
        fetch(r, message->offer.ticket.slot,
              prompts[message->offer.ticket.slot].offered_count - message->offer.block_count,
              message->offer.block_count);
    }
}

static void
hear_plane(reader *r)
{
    bt_plane_event event;

    while (bt_plane_next(r->plane, &event)) {
        if (event.kind == BT_PLANE_PROVED)
            r->proved = event.err == BT_OK;
        r->losses += event.kind == BT_PLANE_LOST;
        if (event.kind != BT_PLANE_FETCHED)
            continue;
        if (event.err == BT_OK) {
            prompts[event.user].landed += event.good;
            take(r, (uint32_t)event.user);
        } else {
            r->bad_fetches++;
            r->cause = event.cause;
        }
    }
}

static void
hear_tokens(const bt_tokens *tokens)
{
    for (uint32_t i = 0; i < tokens->entry_count; i++) {
        const bt_tokens_entry *entry = &tokens->entries[i];
        prompt *p = &prompts[entry->request.slot];

        ck_assert(!p->over);
        p->over = entry->finish != BT_FINISH_NONE;
        p->finish = entry->finish;
        p->err = entry->err;
        if (entry->count == 1)
            p->told_token = entry->results[0].id;
    }
}

static void
hear_all(void)
{
    bt_link_event event;
    bt_message hello;

    while (w.router != NULL && bt_link_receive(w.router, &event)) {
        w.router_up = event.kind != BT_LINK_DOWN;
        if (event.kind == BT_LINK_UP) {
            hello = hello_of(BT_NODE_ROUTER, "r1", 900);
            bt_link_send(w.router, 0, &hello);
        } else if (event.kind == BT_LINK_MESSAGE && event.message->kind == BT_MESSAGE_TOKENS) {
            hear_tokens(&event.message->tokens);
        }
    }
    for (reader *r = w.readers; r < w.readers + READERS; r++) {
        while (r->link != NULL && bt_link_receive(r->link, &event)) {
            r->up = event.kind != BT_LINK_DOWN;
            if (event.kind == BT_LINK_UP) {
                hello = hello_of(BT_NODE_DECODE, r->name, r->epoch);
                bt_link_send(r->link, 0, &hello);
            } else if (event.kind == BT_LINK_MESSAGE) {
                hear_prefill_node(r, event.message);
            }
        }
        if (r->plane != NULL)
            hear_plane(r);
    }
}

// ---- the world ----

static void
on_wake(void *self, uint32_t events)
{
    eventfd_t count;

    (void)self, (void)events;
    eventfd_read(w.wakes, &count);
}

static void
turn(void)
{
    bt_time now = bt_time_now(), next = bt_prefill_node_turn(w.node, now);

    hear_all();
    bt_loop_once(w.loop, next <= now ? 0 : next - now < 2 * BT_MILLISECOND ? next - now : 2 * BT_MILLISECOND);
}

#define TURN_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        bt_time until = bt_time_now() + LONG;                                                                          \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(bt_time_now() < until, "never: %s", #condition);                                             \
            turn();                                                                                                    \
        }                                                                                                              \
    } while (0)

static void
turn_for(bt_time span)
{
    for (bt_time until = bt_time_now() + span; bt_time_now() < until;)
        turn();
}

static bt_nng_link_options
link_options(void)
{
    bt_nng_link_options options = bt_nng_link_defaults();

    options.secret = "a secret";
    options.pause_min = BT_MILLISECOND;
    options.pause_max = 20 * BT_MILLISECOND;
    return options;
}

static bt_link *
dial(void)
{
    bt_nng_link_options options = link_options();
    bt_nng_peer peer = {w.url, NULL};
    bt_link *link;
    bt_why why;

    options.accepted_max = 0;
    options.dial = &peer;
    options.dial_count = 1;
    ck_assert_msg(bt_nng_link_open(&link, w.loop, &options, &why) == BT_OK, "%s", why.text);
    return link;
}

static void
open_link(void)
{
    const char *any = "tcp://127.0.0.1:0";
    bt_nng_link_options options = link_options();
    bt_why why;

    options.listen = &any;
    options.listen_count = 1;
    w.link = (picky_link){.link.ops = &picky_ops, .down = NOBODY};
    ck_assert_msg(bt_nng_link_open(&w.link.under, w.loop, &options, &why) == BT_OK, "%s", why.text);
    snprintf(w.url, sizeof w.url, "tcp://127.0.0.1:%u", bt_nng_link_port(w.link.under, 0));
}

static void
open_prefill(uint64_t epoch, uint32_t blocks)
{
    bt_plane_options plane = plane_options(BT_PREFILL_PEERS_MAX);
    bt_prefill_node_options options = {.name = "p1",
                                       .epoch = epoch,
                                       .max_sequences = 4,
                                       .chunk_tokens = 40,
                                       .prompts = PROMPTS,
                                       .lease = LEASE,
                                       .wake = wake,
                                       .wake_arg = &w.wakes};
    bt_why why;

    w.epoch = epoch;
    w.engine = open_engine(blocks, true);
    plane.wake = wake;
    plane.wake_arg = &w.wakes;
    ck_assert_msg(bt_plane_open(&w.plane, w.transfer, &plane, &why) == BT_OK, "%s", why.text);
    ck_assert_msg(bt_prefill_node_open(&w.node, &options, w.engine, &w.link.link, w.plane, &why) == BT_OK, "%s",
                  why.text);
}

static void
close_prefill(void)
{
    bt_prefill_node_close(w.node);
    bt_engine_close(w.engine);
    bt_plane_close(w.plane);
}

static void
open_reader(reader *r, uint64_t epoch)
{
    bt_plane_options plane = plane_options(1);
    bt_transfer_options o = {
        .epoch = epoch, .layout = layout, .blocks = PROMPTS * PROMPT_BLOCKS, .path = w.path, .listen = "127.0.0.1:0"};
    bt_transfer *transfer;
    bt_why why;

    *r = (reader){.epoch = epoch};
    snprintf(r->name, sizeof r->name, "d%d", (int)(r - w.readers));
    plane.wake = wake;
    plane.wake_arg = &w.wakes;
    bt_plane_size_transfer(&plane, &o);
    ck_assert_msg(bt_transfer_open(&transfer, &o, &why) == BT_OK, "%s", why.text);
    r->pool = bt_transfer_pool(transfer);
    ck_assert_msg(bt_plane_open(&r->plane, transfer, &plane, &why) == BT_OK, "%s", why.text);
    r->link = dial();
}

static void
close_reader(reader *r)
{
    bt_link_close(r->link);
    bt_plane_close(r->plane);
    *r = (reader){0};
}

static void
open_world(bt_transfer_path path, uint32_t blocks)
{
    bt_log_set_level(BT_LOG_ERROR);
    memset(&w, 0, sizeof w);
    w.path = path;
    w.wakes = eventfd(0, EFD_NONBLOCK);
    w.watch = (bt_watch){.ready = on_wake};
    draw_prompts();
    ck_assert_int_eq(bt_loop_open(&w.loop), BT_OK);
    ck_assert_int_eq(bt_loop_watch(w.loop, &w.watch, w.wakes, EPOLLIN), BT_OK);
    open_link();
    open_prefill(77, blocks);
    w.router = dial();
    for (uint32_t i = 0; i < READERS; i++)
        open_reader(&w.readers[i], 500 + i);
    TURN_UNTIL(w.router_up && w.readers[0].proved && w.readers[1].proved);
}

static void
close_world(void)
{
    for (uint32_t i = 0; i < READERS; i++)
        close_reader(&w.readers[i]);
    bt_link_close(w.router);
    close_prefill();
    bt_link_close(&w.link.link);
    bt_loop_close(w.loop);
    close(w.wakes);
    free_prompts();
}

static void
ask(uint32_t q, const reader *r)
{
    static const bt_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    bt_message message = {.kind = BT_MESSAGE_PREFILL};
    prompt *p = &prompts[q];

    message.prefill = (bt_prefill){.job = {.request = {q, 1, 1},
                                           .ids = p->ids,
                                           .prompt_count = p->count,
                                           .max_tokens = 8,
                                           .sampling = &greedy,
                                           .time_left = BT_TIME_NEVER},
                                   .ticket = ticket_of(r, q)};
    snprintf(message.prefill.decode, sizeof message.prefill.decode, "%s", r->name);
    ck_assert_int_eq(bt_link_send(w.router, 0, &message), BT_OK);
}

static bool
is_whole(uint32_t q)
{
    return prompts[q].over && prompts[q].last && prompts[q].landed == prompts[q].offered_count;
}

static bool
all_are_whole(void)
{
    for (uint32_t q = 0; q < PROMPTS; q++) {
        if (!is_whole(q))
            return false;
    }
    return true;
}

static void
expect_ours(const reader *r, uint32_t q)
{
    const prompt *p = &prompts[q];

    ck_assert_uint_eq(p->offered_count, bt_kv_blocks_for(p->count, BLOCK_TOKENS));
    for (uint32_t i = 0; i < p->offered_count; i++) {
        const uint8_t *landed = r->pool + (q * PROMPT_BLOCKS + i) * layout.block_bytes;
        uint32_t tokens = p->count - i * BLOCK_TOKENS;

        ck_assert_int_eq(bt_kv_trailer_check(&layout, landed, w.epoch, p->offered[i].generation, NULL), BT_KV_GOOD);
        ck_assert_msg(
            same_tokens(landed, p->blocks + i * layout.block_bytes, tokens < BLOCK_TOKENS ? tokens : BLOCK_TOKENS),
            "prompt %u, block %u", q, i);
    }
    ck_assert_int_eq(p->finish, BT_FINISH_LENGTH);
    ck_assert_int_eq(p->told_token, p->token);
    ck_assert_int_eq(p->offered_token, p->token);
}

static void
expect_idle(void)
{
    bt_prefill_node_stats stats;

    TURN_UNTIL(bt_prefill_node_idle(w.node));
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_int_eq(stats.core.leak, 0);
    ck_assert_uint_eq(stats.core.blocks_free + stats.core.blocks_cached, stats.core.blocks);
}

static const bt_transfer_path paths[] = {BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_STREAM};
#define PATHS 2

// ---- tests ----

START_TEST(what_decode_nodes_fetch_is_what_their_own_engine_computes)
{
    bt_prefill_node_stats stats;
    uint32_t blocks = 0, offers = 0;

    open_world(paths[_i], 64);
    for (uint32_t q = 0; q < PROMPTS; q++)
        ask(q, &w.readers[q % READERS]);
    TURN_UNTIL(all_are_whole());
    for (uint32_t q = 0; q < PROMPTS; q++) {
        expect_ours(&w.readers[q % READERS], q);
        blocks += prompts[q].offered_count;
        offers += prompts[q].offers;
    }
    expect_idle();
    bt_prefill_node_get_stats(w.node, &stats);
    printf("%u blocks in %u offers, %llu stamped\n", blocks, offers, (unsigned long long)stats.stamped_blocks);
    ck_assert_uint_gt(offers, PROMPTS);              // chunk by chunk
    ck_assert_uint_gt(stats.core.cached_tokens, 0);  // families share their beginnings
    ck_assert_uint_lt(stats.stamped_blocks, blocks); // what is shared is stamped once
    ck_assert_uint_eq(stats.core.taken, PROMPTS);
    ck_assert_uint_eq(stats.readers, READERS);
    close_world();
}
END_TEST

START_TEST(a_pool_for_one_prompt_at_a_time_serves_all)
{
    open_world(paths[_i], PROMPT_BLOCKS);
    for (uint32_t q = 0; q < PROMPTS; q++)
        ask(q, &w.readers[q % READERS]);
    TURN_UNTIL(all_are_whole());
    for (uint32_t q = 0; q < PROMPTS; q++)
        expect_ours(&w.readers[q % READERS], q);
    expect_idle();
    close_world();
}
END_TEST

START_TEST(blocks_lent_anew_are_not_taken_for_those_that_were_offered)
{
    reader *r = &w.readers[0];

    open_world(paths[_i], PROMPT_BLOCKS);
    ask(1, r); // all of the pool
    TURN_UNTIL(is_whole(1));
    expect_idle();
    ask(2, r);
    TURN_UNTIL(is_whole(2));
    r->silent = true;
    prompts[1].landed = 0;
    fetch(r, 1, 0, 1);
    TURN_UNTIL(r->bad_fetches + prompts[1].landed > 0);
    // Prompt 2 took block 0 of the pool, or another; of those of prompt 1 that are still there none is bad.
    if (r->bad_fetches > 0)
        ck_assert_int_eq(r->cause, BT_TRANSFER_CAUSE_GENERATION);
    fetch(r, 1, 0, PROMPT_BLOCKS);
    TURN_UNTIL(r->bad_fetches > 0);
    ck_assert_int_eq(r->cause, BT_TRANSFER_CAUSE_GENERATION);
    close_world();
}
END_TEST

START_TEST(what_is_held_can_be_fetched_until_the_lease_though_the_link_is_down)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    r->silent = true;
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    bt_link_close(r->link);
    r->link = NULL;
    r->up = false;
    turn_for(LEASE / 4);
    ck_assert(!bt_prefill_node_idle(w.node));
    prompts[1].landed = 0;
    memset(r->pool + PROMPT_BLOCKS * layout.block_bytes, 0, PROMPT_BLOCKS * layout.block_bytes);
    fetch(r, 1, 0, PROMPT_BLOCKS);
    TURN_UNTIL(prompts[1].landed == PROMPT_BLOCKS);
    expect_ours(r, 1);
    expect_idle();
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.core.expired, 1);
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.readers == READERS - 1));
    TURN_UNTIL(r->losses == 1 || paths[_i] != BT_TRANSFER_PATH_STREAM);
    close_world();
}
END_TEST

START_TEST(a_decode_node_that_comes_back_keeps_its_connection)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    bt_link_close(r->link);
    r->up = false;
    r->link = dial();
    TURN_UNTIL(r->up);
    turn_for(2 * LEASE);
    ck_assert_uint_eq(r->losses, 0);
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.readers, READERS);
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    expect_ours(r, 1);
    close_world();
}
END_TEST

START_TEST(a_connection_that_broke_comes_again_when_the_decode_node_describes_itself_again)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;
    const uint8_t *description;
    uint32_t bytes;

    open_world(paths[_i], 64);
    bt_plane_disconnect(r->plane, 0); // which the other side sees as the end of the connection
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.readers == READERS - 1));
    describe(r, r->epoch);
    r->proved = false;
    description = bt_plane_description(w.plane, &bytes);
    ck_assert_int_eq(bt_plane_connect(r->plane, 0, w.epoch, description, bytes, bt_time_now() + LONG), BT_OK);
    TURN_UNTIL(r->proved);
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    expect_ours(r, 1);
    close_world();
}
END_TEST

START_TEST(a_new_program_of_a_decode_node_is_served_and_the_old_one_forgotten)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    r->silent = true;
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    close_reader(r);
    open_reader(r, 600);
    TURN_UNTIL(r->proved);
    ask(2, r);
    TURN_UNTIL(is_whole(2));
    expect_ours(r, 2);
    expect_idle(); // what the old program held is free at the end of its lease
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.readers == READERS));
    close_world();
}
END_TEST

START_TEST(a_restarted_prefill_node_is_fetched_from_under_its_new_epoch)
{
    open_world(paths[_i], 64);
    bt_link_close(&w.link.link);
    close_prefill();
    w.readers[0].proved = w.readers[1].proved = w.router_up = false;
    open_link();
    // Its address is another one here.
    for (uint32_t i = 0; i < READERS; i++) {
        bt_link_close(w.readers[i].link);
        w.readers[i].link = dial();
    }
    bt_link_close(w.router);
    w.router = dial();
    open_prefill(78, 64);
    TURN_UNTIL(w.router_up && w.readers[0].proved && w.readers[1].proved);
    for (uint32_t q = 0; q < PROMPTS; q++)
        ask(q, &w.readers[q % READERS]);
    TURN_UNTIL(all_are_whole());
    for (uint32_t q = 0; q < PROMPTS; q++)
        expect_ours(&w.readers[q % READERS], q);
    close_world();
}
END_TEST

START_TEST(descriptions_that_do_not_fit_their_hello_are_refused)
{
    bt_prefill_node_stats stats;
    bt_message message = {.kind = BT_MESSAGE_DESCRIPTION};
    uint8_t rubbish[100] = {1, 2, 3};

    open_world(BT_TRANSFER_PATH_AUTO, 64);
    describe(&w.readers[0], 501); // the other's epoch
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.refused_descriptions == 1));
    message.description = (bt_description){.epoch = 5, .blocks = 1, .bytes = rubbish, .byte_count = sizeof rubbish};
    ck_assert_int_eq(bt_link_send(w.router, 0, &message), BT_OK); // routers have no memory to read
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.refused_descriptions == 2));
    ck_assert_uint_eq(stats.readers, READERS);
    describe(&w.readers[0], 500); // again, which changes nothing
    ask(1, &w.readers[0]);
    TURN_UNTIL(is_whole(1));
    ck_assert_uint_eq(w.readers[0].losses, 0);
    close_world();
}
END_TEST

START_TEST(an_offer_that_is_lost_ends_its_prompt_and_nothing_else)
{
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    ask(1, &w.readers[0]);
    w.link.refuses = BT_MESSAGE_OFFER;
    TURN_UNTIL(prompts[1].over);
    ck_assert_int_eq(prompts[1].finish, BT_FINISH_ERROR);
    ck_assert_int_eq(prompts[1].err, BT_ERR_PEER);
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.resets, 1);
    ask(2, &w.readers[1]);
    TURN_UNTIL(is_whole(2));
    expect_ours(&w.readers[1], 2);
    expect_idle();
    close_world();
}
END_TEST

START_TEST(a_link_that_goes_right_after_it_lost_a_message_is_not_taken_for_one_that_came_back)
{
    bt_prefill_node_stats stats;

    open_world(BT_TRANSFER_PATH_AUTO, 64);
    // The answer to a HELLO is sent as soon as that is heard; the link's end is heard in the same turn.
    w.link.refuses = BT_MESSAGE_HELLO;
    w.link.then_down = true;
    bt_link_close(w.readers[0].link);
    w.readers[0].link = dial();
    TURN_UNTIL(w.link.refuses == BT_MESSAGE_NONE && w.link.down == NOBODY);
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.resets, 0);
    close_world();
}
END_TEST

START_TEST(a_draining_node_finishes_what_it_has_and_takes_no_more)
{
    open_world(BT_TRANSFER_PATH_AUTO, 64);
    ask(1, &w.readers[0]);
    TURN_UNTIL(prompts[1].offered_count > 0);
    bt_prefill_node_drain(w.node, bt_time_now());
    ask(2, &w.readers[0]);
    TURN_UNTIL(prompts[2].over && is_whole(1));
    ck_assert_int_eq(prompts[2].finish, BT_FINISH_ERROR);
    ck_assert_int_eq(prompts[2].err, BT_ERR_CLOSED);
    expect_ours(&w.readers[0], 1);
    expect_idle();
    close_world();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("prefill engine");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, what_decode_nodes_fetch_is_what_their_own_engine_computes, 0, PATHS);
    tcase_add_loop_test(all, a_pool_for_one_prompt_at_a_time_serves_all, 0, PATHS);
    tcase_add_loop_test(all, blocks_lent_anew_are_not_taken_for_those_that_were_offered, 0, PATHS);
    tcase_add_loop_test(all, what_is_held_can_be_fetched_until_the_lease_though_the_link_is_down, 0, PATHS);
    tcase_add_loop_test(all, a_decode_node_that_comes_back_keeps_its_connection, 0, PATHS);
    tcase_add_loop_test(all, a_connection_that_broke_comes_again_when_the_decode_node_describes_itself_again, 0, PATHS);
    tcase_add_loop_test(all, a_new_program_of_a_decode_node_is_served_and_the_old_one_forgotten, 0, PATHS);
    tcase_add_loop_test(all, a_restarted_prefill_node_is_fetched_from_under_its_new_epoch, 0, PATHS);
    tcase_add_test(all, descriptions_that_do_not_fit_their_hello_are_refused);
    tcase_add_loop_test(all, an_offer_that_is_lost_ends_its_prompt_and_nothing_else, 0, PATHS);
    tcase_add_test(all, a_link_that_goes_right_after_it_lost_a_message_is_not_taken_for_one_that_came_back);
    tcase_add_test(all, a_draining_node_finishes_what_it_has_and_takes_no_more);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
