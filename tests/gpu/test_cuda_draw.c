// The GPU draws the tokens that the host's sampler draws, also in a step that it remembers.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/sample.h"
#include "kernels/ops.h"
#include "tests/gpu/gpu.h"
#include "tests/support/test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 24
#define VOCAB_MAX 151936u

static const uint32_t vocabs[] = {1, 15, 17, 300, 1024, 49157, 128256, VOCAB_MAX};

// Gaussian-like, some alike, some no numbers; the last row of three has many of its largest.
static void
fill_logits(bt_rng *rng, float *logits, uint32_t vocab)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        float *out = logits + (size_t)row * vocab, most = row % 3 == 2 ? 3.0f : 40.0f;

        for (uint32_t i = 0; i < vocab; i++) {
            float x = (bt_rng_float(rng) + bt_rng_float(rng) + bt_rng_float(rng) - 1.5f) * 14;
            uint64_t chance = bt_rng_below(rng, 50);

            x = x < most ? x : most;
            out[i] = chance == 0 ? NAN : chance == 1 ? INFINITY : chance == 2 ? -INFINITY : chance == 3 ? -0.0f : x;
        }
        out[bt_rng_below(rng, vocab)] = 2;
    }
}

static void
fill_samplings(bt_rng *rng, bt_sampling *samplings, float largest)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        samplings[row] = (bt_sampling){.temperature = row % 4 == 0 ? 0 : bt_rng_float(rng) * largest,
                                       .top_p = 1,
                                       .repetition_penalty = 1,
                                       .seed = bt_rng_next(rng),
                                       .ignore_eos = row % 2 == 0};
    }
}

typedef struct {
    bt_device *device;
    uint32_t vocab;
    float *logits, *on_device;
    bt_sampling samplings[ROWS];
    int32_t ends[5];
    void *scratch;
    bool known;
} world;

static void
open_world(world *w, uint32_t vocab)
{
    bt_device_limits limits = {.tokens = ROWS,
                               .sequences = ROWS,
                               .logit_rows = ROWS,
                               .cols = 64,
                               .rows = 64,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .context = 64,
                               .block_tokens = 32};

    *w = (world){.vocab = vocab};
    bt_gpu_open(&w->device, &limits);
    w->logits = calloc((size_t)ROWS * vocab, sizeof(float));
    w->on_device = bt_device_alloc(w->device, (size_t)ROWS * vocab * sizeof(float));
    w->scratch = bt_alloc_pages(bt_sample_scratch_bytes(vocab));
    ck_assert(w->logits != NULL && w->on_device != NULL && w->scratch != NULL);
}

static void
close_world(world *w)
{
    bt_device_free(w->device, w->on_device, (size_t)ROWS * w->vocab * sizeof(float));
    bt_device_close(w->device);
    bt_free_pages(w->scratch, bt_sample_scratch_bytes(w->vocab));
    free(w->logits);
}

// A step of ROWS sequences with one token each, of which nothing is computed but the draws. `drawn` NULL: it does not come to its end.
static void
step(world *w, uint32_t position, int32_t drawn[ROWS])
{
    const bt_ops *ops = bt_device_ops(w->device);
    int32_t ids[ROWS] = {0};
    uint32_t positions[ROWS] = {0}, rows[ROWS], block = 0;
    bt_attention_span spans[ROWS];
    bt_draw draws[ROWS];
    bt_step_args args = {.ids = ids,
                         .positions = positions,
                         .tokens = ROWS,
                         .spans = spans,
                         .span_count = ROWS,
                         .rows = rows,
                         .row_count = ROWS,
                         .draws = draws,
                         .ends = w->ends,
                         .end_count = w->vocab > 300 ? 5 : 0};
    bt_draw_args draw = {w->on_device, w->vocab, w->vocab, ROWS};

    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = i;
        spans[i] = (bt_attention_span){i, 1, 0, &block};
        ck_assert(bt_sample_as_draw(&w->samplings[i], w->vocab, position, false, &draws[i]));
    }
    ck_assert_int_eq(bt_device_write(w->device, w->on_device, w->logits, (size_t)ROWS * w->vocab * sizeof(float)),
                     BT_OK);
    ck_assert_int_eq(ops->begin(w->device, &args, &w->known), BT_OK);
    if (!w->known) {
        ck_assert_int_eq(ops->draw(w->device, &draw), BT_OK);
    }
    if (drawn == NULL) {
        return;
    }
    ck_assert_int_eq(ops->end(w->device), BT_OK);
    memcpy(drawn, ops->drawn(w->device), ROWS * sizeof *drawn);
}

