// Attention of sequences that bring one token each (attention_*.cu but prompts) by a CPU gives the bits
// of kernels/cpu: an emulated device is the CPU's but for these steps.
//
//     attention [all] [eager]    with `all` more shapes
#include "attention_device.h"

extern "C" {
#include "kernels/cpu/ref/quantise.h"
}

#include <vector>

// A block a split; a warp a run of splits; the same, merged by a kernel of its own; both on so few multiprocessors that short splits join
// others; warps that share heads, on many and on one; blocks that share splits or have runs of them, on many (clusters), on few and on one.
typedef enum {
    SINGLE,
    STREAM,
    STREAM_APART,
    STREAM_FULL,
    STREAM_FULL_APART,
    MEET,
    MEET_FULL,
    DECODE,
    DECODE_FEW,
    DECODE_FULL,
    WAYS
} way;

static way taken;
static uint32_t left, calls, calls_by[WAYS];

// What a step brings (step.cu), and what the kernels leave.
typedef struct {
    std::vector<uint32_t> positions, tables, blocks, arrivals;
    std::vector<float> partials;
} step;

static void
lay_out(step *s, const bt_attention_args *a)
{
    uint32_t group = a->heads / a->kv_heads, longest = 0;

    for (uint32_t i = 0; i < a->span_count; i++) {
        const bt_attention_span *span = &a->spans[i];
        uint32_t count = span->position / a->layout->block_tokens + 1;

        s->positions.push_back(span->position);
        s->tables.push_back((uint32_t)s->blocks.size());
        s->blocks.insert(s->blocks.end(), span->blocks, span->blocks + count);
        longest = max(longest, span->position + 1);
    }
    for (cuda.splits = 1; cuda.splits * BT_ATTENTION_SPLIT < longest;) {
        cuda.splits *= 2;
    }
    s->arrivals.assign(a->span_count * a->kv_heads, 0);
    s->partials.assign((size_t)a->span_count * a->kv_heads * cuda.splits * group * (BT_PARTIAL_HEAD + a->head_dim), NAN);
    cuda.tokens = a->span_count;
    cuda.partials = s->partials.data();
}

// What is left of heads of 128 for a linear layer, in one or another order, and `out`, which lies as that wants it.
typedef struct {
    bool asked;
    std::vector<int8_t> a8;
    std::vector<float> sa, out;
} codes;

static codes of_out;

void
bt_cuda_attention_leaves(bt_cuda *, attention_call *c)
{
    bt_row_target *t = &c->leaves.to;
    uint32_t cols = c->a.heads * 128;

    c->leaves.write = true;
    if (c->a.head_dim == 128) {
        of_out.asked = true;
        of_out.a8.assign((c->single_count + 8) * cols, 0x77);
        of_out.sa.assign(c->a.heads * 64, NAN);
        t->a8 = of_out.a8.data(), t->sa = of_out.sa.data(), t->a8_stride = cols, t->sa_stride = 64;
        t->order = (bt_cuda_a8_order)(c->a.heads % 3);
    }
}

// It is what the prologue makes of out.
static void
check_left(const attention_call *c)
{
    uint32_t cols = c->a.heads * 128;
    std::vector<float> scales(c->a.heads);
    std::vector<int8_t> row(cols);

    for (uint32_t token = 0; of_out.asked && token < c->single_count; token++) {
        bt_ref_quantise_row(c->a.out + token * c->a.out_stride, cols, 128, row.data(), scales.data());
        for (uint32_t k = 0; k < cols; k++) {
            float sa = of_out.sa[k / 128 * 64 + token];

            ck_assert_msg(
                of_out.a8[bt_cuda_a8_in((bt_cuda_a8_order)(c->a.heads % 3), cols, token, k)] == row[k] &&
                    (sa == scales[k / 128] || (isnan(sa) && isnan(scales[k / 128]))),
                "left of token %u, column %u", token, k);
        }
        left++;
    }
    of_out.asked = false;
}

// False: the shape is not for the way in hand.
static bool
attend_by(attention_call *c, bt_err *err)
{
    size_t items = (size_t)c->single_count * c->a.kv_heads * cuda.splits;

    if (taken >= DECODE) {
        cuda.sms = taken == DECODE ? 132 : taken == DECODE_FEW ? 3 : 1;
        cuda.single = cuda.streams = cuda.meets = false;
        cuda.step.single_count = c->single_count, cuda.arrivals = c->arrivals, cuda.partial_floats = c->partial_floats;
        *err = bt_cuda_attention_decode(&cuda, c);
        cuda.single = cuda.streams = cuda.meets = true;
        return true;
    }
    if (c->group > 8) {
        return false;
    }
    cuda.sms = taken == STREAM_FULL || taken == STREAM_FULL_APART || taken == MEET_FULL ? 1 : 132;
    if (taken == SINGLE) { // (larger groups' shared memory is more than there is here)
        bool is_single = c->group <= 4 && bt_cuda_attention_is_single(&cuda, c, items);

        *err = is_single ? bt_cuda_attention_single(&cuda, c) : BT_OK;
        return is_single;
    }
    if (taken == MEET || taken == MEET_FULL) {
        return bt_cuda_attention_meet(&cuda, c, err);
    }
    c->merge_apart = taken == STREAM_APART || taken == STREAM_FULL_APART;
    *err = bt_cuda_attention_stream(&cuda, c, items);
    *err = *err == BT_OK && c->merge_apart ? bt_cuda_merge_apart(&cuda, c) : *err;
    return true;
}

