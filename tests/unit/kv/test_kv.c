#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/kv/prefix.h"
#include "common/kv/table.h"

#define TOKENS 4 // a block, here

static bt_kv_pool *pool;
static bt_kv_prefix *prefix;

static void
setup(void)
{
    ck_assert(bt_kv_pool_open(&pool, 16) == BT_OK);
    ck_assert(bt_kv_prefix_open(&prefix, pool, TOKENS) == BT_OK);
}

static void
teardown(void)
{
    bt_kv_prefix_close(prefix);
    bt_kv_pool_close(pool);
    prefix = NULL;
    pool = NULL;
}

static bt_block
take_one(bt_block after)
{
    bt_block block = BT_BLOCK_NONE;

    ck_assert(bt_kv_pool_take(pool, after, 1, &block) == BT_OK);
    return block;
}

static void
release_all(const bt_block *blocks, uint32_t count)
{
    while (count != 0) {
        bt_kv_pool_release(pool, blocks[--count]);
    }
}

START_TEST(blocks_come_in_runs)
{
    bt_block blocks[6];

    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 6, blocks) == BT_OK);
    for (uint32_t i = 1; i < 6; i++) {
        ck_assert_uint_eq(blocks[i], blocks[0] + i);
    }
    release_all(blocks, 6);
}
END_TEST

START_TEST(a_sequence_goes_on_beside_its_last_block)
{
    bt_block first[4], more[4];

    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 4, first) == BT_OK);
    bt_kv_pool_release(pool, first[0]); // a shorter run lies open elsewhere
    ck_assert(bt_kv_pool_take(pool, first[3], 4, more) == BT_OK);
    ck_assert_uint_eq(more[0], first[3] + 1);
    ck_assert_uint_eq(more[3], first[3] + 4);
    release_all(first + 1, 3);
    release_all(more, 4);
}
END_TEST

START_TEST(a_small_request_leaves_the_long_run_whole)
{
    bt_block all[16], small[2], big[10];

    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 16, all) == BT_OK);
    release_all(all, 10);
    release_all(all + 13, 2);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 2, small) == BT_OK);
    ck_assert_uint_eq(small[0], 13);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 10, big) == BT_OK);
    ck_assert_uint_eq(big[9], big[0] + 9);
    release_all(small, 2);
    release_all(big, 10);
    release_all(all + 10, 3);
    bt_kv_pool_release(pool, all[15]);
    ck_assert_int_eq(bt_kv_pool_leaked(pool, 0), 0);
}
END_TEST

START_TEST(a_full_pool_says_busy_and_gives_nothing)
{
    bt_block all[16], more[2];

    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 15, all) == BT_OK);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 2, more) == BT_ERR_BUSY);
    ck_assert_uint_eq(bt_kv_pool_free(pool), 1);
    release_all(all, 15);
    ck_assert_uint_eq(bt_kv_pool_free(pool), 16);
}
END_TEST

START_TEST(a_block_lent_again_has_a_new_generation)
{
    bt_block block = take_one(BT_BLOCK_NONE), again;
    uint64_t generation = bt_kv_pool_generation(pool, block);

    bt_kv_pool_hold(pool, block);
    bt_kv_pool_release(pool, block);
    ck_assert_uint_eq(bt_kv_pool_generation(pool, block), generation);
    bt_kv_pool_release(pool, block);
    again = take_one(block - 1);
    ck_assert_uint_eq(again, block);
    ck_assert_uint_eq(bt_kv_pool_generation(pool, block), generation + 1);
    bt_kv_pool_release(pool, again);
}
END_TEST

START_TEST(the_leak_gauge_sees_a_forgotten_hold)
{
    bt_block block = take_one(BT_BLOCK_NONE);

    bt_kv_pool_hold(pool, block);
    ck_assert_int_eq(bt_kv_pool_leaked(pool, 2), 0);
    ck_assert_int_eq(bt_kv_pool_leaked(pool, 1), 1);
    release_all((bt_block[]){block, block}, 2);
    ck_assert_int_eq(bt_kv_pool_leaked(pool, 0), 0);
}
END_TEST

