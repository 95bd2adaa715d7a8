// Where requests go, in clusters of some size, named after reference/peers.md 7.4. Nodes here grant at once and end what they are told to.
// D4 (what the router adds to a request's time) is a figure and not a case: `baton bench router`. D12 and D13 are in test_router_core.c
// and test_router_remote.c, with the breaker.
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/core.h"
#include "router/request.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT 4096
#define REQUESTS 2048
#define NODES 16

typedef struct {
    bt_request_id id; // as nodes know it; attempt 0 = not placed
    uint32_t decode, prefill;
    bool over;
} one;

static bt_router *router;
static bt_router_actions *acts;
static bt_time now;
static uint64_t numbers[NODES];
static one all[REQUESTS]; // by tag
static uint64_t tag_of[REQUESTS];
static int32_t ids[CONTEXT];
static uint32_t cached; // that tickets name
static const bt_sampling sampling = {.repetition_penalty = 1};

static void
setup_with(bt_router_limits limits)
{
    limits.context = CONTEXT;
    limits.epoch = 1;
    limits.requests_max = REQUESTS;
    limits.nodes_max = NODES;
    limits.affinity_tokens = 64;
    now = BT_SECOND;
    memset(numbers, 0, sizeof numbers);
    memset(all, 0, sizeof all);
    memset(ids, 0, sizeof ids);
    cached = 0;
    acts = calloc(1, sizeof *acts);
    ck_assert_int_eq(bt_router_open(&router, &limits, NULL), BT_OK);
}

static void
setup(void)
{
    setup_with((bt_router_limits){0});
}

static void
teardown(void)
{
    bt_router_close(router);
    free(acts);
}

static void feed(const bt_router_event *event);

static void
hear(uint32_t node, bt_message message)
{
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = node, .message = &message});
}

// What nodes do with what they are sent: grant.
static void
act(const bt_router_action *action)
{
    const bt_message *message = &action->to_node.message;
    one *self;

    if (action->kind == BT_ROUTER_ACCEPTED)
        tag_of[action->request.slot] = action->tag;
    if (action->kind == BT_ROUTER_FINISHED)
        all[action->tag].over = true;
    if (action->kind != BT_ROUTER_TO_NODE)
        return;
    if (message->kind == BT_MESSAGE_RESERVE) {
        self = &all[tag_of[message->reserve.request.slot]];
        self->id = message->reserve.request;
        self->decode = action->to_node.node;
        self->prefill = BT_REQUEST_NONE;
        hear(self->decode,
             (bt_message){
                 .kind = BT_MESSAGE_TICKET,
                 .ticket = {.request = self->id, .cached_tokens = cached, .ticket = {.epoch = 100 + self->decode}}});
    } else if (message->kind == BT_MESSAGE_PREFILL) {
        all[tag_of[message->prefill.job.request.slot]].prefill = action->to_node.node;
    }
}

static void
feed(const bt_router_event *event)
{
    bt_router_step(router, now, event, acts);
    if (acts->count > 0) {
        uint32_t count = acts->count; // what nodes answer is the next step
        bt_router_action *mine = malloc(count * sizeof *mine);

        memcpy(mine, acts->action, count * sizeof *mine);
        for (uint32_t i = 0; i < count; i++)
            act(&mine[i]);
        free(mine);
    }
}

static void
meet(uint32_t node, bt_node_role role, uint64_t epoch)
{
    uint64_t sources[NODES];
    bt_hello hello = {.role = role,
                      .epoch = epoch,
                      .weights = role == BT_NODE_PREFILL ? 2 : 1,
                      .sequences = 256,
                      .queue = 1024,
                      .blocks = 65536,
                      .block_tokens = 16,
                      .context = CONTEXT};

    hello.name[0] = (char)('a' + node);
    numbers[node] = 0;
    for (uint32_t i = 0; i < NODES; i++)
        sources[i] = 100 + i;
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node});
    hear(node, (bt_message){.kind = BT_MESSAGE_HELLO, .hello = hello});
    if (role == BT_NODE_DECODE)
        hear(node,
             (bt_message){.kind = BT_MESSAGE_HEARTBEAT, .heartbeat = {.source_count = NODES, .sources = sources}});
}

