// What a linear layer is, number by number (DESIGN 7). Every other path gives these bits.
//
// Integer weights. The row x of a token, normed if there is a norm, becomes INT8 with a scale every act_block columns. With
// sw, min and code of a weight block, sa of the activation block it lies in, and zero = 2^(bits−1) or, asymmetric, 0:
//
//     dot = Σ (code − zero) · a8            exact
//     sum = Σ a8                            exact
//     acc  = fmaf(sw · sa, (float)dot, acc)
//     accm = fmaf(min, sa · (float)sum, accm)     asymmetric
//
// block by block in rising order within a segment of 1,024 columns; each segment begins at 0, and segments are added as
// a balanced pairwise tree (bt_ref_tree). A weight with one scale a row meets activation blocks as blocks of its own (one
// exact dot over all of K where those have one scale a token too, and no segments then).
//
//     r = tree(acc) [+ tree(accm)] [+ Σ outliers, if the row has any: o = fmaf(delta, sa · (float)a8, o) by rising column] [+ bias]
//
// Float weights: the widened row and x in 16 lanes by index mod 16, fmaf in rising order, one tree. x is not quantised.
#include "kernels/cpu/ref/linear.h"

#include "kernels/cpu/panel.h"
#include "kernels/cpu/ref/math.h"
#include "kernels/cpu/ref/quantise.h"

#include "common/tensor/dtype.h"

#include <string.h>

#define SEGMENT_COLS 1024u
#define SEGMENTS_LOG2 24 // more than any K has

// A balanced pairwise tree over values that arrive in order: a sum of 2^n values waits for its equal neighbour; what is
// left at the end is added from the right.
typedef struct {
    float sums[SEGMENTS_LOG2];
    uint32_t depth, count;
} tree;

static void
tree_add(tree *t, float value)
{
    t->count++;
    for (uint32_t n = t->count; n % 2 == 0; n /= 2) {
        value = t->sums[--t->depth] + value;
    }
    t->sums[t->depth++] = value;
}

static float
tree_sum(tree *t)
{
    float value = t->sums[--t->depth];

    while (t->depth > 0) {
        value = t->sums[--t->depth] + value;
    }
    return value;
}

// What a token brings to every row.
typedef struct {
    float *x;      // [cols padded], normed
    int8_t *a8;    // [cols padded]
    float *scales; // [act blocks]
    uint8_t *codes;
} row_scratch;

size_t
bt_ref_linear_scratch(uint32_t cols)
{
    return (size_t)bt_cols_padded(cols) * (4 + 4 + 1 + 1);
}

static row_scratch
scratch_of(void *memory, uint32_t cols)
{
    uint32_t padded = bt_cols_padded(cols);
    row_scratch s = {.x = memory};

    s.scales = s.x + padded;
    s.a8 = (int8_t *)(s.scales + padded);
    s.codes = (uint8_t *)(s.a8 + padded);
    return s;
}

static float
outlier_sum(const bt_weight *w, uint32_t row, const row_scratch *s)
{
    const bt_outliers *o = &w->outliers;
    uint32_t act_block = w->format.act_block;
    float sum = 0.0f;

    for (uint32_t i = o->row_start[row]; i < o->row_start[row + 1]; i++) {
        uint32_t k = o->cols[i];
        float scale = s->scales[act_block == BT_BLOCK_ROW ? 0 : k / act_block];

        sum = fmaf(bt_f16_to_f32(o->deltas[i]), scale * (float)s->a8[k], sum);
    }
    return sum;
}

