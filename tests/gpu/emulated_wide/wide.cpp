// linear_wide.cuh by a CPU gives the bits of kernels/cpu/ref.
//
//     wide SLOTS SMS CLUSTERS FORMATS [eager]    blocks at once; multiprocessors (1 or 2: blocks of 256 rows for some); of them, those that
//                                                clusters find (few: sums meet in global memory); 1 = all formats, 0 = q4. ONLY in the
//                                                environment: one shape.
#include "kernels/cuda/linear_wide_call.cuh"
#include "kernels/cuda/linear_wide_shape.cuh"
extern "C" {
#include "kernels/cpu/ref/quantise.h"
#include "tests/kernels/linear_case.h"
}
#include <check.h>
#include "call_of.h"
static bt_cuda cuda;
static bt_device *ref;
static uint32_t calls;
bt_err
bt_cuda_check(bt_cuda *, cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "%s: %d\n", what, e);
        abort();
    }
    return BT_OK;
}
extern "C" bt_err
bt_cuda_open(bt_device **, const bt_device_options *, bt_why *)
{
    return BT_ERR_UNSUPPORTED;
}
extern "C" bt_err
bt_cuda_foresee(bt_device_needs *, const bt_device_limits *, bt_why *)
{
    return BT_ERR_UNSUPPORTED;
}
static void
prologue(bt_cuda *c, const bt_linear_args *a, bt_cuda_a8_order order)
{
    uint32_t cols = a->weights[0]->cols, padded = bt_cols_padded(cols), stride = bt_cuda_a8_columns(cols);
    uint32_t act = a->weights[0]->format.act_block, blocks = bt_ref_act_blocks(act, cols);
    float *x = (float *)malloc(padded * 4), *scales = (float *)malloc(padded * 4);
    int8_t *codes = (int8_t *)malloc(padded);
    memset(c->a8, 0x77, (size_t)stride * 320), memset(c->sa, 0xff, (size_t)stride / 32 * c->sa_stride * 4),
        memset(c->normed, 0xff, (size_t)stride * 320 * 4);
    for (uint32_t t = 0; t < a->tokens; t++) {
        bt_ref_norm_row(a->x + t * a->x_stride, cols, a->norm, a->norm_eps, x);
        bt_ref_quantise_row(x, cols, act, codes, scales);
        for (uint32_t k = 0; k < stride; k++)
            c->a8[bt_cuda_a8_in(order, stride, t, k)] = k < padded ? codes[k] : 0;
        for (uint32_t b = 0; b < stride / (act ? act : stride); b++)
            c->sa[b * c->sa_stride + t] = b < blocks ? scales[b] : 0;
        for (uint32_t b = 0; b < stride / 32; b++) {
            int32_t s = 0;
            for (uint32_t k = b * 32; k < b * 32 + 32; k++)
                s += k < padded ? codes[k] : 0;
            c->sums[b * c->sa_stride + t] = s;
        }
    }
    free(x), free(scales), free(codes);
}
static void
agree(const linear_shape *shape)
{
    static bt_ops ops;
    linear_case a, b;
    linear_call c;
    size_t at;
    ops.weight_bytes = bt_cuda_weight_bytes, ops.weight_pack = bt_cuda_weight_pack;
    linear_case_init(&a, shape, bt_device_ops(ref));
    if (bt_device_ops(ref)->linear(ref, &a.args) != BT_OK)
        abort();
    linear_case_init(&b, shape, &ops);
    c = call_of(&cuda, &b.args);
    if (!bt_cuda_wants_wide(&cuda, &c, &c.order)) {
        printf("not wanted: %s\n", linear_shape_name(shape));
        return;
    }
    prologue(&cuda, &b.args, c.order);
    bt_cuda_linear_wide(&cuda, &c);
    calls++;
    for (int i = 0; i < 4096; i++)
        if (cuda.meetings[i] != 0) {
            printf("%s: counter %d is left at %u\n", linear_shape_name(shape), i, cuda.meetings[i]);
            exit(1);
        }
    at = first_difference(a.y, b.y, a.y_count);
    if (at != a.y_count) {
        printf("%s: y[%zu][%zu] is %.9g, ref says %.9g\n", linear_shape_name(shape), at / a.args.y_stride,
               at % a.args.y_stride, b.y[at], a.y[at]);
        exit(1);
    }
    printf("%s good\n", linear_shape_name(shape));
    fflush(stdout);
    linear_case_fini(&a), linear_case_fini(&b);
}
static void
cases(bt_format f, uint32_t tokens, uint32_t seed)
{
    linear_shape s[6];
    memset(s, 0, sizeof s);
    for (int i = 0; i < 6; i++) {
        for (int p = 0; p < 3; p++)
            s[i].formats[p] = f;
        s[i].part_count = 1, s[i].tokens = tokens, s[i].seed = seed * 10 + i, s[i].scale = 1.0f, s[i].outliers = i != 3;
    }
    s[0].part_count = 3, s[0].rows[0] = 100, s[0].rows[1] = 40, s[0].rows[2] = 17, s[0].cols = 1152,
    s[0].norm = s[0].bias = true;
    s[1].part_count = 2, s[1].rows[0] = s[1].rows[1] = 200, s[1].cols = 576, s[1].epilogue = BT_LINEAR_SILU_MUL,
    s[1].norm = true;
    s[2].rows[0] = 130, s[2].cols = 2240, s[2].epilogue = BT_LINEAR_ADD, s[2].scale = 0.5f, s[2].softcap = 30.0f;
    s[3].rows[0] = 20, s[3].cols = 172;
    s[4].rows[0] = 60, s[4].cols = 5184, s[4].epilogue = BT_LINEAR_ADD;
    s[5].rows[0] = 300, s[5].cols = 4096, s[5].epilogue = BT_LINEAR_ADD;
    int only = getenv("ONLY") ? atoi(getenv("ONLY")) : -1;
    for (int i = 0; i < 6; i++)
        if (only < 0 || only == i)
            agree(&s[i]);
}
static int argc;
static char **argv;
START_TEST(all_cases)
{
    static const bt_format formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128},
                                        {BT_WEIGHT_INT, 4, true, 32, 32},
                                        {BT_WEIGHT_INT, 8, false, 0, 0},
                                        {BT_WEIGHT_INT, 8, false, 0, 128},
                                        {BT_WEIGHT_INT, 4, false, 64, 64}};
    static const uint32_t tokens[] = {17, 32, 33, 64, 70, 129};
    size_t stride = 5248;
    int all = atoi(argv[4]);
    emu_slots = (uint32_t)atoi(argv[1]);
    emu_eager = argc > 5;
    for (int i = 1; i < 9; i++)
        emu_clusters[i] = i == 1 ? 132 : atoi(argv[3]) / i;
    cuda.sms = atoi(argv[2]), cuda.wide = true, cuda.shared_max = 227 * 1024, cuda.sa_stride = 320;
    cuda.a8 = (int8_t *)aligned_alloc(256, stride * 320), cuda.sa = (float *)aligned_alloc(256, stride / 32 * 320 * 4),
    cuda.sums = (int32_t *)aligned_alloc(256, stride / 32 * 320 * 4);
    cuda.normed = (float *)aligned_alloc(256, stride * 320 * 4), cuda.partial_floats = 16 << 20,
    cuda.partials = (float *)aligned_alloc(256, cuda.partial_floats * 4), cuda.meetings = (uint32_t *)calloc(4096, 4);
    ref = linear_device("ref", 1, 320, 5248, 4096);
    for (int f = 0; f < (all ? 5 : 1); f++)
        for (int t = 0; t < 6; t++)
            if (f == 0 || (t + f) % 3 == 0)
                cases(formats[f], tokens[t], (uint32_t)(f * 6 + t));
    printf("slots %u, multiprocessors %d: %u calls, all equal\n", emu_slots, cuda.sms, calls);
}
END_TEST
int
main(int c, char **v)
{
    Suite *s = suite_create("wide");
    TCase *t = tcase_create("all");
    SRunner *r;
    argc = c, argv = v;
    tcase_add_test(t, all_cases);
    tcase_set_timeout(t, 0);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_NORMAL);
    return srunner_ntests_failed(r) != 0;
}
