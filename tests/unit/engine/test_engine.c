// The engine on a tiny model of our own: what must not matter does not, and what is wrong is said.
#include "tests/support/play.h"
#include "tests/support/test.h"
#include "tests/support/tiny_gguf.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/forward.h"
#include "common/engine/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUESTS 64
#define PROMPT_MAX 150
#define ANSWER 8

static const uint32_t types[] = {BT_TINY_F32, BT_TINY_Q4_0, BT_TINY_Q8_0};
static char paths[3][64];
static int32_t prompts[REQUESTS][PROMPT_MAX];
static uint32_t prompt_counts[REQUESTS];
static bt_sampling samplings[REQUESTS];

// Prompts share beginnings, as prompts do; every fourth request is greedy.
static void
make_requests(void)
{
    bt_rng rng = {20};

    for (uint32_t r = 0; r < REQUESTS; r++) {
        prompt_counts[r] = 1 + (uint32_t)bt_rng_below(&rng, PROMPT_MAX);
        for (uint32_t i = 0; i < PROMPT_MAX; i++) {
            prompts[r][i] = i < 70 && r != 0 ? prompts[0][i] : (int32_t)bt_rng_below(&rng, BT_TINY_VOCAB);
        }
        samplings[r] = (bt_sampling){
            .temperature = r % 4 == 0 ? 0 : 0.9f,
            .top_p = r % 3 == 0 ? 0.9f : 1,
            .top_k = r % 5 == 0 ? 30 : 0,
            .repetition_penalty = r % 2 == 0 ? 1.1f : 1,
            .seed = r,
            .logprobs = true,
        };
    }
}

static void
setup(void)
{
    bt_log_set_level(BT_LOG_ERROR);
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/bt-test-engine-%d-%d.gguf", (int)getpid(), i);
        bt_test_write_tiny_gguf_as(paths[i], types[i]);
    }
    make_requests();
}

static void
teardown(void)
{
    for (int i = 0; i < 3; i++) {
        unlink(paths[i]);
    }
}

static bt_engine_options
options_of(int type)
{
    return (bt_engine_options){
        .model = {.path = paths[type], .equalise = true},
        .device = {.threads = 1},
        .kv_format = BT_KV_INT8,
        .max_sequences = REQUESTS,
        .chunk_tokens = 512,
        .context = 256,
    };
}

typedef struct {
    int32_t answers[REQUESTS][ANSWER];
    float logprobs[REQUESTS][ANSWER];
    uint32_t cached;
} streams;

static void
play(bt_engine *engine, uint32_t count, const bt_play_options *how, streams *out)
{
    bt_play_request requests[REQUESTS];

    out->cached = 0;
    for (uint32_t r = 0; r < count; r++) {
        requests[r] = (bt_play_request){prompts[r],      prompt_counts[r], ANSWER, &samplings[r],
                                        out->answers[r], out->logprobs[r], 0};
    }
    bt_play(engine, requests, count, how);
    for (uint32_t r = 0; r < count; r++) {
        out->cached += requests[r].cached;
    }
}

static void
expect_same(const streams *a, const streams *b, uint32_t count, const char *what)
{
    for (uint32_t r = 0; r < count; r++) {
        ck_assert_msg(memcmp(a->answers[r], b->answers[r], sizeof a->answers[r]) == 0, "%s: request %u differs", what,
                      r);
        ck_assert_msg(memcmp(a->logprobs[r], b->logprobs[r], sizeof a->logprobs[r]) == 0,
                      "%s: log-probabilities of request %u differ", what, r);
    }
}

static streams alone, other;

