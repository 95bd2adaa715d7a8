// Linear layers of 16-bit weights on the GPU: activations are rounded to the weights' type, sums are f32, and a token's numbers are the same
// bits in every batch. (A GPU older than Hopper rounds nothing and gives the bits of ref: gpu.h.)
//
// What is exact is compared exactly: where weights and activations are small whole numbers every order of sums gives the number
// of kernels/cpu/ref, so that any wrong place shows, in any shape and epilogue. With other numbers two bounds hold for r, what a row's dot is
// before bias, softcap and epilogue, with x^ the rounded activations:
//
//     |r − Σ w x^| ≤ 18 · ⌈K/16⌉ · 2^-23 · Σ |w x^|      17 numbers are added at a time, each cut to 24 bits of the largest at worst
//     |r − ref|   ≤ the same + u · Σ |w x| + K · 2^-24 · Σ |w x|      u = 2^-8 (bf16), 2^-11 (f16) and what scaling loses
#include "common/tensor/dtype.h"
#include "kernels/cpu/ref/math.h"
#include "kernels/cpu/ref/quantise.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/rounded.h"
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX 600u
#define COLS_MAX 28672u
#define ROWS_MAX 49157u

static const bt_format halves[2] = {{BT_WEIGHT_BF16, 0, false, 0, 0}, {BT_WEIGHT_F16, 0, false, 0, 0}};
static bt_device *ref, *gpu;

static void
open_devices(void)
{
    bt_device_limits limits = {.tokens = TOKENS_MAX,
                               .cols = COLS_MAX,
                               .rows = ROWS_MAX,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .context = 64,
                               .block_tokens = 32};

    if (ref == NULL) {
        ref = linear_device("ref", 8, TOKENS_MAX, COLS_MAX, ROWS_MAX);
    }
    if (gpu == NULL) {
        bt_gpu_open(&gpu, &limits);
    }
}

// ---- a call on the GPU ----

typedef struct {
    linear_case k;
    bt_weight weights[3];
    bt_linear_args args; // the device's
    linear_copies copies;
} on_gpu;

static void
on_gpu_init(on_gpu *g, const linear_shape *shape)
{
    *g = (on_gpu){.copies = {.device = gpu}};
    linear_case_init(&g->k, shape, bt_device_ops(gpu));
    g->args = g->k.args;
    for (uint32_t i = 0; i < g->args.weight_count; i++) {
        g->weights[i] = linear_copy_weight(&g->copies, g->args.weights[i]);
        g->args.weights[i] = &g->weights[i];
        g->args.biases[i] = linear_copy(&g->copies, g->args.biases[i], g->weights[i].rows * 4);
    }
    g->args.x = linear_copy(&g->copies, g->k.x, (g->args.x_stride * (shape->tokens - 1) + shape->cols) * 4);
    g->args.norm = linear_copy(&g->copies, g->k.norm, shape->cols * 4);
    g->args.y = linear_copy(&g->copies, g->k.y_before, g->k.y_count * 4);
}

static void
on_gpu_fini(on_gpu *g)
{
    linear_copies_free(&g->copies);
    linear_case_fini(&g->k);
}

// Tokens first … first + count − 1 of the case, into y [count rows of args.y_stride], whose other numbers stay.
static void
run(on_gpu *g, uint32_t first, uint32_t count, float *y)
{
    size_t rows = g->args.y_stride * (count - 1) + g->k.y_rows;
    bt_linear_args args = g->args;

    args.tokens = count;
    args.x += first * args.x_stride;
    ck_assert_int_eq(bt_device_write(gpu, args.y, g->k.y_before + first * args.y_stride, rows * 4), BT_OK);
    ck_assert_int_eq(bt_device_ops(gpu)->linear(gpu, &args), BT_OK);
    ck_assert_int_eq(bt_device_read(gpu, y, args.y, rows * 4), BT_OK);
}

static void
same_bits(const on_gpu *g, const linear_shape *shape, const float *expected, const float *found, const char *what)
{
    size_t at = first_difference(expected, found, g->k.y_count);

    ck_assert_msg(at == g->k.y_count, "%s: %s: y[%zu][%zu] is %.9g, not %.9g", linear_shape_name(shape), what,
                  at / g->args.y_stride, at % g->args.y_stride, (double)found[at], (double)expected[at]);
}

