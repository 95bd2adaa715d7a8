// Linear layers of few tokens on the GPU, by kernels that loads run ahead of: over many tiles and long rows, shapes that models have, again and
// again, and calls behind each other, give the bits of kernels/cpu/ref.
#include "tests/gpu/linear_agree.h"

// Those of models that write answers.
static const bt_format decode_formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128},
                                           {BT_WEIGHT_INT, 8, false, 0, 0},
                                           {BT_WEIGHT_INT, 4, false, 32, 32},
                                           {BT_WEIGHT_INT, 8, false, 32, 32},
                                           {BT_WEIGHT_INT, 8, false, 0, 128}};

// Few tokens, over blocks of threads that have several tiles and meet more than once a call.
START_TEST(few_tokens_of_tall_matrices_give_the_bits_of_ref)
{
    static const uint32_t counts[] = {1, 2, 3, 4, 5, 8, 9, 13, 16, 17};
    uint32_t tokens = counts[_i];

    for (size_t i = 0; i < sizeof decode_formats / sizeof *decode_formats; i++) {
        bt_format f = decode_formats[i];
        linear_shape shapes[] = {
            {.part_count = 3, .formats = {f, f, f}, .rows = {2200, 520, 536}, .cols = 1152, .norm = true, .bias = true},
            {.part_count = 2, .formats = {f, f}, .rows = {4400, 4400}, .cols = 192, .norm = true},
            {.part_count = 1, .formats = {f}, .rows = {2200}, .cols = 1280, .epilogue = BT_LINEAR_ADD, .scale = 0.5f},
            {.part_count = 1, .formats = {f}, .rows = {100}, .cols = 9216},
        };

        shapes[1].epilogue = BT_LINEAR_SILU_MUL;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if ((i != 0 && s != (i + (size_t)_i) % 4) ||
                !bt_gpu_takes((uint32_t)(i + s))) { // one format meets all of them
                continue;
            }
            shapes[s].tokens = tokens, shapes[s].seed = tokens * 100 + i * 10 + s;
            shapes[s].outliers = true, shapes[s].outlier_every = (i + s) % 2 ? 800 : 0;
            agree(&shapes[s]);
        }
    }
}
END_TEST

// Codes of so many columns that they come segment by segment, to blocks with one tile and with several.
START_TEST(few_tokens_of_long_rows_give_the_bits_of_ref)
{
    static const uint32_t counts[] = {2, 8, 9, 12, 16};
    uint32_t tokens = counts[_i];

    for (size_t i = 0; i < sizeof decode_formats / sizeof *decode_formats; i++) {
        bt_format f = decode_formats[i];
        linear_shape shapes[] = {
            {.part_count = 1, .formats = {f}, .rows = {4300}, .cols = 6208, .epilogue = BT_LINEAR_ADD, .scale = 0.5f},
            {.part_count = 2, .formats = {f, f}, .rows = {2200, 2200}, .cols = 5120, .norm = true},
            {.part_count = 1, .formats = {f}, .rows = {4300}, .cols = 14336, .epilogue = BT_LINEAR_ADD, .scale = 0.5f},
            {.part_count = 1, .formats = {f}, .rows = {40}, .cols = 28672},
        };

        shapes[1].epilogue = BT_LINEAR_SILU_MUL;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if ((i != 0 && s != (i + (size_t)_i) % 4) || !bt_gpu_takes((uint32_t)(i + s))) {
                continue;
            }
            shapes[s].tokens = tokens, shapes[s].seed = tokens * 700 + i * 10 + s;
            shapes[s].outliers = true, shapes[s].outlier_every = s % 2 ? 0 : 1000;
            agree(&shapes[s]);
        }
    }
}
END_TEST

// A step of linear calls in which each reads what the one before wrote, on both devices.
typedef struct {
    linear_case calls[4];
    bt_weight weights[4][3];
    bt_linear_args args[4];
    float *x, *y, *ffn; // the device's
    size_t x_count;
    linear_copies copies;
} chain;

#define HIDDEN 1152
#define FFN 2176
#define CHAIN_LAYERS 12 // of a part of the program: 2