START_TEST(streams_do_not_depend_on_batch_chunk_or_prefix)
{
    static const bt_play_options hows[] = {{16, 512, false}, {64, 512, false}, {64, 64, false}, {16, 32, false},
                                           {1, 32, true},    {16, 512, true},  {5, 17, true}};

    for (int type = 0; type < 3; type++) {
        for (int kv = BT_KV_INT8; kv <= (type == 1 ? BT_KV_F32 : BT_KV_INT8); kv++) {
            bt_engine_options options = options_of(type);
            bt_engine *engine;

            options.kv_format = (bt_kv_format)kv;
            engine = bt_play_open(&options);
            play(engine, REQUESTS, &(bt_play_options){1, 512, false}, &alone);
            ck_assert_uint_eq(alone.cached, 0);
            for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
                char what[80];

                snprintf(what, sizeof what, "type %u kv %d batch %u chunk %u prefix %d", types[type], kv, hows[i].batch,
                         hows[i].chunk, hows[i].prefix);
                play(engine, REQUESTS, &hows[i], &other);
                ck_assert_msg(!hows[i].prefix || other.cached > 1000, "%s: only %u tokens cached", what, other.cached);
                expect_same(&alone, &other, REQUESTS, what);
            }
            bt_engine_close(engine);
        }
    }
}
END_TEST

START_TEST(streams_do_not_depend_on_threads_or_instruction_set)
{
    static const char *const isas[] = {"ref", "avx2", "avx512", "amx"};
    uint32_t count = 16, ran = 0;

    for (int type = 0; type < 3; type++) {
        bt_engine_options options = options_of(type);
        bt_engine *engine = bt_play_open(&options);

        play(engine, count, &(bt_play_options){1, 512, false}, &alone);
        bt_engine_close(engine);
        for (uint32_t i = 0; i < 8; i++) {
            bt_why why;

            options.device = (bt_device_options){.threads = 1 + i % 2 * 2, .isa = isas[i / 2]};
            if (bt_engine_open(&engine, &options, &why) == BT_ERR_UNSUPPORTED) {
                continue;
            }
            play(engine, count, &(bt_play_options){4, 96, false}, &other);
            expect_same(&alone, &other, count, isas[i / 2]);
            bt_engine_close(engine);
            ran++;
        }
    }
    ck_assert_uint_ge(ran, 6); // ref at least
}
END_TEST

// Scores a text in pieces of `chunk` tokens.
static void
score(bt_engine *engine, const int32_t *ids, uint32_t count, uint32_t chunk, bt_token_result *scored)
{
    uint32_t blocks[8] = {3, 1, 0, 2, 7, 6, 5, 4};
    bt_token_result drawn;

    for (uint32_t at = 0; at < count; at += chunk) {
        bt_batch_item item = {
            .ids = ids + at,
            .count = count - at < chunk ? count - at : chunk,
            .position = at,
            .blocks = blocks,
            .want = BT_LOGITS_ALL,
            .next_id = at + chunk < count ? ids[at + chunk] : -1,
        };

        ck_assert(bt_engine_step(engine, &item, 1, &(bt_step_result){&drawn, scored + at}) == BT_OK);
    }
}

START_TEST(scores_are_log_probabilities_whatever_the_chunks)
{
    bt_engine_options options = options_of(0);
    bt_token_result whole[100], parts[100];
    const float *logits;
    bt_engine *engine;
    uint32_t rows;
    double sum = 0;

    options.logit_rows_max = 100;
    engine = bt_play_open(&options);
    score(engine, prompts[1], 100, 33, parts);
    score(engine, prompts[1], 100, 100, whole);
    logits = bt_engine_logits(engine, &rows);
    ck_assert_uint_eq(rows, 100);
    for (uint32_t i = 0; i < 99; i++) {
        ck_assert_int_eq(whole[i].id, prompts[1][i + 1]);
        ck_assert(memcmp(&whole[i].logprob, &parts[i].logprob, 4) == 0);
    }
    for (uint32_t id = 0; id < BT_TINY_VOCAB; id++) {
        sum += exp((double)logits[40 * BT_TINY_VOCAB + id]);
    }
    ck_assert_double_eq_tol((double)whole[40].logprob,
                            (double)logits[40 * BT_TINY_VOCAB + (uint32_t)prompts[1][41]] - log(sum), 1e-5);
    bt_engine_close(engine);
}
END_TEST

