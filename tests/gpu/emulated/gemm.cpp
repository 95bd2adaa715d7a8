// INT8 prompts (linear_prompt.cu) by a CPU give the bits of kernels/cpu/ref.
//
//     gemm [all] [eager]    with `all` more shapes
#include "linear.h"

#include "kernels/cuda/linear_products.cuh"

static uint32_t calls;
static bool all;

static uint32_t
largest_of(const linear_call *c, uint32_t token)
{
    uint32_t most = 0;

    for (uint32_t k = 0; k < c->part[0].rows; k++) {
        uint32_t bits;

        memcpy(&bits, &c->y[token * c->y_stride + k], 4);
        most = max(most, bits & 0x7fffffffu);
    }
    return most;
}

static bool
run(const bt_linear_args *args)
{
    linear_call c = call_of(&cuda, args);

    if (!bt_cuda_wants_prompt(&cuda, &c)) {
        return false;
    }
    c.order = BT_A8_ROWS;
    emu_prologue(&cuda, args, c.order);
    memset(cuda.amax, 0, c.tokens * 4);
    bt_cuda_prompt(&cuda, &c, c.paired ? cuda.amax : NULL);
    for (uint32_t t = 0; t < c.tokens && c.paired; t++) {
        ck_assert_uint_eq(cuda.amax[t], largest_of(&c, t));
    }
    calls++;
    return true;
}

START_TEST(prompts_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {300, 600, 257};
    bt_format f = {BT_WEIGHT_INT, 8, false, 0, 0};

    emu_device(_i != 0 ? 4 : 2, 768, 2304, 4096);
    cuda.gemm = true;
    emu_slots = (uint32_t)cuda.sms;
    for (uint32_t t = 0; t < (all ? 3 : 1); t++) {
        linear_shape s[3];

        emu_shapes(s, 3, f, tokens[t], (uint32_t)_i * 10 + t);
        s[0].part_count = 3, s[0].rows[0] = 272, s[0].rows[1] = 48, s[0].rows[2] = 16, s[0].cols = 1152, s[0].bias = true;
        s[1].part_count = 2, s[1].rows[0] = s[1].rows[1] = 304, s[1].cols = 1088, s[1].epilogue = BT_LINEAR_SILU_MUL;
        s[1].norm = true;
        s[2].rows[0] = 288, s[2].cols = 2240, s[2].epilogue = BT_LINEAR_ADD, s[2].scale = 0.5f;
        for (uint32_t i = 0; i < 3; i++) {
            s[i].outliers = false, s[i].seed |= 1; // (rows of y at even places)
            ck_assert_msg(emu_agrees(&s[i], run), "not wanted: %s", linear_shape_name(&s[i]));
        }
    }
    printf("%d multiprocessors%s: %u calls, all equal\n", cuda.sms, emu_eager ? ", eager" : "", calls);
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");

    all = emu_asked(argc, argv);
    cuda.amax = (uint32_t *)calloc(1024, 4);
    tcase_set_timeout(tests, 0);
    tcase_add_loop_test(tests, prompts_give_the_bits_of_ref, 0, 2);
    return emu_main(tests);
}
