// An engine with two pools, as it has them on a GPU, on the CPU (and on a GPU: tests/gpu): what a step finishes is in the one that others
// fetch from, and what was fetched into it is what steps read.
#include "tests/support/play.h"
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/kv/trailer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 12
#define PROMPT 70 // of blocks of 16: four and a part
#define MARK 0xa5
#ifdef BT_LEND_GPU // those with two pools; others are what it is held against
#include "tests/gpu/gpu.h"
#define APART_DEVICE BT_DEVICE_CUDA
#define RUN bt_gpu_run
#else
#define APART_DEVICE BT_DEVICE_CPU
#define RUN bt_test_run
#endif

static char path[64];
static int32_t ids[PROMPT];
// Where the prompt's blocks lie: neighbours, and not.
static const uint32_t places[] = {7, 8, 9, 2, 11};

typedef struct {
    bt_engine *engine;
    uint8_t *lent;
    size_t bytes;
} world;

static void
setup(void)
{
    bt_log_set_level(BT_LOG_ERROR);
    snprintf(path, sizeof path, "/tmp/bt-test-lend-%d.gguf", (int)getpid());
    bt_test_write_tiny_gguf(path);
    for (int i = 0; i < PROMPT; i++) {
        ids[i] = 5 + i * 37 % (BT_TINY_VOCAB - 5);
    }
}

static void
teardown(void)
{
    unlink(path);
}

static bt_err
lend(void *arg, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    world *w = arg;

    (void)device, (void)why;
    w->bytes = layout->block_bytes * blocks;
    *memory = w->lent = bt_alloc_pages(w->bytes);
    return w->lent != NULL ? BT_OK : BT_ERR_NO_MEMORY;
}

static bt_engine_options
options_of(world *w, bool apart, bool out)
{
    return (bt_engine_options){
        .model = {.path = path},
        .device = {.kind = apart ? APART_DEVICE : BT_DEVICE_CPU, .threads = 1},
        .kv_format = BT_KV_INT8,
        .kv_block_tokens = 16,
        .kv_blocks = BLOCKS,
        .max_sequences = 4,
        .chunk_tokens = 64,
        .context = 128,
        .kv_pool = lend,
        .kv_pool_arg = w,
        .kv_apart = apart,
        .kv_out = out,
    };
}

static void
open_world(world *w, bool apart, bool out)
{
    bt_engine_options options = options_of(w, apart, out);
    bt_why why;

    *w = (world){0};
    ck_assert_msg(bt_engine_open(&w->engine, &options, &why) == BT_OK, "%s", why.text);
    ck_assert(bt_engine_kv_is_apart(w->engine) == apart);
    ck_assert_ptr_eq(bt_engine_kv_pool(w->engine), w->lent);
    memset(w->lent, MARK, w->bytes);
}

static void
close_world(world *w)
{
    bt_engine_close(w->engine);
    bt_free_pages(w->lent, w->bytes);
}

static bt_token_result
read_chunk(world *w, uint32_t from, uint32_t count)
{
    bt_token_result drawn = {0};
    bt_batch_item item = {.ids = ids + from,
                          .count = count,
                          .position = from,
                          .blocks = places,
                          .want = from + count == PROMPT ? BT_LOGITS_LAST : BT_LOGITS_NONE,
                          .prompt_count = PROMPT,
                          .next_id = -1};

    ck_assert_int_eq(bt_engine_step(w->engine, &item, 1, &(bt_step_result){.drawn = &drawn}), BT_OK);
    return drawn;
}

static uint8_t *
block_of(const world *w, uint32_t block)
{
    return w->lent + block * bt_engine_kv_layout(w->engine)->block_bytes;
}

static bool
is_marked(const uint8_t *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (memory[i] != MARK) {
            return false;
        }
    }
    return true;
}

// What the first `tokens` of a block hold, in all layers: keys, values and their scales.
static bool
same_tokens(const bt_kv_layout *l, uint8_t *a, uint8_t *b, uint32_t tokens)
{
    size_t dims = l->head_dim;
    bool same = true;

    for (uint32_t layer = 0; layer < l->layers; layer++) {
        for (uint32_t head = 0; head < l->kv_heads; head++) {
            same &= memcmp(bt_kv_k(l, a, layer, head), bt_kv_k(l, b, layer, head), tokens * dims) == 0;
            same &= memcmp(bt_kv_v(l, a, layer, head), bt_kv_v(l, b, layer, head), tokens / 4 * 4 * dims) == 0;
            same &= memcmp(bt_kv_k_scales(l, a, layer, head), bt_kv_k_scales(l, b, layer, head), tokens * 2) == 0;
            same &= memcmp(bt_kv_v_scales(l, a, layer, head), bt_kv_v_scales(l, b, layer, head), tokens * 2) == 0;
        }
    }
    return same;
}