// ---- exact ----

// A zero equals a zero: what adds up to none may do so with either sign.
static size_t
first_unequal(const float *a, const float *b, size_t count)
{
    size_t at = 0;

    while (at < count && (a[at] == b[at] || (isnan(a[at]) && isnan(b[at])))) {
        at++;
    }
    return at;
}

static void
agree_exactly(linear_shape shape)
{
    linear_case a;
    size_t at;
    on_gpu g;

    shape.integers = true;
    linear_case_init(&a, &shape, bt_device_ops(ref));
    ck_assert_int_eq(bt_device_ops(ref)->linear(ref, &a.args), BT_OK);
    on_gpu_init(&g, &shape);
    run(&g, 0, shape.tokens, g.k.y);
    at = first_unequal(a.y, g.k.y, a.y_count);
    ck_assert_msg(at == a.y_count, "%s: y[%zu][%zu] is %.9g, ref says %.9g", linear_shape_name(&shape),
                  at / a.args.y_stride, at % a.args.y_stride, (double)g.k.y[at], (double)a.y[at]);
    on_gpu_fini(&g);
    linear_case_fini(&a);
}

START_TEST(whole_numbers_give_the_numbers_of_ref_in_every_shape)
{
    static const uint32_t tokens[] = {1, 2, 7, 8, 9, 16, 31, 63, 64, 65, 127, 128, 129, 200, 256, 257, 511, 600};
    static const uint32_t cols[] = {64, 172, 576, 1024, 1500, 4096}, rows[] = {1, 16, 17, 50, 64, 100, 300};
    bt_format f = halves[_i];

    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        linear_shape shape = {.part_count = 1, .formats = {f}, .tokens = tokens[t], .seed = 9 + t};

        for (size_t i = 0; i < 3; i++) {
            shape.rows[0] = rows[(t + 2 * i) % 7], shape.cols = cols[(t + i) % 6];
            if (bt_gpu_takes((uint32_t)(t + i))) {
                agree_exactly(shape);
            }
        }
    }
}
END_TEST

START_TEST(whole_numbers_give_the_numbers_of_ref_in_every_epilogue)
{
    static const uint32_t tokens[] = {1, 5, 64, 100, 130, 300};
    bt_format f = halves[_i];

    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        for (uint32_t way = 0; way < 12; way++) {
            bool even = way % 2 == 0, bias = way % 3 == 1;
            linear_shape three = {.part_count = 3, .formats = {f, f, f}, .rows = {192, even ? 64 : 17, 48}};
            linear_shape pair = {.part_count = 2, .formats = {f, f}, .rows = {even ? 200 : 173, even ? 200 : 173}};
            linear_shape one = {.part_count = 1, .formats = {f}, .rows = {96}, .epilogue = BT_LINEAR_ADD};

            three.cols = pair.cols = one.cols = 320;
            three.tokens = pair.tokens = one.tokens = tokens[t];
            three.seed = pair.seed = one.seed = way / 2 + 40; // strides of y are odd and even
            three.bias = pair.bias = one.bias = bias;
            pair.epilogue = way % 4 < 2 ? BT_LINEAR_SILU_MUL : BT_LINEAR_GELU_MUL;
            three.epilogue = way < 6 ? BT_LINEAR_STORE : BT_LINEAR_ADD;
            three.scale = one.scale = 0.75f;
            one.softcap = way % 5 == 4 ? 30.0f : 0.0f;
            if (bt_gpu_takes((uint32_t)t + way)) {
                agree_exactly(three);
                agree_exactly(pair);
                agree_exactly(one);
            }
        }
    }
}
END_TEST