START_TEST(a_batch_may_mix_scores_draws_and_chunks)
{
    bt_engine_options options = options_of(1);
    bt_token_result drawn[3] = {{.id = -7}, {.id = -7}, {.id = -7}}, scored[10], lone, lone_scored[10];
    uint32_t b0 = 0, b1 = 1, b2 = 2, rows;
    bt_batch_item items[3] = {
        {.ids = prompts[0], .count = 9, .blocks = &b0, .want = BT_LOGITS_LAST, .next_id = -1},
        {.ids = prompts[1], .count = 20, .blocks = &b1, .want = BT_LOGITS_NONE, .next_id = -1},
        {.ids = prompts[2], .count = 10, .blocks = &b2, .want = BT_LOGITS_ALL, .next_id = 5},
    };
    bt_engine *engine;

    options.logit_rows_max = 16;
    engine = bt_play_open(&options);
    ck_assert(bt_engine_step(engine, items, 3, &(bt_step_result){drawn, scored}) == BT_OK);
    bt_engine_logits(engine, &rows);
    ck_assert_uint_eq(rows, 11);
    ck_assert_int_eq(drawn[1].id, -7);
    for (uint32_t i = 0; i < 3; i += 2) {
        ck_assert(bt_engine_step(engine, &items[i], 1, &(bt_step_result){&lone, lone_scored}) == BT_OK);
        ck_assert_int_eq(drawn[i].id, lone.id);
    }
    for (uint32_t i = 0; i < 10; i++) {
        ck_assert_int_eq(scored[i].id, i < 9 ? prompts[2][i + 1] : 5);
        ck_assert(scored[i].logprob == lone_scored[i].logprob);
    }
    bt_engine_close(engine);
}
END_TEST

START_TEST(a_wrong_batch_is_refused_before_anything_runs)
{
    bt_engine_options options = options_of(0);
    bt_token_result drawn[2];
    bt_step_result result = {.drawn = drawn};
    uint32_t blocks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    int32_t ids[300] = {0};
    const bt_batch_item good = {.ids = ids, .count = 3, .blocks = blocks, .want = BT_LOGITS_LAST, .next_id = -1};
    bt_batch_item item = good;
    bt_engine *engine;

    options.max_sequences = 1;
    engine = bt_play_open(&options);
    ck_assert(bt_engine_step(engine, &item, 0, &result) == BT_ERR_INVALID);
    ck_assert(bt_engine_step(engine, (bt_batch_item[]){good, good}, 2, &result) == BT_ERR_TOO_LONG);
    item.count = 0;
    ck_assert(bt_engine_step(engine, &item, 1, &result) == BT_ERR_INVALID);
    item.count = 257;
    ck_assert(bt_engine_step(engine, &item, 1, &result) == BT_ERR_TOO_LONG);
    item = good;
    item.position = UINT32_MAX;
    ck_assert(bt_engine_step(engine, &item, 1, &result) == BT_ERR_TOO_LONG);
    item = good;
    item.want = BT_LOGITS_ALL; // three rows, and room for one
    ck_assert(bt_engine_step(engine, &item, 1, &result) == BT_ERR_TOO_LONG);
    ids[2] = BT_TINY_VOCAB;
    ck_assert(bt_engine_step(engine, &good, 1, &result) == BT_ERR_INVALID);
    ids[2] = -1;
    ck_assert(bt_engine_step(engine, &good, 1, &result) == BT_ERR_INVALID);
    ids[2] = 0;
    blocks[0] = bt_engine_kv_blocks(engine);
    ck_assert(bt_engine_step(engine, &good, 1, &result) == BT_ERR_INVALID);
    blocks[0] = 0;
    ck_assert(bt_engine_step(engine, &good, 1, &result) == BT_OK);
    bt_engine_close(engine);
}
END_TEST

START_TEST(logits_that_are_no_numbers_are_a_device_error_and_pass)
{
    bt_engine_options options = options_of(0);
    bt_engine *engine = bt_play_open(&options);
    float *norm = bt_engine_model(engine)->output_norm, kept = norm[0];
    uint32_t block = 0;
    bt_token_result drawn;
    bt_step_result result = {.drawn = &drawn};
    bt_batch_item item = {.ids = prompts[0], .count = 3, .blocks = &block, .want = BT_LOGITS_LAST, .next_id = -1};

    bt_log_set_level(BT_LOG_NONE);
    norm[0] = NAN;
    ck_assert(bt_engine_step(engine, &item, 1, &result) == BT_ERR_DEVICE);
    bt_log_set_level(BT_LOG_ERROR);
    norm[0] = kept;
    ck_assert(bt_engine_step(engine, &item, 1, &result) == BT_OK);
    bt_engine_close(engine);
}
END_TEST

