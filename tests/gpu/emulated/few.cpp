// linear_few.cuh and few_staged.cuh by a CPU give the bits of kernels/cpu/ref.
//
//     few SMS [eager]    so many multiprocessors
#include "kernels/cuda/few_items.cuh"

#include <check.h>

extern "C" {
#include "kernels/cpu/ref/quantise.h"
#include "tests/kernels/linear_case.h"
}

#include "call_of.h" // cut from kernels/cuda/linear.cu by run.sh

static bt_cuda cuda;
static bt_device *ref;
static uint32_t calls, taken_calls;

// ---- what the kernels' host side calls ----

bt_err
bt_cuda_check(bt_cuda *, cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", what), abort();
    }
    return BT_OK;
}

extern "C" bt_err bt_cuda_open(bt_device **, const bt_device_options *, bt_why *) { return BT_ERR_UNSUPPORTED; }
extern "C" bt_err bt_cuda_foresee(bt_device_needs *, const bt_device_limits *, bt_why *) { return BT_ERR_UNSUPPORTED; }

// What is not written is no number: other tokens' codes and scales.
bt_err
bt_cuda_prologue(bt_cuda *c, const bt_linear_args *a, bt_cuda_a8_order order)
{
    uint32_t cols = a->weights[0]->cols, padded = bt_cols_padded(cols), stride = bt_cuda_a8_columns(cols);
    uint32_t act = a->weights[0]->format.act_block, blocks = bt_ref_act_blocks(act, cols);
    float *x = (float *)malloc(padded * 4), *scales = (float *)malloc(padded * 4);
    int8_t *codes = (int8_t *)malloc(padded);

    memset(c->a8, 0x77, (size_t)stride * 64), memset(c->sa, 0xff, (size_t)stride / 32 * c->sa_stride * 4);
    for (uint32_t t = 0; t < a->tokens; t++) {
        bt_ref_norm_row(a->x + t * a->x_stride, cols, a->norm, a->norm_eps, x);
        bt_ref_quantise_row(x, cols, act, codes, scales);
        for (uint32_t k = 0; k < stride; k++) {
            c->a8[bt_cuda_a8_in(order, stride, t, k)] = k < padded ? codes[k] : 0;
        }
        for (uint32_t b = 0; b < blocks; b++) {
            c->sa[b * bt_cuda_sa_stride(c, a->tokens) + t] = scales[b];
        }
    }
    free(x), free(scales), free(codes);
    return BT_OK;
}

// ---- cases ----

static void
agree(const linear_shape *shape)
{
    static bt_ops ops;
    linear_case a, b;
    linear_call c;
    bool taken = false;
    size_t at;

    ops.weight_bytes = bt_cuda_weight_bytes, ops.weight_pack = bt_cuda_weight_pack;
    linear_case_init(&a, shape, bt_device_ops(ref));
    if (bt_device_ops(ref)->linear(ref, &a.args) != BT_OK) {
        abort();
    }
    linear_case_init(&b, shape, &ops);
    c = call_of(&cuda, &b.args);
    c.order = BT_A8_FRAGMENTS;
    bt_cuda_linear_few(&cuda, &b.args, &c, &taken);
    calls++, taken_calls += taken;
    at = taken ? first_difference(a.y, b.y, a.y_count) : a.y_count;
    if (at != a.y_count) {
        printf("%s: y[%zu][%zu] is %.9g, ref says %.9g\n", linear_shape_name(shape), at / a.args.y_stride,
               at % a.args.y_stride, b.y[at], a.y[at]);
        exit(1);
    }
    if (!taken) {
        printf("not taken: %s\n", linear_shape_name(shape));
    }
    linear_case_fini(&a), linear_case_fini(&b);
}

