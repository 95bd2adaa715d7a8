// The whole of local mode below HTTP, with the real engine on the tiny model: a request's tokens and their log-probabilities are the
// same alone and in a crowd that comes, leaves and shares prefixes, in a pool that is too small for all of them. BT_SEED=n.
// The crowd meets in one process, over sockets, and over sockets that lose, double and turn around frames.
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/net/nng_link.h"
#include "common/node/loopback.h"
#include "decode-node/main.h"
#include "router/main.h"
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define REQUESTS 24
#define CROWD 120 // passers-by, most of whom leave early
#define ANSWER_MAX 24
#define PROMPT_MAX 100
#define CONTEXT 160

typedef struct {
    int32_t ids[PROMPT_MAX];
    uint32_t count, max_tokens;
    bt_sampling sampling;
} question;

typedef struct {
    bt_token_result tokens[ANSWER_MAX];
    uint32_t count;
    bt_finish finish;
    bool over;
    bt_request_id id;
} answer;

static struct {
    bt_engine *engine;
    bt_link *router_link, *node_link;
    bt_router_edge *router;
    bt_decode_node *node;
    int wakes;
    uint32_t alive;
    bt_loop *loop; // of sockets; NULL = loopback
    bt_watch watch;
    bt_rng fates;
} local;

typedef enum { LOOPBACK, SOCKETS, BAD_SOCKETS } links;

static question questions[REQUESTS + CROWD];
static answer alone[REQUESTS + CROWD], crowd[REQUESTS + CROWD], *answers;

static void
wake(void *arg)
{
    eventfd_write(*(int *)arg, 1);
}

static void
on_tokens(void *arg, const bt_router_tokens *tokens)
{
    answer *a = &answers[tokens->tag];

    (void)arg;
    ck_assert_uint_eq(tokens->first, a->count);
    ck_assert_uint_le(a->count + tokens->count, ANSWER_MAX);
    memcpy(a->tokens + a->count, tokens->results, tokens->count * sizeof *tokens->results);
    a->count += tokens->count;
}

static void
on_finished(void *arg, const bt_router_finished *finished)
{
    answer *a = &answers[finished->tag];

    (void)arg;
    ck_assert(!a->over);
    a->over = true;
    a->finish = finished->finish;
    local.alive--;
}

static void
wait_until(bt_time now, bt_time next)
{
    struct pollfd wakes = {.fd = local.wakes, .events = POLLIN};
    eventfd_t count;

    if (local.loop != NULL)
        bt_loop_once(local.loop, next > now ? next - now : 0);
    else
        poll(&wakes, 1, next > now ? (int)((next - now) / BT_MILLISECOND) + 1 : 0);
    eventfd_read(local.wakes, &count);
}

// One turn of the loop, waiting for the engine where there is nothing else to do.
static void
turn(void)
{
    bt_time now = bt_time_now(), router, node, next;

    router = bt_router_edge_turn(local.router, now);
    node = bt_decode_node_turn(local.node, now);
    next = router < node ? router : node;
    if (bt_link_pending(local.router_link) || bt_link_pending(local.node_link) || local.alive == 0)
        next = now; // the one wrote after the other had looked, or the last answer has just come
    wait_until(now, next);
}

static bt_fate
draw_fate(void *self)
{
    (void)self;
    return bt_rng_below(&local.fates, 25) != 0 ? BT_FATE_PASS : (bt_fate)(1 + bt_rng_below(&local.fates, 3));
}

static void
on_wake(void *self, uint32_t events)
{
    (void)self, (void)events; // the turn that follows reads it
}

static void
open_sockets(bool bad)
{
    const char *any = "tcp://127.0.0.1:0";
    bt_nng_link_options options = bt_nng_link_defaults();
    bt_nng_peer peer;
    char url[64];
    bt_why why;

    options.secret = "a secret";
    options.listen = &any;
    options.listen_count = 1;
    options.silence_max = 600 * BT_MILLISECOND; // the loss of a last frame shows after a sixth of this
    options.pause_min = BT_MILLISECOND;
    options.pause_max = 20 * BT_MILLISECOND;
    options.fate = bad ? draw_fate : NULL;
    local.watch = (bt_watch){.ready = on_wake};
    ck_assert_int_eq(bt_loop_open(&local.loop), BT_OK);
    ck_assert_int_eq(bt_loop_watch(local.loop, &local.watch, local.wakes, EPOLLIN), BT_OK);
    ck_assert_msg(bt_nng_link_open(&local.node_link, local.loop, &options, &why) == BT_OK, "%s", why.text);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", bt_nng_link_port(local.node_link, 0));
    peer = (bt_nng_peer){url, NULL};
    options.listen_count = options.accepted_max = 0;
    options.dial = &peer;
    options.dial_count = 1;
    ck_assert_msg(bt_nng_link_open(&local.router_link, local.loop, &options, &why) == BT_OK, "%s", why.text);
}

