// The gateway in one process with a real engine on the tiny model, asked by clients in C: whoever comes, leaves and dawdles, an answer is
// the same, and in the end everything is home. BT_SEED=n.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/client/client.h"
#include "common/node/loopback.h"
#include "decode-node/main.h"
#include "router/call.h"
#include "router/gateway.h"
#include "tests/support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTIONS 12
#define TEXT_MAX 4096

// A server on a thread of its own: what `baton local` is without HTTP.
static struct {
    bt_engine *engine;
    bt_loop *loop;
    bt_turn turn;
    bt_link *router_link, *node_link;
    bt_router_edge *edge;
    bt_decode_node *node;
    bt_calls *calls;
    bt_router_gateway *gateway;
    bt_router_gateway_options options;
    bt_text_list keys;
    pthread_t thread;
    atomic_bool stop, drain;
    char url[64];
} server;

typedef struct {
    uint64_t seed;
    char prompt[64], text[TEXT_MAX];
    uint32_t tokens;
} question;

static question questions[QUESTIONS];
static bt_why why;

static void
wake(void *loop)
{
    bt_loop_wake(loop);
}

static bt_time
turn(void *self, bt_time now)
{
    bt_time router = BT_TIME_NEVER, node = BT_TIME_NEVER;

    (void)self;
    for (int i = 0; i < 2; i++) {
        router = bt_router_edge_turn(server.edge, now);
        node = bt_decode_node_turn(server.node, now);
    }
    router = bt_link_pending(server.router_link) ? now : router;
    return router < node ? router : node;
}

static void *
serve(void *self)
{
    while (!atomic_load(&server.stop)) {
        bt_loop_once(server.loop, 10 * BT_MILLISECOND);
        if (atomic_load(&server.drain) && !server.calls->draining) {
            server.calls->draining = true;
            bt_router_gateway_drain(server.gateway);
        }
    }
    return self;
}

static void
open_engine(void)
{
    bt_engine_options options = {.model = {.path = "tests/data/tiny-q8_0.gguf"},
                                 .device = {.kind = BT_DEVICE_CPU, .threads = 1},
                                 .kv_block_tokens = 16,
                                 .max_sequences = 8,
                                 .chunk_tokens = 64};

    ck_assert_msg(bt_engine_open(&server.engine, &options, &why) == BT_OK, "%s", why.text);
}

static void
open_parts(void)
{
    bt_decode_node_options node = {.name = "local",
                                   .epoch = 5,
                                   .max_sequences = 8,
                                   .chunk_tokens = 64,
                                   .queue_max = 256,
                                   .wake = wake,
                                   .wake_arg = server.loop};
    bt_router_limits limits = {
        .requests_max = 256, .context = bt_engine_context(server.engine), .vocab = 300, .epoch = 7};
    bt_calls_options calls = {.calls_max = 64,
                              .choices_max = 8,
                              .answers_max = 256,
                              .text_workers = 1,
                              .body_bytes_max = 1u << 20,
                              .request_time_max = 60 * BT_SECOND,
                              .keys = &server.keys};
    bt_router_callbacks callbacks;

    ck_assert_int_eq(bt_loopback_open(&server.router_link, &server.node_link, 4u << 20), BT_OK);
    ck_assert_int_eq(bt_decode_node_open(&server.node, &node, server.engine, server.node_link, NULL, &why), BT_OK);
    ck_assert_int_eq(bt_calls_open(&server.calls, server.loop, &calls, &why), BT_OK);
    callbacks = bt_calls_callbacks(server.calls);
    ck_assert_int_eq(bt_router_edge_open(&server.edge, &limits, server.router_link, &callbacks, &why), BT_OK);
}

static void
set_up(void)
{
    bt_log_set_level(getenv("BATON_TEST_LOG") != NULL ? BT_LOG_INFO : BT_LOG_NONE);
    memset(&server, 0, sizeof server);
    open_engine();
    ck_assert_int_eq(bt_loop_open(&server.loop), BT_OK);
    open_parts();
    server.turn = (bt_turn){.turn = turn};
    bt_loop_add_turn(server.loop, &server.turn);
    server.options = (bt_router_gateway_options){.sp = bt_sp_defaults(), .calls_each_max = 16};
    server.options.sp.listen = "tcp://127.0.0.1:0";
    server.options.sp.connections_max = 32;
    server.options.sp.message_bytes_max = 1u << 20;
    server.options.sp.out_bytes_max = 2u << 20;
}