static int32_t
host_draw(world *w, uint32_t row, uint32_t position)
{
    bt_sample_args args = {.logits = w->logits + (size_t)row * w->vocab,
                           .vocab = w->vocab,
                           .sampling = &w->samplings[row],
                           .position = position,
                           .ends = w->ends,
                           .end_count = w->vocab > 300 ? 5 : 0};
    bt_token_result out;

    return bt_sample(&args, w->scratch, &out) == BT_OK ? out.id : -1;
}

START_TEST(every_draw_is_the_hosts)
{
    static const float largest[] = {0.5f, 2, 1e4f};
    bt_rng rng = {(uint64_t)_i + 1};
    world w;

    open_world(&w, vocabs[_i]);
    for (uint32_t round = 0; round < (bt_gpu_whole() ? 12u : 4u); round++) {
        int32_t drawn[ROWS];

        fill_logits(&rng, w.logits, w.vocab);
        fill_samplings(&rng, w.samplings, largest[round % 3]);
        for (uint32_t row = 0; row < ROWS && round % 4 == 2; row++) { // all greedy: a shape of its own
            w.samplings[row].temperature = 0;
        }
        for (int i = 0; i < 5; i++) {
            w.ends[i] = (int32_t)bt_rng_below(&rng, w.vocab);
        }
        if (round % 4 == 3) { // an end that would win, and a row without a number
            w.logits[(size_t)2 * w.vocab + (uint32_t)w.ends[1]] = 1000;
            for (uint32_t i = 0; i < w.vocab; i++) {
                w.logits[(size_t)3 * w.vocab + i] = i % 2 == 0 ? NAN : -INFINITY;
            }
        }
        step(&w, round, drawn);
        ck_assert_int_eq(w.known, round != 0 && round != 2); // a remembered step takes its draws from the step's memory
        for (uint32_t row = 0; row < ROWS; row++) {
            int32_t expected = host_draw(&w, row, round);

            ck_assert_msg(drawn[row] == expected,
                          "vocabulary %u, round %u, row %u at temperature %g: %d, the host drew %d", w.vocab, round,
                          row, (double)w.samplings[row].temperature, drawn[row], expected);
        }
    }
    close_world(&w);
}
END_TEST

// An operation failed: the step is not ended, and what was recorded until then is none.
START_TEST(after_a_step_that_failed_half_way_the_next_is_recorded_anew)
{
    bt_rng rng = {7};
    world w;
    float back;

    open_world(&w, vocabs[0]);
    fill_samplings(&rng, w.samplings, 1);
    for (uint32_t round = 0; round < 4; round++) {
        int32_t drawn[ROWS];

        fill_logits(&rng, w.logits, w.vocab);
        if (round == 0 || round == 3) { // while it is recorded, and as it is known
            step(&w, round, NULL);
            ck_assert_int_eq(w.known, round != 0);
            ck_assert_int_eq(bt_device_read(w.device, &back, w.on_device, sizeof back), BT_OK);
            ck_assert(memcmp(&back, w.logits, sizeof back) == 0);
        }
        step(&w, round, drawn);
        ck_assert_int_eq(w.known, round != 0);
        for (uint32_t row = 0; row < ROWS; row++) {
            ck_assert_int_eq(drawn[row], host_draw(&w, row, round));
        }
    }
    close_world(&w);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda_draw");
    TCase *tests = tcase_create("draw");

    bt_log_set_level(BT_LOG_WARN);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, every_draw_is_the_hosts, 0, (int)(sizeof vocabs / sizeof *vocabs));
    tcase_add_test(tests, after_a_step_that_failed_half_way_the_next_is_recorded_anew);
    suite_add_tcase(suite, tests);
    return bt_gpu_run(suite);
}
