// Prompts of symmetric 4-bit codes (linear_deep.cu) by a CPU give the bits of kernels/cpu/ref.
//
//     deep [all] [eager]    with `all` every shape and width
#include "linear.h"

#include "kernels/cuda/linear_deep_call.cuh"

static uint32_t calls;
static bool all;

static bool
run(const bt_linear_args *args)
{
    linear_call c = call_of(&cuda, args);

    c.order = BT_A8_ROWS_PAIRED; // of so few tokens it is not asked for
    emu_prologue(&cuda, args, c.order);
    bt_cuda_linear_deep(&cuda, &c);
    for (uint32_t i = 0; i < BT_CUDA_MEETINGS; i++) {
        ck_assert_uint_eq(cuda.meetings[i], 0);
    }
    calls++;
    return true;
}

static void
cases(uint32_t tokens, uint32_t seed)
{
    static const bt_format f = {BT_WEIGHT_INT, 4, false, 128, 128};
    linear_shape s[6];

    emu_odd_shapes(s, 6, f, tokens, seed);
    s[0].cols = 4160, s[0].rows[0] = 190, s[0].rows[1] = 128, s[0].rows[2] = 40;
    s[1].cols = 1088, s[4].rows[0] = 260;
    s[5].rows[0] = 300, s[5].cols = 4096, s[5].epilogue = BT_LINEAR_ADD;
    for (uint32_t i = 0; i < (all ? 6 : 5); i++) {
        ck_assert_msg(emu_agrees(&s[i], run), "%s", linear_shape_name(&s[i]));
    }
}

START_TEST(prompts_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {129, 257, 180};

    emu_device(_i == 0 ? 132 : 2, 384, 5248, 4096);
    cuda.deep = true;
    emu_slots = 6;
    for (uint32_t t = 0; t < (all ? 3 : 1); t++) {
        cases(tokens[t], t);
    }
    printf("%d multiprocessors%s: %u calls, all equal\n", cuda.sms, emu_eager ? ", eager" : "", calls);
}
END_TEST

START_TEST(huge_activations_give_the_bits_of_ref)
{
    linear_shape s = emu_huge(129);

    emu_device(132, 384, 5248, 4096);
    cuda.deep = true;
    emu_slots = 6;
    ck_assert(emu_agrees(&s, run));
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");

    all = emu_asked(argc, argv);
    cuda.limits.cols = 5248, cuda.s32_tokens = 2048;
    cuda.s32 = emu_array<int32_t>((size_t)2048 * 4 * 5248);
    cuda.meetings = (uint32_t *)calloc(BT_CUDA_MEETINGS, 4);
    tcase_add_loop_test(tests, prompts_give_the_bits_of_ref, 0, 2);
    tcase_add_test(tests, huge_activations_give_the_bits_of_ref);
    return emu_main(tests);
}