static void
start(void)
{
    ck_assert_msg(bt_router_gateway_open(&server.gateway, server.loop, server.calls, &server.options, &why) == BT_OK,
                  "%s", why.text);
    ck_assert_int_eq(bt_calls_set_model(server.calls, server.edge, bt_engine_model(server.engine)->tokenizer,
                                        bt_engine_context(server.engine), "tiny", &why),
                     BT_OK);
    snprintf(server.url, sizeof server.url, "tcp://127.0.0.1:%u", bt_router_gateway_port(server.gateway));
    ck_assert_int_eq(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static void
stop(void)
{
    atomic_store(&server.stop, true);
    bt_loop_wake(server.loop);
    pthread_join(server.thread, NULL);
    bt_router_gateway_close(server.gateway);
    server.gateway = NULL;
}

static void
tear_down(void)
{
    if (server.gateway != NULL)
        stop();
    bt_loop_remove_turn(server.loop, &server.turn);
    bt_calls_close(server.calls);
    bt_router_edge_close(server.edge);
    bt_decode_node_close(server.node);
    bt_link_close(server.router_link);
    bt_link_close(server.node_link);
    bt_loop_close(server.loop);
    bt_engine_close(server.engine);
    ck_assert_int_eq(bt_mem_live(), 0);
}

static bt_client *
dial(uint32_t credits)
{
    bt_client_options options = bt_client_defaults();
    bt_client *client;

    options.url = server.url;
    options.key = server.keys.count > 0 ? server.keys.items[0] : NULL;
    options.timeout = 60 * BT_SECOND; // of a busy machine
    options.message_bytes_max = 2u << 20;
    options.credits = credits;
    ck_assert_int_eq(bt_client_open(&client, &options, &why), BT_OK);
    return client;
}

static void
word(bt_gateway_generate *ask, const question *q, uint32_t max_tokens)
{
    bt_gateway_generate_defaults(ask);
    ask->input = (bt_gateway_input){.kind = BT_INPUT_PROMPT, .prompt = bt_str_of(q->prompt)};
    ask->max_tokens = max_tokens;
    ask->sampling.seed = q->seed;
    ask->sampling.ignore_eos = true;
    ask->seed_given = true;
}

typedef struct {
    char text[TEXT_MAX];
    size_t length;
    uint32_t tokens;
} heard;

static bool
hear(void *self, const bt_client_event *event)
{
    heard *h = self;

    for (uint32_t i = 0; i < event->news.choice_count; i++) {
        const bt_gateway_choice *choice = &event->news.choices[i];

        ck_assert_uint_lt(h->length + choice->text.len, sizeof h->text);
        memcpy(h->text + h->length, choice->text.data, choice->text.len);
        h->length += choice->text.len;
        h->tokens += choice->tokens.count;
    }
    return true;
}

static void
wait_until_home(bt_client *client)
{
    bt_gateway_stats stats;
    bt_time end = bt_time_now() + 60 * BT_SECOND;

    do {
        ck_assert_int_eq(bt_client_stats(client, &stats, &why), BT_OK);
        ck_assert_int_lt(bt_time_now(), end);
    } while (stats.running + stats.queued + stats.calls > 0);
}

static void
expect_nothing_left(void)
{
    bt_router_stats router;
    bt_decode_stats node;

    ck_assert_uint_eq(server.calls->calls_open, 0);
    ck_assert_uint_eq(server.calls->choices_open, 0);
    bt_router_edge_stats(server.edge, &router);
    ck_assert_int_eq(router.leak, 0);
    bt_decode_node_stats(server.node, &node);
    ck_assert_int_eq(node.leak, 0);
}

static void
answer_alone(bt_client *client)
{
    bt_rng rng = {1};

    for (uint32_t i = 0; i < QUESTIONS; i++) {
        question *q = &questions[i];
        bt_gateway_generate ask;
        heard h = {.length = 0};

        q->seed = bt_rng_next(&rng);
        q->tokens = 10 + (uint32_t)bt_rng_below(&rng, 120);
        snprintf(q->prompt, sizeof q->prompt, "Question %u of %d", i % 5, QUESTIONS);
        word(&ask, q, q->tokens);
        ck_assert_msg(bt_client_run(client, &ask, NULL, hear, &h, &why) == BT_OK, "%s", why.text);
        ck_assert_uint_eq(h.tokens, q->tokens);
        snprintf(q->text, sizeof q->text, "%.*s", (int)h.length, h.text);
    }
}

// ---- a crowd ----

typedef struct {
    pthread_t thread;
    bt_rng rng;
} visitor;

static void
check_stream(bt_client_stream *stream, const question *q)
{
    bt_client_event event = {.last = false};
    heard h = {.length = 0};

    while (!event.last) {
        ck_assert_msg(bt_client_next(stream, &event, &why) == BT_OK, "%s", why.text);
        hear(&h, &event);
    }
    ck_assert_uint_eq(h.tokens, q->tokens);
    ck_assert(h.length == strlen(q->text) && memcmp(h.text, q->text, h.length) == 0);
    bt_client_end(stream);
}

static void *
visit(void *self)
{
    visitor *v = self;

    for (int round = 0; round < 6; round++) {
        bt_client *client = dial(2 + (uint32_t)bt_rng_below(&v->rng, 20));
        bt_client_stream *streams[4];
        const question *asked[4];
        bool leaves = bt_rng_below(&v->rng, 3) == 0;

        for (int i = 0; i < 4; i++) {
            bt_gateway_generate ask;

            asked[i] = &questions[bt_rng_below(&v->rng, QUESTIONS)];
            word(&ask, asked[i], asked[i]->tokens);
            ck_assert_int_eq(bt_client_generate(client, &ask, NULL, &streams[i], &why), BT_OK);
        }
        for (int i = 0; i < 4 && !leaves; i++) {
            if (bt_rng_below(&v->rng, 4) == 0)
                bt_client_end(streams[i]); // cancelled
            else
                check_stream(streams[i], asked[i]);
        }
        bt_client_close(client); // perhaps with streams under way
    }
    return NULL;
}

START_TEST(answers_are_the_same_in_a_crowd_that_comes_and_goes)
{
    uint64_t seed = getenv("BT_SEED") != NULL ? strtoull(getenv("BT_SEED"), NULL, 10) : 1;
    visitor visitors[6];
    bt_client *client;

    printf("BT_SEED=%llu\n", (unsigned long long)seed);
    start();
    client = dial(64);
    answer_alone(client);
    for (uint64_t i = 0; i < 6; i++) {
        visitors[i].rng.state = bt_mix64(seed * 100 + i);
        ck_assert_int_eq(pthread_create(&visitors[i].thread, NULL, visit, &visitors[i]), 0);
    }
    for (int i = 0; i < 6; i++)
        pthread_join(visitors[i].thread, NULL);
    wait_until_home(client);
    bt_client_close(client);
    stop();
    expect_nothing_left();
}
END_TEST

START_TEST(closing_in_the_midst_of_streams_leaves_nothing)
{
    bt_client *clients[4];
    bt_client_stream *stream;
    bt_client_event event;
    question q = {.seed = 3, .prompt = "On and on"};
    bt_gateway_generate ask;

    start();
    word(&ask, &q, 450);
    ask.n = 4;
    for (int i = 0; i < 4; i++) {
        clients[i] = dial(1000);
        for (int k = 0; k < 4; k++)
            ck_assert_int_eq(bt_client_generate(clients[i], &ask, NULL, &stream, &why), BT_OK);
    }
    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_OK);
    stop();
    while (bt_client_next(stream, &event, &why) == BT_OK)
        ck_assert(!event.last);
    for (int i = 0; i < 4; i++)
        bt_client_close(clients[i]);
}
END_TEST

START_TEST(one_connection_may_have_so_many_calls_and_no_more)
{
    bt_client_stream *streams[17];
    question q = {.seed = 3, .prompt = "Many"};
    bt_gateway_generate ask;
    bt_client_event event;
    bt_client *client, *other;
    bt_err err = BT_OK;

    start();
    client = dial(1000);
    other = dial(1000);
    word(&ask, &q, 400);
    for (int i = 0; i < 17; i++)
        ck_assert_int_eq(bt_client_generate(client, &ask, NULL, &streams[i], &why), BT_OK);
    while ((err = bt_client_next(streams[16], &event, &why)) == BT_OK)
        ck_assert(!event.last);
    ck_assert_int_eq(err, BT_ERR_BUSY);
    word(&ask, &q, 3);
    ck_assert_int_eq(bt_client_run(other, &ask, NULL, hear, &(heard){.length = 0}, &why), BT_OK);
    bt_client_close(client);
    wait_until_home(other);
    bt_client_close(other);
}
END_TEST

START_TEST(what_drains_finishes_what_runs_and_refuses_what_comes)
{
    bt_client *client;
    bt_client_stream *stream;
    bt_client_event event = {.last = false};
    question q = {.seed = 3, .prompt = "To the end"};
    bt_gateway_generate ask;
    bt_gateway_state state = BT_STATE_READY;
    heard h = {.length = 0};

    start();
    client = dial(1000);
    word(&ask, &q, 300);
    ck_assert_int_eq(bt_client_generate(client, &ask, NULL, &stream, &why), BT_OK);
    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_OK); // it runs
    hear(&h, &event);
    atomic_store(&server.drain, true);
    bt_loop_wake(server.loop);
    while (state != BT_STATE_DRAINING)
        ck_assert_int_eq(bt_client_health(client, &state, &why), BT_OK);
    ck_assert_int_eq(bt_client_run(client, &ask, NULL, hear, &(heard){.length = 0}, &why), BT_ERR_PEER);
    ck_assert_int_eq(bt_client_last_status(client)->code, BT_CODE_UNAVAILABLE);
    ck_assert_str_eq(bt_client_last_status(client)->reason, "draining");
    while (!event.last) {
        ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_OK);
        hear(&h, &event);
    }
    ck_assert_uint_eq(h.tokens, 300);
    bt_client_close(client);
}
END_TEST

