// Few tokens (linear_few.cuh): what a warp multiplies.
#pragma once

#include "kernels/cuda/few_items.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The codes of one unit of 128 columns and 16 rows as A of its four steps.
template <int BITS>
static __device__ __forceinline__ void
read_unit(const uint8_t *weights, uint32_t lane, uint32_t a[4][4])
{
    const int row_bytes = few_ring<8, 0>::row_bytes;

    if (BITS == 4) {
        read_codes<4, false>(weights, lane, a);
        return;
    }
    weights += lane / 4 * row_bytes + lane % 4 * 8;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint2 low = *(const uint2 *)(weights + s * 32), high = *(const uint2 *)(weights + 8 * row_bytes + s * 32);

        a[s][0] = low.x, a[s][1] = high.x, a[s][2] = low.y, a[s][3] = high.y;
    }
}

// What a warp multiplies by: this lane's codes and scales of the activations, its rows' scales.
typedef struct {
    const int8_t *codes;
    const float *sa;
    const __half *scales;
    float row_scale[2];
} few_factors;

// acc += scale · dot for one block of columns from `at` on, the b-th of the piece.
template <int BITS, int NT>
static __device__ __forceinline__ void
add_block(const few_call &f, const few_factors &x, uint32_t at, int b, int nt, const int32_t dot[4], float acc[4])
{
    const float unit16 = BITS == 4 ? 0.0625f : 1.0f; // exact
    bool by_row = f.c.part[0].block == BT_BLOCK_ROW;
    float2 sx = *(const float2 *)(x.sa + (at >> f.c.act_shift) * f.sa_width + nt * 8);
    float w0 = by_row ? x.row_scale[0] : __half2float(x.scales[b * 16]) * unit16,
          w1 = by_row ? x.row_scale[1] : __half2float(x.scales[b * 16 + 8]) * unit16;

    if (at < f.c.padded) { // what is not there was multiplied, and is left out
        acc[0] = fmaf(w0 * sx.x, (float)dot[0], acc[0]);
        acc[1] = fmaf(w0 * sx.y, (float)dot[1], acc[1]);
        acc[2] = fmaf(w1 * sx.x, (float)dot[2], acc[2]);
        acc[3] = fmaf(w1 * sx.y, (float)dot[3], acc[3]);
    }
}

// A piece from column k on, its units side by side: an exact dot a block and token (BLOCK 0: all dots are one).
template <int BITS, int BLOCK, int NT>
static __device__ __forceinline__ void
multiply_piece(const few_call &f, const uint8_t *piece, const few_factors &x, uint32_t k, uint32_t lane,
               int32_t dots[NT][4], float acc[NT][4])
{
    typedef shape<BITS, BLOCK, false> S;
    const int units = FEW_COLUMNS / UNIT;
    uint32_t a[units][4][4];

#pragma unroll
    for (int u = 0; u < units; u++) {
        read_unit<BITS>(piece + u * (BITS == 4 ? 1024 : UNIT), lane, a[u]);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        int32_t dot[units][S::blocks][4] = {};
        uint4 b8[units][2];

#pragma unroll
        for (int i = 0; i < units * 2; i++) {
            b8[i / 2][i % 2] = *(const uint4 *)(x.codes + nt * f.c.a8_stride * 8 + i * 64 * f.width);
        }
#pragma unroll
        for (int st = 0; st < 4; st++) {
#pragma unroll
            for (int u = 0; u < units; u++) {
                const uint4 &b = b8[u][st / 2];
                int32_t *to = BLOCK == 0 ? dots[nt] : dot[u][st * S::blocks / 4];

                if (BLOCK != 0 || u == 0 || k + u * UNIT < f.columns) {
                    bt_mma_s8(to, a[u][st], st % 2 ? b.z : b.x, st % 2 ? b.w : b.y);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < units * S::blocks && BLOCK != 0; b++) {
            add_block<BITS, NT>(f, x, k + b * BLOCK, b, nt, dot[b / S::blocks][b % S::blocks], acc[nt]);
        }
    }
}

template <int NT, typename T>
static __device__ __forceinline__ void
put_sums(const few_call &f, T *sums, uint32_t segment, uint32_t tile, uint32_t lane, uint32_t tokens, T v[NT][4])
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = nt * 8 + lane % 4 * 2 + i % 2;

            if (token < tokens) {
                sums[sum_at(f, segment, tile, lane / 4 + i / 2 * 8, token)] = v[nt][i];
            }
            v[nt][i] = 0;
        }
    }
}

