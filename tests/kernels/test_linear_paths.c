// Every instruction set that this machine has gives the bits of ref: every format, odd shapes, batches, threads, epilogues.
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include "kernels/cpu/isa.h"

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
    {BT_WEIGHT_INT, 8, false, 0, 32},
};
#define FORMATS (sizeof formats / sizeof *formats)
#define COLS_MAX 5120
#define TOKENS_MAX 257

static const char *const isas[] = {"avx2", "avx512", "amx"};

// Runs the case on `device` and compares with `want`.
static void
same_as(bt_device *device, linear_case *c, const linear_shape *shape, const float *want)
{
    size_t at;

    linear_case_reset(c);
    ck_assert_int_eq(bt_device_ops(device)->linear(device, &c->args), BT_OK);
    at = first_difference(c->y, want, c->y_count);
    ck_assert_msg(at == c->y_count, "%s, %u threads, %s: y[%zu][%zu] is %.9g, ref says %.9g", bt_device_isa(device),
                  bt_device_threads(device), linear_shape_name(shape), at / c->args.y_stride, at % c->args.y_stride,
                  c->y[at], want[at]);
}

typedef struct {
    bt_device *ref, *others[9];
    size_t count;
} devices;

static devices
open_all(uint32_t tokens, uint32_t cols, uint32_t rows)
{
    devices d = {.ref = linear_device("ref", 2, tokens, cols, rows)};

    for (uint32_t i = 0; i < 3; i++) {
        if (bt_cpu_isa_best() < BT_CPU_AVX2 + i) {
            continue;
        }
        for (uint32_t threads = 1; threads <= 3; threads++) {
            d.others[d.count++] = linear_device(isas[i], threads, tokens, cols, rows);
        }
    }
    return d;
}

static void
close_all(devices *d)
{
    bt_device_close(d->ref);
    for (size_t i = 0; i < d->count; i++) {
        bt_device_close(d->others[i]);
    }
}

static void
all_agree(const devices *d, const linear_shape *shape)
{
    linear_case c;
    float *want;

    linear_case_init(&c, shape, bt_device_ops(d->ref));
    ck_assert_int_eq(bt_device_ops(d->ref)->linear(d->ref, &c.args), BT_OK);
    want = malloc(c.y_count * sizeof(float));
    memcpy(want, c.y, c.y_count * sizeof(float));
    for (size_t i = 0; i < d->count; i++) {
        same_as(d->others[i], &c, shape, want);
    }
    free(want);
    linear_case_fini(&c);
}

START_TEST(every_format_and_width_gives_the_bits_of_ref)
{
    static const uint32_t cols[] = {64, 172, 576, 1024, 1536, 2048, 2112, 4096, COLS_MAX};
    static const uint32_t rows[] = {1, 16, 17, 64, 100};
    devices d = open_all(8, COLS_MAX, 1024);

    for (size_t f = 0; f < FORMATS; f++) {
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
            linear_shape shape = {.part_count = 1,
                                  .formats = {formats[f]},
                                  .rows = {rows[(f + i) % 5]},
                                  .cols = cols[i],
                                  .seed = f * 1000 + i};

            shape.norm = i % 2 == 0;
            shape.outliers = (i + f) % 3 == 0;
            shape.bias = i % 3 == 1;
            for (shape.tokens = 1; shape.tokens <= 8; shape.tokens += shape.tokens < 3 ? 1 : 2) {
                all_agree(&d, &shape);
            }
        }
    }
    close_all(&d);
}
END_TEST

START_TEST(every_number_of_tokens_gives_the_bits_of_ref)
{
    static const uint32_t tokens[] = {4,  6,  8,  9,  10, 11, 12, 13, 16,  23,
                                      24, 25, 31, 47, 48, 49, 64, 97, 128, TOKENS_MAX};
    devices d = open_all(TOKENS_MAX, 1088, 1024);

    for (size_t f = 0; f < FORMATS; f++) {
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            linear_shape shape = {.part_count = 1,
                                  .formats = {formats[f]},
                                  .rows = {33},
                                  .cols = i % 2 ? 192 : 1088,
                                  .tokens = tokens[i],
                                  .outliers = i % 4 == 1,
                                  .seed = f * 1000 + i};

            all_agree(&d, &shape);
        }
    }
    close_all(&d);
}
END_TEST

START_TEST(epilogues_give_the_bits_of_ref)
{
    devices d = open_all(32, 576, 1024);

    for (size_t f = 0; f < FORMATS; f++) {
        for (uint32_t tokens = 1; tokens < 30; tokens += 6) {
            linear_shape shape = {.part_count = 2,
                                  .formats = {formats[f], formats[f]},
                                  .rows = {81, 81},
                                  .cols = 320,
                                  .tokens = tokens,
                                  .bias = tokens % 4 == 1,
                                  .outliers = tokens % 3 == 1,
                                  .seed = f};

            shape.epilogue = BT_LINEAR_SILU_MUL;
            all_agree(&d, &shape);
            shape.epilogue = BT_LINEAR_GELU_MUL;
            all_agree(&d, &shape);
            shape.epilogue = BT_LINEAR_ADD;
            shape.scale = 0.37f;
            all_agree(&d, &shape);
            shape.epilogue = BT_LINEAR_STORE;
            shape.softcap = 3.0f;
            all_agree(&d, &shape);
        }
    }
    close_all(&d);
}
END_TEST

