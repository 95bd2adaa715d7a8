// The sampler: exact against a naive twin that sorts everything, and honest against the probabilities it stands for.
#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/row.h"
#include "common/engine/sample.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB_MAX 6000

static float row[VOCAB_MAX];
static void *scratch;
static size_t scratch_bytes;

static void
setup(void)
{
    scratch_bytes = bt_sample_scratch_bytes(VOCAB_MAX);
    scratch = bt_alloc_pages(scratch_bytes);
}

static void
teardown(void)
{
    bt_free_pages(scratch, scratch_bytes);
}

static const bt_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

static bt_token_result
sampled(const bt_sampling *sampling, uint32_t vocab, uint32_t position)
{
    bt_sample_args args = {.logits = row, .vocab = vocab, .sampling = sampling, .position = position};
    bt_token_result out = {.id = -1};

    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    return out;
}

// Gaussian-like logits, some equal, some missing.
static void
draw_row(bt_rng *rng, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab; i++) {
        float sum = 0;

        for (int k = 0; k < 6; k++) {
            sum += bt_rng_float(rng);
        }
        row[i] = (sum - 3) * 6;
        switch (bt_rng_below(rng, 40)) {
        case 0:
            row[i] = NAN;
            break;
        case 1:
            row[i] = roundf(row[i]);
            break;
        case 2:
            row[i] = INFINITY;
            break;
        case 3:
            row[i] = -INFINITY;
            break;
        default:
            break;
        }
    }
    row[bt_rng_below(rng, vocab)] = 3;
}

// The naive twin: sort all, filter in plain loops, then the largest noisy score.
static int
compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    if (row[x] != row[y]) {
        return row[x] > row[y] ? -1 : 1;
    }
    return x < y ? -1 : 1;
}

static int32_t
twin(const bt_sampling *s, uint32_t vocab, uint32_t position)
{
    static int32_t ids[VOCAB_MAX];
    float inverse_t = 1.0f / s->temperature, max, best = -INFINITY;
    uint64_t key = bt_noise_key(s->seed, position), total = 0, sum = 0;
    uint32_t count = 0, kept;
    int32_t winner = -1;

    for (uint32_t i = 0; i < vocab; i++) {
        if (isfinite(row[i])) {
            ids[count++] = (int32_t)i;
        }
    }
    qsort(ids, count, sizeof *ids, compare_ids);
    max = row[ids[0]];
    if (s->top_k > 0 && s->top_k < count) {
        count = s->top_k;
    }
    for (kept = count; s->min_p > 0 && kept > 1; kept--) {
        if (expf((row[ids[kept - 1]] - max) * inverse_t) >= s->min_p) {
            break;
        }
    }
    count = kept;
    for (uint32_t i = 0; i < count; i++) {
        total += bt_row_mass_of(row[ids[i]], max, inverse_t);
    }
    for (kept = 0; kept < count && (kept == 0 || (double)sum < (double)total * (double)s->top_p); kept++) {
        sum += bt_row_mass_of(row[ids[kept]], max, inverse_t);
    }
    count = s->top_p < 1 ? kept : count;
    for (uint32_t i = 0; i < count; i++) {
        float score = (row[ids[i]] - max) * inverse_t + bt_noise(key, ids[i]);

        if (score > best || (score == best && ids[i] < winner)) {
            best = score;
            winner = ids[i];
        }
    }
    return winner;
}

START_TEST(every_filter_draws_what_the_naive_twin_draws)
{
    static const uint32_t vocabs[] = {1, 2, 63, 64, 65, 300, 1024, 1025, 5000};
    static const float shares[] = {1, 0.999f, 0.95f, 0.5f, 0.01f, 0}, minima[] = {0, 1e-6f, 0.05f, 0.9f, 1, 2};
    static const uint32_t tops[] = {0, 1, 2, 40, 1000, 4000};
    static const float temperatures[] = {0.1f, 0.7f, 1, 5, 100};
    uint32_t wrong = 0;

    for (uint64_t seed = 1; seed <= 4000; seed++) {
        bt_rng rng = {seed};
        uint32_t vocab = vocabs[bt_rng_below(&rng, 9)];
        bt_sampling s = plain;

        s.top_p = shares[bt_rng_below(&rng, 6)];
        s.min_p = minima[bt_rng_below(&rng, 6)];
        s.top_k = tops[bt_rng_below(&rng, 6)];
        s.temperature = temperatures[bt_rng_below(&rng, 5)];
        s.seed = bt_rng_next(&rng);
        draw_row(&rng, vocab);
        if (sampled(&s, vocab, (uint32_t)seed).id != twin(&s, vocab, (uint32_t)seed)) {
            printf("seed %llu differs\n", (unsigned long long)seed);
            wrong++;
        }
    }
    ck_assert_uint_eq(wrong, 0);
}
END_TEST

