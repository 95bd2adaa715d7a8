// One linear call as its kernels see it, and what becomes of a row's dot.
#pragma once

#include "kernels/cuda/weight.cuh"

#define SEGMENT 1024u
#define GROUPS_MAX 16u

typedef struct {
    bt_cuda_matrix part[3];
    const float *bias[3];
    uint32_t part_count, tiles_all; // of all parts
    bool paired;
    uint32_t tokens, padded; // padded: columns that are summed, a multiple of 64
    const int8_t *a8;
    const float *sa;
    const int32_t *sums;
    size_t a8_stride, sa_stride;
    float *y;
    size_t y_stride;
    bt_linear_epilogue epilogue;
    float scale, softcap;
    uint32_t tiles, groups, run;    // of a block of threads; segments of a group
    uint32_t stage_bytes, sa_bytes; // of a group's stage; of the activation scales in it
    uint32_t act_shift, act_rows;   // of columns; activation blocks of 128 columns
    bt_cuda_a8_order order;         // of a8
} linear_call;

// Tile `index` of all parts: paired calls alternate between gate and up.
static __device__ __forceinline__ uint32_t
part_of(const linear_call &c, uint32_t *index)
{
    uint32_t part = 0;

    if (c.paired) {
        part = *index & 1;
        *index >>= 1;
        return part;
    }
    while (part + 1 < c.part_count && *index >= c.part[part].tiles) {
        *index -= c.part[part++].tiles;
    }
    return part;
}

static __device__ __forceinline__ size_t
a8_at(const linear_call &c, uint32_t token, uint32_t k)
{
    return bt_cuda_a8_in(c.order, c.a8_stride, token, k);
}

static __device__ __forceinline__ float
outlier_sum(const linear_call &c, const bt_cuda_matrix &m, uint32_t row, uint32_t token)
{
    float sum = 0.0f;

    for (uint32_t i = m.row_start[row]; i < m.row_start[row + 1]; i++) {
        uint32_t k = m.outlier_cols[i];
        float scale = c.sa[(m.act_block == BT_BLOCK_ROW ? 0 : k / m.act_block) * c.sa_stride + token];

        sum = fmaf(__half2float(m.deltas[i]), scale * (float)c.a8[a8_at(c, token, k)], sum);
    }
    return sum;
}

// What follows a row's dot: outliers, bias, softcap.
static __device__ __forceinline__ float
finish(const linear_call &c, uint32_t part, uint32_t row, uint32_t token, float r)
{
    const bt_cuda_matrix &m = c.part[part];

    if (m.row_start != NULL && m.row_start[row + 1] > m.row_start[row]) {
        r += outlier_sum(c, m, row, token);
    }
    if (c.bias[part] != NULL) {
        r += c.bias[part][row];
    }
    return c.softcap > 0.0f ? bt_ref_softcap(r, c.softcap) : r;
}

static __device__ __forceinline__ void
store(const linear_call &c, uint32_t row, uint32_t token, float r)
{
    float *y = c.y + token * c.y_stride + row;

    *y = c.epilogue == BT_LINEAR_ADD ? fmaf(c.scale, r, *y) : c.scale * r;
}

static __device__ __forceinline__ float
pair_value(const linear_call &c, float gate, float up)
{
    return (c.epilogue == BT_LINEAR_SILU_MUL ? bt_ref_silu(gate) : bt_ref_gelu_tanh(gate)) * up;
}

static __device__ __forceinline__ void
store_pair(const linear_call &c, uint32_t row, uint32_t token, float gate, float up)
{
    c.y[token * c.y_stride + row] = pair_value(c, gate, up);
}

// The first row of a part in y.
static __device__ __forceinline__ uint32_t
start_of(const linear_call &c, uint32_t part)
{
    uint32_t start = 0;

    for (uint32_t i = 0; i < part; i++) {
        start += c.part[i].rows;
    }
    return start;
}

// Row `row` of y is row − *start of this part (paired: of both); false beyond the last.
static __device__ __forceinline__ bool
find_part(const linear_call &c, uint32_t row, uint32_t *part, uint32_t *start)
{
    *part = *start = 0;
    while (!c.paired && *part < c.part_count && row - *start >= c.part[*part].rows) {
        *start += c.part[(*part)++].rows;
    }
    return *part < c.part_count && row - *start < c.part[*part].rows;
}

// Can one kernel take all parts? Their codes lie alike and their scales are as many.
static inline bool
are_alike(const linear_call *c)
{
    const bt_cuda_matrix *m = &c->part[0];

    for (uint32_t i = 1; i < c->part_count; i++) {
        const bt_cuda_matrix *other = &c->part[i];

        if (other->kind != m->kind || other->nibbles != m->nibbles || other->asymmetric != m->asymmetric ||
            other->block != m->block) {
            return false;
        }
    }
    return true;
}

// Columns of an exact dot: what has one scale on both sides. BT_BLOCK_ROW: all.
static inline uint32_t
dot_columns(const bt_cuda_matrix *m)
{
    return m->block != BT_BLOCK_ROW ? m->block : m->act_block;
}

static inline size_t
rows_of_all(const linear_call *c)
{
    size_t rows = 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        rows += c->part[i].rows;
    }
    return rows;
}

// A call's INT8 activations in c->order, which are ready or get ready by a kernel (ready.cu, prologue.cu); c->a8 and sa are told where.
bt_err bt_cuda_activations(bt_cuda *cuda, const bt_linear_args *args, linear_call *c);

// Queues a call of few tokens with what comes before it, if its format and shape have a kernel there (linear_few.cu): *taken says so.
bt_err bt_cuda_linear_few(bt_cuda *cuda, const bt_linear_args *args, const linear_call *call, bool *taken);
// Would it be, of more than one token? By its weights, tokens and epilogue; false: that hangs on what is rare, as a bias is, of which plain calls
// (linear_lean.cu) have nothing.
bool bt_cuda_takes_few(bt_cuda *cuda, const bt_linear_args *args, const linear_call *call, bool *taken);

// Do tensor cores take this call's 16-bit weights (linear_half.cu)? By its weights alone, whatever the batch.
bool bt_cuda_wants_half(const bt_cuda *cuda, const linear_call *call);
// Queues such a call with what comes before it.
bt_err bt_cuda_linear_half(bt_cuda *cuda, const bt_linear_args *args, linear_call *call);
