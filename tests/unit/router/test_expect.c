// Nodes that do not belong to the cluster: refused at the handshake, with the field and both values.
#include "tests/support/test.h"

#include "router/core.h"

#include <stdlib.h>
#include <string.h>

static const bt_router_expected expected[2] = {
    {"p1", BT_NODE_PREFILL, BT_PROTOCOL_VERSION, 16, 1, 0xabcd, 1, 7},
    {"d1", BT_NODE_DECODE, BT_PROTOCOL_VERSION, 16, 1, 0xabcd, 2, 7},
};
static bt_router *router;
static bt_router_actions *acts;
static bt_time now;

static void
set_up(void)
{
    bt_router_limits limits = {.nodes_max = 2, .context = 64, .epoch = 1, .expected = expected};

    ck_assert_int_eq(bt_router_open(&router, &limits, NULL), BT_OK);
    acts = malloc(sizeof *acts);
    now = BT_SECOND;
}

static void
tear_down(void)
{
    bt_router_close(router);
    free(acts);
}

static bt_hello
good(uint32_t node)
{
    bt_hello hello = {.role = expected[node].role,
                      .version = BT_PROTOCOL_VERSION,
                      .epoch = 10 + node,
                      .model = 0xabcd,
                      .weights = expected[node].weights,
                      .layout = 7,
                      .sequences = 4,
                      .queue = 4,
                      .blocks = 100,
                      .block_tokens = 16,
                      .kv_format = 1,
                      .context = 64};

    strcpy(hello.name, expected[node].name);
    return hello;
}

static bt_router_node
say(uint32_t node, const bt_hello *hello)
{
    bt_message message = {.kind = BT_MESSAGE_HELLO, .hello = *hello};
    bt_router_node out;

    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node}, acts);
    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = node, .message = &message},
                   acts);
    bt_router_get_node(router, node, &out);
    return out;
}

START_TEST(the_first_field_that_differs_is_named_with_both_values)
{
    bt_hello other[8];
    static const char *const words[8][3] = {
        {"version", "1", "9"},
        {"role", "decode", "prefill"},
        {"name", "d1", "d2"},
        {"model", "000000000000abcd", "000000000000dcba"},
        {"weights", "0000000000000002", "0000000000000003"},
        {"kv.block_tokens", "16", "32"},
        {"kv.format", "int8", "f16"},
        {"layout", "0000000000000007", "0000000000000008"},
    };

    for (int i = 0; i < 8; i++)
        other[i] = good(1);
    other[0].version = 9;
    other[0].model = 5; // a newer program: all else may mean something different
    other[1].role = BT_NODE_PREFILL;
    strcpy(other[2].name, "d2");
    other[3].model = 0xdcba;
    other[4].weights = 3;
    other[5].block_tokens = 32;
    other[6].kv_format = 2;
    other[6].model = other[6].layout = 5; // as it comes with a format
    other[7].layout = 8;
    for (int i = 0; i < 8; i++) {
        bt_router_node node = say(1, &other[i]);

        ck_assert_int_eq(node.state, BT_NODE_REFUSED);
        ck_assert_str_eq(node.refusal->field, words[i][0]);
        ck_assert_str_eq(node.refusal->expected, words[i][1]);
        ck_assert_str_eq(node.refusal->found, words[i][2]);
        ck_assert(!bt_router_ready(router));
    }
}
END_TEST

START_TEST(a_node_that_is_as_expected_is_taken_also_after_a_refusal)
{
    bt_hello hello = good(1);

    hello.layout = 8;
    ck_assert_int_eq(say(1, &hello).state, BT_NODE_REFUSED);
    hello = good(1);
    hello.epoch = 99;
    ck_assert_int_eq(say(1, &hello).state, BT_NODE_READY);
    ck_assert(bt_router_ready(router));
    hello = good(0);
    ck_assert_int_eq(say(0, &hello).state, BT_NODE_READY);
}
END_TEST

START_TEST(what_is_not_known_is_not_compared)
{
    bt_router_expected loose = {.role = BT_NODE_DECODE};
    bt_hello hello = good(1);

    ck_assert_ptr_null(bt_router_compare(&loose, &hello).field);
    hello.role = BT_NODE_PREFILL;
    ck_assert_str_eq(bt_router_compare(&loose, &hello).field, "role");
}
END_TEST