// χ² of draws against probabilities; bins expected below 5 are pooled. p < 0.0001 fails.
static double
chi_square(const uint32_t *drawn, const double *p, uint32_t vocab, uint32_t draws, uint32_t *bins)
{
    double sum = 0, rest_p = 0, rest = 0;

    *bins = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double expected = p[i] * draws;

        if (expected < 5) {
            rest_p += p[i];
            rest += drawn[i];
        } else {
            sum += (drawn[i] - expected) * (drawn[i] - expected) / expected;
            ++*bins;
        }
    }
    if (rest_p * draws >= 5) {
        sum += (rest - rest_p * draws) * (rest - rest_p * draws) / (rest_p * draws);
        ++*bins;
    }
    return sum;
}

START_TEST(draws_follow_the_probabilities)
{
    enum { VOCAB = 200, DRAWS = 100000 };
    static uint32_t drawn[VOCAB];
    static double p[VOCAB];

    for (uint32_t variant = 0; variant < 4; variant++) {
        bt_sampling s = plain;
        double total = 0, chi;
        uint32_t bins;
        bt_rng rng = {variant + 10};

        s.temperature = variant == 1 ? 0.5f : 1.5f;
        s.top_k = variant == 2 ? 20 : 0;
        memset(drawn, 0, sizeof drawn);
        for (uint32_t i = 0; i < VOCAB; i++) {
            row[i] = bt_rng_float(&rng) * 8 - (float)(variant == 2 && i >= 20) * 100;
            total += p[i] = exp((double)row[i] / (double)s.temperature);
        }
        for (uint32_t i = 0; i < VOCAB; i++) {
            p[i] /= total;
        }
        for (uint32_t n = 0; n < DRAWS; n++) {
            // Either the position moves or the seed does: both must give fresh noise.
            s.seed = variant == 3 ? n : 77;
            drawn[sampled(&s, VOCAB, variant == 3 ? 5 : n).id]++;
        }
        chi = chi_square(drawn, p, VOCAB, DRAWS, &bins);
        ck_assert_msg(chi < bins - 1 + 3.72 * sqrt(2.0 * (bins - 1)) + 10, "variant %u: chi2 %.1f for %u bins", variant,
                      chi, bins);
        ck_assert_uint_gt(bins, 10);
    }
}
END_TEST

START_TEST(a_draw_depends_on_seed_and_position_and_on_nothing_else)
{
    bt_sampling s = plain;
    bt_rng rng = {5};
    uint32_t same_seed = 0, same_position = 0;

    draw_row(&rng, 1000);
    s.temperature = 3;
    for (uint32_t n = 0; n < 200; n++) {
        int32_t id;

        s.seed = 1;
        id = sampled(&s, 1000, n).id;
        ck_assert_int_eq(sampled(&s, 1000, n).id, id);
        same_position += sampled(&s, 1000, n + 1).id == id;
        s.seed = 2;
        same_seed += sampled(&s, 1000, n).id == id;
    }
    ck_assert_uint_lt(same_seed, 40);
    ck_assert_uint_lt(same_position, 40);
}
END_TEST

START_TEST(greedy_takes_the_lowest_id_of_the_largest)
{
    for (uint32_t i = 0; i < 500; i++) {
        row[i] = -1;
    }
    row[300] = 0.0f;
    row[200] = -0.0f;
    row[100] = NAN;
    row[400] = 0.0f;
    ck_assert_int_eq(sampled(NULL, 500, 0).id, 200);
    row[499] = 1;
    ck_assert_int_eq(sampled(NULL, 500, 0).id, 499);
    ck_assert_int_eq(sampled(&(bt_sampling){.top_p = 1, .repetition_penalty = 1}, 500, 0).id, 499);
}
END_TEST

