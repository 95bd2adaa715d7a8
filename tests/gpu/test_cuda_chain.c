// Linear calls that say who reads their output (bt_linear_next) give the bits of calls that do not, on any device and in any order.
#include "tests/gpu/gpu.h"
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t silu_differences(void);
bool cuda_use_prompt(bt_device *device, bool on);
bool cuda_has_warpgroups(bt_device *device), cuda_has_left(bt_device *device);
bool cuda_is_within(bt_device *device, size_t shared);

#define TOKENS_MAX 2100
#define LINKS 6

static const bt_format w8 = {BT_WEIGHT_INT, 8, false, 0, 0}, q4 = {BT_WEIGHT_INT, 4, false, 128, 128};
static bt_device *ref, *gpu;

typedef struct {
    uint32_t tokens, hidden, ffn;
    bool outliers, bias, gelu;
    float scale, softcap;
    bool q4; // all but the last link; else w8
} chain_shape;

enum { STREAM, INNER, ATTENDED, QKV, ARRAYS }; // the arrays that calls read and write

// q|k|v, O, gate|up, down, and those two of one more layer, on one device.
typedef struct {
    bt_device *device;
    linear_case cases[LINKS];
    bt_weight weights[LINKS][3]; // on the device
    bt_linear_args args[LINKS];
    uint32_t tokens;
    float *arrays[ARRAYS];
    size_t strides[ARRAYS];
    linear_copies copies;
} chain;

static const int reads[LINKS] = {STREAM, ATTENDED, STREAM, INNER, STREAM, INNER};
static const int writes[LINKS] = {QKV, STREAM, INNER, STREAM, INNER, STREAM};

static size_t
array_floats(const chain *c, int array)
{
    return c->strides[array] * c->tokens;
}

// The same numbers on every device.
static float *
numbers(size_t count, uint64_t seed)
{
    float *v = malloc(count * sizeof *v);
    bt_rng rng = {seed};

    for (size_t i = 0; i < count; i++) {
        v[i] = (float)(bt_rng_next(&rng) >> 40) * 0x1p-23f - 1.0f;
    }
    return v;
}

static void
fill_arrays(chain *c)
{
    for (int i = 0; i < ARRAYS; i++) {
        float *v = numbers(array_floats(c, i), 77 + (uint64_t)i);

        ck_assert_int_eq(bt_device_write(c->device, c->arrays[i], v, array_floats(c, i) * 4), BT_OK);
        free(v);
    }
}

static void
add_link(chain *c, int link, const chain_shape *s)
{
    bool pair = writes[link] == INNER, store = writes[link] == QKV;
    bt_format f = s->q4 && link + 1 < LINKS ? q4 : w8;
    linear_shape shape = {.part_count = store  ? 3
                                        : pair ? 2
                                               : 1,
                          .formats = {f, f, f},
                          .rows = {pair ? s->ffn : s->hidden, store ? 192 : s->ffn, 48},
                          .cols = reads[link] == INNER ? s->ffn : s->hidden,
                          .tokens = 1,
                          .norm = pair || store,
                          .outliers = s->outliers,
                          .bias = s->bias,
                          .scale = pair ? 1 : s->scale,
                          .softcap = s->softcap,
                          .epilogue = store     ? BT_LINEAR_STORE
                                      : !pair   ? BT_LINEAR_ADD
                                      : s->gelu ? BT_LINEAR_GELU_MUL
                                                : BT_LINEAR_SILU_MUL,
                          .seed = 100 + (uint64_t)link};
    linear_case *k = &c->cases[link];
    bt_linear_args *a = &c->args[link];

    linear_case_init(k, &shape, bt_device_ops(c->device));
    *a = k->args;
    a->tokens = s->tokens;
    for (uint32_t i = 0; i < a->weight_count; i++) {
        c->weights[link][i] = linear_copy_weight(&c->copies, k->args.weights[i]);
        a->weights[i] = &c->weights[link][i];
        a->biases[i] = linear_copy(&c->copies, k->args.biases[i], a->weights[i]->rows * 4);
    }
    a->norm = linear_copy(&c->copies, k->norm, shape.cols * 4);
    a->x = c->arrays[reads[link]], a->x_stride = c->strides[reads[link]];
    a->y = c->arrays[writes[link]], a->y_stride = c->strides[writes[link]];
}

