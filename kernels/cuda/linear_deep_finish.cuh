// linear_deep.cuh: what becomes of a tile's sums, which a thread has as wgmma left them: rows lane / 4 and + 8 of its warp's tile, of each eight
// tokens two. A warp's store is of four tokens, eight neighbouring rows each: whole sectors.
#pragma once

#include "kernels/cuda/linear_deep_shape.cuh"
#include "kernels/cuda/linear_wide_finish.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define DEEP_WORKERS_MEET 1u // barrier of those that multiply

// A thread's rows of a tile.
typedef struct {
    uint32_t part, row[2]; // in its matrix
    bool there[2];
} deep_rows;

static __device__ __forceinline__ deep_rows
deep_rows_of(const linear_call &c, uint32_t block, uint32_t warp, uint32_t lane)
{
    deep_rows r;
    uint32_t tile;
    bool there = deep_four(c, block, warp / 4, &r.part, &tile);

#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        r.row[i] = (tile + warp % 4) * 16 + lane / 4 + i * 8;
        r.there[i] = there && r.row[i] < c.part[r.part].rows;
    }
    return r;
}

// + outliers, when the helpers are through with the tile.
static __device__ __forceinline__ void
deep_plus_outliers(const deep_call &d, uint32_t at, uint32_t tiles, uint32_t warp, uint32_t lane, float v[64])
{
    const float *from = deep_scratch(d) + (warp * 16 + lane / 4) * DEEP_TOKENS + lane % 4 * 2;

    bt_barrier_wait(DEEP_SUMS_FULL(at), tiles & 1);
#pragma unroll
    for (int j = 0; j < 16; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 o = __ldcg((const float2 *)(from + i * 8 * DEEP_TOKENS + j * 8));

            v[j * 4 + i * 2] += o.x, v[j * 4 + i * 2 + 1] += o.y;
        }
    }
    bt_barrier_arrive(DEEP_SUMS_EMPTY(at));
}

// + bias, and softcap.
static __device__ __forceinline__ void
deep_plus_bias(const linear_call &c, const deep_rows &rows, float v[64])
{
    if (c.bias[rows.part] != NULL) {
        float bias[2];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            bias[i] = rows.there[i] ? c.bias[rows.part][rows.row[i]] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 64; i++) {
            v[i] += bias[i / 2 % 2];
        }
    }
    if (c.softcap > 0.0f) {
#pragma unroll
        for (int i = 0; i < 64; i += 4) {
            float4 r = wide_softcap(make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]), c.softcap);

            v[i] = r.x, v[i + 1] = r.y, v[i + 2] = r.z, v[i + 3] = r.w;
        }
    }
}

// Tokens of the tile that a thread may still store, of each of its rows, counted from its first one.
static __device__ __forceinline__ void
deep_left(const linear_call &c, const deep_rows &rows, uint32_t first, uint32_t left[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        left[i] = rows.there[i] && first < c.tokens ? c.tokens - first : 0;
    }
}

// y, or y + ….
template <bool ADD>
static __device__ __forceinline__ void
deep_store(const linear_call &c, const deep_rows &rows, uint32_t token, uint32_t lane, const float v[64])
{
    uint32_t first = token + lane % 4 * 2, left[2];
    float *y = c.y + start_of(c, rows.part) + rows.row[0] + first * c.y_stride;

    deep_left(c, rows, first, left);
#pragma unroll
    for (uint32_t four = 0; four < 16; four += 4, y += 32 * c.y_stride) {
        float *to = y, old[16];

        if (ADD) {
#pragma unroll
            for (uint32_t k = 0; k < 16; k += 4, to += 8 * c.y_stride) {
                uint32_t in = (four + k / 4) * 8;

                old[k] = in < left[0] ? to[0] : 0.0f, old[k + 2] = in < left[1] ? to[8] : 0.0f;
                old[k + 1] = in + 1 < left[0] ? to[c.y_stride] : 0.0f;
                old[k + 3] = in + 1 < left[1] ? to[c.y_stride + 8] : 0.0f;
            }
            to = y;
        }
#pragma unroll
        for (uint32_t k = 0; k < 16; k += 4, to += 8 * c.y_stride) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float r = v[four * 4 + k + i];

                if ((four + k / 4) * 8 + i % 2 < left[i / 2]) {
                    to[i % 2 * c.y_stride + i / 2 * 8] = ADD ? fmaf(c.scale, r, old[k + i]) : c.scale * r;
                }
            }
        }
    }
}

// Gates are the first warpgroup's and their ups the same threads' of the second: each gives the other half of its tokens and finishes the rest.
static __device__ __forceinline__ void
deep_pair(const linear_call &c, uint8_t *memory, const deep_rows &rows, uint32_t token, uint32_t warp, uint32_t lane,
          const float v[64])
{
    bool up = warp >= 4;
    float4 *mine = (float4 *)(memory + DEEP_LEVEL_0_AT) + threadIdx.x, *theirs = up ? mine - 128 : mine + 128;
    uint32_t first = token + (up ? 64 : 0) + lane % 4 * 2, left[2];
    float *y = c.y + rows.row[0] + first * c.y_stride;

    deep_left(c, rows, first, left);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        mine[j * DEEP_WORKERS] =
            make_float4(up ? v[j * 4] : v[32 + j * 4], up ? v[j * 4 + 1] : v[32 + j * 4 + 1],
                        up ? v[j * 4 + 2] : v[32 + j * 4 + 2], up ? v[j * 4 + 3] : v[32 + j * 4 + 3]);
    }
    bt_bar_sync(DEEP_WORKERS_MEET, DEEP_WORKERS);
#pragma unroll
    for (int j = 0; j < 8; j++, y += 8 * c.y_stride) {
        float4 other = theirs[j * DEEP_WORKERS];
        float4 own = make_float4(up ? v[32 + j * 4] : v[j * 4], up ? v[32 + j * 4 + 1] : v[j * 4 + 1],
                                 up ? v[32 + j * 4 + 2] : v[j * 4 + 2], up ? v[32 + j * 4 + 3] : v[j * 4 + 3]);
        float4 r = wide_pair(c, up ? other : own, up ? own : other, 4);
        const float out[4] = {r.x, r.y, r.z, r.w};

#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (j * 8 + i % 2 < left[i / 2]) {
                y[i % 2 * c.y_stride + i / 2 * 8] = out[i];
            }
        }
    }
}

static __device__ __forceinline__ void
deep_finish(const deep_call &d, uint8_t *memory, uint32_t at, const deep_tile &t, uint32_t tiles, uint32_t warp,
            uint32_t lane, float v[64])
{
    const linear_call &c = d.w.c;
    deep_rows rows = deep_rows_of(c, t.block, warp, lane);

    if (d.w.turned != NULL) {
        deep_plus_outliers(d, at, tiles, warp, lane, v);
    }
    deep_plus_bias(c, rows, v);
    if (c.paired) {
        deep_pair(c, memory, rows, t.token, warp, lane, v);
    } else if (c.epilogue == BT_LINEAR_ADD) {
        deep_store<true>(c, rows, t.token, lane, v);
    } else {
        deep_store<false>(c, rows, t.token, lane, v);
    }
}

#endif
