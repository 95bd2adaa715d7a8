// The AMX path with its instructions in plain C (kernels/cpu/x86/amx.h): its tiling, layouts and float updates give the
// bits of ref. Real tiles are tested by test_linear_paths where the machine has them.
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/tiled.h"

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

int
main(void)
{
    Suite *suite = suite_create("amx");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 200);
    tcase_add_test(all, tiles_give_the_bits_of_ref);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
