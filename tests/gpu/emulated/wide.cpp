// Linear layers of 9 tokens and more (linear_wide.cu) by a CPU give the bits of kernels/cpu/ref.
//
//     wide [all] [eager]    with `all` every format, shape and width
#include "linear.h"

#include "kernels/cuda/linear_wide_call.cuh"
#include "kernels/cuda/linear_wide_shape.cuh"

#define MEETINGS 4096

// Blocks at once; multiprocessors; of them, those that clusters find.
static const struct {
    uint32_t slots;
    int sms, clustered;
} ways[] = {
    {6, 132, 99}, // clusters
    {9, 132, 8},  // sums meet in global memory
    {6, 2, 1},    // blocks of 256 rows for some; no cluster finds room
};
static uint32_t calls, left;
static bool all;

static void
make_room(void)
{
    cuda.partial_floats = 16 << 20;
    cuda.partials = emu_array<float>(cuda.partial_floats);
    cuda.meetings = (uint32_t *)calloc(MEETINGS, 4);
}

// Where a pair leaves its y for a call that wants it in one or another order.
static bt_cuda_leaves
leaves_of(const linear_call *c)
{
    bt_cuda_leaves leaves;

    memset(&leaves, 0, sizeof leaves);
    if (c->paired) {
        leaves.to.cols = c->part[0].rows, leaves.to.act_block = 128;
        leaves.to.order = (bt_cuda_a8_order)(c->tokens % 3);
        leaves.to.a8 = cuda.a8_next, leaves.to.sa = cuda.sa_next;
        leaves.to.a8_stride = bt_cuda_a8_columns(leaves.to.cols);
        leaves.to.sa_stride = bt_cuda_sa_stride(&cuda, c->tokens);
        leaves.write = true;
    }
    return leaves;
}

// What was left is what the prologue makes of y.
static void
check_left(const linear_call *c, const bt_row_target *to)
{
    bt_weight next = {.format = {BT_WEIGHT_INT, 4, false, 128, 128}, .rows = 16, .cols = to->cols};
    bt_linear_args args = {.weights = {&next}, .weight_count = 1, .tokens = c->tokens, .x = c->y};

    args.x_stride = c->y_stride;
    emu_prologue(&cuda, &args, to->order);
    for (uint32_t t = 0; t < c->tokens; t++) {
        for (uint32_t k = 0; k < to->a8_stride; k++) {
            size_t at = bt_cuda_a8_in(to->order, to->a8_stride, t, k), sa = k / 128 * to->sa_stride + t;

            ck_assert_msg(to->a8[at] == cuda.a8[at] && to->sa[sa] == cuda.sa[sa],
                          "left of token %u, column %u: %d times %.9g, not %d times %.9g", t, k, to->a8[at], to->sa[sa],
                          cuda.a8[at], cuda.sa[sa]);
        }
    }
    left++;
}

static bool
run(const bt_linear_args *args)
{
    linear_call c = call_of(&cuda, args);
    bt_cuda_leaves leaves = leaves_of(&c);

    if (!bt_cuda_wants_wide(&cuda, &c, &c.order)) {
        return false;
    }
    emu_prologue(&cuda, args, c.order);
    bt_cuda_linear_wide(&cuda, &c, &leaves);
    if (leaves.to.a8 != NULL) {
        check_left(&c, &leaves.to);
    }
    for (int i = 0; i < MEETINGS; i++) {
        ck_assert_uint_eq(cuda.meetings[i], 0);
    }
    calls++;
    return true;
}

static void
cases(bt_format f, uint32_t tokens, uint32_t seed)
{
    linear_shape s[6];

    emu_odd_shapes(s, 6, f, tokens, seed);
    s[1].cols = seed % 2 == 0 ? 576 : 3456;
    s[5].rows[0] = 300, s[5].cols = 4096, s[5].epilogue = BT_LINEAR_ADD;
    for (uint32_t i = 0; i < (all ? 6 : 3); i++) {
        ck_assert_msg(emu_agrees(&s[i], run), "not wanted: %s", linear_shape_name(&s[i]));
    }
}

START_TEST(many_tokens_give_the_bits_of_ref)
{
    static const bt_format formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128},
                                        {BT_WEIGHT_INT, 4, true, 32, 32},
                                        {BT_WEIGHT_INT, 8, false, 0, 0},
                                        {BT_WEIGHT_INT, 8, false, 0, 128},
                                        {BT_WEIGHT_INT, 4, false, 64, 64}};
    static const uint32_t tokens[] = {17, 32, 33, 64, 70, 90, 100, 129, 9, 16};

    emu_device(ways[_i].sms, 320, 5248, 4096);
    cuda.wide = true;
    emu_slots = ways[_i].slots;
    memset(cuda.clusters, 0, sizeof cuda.clusters); // which are asked for once
    for (int i = 1; i <= 8; i++) {
        emu_clusters[i] = i == 1 ? 132 : ways[_i].clustered / i;
    }
    for (uint32_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        for (uint32_t t = 0; t < 10; t++) {
            bool sample = (t == 0 && (f == 0 || (f == 3 && _i == 0))) || (t == 9 && f == 0);

            if ((all ? f == 0 || (t + f) % 3 == 0 : sample) && (t < 8 || (formats[f].bits == 4 && !formats[f].asymmetric))) {
                cases(formats[f], tokens[t], f * 10 + t);
            }
        }
    }
    ck_assert_msg(cuda.sms != 2 || left != 0, "no call left what the next one begins with");
    printf("%u blocks at once, %d multiprocessors%s: %u calls, all equal, of which %u left INT8\n", emu_slots, cuda.sms,
           emu_eager ? ", eager" : "", calls, left);
}
END_TEST

// More rows than two rounds of the GPU, of which the last is no whole item.
START_TEST(heads_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {17, 64, 129}, rows[] = {2064, 1300, 1424};
    linear_shape s;

    emu_device(_i == 0 ? 4 : 2, 320, 5248, 4096);
    cuda.wide = true;
    emu_slots = 6;
    emu_shapes(&s, 1, {BT_WEIGHT_INT, 8, false, 0, 0}, tokens[_i], 7 + _i);
    s.rows[0] = rows[_i], s.cols = 1024 + 300 * _i, s.outliers = false, s.norm = true;
    s.scale = _i == 1 ? 0.25f : 1.0f, s.softcap = _i == 2 ? 30.0f : 0.0f;
    ck_assert(emu_agrees(&s, run));
}
END_TEST

START_TEST(huge_activations_give_the_bits_of_ref)
{
    linear_shape s = emu_huge(32);

    emu_device(ways[0].sms, 320, 5248, 4096);
    cuda.wide = true;
    emu_slots = ways[0].slots;
    ck_assert(emu_agrees(&s, run));
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");

    all = emu_asked(argc, argv);
    make_room();
    tcase_add_loop_test(tests, many_tokens_give_the_bits_of_ref, 0, (int)(sizeof ways / sizeof *ways));
    tcase_add_loop_test(tests, heads_give_the_bits_of_ref, 0, 3);
    tcase_add_test(tests, huge_activations_give_the_bits_of_ref);
    return emu_main(tests);
}