static void
meet_all(uint32_t decodes, uint32_t prefills)
{
    for (uint32_t i = 0; i < decodes + prefills; i++)
        meet(i, i < decodes ? BT_NODE_DECODE : BT_NODE_PREFILL, 100 + i);
}

// A prompt of `count` tokens, of which the first `shared` are those of a family.
static void
arrive(uint64_t tag, uint32_t count, int32_t family, uint32_t shared, uint64_t session)
{
    bt_router_event event = {.kind = BT_ROUTER_ARRIVED,
                             .arrival = {.tag = tag,
                                         .ids = ids,
                                         .count = count,
                                         .sampling = &sampling,
                                         .max_tokens = 16,
                                         .session = session,
                                         .deadline = BT_TIME_NEVER}};

    for (uint32_t i = 0; i < count; i++)
        ids[i] = i < shared ? family : 1000 + (int32_t)(bt_mix64(tag * CONTEXT + i) % 1000000);
    feed(&event);
    ck_assert_uint_ne(all[tag].id.attempt, 0);
}

static void
finish(uint64_t tag)
{
    bt_token_result token = {.id = 5};
    bt_tokens_entry entry = {
        .request = all[tag].id, .count = 1, .results = &token, .finish = BT_FINISH_STOP, .cached_tokens = 0};
    uint32_t node = all[tag].decode;

    hear(node, (bt_message){.kind = BT_MESSAGE_TOKENS, .tokens = {++numbers[node], 1, &entry}});
    ck_assert(all[tag].over);
}

// Its answer is being written.
static void
begin(uint64_t tag)
{
    bt_token_result token = {.id = 5};
    bt_tokens_entry entry = {.request = all[tag].id, .count = 1, .results = &token};
    uint32_t node = all[tag].decode;

    hear(node, (bt_message){.kind = BT_MESSAGE_TOKENS, .tokens = {++numbers[node], 1, &entry}});
}

typedef struct {
    uint64_t least, most, sum;
} spread;

static spread
spread_of(uint32_t first, uint32_t count, uint64_t (*value)(const bt_router_node *))
{
    spread s = {.least = UINT64_MAX};

    for (uint32_t node = first; node < first + count; node++) {
        bt_router_node seen;
        uint64_t v;

        bt_router_get_node(router, node, &seen);
        v = value(&seen);
        s.sum += v;
        s.least = v < s.least ? v : s.least;
        s.most = v > s.most ? v : s.most;
    }
    return s;
}

static uint64_t
requests_of(const bt_router_node *node)
{
    return node->requests;
}

static uint64_t
prompts_of(const bt_router_node *node)
{
    return node->prompts;
}

static uint64_t
blocks_of(const bt_router_node *node)
{
    return node->blocks;
}

static void
expect_bounded(spread s, uint32_t count)
{
    ck_assert_uint_le(s.most * count * 4, s.sum * 5 + 4 * count); // 1.25 times the mean, and one
}

static void
expect_even(spread s, uint32_t count)
{
    expect_bounded(s, count);
    ck_assert_uint_ge(s.least * count * 2, s.sum);
}

START_TEST(d1_queues_of_prefill_nodes_stay_alike_under_a_hot_prefix)
{
    setup_with((bt_router_limits){.two_weights = true});
    meet_all(4, 4);
    for (uint64_t tag = 0; tag < 400; tag++)
        arrive(tag, 2048, 7, 1984, 0);
    expect_even(spread_of(4, 4, prompts_of), 4);
    teardown();
}
END_TEST

