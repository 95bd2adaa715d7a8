// What the drivers of linear layers share.
#pragma once

#include "driver.h"

#include "kernels/cuda/linear_call.cuh"

extern "C" {
#include "kernels/cpu/ref/quantise.h"
#include "tests/kernels/linear_case.h"
}

#include "call_of.h" // cut from kernels/cuda/linear.cu by run.sh

static bt_device *ref;

template <typename T>
static inline T *
emu_array(size_t count)
{
    return (T *)aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256);
}

// `count` calls of three parts at most, all of one format; all but the fourth have outliers. Whoever asks adds rows and columns.
static inline void
emu_shapes(linear_shape *s, int count, bt_format f, uint32_t tokens, uint32_t seed)
{
    memset(s, 0, (size_t)count * sizeof *s);
    for (int i = 0; i < count; i++) {
        for (int p = 0; p < 3; p++) {
            s[i].formats[p] = f;
        }
        s[i].part_count = 1, s[i].tokens = tokens, s[i].seed = seed * 10 + (uint32_t)i, s[i].scale = 1.0f;
        s[i].outliers = i != 3;
    }
}

// Of these the first five, of odd numbers of rows and columns: three matrices behind a norm, a pair, what is added to a stream, few columns, and
// more than five segments of them. Whoever wants others changes what he gets.
static inline void
emu_odd_shapes(linear_shape *s, int count, bt_format f, uint32_t tokens, uint32_t seed)
{
    emu_shapes(s, count, f, tokens, seed);
    s[0].part_count = 3, s[0].rows[0] = 100, s[0].rows[1] = 40, s[0].rows[2] = 17, s[0].cols = 1152;
    s[0].norm = s[0].bias = true;
    s[1].part_count = 2, s[1].rows[0] = s[1].rows[1] = 200, s[1].cols = 576, s[1].epilogue = BT_LINEAR_SILU_MUL;
    s[1].norm = true;
    s[2].rows[0] = 130, s[2].cols = 2240, s[2].epilogue = BT_LINEAR_ADD, s[2].scale = 0.5f, s[2].softcap = 30.0f;
    s[3].rows[0] = 20, s[3].cols = 172;
    s[4].rows[0] = 60, s[4].cols = 5184, s[4].epilogue = BT_LINEAR_ADD;
}

// A call whose sums come close to 2^128, and some beyond.
static inline linear_shape
emu_huge(uint32_t tokens)
{
    linear_shape s;

    emu_shapes(&s, 1, {BT_WEIGHT_INT, 4, false, 128, 128}, tokens, 7);
    s.rows[0] = 32, s.cols = 2048, s.size = 0x1p120f;
    return s;
}

// A device of so many multiprocessors, for up to `tokens` tokens of `cols` columns.
static inline void
emu_device(int sms, uint32_t tokens, uint32_t cols, uint32_t rows)
{
    size_t stride = bt_cuda_a8_columns(cols);

    cuda.sms = sms;
    if (ref != NULL) {
        return;
    }
    cuda.shared_max = 227 * 1024, cuda.sa_stride = tokens;
    cuda.a8 = emu_array<int8_t>(stride * tokens);
    cuda.sa = emu_array<float>(stride / 32 * tokens);
    cuda.a8_next = emu_array<int8_t>(stride * tokens);
    cuda.sa_next = emu_array<float>(stride / 32 * tokens);
    cuda.sums = emu_array<int32_t>(stride / 32 * tokens);
    cuda.normed = emu_array<float>(stride * tokens + BT_CUDA_TURNED_PAD);
    ref = linear_device("ref", 1, tokens, cols, rows);
}

static inline void
emu_write_token(bt_cuda *c, const bt_linear_args *a, bt_cuda_a8_order order, uint32_t t, float *x, int8_t *codes)
{
    uint32_t cols = a->weights[0]->cols, padded = bt_cols_padded(cols), stride = bt_cuda_a8_columns(cols);
    uint32_t act = a->weights[0]->format.act_block, blocks = bt_ref_act_blocks(act, cols);
    size_t sa_stride = bt_cuda_sa_stride(c, a->tokens);
    float *scales = x + padded;

    bt_ref_norm_row(a->x + t * a->x_stride, cols, a->norm, a->norm_eps, x);
    bt_ref_quantise_row(x, cols, act, codes, scales);
    for (uint32_t k = 0; k < stride; k++) {
        c->a8[bt_cuda_a8_in(order, stride, t, k)] = k < padded ? codes[k] : 0;
    }
    for (uint32_t b = 0; b < stride / (act != 0 ? act : stride); b++) {
        c->sa[b * sa_stride + t] = b < blocks ? scales[b] : 0;
    }
    for (uint32_t b = 0; b < stride / 32; b++) {
        int32_t sum = 0;

        for (uint32_t k = b * 32; k < b * 32 + 32; k++) {
            sum += k < padded ? codes[k] : 0;
        }
        c->sums[b * sa_stride + t] = sum;
    }
}

// As prologue.cu. What it does not write is no number.
static inline void
emu_prologue(bt_cuda *c, const bt_linear_args *a, bt_cuda_a8_order order)
{
    uint32_t padded = bt_cols_padded(a->weights[0]->cols), stride = bt_cuda_a8_columns(a->weights[0]->cols);
    float *x = emu_array<float>(2 * padded);
    int8_t *codes = emu_array<int8_t>(padded);

    memset(c->a8, 0x77, (size_t)stride * c->sa_stride);
    memset(c->sa, 0xff, (size_t)stride / 32 * c->sa_stride * 4);
    memset(c->normed, 0xff, (size_t)stride * c->sa_stride * 4);
    for (uint32_t t = 0; t < a->tokens; t++) {
        emu_write_token(c, a, order, t, x, codes);
    }
    free(x), free(codes);
}

// The same call by ref and by `run`, which says whether it took it: the same bits.
static inline bool
emu_agrees(const linear_shape *shape, bool (*run)(const bt_linear_args *))
{
    static bt_ops ops;
    linear_case a, b;
    size_t at;
    bool taken;

    ops.weight_bytes = bt_cuda_weight_bytes, ops.weight_pack = bt_cuda_weight_pack;
    linear_case_init(&a, shape, bt_device_ops(ref));
    ck_assert_int_eq(bt_device_ops(ref)->linear(ref, &a.args), BT_OK);
    linear_case_init(&b, shape, &ops);
    taken = run(&b.args);
    at = taken ? first_difference(a.y, b.y, a.y_count) : a.y_count;
    ck_assert_msg(at == a.y_count, "%s: y[%zu][%zu] is %.9g, ref says %.9g", linear_shape_name(shape),
                  at / a.args.y_stride, at % a.args.y_stride, b.y[at], a.y[at]);
    linear_case_fini(&a), linear_case_fini(&b);
    return taken;
}

// ---- what launchers call, and kernels/device.c ----

bt_err
bt_cuda_activations(bt_cuda *c, const bt_linear_args *a, linear_call *call)
{
    emu_prologue(c, a, call->order);
    return BT_OK;
}

extern "C" bt_err
bt_cuda_open(bt_device **, const bt_device_options *, bt_why *)
{
    return BT_ERR_UNSUPPORTED;
}
