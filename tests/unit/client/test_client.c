// The client against a router that plays a script: what a prompt says is what becomes of its stream. (Against a real one:
// tests/unit/router/test_gateway.c.)
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/client/client.h"
#include "common/net/sp.h"
#include "tests/support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAMS_MAX 32
#define SCRATCH_BYTES (1u << 20)

typedef struct {
    bool used;
    uint32_t conn, credits, sent, replies;
    uint64_t id;
} played;

// What a prompt asks for:  "count N" N Replies and an end;  "lose" one Reply, then the connection goes;  "silent" nothing;  "busy" a
// refusal;  "rubbish" bytes that are no Reply.
static struct {
    bt_loop *loop;
    bt_sp *sp;
    pthread_t thread;
    atomic_bool stop;
    atomic_uint requests, credits, cancels, keys_wrong;
    uint16_t port;
    char url[64];
    played streams[STREAMS_MAX];
    bt_wire_scratch read, write;
} router;

static bt_client_options options;
static bt_client *client;
static bt_why why;

static void
reply(uint32_t conn, const bt_gateway_reply *what)
{
    bt_gateway_draft draft;
    uint8_t *memory;

    ck_assert_int_eq(bt_gateway_draft_reply(&draft, what, &router.write), BT_OK);
    if ((memory = bt_sp_begin(router.sp, conn, draft.bytes)) != NULL)
        bt_gateway_write(&draft, memory);
    bt_wire_scratch_reset(&router.write);
}

static void
end(uint32_t conn, uint64_t id, bt_code code, bt_str body)
{
    bt_gateway_reply last = {.id = id,
                             .last = true,
                             .status = {.code = code,
                                        .message = bt_str_of("in words"),
                                        .reason = bt_str_of(code == BT_CODE_OK ? "" : "a_reason"),
                                        .field = bt_str_of(""),
                                        .retry_after_ms = code == BT_CODE_RESOURCE_EXHAUSTED ? 1500 : 0},
                             .name = bt_str_of("named"),
                             .body = body};

    reply(conn, &last);
}

static void
give(played *stream)
{
    bt_gateway_choice choice = {.text = {"", 0}};
    bt_gateway_generated generated = {.choices = &choice, .choice_count = 1};
    bt_gateway_reply more = {.id = stream->id, .name = bt_str_of(stream->sent == 0 ? "named" : "")};
    char text[16];

    snprintf(text, sizeof text, "%u,", stream->sent);
    choice.text = bt_str_of(text);
    ck_assert_int_eq(bt_gateway_pack_generated(&more.body, &generated, &router.write), BT_OK);
    reply(stream->conn, &more);
    stream->sent++;
    stream->credits--;
}

static void
finish(played *stream)
{
    bt_gateway_generated generated = {.has_usage = true, .usage = {3, stream->sent, 1}};
    bt_str body;

    ck_assert_int_eq(bt_gateway_pack_generated(&body, &generated, &router.write), BT_OK);
    end(stream->conn, stream->id, BT_CODE_OK, body);
    stream->used = false;
}

static played *
find(uint32_t conn, uint64_t id)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (router.streams[i].used && router.streams[i].conn == conn && router.streams[i].id == id)
            return &router.streams[i];
    }
    return NULL;
}

static void
begin(uint32_t conn, const bt_gateway_request *request)
{
    bt_gateway_generate ask;
    char words[32];
    int i = 0;

    ck_assert_int_eq(bt_gateway_read_generate(&ask, request->body, &router.read), BT_OK);
    snprintf(words, sizeof words, "%.*s", (int)ask.input.prompt.len, ask.input.prompt.data);
    if (strcmp(words, "busy") == 0) {
        end(conn, request->id, BT_CODE_RESOURCE_EXHAUSTED, (bt_str){"", 0});
        return;
    }
    if (strcmp(words, "rubbish") == 0) {
        memset(bt_sp_begin(router.sp, conn, 5), 0xff, 5);
        return;
    }
    while (router.streams[i].used)
        ck_assert_int_lt(++i, STREAMS_MAX);
    router.streams[i] = (played){.used = true, .conn = conn, .credits = request->credits, .id = request->id};
    sscanf(words, "count %u", &router.streams[i].replies);
    if (strcmp(words, "lose") == 0) {
        give(&router.streams[i]);
        bt_sp_flush(router.sp);
        usleep(50000); // so that it arrives
        bt_sp_drop(router.sp, conn, NULL);
    }
}