static void
open_local(bt_kv_format format, uint32_t blocks, links kind)
{
    const char *path = "/tmp/baton-test-local-engine.gguf";
    bt_engine_options options = {
        .model = {.path = path, .weights = BT_LOAD_KEEP},
        .device = {.kind = BT_DEVICE_CPU, .threads = 1},
        .kv_format = format,
        .kv_block_tokens = 16,
        .kv_blocks = blocks,
        .max_sequences = 6,
        .chunk_tokens = 40,
        .context = CONTEXT,
    };
    bt_decode_node_options node = {
        .name = "local", .epoch = 1, .max_sequences = 6, .chunk_tokens = 40, .wake = wake, .wake_arg = &local.wakes};
    bt_router_limits router = {.requests_max = REQUESTS + CROWD, .context = CONTEXT, .epoch = 2};
    bt_why why;

    bt_test_write_tiny_gguf_as(path, BT_TINY_Q8_0);
    local.wakes = eventfd(0, EFD_NONBLOCK);
    ck_assert_msg(bt_engine_open(&local.engine, &options, &why) == BT_OK, "%s", why.text);
    unlink(path);
    local.loop = NULL;
    local.alive = 0;
    if (kind == LOOPBACK)
        ck_assert_int_eq(bt_loopback_open(&local.router_link, &local.node_link, 1 << 20), BT_OK);
    else
        open_sockets(kind == BAD_SOCKETS);
    ck_assert_msg(bt_decode_node_open(&local.node, &node, local.engine, local.node_link, NULL, &why) == BT_OK, "%s",
                  why.text);
    ck_assert_msg(bt_router_edge_open(&local.router, &router, local.router_link,
                                      &(bt_router_callbacks){.on_tokens = on_tokens, .on_finished = on_finished},
                                      &why) == BT_OK,
                  "%s", why.text);
    for (int i = 0; i < 10 || (local.loop != NULL && i < 100000); i++) {
        if (bt_router_edge_ready(local.router))
            break;
        turn();
    }
    ck_assert(bt_router_edge_ready(local.router));
}

static void
close_local(void)
{
    bt_router_edge_close(local.router);
    bt_decode_node_close(local.node);
    bt_link_close(local.router_link);
    bt_link_close(local.node_link);
    bt_loop_close(local.loop);
    bt_engine_close(local.engine);
    close(local.wakes);
}

static void
draw_questions(bt_rng *rng)
{
    for (uint32_t q = 0; q < REQUESTS + CROWD; q++) {
        question *it = &questions[q];
        uint32_t family = (uint32_t)bt_rng_below(rng, 3), shared;

        it->count = 1 + (uint32_t)bt_rng_below(rng, PROMPT_MAX);
        it->max_tokens = 1 + (uint32_t)bt_rng_below(rng, ANSWER_MAX);
        shared = (uint32_t)bt_rng_below(rng, it->count + 1);
        for (uint32_t i = 0; i < it->count; i++)
            it->ids[i] = 5 + (int32_t)(i < shared ? bt_mix64(family * 4096 + i) % 290 : bt_rng_below(rng, 290));
        it->sampling = (bt_sampling){.temperature = q % 3 == 0 ? 0 : 0.9f,
                                     .top_p = q % 4 == 1 ? 0.9f : 1,
                                     .top_k = q % 5 == 1 ? 40 : 0,
                                     .repetition_penalty = q % 6 == 1 ? 1.2f : 1,
                                     .seed = bt_rng_next(rng),
                                     .logprobs = true,
                                     .top_logprobs = q % 7 == 1 ? 3 : 0};
    }
}

static void
ask(uint32_t q)
{
    static const int32_t ends[] = {2, 4};
    const question *it = &questions[q];
    bt_router_answer reply;
    bt_router_arrival arrival = {.tag = q,
                                 .ids = it->ids,
                                 .count = it->count,
                                 .sampling = &it->sampling,
                                 .max_tokens = it->max_tokens,
                                 .end_ids = ends,
                                 .end_count = 2,
                                 .deadline = BT_TIME_NEVER};
    bt_err err;

    // While the connection is down there is no node, and clients hear 503: they ask again.
    while ((err = bt_router_edge_submit(local.router, bt_time_now(), &arrival, &reply)) == BT_ERR_PEER)
        turn();
    ck_assert_int_eq(err, BT_OK);
    answers[q].id = reply.request;
    local.alive++;
}

static void
ask_each_alone(void)
{
    answers = alone;
    for (uint32_t q = 0; q < REQUESTS; q++) {
        ask(q);
        while (local.alive > 0)
            turn();
    }
}