START_TEST(a_table_grows_and_shrinks_and_stops_at_its_limit)
{
    bt_kv_table table;

    ck_assert(bt_kv_table_init(&table, 5) == BT_OK);
    ck_assert(bt_kv_table_grow(&table, pool, 3) == BT_OK);
    ck_assert(bt_kv_table_grow(&table, pool, 2) == BT_OK);
    ck_assert_uint_eq(table.count, 3);
    ck_assert(bt_kv_table_grow(&table, pool, 6) == BT_ERR_TOO_LONG);
    ck_assert_uint_eq(table.count, 3);
    ck_assert_uint_eq(bt_kv_pool_free(pool), 13);
    bt_kv_table_shrink(&table, pool, 1);
    ck_assert_uint_eq(bt_kv_pool_free(pool), 15);
    bt_kv_table_shrink(&table, pool, 0);
    bt_kv_table_fini(&table);
}
END_TEST

// Takes and indexes the full blocks of `ids` as a sequence that computed them would.
static void
index_ids(const int32_t *ids, uint32_t blocks, bt_block *out)
{
    bt_kv_prefix_at at = bt_kv_prefix_root(7);

    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, blocks, out) == BT_OK);
    for (uint32_t i = 0; i < blocks; i++) {
        ck_assert_uint_eq(bt_kv_prefix_add(prefix, &at, ids + i * TOKENS, out[i]), out[i]);
    }
}

static uint32_t
find(uint64_t digest, const int32_t *ids, uint32_t count, bt_block *out)
{
    bt_kv_prefix_at at = bt_kv_prefix_root(digest);

    return bt_kv_prefix_find(prefix, &at, ids, count, out, 16);
}

static const int32_t story[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

START_TEST(a_prompt_finds_its_beginning_and_leaves_a_token_to_compute)
{
    bt_block blocks[3], found[16];

    index_ids(story, 3, blocks);
    ck_assert_uint_eq(find(7, story, 13, found), 3);
    ck_assert_uint_eq(found[2], blocks[2]);
    release_all(found, 3);
    ck_assert_uint_eq(find(7, story, 12, found), 2); // exactly three blocks: the last token must be computed
    release_all(found, 2);
    ck_assert_uint_eq(find(7, story, 4, found), 0);
    ck_assert_uint_eq(find(7, story, 0, found), 0);
    release_all(blocks, 3);
    ck_assert_uint_eq(bt_kv_pool_idle(pool), 3);
    ck_assert_uint_eq(find(7, story, 13, found), 3); // unheld blocks are still found
    ck_assert_uint_eq(bt_kv_pool_idle(pool), 0);
    release_all(found, 3);
}
END_TEST

START_TEST(other_ids_or_other_weights_find_nothing)
{
    int32_t other[13];
    bt_block blocks[3], found[16];

    index_ids(story, 3, blocks);
    memcpy(other, story, sizeof other);
    other[5]++;
    ck_assert_uint_eq(find(7, other, 13, found), 1);
    release_all(found, 1);
    ck_assert_uint_eq(find(8, story, 13, found), 0);
    ck_assert_uint_eq(find(7, story, 13, found), 3);
    release_all(found, 3);
    release_all(blocks, 3);
}
END_TEST

START_TEST(the_pool_evicts_the_tail_of_the_longest_unused_prefix)
{
    static const int32_t second[] = {21, 22, 23, 24, 25, 26, 27, 28, 29};
    bt_block a[3], b[2], found[16], all[16];

    index_ids(story, 3, a);
    index_ids(second, 2, b);
    release_all(a, 3);
    release_all(b, 2);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 12, all) == BT_OK); // 11 are free: one must go
    ck_assert_uint_eq(find(7, story, 13, found), 2);
    release_all(found, 2);
    ck_assert_uint_eq(find(7, second, 9, found), 2);
    release_all(found, 2);
    ck_assert_uint_eq(bt_kv_prefix_count(prefix), 4);
    release_all(all, 12);
}
END_TEST

START_TEST(a_held_block_is_never_evicted)
{
    bt_block a[3], found[16], all[16];

    index_ids(story, 3, a);
    release_all(a + 1, 2);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 16, all) == BT_ERR_BUSY);
    ck_assert_uint_eq(bt_kv_prefix_count(prefix), 3);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 15, all) == BT_OK);
    ck_assert_uint_eq(find(7, story, 13, found), 1);
    ck_assert_uint_eq(found[0], a[0]);
    bt_kv_pool_release(pool, found[0]);
    release_all(all, 15);
    bt_kv_pool_release(pool, a[0]);
}
END_TEST