START_TEST(a_wrong_key_is_refused_and_health_is_open_to_all)
{
    bt_gateway_tokenize ask = {.model = {"", 0}, .input = {.kind = BT_INPUT_PROMPT, .prompt = bt_str_of("x")}};
    bt_gateway_tokenized tokenized;
    bt_gateway_state state;
    bt_client *client;

    server.keys.count = 1;
    snprintf(server.keys.items[0], sizeof server.keys.items[0], "the key");
    start();
    client = dial(64);
    ck_assert_int_eq(bt_client_tokenize(client, &ask, &tokenized, &why), BT_OK);
    bt_client_close(client);
    server.keys.count = 0; // dial shows none
    client = dial(64);
    server.keys.count = 1;
    ck_assert_int_eq(bt_client_tokenize(client, &ask, &tokenized, &why), BT_ERR_INVALID);
    ck_assert_int_eq(bt_client_last_status(client)->code, BT_CODE_UNAUTHENTICATED);
    ck_assert_int_eq(bt_client_health(client, &state, &why), BT_OK);
    bt_client_close(client);
}
END_TEST

START_TEST(text_becomes_ids_and_text_again)
{
    bt_gateway_tokenize ask = {
        .model = {"", 0}, .input = {.kind = BT_INPUT_PROMPT, .prompt = {"zero \0 byte", 11}}, .plain = true};
    bt_gateway_detokenize back = {.model = bt_str_of("tiny")};
    bt_gateway_tokenized tokenized;
    const bt_gateway_model *models;
    int32_t ids[64];
    bt_client *client;
    uint32_t count;
    bt_str text;

    start();
    client = dial(64);
    ck_assert_int_eq(bt_client_models(client, &models, &count, &why), BT_OK);
    ck_assert(count == 1 && bt_str_is(models[0].name, "tiny") && models[0].context == 512);
    ck_assert_int_eq(bt_client_tokenize(client, &ask, &tokenized, &why), BT_OK);
    ck_assert(tokenized.id_count > 0 && tokenized.id_count <= 64);
    memcpy(ids, tokenized.ids, tokenized.id_count * sizeof *ids);
    back.ids = ids;
    back.id_count = tokenized.id_count;
    ck_assert_int_eq(bt_client_detokenize(client, &back, &text, &why), BT_OK);
    ck_assert(bt_str_equal(text, ask.input.prompt));
    back.model = bt_str_of("other");
    ck_assert_int_eq(bt_client_detokenize(client, &back, &text, &why), BT_ERR_NOT_FOUND);
    bt_client_close(client);
}
END_TEST

START_TEST(each_allocation_of_open_may_fail)
{
    bt_err err = BT_ERR_NO_MEMORY;

    for (long nth = 1; err != BT_OK; nth++) {
        bt_mem_fail_nth(nth);
        err = bt_router_gateway_open(&server.gateway, server.loop, server.calls, &server.options, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        ck_assert_int_lt(nth, 50);
    }
    bt_router_gateway_close(server.gateway);
    server.gateway = NULL;
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gateway");
    TCase *tcase = tcase_create("gateway");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 250);
    tcase_add_test(tcase, answers_are_the_same_in_a_crowd_that_comes_and_goes);
    tcase_add_test(tcase, closing_in_the_midst_of_streams_leaves_nothing);
    tcase_add_test(tcase, one_connection_may_have_so_many_calls_and_no_more);
    tcase_add_test(tcase, what_drains_finishes_what_runs_and_refuses_what_comes);
    tcase_add_test(tcase, a_wrong_key_is_refused_and_health_is_open_to_all);
    tcase_add_test(tcase, text_becomes_ids_and_text_again);
    tcase_add_test(tcase, each_allocation_of_open_may_fail);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