START_TEST(a_plan_that_does_not_fit_names_the_part_and_the_figures)
{
    bt_engine_plan plan = {.weights = 50 << 20,
                           .scratch = 20 << 20,
                           .logits = 10 << 20,
                           .block_bytes = 1 << 20,
                           .blocks_wanted = 64,
                           .blocks_least = 4,
                           .memory_max = 100 << 20};
    bt_why why;

    ck_assert(bt_engine_plan_make(&plan, &why) == BT_OK);
    ck_assert_uint_eq(plan.blocks, 20); // what the rest holds, fewer than wanted
    ck_assert_uint_eq(plan.total, 100u << 20);
    plan.blocks_fixed = 21;
    ck_assert(bt_engine_plan_make(&plan, &why) == BT_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "KV") != NULL && strstr(why.text, "21 blocks") != NULL, "%s", why.text);
    plan.blocks_fixed = 0;
    plan.memory_max = 83 << 20;
    ck_assert(bt_engine_plan_make(&plan, &why) == BT_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "the KV cache does not fit") != NULL, "%s", why.text);
    plan.memory_max = 70 << 20;
    ck_assert(bt_engine_plan_make(&plan, &why) == BT_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "scratch and logits do not fit") != NULL, "%s", why.text);
    plan.memory_max = 40 << 20;
    ck_assert(bt_engine_plan_make(&plan, &why) == BT_ERR_NO_MEMORY);
    ck_assert_msg(strstr(why.text, "the weights do not fit") != NULL, "%s", why.text);
    ck_assert_msg(strstr(why.text, "50.0 MiB") != NULL && strstr(why.text, "40.0 MiB") != NULL, "%s", why.text);
    plan.memory_max = 0;
    plan.available = 1000u << 20;
    plan.spare = 100u << 20;
    ck_assert(bt_engine_plan_make(&plan, &why) == BT_OK);
    ck_assert_uint_eq(plan.blocks, 64);
    ck_assert_uint_gt(bt_engine_plan_available(), 1u << 20);
}
END_TEST

START_TEST(an_engine_that_cannot_be_says_why)
{
    bt_engine_options options = options_of(0);
    bt_engine *engine = NULL;
    bt_why why;

    options.memory_max = 100000;
    ck_assert(bt_engine_open(&engine, &options, &why) == BT_ERR_NO_MEMORY);
    options.memory_max = 0;
    options.max_sequences = 0;
    ck_assert(bt_engine_open(&engine, &options, &why) == BT_ERR_INVALID);
    options.max_sequences = 600; // more than a step holds
    ck_assert(bt_engine_open(&engine, &options, &why) == BT_ERR_INVALID);
    ck_assert_ptr_null(engine);
}
END_TEST

// The last tensor data of the file become NaNs, as a broken disk or a failed download leaves them.
typedef struct {
    int calls;
    bt_err err;
    uint8_t *memory;
    size_t bytes;
} lender;

static bt_err
lend(void *arg, bt_device *device, const bt_kv_layout *layout, uint32_t blocks, uint8_t **memory, bt_why *why)
{
    lender *l = arg;

    (void)device;
    l->calls++;
    if (l->err != BT_OK) {
        return bt_fail(why, l->err, "no memory to lend");
    }
    l->bytes = layout->block_bytes * blocks;
    l->memory = bt_alloc_pages(l->bytes);
    *memory = l->memory;
    return l->memory != NULL ? BT_OK : BT_ERR_NO_MEMORY;
}