static void
chain_init(chain *c, bt_device *device, const chain_shape *s)
{
    *c = (chain){.device = device, .tokens = s->tokens, .copies = {.device = device}};
    c->strides[STREAM] = c->strides[ATTENDED] = (s->hidden + 15) / 16 * 16;
    c->strides[INNER] = (s->ffn + 15) / 16 * 16;
    c->strides[QKV] = c->strides[STREAM] + 240;
    for (int i = 0; i < ARRAYS; i++) {
        c->arrays[i] = bt_device_alloc(device, array_floats(c, i) * 4);
        ck_assert_ptr_nonnull(c->arrays[i]);
    }
    fill_arrays(c);
    for (int i = 0; i < LINKS; i++) {
        add_link(c, i, s);
    }
}

static void
chain_fini(chain *c)
{
    linear_copies_free(&c->copies);
    for (int i = 0; i < ARRAYS; i++) {
        bt_device_free(c->device, c->arrays[i], 0);
    }
    for (int i = 0; i < LINKS; i++) {
        linear_case_fini(&c->cases[i]);
    }
}

static void
run(chain *c, int link)
{
    ck_assert_int_eq(bt_device_ops(c->device)->linear(c->device, &c->args[link]), BT_OK);
}

// Each link says what the next one will be.
static void
announce(chain *c, bool only)
{
    for (int i = 0; i + 1 < LINKS; i++) {
        bt_linear_args *a = &c->args[i], *b = &c->args[i + 1];

        a->next = (bt_linear_next){.weights = {b->weights[0], b->weights[1]},
                                   .weight_count = b->weight_count,
                                   .norm = b->norm,
                                   .norm_eps = b->norm_eps,
                                   .only = only && writes[i] == INNER};
    }
}

static void
same(const chain *a, const chain *b, int array, const char *when)
{
    size_t count = array_floats(a, array), at;
    float *x = malloc(count * 4), *y = malloc(count * 4);

    ck_assert_int_eq(bt_device_read(a->device, x, a->arrays[array], count * 4), BT_OK);
    ck_assert_int_eq(bt_device_read(b->device, y, b->arrays[array], count * 4), BT_OK);
    at = first_difference(x, y, count);
    ck_assert_msg(at == count, "%s: array %d [%zu][%zu] is %.9g, ref says %.9g", when, array, at / a->strides[array],
                  at % a->strides[array], y[at], x[at]);
    free(x), free(y);
}

static const chain_shape shapes[] = {
    {130, 576, 1536, false, false, false, 1, 0, false},
    {200, 576, 1536, true, false, false, 0.75f, 0, false},
    {257, 256, 704, false, true, true, 1, 0, false},
    {192, 256, 14336, false, false, false, 1, 0, false},
    {1300, 1536, 320, false, true, false, 1, 0, false},
    {2100, 256, 1024, false, false, false, 1, 0, false},
    {128, 4096, 512, false, false, false, 0.5f, 0, false},
    {300, 1024, 1040, false, false, true, 1, 0, false},
    {140, 1040, 288, true, true, false, 1, 20, false},
    {127, 576, 1536, false, false, false, 1, 0, false},
    {5, 576, 1536, false, false, false, 1, 0, false},
    {130, 256, 12288, false, false, false, 1, 0,
     false}, // INT8 of a row takes the 48 KiB that need no asking, and a kernel some more
    {130, 256, 28672, false, false, false, 1, 0, false}, // rows that shared memory holds on some GPUs only
    // gate|up in blocks of 256 rows, which leave down's INT8, up to 64 tokens:
    {32, 256, 8704, true, false, false, 1, 0, true},
    {17, 1024, 8650, true, true, true, 1, 20, true},
    {23, 4096, 8576, false, false, false, 0.5f, 0, true},
    {33, 256, 8704, true, false, false, 1, 0, true},
    {50, 2816, 8650, true, true, true, 1, 20, true},
    {64, 4096, 8576, false, false, false, 0.5f, 0, true},
    {45, 4096, 1088, false, false, false, 0.5f, 0, true},
    {90, 256, 4400, true, true, true, 1, 20, true},
    {16, 256, 8704, true, false, false, 1, 0, true},
};
#define SHAPES (int)(sizeof shapes / sizeof *shapes)
#define SHAPES_W8 13