START_TEST(an_equal_block_is_named_and_the_chain_goes_on_from_it)
{
    bt_block first[2], twin[2], found[16];
    bt_kv_prefix_at at = bt_kv_prefix_root(7);

    index_ids(story, 1, first);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 2, twin) == BT_OK);
    ck_assert_uint_eq(bt_kv_prefix_add(prefix, &at, story, twin[0]), first[0]);
    ck_assert_uint_eq(bt_kv_prefix_add(prefix, &at, story + TOKENS, twin[1]), twin[1]);
    ck_assert_uint_eq(find(7, story, 9, found), 2);
    release_all(found, 2);
    release_all(twin, 2);
    release_all(first, 1);
    ck_assert_uint_eq(bt_kv_pool_idle(pool), 2); // the unindexed twin is free at once
}
END_TEST

START_TEST(a_chain_whose_beginning_is_gone_is_not_indexed)
{
    bt_block first[1], mine[2], all[16];
    bt_kv_prefix_at at = bt_kv_prefix_root(7);

    index_ids(story, 1, first);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 2, mine) == BT_OK);
    ck_assert_uint_eq(bt_kv_prefix_add(prefix, &at, story, mine[0]), first[0]);
    release_all(first, 1);
    ck_assert(bt_kv_pool_take(pool, BT_BLOCK_NONE, 14, all) == BT_OK); // evicts it
    ck_assert_uint_eq(bt_kv_prefix_add(prefix, &at, story + TOKENS, mine[1]), BT_BLOCK_NONE);
    ck_assert_uint_eq(bt_kv_prefix_count(prefix), 0);
    release_all(all, 14);
    release_all(mine, 2);
}
END_TEST

static bt_kv_key
first_key(uint64_t weights, const int32_t *ids)
{
    return bt_kv_key_next(weights, bt_kv_key_root(weights), ids, TOKENS);
}

START_TEST(keys_name_tokens_order_and_weights)
{
    static const int32_t swapped[] = {2, 1, 3, 4};
    bt_kv_key first = first_key(7, story);

    ck_assert(bt_kv_key_equal(first, first_key(7, story)));
    ck_assert(!bt_kv_key_equal(first, first_key(7, swapped)));
    ck_assert(!bt_kv_key_equal(first, first_key(8, story)));
    // The same ids at another place of the chain are another block.
    ck_assert(!bt_kv_key_equal(bt_kv_key_next(7, first, story, TOKENS), first));
}
END_TEST

START_TEST(keys_never_change)
{
    // Router and nodes of different builds must agree: these values are part of the protocol.
    bt_kv_key first = first_key(7, story);

    ck_assert_uint_eq(first.low, 0x1038a0ce60564bd4u);
    ck_assert_uint_eq(first.high, 0x15845338415e709au);
}
END_TEST

START_TEST(open_survives_every_failing_allocation)
{
    long live = bt_mem_live();

    for (long nth = 1;; nth++) {
        bt_kv_pool *p = NULL;
        bt_kv_prefix *x = NULL;
        bt_kv_table t = {0};
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_kv_pool_open(&p, 100);
        err = err != BT_OK ? err : bt_kv_prefix_open(&x, p, 32);
        err = err != BT_OK ? err : bt_kv_table_init(&t, 10);
        bt_mem_fail_nth(0);
        bt_kv_table_fini(&t);
        bt_kv_prefix_close(x);
        bt_kv_pool_close(p);
        ck_assert_int_eq(bt_mem_live(), live);
        if (err == BT_OK) {
            ck_assert_int_gt(nth, 6);
            break;
        }
        ck_assert_int_eq(err, BT_ERR_NO_MEMORY);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kv");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, blocks_come_in_runs);
    tcase_add_test(all, a_sequence_goes_on_beside_its_last_block);
    tcase_add_test(all, a_small_request_leaves_the_long_run_whole);
    tcase_add_test(all, a_full_pool_says_busy_and_gives_nothing);
    tcase_add_test(all, a_block_lent_again_has_a_new_generation);
    tcase_add_test(all, the_leak_gauge_sees_a_forgotten_hold);
    tcase_add_test(all, a_table_grows_and_shrinks_and_stops_at_its_limit);
    tcase_add_test(all, a_prompt_finds_its_beginning_and_leaves_a_token_to_compute);
    tcase_add_test(all, other_ids_or_other_weights_find_nothing);
    tcase_add_test(all, the_pool_evicts_the_tail_of_the_longest_unused_prefix);
    tcase_add_test(all, a_held_block_is_never_evicted);
    tcase_add_test(all, an_equal_block_is_named_and_the_chain_goes_on_from_it);
    tcase_add_test(all, a_chain_whose_beginning_is_gone_is_not_indexed);
    tcase_add_test(all, keys_name_tokens_order_and_weights);
    tcase_add_test(all, keys_never_change);
    tcase_add_test(all, open_survives_every_failing_allocation);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
