// Post-norms and RoPE's angles: against double precision, and the same bits on every path.
#include "tests/support/test.h"

#include "common/base/rng.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 9, COLS_MAX = 2304, STRIDE = COLS_MAX + 3 };

static const uint32_t widths[] = {4, 15, 16, 64, 100, 576, 2304};
static const char *const isas[] = {"ref", "avx2", "avx512"};

// False when this machine lacks the ISA.
static bool
run_add_norm(const char *isa, uint32_t threads, bt_add_norm_args *args)
{
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = threads, .isa = isa};
    bt_device_limits limits = {.tokens = TOKENS, .cols = COLS_MAX, .rows = 64};
    bt_device *device;

    if (bt_device_open(&device, &options, NULL) != BT_OK) {
        bt_test_skip(isa);
        return false;
    }
    ck_assert_int_eq(bt_device_reserve(device, &limits, NULL), BT_OK);
    ck_assert_int_eq(bt_device_ops(device)->add_norm(device, args), BT_OK);
    bt_device_close(device);
    return true;
}

static void
draw(float *x, size_t count, uint64_t seed)
{
    bt_rng rng = {seed};

    for (size_t i = 0; i < count; i++) {
        x[i] = (bt_rng_float(&rng) - 0.5f) * (i % 17 == 0 ? 20.0f : 2.0f);
    }
}

static float x0[TOKENS * STRIDE], x1[TOKENS * STRIDE], y[TOKENS * STRIDE], norm[COLS_MAX];

static bt_add_norm_args
arguments(uint32_t cols, bool with_norm, float *x)
{
    draw(x, TOKENS * STRIDE, 1);
    draw(y, TOKENS * STRIDE, 2);
    draw(norm, COLS_MAX, 3);
    return (bt_add_norm_args){.tokens = TOKENS,
                              .cols = cols,
                              .x = x,
                              .x_stride = STRIDE,
                              .y = y,
                              .y_stride = STRIDE,
                              .norm = with_norm ? norm : NULL,
                              .norm_eps = 1e-6f,
                              .scale = with_norm ? 1.0f : 0.7f};
}

// Four roundings of the added term and one of the sum; the sum of squares adds cols / 16 + 4 more, halved by the root.
START_TEST(ref_adds_what_a_twin_in_double_adds)
{
    uint32_t cols = widths[_i / 2];
    bt_add_norm_args args = arguments(cols, _i % 2, x0);

    draw(x1, TOKENS * STRIDE, 1);
    ck_assert(run_add_norm("ref", 1, &args));
    for (uint32_t t = 0; t < TOKENS; t++) {
        double sum = 0;

        for (uint32_t i = 0; i < cols; i++) {
            sum += (double)y[t * STRIDE + i] * (double)y[t * STRIDE + i];
        }
        for (uint32_t i = 0; i < STRIDE; i++) {
            double add = (double)args.scale * (double)y[t * STRIDE + i], before = (double)x1[t * STRIDE + i], want;

            add *= args.norm != NULL && i < cols ? (double)norm[i] / sqrt(sum / cols + 1e-6) : 1;
            want = i < cols ? before + add : before; // what lies between rows stays
            ck_assert_double_le(fabs((double)x0[t * STRIDE + i] - want),
                                i < cols ? fabs(add) * 0x1p-24 * (cols / 32 + 8) + fabs(want) * 0x1p-24 : 0);
        }
    }
}
END_TEST

START_TEST(every_path_gives_the_bits_of_ref)
{
    uint32_t cols = widths[_i / 2];
    bt_add_norm_args ref = arguments(cols, _i % 2, x0), other;

    ck_assert(run_add_norm("ref", 1, &ref));
    for (int isa = 0; isa < 3; isa++) {
        other = arguments(cols, _i % 2, x1);
        if (run_add_norm(isas[isa], 2, &other)) {
            ck_assert_mem_eq(x0, x1, sizeof x0);
        }
    }
}
END_TEST

START_TEST(a_nan_stays_in_its_row)
{
    for (int isa = 0; isa < 3; isa++) {
        bt_add_norm_args args = arguments(576, true, x0);

        y[2 * STRIDE + 70] = NAN;
        if (run_add_norm(isas[isa], 1, &args)) {
            ck_assert(isnan(x0[2 * STRIDE]) && isnan(x0[2 * STRIDE + 575]));
            ck_assert(!isnan(x0[STRIDE + 575]) && !isnan(x0[3 * STRIDE]) && !isnan(x0[2 * STRIDE + 576]));
        }
    }
}
END_TEST

// One rounding of the angle (as the models have it), one of sine and cosine, one of the factor.
START_TEST(angles_are_position_times_frequency)
{
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = 2, .isa = "auto"};
    const uint32_t positions[] = {0, 1, 511, 4096, 131071};
    float inv_freq[32], cosines[5 * 32], sines[5 * 32];
    bt_rope_args args = {positions, 5, inv_freq, 32, 1.25f, cosines, sines};
    bt_device *device;

    for (int i = 0; i < 32; i++) {
        inv_freq[i] = powf(10000.0f, -(float)i / 32.0f);
    }
    ck_assert_int_eq(bt_device_open(&device, &options, NULL), BT_OK);
    ck_assert_int_eq(bt_device_ops(device)->rope(device, &args), BT_OK);
    for (int i = 0; i < 5 * 32; i++) {
        double angle = (double)((float)positions[i / 32] * inv_freq[i % 32]);

        ck_assert_double_le(fabs((double)cosines[i] - 1.25 * cos(angle)), 1.25 * 0x1p-23);
        ck_assert_double_le(fabs((double)sines[i] - 1.25 * sin(angle)), 1.25 * 0x1p-23);
    }
    bt_device_close(device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("add_norm");
    TCase *tcase = tcase_create("add_norm");

    tcase_add_loop_test(tcase, ref_adds_what_a_twin_in_double_adds, 0, 14);
    tcase_add_loop_test(tcase, every_path_gives_the_bits_of_ref, 0, 14);
    tcase_add_test(tcase, a_nan_stays_in_its_row);
    tcase_add_test(tcase, angles_are_position_times_frequency);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