// The first `whole` blocks are there, those after them untouched.
static void
expect_finished(world *ours, world *plain, uint32_t whole, uint32_t tokens)
{
    const bt_kv_layout *layout = bt_engine_kv_layout(ours->engine);

    for (uint32_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint8_t *block = block_of(ours, places[i]);
        uint32_t here = tokens - i * 16 < 16 ? tokens - i * 16 : 16;

        if (i >= whole) {
            ck_assert_msg(is_marked(block, layout->block_bytes), "block %u of %u tokens", i, tokens);
            continue;
        }
        ck_assert_msg(same_tokens(layout, block, block_of(plain, places[i]), here), "block %u of %u tokens", i, tokens);
        ck_assert_msg(is_marked(block + layout->trailer_offset, layout->block_bytes - layout->trailer_offset),
                      "the trailer of block %u", i);
        ck_assert_uint_eq(
            bt_engine_kv_sum(ours->engine, places[i]),
            bt_kv_checksum_end(bt_kv_checksum_part(block, layout->trailer_offset, 0), layout->trailer_offset));
    }
}

START_TEST(what_a_step_finishes_is_in_the_pool_that_is_lent_and_nothing_else_is)
{
    static const uint32_t chunks[] = {10, 6, 1, 30, 22, 1}; // ends of blocks met, passed, and a part at the end
    world ours, plain;
    uint32_t at = 0;

    open_world(&ours, true, true);
    open_world(&plain, false, false);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        bt_token_result a = read_chunk(&ours, at, chunks[i]), b = read_chunk(&plain, at, chunks[i]);

        ck_assert_int_eq(a.id, b.id);
        at += chunks[i];
        expect_finished(&ours, &plain, at == PROMPT ? 5 : at / 16, at);
    }
    ck_assert_uint_eq(at, PROMPT);
    close_world(&ours);
    close_world(&plain);
}
END_TEST

// More runs than a batch of sums takes: every second block, in one step.
START_TEST(blocks_that_lie_apart_have_their_sums)
{
    enum { COUNT = 37, TOKENS = COUNT * 16 };
    world w = {0};
    bt_engine_options options = options_of(&w, true, true);
    int32_t *many = bt_alloc_array(TOKENS, sizeof *many);
    uint32_t blocks[COUNT];
    bt_batch_item item = {.ids = many, .count = TOKENS, .blocks = blocks, .prompt_count = TOKENS, .next_id = -1};
    bt_token_result drawn;
    bt_why why;

    options.kv_blocks = 2 * COUNT, options.chunk_tokens = options.context = TOKENS;
    for (uint32_t i = 0; i < TOKENS; i++) {
        many[i] = ids[i * 7 % PROMPT];
        blocks[i / 16] = 2 * (i / 16) + 1;
    }
    ck_assert_msg(bt_engine_open(&w.engine, &options, &why) == BT_OK, "%s", why.text);
    ck_assert_int_eq(bt_engine_step(w.engine, &item, 1, &(bt_step_result){.drawn = &drawn}), BT_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        const bt_kv_layout *layout = bt_engine_kv_layout(w.engine);
        uint64_t sum = bt_kv_checksum_part(block_of(&w, blocks[i]), layout->trailer_offset, 0);

        ck_assert_uint_eq(bt_engine_kv_sum(w.engine, blocks[i]), bt_kv_checksum_end(sum, layout->trailer_offset));
        ck_assert(i == 0 ||
                  bt_engine_kv_sum(w.engine, blocks[i] - 1) == 0); // the first was written when the engine was opened
    }
    bt_free(many);
    close_world(&w);
}
END_TEST

static void
wait_until_in(bt_engine *engine, uint64_t ticket)
{
    uint64_t through = 0;

    while (through < ticket) {
        ck_assert_int_eq(bt_engine_kv_through(engine, &through), BT_OK);
    }
}

