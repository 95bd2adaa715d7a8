#include "tests/kernels/linear_case.h"

#include "common/tensor/dtype.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *
exact(size_t bytes)
{
    void *memory = NULL;

    ck_assert_int_eq(posix_memalign(&memory, 64, bytes > 0 ? bytes : 1), 0);
    return memory;
}

static float
uniform(bt_rng *rng) // −1 … 1
{
    return (float)(bt_rng_next(rng) >> 40) * 0x1p-23f - 1.0f;
}

static void
make_floats(linear_part *part, bool integers, const bt_ops *ops, bt_rng *rng)
{
    const bt_weight *w = &part->weight;
    size_t count = (size_t)w->rows * w->cols, bytes = w->format.kind == BT_WEIGHT_F32 ? 4 : 2;

    part->elements = exact(count * bytes);
    for (size_t i = 0; i < count; i++) {
        float value = integers ? rintf(8.0f * uniform(rng)) : uniform(rng);

        if (bytes == 4) {
            ((float *)part->elements)[i] = value;
        } else {
            ((uint16_t *)part->elements)[i] =
                w->format.kind == BT_WEIGHT_F16 ? bt_f32_to_f16(value) : bt_f32_to_bf16(value);
        }
    }
    for (uint32_t row = 0; row < w->rows; row += 64) {
        uint32_t rows = w->rows - row < 64 ? w->rows - row : 64;

        ops->weight_pack_floats(w, row, rows, (const uint8_t *)part->elements + (size_t)row * w->cols * bytes, w->cols);
    }
}

static void
make_codes(linear_part *part, const bt_ops *ops, bt_rng *rng)
{
    const bt_weight *w = &part->weight;
    uint32_t padded = bt_cols_padded(w->cols), blocks = bt_format_blocks(w->format, w->cols);
    uint32_t zero = w->format.asymmetric ? 0 : 1u << (w->format.bits - 1);

    part->codes = exact((size_t)w->rows * padded);
    part->scales = exact((size_t)w->rows * blocks * 2);
    part->minima = exact((size_t)w->rows * blocks * 2);
    for (size_t i = 0; i < (size_t)w->rows * padded; i++) {
        uint32_t code = (uint32_t)(bt_rng_next(rng) >> 32) & ((1u << w->format.bits) - 1);

        part->codes[i] = (uint8_t)(i % padded < w->cols ? code : zero);
    }
    for (size_t i = 0; i < (size_t)w->rows * blocks; i++) {
        part->scales[i] = bt_f32_to_f16(0.02f * uniform(rng));
        part->minima[i] = bt_f32_to_f16(0.3f * uniform(rng));
    }
    for (uint32_t row = 0; row < w->rows; row += 64) {
        uint32_t rows = w->rows - row < 64 ? w->rows - row : 64;
        bt_code_rows codes = {rows, w->cols, part->codes + (size_t)row * padded, part->scales + (size_t)row * blocks,
                              part->minima + (size_t)row * blocks};

        ops->weight_pack(w, row, &codes);
    }
}

// About one weight in `every`, some rows without any, some with many (as real layers have), the first and last column among them.
static void
make_outliers(bt_weight *w, uint32_t every, bt_rng *rng)
{
    size_t limit = (size_t)w->rows * w->cols;
    uint32_t count = 0;

    w->outliers.row_start = exact((w->rows + 1) * sizeof(uint32_t));
    w->outliers.cols = exact(limit * sizeof(uint32_t));
    w->outliers.deltas = exact(limit * sizeof(uint16_t));
    for (uint32_t row = 0; row < w->rows; row++) {
        uint32_t one_in = row % 32 == 7 ? every / 8 + 1 : every;

        w->outliers.row_start[row] = count;
        for (uint32_t col = 0; col < w->cols && row % 5 != 3; col++) {
            if (bt_rng_next(rng) % one_in == 0 || (row % 5 == 1 && (col == 0 || col == w->cols - 1))) {
                w->outliers.cols[count] = col;
                w->outliers.deltas[count++] = bt_f32_to_f16(uniform(rng));
            }
        }
    }
    w->outliers.row_start[w->rows] = count;
}

