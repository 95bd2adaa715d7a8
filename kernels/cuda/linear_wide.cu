// Launching linear_wide.cuh: which calls it takes, how they are cut, and the turned activations that outliers read.
#include "kernels/cuda/linear_wide_shape.cuh"

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/linear_wide_call.cuh"

// ---- activations, turned ----

#define TURN_TOKENS 32u

// a8 [tokens][a8_stride] times its scales to turned [columns][stride]: 128 columns of 32 tokens a block of threads.
static __global__ void __launch_bounds__(256)
    turn_kernel(const __grid_constant__ linear_call c, float *turned, size_t stride)
{
    __shared__ uint32_t tile[TURN_TOKENS][32 + 1];
    uint32_t k = blockIdx.x * 128, first = blockIdx.y * TURN_TOKENS, lane = threadIdx.x % 32,
             column = threadIdx.x / 32 * 16;
    float sa = 0.0f;

    bt_let_next();
    bt_wait_before();
#pragma unroll
    for (uint32_t i = threadIdx.x / 32; i < TURN_TOKENS; i += 8) {
        tile[i][lane] = first + i < c.tokens ? *(const uint32_t *)(c.a8 + (first + i) * c.a8_stride + k + lane * 4) : 0;
    }
    if (first + lane < c.tokens) {
        sa = c.sa[(c.act_shift < 31 ? (k + column) >> c.act_shift : 0) * c.sa_stride + first + lane];
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = column; i < column + 16; i++) {
        size_t at = bt_cuda_a8_in(c.order, 0, 0, i);

        turned[(k + i) * stride + first + lane] = sa * (float)(int8_t)(tile[lane][at / 4] >> at % 4 * 8);
    }
}

static cudaError_t
turn(bt_cuda *cuda, wide_call *w)
{
    const linear_call *c = &w->c;
    bool outliers = false;

    for (uint32_t i = 0; i < c->part_count; i++) {
        outliers = outliers || c->part[i].row_start != NULL;
    }
    if (!outliers) {
        return cudaSuccess;
    }
    w->turned = cuda->normed; // which integer weights have no use for
    w->turned_stride = (c->tokens + TURN_TOKENS - 1) / TURN_TOKENS * TURN_TOKENS;
    return bt_cuda_go(cuda, turn_kernel,
                      dim3((unsigned)(c->a8_stride / 128), (unsigned)(w->turned_stride / TURN_TOKENS)), dim3(256), 0,
                      *c, cuda->normed, w->turned_stride);
}

// ---- what is loaded, as boxes ----

static bool
weight_maps(const bt_cuda_matrix *m, uint32_t blocks, uint32_t part, wide_maps *maps)
{
    const CUtensorMapSwizzle none = CU_TENSOR_MAP_SWIZZLE_NONE;
    uint32_t scales = m->block == BT_BLOCK_ROW ? 16 : blocks * 16;
    bool good = m->nibbles ? bt_cuda_plane(&maps->codes[part], CU_TENSOR_MAP_DATA_TYPE_UINT32, m->codes, m->padded * 2,
                                           m->tiles, (uint64_t)m->padded * 8, 256, 4, none)
                           : bt_cuda_plane(&maps->codes[part], CU_TENSOR_MAP_DATA_TYPE_UINT8, m->codes, m->padded,
                                           m->tiles * 16, m->padded, 128, 64, CU_TENSOR_MAP_SWIZZLE_128B);

    if (blocks != 0) {
        good = good && bt_cuda_plane(&maps->scales[part], CU_TENSOR_MAP_DATA_TYPE_UINT16, m->scales, m->blocks * 16,
                                     m->tiles, (uint64_t)m->blocks * 32, scales, 4, none);
    }
    if (m->asymmetric) {
        good = good && bt_cuda_plane(&maps->minima[part], CU_TENSOR_MAP_DATA_TYPE_UINT16, m->minima, m->blocks * 16,
                                     m->tiles, (uint64_t)m->blocks * 32, scales, 4, none);
    }
    return good;
}

bool
bt_cuda_wide_maps(const linear_call *c, uint32_t n, uint32_t blocks, wide_maps *maps)
{
    const CUtensorMapSwizzle none = CU_TENSOR_MAP_SWIZZLE_NONE;
    bool good = bt_cuda_plane(&maps->a8, CU_TENSOR_MAP_DATA_TYPE_UINT8, c->a8, c->a8_stride, c->tokens, c->a8_stride,
                              128, n, CU_TENSOR_MAP_SWIZZLE_128B);

    if (blocks != 0) {
        uint64_t rows = c->act_shift < 31 ? c->a8_stride >> c->act_shift : 1;

        good = good && bt_cuda_plane(&maps->sa, CU_TENSOR_MAP_DATA_TYPE_UINT32, c->sa, c->tokens, rows,
                                     c->sa_stride * 4, n, c->act_rows, none);
    }
    if (c->part[0].asymmetric) {
        good = good && bt_cuda_plane(&maps->sums, CU_TENSOR_MAP_DATA_TYPE_UINT32, c->sums, c->tokens, c->a8_stride / 32,
                                     c->sa_stride * 4, n, 4, none);
    }
    for (uint32_t i = 0; i < c->part_count; i++) {
        good = good && weight_maps(&c->part[i], blocks, i, maps);
    }
    return good;
}

// ---- which calls ----

bool
bt_cuda_wants_wide(const bt_cuda *cuda, const linear_call *c, bt_cuda_a8_order *order)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t block = dot_columns(m);

    if (!cuda->wide || c->tokens < BT_CUDA_WIDE_TOKENS || m->kind != BT_WEIGHT_INT || !bt_cuda_has_boxes() ||
        (block != BT_BLOCK_ROW && block < 32) || c->padded > WIDE_RUN * WIDE_RANKS * SEGMENT || !are_alike(c)) {
        return false;
    }
    *order = m->nibbles ? BT_A8_ROWS_PAIRED : BT_A8_ROWS;
    return true;
}

bt_err
bt_cuda_linear_wide(bt_cuda *cuda, const linear_call *c)
{
    wide_call w;
    cudaError_t error;

    memset(&w, 0, sizeof w);
    w.c = *c;
    error = turn(cuda, &w);
    if (error == cudaSuccess) {
        error = c->part[0].nibbles ? bt_cuda_wide_nibbles(cuda, &w) : bt_cuda_wide_bytes(cuda, &w);
    }
    return bt_cuda_check(cuda, error, "linear, warpgroups");
}