static void
on_message(void *self, uint32_t conn, const uint8_t *bytes, size_t length)
{
    bt_gateway_request request;
    played *stream;
    uint64_t id;
    bt_str body;

    (void)self;
    bt_wire_scratch_reset(&router.read);
    ck_assert_int_eq(bt_gateway_read_request(&request, bytes, length, &router.read), BT_OK);
    atomic_fetch_add(&router.requests, 1);
    if (!bt_str_is(request.auth, "the key"))
        atomic_fetch_add(&router.keys_wrong, 1);
    switch (request.method) {
    case BT_GATEWAY_GENERATE:
        begin(conn, &request);
        break;
    case BT_GATEWAY_CREDIT:
        atomic_fetch_add(&router.credits, 1);
        if ((stream = find(conn, request.id)) != NULL)
            stream->credits += request.credits;
        break;
    case BT_GATEWAY_CANCEL:
        atomic_fetch_add(&router.cancels, 1);
        ck_assert_int_eq(bt_gateway_read_cancel(&id, request.body, &router.read), BT_OK);
        if ((stream = find(conn, id)) != NULL) {
            end(conn, id, BT_CODE_CANCELLED, (bt_str){"", 0});
            stream->used = false;
        }
        end(conn, request.id, stream != NULL ? BT_CODE_OK : BT_CODE_NOT_FOUND, (bt_str){"", 0});
        break;
    case BT_GATEWAY_HEALTH:
        ck_assert_int_eq(bt_gateway_pack_health(&body, BT_STATE_READY, &router.write), BT_OK);
        end(conn, request.id, BT_CODE_OK, body);
        break;
    default:
        end(conn, request.id, BT_CODE_UNIMPLEMENTED, (bt_str){"", 0});
    }
}

static void
on_sent(void *self, uint32_t conn)
{
    (void)self, (void)conn;
}

static void
on_gone(void *self, uint32_t conn)
{
    (void)self;
    for (int i = 0; i < STREAMS_MAX; i++)
        router.streams[i].used &= router.streams[i].conn != conn;
}

static void *
play(void *self)
{
    while (!atomic_load(&router.stop)) {
        bool more = false;

        for (int i = 0; i < STREAMS_MAX; i++) {
            played *stream = &router.streams[i];

            if (!stream->used || stream->replies == 0)
                continue;
            if (stream->sent == stream->replies)
                finish(stream);
            else if (stream->credits > 0)
                give(stream);
            more |= stream->used && (stream->credits > 0 || stream->sent == stream->replies);
        }
        bt_sp_flush(router.sp);
        bt_loop_once(router.loop, more ? 0 : 5 * BT_MILLISECOND);
    }
    return self;
}

static void
start_router(void)
{
    bt_sp_options sp = bt_sp_defaults();
    bt_sp_handler handler = {NULL, on_message, on_sent, on_gone};

    snprintf(router.url, sizeof router.url, "tcp://127.0.0.1:%u", router.port);
    sp.listen = router.url;
    sp.connections_max = 8;
    ck_assert_msg(bt_sp_open(&router.sp, router.loop, &sp, &handler, &why) == BT_OK, "%s", why.text);
    router.port = bt_sp_port(router.sp);
    snprintf(router.url, sizeof router.url, "tcp://127.0.0.1:%u", router.port);
    atomic_store(&router.stop, false);
    ck_assert_int_eq(pthread_create(&router.thread, NULL, play, NULL), 0);
}

static void
stop_router(void)
{
    atomic_store(&router.stop, true);
    pthread_join(router.thread, NULL);
    bt_sp_close(router.sp);
    memset(router.streams, 0, sizeof router.streams);
    router.sp = NULL;
}

static void
set_up(void)
{
    bt_log_set_level(BT_LOG_NONE);
    memset(&router, 0, sizeof router);
    ck_assert_int_eq(bt_loop_open(&router.loop), BT_OK);
    bt_wire_scratch_init(&router.read, malloc(SCRATCH_BYTES), SCRATCH_BYTES);
    bt_wire_scratch_init(&router.write, malloc(SCRATCH_BYTES), SCRATCH_BYTES);
    start_router();
    options = bt_client_defaults();
    options.url = router.url;
    options.key = "the key";
    options.timeout = 20 * BT_SECOND; // of a busy machine
    options.streams_max = 4;
    options.message_bytes_max = 1u << 20;
    why.text[0] = 0;
    ck_assert_int_eq(bt_client_open(&client, &options, &why), BT_OK);
}

