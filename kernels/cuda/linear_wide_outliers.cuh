// linear_wide.cuh: outliers, whose chains have nothing to do with the products and run beside them.
#pragma once

#include "kernels/cuda/linear_wide_turn.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// V float4 of zeros that nothing is added to.
static __device__ __forceinline__ float4
wide_nothing(void)
{
    return make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
}

// Four rows of the share, eight lanes each, four tokens a piece of 32: chains of fmaf by rising column to sums [rows][N + 4], AHEAD columns
// at once on their way. Rows without any get −0, which changes nothing that it is added to.
template <int N, int AHEAD>
static __device__ __forceinline__ void
wide_chain(const wide_call &w, uint32_t first, uint32_t tiles, uint32_t pass, uint32_t lane, float *sums)
{
    const uint32_t all = 0xffffffffu;
    const int pieces = N / 32;
    uint32_t part = 0, tile = 0, row = pass * 4 % 16 + lane / 8, token = blockIdx.y * N + lane % 8 * 4, begin = 0,
             count = 0;
    uint32_t stride = (uint32_t)w.turned_stride;
    bool there = wide_tile(w.c, wide_share_tile(first, tiles, pass * 4), &part, &tile);
    const bt_cuda_matrix &m = w.c.part[part];
    float4 o[pieces] = {};

    if (there && m.row_start != NULL && tile * 16 + row < m.rows) {
        begin = m.row_start[tile * 16 + row];
        count = m.row_start[tile * 16 + row + 1] - begin;
    }
    uint32_t steps = __reduce_max_sync(all, count);

#pragma unroll 1
    for (uint32_t s = 0; s < steps; s += 8) {
        bool mine = s + lane % 8 < count;
        uint32_t col = mine ? m.outlier_cols[begin + s + lane % 8] : 0;
        __half delta = mine ? m.deltas[begin + s + lane % 8] : __half();

#pragma unroll
        for (uint32_t b = 0; b < 8; b += AHEAD) {
            float4 x[AHEAD][pieces];

            if (s + b >= steps) {
                break;
            }
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                uint32_t k = __shfl_sync(all, col, b + i, 8);

#pragma unroll
                for (int p = 0; p < pieces; p++) {
                    if (s + b + i < count && token + p * 32 < stride) {
                        x[i][p] = __ldcg((const float4 *)(w.turned + k * stride + token + p * 32));
                    }
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                float d = __half2float(__shfl_sync(all, delta, b + i, 8));

#pragma unroll
                for (int p = 0; p < pieces; p++) {
                    if (s + b + i < count) {
                        o[p].x = fmaf(d, x[i][p].x, o[p].x), o[p].y = fmaf(d, x[i][p].y, o[p].y);
                        o[p].z = fmaf(d, x[i][p].z, o[p].z), o[p].w = fmaf(d, x[i][p].w, o[p].w);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        *(float4 *)(sums + (pass * 4 + lane / 8) * (N + 4) + p * 32 + lane % 8 * 4) =
            count != 0 ? o[p] : wide_nothing();
    }
}

// What there is to do of outliers, by whoever has time: four rows at a time are taken from `taken`. The warps that have nothing else to do
// begin at once; those that multiply help when they are through.
template <int N, int AHEAD>
static __device__ __forceinline__ void
wide_outliers(const wide_call &w, uint32_t rank, uint32_t lane, uint32_t *taken, float *sums)
{
    uint32_t first, tiles = wide_share(w.c, rank, &first), passes = tiles * (w.c.paired ? 8 : 4);
    bool turned = false;

    for (;;) {
        uint32_t pass = 0;

        if (lane == 0) {
            pass = atomicAdd(taken, 1);
        }
        pass = __shfl_sync(0xffffffffu, pass, 0);
        if (pass >= passes) {
            return;
        }
        if (!turned) {
            wide_turn_wait(w, lane);
            turned = true;
        }
        wide_chain<N, AHEAD>(w, first, tiles, pass, lane, sums);
    }
}

// Where they lie, into the second-level cache: nothing before this kernel wrote that.
static __device__ __forceinline__ void
wide_outliers_ahead(const wide_call &w, uint32_t rank, uint32_t thread, uint32_t threads)
{
    uint32_t first, tiles = wide_share(w.c, rank, &first), all = tiles * (w.c.paired ? 2 : 1), part, tile;

    for (uint32_t i = thread / 32; i < all; i += threads / 32) {
        if (!wide_tile(w.c, wide_share_tile(first, tiles, i * 16), &part, &tile)) {
            continue;
        }
        const bt_cuda_matrix &m = w.c.part[part];

        if (m.row_start != NULL) {
            uint32_t end = tile * 16 + 16 < m.rows ? tile * 16 + 16 : m.rows;

            for (uint32_t at = m.row_start[tile * 16] + thread % 32 * 32; at < m.row_start[end]; at += 1024) {
                bt_prefetch(m.outlier_cols + at);
                bt_prefetch(m.deltas + at);
            }
        }
    }
}

#endif