START_TEST(parts_of_different_formats_share_one_call)
{
    devices d = open_all(32, 1600, 1024);

    for (uint32_t seed = 0; seed < 60; seed++) {
        linear_shape shape = {.part_count = 2 + seed % 2,
                              .cols = seed % 5 * 320 + 128,
                              .tokens = 1 + seed * 7 % 31,
                              .norm = true,
                              .outliers = seed % 3 == 0,
                              .bias = seed % 4 == 0,
                              .seed = seed};
        uint32_t act = 0;

        for (uint32_t i = 0, f = seed; i < shape.part_count; f += 5) {
            if (formats[f % FORMATS].kind == BT_WEIGHT_INT && (i == 0 || formats[f % FORMATS].act_block == act)) {
                act = formats[f % FORMATS].act_block;
                shape.formats[i] = formats[f % FORMATS];
                shape.rows[i++] = 16 + seed * 13 % 50;
            }
        }
        all_agree(&d, &shape);
    }
    close_all(&d);
}
END_TEST

START_TEST(a_vocabulary_of_odd_size_gives_the_bits_of_ref)
{
    devices d = open_all(2, 64, 49157);
    linear_shape shape = {.part_count = 1,
                          .formats = {{BT_WEIGHT_INT, 6, false, 32, 32}},
                          .rows = {49157},
                          .cols = 64,
                          .tokens = 2,
                          .norm = true};

    all_agree(&d, &shape);
    close_all(&d);
}
END_TEST

START_TEST(odd_numbers_give_what_ref_gives)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-45f, 1e-38f, -0.0f};
    devices d = open_all(16, 576, 1024);

    for (size_t f = 0; f < FORMATS; f++) {
        linear_shape shape = {
            .part_count = 1, .formats = {formats[f]}, .rows = {20}, .cols = 576, .tokens = 15, .seed = f};
        linear_case c;
        float *want;

        shape.norm = f % 2 == 0;
        shape.outliers = f % 3 == 0;
        linear_case_init(&c, &shape, bt_device_ops(d.ref));
        for (uint32_t t = 0; t < 14; t++) {
            for (uint32_t k = t % 7 * 32; k < 576; k += t < 7 ? 300 : 1) {
                c.x[t * c.args.x_stride + k] = odd[t % 7];
            }
        }
        ck_assert_int_eq(bt_device_ops(d.ref)->linear(d.ref, &c.args), BT_OK);
        want = malloc(c.y_count * sizeof(float));
        memcpy(want, c.y, c.y_count * sizeof(float));
        for (size_t i = 0; i < d.count; i++) {
            same_as(d.others[i], &c, &shape, want);
        }
        free(want);
        linear_case_fini(&c);
    }
    close_all(&d);
}
END_TEST

// A token's row does not know who else is in the call.
START_TEST(a_row_is_the_same_alone_and_in_every_batch)
{
    devices d = open_all(64, 1088, 1024);

    for (size_t f = 0; f < FORMATS; f++) {
        linear_shape shape = {.part_count = 1,
                              .formats = {formats[f]},
                              .rows = {48},
                              .cols = 1088,
                              .tokens = 50,
                              .norm = true,
                              .outliers = true,
                              .seed = f};
        bt_device *device = d.count > 0 ? d.others[d.count - 1] : d.ref;
        linear_case c;
        float *together;

        linear_case_init(&c, &shape, bt_device_ops(device));
        ck_assert_int_eq(bt_device_ops(device)->linear(device, &c.args), BT_OK);
        together = malloc(c.y_count * sizeof(float));
        memcpy(together, c.y, c.y_count * sizeof(float));
        linear_case_reset(&c);
        for (uint32_t first = 0, count = 1; first < 50; first += count, count = count % 16 + 1) {
            bt_linear_args part = c.args;

            part.tokens = 50 - first < count ? 50 - first : count;
            part.x += first * part.x_stride;
            part.y += first * part.y_stride;
            ck_assert_int_eq(bt_device_ops(device)->linear(device, &part), BT_OK);
        }
        ck_assert_uint_eq(first_difference(c.y, together, c.y_count), c.y_count);
        free(together);
        linear_case_fini(&c);
    }
    close_all(&d);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("linear paths");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 280);
    tcase_add_test(all, every_format_and_width_gives_the_bits_of_ref);
    tcase_add_test(all, every_number_of_tokens_gives_the_bits_of_ref);
    tcase_add_test(all, epilogues_give_the_bits_of_ref);
    tcase_add_test(all, parts_of_different_formats_share_one_call);
    tcase_add_test(all, a_vocabulary_of_odd_size_gives_the_bits_of_ref);
    tcase_add_test(all, odd_numbers_give_what_ref_gives);
    tcase_add_test(all, a_row_is_the_same_alone_and_in_every_batch);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