// With our own kernel for prompts where the GPU has it, and with cuBLASLt.
START_TEST(calls_that_know_the_next_give_the_bits_of_ref)
{
    bool takes[4], any = false;
    chain a, b;

    for (int way = 0; way < 4; way++) {
        takes[way] = bt_gpu_takes((uint32_t)(_i + way));
        any |= takes[way];
    }
    if (!any) {
        return;
    }
    chain_init(&a, ref, &shapes[_i]);
    chain_init(&b, gpu, &shapes[_i]);
    for (int i = 0; i < LINKS; i++) {
        run(&a, i);
    }
    for (int way = 0; way < 4; way++) {
        const char *name = way / 2 ? (way % 2 ? "prompt, only" : "prompt") : way % 2 ? "cublas, only" : "cublas";

        if (!takes[way]) {
            continue;
        }
        cuda_use_prompt(gpu, way / 2 != 0);
        fill_arrays(&b);
        announce(&b, way % 2 != 0);
        for (int i = 0; i < LINKS; i++) {
            run(&b, i);
        }
        same(&a, &b, QKV, name);
        same(&a, &b, STREAM, name);
        if (way % 2 == 0) {
            same(&a, &b, INNER, name);
        }
    }
    cuda_use_prompt(gpu, true);
    chain_fini(&a);
    chain_fini(&b);
}
END_TEST

static void
run_all(chain *c, bool prompt)
{
    cuda_use_prompt(c->device, prompt);
    fill_arrays(c);
    for (int i = 0; i < LINKS; i++) {
        run(c, i);
    }
}

START_TEST(our_own_kernel_gives_the_bits_of_cublas)
{
    chain_shape large[] = {
        {2100, 1024, 4096, false, false, false, 1, 0, false},
        {2048, 2048, 1536, false, false, false, 1, 0, false},
        {256, 512, 8192, false, false, false, 1, 0, false},
    };
    chain a, b;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    large[_i].tokens = bt_gpu_whole() ? large[_i].tokens : 300;
    chain_init(&a, gpu, &large[_i]);
    chain_init(&b, gpu, &large[_i]);
    run_all(&a, false);
    for (int round = 0; round < bt_gpu_times(3, 1); round++) {
        run_all(&b, true);
        same(&a, &b, QKV, "q|k|v");
        same(&a, &b, INNER, "gate|up");
        same(&a, &b, STREAM, "down");
    }
    chain_fini(&a);
    chain_fini(&b);
}
END_TEST

START_TEST(repeated_chains_give_the_bits_of_ref)
{
    chain a, b;

    if (!bt_gpu_takes(0)) {
        return;
    }
    chain_init(&a, ref, &shapes[0]);
    chain_init(&b, gpu, &shapes[0]);
    announce(&b, true);
    for (int round = 0; round < bt_gpu_times(3, 2); round++) {
        for (int i = 0; i < LINKS; i++) {
            run(&a, i);
            run(&b, i);
        }
    }
    same(&a, &b, STREAM, "three rounds");
    chain_fini(&a);
    chain_fini(&b);
}
END_TEST

// Else the tests above would say nothing of it.
START_TEST(a_pair_in_blocks_of_256_rows_leaves_what_the_next_call_begins_with)
{
    const chain_shape tall = {_i == 0 ? 32 : 64, 256, 8704, true, false, false, 1, 0, true};
    chain c;

    if (!bt_gpu_takes(0)) {
        return;
    }
    chain_init(&c, gpu, &tall);
    run(&c, 2);
    ck_assert(!cuda_has_left(gpu));
    announce(&c, true);
    run(&c, 2);
    ck_assert(cuda_has_left(gpu) || !cuda_has_warpgroups(gpu));
    run(&c, 3);
    ck_assert(!cuda_has_left(gpu));
    chain_fini(&c);
}
END_TEST

// What was announced and what comes instead.
enum { OTHER_NORM, NO_NORM, OTHER_EPS, FEWER_TOKENS, OTHER_X, CALLED_TWICE, WRITTEN_BETWEEN, OTHER_WEIGHTS, WAYS };

static void
differ(chain *c, int link, int way, const float *other_norm)
{
    int reader = way == OTHER_WEIGHTS ? link + 3 : link + 1, between = writes[link];
    bt_linear_args *next = &c->args[reader];

    run(c, link);
    next->norm = way == OTHER_NORM ? other_norm : way == NO_NORM ? NULL : next->norm;
    next->norm_eps = way == OTHER_EPS ? 0.5f : next->norm_eps;
    next->tokens = way == FEWER_TOKENS || way == OTHER_X ? next->tokens - 1 : next->tokens;
    next->x += way == OTHER_X ? next->x_stride : 0;
    if (way == CALLED_TWICE) {
        run(c, link);
        run(c, reader);
    }
    if (way == WRITTEN_BETWEEN) {
        float *v = numbers(array_floats(c, between), 5);

        ck_assert_int_eq(bt_device_write(c->device, c->arrays[between], v, array_floats(c, between) * 4), BT_OK);
        free(v);
    }
    run(c, reader);
}

