// Attention on the GPU gives the bits of kernels/cpu/ref, however its tokens come: every shape, cache format and chunking.
#include "tests/gpu/gpu.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_cases.h"
#include "tests/support/test.h"

#include <stdio.h>

static attention_case
case_of(int i)
{
    attention_case c = cases[i % CASES];

    c.format = (bt_kv_format)(i / CASES);
    c.seed = 1000 + (uint64_t)i;
    return c;
}

static void
agree(const attention_case *c, const attention_world *ref, const attention_world *gpu, uint32_t chunk)
{
    char what[32];

    snprintf(what, sizeof what, "ref, GPU by %u", chunk);
    attention_must_agree(c, ref, gpu, what);
}

START_TEST(every_shape_and_chunking_gives_the_bits_of_ref)
{
    attention_case c = case_of(_i);
    uint32_t one = c.lengths[0] > 400 ? 61 : 1;
    const uint32_t chunks[] = {2000, 64, 0, 7, one};
    attention_world ref, gpu;
    attention_way way = {.isa = "ref", .threads = 8, .chunk = 2000, .shuffle = 1};
    bool there = false;

    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        attention_way other = {.chunk = chunks[i], .shuffle = 2 + i};

        if (!bt_gpu_takes((uint32_t)_i + (uint32_t)i)) {
            continue;
        }
        ck_assert(there || attention_run(&ref, &c, &way));
        there = true;
        ck_assert(attention_run_on(&gpu, &c, &other, BT_DEVICE_CUDA));
        agree(&c, &ref, &gpu, chunks[i]);
        attention_free(&gpu);
    }
    if (there) {
        attention_free(&ref);
    }
}
END_TEST

// Prompts: INT8 with one K scale a head and token, where blocks of threads share keys.
static const attention_case prompts[] = {
    {.heads = 16,
     .kv_heads = 4,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 32,
     .sequences = 1,
     .lengths = {1190}},
    {.heads = 8,
     .kv_heads = 2,
     .head_dim = 64,
     .rope_dims = 64,
     .block_tokens = 16,
     .sequences = 3,
     .lengths = {600, 33, 129},
     .shift = true},
    {.heads = 4,
     .kv_heads = 1,
     .head_dim = 256,
     .rope_dims = 256,
     .block_tokens = 64,
     .window = 200,
     .norm = true,
     .sequences = 2,
     .lengths = {700, 90}},
    {.heads = 2,
     .kv_heads = 2,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 32,
     .window = 600,
     .sequences = 2,
     .lengths = {1300, 257},
     .size = 4},
    {.heads = 10,
     .kv_heads = 2,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 32,
     .norm = true,
     .shift = true,
     .sequences = 2,
     .lengths = {513, 200}},
    {.heads = 6,
     .kv_heads = 1,
     .head_dim = 128,
     .rope_dims = 64,
     .block_tokens = 32,
     .sequences = 2,
     .lengths = {520, 77},
     .size = 12},
    {.heads = 14,
     .kv_heads = 2,
     .head_dim = 64,
     .rope_dims = 64,
     .block_tokens = 32,
     .sequences = 4,
     .lengths = {65, 2, 190, 31},
     .norm = true,
     .norm_whole = true},
    {.heads = 16,
     .kv_heads = 1,
     .head_dim = 128,
     .rope_dims = 0,
     .block_tokens = 64,
     .window = 64,
     .sequences = 1,
     .lengths = {560}},
    {.heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 32,
     .softcap = 30,
     .window = 100,
     .sequences = 1,
     .lengths = {540}},
    {.heads = 3,
     .kv_heads = 1,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 32,
     .sequences = 2,
     .lengths = {530, 70},
     .size = 40},
    {.heads = 4, // keys that weigh next to nothing, and dims that have no others
     .kv_heads = 1,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 32,
     .sequences = 1,
     .lengths = {700},
     .size = 10,
     .hollow = 64},
    {.heads = 64, // so many blocks of threads that splits follow each other, with a window, in small blocks
     .kv_heads = 8,
     .head_dim = 128,
     .rope_dims = 128,
     .block_tokens = 16,
     .window = 600,
     .sequences = 3,
     .lengths = {1100, 40, 530}},
};
enum { PROMPTS = sizeof prompts / sizeof *prompts };

// All in one call, and two other chunkings by turns; the first four shapes once more with poison.
START_TEST(prompts_in_any_chunks_give_the_bits_of_ref)
{
    attention_case c = prompts[_i % PROMPTS];
    const uint32_t chunks[] = {512, 129, 64, 17, 0}, tried[] = {2000, chunks[_i % 5], chunks[(_i + 2) % 5]};
    attention_world ref, gpu;
    attention_way way = {.isa = "auto", .threads = 8, .chunk = 2000, .shuffle = 1}; // ref itself takes minutes
    bool there = false;

    c.seed = 500 + (uint64_t)_i;
    c.poison = _i < PROMPTS ? 0 : 150;
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        attention_way other = {.chunk = tried[i], .shuffle = 2 + i};

        if (!bt_gpu_takes((uint32_t)_i * 3 + (uint32_t)i)) {
            continue;
        }
        ck_assert(there || attention_run(&ref, &c, &way));
        there = true;
        ck_assert(attention_run_on(&gpu, &c, &other, BT_DEVICE_CUDA));
        agree(&c, &ref, &gpu, tried[i]);
        attention_free(&gpu);
    }
    if (there) {
        attention_free(&ref);
    }
    printf("case %d good\n", _i);
    fflush(stdout);
}
END_TEST

START_TEST(poison_shows_where_ref_shows_it)
{
    attention_case c = {.heads = 4,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .rope_dims = 64,
                        .block_tokens = 32,
                        .window = _i / 3 * 40,
                        .sequences = 1,
                        .lengths = {700},
                        .poison = 90,
                        .seed = 3};
    attention_way way = {.isa = "ref", .threads = 8, .chunk = 2000, .shuffle = 1}, other = {.chunk = 100, .shuffle = 2};
    attention_world ref, gpu;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    c.format = (bt_kv_format)(_i % 3);
    ck_assert(attention_run(&ref, &c, &way));
    ck_assert(attention_run_on(&gpu, &c, &other, BT_DEVICE_CUDA));
    agree(&c, &ref, &gpu, 100);
    attention_free(&gpu);
    attention_free(&ref);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda attention");
    TCase *tcase = tcase_create("bits"), *shared = tcase_create("prompts");

    tcase_add_loop_test(tcase, every_shape_and_chunking_gives_the_bits_of_ref, 0, 3 * CASES);
    tcase_add_loop_test(shared, prompts_in_any_chunks_give_the_bits_of_ref, 0, PROMPTS + 4);
    tcase_add_loop_test(tcase, poison_shows_where_ref_shows_it, 0, 6);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, shared);
    return bt_gpu_run(suite);
}
