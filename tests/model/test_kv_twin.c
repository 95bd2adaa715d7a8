// The pool and the prefix index against naive twins: 10⁵ random operations a seed.
//
// The twin of a block's content is the list of ids that lead to it. Sequences over a tiny alphabet share many prefixes;
// they begin (with whatever the index gives), grow a block at a time, and end. After every operation the twin's counts must
// be the pool's, and every hit must hold exactly the ids that were asked for.
#include "tests/support/test.h"

#include "common/base/rng.h"
#include "common/kv/prefix.h"
#include "common/kv/table.h"

#include <stdio.h>
#include <stdlib.h>

#define BLOCKS 70
#define TOKENS 2 // a block
#define SEQUENCES 12
#define LENGTH_MAX 40 // tokens
#define OPERATIONS 100000

typedef struct {
    bool live;
    int32_t ids[LENGTH_MAX + TOKENS];
    uint32_t target, done; // tokens wanted, tokens in finished and indexed blocks
    bt_kv_table table;
    bt_kv_prefix_at at;
} sequence;

typedef struct {
    uint32_t holds;
    uint32_t count; // ids of the whole prefix this block ends, 0 = nothing known
    int32_t ids[LENGTH_MAX + TOKENS];
    uint64_t generation;
} twin_block;

static bt_kv_pool *pool;
static bt_kv_prefix *prefix;
static sequence sequences[SEQUENCES];
static twin_block twins[BLOCKS];
static bt_rng rng;

static void
twin_take(bt_block block)
{
    ck_assert_uint_lt(block, BLOCKS);
    ck_assert_uint_eq(twins[block].holds, 0);
    ck_assert_uint_gt(bt_kv_pool_generation(pool, block), twins[block].generation);
    twins[block] = (twin_block){.holds = 1, .generation = bt_kv_pool_generation(pool, block)};
}

// The length of the match the index must not exceed: blocks anywhere whose known ids are this prefix.
static bool
known(const int32_t *ids, uint32_t count)
{
    for (bt_block b = 0; b < BLOCKS; b++) {
        if (twins[b].count == count && memcmp(twins[b].ids, ids, count * sizeof *ids) == 0) {
            return true;
        }
    }
    return false;
}

static void
begin(sequence *s)
{
    bt_block *found = s->table.blocks, again[BLOCKS];
    uint32_t count;

    s->target = 1 + (uint32_t)bt_rng_below(&rng, LENGTH_MAX);
    for (uint32_t i = 0; i < LENGTH_MAX + TOKENS; i++) {
        s->ids[i] = (int32_t)bt_rng_below(&rng, 8) == 0;
    }
    s->at = bt_kv_prefix_root(99);
    count = bt_kv_prefix_find(prefix, &s->at, s->ids, s->target, found, s->table.limit);
    ck_assert_uint_lt(count * TOKENS, s->target);
    for (uint32_t i = 0; i < count; i++) {
        twin_block *t = &twins[found[i]];

        ck_assert_uint_eq(t->count, (i + 1) * TOKENS);
        ck_assert_mem_eq(t->ids, s->ids, t->count * sizeof *t->ids);
        ck_assert_uint_eq(t->generation, bt_kv_pool_generation(pool, found[i]));
        t->holds++;
    }
    if ((count + 1) * TOKENS < s->target && !known(s->ids, (count + 1) * TOKENS)) {
        bt_kv_prefix_at at = bt_kv_prefix_root(99);

        ck_assert_uint_eq(bt_kv_prefix_find(prefix, &at, s->ids, (count + 1) * TOKENS + 1, again, BLOCKS), count);
        for (uint32_t i = 0; i < count; i++) {
            bt_kv_pool_release(pool, again[i]);
        }
    }
    s->table.count = count;
    s->done = count * TOKENS;
    s->live = true;
}

static uint32_t
twins_held(void)
{
    uint32_t held = 0;

    for (bt_block b = 0; b < BLOCKS; b++) {
        held += twins[b].holds != 0;
    }
    return held;
}

static void
grow(sequence *s)
{
    uint32_t before = s->table.count, more = 1 + (uint32_t)bt_rng_below(&rng, 4);
    bt_err err = bt_kv_table_grow(&s->table, pool, before + more);

    if (err == BT_ERR_BUSY) {
        ck_assert_uint_gt(twins_held() + more, BLOCKS);
    } else if (err == BT_ERR_TOO_LONG) {
        ck_assert_uint_gt(before + more, s->table.limit);
    }
    for (uint32_t i = before; i < s->table.count; i++) {
        twin_take(s->table.blocks[i]);
    }
}