static void
make_part(linear_part *part, const linear_shape *shape, uint32_t index, const bt_ops *ops, bt_rng *rng)
{
    bt_weight *w = &part->weight;

    *w = (bt_weight){.format = shape->formats[index], .rows = shape->rows[index], .cols = shape->cols};
    w->bytes = ops->weight_bytes(w->format, w->rows, w->cols);
    w->data = exact(w->bytes);
    memset(w->data, 0xa5, w->bytes); // packing writes every byte that is read
    if (w->format.kind == BT_WEIGHT_INT) {
        make_codes(part, ops, rng);
    } else {
        make_floats(part, shape->integers, ops, rng);
    }
    if (shape->outliers && w->format.kind == BT_WEIGHT_INT) {
        make_outliers(w, shape->outlier_every != 0 ? shape->outlier_every : 50, rng);
    }
    if (shape->bias) {
        part->bias = exact(w->rows * sizeof(float));
        for (uint32_t i = 0; i < w->rows; i++) {
            part->bias[i] = uniform(rng);
        }
    }
}

// Rows of x differ in size by powers of ten; a few elements stand out, and some blocks are zero.
static void
make_x(linear_case *c, const linear_shape *shape, bt_rng *rng)
{
    size_t stride = shape->cols + 3 + shape->seed % 2, rows_x = shape->tokens; // some can be read by fours

    c->x = exact((stride * (rows_x - 1) + shape->cols) * sizeof(float));
    for (size_t t = 0; t < rows_x; t++) {
        float size = powf(10.0f, 2.0f * uniform(rng)) * (shape->size != 0.0f ? shape->size : 1.0f);

        for (size_t k = 0; k < shape->cols; k++) {
            float value = shape->integers ? rintf(8.0f * uniform(rng)) : size * uniform(rng);

            c->x[t * stride + k] = bt_rng_next(rng) % 97 == 0 && !shape->integers ? 30.0f * value : value;
        }
        if (shape->cols >= 64 && t % 3 == 1) {
            memset(c->x + t * stride + 32, 0, 32 * sizeof(float));
        }
    }
    c->args.x = c->x;
    c->args.x_stride = stride;
    if (shape->norm) {
        c->norm = exact(shape->cols * sizeof(float));
        for (uint32_t k = 0; k < shape->cols; k++) {
            c->norm[k] = 1.0f + 0.5f * uniform(rng);
        }
    }
}

void
linear_case_init(linear_case *c, const linear_shape *shape, const bt_ops *ops)
{
    bool paired = shape->epilogue == BT_LINEAR_SILU_MUL || shape->epilogue == BT_LINEAR_GELU_MUL;
    bt_rng rng = {shape->seed};
    size_t stride;

    memset(c, 0, sizeof *c);
    for (uint32_t i = 0; i < shape->part_count; i++) {
        make_part(&c->parts[i], shape, i, ops, &rng);
        c->args.weights[i] = &c->parts[i].weight;
        c->args.biases[i] = c->parts[i].bias;
        c->y_rows += i == 0 || !paired ? shape->rows[i] : 0;
    }
    make_x(c, shape, &rng);
    stride = c->y_rows + 5 - shape->seed % 2; // some rows lie at even places
    c->y_count = stride * (shape->tokens - 1) + c->y_rows;
    c->y = exact(c->y_count * sizeof(float));
    c->y_before = exact(c->y_count * sizeof(float));
    for (size_t i = 0; i < c->y_count; i++) {
        c->y_before[i] = uniform(&rng);
    }
    c->args.weight_count = shape->part_count;
    c->args.tokens = shape->tokens;
    c->args.norm = c->norm;
    c->args.norm_eps = 1e-5f;
    c->args.y = c->y;
    c->args.y_stride = stride;
    c->args.epilogue = shape->epilogue;
    c->args.scale = shape->scale != 0.0f ? shape->scale : 1.0f;
    c->args.softcap = shape->softcap;
    linear_case_reset(c);
}

void
linear_case_reset(linear_case *c)
{
    memcpy(c->y, c->y_before, c->y_count * sizeof(float));
}

