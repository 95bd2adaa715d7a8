// Linear layers on the GPU and on the CPU, compared bit by bit: what test_cuda_linear and test_cuda_few share. Each program has its own devices.
#pragma once

#include "tests/gpu/gpu.h"
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 70000u

static bt_device *ref, *fast, *gpu; // fast: the processor's own kernels, which give ref's bits (tests/kernels)

// Ref takes seconds of 8 threads for 2^30 products, and other programs want the processors, too.
static bt_device *
compared_with(const linear_shape *shape)
{
    uint64_t rows = shape->rows[0] + (uint64_t)shape->rows[1] + shape->rows[2];

    return rows * shape->cols * shape->tokens < (UINT64_C(1) << 29) || shape->size != 0 ? ref : fast;
}

static void
move_case(linear_copies *copies, linear_case *c, const linear_shape *shape, bt_weight weights[3], bt_linear_args *args)
{
    *args = c->args;
    for (uint32_t i = 0; i < args->weight_count; i++) {
        weights[i] = linear_copy_weight(copies, args->weights[i]);
        args->weights[i] = &weights[i];
        args->biases[i] = linear_copy(copies, args->biases[i], weights[i].rows * 4);
    }
    args->x = linear_copy(copies, c->x, (args->x_stride * (shape->tokens - 1) + shape->cols) * 4);
    args->norm = linear_copy(copies, c->norm, shape->cols * 4);
    args->y = linear_copy(copies, c->y_before, c->y_count * 4);
}

static void
agree_times(const linear_shape *shape, int times)
{
    const bt_ops *ops = bt_device_ops(gpu);
    bt_device *cpu = compared_with(shape);
    linear_copies copies = {.device = gpu};
    linear_case a, b;
    bt_weight weights[3];
    bt_linear_args args;
    size_t at;

    linear_case_init(&a, shape, bt_device_ops(cpu));
    ck_assert_int_eq(bt_device_ops(cpu)->linear(cpu, &a.args), BT_OK);
    linear_case_init(&b, shape, ops);
    move_case(&copies, &b, shape, weights, &args);
    for (int i = 0; i < times; i++) {
        ck_assert_int_eq(bt_device_write(gpu, args.y, b.y_before, b.y_count * 4), BT_OK);
        ck_assert_int_eq(ops->linear(gpu, &args), BT_OK);
        ck_assert_int_eq(bt_device_read(gpu, b.y, args.y, b.y_count * 4), BT_OK);
        at = first_difference(a.y, b.y, a.y_count);
        ck_assert_msg(at == a.y_count, "%s, run %d: y[%zu][%zu] is %.9g, ref says %.9g", linear_shape_name(shape), i,
                      at / a.args.y_stride, at % a.args.y_stride, b.y[at], a.y[at]);
    }
    linear_copies_free(&copies);
    linear_case_fini(&a);
    linear_case_fini(&b);
}

static void
agree(const linear_shape *shape)
{
    agree_times(shape, 1);
}

static void
open_gpu(void)
{
    bt_device_limits limits = {.tokens = 2049,
                               .cols = 28672,
                               .rows = ROWS_MAX,
                               .heads = 32, // with them there is room for runs of K that meet in global memory
                               .kv_heads = 2,
                               .head_dim = 128,
                               .context = 8192,
                               .block_tokens = 32};

    bt_gpu_open(&gpu, &limits);
}

static void
open_devices(void)
{
    if (ref == NULL) {
        ref = linear_device("ref", 8, 2049, 28672, ROWS_MAX);
        fast = linear_device("auto", 8, 2049, 28672, ROWS_MAX);
    }
    if (gpu == NULL) { // each case begins so: where that fails, none of its tests runs
        open_gpu();
    }
}