static void
tear_down(void)
{
    bt_client_close(client);
    if (router.sp != NULL)
        stop_router();
    bt_loop_close(router.loop);
    free(router.read.memory);
    free(router.write.memory);
    ck_assert_int_eq(bt_mem_live(), 0);
    ck_assert_uint_eq(atomic_load(&router.keys_wrong), 0);
}

static bt_client_stream *
ask(const char *script)
{
    bt_client_stream *stream;
    bt_gateway_generate generate;

    bt_gateway_generate_defaults(&generate);
    generate.input = (bt_gateway_input){.kind = BT_INPUT_PROMPT, .prompt = bt_str_of(script)};
    ck_assert_msg(bt_client_generate(client, &generate, NULL, &stream, &why) == BT_OK, "%s", why.text);
    return stream;
}

// Reads a "count N" to its end; `from` were read before.
static void
expect_count(bt_client_stream *stream, uint32_t from, uint32_t count)
{
    bt_client_event event;
    char text[16];

    for (uint32_t i = from; i < count; i++) {
        ck_assert_msg(bt_client_next(stream, &event, &why) == BT_OK, "%s", why.text);
        ck_assert(!event.last && event.news.choice_count == 1);
        snprintf(text, sizeof text, "%u,", i);
        ck_assert(bt_str_is(event.news.choices[0].text, text));
    }
    ck_assert_msg(bt_client_next(stream, &event, &why) == BT_OK, "%s", why.text);
    ck_assert(event.last && event.news.has_usage);
    ck_assert_uint_eq(event.news.usage.completion_tokens, count);
    ck_assert_str_eq(bt_client_stream_name(stream), "named");
    bt_client_end(stream);
}

START_TEST(a_stream_comes_whole_and_gives_credit_as_it_is_read)
{
    expect_count(ask("count 1000"), 0, 1000);
    ck_assert_uint_ge(atomic_load(&router.credits), 1000 / 64);
    ck_assert_uint_le(atomic_load(&router.credits), 1000 / 32 + 1);
}
END_TEST

START_TEST(a_stream_that_is_read_after_its_time_costs_the_others_nothing)
{
    bt_client_stream *late, *other = ask("count 200");
    bt_client_call call = {.timeout = 20 * BT_MILLISECOND};
    bt_client_event event;
    bt_gateway_generate generate;

    bt_gateway_generate_defaults(&generate);
    generate.input = (bt_gateway_input){.kind = BT_INPUT_PROMPT, .prompt = bt_str_of("count 1000")};
    ck_assert_msg(bt_client_generate(client, &generate, &call, &late, &why) == BT_OK, "%s", why.text);
    usleep(50000);
    for (uint32_t i = 0; i < options.credits; i++) // enough that credit goes back
        ck_assert_msg(bt_client_next(late, &event, &why) == BT_OK, "%s", why.text);
    bt_client_end(late);
    expect_count(other, 0, 200);
}
END_TEST

START_TEST(streams_run_side_by_side_whichever_is_read_first)
{
    bt_client_stream *streams[4];
    bt_gateway_state state;

    for (int i = 0; i < 4; i++)
        streams[i] = ask("count 200");
    ck_assert_int_eq(bt_client_health(client, &state, &why), BT_OK); // in between
    ck_assert_int_eq(state, BT_STATE_READY);
    for (int i = 3; i >= 0; i--)
        expect_count(streams[i], 0, 200);
}
END_TEST

START_TEST(more_streams_than_there_may_be_are_busy)
{
    bt_client_stream *streams[4], *fifth;
    bt_gateway_generate generate;

    bt_gateway_generate_defaults(&generate);
    for (int i = 0; i < 4; i++)
        streams[i] = ask("silent");
    ck_assert_int_eq(bt_client_generate(client, &generate, NULL, &fifth, &why), BT_ERR_BUSY);
    bt_client_end(streams[2]);
    expect_count(ask("count 3"), 0, 3);
}
END_TEST

