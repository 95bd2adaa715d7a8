// Linear layers on the GPU give the bits of kernels/cpu/ref: every format but 16-bit floats (test_cuda_half), odd shapes, batches, epilogues.
#include "tests/gpu/gpu.h"
#include "tests/kernels/linear_case.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bt_format formats[] = {
    {BT_WEIGHT_F32, 0, false, 0, 0},    {BT_WEIGHT_INT, 2, false, 32, 32},   {BT_WEIGHT_INT, 2, true, 16, 32},
    {BT_WEIGHT_INT, 3, false, 16, 32},  {BT_WEIGHT_INT, 3, true, 64, 128},   {BT_WEIGHT_INT, 4, false, 32, 32},
    {BT_WEIGHT_INT, 4, true, 32, 32},   {BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, false, 64, 64},
    {BT_WEIGHT_INT, 5, false, 32, 64},  {BT_WEIGHT_INT, 5, true, 32, 32},    {BT_WEIGHT_INT, 6, false, 16, 32},
    {BT_WEIGHT_INT, 6, true, 128, 128}, {BT_WEIGHT_INT, 8, false, 32, 32},   {BT_WEIGHT_INT, 8, false, 0, 0},
    {BT_WEIGHT_INT, 8, false, 0, 128},  {BT_WEIGHT_INT, 8, false, 0, 32},
};
#define FORMATS (sizeof formats / sizeof *formats)
#define ROWS_MAX 70000u

// Those of models that write answers.
static const bt_format decode_formats[] = {{BT_WEIGHT_INT, 4, false, 128, 128},
                                           {BT_WEIGHT_INT, 8, false, 0, 0},
                                           {BT_WEIGHT_INT, 4, false, 32, 32},
                                           {BT_WEIGHT_INT, 8, false, 32, 32},
                                           {BT_WEIGHT_INT, 8, false, 0, 128}};

static bt_device *ref, *fast, *gpu; // fast: the processor's own kernels, which give ref's bits (tests/kernels)

// Ref takes seconds of 8 threads for 2^30 products, and other programs want the processors, too.
static bt_device *
compared_with(const linear_shape *shape)
{
    uint64_t rows = shape->rows[0] + (uint64_t)shape->rows[1] + shape->rows[2];

    return rows * shape->cols * shape->tokens < (UINT64_C(1) << 29) || shape->size != 0 ? ref : fast;
}

static void
move_case(linear_copies *copies, linear_case *c, const linear_shape *shape, bt_weight weights[3], bt_linear_args *args)
{
    *args = c->args;
    for (uint32_t i = 0; i < args->weight_count; i++) {
        weights[i] = linear_copy_weight(copies, args->weights[i]);
        args->weights[i] = &weights[i];
        args->biases[i] = linear_copy(copies, args->biases[i], weights[i].rows * 4);
    }
    args->x = linear_copy(copies, c->x, (args->x_stride * (shape->tokens - 1) + shape->cols) * 4);
    args->norm = linear_copy(copies, c->norm, shape->cols * 4);
    args->y = linear_copy(copies, c->y_before, c->y_count * 4);
}

static void
agree_times(const linear_shape *shape, int times)
{
    const bt_ops *ops = bt_device_ops(gpu);
    bt_device *cpu = compared_with(shape);
    linear_copies copies = {.device = gpu};
    linear_case a, b;
    bt_weight weights[3];
    bt_linear_args args;
    size_t at;

    linear_case_init(&a, shape, bt_device_ops(cpu));
    ck_assert_int_eq(bt_device_ops(cpu)->linear(cpu, &a.args), BT_OK);
    linear_case_init(&b, shape, ops);
    move_case(&copies, &b, shape, weights, &args);
    for (int i = 0; i < times; i++) {
        ck_assert_int_eq(bt_device_write(gpu, args.y, b.y_before, b.y_count * 4), BT_OK);
        ck_assert_int_eq(ops->linear(gpu, &args), BT_OK);
        ck_assert_int_eq(bt_device_read(gpu, b.y, args.y, b.y_count * 4), BT_OK);
        at = first_difference(a.y, b.y, a.y_count);
        ck_assert_msg(at == a.y_count, "%s, run %d: y[%zu][%zu] is %.9g, ref says %.9g", linear_shape_name(shape), i,
                      at / a.args.y_stride, at % a.args.y_stride, b.y[at], a.y[at]);
    }
    linear_copies_free(&copies);
    linear_case_fini(&a);
    linear_case_fini(&b);
}

