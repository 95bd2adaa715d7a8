// Linear layers on the GPU give the bits of kernels/cpu/ref: every format but 16-bit floats (test_cuda_half), odd shapes, batches, epilogues.
// (Of few tokens, shapes that models have: test_cuda_few.)
#include "tests/gpu/linear_agree.h"

static const bt_format formats[] = {
    {BT_WEIGHT_F32, 0, false, 0, 0},    {BT_WEIGHT_INT, 2, false, 32, 32},   {BT_WEIGHT_INT, 2, true, 16, 32},
    {BT_WEIGHT_INT, 3, false, 16, 32},  {BT_WEIGHT_INT, 3, true, 64, 128},   {BT_WEIGHT_INT, 4, false, 32, 32},
    {BT_WEIGHT_INT, 4, true, 32, 32},   {BT_WEIGHT_INT, 4, false, 128, 128}, {BT_WEIGHT_INT, 4, false, 64, 64},
    {BT_WEIGHT_INT, 5, false, 32, 64},  {BT_WEIGHT_INT, 5, true, 32, 32},    {BT_WEIGHT_INT, 6, false, 16, 32},
    {BT_WEIGHT_INT, 6, true, 128, 128}, {BT_WEIGHT_INT, 8, false, 32, 32},   {BT_WEIGHT_INT, 8, false, 0, 0},
    {BT_WEIGHT_INT, 8, false, 0, 128},  {BT_WEIGHT_INT, 8, false, 0, 32},
};
#define FORMATS (sizeof formats / sizeof *formats)

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
    return s;
}

int
main(void)
{
    return bt_gpu_run(suite());
}
