// Where the time to the first token went, whichever way it came; what the client hears of prefix caches; and what is told of attempts.
// Cases are named after reference/peers.md 7.6.
#include "router/core.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT 2048
#define MS BT_MILLISECOND

static bt_router *router;
static bt_router_actions *acts;
static bt_time now;
static uint64_t numbers[3]; // of each node's TOKENS
static int32_t prompt[CONTEXT];
static const bt_sampling sampling = {.repetition_penalty = 1};
static bt_phases phases; // of the first token, as told with it
static bt_time ttft;
static bt_router_attempt attempts[8]; // all so far
static uint32_t attempt_count;
static bt_usage usage; // of the end
static bool ended;

static void
keep_what_is_told(void)
{
    uint32_t count;
    const bt_router_attempt *told = bt_router_attempts(router, &count);

    for (uint32_t i = 0; i < count; i++) {
        ck_assert_str_eq(told[i].name, "the-client/7");
        attempts[attempt_count++] = told[i];
    }
    for (uint32_t i = 0; i < acts->count; i++) {
        const bt_router_action *action = &acts->action[i];

        if (action->kind == BT_ROUTER_TOKENS && action->tokens.ttft > 0) {
            ck_assert_int_eq(ttft, 0); // once
            ttft = action->tokens.ttft;
            phases = action->tokens.phases;
        } else if (action->kind == BT_ROUTER_FINISHED) {
            ended = true;
            usage = action->finished.usage;
            ck_assert_int_eq(action->finished.ttft, ttft);
            ck_assert_mem_eq(&action->finished.phases, &phases, sizeof phases);
            ck_assert_uint_le(usage.cached_tokens, usage.prompt_tokens); // F2
        }
    }
}

static void
feed(const bt_router_event *event)
{
    bt_router_step(router, now, event, acts);
    keep_what_is_told();
}

static void
hear(uint32_t node, bt_message message)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = node, .message = &message});
}

static void
meet(uint32_t node, bt_node_role role)
{
    static const uint64_t sources[] = {100, 101, 102};
    bt_message hello = {.kind = BT_MESSAGE_HELLO,
                        .hello = {.role = role,
                                  .epoch = 100 + node,
                                  .weights = 1,
                                  .sequences = 32,
                                  .queue = 32,
                                  .blocks = 4096,
                                  .block_tokens = 16,
                                  .context = CONTEXT}};

    hello.hello.name[0] = (char)('a' + node);
    numbers[node] = 0;
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node});
    hear(node, hello);
    if (role == BT_NODE_DECODE)
        hear(node, (bt_message){.kind = BT_MESSAGE_HEARTBEAT, .heartbeat = {.source_count = 3, .sources = sources}});
}

static void
setup(void)
{
    bt_router_limits limits = {.context = CONTEXT, .epoch = 1, .requests_max = 8, .nodes_max = 3};

    now = BT_SECOND;
    ttft = 0;
    ended = false;
    attempt_count = 0;
    memset(numbers, 0, sizeof numbers);
    acts = calloc(1, sizeof *acts);
    ck_assert_int_eq(bt_router_open(&router, &limits, NULL), BT_OK);
}

static void
teardown(void)
{
    bt_router_close(router);
    free(acts);
}

static const bt_message *
sent(bt_message_kind kind)
{
    for (uint32_t i = 0; i < acts->count; i++) {
        if (acts->action[i].kind == BT_ROUTER_TO_NODE && acts->action[i].to_node.message.kind == kind)
            return &acts->action[i].to_node.message;
    }
    return NULL;
}

static void
arrive(uint32_t count)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_ARRIVED,
                            .arrival = {.name = "the-client/7",
                                        .ids = prompt,
                                        .count = count,
                                        .sampling = &sampling,
                                        .max_tokens = 8,
                                        .deadline = BT_TIME_NEVER}});
}

static bt_request_id
attempt(uint32_t number)
{
    return (bt_request_id){0, 1, number};
}

static void
grant(uint32_t node, uint32_t number, uint32_t cached)
{
    hear(node, (bt_message){
                   .kind = BT_MESSAGE_TICKET,
                   .ticket = {.request = attempt(number), .ticket = {.epoch = 100 + node}, .cached_tokens = cached}});
}

static void
say(uint32_t node, uint32_t number, bt_tokens_entry entry)
{
    static const bt_token_result token = {.id = 5};

    entry.request = attempt(number);
    entry.results = entry.count > 0 ? &token : NULL;
    hear(node, (bt_message){.kind = BT_MESSAGE_TOKENS, .tokens = {++numbers[node], 1, &entry}});
}