// Finishes the next block: its content becomes known, and it is indexed.
static void
finish_block(sequence *s)
{
    uint32_t index = s->done / TOKENS;
    bt_block mine, indexed;
    twin_block *t;

    if (index >= s->table.count || s->done + TOKENS > s->target) {
        return;
    }
    mine = s->table.blocks[index];
    t = &twins[mine];
    ck_assert_uint_eq(t->holds, 1);
    s->done += TOKENS;
    t->count = s->done;
    memcpy(t->ids, s->ids, s->done * sizeof *s->ids);
    indexed = bt_kv_prefix_add(prefix, &s->at, s->ids + s->done - TOKENS, mine);
    if (indexed != BT_BLOCK_NONE && indexed != mine) {
        ck_assert_uint_eq(twins[indexed].count, s->done);
        ck_assert_mem_eq(twins[indexed].ids, s->ids, s->done * sizeof *s->ids);
        if (bt_rng_below(&rng, 2) == 0) { // take the equal one in place of our own
            bt_kv_pool_hold(pool, indexed);
            twins[indexed].holds++;
            bt_kv_pool_release(pool, mine);
            *t = (twin_block){.generation = t->generation};
            s->table.blocks[index] = indexed;
        }
    }
}

static void
end(sequence *s)
{
    for (uint32_t i = 0; i < s->table.count; i++) {
        twin_block *t = &twins[s->table.blocks[i]];

        if (--t->holds == 0 && !bt_kv_pool_kept(pool, s->table.blocks[i])) {
            t->count = 0;
        }
    }
    bt_kv_table_shrink(&s->table, pool, 0);
    s->live = false;
}

static void
check_all(void)
{
    uint64_t accounted = 0;
    uint32_t held = twins_held(), kept = 0, wrong = 0;

    for (bt_block b = 0; b < BLOCKS; b++) {
        wrong += bt_kv_pool_holds(pool, b) != twins[b].holds; // check writes to a file at every assertion
        kept += bt_kv_pool_kept(pool, b);
        if (twins[b].holds == 0 && !bt_kv_pool_kept(pool, b)) {
            twins[b].count = 0; // free or evicted: what it held is no longer to be found
        }
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        accounted += sequences[i].table.count;
    }
    wrong += bt_kv_pool_leaked(pool, accounted) != 0;
    wrong += bt_kv_prefix_count(prefix) != kept;
    wrong += bt_kv_pool_available(pool) + held != BLOCKS;
    if (wrong != 0) {
        ck_abort_msg("pool and twin differ in %u counts", wrong);
    }
}

static void
run(uint64_t seed)
{
    uint32_t hits = 0;

    printf("seed %llu\n", (unsigned long long)seed);
    rng = (bt_rng){seed};
    memset(twins, 0, sizeof twins);
    memset(sequences, 0, sizeof sequences);
    ck_assert(bt_kv_pool_open(&pool, BLOCKS) == BT_OK);
    ck_assert(bt_kv_prefix_open(&prefix, pool, TOKENS) == BT_OK);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        ck_assert(bt_kv_table_init(&sequences[i].table, LENGTH_MAX / TOKENS + 1) == BT_OK);
    }
    for (uint32_t n = 0; n < OPERATIONS; n++) {
        sequence *s = &sequences[bt_rng_below(&rng, SEQUENCES)];
        uint64_t what = bt_rng_below(&rng, 16);

        if (!s->live) {
            begin(s);
            hits += s->table.count != 0;
        } else if (what < 5) {
            grow(s);
        } else if (what < 13) {
            finish_block(s);
        } else if (what < 15) {
            end(s);
        } else if (bt_rng_below(&rng, 2000) == 0) {
            bt_kv_prefix_clear(prefix);
        }
        check_all();
    }
    ck_assert_uint_gt(hits, 1000);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        end(&sequences[i]);
        bt_kv_table_fini(&sequences[i].table);
    }
    check_all();
    bt_kv_prefix_close(prefix);
    ck_assert_uint_eq(bt_kv_pool_free(pool), BLOCKS);
    bt_kv_pool_close(pool);
}

START_TEST(pool_and_index_agree_with_their_twins)
{
    const char *given = getenv("BT_SEED");

    if (given != NULL) {
        run(strtoull(given, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= 4; seed++) {
        run(seed);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kv twins");
    TCase *all = tcase_create("all");

    tcase_add_test(all, pool_and_index_agree_with_their_twins);
    tcase_set_timeout(all, 120);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
