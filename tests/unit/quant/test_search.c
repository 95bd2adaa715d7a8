#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/quant/search.h"
#include "common/tensor/dtype.h"

#include <math.h>
#include <stdlib.h>

#define ROWS 64
#define COLS 576 // four and a half blocks of 128

static const bt_format q4 = {BT_WEIGHT_INT, 4, false, 128, 128};
static const bt_format w8 = {BT_WEIGHT_INT, 8, false, BT_BLOCK_ROW, BT_BLOCK_ROW};

static float weights[ROWS * COLS], importance[COLS];
static uint8_t codes[ROWS * COLS];
static uint16_t scales[ROWS * 8];
static bt_outlier outliers[ROWS * COLS / 100];

// A bell of a kind, with a few columns that matter much more and a few large weights.
static void
draw(uint64_t seed)
{
    bt_rng rng = {seed};

    for (int i = 0; i < ROWS * COLS; i++) {
        float sum = 0;

        for (int k = 0; k < 6; k++) {
            sum += bt_rng_float(&rng) - 0.5f;
        }
        weights[i] = sum * 0.05f * (bt_rng_below(&rng, 500) == 0 ? 8.0f : 1.0f);
    }
    for (int j = 0; j < COLS; j++) {
        importance[j] = bt_rng_below(&rng, 20) == 0 ? 50.0f : 0.5f + bt_rng_float(&rng);
    }
}

static float
value(bt_format format, int row, int col)
{
    int block = format.block != BT_BLOCK_ROW ? col / format.block : 0;
    uint32_t blocks = bt_format_blocks(format, COLS);

    return bt_f16_to_f32(scales[row * (int)blocks + block]) *
           (float)(codes[row * COLS + col] - (1 << (format.bits - 1)));
}

static double
weighted_error(bt_format format, size_t outlier_count)
{
    double error = 0;

    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < COLS; j++) {
            double delta = 0;

            for (size_t i = 0; i < outlier_count; i++) {
                if (outliers[i].row == r && (int)outliers[i].col == j) {
                    delta = (double)bt_f16_to_f32(outliers[i].delta);
                }
            }
            error +=
                (double)importance[j] * pow((double)weights[r * COLS + j] - (double)value(format, r, j) - delta, 2);
        }
    }
    return error;
}

// The same by rounding to nearest with scale = largest / −8.
static double
plain_error(void)
{
    double error = 0;

    for (int r = 0; r < ROWS; r++) {
        for (int at = 0; at < COLS; at += 128) {
            int n = COLS - at < 128 ? COLS - at : 128;
            float largest = 0, scale;

            for (int j = 0; j < n; j++) {
                float x = weights[r * COLS + at + j];

                largest = fabsf(x) > fabsf(largest) ? x : largest;
            }
            scale = largest / -8;
            for (int j = 0; j < n; j++) {
                float x = weights[r * COLS + at + j], q = rintf(x / scale);

                q = q > 7 ? 7 : q < -8 ? -8 : q;
                error += (double)importance[at + j] * pow((double)(x - q * scale), 2);
            }
        }
    }
    return error;
}

static size_t
search(bt_format format, float share)
{
    bt_search s = {.format = format, .cols = COLS, .importance = importance, .outlier_share = share};
    size_t count = 0;

    ck_assert_uint_le(bt_search_outliers_max(&s), sizeof outliers / sizeof *outliers);
    ck_assert_int_eq(bt_search_rows(&s, weights, ROWS, COLS, codes, scales, outliers, &count), BT_OK);
    return count;
}

START_TEST(searched_scales_beat_rounding_to_nearest_and_outliers_beat_both)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        double plain, searched, with_outliers;
        size_t count;

        draw(seed);
        plain = plain_error();
        ck_assert_uint_eq(search(q4, 0), 0);
        searched = weighted_error(q4, 0);
        count = search(q4, 0.002f);
        with_outliers = weighted_error(q4, count);
        ck_assert_msg(searched < 0.8 * plain, "seed %lu: %g of %g", seed, searched, plain);
        ck_assert_msg(with_outliers < 0.8 * searched, "seed %lu: %g of %g", seed, with_outliers, searched);
    }
}
END_TEST

START_TEST(without_a_search_weights_are_rounded_to_nearest)
{
    bt_search s = {.format = q4, .cols = COLS, .importance = importance, .hasty = true};
    size_t count = 1;

    draw(2);
    ck_assert_int_eq(bt_search_rows(&s, weights, ROWS, COLS, codes, scales, outliers, &count), BT_OK);
    ck_assert_uint_eq(count, 0);
    ck_assert_double_eq_tol(weighted_error(q4, 0), plain_error(), 0.02 * plain_error()); // scales are fp16 here
}
END_TEST