static void
agree(const linear_shape *shape)
{
    agree_times(shape, 1);
}

START_TEST(every_format_and_width_gives_the_bits_of_ref)
{
    static const uint32_t cols[] = {64, 172, 576, 1024, 1536, 2112, 4096, 5120};
    static const uint32_t rows[] = {1, 16, 17, 64, 100};
    static const uint32_t tokens[] = {1, 2, 3, 5, 8};

    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
        linear_shape shape = {.part_count = 1,
                              .formats = {formats[_i]},
                              .rows = {rows[(_i + i) % 5]},
                              .cols = cols[i],
                              .tokens = tokens[(i + _i) % 5],
                              .norm = i % 2 == 0,
                              .outliers = (i + _i) % 3 == 0,
                              .bias = i % 3 == 1,
                              .seed = (uint64_t)_i * 1000 + i};

        if (bt_gpu_takes((uint32_t)_i + (uint32_t)i)) {
            agree(&shape);
        }
    }
}
END_TEST

START_TEST(every_number_of_tokens_gives_the_bits_of_ref)
{
    static const uint32_t tokens[] = {1, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 97, 128, 200, 257};

    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        linear_shape shape = {.part_count = 1,
                              .formats = {formats[_i]},
                              .rows = {i % 3 == 0 ? 64 : 50},
                              .cols = i % 2 ? 1088 : 576,
                              .tokens = tokens[i],
                              .outliers = i % 2 == 0,
                              .seed = (uint64_t)_i * 77 + i};

        if (bt_gpu_takes((uint32_t)_i + (uint32_t)i)) {
            agree(&shape);
        }
    }
}
END_TEST

START_TEST(parts_and_epilogues_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {1, 5, 16, 40, 130};
    bt_format f = formats[_i];

    for (size_t i = 0; i < 5; i++) {
        linear_shape qkv = {.part_count = 3, .formats = {f, f, f}, .rows = {192, 64, 48}, .cols = 576};
        linear_shape pair = {.part_count = 2, .formats = {f, f}, .rows = {172, 172}, .cols = 576};
        linear_shape add = {.part_count = 1, .formats = {f}, .rows = {96}, .cols = 2048};

        qkv.tokens = pair.tokens = add.tokens = tokens[i];
        qkv.bias = pair.outliers = add.outliers = true;
        pair.epilogue = i % 2 ? BT_LINEAR_GELU_MUL : BT_LINEAR_SILU_MUL;
        pair.norm = true;
        add.epilogue = BT_LINEAR_ADD;
        add.scale = 0.75f;
        add.softcap = i == 2 ? 30.0f : 0.0f;
        qkv.seed = pair.seed = add.seed = 5 + i;
        if (bt_gpu_takes((uint32_t)_i + (uint32_t)i)) {
            agree(&qkv);
            agree(&pair);
            agree(&add);
        }
    }
}
END_TEST

START_TEST(wide_layers_give_the_bits_of_ref)
{
    static const uint32_t cols[] = {8192, 14336, 28672};

    for (size_t i = 0; i < 3; i++) {
        for (uint32_t tokens = 1; tokens <= 64; tokens *= 4) {
            linear_shape shape = {.part_count = 1,
                                  .formats = {formats[_i]},
                                  .rows = {48},
                                  .cols = cols[i],
                                  .tokens = tokens,
                                  .seed = cols[i] + tokens};

            if (bt_gpu_takes((uint32_t)_i + (uint32_t)i + tokens - 1)) {
                agree(&shape);
            }
        }
    }
}
END_TEST