START_TEST(wide_and_tall_layers_of_whole_numbers_give_the_numbers_of_ref)
{
    bt_format f = halves[_i];
    linear_shape shapes[] = {
        {.part_count = 1, .formats = {f}, .rows = {112}, .cols = 28672, .tokens = 3},
        {.part_count = 1, .formats = {f}, .rows = {80}, .cols = 14336, .tokens = 150},
        {.part_count = 1, .formats = {f}, .rows = {49157}, .cols = 192, .tokens = 5, .softcap = 30},
        {.part_count = 3, .formats = {f, f, f}, .rows = {2200, 520, 536}, .cols = 1152, .tokens = 40},
        {.part_count = 2, .formats = {f, f}, .rows = {9000, 9000}, .cols = 128, .tokens = 70},
        {.part_count = 1, .formats = {f}, .rows = {9000}, .cols = 128, .tokens = 400, .epilogue = BT_LINEAR_ADD},
    };

    shapes[4].epilogue = BT_LINEAR_SILU_MUL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        shapes[i].seed = 70 + i;
        if (bt_gpu_takes((uint32_t)i)) {
            agree_exactly(shapes[i]);
        }
    }
}
END_TEST

// ---- rounded ----

typedef struct {
    double worst, worst_of_ref; // shares of the bounds
} margins;

// Each r of one token of a plain call.
static void
check_row(const on_gpu *g, const linear_shape *shape, const linear_case *of_ref, uint32_t token, const float *y,
          margins *m)
{
    double u = shape->formats[0].kind == BT_WEIGHT_F16 ? 0x1p-11 : 0x1p-8;
    size_t bytes = bt_cols_padded(shape->cols) * sizeof(float);
    float *x = malloc(bytes), *rounded = malloc(bytes);
    double cut = 18.0 * ((shape->cols + 15) / 16) * 0x1p-23;

    bt_ref_norm_row(g->k.x + token * g->args.x_stride, shape->cols, g->k.norm, g->args.norm_eps, x);
    memcpy(rounded, x, bytes);
    bt_round_row(rounded, shape->cols, shape->formats[0].kind);
    for (uint32_t row = 0; row < shape->rows[0]; row++) {
        double sum = 0, size = 0, size_of_ref = 0, found = y[token * g->args.y_stride + row], off, off_ref;

        for (uint32_t k = 0; k < shape->cols; k++) {
            double w = linear_part_value(&g->k.parts[0], row, k);

            sum += w * rounded[k];
            size += fabs(w * rounded[k]), size_of_ref += fabs(w * x[k]);
        }
        off = fabs(found - sum) / (cut * size + 1e-300);
        off_ref = fabs(found - of_ref->y[token * of_ref->args.y_stride + row]) /
                  (cut * size + (u + shape->cols * 0x1p-24) * size_of_ref + 1e-300);
        ck_assert_msg(off <= 1 && off_ref <= 1,
                      "%s: y[%u][%u] is %.9g: %.2f of the bound from %.9g, %.2f of the bound from ref's %.9g",
                      linear_shape_name(shape), token, row, found, off, sum, off_ref,
                      (double)of_ref->y[token * of_ref->args.y_stride + row]);
        m->worst = fmax(m->worst, off), m->worst_of_ref = fmax(m->worst_of_ref, off_ref);
    }
    free(rounded);
    free(x);
}

START_TEST(other_numbers_are_rounded_as_is_said)
{
    static const uint32_t cols[] = {64, 576, 1500, 4096, 14336}, tokens[] = {1, 3, 33, 130};
    margins m = {0, 0};

    for (size_t i = 0; i < 5; i++) {
        for (size_t t = 0; t < 4; t++) {
            linear_shape shape = {.part_count = 1,
                                  .formats = {halves[_i]},
                                  .rows = {40},
                                  .cols = cols[i],
                                  .tokens = tokens[t],
                                  .norm = (i + t) % 2 == 0,
                                  .seed = 3 + i * 10 + t};
            linear_case a;
            on_gpu g;

            if (!bt_gpu_takes((uint32_t)(i + t))) {
                continue;
            }
            linear_case_init(&a, &shape, bt_device_ops(ref));
            ck_assert_int_eq(bt_device_ops(ref)->linear(ref, &a.args), BT_OK);
            on_gpu_init(&g, &shape);
            run(&g, 0, shape.tokens, g.k.y);
            if (bt_gpu_is_older()) {
                same_bits(&g, &shape, a.y, g.k.y, "ref's");
            }
            for (uint32_t token = 0; !bt_gpu_is_older() && token < shape.tokens; token += 1 + shape.tokens / 8) {
                check_row(&g, &shape, &a, token, g.k.y, &m);
            }
            on_gpu_fini(&g);
            linear_case_fini(&a);
        }
    }
    printf("%s: at most %.3f of the bound of sums, %.3f of the bound from ref\n", _i == 0 ? "bf16" : "f16", m.worst,
           m.worst_of_ref);
}
END_TEST

