// linear_deep.cuh: outliers, whose chains have nothing to do with the products and run beside them: a tile's sums go to global memory, from
// where the tile's end adds them.
#pragma once

#include "kernels/cuda/linear_deep_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define DEEP_AHEAD 4 // columns on their way at once
#define DEEP_PASSES (DEEP_ROWS / 4)

// Where the outliers of the block's 128 rows begin: a lane has rows lane, lane + 32 ….
typedef struct {
    uint32_t part[2], begin[4], count[4];
} deep_starts;

static __device__ __forceinline__ deep_starts
deep_starts_of(const linear_call &c, uint32_t block, uint32_t lane)
{
    deep_starts s;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t tile;
        bool there = deep_four(c, block, i / 2, &s.part[i / 2], &tile);
        const bt_cuda_matrix &m = c.part[s.part[i / 2]];
        uint32_t row = tile * 16 + i % 2 * 32 + lane;

        s.begin[i] = 0, s.count[i] = 0;
        if (there && m.row_start != NULL && row < m.rows) {
            s.begin[i] = m.row_start[row], s.count[i] = m.row_start[row + 1] - s.begin[i];
        }
    }
    return s;
}

// Four rows at a time: eight lanes have a row.
static __device__ __forceinline__ wide_hits
deep_hits_of(const deep_starts &s, uint32_t pass, uint32_t lane)
{
    uint32_t from = pass % 8 * 4 + lane / 8, begin = s.begin[3], count = s.count[3];
    wide_hits h;

#pragma unroll
    for (uint32_t i = 0; i < 3; i++) {
        begin = pass / 8 == i ? s.begin[i] : begin, count = pass / 8 == i ? s.count[i] : count;
    }
    h.pass = pass, h.part = pass < DEEP_PASSES / 2 ? s.part[0] : s.part[1];
    h.begin = __shfl_sync(0xffffffffu, begin, from), h.count = __shfl_sync(0xffffffffu, count, from);
    if (pass >= DEEP_PASSES) {
        h.count = 0;
    }
    return h;
}

// A tile's sums by this warp's share of passes. The next columns are on their way while one's activations are.
static __device__ __forceinline__ void
deep_tile_outliers(const deep_call &d, const deep_starts &starts, uint32_t token, uint32_t warp, uint32_t lane,
                   float *to)
{
    const char *turned = (const char *)(d.w.turned + token + lane % 8 * 4); // of this lane
    uint32_t stride = (uint32_t)d.w.turned_stride * 4, col;
    wide_hits now = deep_hits_of(starts, warp, lane);
    __half delta;
    float4 o[4] = {};
    uint32_t steps = __reduce_max_sync(0xffffffffu, now.count);

    wide_hit(d.w.c, now, 0, lane, &col, &delta);
#pragma unroll 1
    for (uint32_t s = 0; now.pass < DEEP_PASSES;) {
        bool ends = s + 8 >= steps;
        wide_hits next = ends ? deep_hits_of(starts, now.pass + DEEP_HELPERS, lane) : now;
        uint32_t next_s = ends ? 0 : s + 8, next_col;
        __half next_delta;

        wide_hit(d.w.c, next, next_s, lane, &next_col, &next_delta);
        if (s < steps) {
            wide_chain<DEEP_TOKENS, DEEP_AHEAD>(turned, stride, steps - s, col, __half2float(delta), o);
        }
        if (ends) {
#pragma unroll
            for (int p = 0; p < 4; p++) {
                *(float4 *)(to + (now.pass * 4 + lane / 8) * DEEP_TOKENS + p * 32 + lane % 8 * 4) =
                    now.count != 0 ? o[p] : wide_nothing();
                o[p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            steps = __reduce_max_sync(0xffffffffu, next.count);
        }
        now = next, s = next_s, col = next_col, delta = next_delta;
    }
}

static __device__ __forceinline__ void
deep_outliers(const deep_call &d, uint32_t at, uint32_t rank, uint32_t warp, uint32_t lane)
{
    float *to = deep_scratch(d);
    uint32_t tiles = 0;

#pragma unroll 1
    for (uint32_t index = blockIdx.x / 2; index < d.total; index += gridDim.x / 2, tiles++) {
        deep_tile t = deep_tile_of(d, index, rank);
        deep_starts starts = deep_starts_of(d.w.c, t.block, lane);

        if (tiles != 0) {
            bt_barrier_wait(DEEP_SUMS_EMPTY(at), (tiles - 1) & 1);
        }
        deep_tile_outliers(d, starts, t.token, warp, lane, to);
        bt_barrier_arrive(DEEP_SUMS_FULL(at));
    }
}

#endif