// Parts that end within a block of threads, gates without a partner in theirs, and the last columns of a unit missing.
START_TEST(many_tokens_and_odd_parts_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {17, 50, 130, 257}, cols[] = {576, 1088, 4160, 172};
    bt_format f = formats[_i];

    for (size_t i = 0; i < 4; i++) {
        linear_shape two = {.part_count = 2, .formats = {f, f}, .rows = {80, 208}};
        linear_shape three = {.part_count = 3, .formats = {f, f, f}, .rows = {144, 17, 33}};
        linear_shape pair = {.part_count = 2, .formats = {f, f}, .rows = {200, 200}};

        two.tokens = three.tokens = pair.tokens = tokens[i];
        two.cols = three.cols = pair.cols = cols[(i + _i) % 4];
        two.outliers = three.outliers = pair.outliers = true;
        two.bias = pair.bias = pair.norm = true;
        two.epilogue = BT_LINEAR_ADD;
        two.scale = 0.5f;
        three.scale = 1.0f;
        three.softcap = two.softcap = 20.0f;
        pair.epilogue = i % 2 ? BT_LINEAR_SILU_MUL : BT_LINEAR_GELU_MUL;
        two.seed = three.seed = pair.seed = 91 + i;
        if (bt_gpu_takes((uint32_t)(_i + i))) {
            agree(&two);
            agree(&three);
            agree(&pair);
        }
    }
}
END_TEST

START_TEST(many_tokens_and_a_wide_layer_give_the_bits_of_ref)
{
    static const uint32_t cols[] = {3072, 14336, 28672};

    for (size_t i = 0; i < 3; i++) {
        linear_shape shape = {.part_count = 1,
                              .formats = {formats[_i]},
                              .rows = {112},
                              .cols = cols[i],
                              .tokens = i == 1 ? 40 : 100,
                              .outliers = true,
                              .seed = cols[i] + _i};

        if (bt_gpu_takes((uint32_t)(_i + i))) {
            agree(&shape);
        }
    }
}
END_TEST

// Matrices as tall as a model's down: their runs of K meet in global memory where clusters do not all find room.
START_TEST(tall_calls_of_many_tokens_give_the_bits_of_ref_every_time)
{
    static const bt_format some[] = {{BT_WEIGHT_INT, 4, false, 128, 128},
                                     {BT_WEIGHT_INT, 4, true, 32, 32},
                                     {BT_WEIGHT_INT, 8, false, 0, 128},
                                     {BT_WEIGHT_INT, 8, false, 0, 0}};
    static const uint32_t tokens[] = {17, 32, 40, 64, 65, 128};

    for (uint32_t i = 0; i < 2; i++) {
        linear_shape shape = {.part_count = 1,
                              .formats = {some[i == 0 ? 0 : (uint32_t)_i % 4]},
                              .rows = {4096 - (uint32_t)_i * 8},
                              .cols = i == 0 ? 3200 : 5120,
                              .tokens = tokens[_i],
                              .outliers = true,
                              .epilogue = BT_LINEAR_ADD,
                              .scale = 0.5f,
                              .seed = 700 + (uint64_t)_i};

        if (bt_gpu_takes((uint32_t)_i + i)) {
            agree_times(&shape, bt_gpu_times(20, 3));
        }
    }
}
END_TEST

// As many rows as a model's gates and ups: one round of blocks of 256 rows, two of 128 (linear_wide_tall.cu).
START_TEST(many_tokens_and_rows_for_one_round_of_tall_blocks_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {17, 32, 45, 64};
    bt_format f = {BT_WEIGHT_INT, 4, false, 128, 128};

    for (uint32_t i = 0; i < 2; i++) {
        linear_shape shape = {.part_count = 2,
                              .formats = {f, f},
                              .rows = {8604, 8604},
                              .cols = i == 0        ? 576
                                      : _i % 2 == 0 ? 2176
                                                    : 3968,
                              .tokens = tokens[_i],
                              .outliers = true,
                              .norm = true,
                              .bias = i == 0,
                              .epilogue = i == 0 ? BT_LINEAR_STORE : BT_LINEAR_SILU_MUL,
                              .scale = 1.0f,
                              .seed = 800 + (uint64_t)_i};

        if (bt_gpu_takes((uint32_t)_i * 2 + i)) {
            agree_times(&shape, bt_gpu_times(5, 2));
        }
    }
}
END_TEST

// The last tokens of a tile are not there, of each width of tiles, and of two tiles.
static const uint32_t tile_tokens[] = {19, 33, 45, 48, 65, 90, 96, 97, 129, 161, 192, 193};
#define TILE_TOKENS (sizeof tile_tokens / sizeof *tile_tokens)