static void
format_cases(bt_format f, uint32_t tokens, uint32_t seed)
{
    linear_shape s[9];

    memset(s, 0, sizeof s);
    for (int i = 0; i < 9; i++) {
        for (int p = 0; p < 3; p++) {
            s[i].formats[p] = f;
        }
        s[i].part_count = 1, s[i].tokens = tokens, s[i].seed = seed * 10 + (uint32_t)i, s[i].scale = 1.0f;
        s[i].outliers = i != 3, s[i].outlier_every = i % 2 ? 700 : 0;
    }
    s[0].part_count = 3, s[0].rows[0] = 100, s[0].rows[1] = 40, s[0].rows[2] = 17, s[0].cols = 1152;
    s[0].norm = s[0].bias = true;
    s[1].part_count = 2, s[1].rows[0] = s[1].rows[1] = 120, s[1].cols = 576, s[1].epilogue = BT_LINEAR_SILU_MUL;
    s[1].norm = true;
    s[2].rows[0] = 130, s[2].cols = 2240, s[2].epilogue = BT_LINEAR_ADD, s[2].scale = 0.5f, s[2].softcap = 30.0f;
    s[3].rows[0] = 20, s[3].cols = 172;
    s[4].rows[0] = 60, s[4].cols = 5184, s[4].epilogue = BT_LINEAR_ADD;
    s[5].rows[0] = 100, s[5].cols = tokens == 16 ? 14336 : 6144;
    s[6].rows[0] = 16, s[6].cols = tokens % 4 == 0 ? 28672 : 9280;
    // A block with so many tiles that their sums meet in several chunks: of codes that stay, and of codes that come anew for each.
    s[7].rows[0] = 300, s[7].cols = 2240, s[7].epilogue = BT_LINEAR_ADD;
    s[8].part_count = 2, s[8].rows[0] = s[8].rows[1] = 104, s[8].cols = tokens > 8 ? 14336 : 6144, s[8].epilogue = BT_LINEAR_GELU_MUL;
    for (int i = 0; i < (cuda.sms == 1 ? 9 : 7); i++) {
        agree(&s[i]);
    }
}

static int arg_count;
static char **arg;

START_TEST(few_tokens_give_the_bits_of_ref)
{
    static const bt_format formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, false, 64, 64},
                                        {BT_WEIGHT_INT, 4, false, 32, 32},   {BT_WEIGHT_INT, 8, false, 32, 32},
                                        {BT_WEIGHT_INT, 8, false, 0, 0},     {BT_WEIGHT_INT, 8, false, 0, 128},
                                        {BT_WEIGHT_INT, 8, false, 0, 32},    {BT_WEIGHT_INT, 5, false, 32, 64},
                                        {BT_WEIGHT_INT, 6, false, 64, 128}};
    static const uint32_t tokens[] = {1, 2, 5, 8, 9, 12, 13, 16};
    size_t stride = 28672;
    uint32_t n = 0;

    cuda.sms = arg_count > 1 ? atoi(arg[1]) : 3, cuda.few = true;
    emulated_eager = arg_count > 2;
    cuda.shared_max = 227 * 1024, cuda.sa_stride = 64;
    cuda.a8 = (int8_t *)aligned_alloc(128, stride * 64), cuda.sa = (float *)aligned_alloc(128, stride / 32 * 64 * 4);
    ref = linear_device("ref", 1, 64, 28672, 4096);
    for (uint32_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (uint32_t t = 0; t < 8; t++) {
            if (f == 0 || (t + f) % 4 == 0) {
                format_cases(formats[f], tokens[t], ++n);
            }
        }
    }
    printf("%d SMs%s: %u calls, %u taken, all equal\n", cuda.sms, emulated_eager ? ", eager" : "", calls, taken_calls);
}
END_TEST

int
main(int argc, char **argv)
{
    Suite *s = suite_create("linear, few tokens, emulated");
    TCase *t = tcase_create("all");
    SRunner *r;

    arg_count = argc, arg = argv;
    tcase_add_test(t, few_tokens_give_the_bits_of_ref);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_NORMAL);
    return srunner_ntests_failed(r) != 0;
}