static bt_err
attend(bt_device *device, const bt_attention_args *a)
{
    attention_call c;
    bool alone = true;
    step s;
    bt_err err;

    for (uint32_t i = 0; i < a->span_count; i++) {
        alone = alone && a->spans[i].count == 1;
    }
    if (!alone) {
        return of_cpu->attention(device, a);
    }
    lay_out(&s, a);
    c = call_of(&cuda, a);
    c.positions = s.positions.data(), c.tables = s.tables.data(), c.blocks = s.blocks.data();
    c.single_count = a->span_count, c.arrivals = s.arrivals.data(), c.partial_floats = s.partials.size();
    c.block_shift = (uint32_t)__builtin_ctz(c.l.block_tokens);
    if (!attend_by(&c, &err)) {
        return of_cpu->attention(device, a);
    }
    check_left(&c);
    for (uint32_t arrivals : s.arrivals) {
        ck_assert_uint_eq(arrivals, 0);
    }
    calls++, calls_by[taken]++;
    return err;
}

// dims, heads, KV heads, tokens of a block, window, dims of RoPE; norm, shift; softcap, poison; lengths
static const struct {
    uint32_t dims, heads, kv_heads, block, window, rope;
    bool norm, shift;
    float softcap;
    uint32_t poison, lengths[4];
} cases[] = {
    {128, 8, 2, 32, 0, 128, false, false, 0, 0, {700, 64, 65, 1024}},
    {64, 9, 3, 32, 0, 64, false, false, 0, 0, {700, 2, 512, 513}},
    {128, 7, 1, 16, 0, 64, true, true, 0, 0, {620, 33}},
    {64, 5, 1, 64, 300, 0, true, false, 0, 0, {900, 33}},
    {128, 4, 1, 32, 0, 128, false, false, 0, 90, {721, 130}},
    {128, 8, 2, 32, 0, 128, false, false, 0, 0, {600, 700, 513, 65}},    // full: short splits join those before, runs of one
    {64, 3, 1, 32, 0, 64, false, false, 0, 0, {2100, 2200, 2049, 1100}}, // and of two
    {128, 4, 1, 32, 0, 128, false, false, 0, 0, {2080, 3000}},           // four warps share a head, with two splits each
    {128, 8, 1, 32, 0, 128, false, false, 0, 0, {2500}},                 // eight, with one
    {64, 11, 1, 32, 0, 64, true, false, 0, 0, {700, 2, 513}},            // more than eight queries: blocks alone
    {128, 12, 1, 32, 300, 128, false, false, 0, 90, {721, 130}},
    // with `all`:
    {64, 9, 3, 64, 600, 64, true, false, 0, 0, {2100}},
    {128, 16, 2, 32, 0, 128, false, false, 0, 700, {4096}},
    {64, 6, 2, 64, 0, 64, false, true, 20, 0, {600, 33}},
    {128, 2, 1, 32, 520, 128, false, false, 0, 0, {1700, 600}},
    {64, 16, 2, 32, 0, 64, false, false, 0, 90, {721, 130}},
    {128, 4, 1, 32, 0, 128, false, false, 0, 0, {2500, 600, 4096}},
    {128, 1, 1, 32, 0, 128, false, false, 0, 0, {1500}},
    {64, 8, 8, 16, 40, 64, false, false, 0, 90, {1500, 20, 64}},
    {128, 5, 1, 32, 0, 32, true, true, 0, 0, {512, 300}},
};
#define CASES (int)(sizeof cases / sizeof *cases)
#define CASES_ALWAYS 11

START_TEST(tokens_one_at_a_time_give_the_bits_of_the_cpu)
{
    static const char *const names[] = {"single", "stream", "stream and merge", "full stream", "full stream and merge",
                                         "shared heads", "full shared heads",
                                         "blocks", "few blocks", "a block"};
    attention_case c = {};
    attention_way at_once = {}, alone = {};
    attention_world cpu, emulated;

    c.heads = cases[_i].heads, c.kv_heads = cases[_i].kv_heads, c.head_dim = cases[_i].dims;
    c.rope_dims = cases[_i].rope, c.window = cases[_i].window, c.block_tokens = cases[_i].block;
    c.norm = cases[_i].norm, c.shift = cases[_i].shift, c.softcap = cases[_i].softcap, c.poison = cases[_i].poison;
    c.format = BT_KV_INT8, c.seed = (uint64_t)_i + 1;
    for (; c.sequences < 4 && cases[_i].lengths[c.sequences] != 0; c.sequences++) {
        c.lengths[c.sequences] = cases[_i].lengths[c.sequences];
    }
    at_once.threads = alone.threads = 1, at_once.chunk = alone.chunk = 2000, at_once.shuffle = 1;
    alone.alone = 2;
    ck_assert(attention_run(&cpu, &c, &at_once));
    for (int w = SINGLE; w < WAYS; w++) {
        taken = (way)w;
        alone.shuffle = 2 + (uint64_t)w;
        ck_assert(attention_run_on(&emulated, &c, &alone, BT_DEVICE_CUDA));
        attention_must_agree(&c, &cpu, &emulated, names[w]);
        attention_free(&emulated);
    }
    attention_free(&cpu);
}
END_TEST

START_TEST(every_kernel_was_called)
{
    for (int w = SINGLE; w < WAYS; w++) {
        ck_assert(calls_by[w] != 0);
    }
    ck_assert(left != 0);
    printf("%u calls%s, all equal; INT8 of %u rows was left\n", calls, emu_eager ? ", eager" : "", left);
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");
    bool all = emu_asked(argc, argv);

    cuda.sms = 132, cuda.shared_max = 227 * 1024, cuda.single = cuda.streams = cuda.meets = cuda.decode = true;
    tcase_add_loop_test(tests, tokens_one_at_a_time_give_the_bits_of_the_cpu, 0, all ? CASES : CASES_ALWAYS);
    tcase_add_test(tests, every_kernel_was_called);
    return emu_main(tests);
}