// All in milliseconds; what is not named is 0.
static void
expect(bt_phases expected)
{
    ck_assert_int_eq(phases.route, expected.route * MS);
    ck_assert_int_eq(phases.queue_decode, expected.queue_decode * MS);
    ck_assert_int_eq(phases.queue_prefill, expected.queue_prefill * MS);
    ck_assert_int_eq(phases.prefill, expected.prefill * MS);
    ck_assert_int_eq(phases.transfer, expected.transfer * MS);
    ck_assert_int_eq(phases.transfer_wait, expected.transfer_wait * MS);
    ck_assert_int_eq(phases.first_token, expected.first_token * MS);
    ck_assert_int_eq(ttft, phases.route + phases.queue_decode + phases.queue_prefill + phases.prefill +
                               phases.transfer + phases.transfer_wait + phases.first_token); // F3
}

START_TEST(read_and_answered_at_one_node)
{
    meet(0, BT_NODE_DECODE);
    arrive(100);
    now += 4 * MS; // it has no room yet
    hear(0, (bt_message){.kind = BT_MESSAGE_TICKET, .ticket = {.request = attempt(1), .err = BT_ERR_BUSY}});
    now += 20 * MS;
    feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_RESERVE));
    now += 7 * MS;
    grant(0, 2, 32);
    now += 20 * MS;
    say(0, 2,
        (bt_tokens_entry){.count = 1, .cached_tokens = 32, .phases = {.queue_prefill = 5 * MS, .prefill = 12 * MS}});
    expect((bt_phases){.route = 24, .queue_decode = 7, .queue_prefill = 5, .prefill = 12, .first_token = 3});
    now += 9 * MS;
    say(0, 2, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP});
    ck_assert_uint_eq(usage.cached_tokens, 32);
    ck_assert(attempt_count == 1 && !attempts[0].moved && attempts[0].finish == BT_FINISH_STOP);
    ck_assert(attempts[0].decode == 0 && attempts[0].prefill == BT_ROUTER_NOWHERE);
    ck_assert(attempts[0].placed == BT_SECOND + 24 * MS && attempts[0].ticketed == BT_SECOND + 31 * MS);
    ck_assert(attempts[0].first_token == BT_SECOND + 51 * MS && attempts[0].ended == BT_SECOND + 60 * MS);
    ck_assert(attempts[0].answering.prefill == 12 * MS && attempts[0].answer_tokens == 2);
}
END_TEST

static void
place_remotely(uint32_t cached)
{
    meet(0, BT_NODE_DECODE);
    meet(1, BT_NODE_PREFILL);
    arrive(1024);
    ck_assert_str_eq(sent(BT_MESSAGE_RESERVE)->reserve.name, "the-client/7");
    now += 2 * MS;
    grant(0, 1, cached);
    ck_assert_ptr_nonnull(sent(BT_MESSAGE_PREFILL));
    ck_assert_str_eq(sent(BT_MESSAGE_PREFILL)->prefill.job.name, "the-client/7");
}

START_TEST(the_prefill_nodes_own_word_comes_first)
{
    place_remotely(0);
    now += 50 * MS;
    say(1, 1,
        (bt_tokens_entry){.count = 1,
                          .finish = BT_FINISH_LENGTH,
                          .cached_tokens = 256,
                          .phases = {.queue_prefill = 6 * MS, .prefill = 40 * MS}});
    expect((bt_phases){.queue_decode = 2, .queue_prefill = 6, .prefill = 40, .first_token = 4});
    now += 10 * MS; // after the first token: none of its time
    say(0, 1, (bt_tokens_entry){.count = 1, .phases = {.prefill = 40 * MS, .transfer = 3 * MS}});
    say(0, 1, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP});
    expect((bt_phases){.queue_decode = 2, .queue_prefill = 6, .prefill = 40, .first_token = 4});
    ck_assert_uint_eq(usage.cached_tokens, 256); // F1: what was really not computed
    ck_assert(attempt_count == 1 && attempts[0].prefill == 1 && attempts[0].read == BT_SECOND + 52 * MS);
    ck_assert(attempts[0].joined == BT_SECOND + 62 * MS && attempts[0].reading.prefill == 40 * MS);
    ck_assert(attempts[0].answering.transfer == 3 * MS);
}
END_TEST

START_TEST(the_decode_nodes_word_comes_first)
{
    place_remotely(0);
    now += 70 * MS;
    say(0, 1,
        (bt_tokens_entry){.count = 1,
                          .cached_tokens = 128, // as the prefill node's offer said
                          .phases = {.queue_prefill = 6 * MS, .prefill = 40 * MS, .transfer = 8 * MS}});
    expect((bt_phases){.queue_decode = 2, .queue_prefill = 6, .prefill = 40, .transfer = 8, .transfer_wait = 16});
    say(1, 1, (bt_tokens_entry){.count = 1, .finish = BT_FINISH_LENGTH, .cached_tokens = 128});
    say(0, 1, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP});
    ck_assert_uint_eq(usage.cached_tokens, 128);
}
END_TEST