START_TEST(tiles_that_are_not_full_give_the_bits_of_ref)
{
    bt_format f = {BT_WEIGHT_INT, 4, false, 128, 128};
    linear_shape shapes[] = {
        {.part_count = 3, .formats = {f, f, f}, .rows = {144, 17, 33}, .cols = 4160, .scale = 1.0f, .softcap = 20.0f},
        {.part_count = 2, .formats = {f, f}, .rows = {200, 200}, .cols = 576, .norm = true, .bias = true},
        {.part_count = 1, .formats = {f}, .rows = {1100}, .cols = 4160, .epilogue = BT_LINEAR_ADD, .scale = 0.5f},
    };

    shapes[1].epilogue = BT_LINEAR_SILU_MUL;
    for (uint32_t i = 0; i < 3; i++) {
        shapes[i].tokens = tile_tokens[_i], shapes[i].seed = 900 + (uint64_t)_i * 3 + i;
        shapes[i].outliers = i != 1 || _i % 2 == 0;
        if (bt_gpu_takes((uint32_t)_i + i)) {
            agree_times(&shapes[i], 3);
        }
    }
}
END_TEST

// Sums that come close to 2^128, and some beyond: no kernel keeps more than what a sum is. Of 32 tokens in tall blocks.
START_TEST(huge_activations_give_the_bits_of_ref)
{
    static const uint32_t tokens[] = {1, 5, 16, 32, 48, 64, 128, 1921};
    bt_format f = {BT_WEIGHT_INT, 4, false, 128, 128};
    linear_shape shape = {.part_count = 1,
                          .formats = {f},
                          .rows = {tokens[_i] == 32   ? 17000
                                   : tokens[_i] > 128 ? 100
                                                      : 300},
                          .cols = 2048};

    shape.tokens = tokens[_i], shape.size = 0x1p120f, shape.outliers = true, shape.seed = 70 + (uint64_t)_i;
    if (bt_gpu_takes((uint32_t)_i)) {
        agree(&shape);
    }
}
END_TEST

// Prompts (linear_deep.cu): tiles of tokens and rows that end anywhere, blocks that have up to three tiles (of pairs, of trees that reach into
// global memory, and with outliers, too: 66 clusters on an H200), trees of up to 28 segments.
#define PROMPTS 12
START_TEST(prompts_of_4_bits_give_the_bits_of_ref_every_time)
{
    bt_format f = {BT_WEIGHT_INT, 4, false, 128, 128}, by_row = {BT_WEIGHT_INT, 4, false, 128, BT_BLOCK_ROW};
    linear_shape shapes[] = {
        {.part_count = 1, .formats = {f}, .rows = {1100}, .cols = 1152, .tokens = 2049, .epilogue = BT_LINEAR_ADD},
        {.part_count = 3, .formats = {f, f, f}, .rows = {200, 70, 33}, .cols = 4096, .tokens = 1925, .norm = true},
        {.part_count = 2, .formats = {f, f}, .rows = {264, 264}, .cols = 2240, .tokens = 2000, .bias = true},
        {.part_count = 1, .formats = {f}, .rows = {264}, .cols = 14336, .tokens = 385, .epilogue = BT_LINEAR_ADD},
        {.part_count = 1, .formats = {f}, .rows = {130}, .cols = 28672, .tokens = 390, .softcap = 20.0f},
        {.part_count = 2, .formats = {f, f}, .rows = {200, 200}, .cols = 1088, .tokens = 2048, .bias = true},
        {.part_count = 1, .formats = {f}, .rows = {1290}, .cols = 1024, .tokens = 2048},
        {.part_count = 1, .formats = {f}, .rows = {100}, .cols = 8256, .tokens = 513, .bias = true},
        {.part_count = 2, .formats = {f, f}, .rows = {1400, 1400}, .cols = 1024, .tokens = 2049},
        {.part_count = 3, .formats = {f, f, f}, .rows = {190, 128, 40}, .cols = 4160, .tokens = 1930, .norm = true},
        {.part_count = 1, .formats = {f}, .rows = {4400}, .cols = 9216, .tokens = 400, .epilogue = BT_LINEAR_ADD},
        {.part_count = 1, .formats = {by_row}, .rows = {300}, .cols = 2176, .tokens = 1921, .softcap = 20.0f},
    };
    linear_shape *shape = &shapes[_i % PROMPTS];

    shapes[2].epilogue = shapes[8].epilogue = BT_LINEAR_SILU_MUL, shapes[5].epilogue = BT_LINEAR_GELU_MUL;
    shape->scale = shape->epilogue == BT_LINEAR_ADD ? 0.5f : 1.0f, shape->seed = 1000 + (uint64_t)_i;
    shape->outliers = _i < PROMPTS && _i != 6;
    if (bt_gpu_takes((uint32_t)_i)) {
        agree_times(shape, 4);
    }
}
END_TEST