// ---- the same in every batch ----

static linear_shape
batch_shape(bt_format f, int which)
{
    linear_shape shapes[] = {
        {.part_count = 1, .formats = {f}, .rows = {300}, .cols = 1088, .norm = true},
        {.part_count = 3, .formats = {f, f, f}, .rows = {192, 64, 64}, .cols = 4096, .norm = true, .bias = true},
        {.part_count = 2, .formats = {f, f}, .rows = {304, 304}, .cols = 576, .epilogue = BT_LINEAR_SILU_MUL},
        {.part_count = 1, .formats = {f}, .rows = {128}, .cols = 14336, .epilogue = BT_LINEAR_ADD, .scale = 0.5f},
    };

    shapes[which].tokens = 257;
    shapes[which].seed = 501 + 2 * (uint64_t)which;
    return shapes[which];
}

START_TEST(a_tokens_numbers_are_the_same_in_every_batch)
{
    linear_shape shape = batch_shape(halves[_i % 2], _i / 2);
    float *whole, *some;
    on_gpu g;

    on_gpu_init(&g, &shape);
    whole = malloc(g.k.y_count * sizeof *whole), some = malloc(g.k.y_count * sizeof *some);
    run(&g, 0, 257, whole);
    for (uint32_t count = 1; count <= 257; count++) {
        uint32_t first = count * 7919 % (258 - count); // anywhere in the batch

        if (!bt_gpu_takes(count - 1)) {
            continue;
        }
        run(&g, first, count, some);
        for (uint32_t t = 0; t < count; t++) {
            size_t at = first_difference(whole + (first + t) * g.args.y_stride, some + t * g.args.y_stride, g.k.y_rows);

            ck_assert_msg(at == g.k.y_rows, "%s: token %u of %u, which is %u of 257: y[%zu] is %.9g, not %.9g",
                          linear_shape_name(&shape), t, count, first + t, at, (double)some[t * g.args.y_stride + at],
                          (double)whole[(first + t) * g.args.y_stride + at]);
        }
    }
    free(whole);
    free(some);
    on_gpu_fini(&g);
}
END_TEST

START_TEST(a_call_gives_the_same_bits_every_time)
{
    linear_shape shape = batch_shape(halves[_i % 2], _i / 2);
    float *first;
    on_gpu g;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    shape.tokens = _i % 3 == 0 ? 40 : 257;
    on_gpu_init(&g, &shape);
    first = malloc(g.k.y_count * sizeof *first);
    run(&g, 0, shape.tokens, first);
    for (int i = 0; i < bt_gpu_times(50, 3); i++) {
        run(&g, 0, shape.tokens, g.k.y);
        same_bits(&g, &shape, first, g.k.y, "the first run's");
    }
    free(first);
    on_gpu_fini(&g);
}
END_TEST

// ---- numbers that are none, large and small ----

START_TEST(a_row_without_numbers_spoils_itself_alone)
{
    static const float poison[] = {NAN, INFINITY, -INFINITY};
    bt_format f = halves[_i];

    for (uint32_t tokens = 20; tokens <= 180; tokens += 160) {
        linear_shape shape = {.part_count = 1, .formats = {f}, .rows = {100}, .cols = 576, .tokens = tokens, .seed = 8};
        float *clean;
        on_gpu g;

        if (!bt_gpu_takes((uint32_t)_i)) {
            continue;
        }
        on_gpu_init(&g, &shape);
        clean = malloc(g.k.y_count * sizeof *clean);
        run(&g, 0, tokens, clean);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t at = 3 + 5 * i;

            ck_assert_int_eq(
                bt_device_write(gpu, (float *)g.args.x + at * g.args.x_stride + 70 * i, &poison[i], sizeof *poison),
                BT_OK);
        }
        run(&g, 0, tokens, g.k.y);
        for (uint32_t t = 0; t < tokens; t++) {
            const float *y = g.k.y + t * g.args.y_stride;
            bool spoilt = t == 3 || t == 8 || t == 13;

            for (uint32_t row = 0; row < 100; row++) {
                ck_assert_msg(spoilt ? !isfinite(y[row]) : y[row] == clean[t * g.args.y_stride + row],
                              "%u tokens: y[%u][%u] is %.9g", tokens, t, row, (double)y[row]);
            }
        }
        free(clean);
        on_gpu_fini(&g);
    }
}
END_TEST