static void
chain_init(chain *c, const bt_ops *ops, bool on_gpu, bt_format f, uint32_t tokens)
{
    linear_shape shapes[4] = {
        {.part_count = 3, .formats = {f, f, f}, .rows = {HIDDEN, 64, 64}, .cols = HIDDEN, .norm = true},
        {.part_count = 1, .formats = {f}, .rows = {HIDDEN}, .cols = HIDDEN, .epilogue = BT_LINEAR_ADD, .scale = 0.01f},
        {.part_count = 2, .formats = {f, f}, .rows = {FFN, FFN}, .cols = HIDDEN, .norm = true},
        {.part_count = 1, .formats = {f}, .rows = {HIDDEN}, .cols = FFN, .epilogue = BT_LINEAR_ADD, .scale = 0.001f}};

    shapes[2].epilogue = BT_LINEAR_SILU_MUL;
    c->copies = (linear_copies){.device = gpu};
    for (int i = 0; i < 4; i++) {
        shapes[i].tokens = tokens, shapes[i].seed = 400 + (uint64_t)i, shapes[i].outliers = true;
        linear_case_init(&c->calls[i], &shapes[i], ops);
        c->args[i] = c->calls[i].args;
        if (on_gpu) {
            move_case(&c->copies, &c->calls[i], &shapes[i], c->weights[i], &c->args[i]);
        }
    }
    c->x = (float *)c->args[0].x, c->y = c->args[0].y, c->ffn = c->args[2].y;
    c->x_count = c->args[0].x_stride * (tokens - 1) + HIDDEN;
    for (int i = 0; i < 4; i++) {
        bool to_x = i == 1 || i == 3;

        c->args[i].x = i == 1 ? c->y : i == 3 ? c->ffn : c->x;
        c->args[i].x_stride = c->args[i == 1 ? 0 : i == 3 ? 2 : 0].y_stride;
        c->args[i].x_stride = to_x ? c->args[i].x_stride : c->calls[0].args.x_stride;
        if (to_x) {
            c->args[i].y = c->x, c->args[i].y_stride = c->calls[0].args.x_stride;
        }
    }
}

static void
chain_queue(const chain *c, bt_device *device)
{
    for (int i = 0; i < (bt_gpu_whole() ? CHAIN_LAYERS : 2) * 4; i++) {
        ck_assert_int_eq(bt_device_ops(device)->linear(device, &c->args[i % 4]), BT_OK);
    }
}

// A step that writes answers: recorded the first time, replayed afterwards.
static void
chain_step(const chain *c, uint32_t tokens, bool *known)
{
    const bt_ops *ops = bt_device_ops(gpu);
    int32_t ids[16] = {0};
    uint32_t positions[16] = {0}, rows[16], block = 0;
    bt_attention_span spans[16];
    bt_step_args args = {ids, positions, tokens, spans, tokens, rows, tokens, NULL, NULL, 0, false};

    for (uint32_t i = 0; i < tokens; i++) {
        rows[i] = i;
        spans[i] = (bt_attention_span){i, 1, 0, &block};
    }
    ck_assert_int_eq(ops->begin(gpu, &args, known), BT_OK);
    if (!*known) {
        chain_queue(c, gpu);
    }
    ck_assert_int_eq(ops->end(gpu), BT_OK);
}

START_TEST(calls_that_follow_each_other_give_the_bits_of_ref_every_time)
{
    static const uint32_t counts[] = {1, 2, 4, 6, 16};
    uint32_t tokens = counts[_i];
    bt_format f = {BT_WEIGHT_INT, 4, false, 128, 128};
    chain a, b;
    float *got;

    if (!bt_gpu_takes((uint32_t)_i)) {
        return;
    }
    chain_init(&a, bt_device_ops(ref), false, f, tokens);
    chain_queue(&a, ref);
    open_gpu(); // graphs of other calls are not these
    chain_init(&b, bt_device_ops(gpu), true, f, tokens);
    got = malloc(b.x_count * sizeof *got);
    for (int i = 0; i < bt_gpu_times(40, 4); i++) {
        bool known;
        size_t at;

        ck_assert_int_eq(bt_device_write(gpu, b.x, b.calls[0].x, b.x_count * sizeof *got), BT_OK);
        chain_step(&b, tokens, &known);
        ck_assert_int_eq(known, i > 0);
        ck_assert_int_eq(bt_device_read(gpu, got, b.x, b.x_count * sizeof *got), BT_OK);
        for (uint32_t t = 0; t < tokens; t++) {
            const float *row = got + t * b.args[0].x_stride, *of_ref = a.x + t * a.args[0].x_stride;

            at = first_difference(of_ref, row, HIDDEN);
            ck_assert_msg(at == HIDDEN, "run %d: x[%u][%zu] is %.9g, ref says %.9g", i, t, at, row[at], of_ref[at]);
        }
    }
    linear_copies_free(&b.copies);
    for (int i = 0; i < 4; i++) {
        linear_case_fini(&a.calls[i]);
        linear_case_fini(&b.calls[i]);
    }
    free(got);
}
END_TEST

