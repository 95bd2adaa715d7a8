// Linear layers of any number of tokens as GPUs before Hopper take them (linear.cu, linear_mma.cuh) by a CPU give the bits of kernels/cpu/ref,
// within the shared memory that those have.
//
//     older [all] [eager]    with `all` every format, shape and number of tokens
#include "linear.h"
#include "state.h"

#include "kernels/cuda/linear_deep_call.cuh"
#include "kernels/cuda/linear_products.cuh"
#include "kernels/cuda/linear_wide_call.cuh"
#include "kernels/cuda/ready.cuh"

// Shared memory of a block of threads, in KiB; multiprocessors.
static const struct {
    uint32_t shared;
    int sms;
} ways[] = {{163, 108}, {99, 142}, {99, 3}};
static uint32_t calls, plain_calls;
static bool all;

// ---- what bt_cuda_linear asks first ----

bool
bt_cuda_wants_half(const bt_cuda *, const linear_call *)
{
    return false;
}

bool
bt_cuda_wants_products(const bt_cuda *, const bt_linear_args *, const linear_call *)
{
    return false;
}

bool
bt_cuda_wants_deep(const bt_cuda *, const linear_call *, bt_cuda_a8_order *)
{
    return false;
}

bool
bt_cuda_wants_wide(const bt_cuda *, const linear_call *, bt_cuda_a8_order *)
{
    return false;
}

bool
bt_cuda_takes_few(bt_cuda *, const bt_linear_args *, const linear_call *, bool *taken)
{
    *taken = false;
    return true;
}

bt_err
bt_cuda_linear_few(bt_cuda *, const bt_linear_args *, const linear_call *, bool *taken)
{
    *taken = false;
    return BT_OK;
}

bt_err
bt_cuda_linear_half(bt_cuda *, const bt_linear_args *, linear_call *)
{
    return BT_ERR_UNSUPPORTED;
}

bt_err
bt_cuda_products(bt_cuda *, const bt_linear_args *, linear_call *)
{
    return BT_ERR_UNSUPPORTED;
}

bt_err
bt_cuda_linear_deep(bt_cuda *, const linear_call *)
{
    return BT_ERR_UNSUPPORTED;
}

bt_err
bt_cuda_linear_wide(bt_cuda *, const linear_call *, bt_cuda_leaves *)
{
    return BT_ERR_UNSUPPORTED;
}

bt_row_target
bt_cuda_next_target(const bt_cuda *, const bt_linear_next *, uint32_t, bt_cuda_a8_order)
{
    return bt_row_target();
}

void
bt_cuda_remember(bt_cuda *, const bt_linear_next *, const float *, size_t, uint32_t, bt_cuda_a8_order, bool)
{
}

// ---- cases ----

static bool
run(const bt_linear_args *args)
{
    ck_assert_int_eq(bt_cuda_linear((bt_device *)&cuda, args), BT_OK);
    ck_assert_uint_le(emu_shared_bytes, cuda.shared_max);
    calls++, plain_calls += emu_shared_bytes == 0;
    return true;
}

static void
cases(bt_format f, uint32_t tokens, uint32_t seed)
{
    bool nibbles = f.bits == 4;
    linear_shape s[6];

    emu_odd_shapes(s, 6, f, tokens, seed);
    s[1].rows[0] = s[1].rows[1] = 56, s[1].cols = 4096;
    s[2].rows[0] = 40, s[2].cols = 6208;
    s[4].rows[0] = 24, s[4].cols = 14336;
    s[5].rows[0] = 16, s[5].cols = 28672;
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t before = plain_calls;

        if (all || (i + seed) % 6 == 0 || (i == 4 && tokens == 64)) {
            emu_agrees(&s[i], run);
            // 28 segments of 8 bits are more than an sm_89 has room for, even for eight tokens.
            ck_assert_msg(plain_calls == before || (i == 5 && !nibbles) || (i == 5 && f.asymmetric),
                          "by the plain kernel: %s", linear_shape_name(&s[i]));
        }
    }
}

START_TEST(as_an_older_gpu_takes_them_linear_layers_give_the_bits_of_ref)
{
    static const bt_format formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, true, 32, 32},
                                        {BT_WEIGHT_INT, 8, false, 0, 0},     {BT_WEIGHT_INT, 8, false, 32, 32},
                                        {BT_WEIGHT_INT, 8, false, 0, 128},   {BT_WEIGHT_INT, 6, true, 128, 128},
                                        {BT_WEIGHT_INT, 4, false, 64, 64}};
    static const uint32_t tokens[] = {1, 8, 9, 16, 17, 32, 33, 64, 70};
    uint32_t n = (uint32_t)_i;

    emu_device(ways[_i].sms, 192, 28672, 128);
    cuda.shared_max = ways[_i].shared << 10;
    for (uint32_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (uint32_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            if (all || t == (f == 0 ? 7 : (f * 2 + (uint32_t)_i) % 9)) {
                cases(formats[f], tokens[t], ++n);
            }
        }
    }
    printf("%u KiB, %d multiprocessors%s: %u calls, all equal, %u by the plain kernel\n", ways[_i].shared, cuda.sms,
           emu_eager ? ", eager" : "", calls, plain_calls);
}
END_TEST

START_TEST(huge_activations_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {1, 32};

    emu_device(ways[0].sms, 192, 28672, 128);
    cuda.shared_max = ways[0].shared << 10;
    for (int i = 0; i < 2; i++) {
        linear_shape s = emu_huge(tokens[i]);

        emu_agrees(&s, run);
    }
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");

    all = emu_asked(argc, argv);
    tcase_add_loop_test(tests, as_an_older_gpu_takes_them_linear_layers_give_the_bits_of_ref, 0,
                        (int)(sizeof ways / sizeof *ways));
    tcase_add_test(tests, huge_activations_give_the_bits_of_ref);
    return emu_main(tests);
}