// A power of two times x is that times y, also where f16 itself would overflow or vanish.
START_TEST(the_size_of_a_row_does_not_matter)
{
    static const int powers[] = {-90, -40, -20, 20, 40, 90};
    linear_shape shape = {.part_count = 1, .formats = {halves[_i]}, .rows = {64}, .cols = 576, .tokens = 9, .seed = 6};
    float *plain, *x;
    size_t count;
    on_gpu g;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    on_gpu_init(&g, &shape);
    count = g.args.x_stride * (shape.tokens - 1) + shape.cols;
    plain = malloc(g.k.y_count * sizeof *plain), x = malloc(count * sizeof *x);
    run(&g, 0, shape.tokens, plain);
    for (size_t p = 0; p < sizeof powers / sizeof *powers; p++) {
        for (size_t i = 0; i < count; i++) {
            x[i] = ldexpf(g.k.x[i], powers[p]);
        }
        ck_assert_int_eq(bt_device_write(gpu, (float *)g.args.x, x, count * sizeof *x), BT_OK);
        run(&g, 0, shape.tokens, g.k.y);
        for (uint32_t t = 0; t < shape.tokens; t++) {
            for (uint32_t row = 0; row < 64; row++) {
                size_t at = t * g.args.y_stride + row;

                ck_assert_msg(g.k.y[at] == ldexpf(plain[at], powers[p]), "2^%d: y[%u][%u] is %a, not 2^%d times %a",
                              powers[p], t, row, (double)g.k.y[at], powers[p], (double)plain[at]);
            }
        }
    }
    free(plain);
    free(x);
    on_gpu_fini(&g);
}
END_TEST

// ---- neighbours ----

// gate|up says that down reads it, and no one else: down's numbers are those of calls that say nothing.
START_TEST(calls_that_say_who_reads_them_give_the_same_bits)
{
    static const uint32_t tokens[] = {1, 17, 128, 129, 300};
    bt_format f = halves[_i % 2];
    linear_shape pair = {.part_count = 2, .formats = {f, f}, .rows = {1100, 1100}, .cols = 320, .norm = true};
    linear_shape down = {.part_count = 1, .formats = {f}, .rows = {320}, .cols = 1100, .epilogue = BT_LINEAR_ADD};

    pair.epilogue = _i < 2 ? BT_LINEAR_SILU_MUL : BT_LINEAR_GELU_MUL;
    down.scale = 0.5f, down.seed = 5, pair.seed = 5; // rows of y at even places
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
        on_gpu a, b;
        float *expected;

        if (!bt_gpu_takes((uint32_t)((size_t)_i + t))) {
            continue;
        }
        pair.tokens = down.tokens = tokens[t];
        on_gpu_init(&a, &pair);
        on_gpu_init(&b, &down);
        b.args.x = a.args.y, b.args.x_stride = a.args.y_stride;
        expected = malloc(b.k.y_count * sizeof *expected);
        for (int said = 0; said < 3; said++) { // not at all; also for others; for down alone
            memset(&a.args.next, 0, sizeof a.args.next);
            if (said != 0) {
                a.args.next = (bt_linear_next){.weights = {b.args.weights[0]}, .weight_count = 1, .only = said == 2};
            }
            ck_assert_int_eq(bt_device_write(gpu, b.args.y, b.k.y_before, b.k.y_count * 4), BT_OK);
            ck_assert_int_eq(bt_device_ops(gpu)->linear(gpu, &a.args), BT_OK);
            ck_assert_int_eq(bt_device_ops(gpu)->linear(gpu, &b.args), BT_OK);
            ck_assert_int_eq(bt_device_read(gpu, said == 0 ? expected : b.k.y, b.args.y, b.k.y_count * 4), BT_OK);
            if (said != 0) {
                same_bits(&b, &down, expected, b.k.y, "those of calls that say nothing");
            }
        }
        free(expected);
        on_gpu_fini(&a);
        on_gpu_fini(&b);
    }
}
END_TEST

