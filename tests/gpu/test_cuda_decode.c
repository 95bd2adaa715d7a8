// Attention of sequences that bring one token each, on the GPU: the bits of the CPU for every group, shape and length.
#include "tests/gpu/gpu.h"
#include "tests/kernels/attention_case.h"
#include "tests/support/test.h"

// The last `alone` tokens of every sequence one at a time on the GPU, `times` times as ever and as often by each kernel that can (one on a
// GPU older than Hopper), and on the CPU all in large chunks.
static void
check_case(const attention_case *c, uint32_t alone, uint32_t times)
{
    attention_way cpu_way = {.threads = 1, .chunk = 2000, .shuffle = 1};
    static const char *const without[] = {"", "single,stream", "single,decode,meet", "single,decode"};
    attention_world cpu, gpu;

    ck_assert(attention_run(&cpu, c, &cpu_way));
    for (uint64_t i = 0; i < (bt_gpu_is_older() ? 1 : 4) * times; i++) {
        attention_way way = {.chunk = 2000, .alone = alone, .shuffle = 2 + i};

        setenv("BATON_CUDA_WITHOUT", without[i % 4], 1);
        ck_assert(attention_run_on(&gpu, c, &way, BT_DEVICE_CUDA));
        attention_must_agree(c, &cpu, &gpu, without[i % 4]);
        attention_free(&gpu);
    }
    unsetenv("BATON_CUDA_WITHOUT");
    attention_free(&cpu);
}

// Groups of 1 … 16 by head dimensions of 64, 128, 256.
START_TEST(any_group_and_head_dim_gives_the_bits_of_the_cpu)
{
    static const uint32_t dims[] = {64, 128, 256};
    uint32_t group = (uint32_t)_i % 16 + 1, dim = dims[_i / 16], heads = group < 6 ? 2 : 1;
    attention_case c = {.heads = group * heads,
                        .kv_heads = heads,
                        .head_dim = dim,
                        .rope_dims = group % 3 == 0   ? dim / 2
                                     : group % 7 == 0 ? 0
                                                      : dim,
                        .block_tokens = 16u << group % 3,
                        .window = group % 4 == 3 ? 300 : 0,
                        .norm = group % 2 == 0,
                        .norm_whole = group % 4 == 0,
                        .shift = group % 3 == 1,
                        .softcap = group % 5 == 4 ? 20 : 0,
                        .sequences = 3,
                        .lengths = {group % 4 == 1 ? 1030 : 520, 70, 3},
                        .seed = 40 + (uint64_t)_i};

    if (bt_gpu_takes((uint32_t)_i)) {
        check_case(&c, 6, 1);
    }
}
END_TEST

// More splits than a GPU has room for at once, of sequences of very different lengths. (Where warps share heads, it is four of them, of the first
// with up to two splits each, and of the last, on 132 multiprocessors, eight.)
START_TEST(ragged_batches_give_the_bits_of_the_cpu)
{
    static const attention_case cases[] = {
        {.heads = 24, .kv_heads = 8, .head_dim = 64},
        {.heads = 16, .kv_heads = 8, .head_dim = 128, .window = 520},
        {.heads = 18, .kv_heads = 3, .head_dim = 128},
    };
    attention_case c = cases[_i];

    c.rope_dims = c.head_dim, c.block_tokens = 32, c.sequences = CASE_SEQUENCES_MAX, c.seed = 90 + (uint64_t)_i;
    for (uint32_t s = 0; s < c.sequences; s++) {
        c.lengths[s] = s == 17 && c.window == 0 ? 2060 : s % 13 == 4 ? 1040 + s : s % 3 == 0 ? 8 + s : 60 + 6 * s;
    }
    if (bt_gpu_takes((uint32_t)_i)) {
        check_case(&c, 3, 2);
    }
}
END_TEST

START_TEST(long_contexts_give_the_bits_of_the_cpu)
{
    attention_case c = {.heads = _i % 2 == 0 ? 2 : 3,
                        .kv_heads = 1,
                        .head_dim = 64u << _i % 2,
                        .rope_dims = 64u << _i % 2,
                        .block_tokens = 32,
                        .sequences = 2,
                        .lengths = {_i % 2 == 0 ? 8230 : 8700, 513},
                        .seed = 60 + (uint64_t)_i};

    if (bt_gpu_takes((uint32_t)_i)) {
        check_case(&c, 7, 1);
    }
}
END_TEST

// Fewer heads than multiprocessors, each with up to eight splits or four: eight or four warps of a block.
START_TEST(few_heads_of_some_splits_give_the_bits_of_the_cpu)
{
    attention_case c = {.heads = _i == 0 ? 16 : 8,
                        .kv_heads = _i == 1 ? 1 : 8,
                        .head_dim = _i == 2 ? 64 : 128,
                        .rope_dims = _i == 2 ? 64 : 128,
                        .block_tokens = 32,
                        .sequences = 4,
                        .lengths = {_i == 1 ? 1990 : 4090, 2100, 700, 20},
                        .seed = 70 + (uint64_t)_i};

    c.lengths[1] = _i == 1 ? 1025 : c.lengths[1];
    if (bt_gpu_takes((uint32_t)_i)) {
        check_case(&c, 5, 1);
    }
}
END_TEST

START_TEST(poison_shows_where_the_cpu_shows_it)
{
    attention_case c = {.heads = 4u << _i % 3,
                        .kv_heads = 2,
                        .head_dim = _i < 3 ? 64 : 128,
                        .rope_dims = 64,
                        .block_tokens = 32,
                        .window = _i % 2 * 40,
                        .sequences = 1,
                        .lengths = {721}, // position 719 is poisoned
                        .poison = 90,
                        .seed = 3};

    if (bt_gpu_takes((uint32_t)_i)) {
        check_case(&c, 4, 2);
    }
}
END_TEST

// A case of its own, so that CK_RUN_CASE can name it.
static void
add(Suite *suite, const char *name, const TTest *test, int first, int end)
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, test, first, end);
    suite_add_tcase(suite, tcase);
}

int
main(void)
{
    Suite *suite = suite_create("cuda decode attention");

    add(suite, "dim64", any_group_and_head_dim_gives_the_bits_of_the_cpu, 0, 16);
    add(suite, "dim128", any_group_and_head_dim_gives_the_bits_of_the_cpu, 16, 32);
    add(suite, "dim256", any_group_and_head_dim_gives_the_bits_of_the_cpu, 32, 48);
    add(suite, "ragged", ragged_batches_give_the_bits_of_the_cpu, 0, 3);
    add(suite, "long", long_contexts_give_the_bits_of_the_cpu, 0, 2);
    add(suite, "few heads", few_heads_of_some_splits_give_the_bits_of_the_cpu, 0, 3);
    add(suite, "poison", poison_shows_where_the_cpu_shows_it, 0, 6);
    return bt_gpu_run(suite);
}