// After O of whole rows' scales, and after gate|up in blocks of 256 rows.
START_TEST(another_call_than_the_one_announced_gives_the_bits_of_ref)
{
    static const chain_shape pairs = {29, 256, 8704, true, false, false, 1, 0, true};
    const chain_shape *s = _i < WAYS ? &shapes[0] : &pairs;
    int link = _i < WAYS ? 1 : 2, way = _i % WAYS;
    float *norm;
    chain a, b;

    if (!bt_gpu_takes((uint32_t)way)) {
        return;
    }
    norm = numbers(s->ffn, 9);
    chain_init(&a, ref, s);
    chain_init(&b, gpu, s);
    announce(&b, false);
    cuda_use_prompt(gpu, false); // which goes on after O as well
    differ(&a, link, way, norm);
    differ(&b, link, way, linear_copy(&b.copies, norm, s->ffn * 4));
    same(&a, &b, STREAM, "stream");
    same(&a, &b, INNER, "inner");
    cuda_use_prompt(gpu, true);
    chain_fini(&a);
    chain_fini(&b);
    free(norm);
}
END_TEST

START_TEST(silu_is_the_same_for_every_float)
{
    if (bt_gpu_takes(0)) {
        ck_assert_uint_eq(silu_differences(), 0);
    }
}
END_TEST

// What run.sh's part `older` builds upon. The last is more than any GPU is yet, the first nothing at all.
START_TEST(as_an_older_gpu_it_has_that_ones_kernels_and_shared_memory)
{
    static const struct {
        const char *as;
        size_t shared; // 0: refused
    } cases[] = {{"8", 0}, {"8.0", 163 << 10}, {"8.6", 99 << 10}, {"8.9", 99 << 10}, {"99.0", 0}};
    const char *before = getenv("BATON_CUDA_AS");
    char *kept = before != NULL ? strdup(before) : NULL;
    bt_device *device = NULL;
    bt_why why;
    bt_err err;

    setenv("BATON_CUDA_AS", cases[_i].as, 1);
    err = bt_device_open(&device, &(bt_device_options){.kind = BT_DEVICE_CUDA}, &why);
    unsetenv("BATON_CUDA_AS");
    if (kept != NULL) {
        setenv("BATON_CUDA_AS", kept, 1);
    }
    free(kept);
    if (err == BT_OK) {
        ck_assert(cases[_i].shared != 0 && cuda_is_within(device, cases[_i].shared) && !bt_device_rounds(device));
        bt_device_close(device);
    } else { // an sm_80 is no sm_89
        ck_assert_int_eq(err, BT_ERR_INVALID);
        ck_assert_msg(cases[_i].shared == 0 || strstr(why.text, "less than") != NULL, "%s", why.text);
    }
}
END_TEST

static void
open_devices(void)
{
    bt_device_limits limits = {.tokens = TOKENS_MAX,
                               .cols = 28672,
                               .rows = 28672,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .context = 64,
                               .block_tokens = 32};

    // The fastest instruction set here: it gives the bits of ref (tests/kernels), which would take minutes.
    ref = linear_device("auto", 8, limits.tokens, limits.cols, limits.rows);
    bt_gpu_open(&gpu, &limits);
}

static Suite *
suite(void)
{
    Suite *s = suite_create("cuda chain");

    bt_gpu_add(s, "own", open_devices, our_own_kernel_gives_the_bits_of_cublas, 3);
    bt_gpu_add_some(s, "w8", open_devices, calls_that_know_the_next_give_the_bits_of_ref, 0, SHAPES_W8);
    bt_gpu_add_some(s, "q4", open_devices, calls_that_know_the_next_give_the_bits_of_ref, SHAPES_W8, SHAPES);
    bt_gpu_add(s, "repeated", open_devices, repeated_chains_give_the_bits_of_ref, 1);
    bt_gpu_add_some(s, "other w8", open_devices, another_call_than_the_one_announced_gives_the_bits_of_ref, 0, WAYS);
    bt_gpu_add_some(s, "other q4", open_devices, another_call_than_the_one_announced_gives_the_bits_of_ref, WAYS,
                    2 * WAYS);
    bt_gpu_add(s, "left", open_devices, a_pair_in_blocks_of_256_rows_leaves_what_the_next_call_begins_with, 2);
    bt_gpu_add(s, "older", NULL, as_an_older_gpu_it_has_that_ones_kernels_and_shared_memory, 5);
    bt_gpu_add(s, "silu", open_devices, silu_is_the_same_for_every_float, 1);
    return s;
}

int
main(void)
{
    return bt_gpu_run(suite());
}
