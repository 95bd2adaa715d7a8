// Attention of prompts by a CPU (attention_prompt.cu, attention_squad.cu; splits one after the other) gives the bits of kernels/cpu: an
// emulated device is the CPU's but for these steps.
//
//     prompt [all] [eager]    with `all` more shapes
#include "attention_device.h"

#include <vector>

static uint32_t calls, calls_by[2];

// What a step brings (step.cu), and what its preparation leaves.
typedef struct {
    std::vector<uint32_t> positions, tables, blocks;
    std::vector<bt_cuda_tile> tiles, squads;
    std::vector<int8_t> q8;
    std::vector<float> q_scale;
} step;

static void
lay_out(step *s, const bt_attention_args *a)
{
    uint32_t group = a->heads / a->kv_heads, most = BT_CUDA_TILE_COLUMNS / group, together = 2 + calls / 2 % 2;
    uint32_t most_together = together * BT_CUDA_TILE_COLUMNS / group;

    for (uint32_t i = 0; i < a->span_count; i++) {
        const bt_attention_span *span = &a->spans[i];
        uint32_t count = (span->position + span->count - 1) / a->layout->block_tokens + 1;

        for (uint32_t t = 0; t < span->count; t++) {
            s->positions.push_back(span->position + t);
            s->tables.push_back((uint32_t)s->blocks.size());
        }
        for (uint32_t t = 0; t < span->count; t += most) {
            s->tiles.push_back({span->row + t, min(most, span->count - t)});
        }
        for (uint32_t t = 0; t < span->count; t += most_together) {
            s->squads.push_back({span->row + t, min(most_together, span->count - t)});
        }
        s->blocks.insert(s->blocks.end(), span->blocks, span->blocks + count);
    }
    s->q8.assign(s->positions.size() * a->heads * a->head_dim, -1);
    s->q_scale.assign(s->positions.size() * a->heads, NAN);
    cuda.tokens = (uint32_t)s->positions.size();
    cuda.step.tile_count = (uint32_t)s->tiles.size(), cuda.step.tile_tokens = most;
    cuda.step.at.tiles = s->tiles.data(), cuda.step.single_count = 0;
    cuda.step.squad_count = (uint32_t)s->squads.size(), cuda.step.squad_tiles = together;
    cuda.step.at.squads = s->squads.data();
}

static bt_err
attend(bt_device *device, const bt_attention_args *a)
{
    attention_call c;
    step s;
    bt_err err;

    for (uint32_t i = 0; i < a->span_count; i++) {
        if (a->spans[i].count == 1) {
            return of_cpu->attention(device, a);
        }
    }
    lay_out(&s, a);
    cuda.splits = 2, cuda.sms = calls % 2 != 0 ? 132 : 1, cuda.shared_max = 227 * 1024; // (of either form)
    c = call_of(&cuda, a);
    c.positions = s.positions.data(), c.tables = s.tables.data(), c.blocks = s.blocks.data();
    c.q8 = s.q8.data(), c.q_scale = s.q_scale.data();
    c.block_shift = (uint32_t)__builtin_ctz(c.l.block_tokens);
    ck_assert(bt_cuda_prompt_takes(c) && bt_cuda_prepares_prompt(c));
    err = bt_cuda_prepare_prompt(&cuda, c, false);
    err = err == BT_OK ? bt_cuda_attend_prompt(&cuda, c) : err;
    calls++, calls_by[cuda.squad && a->head_dim == 128]++;
    return err;
}

// dims, heads, KV heads, tokens of a block, window, dims of RoPE; norm, shift; softcap, size of Q and K; poison, hollow, tokens a call, lengths
static const struct {
    uint32_t dims, heads, kv_heads, block, window, rope;
    bool norm, shift;
    float softcap, size;
    uint32_t poison, hollow, chunk, lengths[3];
} cases[] = {
    {128, 4, 1, 32, 0, 128, false, false, 0, 1, 0, 0, 160, {200, 64}},
    {128, 4, 2, 32, 0, 128, false, false, 0, 1, 0, 0, 600, {576}},      // more than a split
    {128, 4, 1, 16, 100, 128, true, true, 0, 4, 0, 0, 80, {210, 33}},   // a window; scores far apart
    {128, 7, 1, 32, 0, 128, false, false, 0, 30, 0, 0, 90, {130}},      // some too far: powers of 2 below all numbers
    {128, 4, 1, 32, 0, 128, false, false, 0, 1, 50, 0, 100, {160}},     // NaN in V and K
    {128, 2, 1, 32, 0, 128, false, false, 20, 1, 0, 0, 70, {90}},       // a softcap
    {128, 4, 1, 32, 0, 128, false, false, 0, 10, 0, 64, 330, {320}},    // and some dims have nothing else
    {64, 4, 1, 32, 0, 64, false, false, 0, 1, 0, 0, 100, {140}},
    // with `all`:
    {128, 16, 1, 64, 300, 128, true, false, 0, 3, 0, 0, 400, {700, 70}},
    {128, 8, 2, 32, 0, 128, false, false, 0, 200, 0, 0, 256, {1100}},
    {128, 4, 1, 32, 0, 128, false, false, 0, 10, 90, 0, 300, {640, 33}},
    {256, 4, 1, 32, 0, 256, false, false, 0, 1, 0, 0, 100, {140}},
    {128, 16, 2, 16, 600, 128, false, false, 0, 1, 0, 0, 2000, {1100, 40, 530}}, // groups of 8, one long, one short
};
#define CASES (int)(sizeof cases / sizeof *cases)
#define CASES_ALWAYS 8

START_TEST(prompts_give_the_bits_of_the_cpu)
{
    attention_case c = {};
    attention_way way = {};
    attention_world cpu, emulated;

    c.heads = cases[_i].heads, c.kv_heads = cases[_i].kv_heads, c.head_dim = cases[_i].dims;
    c.rope_dims = cases[_i].rope, c.window = cases[_i].window, c.block_tokens = cases[_i].block;
    c.norm = cases[_i].norm, c.shift = cases[_i].shift, c.softcap = cases[_i].softcap, c.poison = cases[_i].poison;
    c.format = BT_KV_INT8, c.seed = (uint64_t)_i + 1, c.size = cases[_i].size, c.hollow = cases[_i].hollow;
    for (; c.sequences < 3 && cases[_i].lengths[c.sequences] != 0; c.sequences++) {
        c.lengths[c.sequences] = cases[_i].lengths[c.sequences];
    }
    way.threads = 1, way.chunk = 2000, way.shuffle = 1;
    ck_assert(attention_run(&cpu, &c, &way));
    way.chunk = cases[_i].chunk;
    for (int squad = 0; squad < 2; squad++) {
        cuda.squad = squad == 1, way.shuffle = 2 + (uint64_t)squad;
        ck_assert(attention_run_on(&emulated, &c, &way, BT_DEVICE_CUDA));
        attention_must_agree(&c, &cpu, &emulated, squad ? "squad" : "prompt");
        attention_free(&emulated);
    }
    attention_free(&cpu);
}
END_TEST

START_TEST(every_kernel_was_called)
{
    ck_assert(calls_by[0] != 0 && calls_by[1] != 0);
    printf("%u calls%s, all equal\n", calls, emu_eager ? ", eager" : "");
}
END_TEST

int
main(int argc, char **argv)
{
    TCase *tests = tcase_create("all");
    bool all = emu_asked(argc, argv);

    tcase_add_loop_test(tests, prompts_give_the_bits_of_the_cpu, 0, all ? CASES : CASES_ALWAYS);
    tcase_add_test(tests, every_kernel_was_called);
    return emu_main(tests);
}