// All at once with the crowd between them, in an order of chance; passers-by leave at any moment.
static void
ask_in_a_crowd(bt_rng *rng)
{
    uint32_t asked = 0, passers = 0;

    answers = crowd;
    while (asked < REQUESTS || local.alive > 0) {
        if (asked < REQUESTS && bt_rng_below(rng, 3) == 0)
            ask(asked++);
        if (asked < REQUESTS && passers < CROWD && bt_rng_below(rng, 2) == 0)
            ask(REQUESTS + passers++);
        for (uint32_t p = REQUESTS; p < REQUESTS + passers; p++) {
            if (!answers[p].over && bt_rng_below(rng, 12) == 0)
                bt_router_edge_cancel(local.router, bt_time_now(), answers[p].id, BT_FINISH_CANCELLED);
        }
        turn();
    }
}

static void
expect_equal(const answer *a, const answer *b, uint32_t q)
{
    ck_assert_int_eq(a->finish, b->finish);
    ck_assert_uint_eq(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        ck_assert_msg(a->tokens[i].id == b->tokens[i].id, "request %u, token %u: %d alone, %d in the crowd", q, i,
                      a->tokens[i].id, b->tokens[i].id);
        ck_assert(a->tokens[i].logprob == b->tokens[i].logprob);
        ck_assert_uint_eq(a->tokens[i].top_count, b->tokens[i].top_count);
        for (uint32_t t = 0; t < a->tokens[i].top_count; t++)
            ck_assert(a->tokens[i].top_ids[t] == b->tokens[i].top_ids[t] &&
                      a->tokens[i].top_logprobs[t] == b->tokens[i].top_logprobs[t]);
    }
}

static const bt_kv_format formats[] = {BT_KV_INT8, BT_KV_F16, BT_KV_F32};

static void
expect_same_tokens_in_a_crowd(int variant, links kind)
{
    const char *set = getenv("BT_SEED");
    bt_rng rng = {set != NULL ? strtoull(set, NULL, 0) : 20261130 + (uint64_t)variant};
    bt_decode_stats stats;
    uint32_t tokens = 0, cached;

    printf("seed %llu\n", (unsigned long long)rng.state);
    local.fates = rng;
    memset(alone, 0, sizeof alone);
    memset(crowd, 0, sizeof crowd);
    draw_questions(&rng);
    open_local(formats[variant], 64, LOOPBACK);
    ask_each_alone();
    close_local();
    open_local(formats[variant], 26, kind); // three of the longest at a time
    ask_in_a_crowd(&rng);
    while (!bt_decode_node_idle(local.node))
        turn();
    for (uint32_t q = 0; q < REQUESTS; q++) {
        expect_equal(&alone[q], &crowd[q], q);
        tokens += alone[q].count;
    }
    bt_decode_node_stats(local.node, &stats);
    cached = (uint32_t)stats.cached_tokens;
    printf("%u tokens compared; in the crowd %llu steps of %.1f items, %u tokens found in the cache, %llu aborted\n",
           tokens, (unsigned long long)stats.steps, (double)stats.step_items / (double)stats.steps, cached,
           (unsigned long long)stats.aborted);
    ck_assert_int_eq(stats.leak, 0);
    ck_assert_uint_eq(stats.blocks_free + stats.blocks_cached, stats.blocks);
    // It was a crowd: how dense depends on how sockets and threads happen to meet, so only that steps were shared.
    ck_assert(set != NULL || (cached > 0 && stats.aborted > 0 && stats.step_items > stats.steps));
}

START_TEST(tokens_are_the_same_alone_and_in_a_crowd)
{
    expect_same_tokens_in_a_crowd(_i, LOOPBACK);
    close_local();
}
END_TEST

START_TEST(tokens_are_the_same_over_sockets)
{
    expect_same_tokens_in_a_crowd(_i, SOCKETS);
    close_local();
}
END_TEST

START_TEST(tokens_are_the_same_over_sockets_that_lose_frames)
{
    bt_nng_link_stats router, node;

    expect_same_tokens_in_a_crowd(_i, BAD_SOCKETS);
    bt_nng_link_read_stats(local.router_link, &router);
    bt_nng_link_read_stats(local.node_link, &node);
    printf("%llu frames, the connection was lost %llu times\n",
           (unsigned long long)(router.frames_sent + node.frames_sent), (unsigned long long)node.downs);
    ck_assert_uint_gt(node.downs, 0);
    ck_assert_uint_gt(router.gaps + node.gaps, 0);
    close_local();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("local engine");
    TCase *all = tcase_create("all");

    bt_log_set_level(BT_LOG_WARN);
    tcase_set_timeout(all, 300);
    tcase_add_loop_test(all, tokens_are_the_same_alone_and_in_a_crowd, 0, 3);
    tcase_add_test(all, tokens_are_the_same_over_sockets);
    tcase_add_loop_test(all, tokens_are_the_same_over_sockets_that_lose_frames, 0, 3);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