START_TEST(what_was_fetched_is_read_once_it_is_in)
{
    const uint32_t to[] = {1, 2, 3, 10, 4};
    world from, ours;
    bt_token_result drawn = {0}, want;
    bt_batch_item item = {.ids = ids + PROMPT - 1,
                          .count = 1,
                          .position = PROMPT - 1,
                          .blocks = to,
                          .want = BT_LOGITS_LAST,
                          .next_id = -1};
    uint32_t rows;
    uint64_t ticket;
    float *logits;

    open_world(&from, true, true);
    open_world(&ours, true, false);
    read_chunk(&from, 0, 64);
    want = read_chunk(&from, 64, PROMPT - 64);
    logits = bt_alloc_array(BT_TINY_VOCAB, sizeof *logits);
    memcpy(logits, bt_engine_logits(from.engine, &rows), BT_TINY_VOCAB * sizeof *logits);
    for (int i = 0; i < 5; i++) {
        memcpy(block_of(&ours, to[i]), block_of(&from, places[i]), bt_engine_kv_layout(from.engine)->block_bytes);
    }
    // The last token is read again, over itself. Before the blocks are in, what it sees is nothing.
    ck_assert_int_eq(bt_engine_step(ours.engine, &item, 1, &(bt_step_result){.drawn = &drawn}), BT_OK);
    ck_assert_mem_ne(logits, bt_engine_logits(ours.engine, &rows), BT_TINY_VOCAB * sizeof *logits);
    ck_assert_int_eq(bt_engine_kv_in(ours.engine, to, 2, &ticket), BT_OK);
    ck_assert_int_eq(bt_engine_kv_in(ours.engine, to + 2, 3, &ticket), BT_OK);
    wait_until_in(ours.engine, ticket);
    ck_assert_int_eq(bt_engine_step(ours.engine, &item, 1, &(bt_step_result){.drawn = &drawn}), BT_OK);
    ck_assert_int_eq(drawn.id, want.id);
    ck_assert_mem_eq(logits, bt_engine_logits(ours.engine, &rows), BT_TINY_VOCAB * sizeof *logits);
    bt_free(logits);
    close_world(&from);
    close_world(&ours);
}
END_TEST

START_TEST(a_broken_device_fails_every_step_and_says_so)
{
    world w = {0};
    bt_engine_options options = options_of(&w, false, false);
    bt_token_result drawn;
    bt_batch_item item = {.ids = ids, .count = 3, .blocks = places, .want = BT_LOGITS_LAST, .next_id = -1};
    bt_step_result result = {.drawn = &drawn};
    uint32_t good = 0;
    bt_why why;

    options.device.break_after = 10;
    ck_assert_msg(bt_engine_open(&w.engine, &options, &why) == BT_OK, "%s", why.text);
    while (bt_engine_step(w.engine, &item, 1, &result) == BT_OK) {
        ck_assert(!bt_device_is_broken(bt_engine_device(w.engine)));
        ck_assert_uint_lt(++good, 20);
    }
    ck_assert_uint_gt(good, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert(bt_device_is_broken(bt_engine_device(w.engine)));
        ck_assert_int_eq(bt_engine_step(w.engine, &item, 1, &result), BT_ERR_DEVICE);
    }
    close_world(&w);
}
END_TEST

START_TEST(a_device_that_breaks_at_once_is_not_put_down_to_the_file)
{
    world w = {0};
    bt_engine_options options = options_of(&w, false, false);
    bt_why why;

    options.device.break_after = 1;
    ck_assert_int_eq(bt_engine_open(&w.engine, &options, &why), BT_ERR_DEVICE);
    ck_assert_msg(strstr(why.text, "a first step failed") != NULL, "%s", why.text);
    close_world(&w);
}
END_TEST

START_TEST(open_survives_every_failing_allocation)
{
    bool out = _i;
    long live = bt_mem_live();
    bt_err err = BT_ERR_NO_MEMORY;

    bt_log_set_level(BT_LOG_NONE);
    for (long nth = 1; err != BT_OK; nth++) {
        world w = {0};
        bt_engine_options options = options_of(&w, true, out);
        bt_why why;

        bt_mem_fail_nth(nth);
        err = bt_engine_open(&w.engine, &options, &why);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        close_world(&w);
        ck_assert_int_eq(bt_mem_live(), live);
        ck_assert_int_lt(nth, 10000);
    }
    bt_log_set_level(BT_LOG_ERROR);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("lend");
    TCase *all = tcase_create("all");

    tcase_add_unchecked_fixture(all, setup, teardown);
    tcase_add_test(all, what_a_step_finishes_is_in_the_pool_that_is_lent_and_nothing_else_is);
    tcase_add_test(all, blocks_that_lie_apart_have_their_sums);
    tcase_add_test(all, what_was_fetched_is_read_once_it_is_in);
    tcase_add_test(all, a_broken_device_fails_every_step_and_says_so);
    tcase_add_test(all, a_device_that_breaks_at_once_is_not_put_down_to_the_file);
    // Hundreds of opens: not on a GPU.
    tcase_add_loop_test(all, open_survives_every_failing_allocation, 0, APART_DEVICE == BT_DEVICE_CPU ? 2 : 0);
    tcase_set_timeout(all, 120);
    suite_add_tcase(suite, all);
    return RUN(suite);
}