START_TEST(calls_of_two_kinds_give_the_bits_of_ref)
{
    bt_format f32 = {BT_WEIGHT_F32, 0, false, 0, 0};
    linear_shape shapes[] = {
        {.part_count = 3, .formats = {halves[0], halves[1], halves[0]}, .rows = {64, 33, 48}, .cols = 576},
        {.part_count = 2, .formats = {halves[0], f32}, .rows = {50, 70}, .cols = 172, .bias = true},
    };

    for (size_t i = 0; i < 2; i++) {
        linear_case a;
        on_gpu g;

        if (!bt_gpu_takes((uint32_t)i)) {
            continue;
        }
        shapes[i].tokens = 9, shapes[i].seed = 60 + i;
        linear_case_init(&a, &shapes[i], bt_device_ops(ref));
        ck_assert_int_eq(bt_device_ops(ref)->linear(ref, &a.args), BT_OK);
        on_gpu_init(&g, &shapes[i]);
        run(&g, 0, 9, g.k.y);
        same_bits(&g, &shapes[i], a.y, g.k.y, "the CPU's");
        on_gpu_fini(&g);
        linear_case_fini(&a);
    }
}
END_TEST

START_TEST(with_f32_activations_16_bit_weights_give_the_bits_of_ref)
{
    bt_device_options options = {.kind = BT_DEVICE_CUDA, .float_activations = true};
    linear_shape shape = {
        .part_count = 2, .formats = {halves[_i], halves[_i]}, .rows = {64, 33}, .cols = 576, .seed = 61};
    bt_device *rounds = gpu;
    linear_case a;
    on_gpu g;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    shape.tokens = 9, shape.norm = true;
    linear_case_init(&a, &shape, bt_device_ops(ref));
    ck_assert_int_eq(bt_device_ops(ref)->linear(ref, &a.args), BT_OK);
    ck_assert_int_eq(bt_device_open(&gpu, &options, NULL), BT_OK);
    ck_assert(bt_device_rounds(rounds) != bt_gpu_is_older() && !bt_device_rounds(gpu) && !bt_device_rounds(ref));
    ck_assert_int_eq(bt_device_reserve(gpu,
                                       &(bt_device_limits){.tokens = 64,
                                                           .cols = 576,
                                                           .rows = 128,
                                                           .heads = 1,
                                                           .kv_heads = 1,
                                                           .head_dim = 64,
                                                           .context = 64,
                                                           .block_tokens = 32},
                                       NULL),
                     BT_OK);
    on_gpu_init(&g, &shape);
    run(&g, 0, 9, g.k.y);
    same_bits(&g, &shape, a.y, g.k.y, "the CPU's");
    on_gpu_fini(&g);
    bt_device_close(gpu);
    gpu = rounds;
    linear_case_fini(&a);
}
END_TEST

int
main(void)
{
    Suite *s = suite_create("cuda half");

    bt_gpu_add(s, "shapes", open_devices, whole_numbers_give_the_numbers_of_ref_in_every_shape, 2);
    bt_gpu_add(s, "epilogues", open_devices, whole_numbers_give_the_numbers_of_ref_in_every_epilogue, 2);
    bt_gpu_add(s, "wide", open_devices, wide_and_tall_layers_of_whole_numbers_give_the_numbers_of_ref, 2);
    bt_gpu_add(s, "rounding", open_devices, other_numbers_are_rounded_as_is_said, 2);
    bt_gpu_add(s, "batches", open_devices, a_tokens_numbers_are_the_same_in_every_batch, 8);
    bt_gpu_add(s, "again", open_devices, a_call_gives_the_same_bits_every_time, 8);
    bt_gpu_add(s, "poison", open_devices, a_row_without_numbers_spoils_itself_alone, 2);
    bt_gpu_add(s, "size", open_devices, the_size_of_a_row_does_not_matter, 2);
    bt_gpu_add(s, "next", open_devices, calls_that_say_who_reads_them_give_the_same_bits, 4);
    bt_gpu_add(s, "kinds", open_devices, calls_of_two_kinds_give_the_bits_of_ref, 1);
    bt_gpu_add(s, "f32", open_devices, with_f32_activations_16_bit_weights_give_the_bits_of_ref, 2);
    return bt_gpu_run(s);
}