START_TEST(a_head_of_many_rows_gives_the_bits_of_ref)
{
    static const uint32_t tokens[] = {17, 70, 33, 129, 20};
    bt_format f = {BT_WEIGHT_INT, _i == 0 ? 8 : 4, false, _i == 0 ? 0 : 128, _i == 0 ? 0 : 128};

    for (size_t i = 0; i < 5; i++) { // from the third on there are rows enough for linear_wide_head.cu
        linear_shape shape = {.part_count = 1, .formats = {f}, .rows = {i < 2 ? 49157 : ROWS_MAX - (uint32_t)i}};

        shape.cols = i < 2 ? 576 : 330, shape.tokens = tokens[i];
        shape.softcap = 30.0f;
        shape.scale = 1.0f;
        shape.seed = tokens[i];
        if (bt_gpu_takes((uint32_t)(_i * 5 + i))) {
            agree(&shape);
        }
    }
}
END_TEST

static void
open_gpu(void)
{
    bt_device_limits limits = {.tokens = 2049,
                               .cols = 28672,
                               .rows = ROWS_MAX,
                               .heads = 32, // with them there is room for runs of K that meet in global memory
                               .kv_heads = 2,
                               .head_dim = 128,
                               .context = 8192,
                               .block_tokens = 32};

    bt_gpu_open(&gpu, &limits);
}

static void
open_devices(void)
{
    if (ref == NULL) {
        ref = linear_device("ref", 8, 2049, 28672, ROWS_MAX);
        fast = linear_device("auto", 8, 2049, 28672, ROWS_MAX);
    }
    if (gpu == NULL) { // each case begins so: where that fails, none of its tests runs
        open_gpu();
    }
}

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
    Suite *s = suite_create("cuda linear");

    bt_gpu_add(s, "formats", open_devices, every_format_and_width_gives_the_bits_of_ref, FORMATS);
    bt_gpu_add(s, "tokens", open_devices, every_number_of_tokens_gives_the_bits_of_ref, FORMATS);
    bt_gpu_add(s, "parts", open_devices, parts_and_epilogues_give_the_bits_of_ref, FORMATS);
    bt_gpu_add(s, "wide", open_devices, wide_layers_give_the_bits_of_ref, FORMATS);
    bt_gpu_add(s, "many", open_devices, many_tokens_and_odd_parts_give_the_bits_of_ref, FORMATS);
    bt_gpu_add(s, "many wide", open_devices, many_tokens_and_a_wide_layer_give_the_bits_of_ref, FORMATS);
    bt_gpu_add(s, "tall many", open_devices, tall_calls_of_many_tokens_give_the_bits_of_ref_every_time, 6);
    bt_gpu_add(s, "rounds", open_devices, many_tokens_and_rows_for_one_round_of_tall_blocks_give_the_bits_of_ref, 4);
    bt_gpu_add(s, "tiles", open_devices, tiles_that_are_not_full_give_the_bits_of_ref, TILE_TOKENS);
    bt_gpu_add(s, "huge", open_devices, huge_activations_give_the_bits_of_ref, 8);
    bt_gpu_add(s, "prompts", open_devices, prompts_of_4_bits_give_the_bits_of_ref_every_time, PROMPTS + 1);
    bt_gpu_add(s, "head", open_devices, a_head_of_many_rows_gives_the_bits_of_ref, 2);
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