START_TEST(what_the_decode_node_had_is_not_what_was_spared) // F1
{
    place_remotely(64); // it asks for the rest only, but the prefill node reads all of it
    say(1, 1, (bt_tokens_entry){.count = 1, .finish = BT_FINISH_LENGTH, .cached_tokens = 0});
    say(0, 1, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP});
    ck_assert(ended);
    ck_assert_uint_eq(usage.cached_tokens, 0);
}
END_TEST

START_TEST(no_more_is_cached_than_the_prompt_has) // F2
{
    place_remotely(0);
    say(1, 1, (bt_tokens_entry){.count = 1, .finish = BT_FINISH_LENGTH, .cached_tokens = 5000});
    say(0, 1, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP});
    ck_assert_uint_eq(usage.cached_tokens, 1024);
}
END_TEST

START_TEST(time_lost_with_a_node_that_died_is_the_routers)
{
    meet(0, BT_NODE_DECODE);
    arrive(100);
    now += 3 * MS;
    grant(0, 1, 64);
    now += 100 * MS;
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 0});
    ck_assert(attempt_count == 1 && attempts[0].moved && attempts[0].cause == BT_MOVE_LOST);
    ck_assert_int_eq(attempts[0].ended - attempts[0].placed, 103 * MS);
    now += 5 * MS;
    meet(2, BT_NODE_DECODE);
    now += 1 * MS;
    grant(2, 2, 0);
    now += 30 * MS;
    say(2, 2, (bt_tokens_entry){.count = 1, .phases = {.queue_prefill = 1 * MS, .prefill = 28 * MS}});
    expect((bt_phases){.route = 108, .queue_decode = 1, .queue_prefill = 1, .prefill = 28, .first_token = 1});
    say(2, 2, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP});
    ck_assert_uint_eq(usage.cached_tokens, 0); // the second node found nothing
    ck_assert(attempt_count == 2 && attempts[1].decode == 2 && !attempts[1].moved);
}
END_TEST

START_TEST(a_move_after_the_first_token_changes_neither_time_nor_usage)
{
    meet(0, BT_NODE_DECODE);
    arrive(100);
    grant(0, 1, 48);
    now += 10 * MS;
    say(0, 1, (bt_tokens_entry){.count = 1, .cached_tokens = 48, .phases = {.prefill = 10 * MS}});
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 0});
    now += 500 * MS;
    meet(2, BT_NODE_DECODE);
    grant(2, 2, 0);
    now += 10 * MS;
    say(2, 2, (bt_tokens_entry){.first = 1, .count = 1, .finish = BT_FINISH_STOP, .phases = {.prefill = 9 * MS}});
    expect((bt_phases){.prefill = 10});
    ck_assert_uint_eq(usage.cached_tokens, 48);
    ck_assert(attempt_count == 2 && attempts[1].first_token == 0 && attempts[1].answer_before == 1);
}
END_TEST

START_TEST(a_node_that_measures_nonsense_takes_no_more_than_there_was)
{
    meet(0, BT_NODE_DECODE);
    arrive(100);
    now += 2 * MS;
    grant(0, 1, 0);
    now += 10 * MS;
    say(0, 1,
        (bt_tokens_entry){.count = 1,
                          .phases = {.queue_prefill = -5 * BT_SECOND, .prefill = INT64_MAX, .transfer = MS}});
    expect((bt_phases){.queue_decode = 2, .prefill = 10});
}
END_TEST

START_TEST(an_error_that_is_tried_again_is_told_with_its_name)
{
    meet(0, BT_NODE_DECODE);
    meet(2, BT_NODE_DECODE);
    arrive(100);
    {
        uint32_t first = acts->action[1].to_node.node, second = first == 0 ? 2 : 0;

        grant(first, 1, 0);
        say(first, 1, (bt_tokens_entry){.finish = BT_FINISH_ERROR, .err = BT_ERR_DEVICE});
        ck_assert(attempt_count == 1 && attempts[0].moved && attempts[0].cause == BT_MOVE_ERROR);
        ck_assert_int_eq(attempts[0].err, BT_ERR_DEVICE);
        ck_assert_str_eq(sent(BT_MESSAGE_RESERVE)->reserve.name, "the-client/7");
        grant(second, 2, 0);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("router phases");
    TCase *cases = tcase_create("cases");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, read_and_answered_at_one_node);
    tcase_add_test(cases, the_prefill_nodes_own_word_comes_first);
    tcase_add_test(cases, the_decode_nodes_word_comes_first);
    tcase_add_test(cases, what_the_decode_node_had_is_not_what_was_spared);
    tcase_add_test(cases, no_more_is_cached_than_the_prompt_has);
    tcase_add_test(cases, time_lost_with_a_node_that_died_is_the_routers);
    tcase_add_test(cases, a_move_after_the_first_token_changes_neither_time_nor_usage);
    tcase_add_test(cases, a_node_that_measures_nonsense_takes_no_more_than_there_was);
    tcase_add_test(cases, an_error_that_is_tried_again_is_told_with_its_name);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