static float
dot_int(const bt_weight *w, uint32_t row, const row_scratch *s)
{
    bt_format f = w->format;
    bt_panel_layout layout = bt_panel_layout_of(f, w->rows, w->cols);
    const uint16_t *scales = bt_panel_scales(&layout, w->data, row / BT_PANEL_ROWS) + row % BT_PANEL_ROWS;
    uint32_t padded = bt_cols_padded(w->cols);
    uint32_t block = f.block != BT_BLOCK_ROW ? f.block : f.act_block != BT_BLOCK_ROW ? f.act_block : padded;
    uint32_t segment = f.block == BT_BLOCK_ROW && f.act_block == BT_BLOCK_ROW ? padded : SEGMENT_COLS;
    int32_t zero = f.asymmetric ? 0 : 1 << (f.bits - 1);
    tree sums = {.depth = 0}, minima = {.depth = 0};
    float r;

    bt_panel_row_codes(w, row, s->codes);
    for (uint32_t first = 0; first < padded; first += segment) {
        float acc = 0.0f, accm = 0.0f;

        for (uint32_t k = first; k < padded && k < first + segment; k += block) {
            size_t b = f.block == BT_BLOCK_ROW ? 0 : k / block;
            float sw = bt_f16_to_f32(scales[b * layout.scale_block]);
            float sa = s->scales[f.act_block == BT_BLOCK_ROW ? 0 : k / f.act_block];
            int32_t dot = 0, sum = 0;

            for (uint32_t i = k; i < padded && i < k + block; i++) {
                dot += (s->codes[i] - zero) * s->a8[i];
                sum += s->a8[i];
            }
            acc = fmaf(sw * sa, (float)dot, acc);
            if (f.asymmetric) {
                accm = fmaf(bt_f16_to_f32(scales[b * layout.scale_block + BT_PANEL_ROWS]), sa * (float)sum, accm);
            }
        }
        tree_add(&sums, acc);
        tree_add(&minima, accm);
    }
    r = tree_sum(&sums);
    return f.asymmetric ? r + tree_sum(&minima) : r;
}

static float
dot_float(const bt_weight *w, uint32_t row, const row_scratch *s)
{
    float lanes[16] = {0};

    for (uint32_t k = 0; k < bt_cols_padded(w->cols); k++) {
        lanes[k % 16] = fmaf(bt_panel_float(w, row, k), s->x[k], lanes[k % 16]);
    }
    return bt_ref_tree16(lanes);
}

static float
row_value(const bt_linear_args *args, uint32_t part, uint32_t row, const row_scratch *s)
{
    const bt_weight *w = args->weights[part];
    float r;

    if (w->format.kind != BT_WEIGHT_INT) {
        r = dot_float(w, row, s);
    } else {
        r = dot_int(w, row, s);
        if (w->outliers.row_start != NULL && w->outliers.row_start[row + 1] > w->outliers.row_start[row]) {
            r += outlier_sum(w, row, s);
        }
    }
    if (args->biases[part] != NULL) {
        r += args->biases[part][row];
    }
    return args->softcap > 0.0f ? bt_ref_softcap(r, args->softcap) : r;
}

static void
store(const bt_linear_args *args, float *y, float r)
{
    *y = args->epilogue == BT_LINEAR_ADD ? fmaf(args->scale, r, *y) : args->scale * r;
}

void
bt_ref_linear_rows(const bt_linear_args *args, uint32_t token, uint32_t first_row, uint32_t end_row, void *scratch)
{
    const bt_weight *w = args->weights[0];
    row_scratch s = scratch_of(scratch, w->cols);
    float *y = args->y + token * args->y_stride;
    bool paired = args->epilogue == BT_LINEAR_SILU_MUL || args->epilogue == BT_LINEAR_GELU_MUL;

    bt_ref_norm_row(args->x + token * args->x_stride, w->cols, args->norm, args->norm_eps, s.x);
    if (w->format.kind == BT_WEIGHT_INT) {
        bt_ref_quantise_row(s.x, w->cols, w->format.act_block, s.a8, s.scales);
    }
    for (uint32_t row = first_row; row < end_row; row++) {
        uint32_t part = 0, start = 0;

        if (paired) {
            float gate = row_value(args, 0, row, &s), up = row_value(args, 1, row, &s);

            y[row] = (args->epilogue == BT_LINEAR_SILU_MUL ? bt_ref_silu(gate) : bt_ref_gelu_tanh(gate)) * up;
            continue;
        }
        while (row - start >= args->weights[part]->rows) {
            start += args->weights[part++]->rows;
        }
        store(args, &y[row], row_value(args, part, row - start, &s));
    }
}
