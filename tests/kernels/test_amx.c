// The AMX path with its instructions in plain C (kernels/cpu/x86/amx.h): its tiling, layouts and float updates give the
// bits of ref. Real tiles are tested by test_linear_paths where the machine has them.
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include "common/base/mem.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tiled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const bt_linear_path bt_linear_amx_emulated; // linear_amx.c with BT_AMX_EMULATE

static const bt_format formats[] = {
    {BT_WEIGHT_INT, 2, false, 32, 32}, {BT_WEIGHT_INT, 3, true, 64, 128},   {BT_WEIGHT_INT, 4, false, 32, 32},
    {BT_WEIGHT_INT, 4, true, 32, 32},  {BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, false, 64, 64},
    {BT_WEIGHT_INT, 5, true, 32, 64},  {BT_WEIGHT_INT, 6, true, 128, 128},  {BT_WEIGHT_INT, 8, false, 32, 32},
    {BT_WEIGHT_INT, 8, false, 0, 0},   {BT_WEIGHT_INT, 8, false, 0, 128},
};

static void
agrees(bt_device *ref, bt_device *device, const linear_shape *shape)
{
    linear_case c;
    float *want;
    size_t at;

    linear_case_init(&c, shape, bt_device_ops(ref));
    ck_assert_int_eq(bt_device_ops(ref)->linear(ref, &c.args), BT_OK);
    want = malloc(c.y_count * sizeof(float));
    memcpy(want, c.y, c.y_count * sizeof(float));
    linear_case_reset(&c);
    bt_tiled_linear(device, &bt_linear_amx_emulated, &c.args);
    at = first_difference(c.y, want, c.y_count);
    ck_assert_msg(at == c.y_count, "%s: y[%zu][%zu] is %.9g, ref says %.9g", linear_shape_name(shape),
                  at / c.args.y_stride, at % c.args.y_stride, c.y[at], want[at]);
    free(want);
    linear_case_fini(&c);
}

START_TEST(tiles_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {1, 13, 16, 17, 33, 50};
    static const uint32_t cols[] = {64, 172, 1088, 2176, 3136};
    bt_device *ref, *device;

    if (bt_cpu_isa_best() < BT_CPU_AVX512) {
        bt_test_skip("AMX emulation needs AVX-512");
        return;
    }
    ref = linear_device("ref", 1, 64, 3136, 1024);
    device = linear_device("avx512", 2, 64, 3136, 1024);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (size_t i = 0; i < 6; i++) {
            linear_shape shape = {.part_count = 1,
                                  .formats = {formats[f]},
                                  .rows = {41},
                                  .cols = cols[(i + f) % 5],
                                  .tokens = tokens[i],
                                  .outliers = i % 2,
                                  .bias = i % 3 == 0,
                                  .norm = true,
                                  .seed = f * 100 + i};

            agrees(ref, device, &shape);
            shape.part_count = 2;
            shape.formats[1] = formats[f];
            shape.rows[1] = 41;
            shape.epilogue = BT_LINEAR_SILU_MUL;
            agrees(ref, device, &shape);
        }
    }
    bt_device_close(ref);
    bt_device_close(device);
}
END_TEST

// Where tiles are checked as a device opens, too: want of memory is no wrong number, and what was not checked is not taken for right.
START_TEST(a_device_that_finds_no_memory_is_none_and_never_a_slower_one)
{
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = 1};
    long last = 0; // the last allocation without which it did not open
    bt_device *device;
    bt_why why;
    char best[16];

    ck_assert_int_eq(bt_device_open(&device, &options, &why), BT_OK);
    snprintf(best, sizeof best, "%s", bt_device_isa(device));
    bt_device_close(device);
    for (long nth = 1; nth < 40; nth++) {
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_device_open(&device, &options, &why);
        bt_mem_fail_nth(0);
        ck_assert_msg(err == BT_OK || err == BT_ERR_NO_MEMORY, "allocation %ld: %s", nth, why.text);
        if (err != BT_OK) {
            ck_assert_msg(nth == last + 1, "allocation %ld failed and was not missed", last + 1);
            last = nth;
            continue;
        }
        ck_assert_str_eq(bt_device_isa(device), best);
        bt_device_close(device);
    }
    ck_assert_int_gt(last, 1);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("amx");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 200);
    tcase_add_test(all, tiles_give_the_bits_of_ref);
    tcase_add_test(all, a_device_that_finds_no_memory_is_none_and_never_a_slower_one);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
