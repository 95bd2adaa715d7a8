// Attention of sequences that bring one token each, on the GPU: the bits of the CPU for every group, shape and length.
#include "tests/gpu/gpu.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

// The last `alone` tokens of every sequence one at a time on the GPU, `times` times as ever and as often by each kernel that can (one on a
// GPU older than Hopper), and on the CPU all in large chunks. Of a part of the program each is taken or not as one of loop `i`.
static void
check_case(int i, const attention_case *c, uint32_t alone, uint32_t times)
{
    attention_way cpu_way = {.threads = 1, .chunk = 2000, .shuffle = 1};
    static const char *const without[] = {"", "single,stream", "single,decode,meet", "single,decode"};
    attention_world cpu, gpu;
    bool known = false;

    for (uint64_t n = 0; n < (bt_gpu_is_older() ? 1 : 4) * times; n++) {
        attention_way way = {.chunk = 2000, .alone = alone, .shuffle = 2 + n};

        if (!bt_gpu_takes((uint32_t)i)) {
            continue;
        }
        ck_assert(known || attention_run(&cpu, c, &cpu_way));
        known = true;
        setenv("BATON_CUDA_WITHOUT", without[n % 4], 1);
        ck_assert(attention_run_on(&gpu, c, &way, BT_DEVICE_CUDA));
        attention_must_agree(c, &cpu, &gpu, without[n % 4]);
        attention_free(&gpu);
    }
    unsetenv("BATON_CUDA_WITHOUT");
    if (known) {
        attention_free(&cpu);
    }
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

    check_case(_i, &c, 6, 1);
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
    check_case(_i, &c, 3, (uint32_t)bt_gpu_times(2, 1));
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

    check_case(_i, &c, 7, 1);
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
    check_case(_i, &c, 5, 1);
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

    check_case(_i, &c, 4, (uint32_t)bt_gpu_times(2, 1));
}
END_TEST

// ---- who reads it ----

#define READER_ROWS 48

// Attention and a linear layer that reads it; attention is not told, told, or told that nobody else does.
typedef struct {
    bt_device *device;
    bt_attention_args attention;
    bt_linear_args linear;
    uint32_t tokens, cols;
    float *out, *y; // what came of it
} read_call;

static void
attend_and_read(read_call *r, int told)
{
    const bt_ops *ops = bt_device_ops(r->device);
    size_t out_bytes = (size_t)r->tokens * r->cols * 4;

    memset(r->out, 0xff, out_bytes);
    ck_assert_int_eq(bt_device_write(r->device, r->attention.out, r->out, out_bytes), BT_OK);
    r->attention.next =
        (bt_linear_next){.weights = {r->linear.weights[0]}, .weight_count = told != 0, .only = told == 2};
    ck_assert_int_eq(ops->attention(r->device, &r->attention), BT_OK);
    ck_assert_int_eq(ops->linear(r->device, &r->linear), BT_OK);
    ck_assert_int_eq(bt_device_read(r->device, r->y, r->linear.y, (size_t)r->tokens * READER_ROWS * 4), BT_OK);
    ck_assert_int_eq(bt_device_read(r->device, r->out, r->attention.out, out_bytes), BT_OK);
}

static bool
any_unwritten(const float *x, size_t count)
{
    const uint32_t *words = (const uint32_t *)x;

    for (size_t i = 0; i < count; i++) {
        if (words[i] == 0xffffffffu) {
            return true;
        }
    }
    return false;
}

static void
check_read(read_call *r, uint32_t *unwritten)
{
    size_t out_count = (size_t)r->tokens * r->cols, y_count = (size_t)r->tokens * READER_ROWS, at;
    float *out = malloc(out_count * 4), *y = malloc(y_count * 4);

    r->out = out, r->y = y;
    attend_and_read(r, 0);
    for (int told = 1; told <= 2; told++) {
        r->out = malloc(out_count * 4), r->y = malloc(y_count * 4);
        attend_and_read(r, told);
        at = first_difference(y, r->y, y_count);
        ck_assert_msg(at == y_count, "told %d: y[%zu][%zu] is %.9g, not %.9g", told, at / READER_ROWS, at % READER_ROWS,
                      r->y[at], y[at]);
        ck_assert(told == 2 || first_difference(out, r->out, out_count) == out_count);
        *unwritten += told == 2 && any_unwritten(r->out, out_count);
        free(r->out), free(r->y);
    }
    free(out), free(y);
}

// The same call once more with `out` at places that suit everyone.
static void
read_after(void *arg, bt_device *device, const bt_attention_args *args, uint32_t tokens)
{
    uint32_t cols = args->heads * args->head_dim;
    linear_shape shape = {.part_count = 1,
                          .formats = {{BT_WEIGHT_INT, 4, false, 128, 128}},
                          .rows = {READER_ROWS},
                          .cols = cols,
                          .tokens = 1,
                          .outliers = true,
                          .scale = 1,
                          .seed = cols};
    linear_copies copies = {.device = device};
    read_call r = {.device = device, .attention = *args, .tokens = tokens, .cols = cols};
    linear_case k;
    bt_weight weight;

    if (tokens != args->span_count) {
        return;
    }
    linear_case_init(&k, &shape, bt_device_ops(device));
    weight = linear_copy_weight(&copies, k.args.weights[0]);
    r.linear = k.args;
    r.linear.weights[0] = &weight, r.linear.tokens = tokens;
    r.attention.out = bt_device_alloc(device, (size_t)tokens * cols * 4), r.attention.out_stride = cols;
    r.linear.x = r.attention.out, r.linear.x_stride = cols;
    r.linear.y = bt_device_alloc(device, (size_t)tokens * READER_ROWS * 4), r.linear.y_stride = READER_ROWS;
    check_read(&r, arg);
    bt_device_free(device, r.attention.out, 0);
    bt_device_free(device, r.linear.y, 0);
    linear_copies_free(&copies);
    linear_case_fini(&k);
}

// Of heads that warps share, and others; where attention_meet takes them, INT8 of them is left.
START_TEST(a_reader_that_attention_knows_gets_the_same_bits)
{
    static const uint32_t groups[] = {4, 1, 8, 3, 4}, sequences[] = {32, 17, 40, 12, 5};
    static const char *const without[] = {"single,decode", "", "single,stream,meet"};
    uint32_t way_of = (uint32_t)_i / 5, unwritten = 0;
    attention_case c = {.heads = groups[_i % 5] * 8,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .rope_dims = 128,
                        .block_tokens = 32,
                        .sequences = sequences[_i % 5],
                        .poison = _i % 5 == 1 ? 97 : 0,
                        .seed = 70 + (uint64_t)_i};
    attention_way way = {.chunk = 2000, .alone = 2, .shuffle = 2, .after = read_after, .arg = &unwritten};
    attention_world gpu;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    for (uint32_t s = 0; s < c.sequences; s++) {
        c.lengths[s] = s % 3 == 0 ? 30 + 11 * s : s % 7 == 5 ? 1030 + s : 510 + s;
    }
    setenv("BATON_CUDA_WITHOUT", without[way_of], 1);
    ck_assert(attention_run_on(&gpu, &c, &way, BT_DEVICE_CUDA));
    unsetenv("BATON_CUDA_WITHOUT");
    ck_assert(unwritten != 0 || way_of != 0);
    attention_free(&gpu);
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
    add(suite, "read", a_reader_that_attention_knows_gets_the_same_bits, 0, 15);
    return bt_gpu_run(suite);
}
