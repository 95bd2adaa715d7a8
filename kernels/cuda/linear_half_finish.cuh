// What becomes of a warpgroup's sums of 16-bit products: 64 tokens by N columns in registers.
#pragma once

#include "kernels/cuda/finish.cuh"

typedef struct {
    uint16_t *next; // of a pair: y as the bf16 that the next call begins with, [tokens, next_stride]; NULL = not wanted
    size_t next_stride; // elements
    bool write;         // y itself is wanted
} half_out;

// 2^-s of a token: what c.sa has for F16.
static __device__ __forceinline__ float
half_scale(const linear_call &c, uint32_t token)
{
    return c.sa != NULL && token < c.tokens ? c.sa[token] : 1.0f;
}

// Any epilogue, an output at a time. Not inlined: a fragment has up to 64 of them, and what comes here is rare.
static __device__ __noinline__ void
half_any(const linear_call &c, uint32_t part, uint32_t row, uint32_t token, float r)
{
    if (token < c.tokens && row < c.part[part].rows) {
        store(c, start_of(c, part) + row, token, finish(c, part, row, token, r));
    }
}

static __device__ __noinline__ void
half_any_pair(const linear_call &c, uint32_t row, uint32_t token, float gate, float up)
{
    if (token < c.tokens && row < c.part[0].rows) {
        store_pair(c, row, token, finish(c, 0, row, token, gate), finish(c, 1, row, token, up));
    }
}

// y or y + …
template <bt_finish WHAT, int N>
static __device__ __forceinline__ void
half_store(const linear_call &c, uint32_t part, uint32_t row, const uint32_t token[2], const float scale[2],
           const float *d)
{
    float *y = c.y + start_of(c, part) + row;
    uint32_t rows = row < c.part[part].rows ? c.part[part].rows - row : 0;

#pragma unroll
    for (int four = 0; four < N / 8; four += 4) {
        float2 old[4][2];

        if constexpr (WHAT == BT_FINISH_ADD) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t column = (four + i / 2) * 8;

                old[i / 2][i % 2] = token[i % 2] < c.tokens && column < rows
                                        ? *(const float2 *)(y + token[i % 2] * c.y_stride + column)
                                        : make_float2(0.0f, 0.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int j = four + i / 2, h = i % 2;
            float2 r = make_float2(d[4 * j + 2 * h] * scale[h], d[4 * j + 2 * h + 1] * scale[h]);

            if constexpr (WHAT == BT_FINISH_ADD) {
                r.x = fmaf(c.scale, r.x, old[i / 2][h].x), r.y = fmaf(c.scale, r.y, old[i / 2][h].y);
            } else {
                r.x = c.scale * r.x, r.y = c.scale * r.y;
            }
            if (token[h] < c.tokens && j * 8 < rows) {
                *(float2 *)(y + token[h] * c.y_stride + j * 8) = r;
            }
        }
    }
}

// silu(gate) · up: columns 8j of gate and N/2 + 8j of up are the same of y.
template <int N>
static __device__ __forceinline__ void
half_pair(const linear_call &c, const half_out &out, uint32_t row, const uint32_t token[2], const float scale[2],
          const float *d)
{
    uint32_t rows = row < c.part[0].rows ? c.part[0].rows - row : 0;

#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        if (j * 8 < rows) {
            float v[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = d[4 * j + i] * scale[i / 2];
            }
            bt_silu4(v);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] *= d[4 * (j + N / 16) + i] * scale[i / 2];
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (token[h] < c.tokens && out.write) {
                    *(float2 *)(c.y + token[h] * c.y_stride + row + j * 8) = make_float2(v[2 * h], v[2 * h + 1]);
                }
                if (token[h] < c.tokens && out.next != NULL) {
                    *(uint32_t *)(out.next + token[h] * out.next_stride + row + j * 8) =
                        bt_bf16_pair(v[2 * h], v[2 * h + 1]);
                }
            }
        }
    }
}

// d as bt_wgmma_half leaves it, of the tile whose first row of the part and first token these are.
template <bt_finish WHAT, int N>
static __device__ __forceinline__ void
half_finish(const linear_call &c, const half_out &out, uint32_t part, uint32_t row, uint32_t first, const float *d)
{
    uint32_t at = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = row + threadIdx.x % 4 * 2;
    uint32_t token[2] = {at, at + 8};
    float scale[2] = {half_scale(c, at), half_scale(c, at + 8)};

    if constexpr (WHAT == BT_FINISH_SILU) {
        half_pair<N>(c, out, column, token, scale, d);
    } else if constexpr (WHAT != BT_FINISH_ANY) {
        half_store<WHAT, N>(c, part, column, token, scale, d);
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) { // column 8 · (i / 4) + i % 2 of token[i / 2 % 2]
            float r = d[i] * scale[i / 2 % 2];

            if (!c.paired) {
                half_any(c, part, column + i / 4 * 8 + i % 2, token[i / 2 % 2], r);
            } else if (i < N / 4) {
                half_any_pair(c, column + i / 4 * 8 + i % 2, token[i / 2 % 2], r, d[i + N / 4] * scale[i / 2 % 2]);
            }
        }
    }
}