START_TEST(a_refusal_says_why_to_persons_and_programs)
{
    bt_client_stream *stream = ask("busy");
    const bt_client_status *status = bt_client_last_status(client);
    bt_client_event event;

    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_ERR_BUSY);
    ck_assert_str_eq(why.text, "RESOURCE_EXHAUSTED: in words");
    ck_assert_int_eq(status->code, BT_CODE_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(status->reason, "a_reason");
    ck_assert_int_eq(status->retry_after, 1500 * BT_MILLISECOND);
    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_ERR_BUSY); // and again
    bt_client_end(stream);
}
END_TEST

START_TEST(a_stream_whose_connection_is_lost_gives_what_came_and_says_so)
{
    bt_client_stream *lost = ask("lose"), *other = ask("silent");
    bt_client_event event;

    ck_assert_int_eq(bt_client_next(lost, &event, &why), BT_OK);
    ck_assert(bt_str_is(event.news.choices[0].text, "0,") && !event.last);
    ck_assert_int_eq(bt_client_next(lost, &event, &why), BT_ERR_PEER);
    ck_assert_int_eq(bt_client_last_status(client)->code, BT_CODE_UNAVAILABLE);
    ck_assert_int_eq(bt_client_next(other, &event, &why), BT_ERR_PEER); // it was on the same
    bt_client_end(lost);
    bt_client_end(other);
    expect_count(ask("count 3"), 0, 3); // a new one
}
END_TEST

START_TEST(what_is_no_reply_costs_the_connection_and_no_more)
{
    bt_client_stream *stream = ask("rubbish");
    bt_client_event event;

    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_ERR_PEER);
    ck_assert_ptr_nonnull(strstr(why.text, "no Reply"));
    bt_client_end(stream);
    expect_count(ask("count 3"), 0, 3);
}
END_TEST

START_TEST(a_router_that_says_nothing_is_left_after_the_deadline)
{
    bt_client_call call = {.timeout = 50 * BT_MILLISECOND};
    bt_gateway_generate generate;
    bt_client_stream *stream;
    bt_client_event event;
    bt_time begun = bt_time_now();

    bt_gateway_generate_defaults(&generate);
    generate.input = (bt_gateway_input){.kind = BT_INPUT_PROMPT, .prompt = bt_str_of("silent")};
    ck_assert_int_eq(bt_client_generate(client, &generate, &call, &stream, &why), BT_OK);
    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_ERR_TIMEOUT);
    ck_assert_int_eq(bt_client_last_status(client)->code, BT_CODE_DEADLINE_EXCEEDED);
    ck_assert_int_ge(bt_time_now() - begun, 50 * BT_MILLISECOND);
    bt_client_end(stream);
}
END_TEST

START_TEST(a_cancelled_stream_says_so)
{
    bt_client_stream *stream = ask("count 1000000");
    bt_client_event event;
    bt_err err;

    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_OK);
    ck_assert_int_eq(bt_client_cancel(stream, &why), BT_OK);
    while ((err = bt_client_next(stream, &event, &why)) == BT_OK)
        ck_assert(!event.last);
    ck_assert_int_eq(err, BT_ERR_CANCELLED);
    bt_client_end(stream);
    ck_assert_uint_eq(atomic_load(&router.cancels), 1);
}
END_TEST

START_TEST(ending_a_stream_early_cancels_it)
{
    bt_client_stream *stream = ask("count 1000000");
    bt_client_event event;

    ck_assert_int_eq(bt_client_next(stream, &event, &why), BT_OK);
    bt_client_end(stream);
    expect_count(ask("count 100"), 0, 100); // what was under way of the other is for nobody
    ck_assert_uint_eq(atomic_load(&router.cancels), 1);
}
END_TEST

static bool
stop_at_5(void *self, const bt_client_event *event)
{
    (void)event;
    return ++*(int *)self < 5;
}

START_TEST(run_calls_back_until_told_to_stop)
{
    bt_gateway_generate generate;
    int events = 0;

    bt_gateway_generate_defaults(&generate);
    generate.input = (bt_gateway_input){.kind = BT_INPUT_PROMPT, .prompt = bt_str_of("count 3")};
    ck_assert_int_eq(bt_client_run(client, &generate, NULL, stop_at_5, &events, &why), BT_OK);
    ck_assert_int_eq(events, 4);
    events = 0;
    generate.input.prompt = bt_str_of("count 1000000");
    ck_assert_int_eq(bt_client_run(client, &generate, NULL, stop_at_5, &events, &why), BT_ERR_CANCELLED);
    ck_assert_uint_eq(atomic_load(&router.cancels), 1);
}
END_TEST

