#include "common/base/mem.h"
#include "router/affinity.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define NODES 64
#define STEP 16

static bt_affinity table;
static int32_t ids[1024];
static uint64_t keys[64];

static void
setup(void)
{
    ck_assert_int_eq(bt_affinity_init(&table, 4096, STEP, NODES), BT_OK);
    for (int i = 0; i < 1024; i++)
        ids[i] = i % 97;
}

static void
teardown(void)
{
    bt_affinity_fini(&table);
}

static uint32_t
chain(uint64_t weights, uint32_t count)
{
    return bt_affinity_chain(&table, weights, ids, count, keys);
}

static uint32_t
tokens_of(uint32_t node, uint32_t count)
{
    bt_affinity_look(&table, keys, count, 0);
    return bt_affinity_tokens(&table, node);
}

START_TEST(a_node_is_known_to_hold_what_it_was_given_and_no_more)
{
    bt_affinity_record(&table, keys, chain(1, 100), 3);
    ck_assert_uint_eq(tokens_of(3, chain(1, 200)), 96); // whole steps
    ck_assert_uint_eq(tokens_of(3, chain(1, 40)), 32);
    ck_assert_uint_eq(tokens_of(4, chain(1, 200)), 0);
    ids[20] = 5; // another second step
    ck_assert_uint_eq(tokens_of(3, chain(1, 200)), 16);
}
END_TEST

START_TEST(what_other_weights_read_is_another_chain)
{
    bt_affinity_record(&table, keys, chain(1, 100), 3);
    ck_assert_uint_eq(tokens_of(3, chain(2, 100)), 0);
}
END_TEST

START_TEST(recording_again_changes_nothing) // D7
{
    uint32_t used;

    bt_affinity_record(&table, keys, chain(1, 320), 3);
    bt_affinity_record(&table, keys, chain(1, 320), 4);
    used = bt_affinity_used(&table);
    for (int i = 0; i < 1000; i++)
        bt_affinity_record(&table, keys, chain(1, 320), 3 + i % 2);
    ck_assert_uint_eq(bt_affinity_used(&table), used);
    ck_assert_uint_eq(tokens_of(3, chain(1, 320)), 320);
    ck_assert_uint_eq(tokens_of(4, chain(1, 320)), 320);
}
END_TEST

START_TEST(a_node_that_begins_anew_holds_nothing_and_others_what_they_had)
{
    bt_affinity_record(&table, keys, chain(1, 320), 3);
    bt_affinity_record(&table, keys, chain(1, 160), 4);
    bt_affinity_forget(&table, 3);
    ck_assert_uint_eq(tokens_of(3, chain(1, 320)), 0);
    ck_assert_uint_eq(tokens_of(4, chain(1, 320)), 160);
    ck_assert_uint_eq(bt_affinity_used(&table), 10);
    bt_affinity_forget(&table, 4);
    ck_assert_uint_eq(bt_affinity_used(&table), 0);
}
END_TEST

START_TEST(a_beginning_that_all_share_hides_nobodys_own_end) // D2
{
    uint32_t mine;

    bt_affinity_record(&table, keys, mine = chain(1, 640), 0);
    for (uint32_t node = 1; node < NODES; node++) { // more than an entry can name
        ids[40] = 100 + (int32_t)node;
        bt_affinity_record(&table, keys, chain(1, 640), node);
    }
    ids[40] = 40;
    ck_assert_uint_eq(chain(1, 640), mine);
    ck_assert_uint_eq(tokens_of(0, mine), 640);
}
END_TEST

START_TEST(ten_million_prefixes_take_no_more_memory_than_one) // D5
{
    long live = bt_mem_live();
    uint32_t most = 4096;

    for (uint64_t i = 1; i <= 10000000; i++) {
        uint64_t key = i * 2 + 1;

        bt_affinity_record(&table, &key, 1, (uint32_t)(i % NODES));
    }
    ck_assert_int_eq(bt_mem_live(), live);
    ck_assert_uint_le(bt_affinity_used(&table), most);
    ck_assert_uint_ge(bt_affinity_used(&table), most / 2);
}
END_TEST

START_TEST(the_longest_unused_makes_way)
{
    uint32_t hot = chain(1, 64), hits = 0;

    for (uint64_t i = 1; i <= 20000; i++) {
        uint64_t key = i * 2 + 1;

        bt_affinity_record(&table, &key, 1, 1);
        if (i % 100 == 0) {
            hits += tokens_of(2, hot) == 64;
            bt_affinity_record(&table, keys, hot, 2);
        }
    }
    ck_assert_uint_ge(hits, 190);
}
END_TEST

START_TEST(a_session_is_where_it_was_last)
{
    bt_affinity_look(&table, keys, 0, 77);
    ck_assert_uint_eq(table.pinned, BT_AFFINITY_NONE);
    bt_affinity_pin(&table, 77, 5);
    bt_affinity_pin(&table, 77, 6);
    bt_affinity_pin(&table, 0, 9); // no session
    bt_affinity_look(&table, keys, 0, 77);
    ck_assert_uint_eq(table.pinned, 6);
    bt_affinity_forget(&table, 6);
    bt_affinity_look(&table, keys, 0, 77);
    ck_assert_uint_eq(table.pinned, 5);
    bt_affinity_look(&table, keys, 0, 0);
    ck_assert_uint_eq(table.pinned, BT_AFFINITY_NONE);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("affinity");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, a_node_is_known_to_hold_what_it_was_given_and_no_more);
    tcase_add_test(all, what_other_weights_read_is_another_chain);
    tcase_add_test(all, recording_again_changes_nothing);
    tcase_add_test(all, a_node_that_begins_anew_holds_nothing_and_others_what_they_had);
    tcase_add_test(all, a_beginning_that_all_share_hides_nobodys_own_end);
    tcase_add_test(all, ten_million_prefixes_take_no_more_memory_than_one);
    tcase_add_test(all, the_longest_unused_makes_way);
    tcase_add_test(all, a_session_is_where_it_was_last);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