START_TEST(the_pool_may_be_the_callers_memory)
{
    bt_engine_options options = options_of(0);
    lender l = {0};
    bt_engine *engine = NULL;
    bt_why why;

    options.kv_blocks = 40;
    engine = bt_play_open(&options);
    play(engine, 4, &(bt_play_options){4, 512, false}, &alone);
    bt_engine_close(engine);
    options.kv_pool = lend;
    options.kv_pool_arg = &l;
    engine = bt_play_open(&options);
    ck_assert_int_eq(l.calls, 1);
    ck_assert_uint_eq(l.bytes, 40 * bt_engine_kv_layout(engine)->block_bytes);
    ck_assert_ptr_eq(bt_engine_kv_pool(engine), l.memory);
    play(engine, 4, &(bt_play_options){4, 512, false}, &other);
    expect_same(&alone, &other, 4, "lent memory");
    bt_engine_close(engine);
    l.memory[l.bytes - 1] = 1; // still there, and ours
    bt_free_pages(l.memory, l.bytes);
    l.err = BT_ERR_UNSUPPORTED;
    engine = NULL;
    ck_assert_int_eq(bt_engine_open(&engine, &options, &why), BT_ERR_UNSUPPORTED);
    ck_assert_str_eq(why.text, "no memory to lend");
    ck_assert_ptr_null(engine);
}
END_TEST

START_TEST(weights_that_are_no_numbers_name_the_file)
{
    bt_engine_options options = options_of(0);
    bt_engine *engine = NULL;
    char path[64];
    size_t bytes;
    char *file = bt_test_tiny_gguf(BT_TINY_F32, &bytes);
    FILE *out;
    bt_why why = {""};

    snprintf(path, sizeof path, "/tmp/bt-test-engine-%d-nan.gguf", (int)getpid());
    memset(file + bytes / 2, 0xff, bytes - bytes / 2);
    out = fopen(path, "wb");
    ck_assert(out != NULL && fwrite(file, 1, bytes, out) == bytes && fclose(out) == 0);
    bt_log_set_level(BT_LOG_NONE);
    options.model = (bt_model_options){.path = path};
    options.kv_format = BT_KV_F32;
    ck_assert_int_eq(bt_engine_open(&engine, &options, &why), BT_ERR_INVALID);
    bt_log_set_level(BT_LOG_ERROR);
    ck_assert_msg(strstr(why.text, path) != NULL, "%s", why.text);
    unlink(path);
    free(file);
}
END_TEST

START_TEST(open_survives_every_failing_allocation)
{
    bt_engine_options options = options_of(1);
    long live = bt_mem_live();

    bt_log_set_level(BT_LOG_NONE);
    options.max_sequences = 2;
    for (long nth = 1;; nth += 1 + nth / 12) { // the loader makes many: its own tests take each
        bt_engine *engine = NULL;
        bt_why why;
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_engine_open(&engine, &options, &why);
        bt_mem_fail_nth(0);
        ck_assert((err == BT_OK) == (engine != NULL));
        bt_engine_close(engine);
        ck_assert_int_eq(bt_mem_live(), live);
        ck_assert_msg(err == BT_OK || err == BT_ERR_NO_MEMORY, "allocation %ld: %s", nth, why.text);
        if (err == BT_OK) {
            ck_assert_int_gt(nth, 10);
            break;
        }
    }
    bt_log_set_level(BT_LOG_ERROR);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("engine");
    TCase *all = tcase_create("all");

    tcase_add_unchecked_fixture(all, setup, teardown);
    tcase_add_test(all, streams_do_not_depend_on_batch_chunk_or_prefix);
    tcase_add_test(all, streams_do_not_depend_on_threads_or_instruction_set);
    tcase_add_test(all, scores_are_log_probabilities_whatever_the_chunks);
    tcase_add_test(all, a_batch_may_mix_scores_draws_and_chunks);
    tcase_add_test(all, a_wrong_batch_is_refused_before_anything_runs);
    tcase_add_test(all, logits_that_are_no_numbers_are_a_device_error_and_pass);
    tcase_add_test(all, a_plan_that_does_not_fit_names_the_part_and_the_figures);
    tcase_add_test(all, an_engine_that_cannot_be_says_why);
    tcase_add_test(all, the_pool_may_be_the_callers_memory);
    tcase_add_test(all, weights_that_are_no_numbers_name_the_file);
    tcase_add_test(all, open_survives_every_failing_allocation);
    tcase_set_timeout(all, 250);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