static void *
come_back(void *self)
{
    usleep(300000);
    start_router();
    return self;
}

START_TEST(a_router_that_comes_back_is_found_again)
{
    bt_gateway_state state = BT_STATE_NONE;
    pthread_t thread;

    ck_assert_int_eq(bt_client_health(client, &state, &why), BT_OK);
    stop_router();
    ck_assert_int_eq(pthread_create(&thread, NULL, come_back, NULL), 0);
    ck_assert_msg(bt_client_health(client, &state, &why) == BT_OK, "%s", why.text);
    pthread_join(thread, NULL);
    expect_count(ask("count 3"), 0, 3);
}
END_TEST

START_TEST(a_connection_that_was_closed_for_being_idle_costs_no_stream)
{
    expect_count(ask("count 3"), 0, 3);
    stop_router();
    start_router();
    usleep(1100000); // so long that the client looks before it asks
    expect_count(ask("count 3"), 0, 3);
}
END_TEST

START_TEST(a_router_that_is_not_there_is_looked_for_until_the_deadline)
{
    bt_gateway_state state;
    bt_client *patient;
    bt_time begun;

    stop_router();
    options.timeout = 200 * BT_MILLISECOND;
    ck_assert_int_eq(bt_client_open(&patient, &options, &why), BT_OK);
    begun = bt_time_now();
    ck_assert_int_eq(bt_client_health(patient, &state, &why), BT_ERR_PEER);
    ck_assert_int_lt(bt_time_now() - begun, 5 * BT_SECOND);
    ck_assert_ptr_nonnull(strstr(why.text, router.url));
    bt_client_close(patient);
}
END_TEST

START_TEST(what_a_router_does_not_know_is_unsupported)
{
    bt_gateway_stats stats;

    ck_assert_int_eq(bt_client_stats(client, &stats, &why), BT_ERR_UNSUPPORTED);
}
END_TEST

START_TEST(options_are_checked_and_each_allocation_of_open_may_fail)
{
    bt_client_options bad = options;
    bt_client *other = NULL;
    bt_err err = BT_ERR_NO_MEMORY;

    bad.url = NULL;
    ck_assert_int_eq(bt_client_open(&other, &bad, &why), BT_ERR_INVALID);
    bad = options;
    bad.credits = 0;
    ck_assert_int_eq(bt_client_open(&other, &bad, &why), BT_ERR_INVALID);
    ck_assert_ptr_null(other);
    for (long nth = 1; err != BT_OK; nth++) {
        bt_mem_fail_nth(nth);
        err = bt_client_open(&other, &options, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        ck_assert_int_lt(nth, 20);
    }
    bt_client_close(other);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("client");
    TCase *tcase = tcase_create("client");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_stream_comes_whole_and_gives_credit_as_it_is_read);
    tcase_add_test(tcase, a_stream_that_is_read_after_its_time_costs_the_others_nothing);
    tcase_add_test(tcase, streams_run_side_by_side_whichever_is_read_first);
    tcase_add_test(tcase, more_streams_than_there_may_be_are_busy);
    tcase_add_test(tcase, a_refusal_says_why_to_persons_and_programs);
    tcase_add_test(tcase, a_stream_whose_connection_is_lost_gives_what_came_and_says_so);
    tcase_add_test(tcase, what_is_no_reply_costs_the_connection_and_no_more);
    tcase_add_test(tcase, a_router_that_says_nothing_is_left_after_the_deadline);
    tcase_add_test(tcase, a_cancelled_stream_says_so);
    tcase_add_test(tcase, ending_a_stream_early_cancels_it);
    tcase_add_test(tcase, run_calls_back_until_told_to_stop);
    tcase_add_test(tcase, a_router_that_comes_back_is_found_again);
    tcase_add_test(tcase, a_connection_that_was_closed_for_being_idle_costs_no_stream);
    tcase_add_test(tcase, a_router_that_is_not_there_is_looked_for_until_the_deadline);
    tcase_add_test(tcase, what_a_router_does_not_know_is_unsupported);
    tcase_add_test(tcase, options_are_checked_and_each_allocation_of_open_may_fail);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