START_TEST(outliers_come_in_order_and_at_most_their_share)
{
    size_t count;

    draw(7);
    count = search(q4, 0.002f);
    ck_assert_uint_gt(count, 0);
    ck_assert_uint_le(count, (size_t)(0.002 * ROWS * COLS));
    for (size_t i = 1; i < count; i++) {
        ck_assert(outliers[i - 1].row < outliers[i].row ||
                  (outliers[i - 1].row == outliers[i].row && outliers[i - 1].col < outliers[i].col));
    }
}
END_TEST

START_TEST(a_row_of_large_weights_gets_at_most_four_times_its_share)
{
    bt_search s = {.format = q4, .cols = COLS, .outlier_share = 0.002f};
    size_t count, most = bt_search_outliers_of_row(&s), of_row[ROWS] = {0};

    ck_assert_uint_eq(most, 5); // 0.002 · 576 · 4 = 4.6
    draw(8);
    for (int j = 0; j < COLS; j++) {
        weights[3 * COLS + j] *= 40;
        weights[9 * COLS + j] = j % 2 == 0 ? 30 : -11; // many errors are alike
    }
    count = search(q4, 0.002f);
    for (size_t i = 0; i < count; i++) {
        of_row[outliers[i].row]++;
    }
    ck_assert_uint_eq(of_row[3], most);
    ck_assert_uint_eq(of_row[9], most);
    ck_assert_uint_eq(count, (size_t)(0.002 * ROWS * COLS)); // the others got what these two did not
    for (int r = 0; r < ROWS; r++) {
        ck_assert_uint_le(of_row[r], most);
    }
}
END_TEST

START_TEST(eight_bits_a_row_keep_every_weight_within_a_step)
{
    draw(3);
    search(w8, 0);
    for (int r = 0; r < ROWS; r++) {
        float step = fabsf(bt_f16_to_f32(scales[r]));

        for (int j = 0; j < COLS; j++) {
            ck_assert(fabsf(weights[r * COLS + j] - value(w8, r, j)) <=
                      6 * step); // the largest may be clipped a little
        }
    }
    ck_assert(weighted_error(w8, 0) < 1e-3 * plain_error() * 16);
}
END_TEST

START_TEST(zeros_and_numbers_that_are_not_finite_become_the_code_of_zero)
{
    draw(4);
    for (int j = 0; j < COLS; j++) {
        weights[j] = 0;
    }
    weights[COLS] = NAN;
    weights[COLS + 1] = INFINITY;
    search(q4, 0.001f);
    for (int j = 0; j < COLS; j++) {
        ck_assert_float_eq(value(q4, 0, j), 0);
    }
    ck_assert_float_eq(value(q4, 1, 0), 0);
    ck_assert_float_eq(value(q4, 1, 1), 0);
}
END_TEST

START_TEST(a_failed_allocation_leaves_nothing_behind)
{
    bt_search s = {.format = q4, .cols = COLS, .importance = importance, .outlier_share = 0.001f};
    size_t count;
    bt_err err = BT_ERR_NO_MEMORY;
    long live = bt_mem_live();

    draw(5);
    for (long nth = 1; err != BT_OK; nth++) {
        ck_assert_int_lt(nth, 10);
        bt_mem_fail_nth(nth);
        err = bt_search_rows(&s, weights, ROWS, COLS, codes, scales, outliers, &count);
        bt_mem_fail_nth(0);
        ck_assert_int_eq(bt_mem_live(), live);
    }
}
END_TEST

START_TEST(smoothing_evens_out_columns_and_leaves_dead_ones_alone)
{
    float amax_x[4] = {16, 1, 0, 1}, amax_w[4] = {1, 1, 1, 1}, factors[4];

    bt_smoothing_factors(amax_x, amax_w, 4, factors);
    ck_assert_float_eq(factors[2], 1);
    ck_assert_float_eq_tol(factors[0] / factors[1], 4, 1e-5f);
    ck_assert_float_eq_tol(factors[0] * factors[1] * factors[3], 1, 1e-5f);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("search");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 60);
    tcase_add_test(all, searched_scales_beat_rounding_to_nearest_and_outliers_beat_both);
    tcase_add_test(all, without_a_search_weights_are_rounded_to_nearest);
    tcase_add_test(all, outliers_come_in_order_and_at_most_their_share);
    tcase_add_test(all, a_row_of_large_weights_gets_at_most_four_times_its_share);
    tcase_add_test(all, eight_bits_a_row_keep_every_weight_within_a_step);
    tcase_add_test(all, zeros_and_numbers_that_are_not_finite_become_the_code_of_zero);
    tcase_add_test(all, a_failed_allocation_leaves_nothing_behind);
    tcase_add_test(all, smoothing_evens_out_columns_and_leaves_dead_ones_alone);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