START_TEST(a_row_of_nothing_but_nan_is_a_device_error)
{
    bt_sample_args args = {.logits = row, .vocab = 100};
    bt_token_result out = {.id = -5};

    for (uint32_t i = 0; i < 100; i++) {
        row[i] = NAN;
    }
    ck_assert(bt_sample(&args, scratch, &out) == BT_ERR_DEVICE);
    ck_assert(bt_sample_score(row, 100, 3, 0, scratch, &out) == BT_ERR_DEVICE);
    ck_assert_int_eq(out.id, -5);
    row[7] = -1000;
    ck_assert_int_eq(sampled(NULL, 100, 0).id, 7);
    ck_assert_int_eq(sampled(&plain, 100, 0).id, 7);
}
END_TEST

START_TEST(logprobs_are_of_the_raw_logits)
{
    bt_sampling s = plain;
    bt_rng rng = {3};
    bt_token_result out;
    double sum = 0;

    for (uint32_t i = 0; i < 5000; i++) {
        row[i] = bt_rng_float(&rng) * 20;
        sum += exp((double)row[i]);
    }
    row[17] = row[18] = 19.99995f;
    s.temperature = 0.3f;
    s.bias_count = 1;
    s.bias_ids[0] = 42;
    s.bias_values[0] = 100;
    s.logprobs = true;
    s.top_logprobs = 20;
    sum = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        sum += exp((double)row[i]);
    }
    out = sampled(&s, 5000, 1);
    ck_assert_int_eq(out.id, 42);
    ck_assert_double_eq_tol((double)out.logprob, (double)row[42] - log(sum), 2e-6);
    ck_assert_uint_eq(out.top_count, 20);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_double_eq_tol((double)out.top_logprobs[i], (double)row[out.top_ids[i]] - log(sum), 2e-6);
        ck_assert(i == 0 || out.top_logprobs[i] < out.top_logprobs[i - 1] ||
                  (out.top_logprobs[i] == out.top_logprobs[i - 1] && out.top_ids[i] > out.top_ids[i - 1]));
    }
    for (uint32_t i = 0; i < 5000; i++) { // nothing better was left out
        ck_assert(row[i] <= row[out.top_ids[19]] || (double)row[i] - log(sum) >= (double)out.top_logprobs[19] - 1e-5);
    }
}
END_TEST

START_TEST(penalties_and_bias_change_the_draw_as_their_formulas_say)
{
    static const int32_t history[] = {1, 1, 2, 3, 3, 4};
    bt_sampling s = {.top_p = 1, .repetition_penalty = 2, .frequency_penalty = 0.5f, .presence_penalty = 0.25f};
    bt_sample_args args = {
        .logits = row, .vocab = 8, .sampling = &s, .history = history, .history_count = 6, .prompt_count = 3};
    // After: 1 → 10/2; 2 → −3·2; 3 (twice in the answer) → 14/2 − 1 − 0.25; 4 → 12/2 − 0.75; 7 unseen
    static const float before[] = {0, 10, -3, 14, 12, -9, -9, 5.4f};
    bt_token_result out;

    memset(scratch, 0, scratch_bytes); // of another vocabulary until now
    memcpy(row, before, sizeof before);
    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    ck_assert_int_eq(out.id, 3); // 5.75 > 5.4 > 5.25 > 5
    row[7] = 5.8f;
    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    ck_assert_int_eq(out.id, 7);
    row[7] = 5.4f;
    s.frequency_penalty = 0.75f; // 3 → 5.25
    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    ck_assert_int_eq(out.id, 7);
    s.bias_count = 1;
    s.bias_ids[0] = 5;
    s.bias_values[0] = 100;
    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    ck_assert_int_eq(out.id, 5);
    ck_assert_mem_eq(row, before, sizeof before - 4);
}
END_TEST

START_TEST(an_end_that_is_ignored_is_never_drawn)
{
    static const int32_t ends[] = {2, 5};
    bt_sampling s = {.top_p = 1, .ignore_eos = true};
    bt_sample_args args = {.logits = row, .vocab = 8, .sampling = &s, .ends = ends, .end_count = 2};
    bt_token_result out;

    memset(row, 0, sizeof row);
    row[2] = row[5] = 50;
    row[6] = 1;
    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    ck_assert_int_eq(out.id, 6);
    s.ignore_eos = false;
    ck_assert(bt_sample(&args, scratch, &out) == BT_OK);
    ck_assert_int_eq(out.id, 2);
}
END_TEST

