// The specification of linear layers against a naive twin in double, and what it promises about odd inputs.
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include "common/tensor/dtype.h"
#include "kernels/cpu/ref/quantise.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const bt_format formats[] = {
    {BT_WEIGHT_F32, 0, false, 0, 0},     {BT_WEIGHT_F16, 0, false, 0, 0},   {BT_WEIGHT_BF16, 0, false, 0, 0},
    {BT_WEIGHT_INT, 2, false, 32, 32},   {BT_WEIGHT_INT, 2, true, 16, 32},  {BT_WEIGHT_INT, 3, false, 16, 32},
    {BT_WEIGHT_INT, 3, true, 64, 128},   {BT_WEIGHT_INT, 4, false, 32, 32}, {BT_WEIGHT_INT, 4, true, 32, 32},
    {BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, false, 64, 64}, {BT_WEIGHT_INT, 5, false, 32, 64},
    {BT_WEIGHT_INT, 5, true, 32, 32},    {BT_WEIGHT_INT, 6, false, 16, 32}, {BT_WEIGHT_INT, 6, true, 128, 128},
    {BT_WEIGHT_INT, 8, false, 32, 32},   {BT_WEIGHT_INT, 8, false, 0, 0},   {BT_WEIGHT_INT, 8, false, 0, 128},
};
#define FORMATS (sizeof formats / sizeof *formats)

// What one output should be, and how much rounding may move it: every product and partial sum is rounded a few times, so
// the bound is the sum of magnitudes times (roundings in a row) · 2^-24.
typedef struct {
    double value, magnitude;
} twin;

static twin
twin_dot(const linear_case *c, const linear_part *part, uint32_t row, const float *x, const int8_t *a8,
         const float *scales)
{
    const bt_weight *w = &part->weight;
    const bt_outliers *o = &w->outliers;
    uint32_t act = w->format.act_block;
    twin t = {0};

    for (uint32_t k = 0; k < w->cols; k++) {
        double a = w->format.kind != BT_WEIGHT_INT ? x[k] : (double)scales[act == 0 ? 0 : k / act] * a8[k];
        double product = linear_part_value(part, row, k) * a;

        t.value += product;
        t.magnitude += fabs(product);
        if (w->format.asymmetric) { // its two halves may cancel
            t.magnitude += 2 * fabs(a) * 0.3;
        }
    }
    for (uint32_t i = o->row_start != NULL ? o->row_start[row] : 1; o->row_start != NULL && i < o->row_start[row + 1];
         i++) {
        uint32_t k = o->cols[i];
        double product = (double)bt_f16_to_f32(o->deltas[i]) * scales[act == 0 ? 0 : k / act] * a8[k];

        t.value += product;
        t.magnitude += fabs(product);
    }
    if (part->bias != NULL) {
        t.value += part->bias[row];
        t.magnitude += fabs((double)part->bias[row]);
    }
    (void)c;
    return t;
}

static double
twin_activation(const linear_case *c, double gate)
{
    if (c->args.epilogue == BT_LINEAR_SILU_MUL) {
        return gate / (1 + exp(-gate));
    }
    return 0.5 * gate * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)));
}

static void
compare_row(const linear_case *c, const linear_shape *shape, uint32_t token)
{
    uint32_t padded = bt_cols_padded(shape->cols), at = 0;
    float *x = malloc(padded * sizeof(float)), *scales = malloc(padded * sizeof(float));
    int8_t *a8 = malloc(padded);
    bool paired = shape->epilogue == BT_LINEAR_SILU_MUL || shape->epilogue == BT_LINEAR_GELU_MUL;
    double unit = (8 + shape->cols / 16.0) * 0x1p-24;

    bt_ref_norm_row(c->x + token * c->args.x_stride, shape->cols, c->norm, c->args.norm_eps, x);
    bt_ref_quantise_row(x, shape->cols, shape->formats[0].act_block, a8, scales);
    for (uint32_t p = 0; p < (paired ? 1 : shape->part_count); p++) {
        for (uint32_t row = 0; row < shape->rows[p]; row++, at++) {
            size_t index = token * c->args.y_stride + at;
            twin t = twin_dot(c, &c->parts[p], row, x, a8, scales);
            double error = t.magnitude * unit, want = t.value;

            if (paired) {
                twin up = twin_dot(c, &c->parts[1], row, x, a8, scales);
                double gate = twin_activation(c, t.value);

                want = gate * up.value;
                error = 1.2 * error * fabs(up.value) + up.magnitude * unit * (fabs(gate) + error) +
                        fabs(want) * 8 * 0x1p-24;
            } else {
                if (shape->softcap > 0) {
                    want = shape->softcap * tanh(want / shape->softcap);
                    error += shape->softcap * 4 * 0x1p-24;
                }
                want *= c->args.scale;
                error = error * fabs(c->args.scale) + fabs(want) * 2 * 0x1p-24;
                if (shape->epilogue == BT_LINEAR_ADD) {
                    want += c->y_before[index];
                    error += fabs(want) * 0x1p-24;
                }
            }
            ck_assert_msg(fabs(c->y[index] - want) <= error + 1e-30, "%s: token %u row %u is %.9g, not %.9g ± %.2g",
                          linear_shape_name(shape), token, at, c->y[index], want, error);
        }
    }
    free(x), free(scales), free(a8);
}