static bool
is_sent_to(uint32_t node, bt_message_kind kind)
{
    for (uint32_t i = 0; i < acts->count; i++) {
        if (acts->action[i].kind == BT_ROUTER_TO_NODE && acts->action[i].to_node.node == node &&
            acts->action[i].to_node.message.kind == kind)
            return true;
    }
    return false;
}

START_TEST(a_refused_node_gets_nothing_but_the_question_who_it_is)
{
    static const int32_t ids[] = {1, 2, 3};
    static const bt_sampling sampling;
    bt_router_arrival arrival = {
        .ids = ids, .count = 3, .sampling = &sampling, .max_tokens = 4, .deadline = BT_TIME_NEVER};
    bt_message beat = {.kind = BT_MESSAGE_HEARTBEAT, .heartbeat.number = 1};
    bt_hello hello = good(1);

    hello.model = 1;
    say(1, &hello);
    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_ARRIVED, .arrival = arrival}, acts);
    ck_assert_uint_eq(acts->count, 1);
    ck_assert_int_eq(acts->action[0].kind, BT_ROUTER_REJECTED);
    ck_assert_int_eq(acts->action[0].rejected.err, BT_ERR_PEER);
    ck_assert_int_ge(acts->action[0].rejected.retry_after, BT_SECOND);
    now += 2 * BT_SECOND;
    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_TICK}, acts);
    ck_assert(is_sent_to(1, BT_MESSAGE_HELLO) && !is_sent_to(1, BT_MESSAGE_HEARTBEAT));
    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = 1, .message = &beat}, acts);
    ck_assert(!bt_router_ready(router));
}
END_TEST

START_TEST(a_node_that_comes_back_as_another_loses_its_requests)
{
    static const int32_t ids[] = {1, 2, 3};
    static const bt_sampling sampling;
    bt_router_arrival arrival = {
        .ids = ids, .count = 3, .sampling = &sampling, .max_tokens = 4, .deadline = BT_TIME_NEVER};
    bt_router_stats stats;
    bt_hello hello = good(1);

    say(1, &hello);
    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_ARRIVED, .arrival = arrival}, acts);
    ck_assert(is_sent_to(1, BT_MESSAGE_RESERVE));
    hello.epoch = 77;
    hello.model = 3;
    ck_assert_int_eq(say(1, &hello).state, BT_NODE_REFUSED);
    bt_router_get_stats(router, &stats);
    ck_assert_uint_eq(stats.queued, 1);
    ck_assert_uint_eq(stats.nodes_up, 0);
    ck_assert_int_eq(stats.leak, 0);
}
END_TEST

START_TEST(a_pair_is_a_decode_node_that_names_the_prefill_nodes_epoch)
{
    uint64_t sources[] = {10};
    bt_message beat = {.kind = BT_MESSAGE_HEARTBEAT, .heartbeat = {.number = 1, .source_count = 1, .sources = sources}};
    bt_hello p = good(0), d = good(1);

    say(0, &p);
    say(1, &d);
    ck_assert(!bt_router_is_pair(router, 1, 0));
    bt_router_step(router, now, &(bt_router_event){.kind = BT_ROUTER_NODE_MESSAGE, .node = 1, .message = &beat}, acts);
    ck_assert(bt_router_is_pair(router, 1, 0));
    p.epoch = 11;
    say(0, &p);
    ck_assert(!bt_router_is_pair(router, 1, 0));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("expect");
    TCase *tests = tcase_create("expect");

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, the_first_field_that_differs_is_named_with_both_values);
    tcase_add_test(tests, a_node_that_is_as_expected_is_taken_also_after_a_refusal);
    tcase_add_test(tests, what_is_not_known_is_not_compared);
    tcase_add_test(tests, a_refused_node_gets_nothing_but_the_question_who_it_is);
    tcase_add_test(tests, a_node_that_comes_back_as_another_loses_its_requests);
    tcase_add_test(tests, a_pair_is_a_decode_node_that_names_the_prefill_nodes_epoch);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