START_TEST(d2_a_beginning_that_all_prompts_share_goes_to_all_nodes)
{
    setup();
    meet_all(8, 0);
    for (uint64_t tag = 0; tag < 800; tag++)
        arrive(tag, 1024, 7, 1024, 0);
    expect_even(spread_of(0, 8, requests_of), 8);
    teardown();
}
END_TEST

START_TEST(d3_decode_nodes_are_filled_alike_by_prompts_of_all_sizes)
{
    setup();
    meet_all(8, 0);
    for (uint64_t tag = 0; tag < 800; tag++)
        arrive(tag, 16 + (uint32_t)(bt_mix64(tag) % 2000), 0, 0, 0);
    expect_even(spread_of(0, 8, blocks_of), 8);
    teardown();
}
END_TEST

START_TEST(d5_prefixes_without_end_take_no_memory)
{
    long live;

    setup();
    meet_all(4, 0);
    live = bt_mem_live();
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t tag = i % REQUESTS;

        all[tag] = (one){0};
        arrive(tag, 256, (int32_t)i, 256, i);
        finish(tag);
    }
    ck_assert_int_eq(bt_mem_live(), live);
    teardown();
}
END_TEST

START_TEST(d6_a_guess_that_is_wrong_costs_a_computation_and_no_message)
{
    bt_router_stats stats;
    uint32_t messages = 0;

    setup();
    meet_all(4, 0);
    for (uint64_t tag = 0; tag < 1000; tag++) { // each says that nothing was cached, whatever the router thought
        arrive(tag, 512, (int32_t)(tag % 10), 448, 0);
        finish(tag);
        messages += acts->count;
    }
    bt_router_get_stats(router, &stats);
    ck_assert_uint_eq(stats.done_stop, 1000);
    ck_assert_uint_eq(stats.moves, 0);
    ck_assert_uint_le(messages, 2000);
    teardown();
}
END_TEST

START_TEST(d8_a_node_that_joins_is_filled_and_not_flooded)
{
    setup();
    meet_all(4, 0);
    for (uint64_t tag = 0; tag < 400; tag++)
        arrive(tag, 512, 7, 448, tag % 40);
    meet(4, BT_NODE_DECODE, 104);
    for (uint64_t tag = 400; tag < 1000; tag++) {
        bt_router_node joined;

        arrive(tag, 512, 7, 448, tag % 40);
        finish(tag - 400);
        bt_router_get_node(router, 4, &joined);
        ck_assert_uint_le(joined.requests * 4, 5 * 400 / 5 + 4 * 4);
    }
    expect_even(spread_of(0, 5, requests_of), 5);
    teardown();
}
END_TEST

START_TEST(d9_a_thousand_arrivals_of_one_moment_spread_evenly)
{
    spread s;

    setup();
    meet_all(10, 0);
    for (uint64_t tag = 0; tag < 1000; tag++)
        arrive(tag, 128, 0, 0, 0);
    s = spread_of(0, 10, requests_of);
    ck_assert(s.least == 100 && s.most == 100);
    teardown();
}
END_TEST

START_TEST(d10_all_counts_come_back_to_zero_however_requests_end)
{
    bt_router_stats stats;

    setup_with((bt_router_limits){.two_weights = true});
    meet_all(4, 4);
    for (uint64_t tag = 0; tag < 400; tag++)
        arrive(tag, 700, (int32_t)(tag % 5), 500, tag % 9);
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 1});
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = 5});
    for (uint64_t tag = 0; tag < 400; tag++) {
        bt_request_id id = {all[tag].id.slot, all[tag].id.generation, 0};

        if (tag % 2 == 0)
            finish(tag);
        else
            feed(&(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = id, .reason = BT_FINISH_CANCELLED});
    }
    bt_router_get_stats(router, &stats);
    ck_assert(stats.leak == 0 && stats.queued == 0 && stats.running == 0);
    for (uint32_t node = 0; node < 8; node++) {
        bt_router_node seen;

        bt_router_get_node(router, node, &seen);
        ck_assert(seen.requests == 0 && seen.prompts == 0 && seen.blocks == 0 && seen.prefill_tokens == 0);
    }
    teardown();
}
END_TEST