// What a step of one sequence is made of (linear_one.cuh), and what is nearly that: few tiles, one segment, a column more, a bias.
static const linear_shape ones[] = {
    {.part_count = 3, .rows = {4096, 1024, 1024}, .cols = 4096, .norm = true, .outliers = true, .outlier_every = 1000},
    {.part_count = 1, .rows = {4096}, .cols = 4096, .outliers = true, .epilogue = BT_LINEAR_ADD, .scale = 1.0f},
    {.part_count = 2,
     .rows = {14336, 14336},
     .cols = 4096,
     .norm = true,
     .outliers = true,
     .outlier_every = 1000,
     .epilogue = BT_LINEAR_SILU_MUL},
    {.part_count = 1,
     .rows = {4096},
     .cols = 14336,
     .outliers = true,
     .outlier_every = 1000,
     .epilogue = BT_LINEAR_ADD,
     .scale = 0.5f},
    {.part_count = 3, .rows = {2048, 512, 512}, .cols = 2048, .norm = true},
    {.part_count = 2,
     .rows = {8192, 8192},
     .cols = 2048,
     .norm = true,
     .outliers = true,
     .epilogue = BT_LINEAR_GELU_MUL},
    {.part_count = 1, .rows = {2048}, .cols = 8192, .outliers = true, .epilogue = BT_LINEAR_ADD, .scale = 1.0f},
    {.part_count = 1, .rows = {8192}, .cols = 8192, .norm = true, .outliers = true},
    {.part_count = 2,
     .rows = {5120, 5120},
     .cols = 5120,
     .norm = true,
     .outliers = true,
     .epilogue = BT_LINEAR_SILU_MUL},
    {.part_count = 1, .rows = {5120}, .cols = 13824, .epilogue = BT_LINEAR_ADD, .scale = 1.0f},
    {.part_count = 1, .rows = {16}, .cols = 1024, .norm = true, .outliers = true},
    {.part_count = 1, .rows = {2112}, .cols = 3072, .outliers = true},
    {.part_count = 3, .rows = {4096, 16, 32}, .cols = 3072, .norm = true, .outliers = true},
    {.part_count = 2, .rows = {32, 32}, .cols = 1024, .outliers = true, .epilogue = BT_LINEAR_SILU_MUL},
    {.part_count = 1, .rows = {4100}, .cols = 4096, .norm = true, .outliers = true},
    {.part_count = 1, .rows = {4096}, .cols = 4224, .norm = true, .outliers = true},
    {.part_count = 1, .rows = {4096}, .cols = 4096, .bias = true, .outliers = true},
    {.part_count = 1, .rows = {4096}, .cols = 4096, .outliers = true, .softcap = 30.0f},
    {.part_count = 1, .rows = {4096}, .cols = 16384, .outliers = true},
};
#define ONES (sizeof ones / sizeof *ones)

START_TEST(one_token_of_what_models_have_gives_the_bits_of_ref_every_time)
{
    linear_shape shape = ones[_i];

    for (uint32_t i = 0; i < shape.part_count; i++) {
        shape.formats[i] = (bt_format){BT_WEIGHT_INT, 4, false, 128, 128};
    }
    shape.tokens = 1, shape.seed = 900 + (uint64_t)_i;
    if (bt_gpu_takes((uint32_t)_i)) {
        agree_times(&shape, bt_gpu_times(20, 3));
    }
}
END_TEST

// The same by linear_lean.cuh, each once with 2 … 8 tokens and once with 9 … 16.
START_TEST(few_tokens_of_what_models_have_give_the_bits_of_ref_every_time)
{
    uint32_t i = (uint32_t)_i / 2;
    linear_shape shape = ones[i];

    for (uint32_t part = 0; part < shape.part_count; part++) {
        shape.formats[part] = (bt_format){BT_WEIGHT_INT, 4, false, 128, 128};
    }
    shape.tokens = _i % 2 == 0 ? 2 + i * 3 % 7 : 9 + (i * 3 + 7) % 8;
    shape.seed = 950 + (uint64_t)_i;
    if (bt_gpu_takes((uint32_t)_i)) {
        agree_times(&shape, 10);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("cuda few");

    bt_gpu_add(s, "tall", open_devices, few_tokens_of_tall_matrices_give_the_bits_of_ref, 10);
    bt_gpu_add(s, "long", open_devices, few_tokens_of_long_rows_give_the_bits_of_ref, 5);
    bt_gpu_add(s, "one", open_devices, one_token_of_what_models_have_gives_the_bits_of_ref_every_time, ONES);
    bt_gpu_add(s, "several", open_devices, few_tokens_of_what_models_have_give_the_bits_of_ref_every_time, 2 * ONES);
    bt_gpu_add(s, "chain", open_devices, calls_that_follow_each_other_give_the_bits_of_ref_every_time, 5);
    return s;
}

int
main(void)
{
    return bt_gpu_run(suite());
}