static void
compare_case(bt_device *device, const linear_shape *shape)
{
    linear_case c;

    linear_case_init(&c, shape, bt_device_ops(device));
    ck_assert_int_eq(bt_device_ops(device)->linear(device, &c.args), BT_OK);
    for (uint32_t t = 0; t < shape->tokens; t++) {
        compare_row(&c, shape, t);
    }
    linear_case_fini(&c);
}

START_TEST(every_format_is_the_sum_that_its_definition_says)
{
    static const uint32_t cols[] = {64, 172, 576, 1088, 2112, 5120};
    bt_device *device = linear_device("ref", 1, 4, 5120, 4096);

    for (size_t f = 0; f < FORMATS; f++) {
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
            linear_shape shape = {.part_count = 1,
                                  .formats = {formats[f]},
                                  .rows = {17},
                                  .cols = cols[i],
                                  .tokens = 2,
                                  .norm = i % 2,
                                  .outliers = i % 3 == 1,
                                  .bias = i % 2 == 0,
                                  .seed = f * 100 + i};

            compare_case(device, &shape);
        }
    }
    bt_device_close(device);
}
END_TEST

START_TEST(epilogues_are_what_their_comments_say)
{
    bt_device *device = linear_device("ref", 1, 4, 576, 4096);

    for (size_t f = 0; f < FORMATS; f++) {
        linear_shape shape = {.part_count = 2,
                              .formats = {formats[f], formats[f]},
                              .rows = {33, 33},
                              .cols = 192,
                              .tokens = 2,
                              .bias = true,
                              .seed = f};

        shape.epilogue = BT_LINEAR_SILU_MUL;
        compare_case(device, &shape);
        shape.epilogue = BT_LINEAR_GELU_MUL;
        compare_case(device, &shape);
        shape.epilogue = BT_LINEAR_ADD;
        shape.scale = 0.37f;
        compare_case(device, &shape);
        shape.epilogue = BT_LINEAR_STORE;
        shape.softcap = 2.0f;
        compare_case(device, &shape);
    }
    bt_device_close(device);
}
END_TEST

START_TEST(int8_codes_are_the_nearest_ones)
{
    float x[192], scales[6];
    int8_t codes[192];
    bt_rng rng = {7};

    for (int i = 0; i < 192; i++) {
        x[i] = (bt_rng_float(&rng) - 0.5f) * powf(10, (float)(i / 32) * 3 - 9);
    }
    bt_ref_quantise_row(x, 192, 32, codes, scales);
    for (int i = 0; i < 192; i++) {
        ck_assert_double_le(fabs((double)scales[i / 32] * codes[i] - x[i]), scales[i / 32] * 0.50001);
    }
    for (int b = 0; b < 6; b++) {
        int largest = 0;

        for (int i = 32 * b; i < 32 * b + 32; i++) {
            largest = abs(codes[i]) > largest ? abs(codes[i]) : largest;
        }
        ck_assert_int_eq(largest, 127);
    }
}
END_TEST

START_TEST(a_block_with_a_nan_or_infinity_turns_its_token_nan_and_no_other)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    bt_device *device = linear_device("ref", 1, 4, 576, 4096);

    for (size_t f = 0; f < FORMATS; f++) {
        linear_shape shape = {
            .part_count = 1, .formats = {formats[f]}, .rows = {5}, .cols = 576, .tokens = 3, .seed = f};
        linear_case c;

        linear_case_init(&c, &shape, bt_device_ops(device));
        c.x[c.args.x_stride + 100] = bad[f % 3];
        ck_assert_int_eq(bt_device_ops(device)->linear(device, &c.args), BT_OK);
        for (uint32_t row = 0; row < 5; row++) {
            ck_assert(isfinite(c.y[row]));
            ck_assert(!isfinite(c.y[c.args.y_stride + row]));
            ck_assert(isfinite(c.y[2 * c.args.y_stride + row]));
        }
        linear_case_fini(&c);
    }
    bt_device_close(device);
}
END_TEST

START_TEST(embedding_rows_are_the_values_of_the_table)
{
    bt_device *device = linear_device("auto", 2, 4, 576, 4096);

    for (size_t f = 0; f < FORMATS; f++) {
        linear_shape shape = {
            .part_count = 1, .formats = {formats[f]}, .rows = {70}, .cols = 172, .tokens = 1, .seed = f};
        int32_t ids[] = {69, 0, 17, 16, 69};
        float out[5 * 180];
        bt_embed_args args = {.ids = ids, .tokens = 5, .out = out, .out_stride = 180, .scale = 3.0f};
        linear_case c;

        linear_case_init(&c, &shape, bt_device_ops(device));
        args.table = &c.parts[0].weight;
        ck_assert_int_eq(bt_device_ops(device)->embed(device, &args), BT_OK);
        for (uint32_t t = 0; t < 5; t++) {
            for (uint32_t k = 0; k < 172; k++) {
                double want = 3.0 * linear_part_value(&c.parts[0], (uint32_t)ids[t], k);

                ck_assert_double_le(fabs(out[t * 180 + k] - want), fabs(want) * 0x1p-22 + 3 * 0x1p-20);
            }
        }
        linear_case_fini(&c);
    }
    bt_device_close(device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("linear");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 200);
    tcase_add_test(all, every_format_is_the_sum_that_its_definition_says);
    tcase_add_test(all, epilogues_are_what_their_comments_say);
    tcase_add_test(all, int8_codes_are_the_nearest_ones);
    tcase_add_test(all, a_block_with_a_nan_or_infinity_turns_its_token_nan_and_no_other);
    tcase_add_test(all, embedding_rows_are_the_values_of_the_table);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