// Eight of ten requests are of two families of twenty; 800 run at a time. Counts those that went to a node which had their beginning.
static uint32_t
count_hits(uint32_t decodes, uint64_t sessions)
{
    static bool held[20][NODES];
    uint32_t hits = 0;

    memset(held, 0, sizeof held);
    for (uint64_t tag = 0; tag < 2000; tag++) {
        uint64_t chance = bt_mix64(tag);
        uint32_t family = chance % 10 < 8 ? (uint32_t)(chance >> 8) % 2 : 2 + (uint32_t)(chance >> 8) % 18;

        arrive(tag, 1024, (int32_t)family, 960, sessions > 0 ? 1 + family : 0);
        hits += held[family][all[tag].decode];
        held[family][all[tag].decode] = true;
        if (tag >= 800)
            finish(tag - 800);
    }
    expect_bounded(spread_of(0, decodes, requests_of), decodes);
    return hits;
}

START_TEST(d11_beginnings_are_found_again_though_a_few_of_them_are_most_of_the_load)
{
    setup();
    meet_all(8, 0);
    ck_assert_uint_ge(count_hits(8, _i), 1900);
    teardown();
}
END_TEST

START_TEST(d14_a_router_serves_with_whichever_nodes_are_up)
{
    for (uint32_t up = 0; up <= 4; up++) {
        setup();
        for (uint32_t node = 0; node < up; node++)
            meet(node, BT_NODE_DECODE, 100 + node);
        feed(&(bt_router_event){.kind = BT_ROUTER_TICK});
        ck_assert(bt_router_ready(router) == (up > 0));
        if (up > 0)
            arrive(1, 128, 0, 0, 0);
        meet(9, BT_NODE_DECODE, 109); // and with those that come later
        ck_assert(bt_router_ready(router));
        arrive(2, 128, 0, 0, 0);
        teardown();
    }
}
END_TEST

START_TEST(d15_a_pair_that_has_not_moved_a_block_is_not_used)
{
    setup_with((bt_router_limits){.two_weights = true});
    meet(0, BT_NODE_DECODE, 100);
    hear(0, (bt_message){.kind = BT_MESSAGE_HEARTBEAT}); // it knows none
    meet(1, BT_NODE_PREFILL, 101);
    meet(2, BT_NODE_DECODE, 102);
    for (uint64_t tag = 0; tag < 50; tag++) {
        arrive(tag, 128, 0, 0, 0);
        ck_assert(all[tag].decode == 2 && all[tag].prefill == 1);
    }
    teardown();
}
END_TEST

START_TEST(a_session_stays_where_it_was_until_that_node_has_too_much)
{
    uint32_t home, elsewhere = 0;

    setup();
    meet_all(4, 0);
    arrive(0, 32, 0, 0, 99);
    home = all[0].decode;
    finish(0);
    for (uint64_t tag = 1; tag < 20; tag++) {
        arrive(tag, 32, 0, 0, 99);
        ck_assert_uint_eq(all[tag].decode, home);
        finish(tag);
    }
    for (uint64_t tag = 20; tag < 420; tag++) { // all of one session at once
        arrive(tag, 32, 0, 0, 99);
        elsewhere += all[tag].decode != home;
    }
    ck_assert_uint_ge(elsewhere, 250);
    teardown();
}
END_TEST

