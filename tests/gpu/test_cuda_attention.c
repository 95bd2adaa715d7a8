// Attention on the GPU gives the bits of kernels/cpu/ref, however its tokens come: every shape, cache format and chunking.
#include "tests/gpu/quick.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_cases.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attention_case
case_of(int i)
{
    attention_case c = cases[i % CASES];

    c.format = (bt_kv_format)(i / CASES);
    c.seed = 1000 + (uint64_t)i;
    return c;
}

// (One assertion for all: each costs a system call.)
static void
check_same(const attention_case *c, const attention_world *a, const attention_world *b, uint32_t chunk)
{
    size_t each = (size_t)c->heads * c->head_dim, count = attention_positions(c) * each, i = 0;
    uint32_t x, y;

    for (; i < count; i++) {
        memcpy(&x, &a->out[i], 4);
        memcpy(&y, &b->out[i], 4);
        if (x != y && !(isnan(a->out[i]) && isnan(b->out[i]))) {
            break;
        }
    }
    ck_assert_msg(i == count, "chunk %u: token %zu, head %zu, dim %zu: ref %a and %a", chunk, i / each,
                  i % each / c->head_dim, i % c->head_dim, (double)a->out[i < count ? i : 0],
                  (double)b->out[i < count ? i : 0]);
}

START_TEST(every_shape_and_chunking_gives_the_bits_of_ref)
{
    attention_case c = case_of(_i);
    uint32_t one = c.lengths[0] > 400 ? 61 : 1;
    const uint32_t chunks[] = {2000, 64, 0, 7, one};
    attention_world ref, gpu;
    attention_way way = {.isa = "ref", .threads = 8, .chunk = 2000, .shuffle = 1};

    ck_assert(attention_run(&ref, &c, &way));
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        attention_way other = {.chunk = chunks[i], .shuffle = 2 + i};

        if (!bt_gpu_takes((uint32_t)_i + (uint32_t)i)) {
            continue;
        }
        ck_assert(attention_run_on(&gpu, &c, &other, BT_DEVICE_CUDA));
        check_same(&c, &ref, &gpu, chunks[i]);
        attention_free(&gpu);
    }
    attention_free(&ref);
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

    c.format = (bt_kv_format)(_i % 3);
    ck_assert(attention_run(&ref, &c, &way));
    ck_assert(attention_run_on(&gpu, &c, &other, BT_DEVICE_CUDA));
    check_same(&c, &ref, &gpu, 100);
    attention_free(&gpu);
    attention_free(&ref);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda attention");
    TCase *tcase = tcase_create("bits");
    bt_device_options options = {.kind = BT_DEVICE_CUDA};
    bt_device *device;
    bt_why why;

    if (bt_device_open(&device, &options, &why) != BT_OK) {
        printf("%s\n", why.text);
        return 77;
    }
    bt_device_close(device);
    setenv("CK_FORK", "no", 1); // a context does not survive a fork
    tcase_add_loop_test(tcase, every_shape_and_chunking_gives_the_bits_of_ref, 0, 3 * CASES);
    tcase_add_loop_test(tcase, poison_shows_where_ref_shows_it, 0, 6);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