// What a device does with a bt_draw, in plain words.
static int32_t
draw_plainly(const bt_draw *d, uint32_t vocab)
{
    float max = bt_row_max(row, vocab);

    return d->inverse_t == 0 ? (int32_t)bt_row_find(row, vocab, max)
                             : bt_row_draw(row, vocab, max, d->inverse_t, d->key);
}

START_TEST(what_a_device_is_told_to_draw_is_what_the_host_draws)
{
    bt_rng rng = {5};
    bt_draw d;

    for (uint32_t i = 0; i < 200; i++) {
        bt_sampling s = plain;

        draw_row(&rng, 500);
        s.temperature = i % 3 == 0 ? 0 : bt_rng_float(&rng) * 2;
        s.seed = i;
        ck_assert(bt_sample_as_draw(&s, 500, i, true, &d));
        ck_assert_int_eq(draw_plainly(&d, 500), sampled(&s, 500, i).id);
    }
    ck_assert(bt_sample_as_draw(NULL, 500, 0, false, &d) && d.inverse_t == 0 && !d.no_end);
}
END_TEST

START_TEST(what_changes_the_row_is_not_left_to_a_device)
{
    bt_sampling s[8];
    bt_draw d;

    for (int i = 0; i < 8; i++) {
        s[i] = plain;
    }
    s[0].top_p = 0.9f;
    s[1].top_k = 10;
    s[2].min_p = 0.1f;
    s[3].repetition_penalty = 1.1f;
    s[4].presence_penalty = 0.5f;
    s[5].bias_count = 1;
    s[6].logprobs = true;
    s[7].top_logprobs = 2;
    for (int i = 0; i < 8; i++) {
        ck_assert_msg(!bt_sample_as_draw(&s[i], 500, 0, true, &d), "setting %d", i);
    }
    ck_assert(bt_sample_as_draw(&s[3], 500, 0, false, &d)); // no history, no penalty
}
END_TEST

START_TEST(the_functions_below_are_what_they_are_called)
{
    bt_rng rng = {9};
    double mean = 0;

    for (uint32_t i = 0; i < 2000; i++) {
        double x = exp((double)bt_rng_float(&rng) * 200 - 100), d = -22.0 * (double)bt_rng_float(&rng);

        ck_assert_double_eq_tol(bt_row_log(x), log(x), 1e-13);
        ck_assert_double_eq_tol((double)bt_row_mass_of((float)d, 0, 1) * 0x1p-30, exp((double)(float)d), 3e-7);
        mean += (double)bt_noise(bt_noise_key(1, i), 7) / 2000;
    }
    ck_assert_double_eq_tol(mean, 0.5772, 0.1); // Euler's constant, within 3.5 standard errors
    ck_assert_double_eq(bt_row_log(1), 0);
    ck_assert_uint_eq(bt_row_mass_of(5, 5, 3), 1u << 30);
    for (uint32_t i = 0; i < 1000; i++) { // candidates order as their logits do
        float a = (bt_rng_float(&rng) - 0.5f) * 100, b = i % 10 == 0 ? a : (bt_rng_float(&rng) - 0.5f) * 100;

        ck_assert(bt_candidate_logit(bt_candidate_of(a, 3)) == a);
        ck_assert((bt_candidate_of(a, 3) > bt_candidate_of(b, 4)) == (a >= b));
        ck_assert_int_eq(bt_candidate_id(bt_candidate_of(a, (int32_t)i)), (int32_t)i);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sample");
    TCase *all = tcase_create("all");

    tcase_add_unchecked_fixture(all, setup, teardown);
    tcase_add_test(all, every_filter_draws_what_the_naive_twin_draws);
    tcase_add_test(all, draws_follow_the_probabilities);
    tcase_add_test(all, a_draw_depends_on_seed_and_position_and_on_nothing_else);
    tcase_add_test(all, greedy_takes_the_lowest_id_of_the_largest);
    tcase_add_test(all, a_row_of_nothing_but_nan_is_a_device_error);
    tcase_add_test(all, logprobs_are_of_the_raw_logits);
    tcase_add_test(all, penalties_and_bias_change_the_draw_as_their_formulas_say);
    tcase_add_test(all, an_end_that_is_ignored_is_never_drawn);
    tcase_add_test(all, what_a_device_is_told_to_draw_is_what_the_host_draws);
    tcase_add_test(all, what_changes_the_row_is_not_left_to_a_device);
    tcase_add_test(all, the_functions_below_are_what_they_are_called);
    tcase_set_timeout(all, 120);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