START_TEST(a_node_that_was_restarted_is_no_longer_looked_for_what_it_had)
{
    uint32_t home;

    setup();
    meet_all(4, 0);
    arrive(0, 2048, 3, 2048, 0);
    home = all[0].decode;
    finish(0);
    for (uint64_t tag = 1; tag < 10; tag++) {
        arrive(tag, 2048, 3, 2000, 0);
        ck_assert_uint_eq(all[tag].decode, home);
        finish(tag);
    }
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = home});
    meet(home, BT_NODE_DECODE, 100 + home); // only its link was away: its cache is what it was
    arrive(10, 2048, 3, 2000, 0);
    ck_assert_uint_eq(all[10].decode, home);
    finish(10);
    feed(&(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = home});
    arrive(11, 2048, 3, 2000, 0);
    finish(11);
    meet(home, BT_NODE_DECODE, 900 + home);
    for (uint64_t tag = 12; tag < 20; tag++) {
        arrive(tag, 2048, 3, 2000, 0);
        ck_assert_uint_eq(all[tag].decode, all[11].decode);
        finish(tag);
    }
    teardown();
}
END_TEST

START_TEST(what_a_decode_node_has_of_a_prompt_spares_no_prefill_node_the_reading)
{
    uint32_t home;

    setup_with((bt_router_limits){.two_weights = true});
    meet_all(1, 8);
    arrive(0, 2048, 3, 1984, 0);
    home = all[0].prefill;
    finish(0);
    cached = 1984;
    for (uint64_t tag = 1; tag < 20; tag++) {
        arrive(tag, 2048, 3, 1984, 0);
        ck_assert_uint_eq(all[tag].prefill, home);
        finish(tag);
    }
    teardown();
}
END_TEST

// One node of each kind. How many prompts of one moment go to the prefill node before the decode node reads one itself?
static uint32_t
count_remote(uint32_t answers)
{
    uint32_t count = 0;

    setup_with((bt_router_limits){.inexact = true});
    meet_all(1, 1);
    for (uint64_t tag = 0; tag < answers; tag++) {
        arrive(tag, 32, 0, 0, 0);
        ck_assert_uint_eq(all[tag].prefill, BT_REQUEST_NONE);
        begin(tag);
    }
    do
        arrive(answers + count, 2048, 0, 0, 0);
    while (all[answers + count].prefill != BT_REQUEST_NONE && ++count < 100);
    teardown();
    return count;
}

START_TEST(a_prompt_is_read_where_answers_are_written_the_less_the_more_they_are)
{
    uint32_t idle = count_remote(0), busy = count_remote(64);

    ck_assert_uint_ge(idle, 2);
    ck_assert_uint_ge(busy, 3 * idle);
    ck_assert_uint_lt(busy, 50);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("router placement");
    TCase *cases = tcase_create("all");

    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, d1_queues_of_prefill_nodes_stay_alike_under_a_hot_prefix);
    tcase_add_test(cases, d2_a_beginning_that_all_prompts_share_goes_to_all_nodes);
    tcase_add_test(cases, d3_decode_nodes_are_filled_alike_by_prompts_of_all_sizes);
    tcase_add_test(cases, d5_prefixes_without_end_take_no_memory);
    tcase_add_test(cases, d6_a_guess_that_is_wrong_costs_a_computation_and_no_message);
    tcase_add_test(cases, d8_a_node_that_joins_is_filled_and_not_flooded);
    tcase_add_test(cases, d9_a_thousand_arrivals_of_one_moment_spread_evenly);
    tcase_add_test(cases, d10_all_counts_come_back_to_zero_however_requests_end);
    tcase_add_loop_test(cases, d11_beginnings_are_found_again_though_a_few_of_them_are_most_of_the_load, 0, 2);
    tcase_add_test(cases, d14_a_router_serves_with_whichever_nodes_are_up);
    tcase_add_test(cases, d15_a_pair_that_has_not_moved_a_block_is_not_used);
    tcase_add_test(cases, a_session_stays_where_it_was_until_that_node_has_too_much);
    tcase_add_test(cases, a_node_that_was_restarted_is_no_longer_looked_for_what_it_had);
    tcase_add_test(cases, what_a_decode_node_has_of_a_prompt_spares_no_prefill_node_the_reading);
    tcase_add_test(cases, a_prompt_is_read_where_answers_are_written_the_less_the_more_they_are);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