// What a warp reads while it multiplies.
typedef struct {
    few_item now, next;
    uint32_t parity; // of the item: which scales are its
} few_worker;

// The worker's items of tiles before `end`, whose first tile is `first`; `last` is the block's end. `dry`: one item for nothing: what lies in
// shared memory is multiplied, and nothing is waited for, fetched or written.
template <int BITS, int BLOCK, int NT>
static __device__ __forceinline__ void
multiply_items(const few_call &f, few_worker *w, uint8_t *memory, uint32_t warp, uint32_t lane, uint32_t first,
               uint32_t end, uint32_t last, bool dry)
{
    typedef few_ring<BITS, BLOCK> R;
    uint8_t *ring = memory + warp * R::bytes;
    uint32_t barriers = bt_shared_at(memory + f.at.barriers);
    const uint32_t g = lane / 4 & (f.width - 1), t = lane % 4;
    int32_t dots[NT][4] = {};
    float acc[NT][4] = {};
    few_factors x = {};

    x.sa = (const float *)(memory + f.at.scales) + (t * 2 & ((NT == 2 ? 8 : f.sa_width) - 1));
#pragma unroll 1
    while (w->now.columns != 0 && w->now.tile < end) {
        uint32_t k = w->now.segment * SEGMENT;

        x.codes = (const int8_t *)(memory + f.at.codes) + (g * 4 + t) * 16 + k / 64 * f.width * 64;
        x.scales = (const __half *)(ring + R::slots * R::piece_bytes + w->parity * R::scale_bytes) + lane / 4;
        w->next = item_at(f, w->now.tile, w->now.segment + f.workers, dry ? 0 : last);
        if (BLOCK != 0 && f.c.part[0].block == BT_BLOCK_ROW) {
            x.row_scale[0] = __half2float(w->now.scales[lane / 4]);
            x.row_scale[1] = __half2float(w->now.scales[lane / 4 + 8]);
        }
        if (!f.encodes && !dry) {
            bt_barrier_wait(barriers + w->now.segment * 8, 0);
        }
#pragma unroll 1
        for (uint32_t p = 0; p < FEW_PIECES; p++) {
            const bool same = R::slots < FEW_PIECES && p + R::slots < FEW_PIECES;
            few_item item = w->next;

            bt_copy_wait<R::slots - 1>();
            __syncwarp();
            if (p * FEW_COLUMNS < w->now.columns) {
                multiply_piece<BITS, BLOCK, NT>(f, ring + p % R::slots * R::piece_bytes, x, k + p * FEW_COLUMNS, lane,
                                                dots, acc);
            }
            x.codes += FEW_COLUMNS * f.width;
            x.scales += BLOCK == 0 ? 0 : (int)FEW_COLUMNS / (BLOCK ? BLOCK : 1) * 16;
            __syncwarp(); // all have read the piece
            if (same && !dry) {
                item = w->now;
            }
            fetch_piece<BITS, BLOCK>(item, (p + R::slots) % FEW_PIECES, lane, ring, w->parity ^ (same ? 0 : 1));
        }
        if (BLOCK == 0) {
            put_sums<NT>(f, (int32_t *)(memory + f.at.scratch), w->now.segment, w->now.tile - first, lane,
                         dry ? 0 : f.c.tokens, dots);
        } else {
            put_sums<NT>(f, (float *)(memory + f.at.scratch), w->now.segment, w->now.tile - first, lane,
                         dry ? 0 : f.c.tokens, acc);
        }
        w->now = w->next;
        w->parity ^= 1;
    }
}
#endif
