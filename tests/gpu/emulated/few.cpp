// Linear layers of few tokens (linear_few.cu, linear_few_staged.cu) by a CPU give the bits of kernels/cpu/ref.
//
//     few [all] [eager]    with `all` every format and width, on one multiprocessor as on three
#include "linear.h"

#include "kernels/cuda/few_items.cuh"
#include "kernels/cuda/linear_wide_call.cuh"

static uint32_t calls, taken_calls;
static bool all;

bool
bt_cuda_wants_wide(const bt_cuda *, const linear_call *, bt_cuda_a8_order *)
{
    return false;
}

static bool
run(const bt_linear_args *args)
{
    linear_call c = call_of(&cuda, args);
    bool taken = false;

    c.order = BT_A8_FRAGMENTS;
    bt_cuda_linear_few(&cuda, args, &c, &taken);
    calls++, taken_calls += taken;
    return taken;
}

static void
format_cases(bt_format f, uint32_t tokens, uint32_t seed)
{
    linear_shape s[9];

    emu_odd_shapes(s, 9, f, tokens, seed);
    for (int i = 0; i < 9; i++) {
        s[i].outlier_every = i % 2 ? 700 : 0;
    }
    s[1].rows[0] = s[1].rows[1] = 120;
    s[5].rows[0] = 100, s[5].cols = tokens == 16 ? 14336 : 6144;
    s[6].rows[0] = 16, s[6].cols = tokens % 4 == 0 ? 28672 : 9280;
    // A block with so many tiles that their sums meet in several chunks: of codes that stay, and of codes that come anew for each.
    s[7].rows[0] = 300, s[7].cols = 2240, s[7].epilogue = BT_LINEAR_ADD;
    s[8].part_count = 2, s[8].rows[0] = s[8].rows[1] = 104, s[8].cols = tokens > 8 ? 14336 : 6144;
    s[8].epilogue = BT_LINEAR_GELU_MUL;
    for (uint32_t i = 0; i < (cuda.sms == 1 ? 9 : 7); i++) {
        if (all || (i + seed) % 8 == 0) {
            emu_agrees(&s[i], run);
        }
    }
}

START_TEST(few_tokens_give_the_bits_of_ref)
{
    static const bt_format formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, false, 64, 64},
                                        {BT_WEIGHT_INT, 4, false, 32, 32},   {BT_WEIGHT_INT, 8, false, 32, 32},
                                        {BT_WEIGHT_INT, 8, false, 0, 0},     {BT_WEIGHT_INT, 8, false, 0, 128},
                                        {BT_WEIGHT_INT, 8, false, 0, 32},    {BT_WEIGHT_INT, 5, false, 32, 64},
                                        {BT_WEIGHT_INT, 6, false, 64, 128}};
    static const uint32_t tokens[] = {1, 2, 5, 8, 9, 12, 13, 16};
    uint32_t n = 0;

    emu_device(_i == 0 ? 3 : 1, 64, 28672, 4096);
    cuda.few = true;
    for (uint32_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (uint32_t t = 0; t < 8; t++) {
            if (f == 0 || (t + f) % 4 == 0) {
                format_cases(formats[f], tokens[t], ++n);
            }
        }
    }
    printf("%d multiprocessors%s: %u calls, %u taken, all equal\n", cuda.sms, emu_eager ? ", eager" : "", calls,
           taken_calls);
    ck_assert_uint_gt(taken_calls, calls / 2);
}
END_TEST

// linear_one.cuh and linear_lean.cuh, which are not asked for anything but these: each part, a block with more tiles than another, items for more
// rounds than one, and of more than eight tokens an odd number of segments.
START_TEST(plain_calls_give_the_bits_of_ref)
{
    static const linear_shape shapes[] = {
        {.part_count = 3, .rows = {64, 32, 16}, .cols = 2048, .norm = true, .outliers = true},
        {.part_count = 2, .rows = {80, 80}, .cols = 4096, .norm = true, .outliers = true, .epilogue = BT_LINEAR_SILU_MUL},
        {.part_count = 1, .rows = {112}, .cols = 6144, .outliers = true, .epilogue = BT_LINEAR_ADD, .scale = 0.5f},
        {.part_count = 1, .rows = {32}, .cols = 14336, .outliers = true, .epilogue = BT_LINEAR_ADD},
        {.part_count = 1, .rows = {16}, .cols = 1024, .norm = true},
        {.part_count = 1, .rows = {48}, .cols = 16384, .outliers = true, .outlier_every = 700},
        {.part_count = 2, .rows = {32, 32}, .cols = 3072, .outliers = true, .epilogue = BT_LINEAR_GELU_MUL},
        {.part_count = 1, .rows = {512}, .cols = 1024, .norm = true, .outliers = true},
        {.part_count = 2, .rows = {48, 32}, .cols = 2048, .norm = true, .outliers = true}};
    linear_shape s;

    emu_device(_i == 0 ? 3 : 1, 64, 28672, 4096);
    cuda.few = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t tokens : {1, 2, 3, 8, 9, 16}) {
            s = shapes[i], s.tokens = tokens, s.seed = 50 + i;
            s.formats[0] = s.formats[1] = s.formats[2] = {BT_WEIGHT_INT, 4, false, 128, 128};
            emu_agrees(&s, run);
        }
    }
}
END_TEST

START_TEST(huge_activations_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {1, 7, 16};

    emu_device(3, 64, 28672, 4096);
    cuda.few = true;
    for (int i = 0; i < 3; i++) {
        linear_shape s = emu_huge(tokens[i]);

        ck_assert(emu_agrees(&s, run));
    }
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");

    all = emu_asked(argc, argv);
    tcase_add_loop_test(tests, plain_calls_give_the_bits_of_ref, 0, 2);
    tcase_add_loop_test(tests, few_tokens_give_the_bits_of_ref, 0, 2);
    tcase_add_test(tests, huge_activations_give_the_bits_of_ref);
    return emu_main(tests);
}