void
linear_case_fini(linear_case *c)
{
    for (int i = 0; i < 3; i++) {
        linear_part *p = &c->parts[i];

        free(p->weight.data), free(p->weight.outliers.row_start), free(p->weight.outliers.cols);
        free(p->weight.outliers.deltas), free(p->bias), free(p->codes), free(p->scales), free(p->minima);
        free(p->elements);
    }
    free(c->x), free(c->norm), free(c->y), free(c->y_before);
}

double
linear_part_value(const linear_part *part, uint32_t row, uint32_t col)
{
    const bt_weight *w = &part->weight;
    size_t at = (size_t)row * w->cols + col, block;

    switch (w->format.kind) {
    case BT_WEIGHT_F32:
        return ((const float *)part->elements)[at];
    case BT_WEIGHT_F16:
        return bt_f16_to_f32(((const uint16_t *)part->elements)[at]);
    case BT_WEIGHT_BF16:
        return bt_bf16_to_f32(((const uint16_t *)part->elements)[at]);
    default:
        block =
            row * bt_format_blocks(w->format, w->cols) + (w->format.block == BT_BLOCK_ROW ? 0 : col / w->format.block);
        at = (size_t)row * bt_cols_padded(w->cols) + col;
        if (w->format.asymmetric) {
            return (double)bt_f16_to_f32(part->scales[block]) * part->codes[at] + bt_f16_to_f32(part->minima[block]);
        }
        return (double)bt_f16_to_f32(part->scales[block]) * (part->codes[at] - (1 << (w->format.bits - 1)));
    }
}

const char *
linear_shape_name(const linear_shape *shape)
{
    static char text[256];
    size_t used = 0;

    for (uint32_t i = 0; i < shape->part_count; i++) {
        char name[24];

        used += (size_t)snprintf(text + used, sizeof text - used, "%s (acts %u) %u rows, ",
                                 bt_format_name(shape->formats[i], name), shape->formats[i].act_block, shape->rows[i]);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "%u cols, %u tokens, epilogue %d%s%s%s", shape->cols,
                             shape->tokens, (int)shape->epilogue, shape->norm ? ", norm" : "",
                             shape->bias ? ", bias" : "", shape->outliers ? ", outliers" : "");
    if (shape->size != 0.0f) {
        snprintf(text + used, sizeof text - used, ", x times %g", (double)shape->size);
    }
    return text;
}

bt_device *
linear_device(const char *isa, uint32_t threads, uint32_t tokens, uint32_t cols, uint32_t rows)
{
    bt_device_limits limits = {.tokens = tokens,
                               .cols = cols,
                               .rows = rows,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .context = 64,
                               .block_tokens = 32};
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = threads, .isa = isa};
    bt_device *device;
    bt_why why;

    ck_assert_msg(bt_device_open(&device, &options, &why) == BT_OK, "%s", why.text);
    ck_assert_msg(bt_device_reserve(device, &limits, &why) == BT_OK, "%s", why.text);
    return device;
}

size_t
first_difference(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            return i;
        }
    }
    return count;
}

void *
linear_copy(linear_copies *copies, const void *from, size_t bytes)
{
    void *memory;

    if (from == NULL) {
        return NULL;
    }
    ck_assert_uint_lt(copies->count, sizeof copies->memory / sizeof *copies->memory);
    memory = copies->memory[copies->count++] = bt_device_alloc(copies->device, bytes + 16);
    ck_assert_ptr_nonnull(memory);
    ck_assert_int_eq(bt_device_write(copies->device, memory, from, bytes), BT_OK);
    return memory;
}

bt_weight
linear_copy_weight(linear_copies *copies, const bt_weight *from)
{
    bt_weight to = *from;

    to.data = linear_copy(copies, from->data, from->bytes);
    if (from->outliers.row_start != NULL) {
        uint32_t n = from->outliers.row_start[from->rows];

        to.outliers.row_start = linear_copy(copies, from->outliers.row_start, (from->rows + 1) * 4);
        to.outliers.cols = linear_copy(copies, from->outliers.cols, n * 4);
        to.outliers.deltas = linear_copy(copies, from->outliers.deltas, n * 2);
    }
    return to;
}

void
linear_copies_free(linear_copies *copies)
{
    for (size_t i = 0; i < copies->count; i++) {
        bt_device_free(copies->device, copies->memory[i], 0);
    }
    copies->count = 0;
}
