// Few tokens (linear_few.cuh): what a warp multiplies.
#pragma once

#include "kernels/cuda/few_items.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The codes of one unit of 128 columns and 16 rows as A of its four steps.
template <int BITS>
static __device__ __forceinline__ void
read_unit(const uint8_t *weights, uint32_t lane, uint32_t a[4][4])
{
    const int row_bytes = few_ring<8, 0, 2>::row_bytes;

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

// Codes and scales of the activations, for this lane; its rows' scales.
typedef struct {
    const int8_t *codes; // of its token and columns: those of the segment's first 64,
    uint32_t stride;     // from 64 columns to the next,
    size_t eight;        // and from eight tokens to the next
    const float *sa;     // of the segment's first block
    float row_scale[2];
} few_factors;

// What dots of a block begin with: the bits of a float whose last bit is worth one, or, where the codes are 16 times themselves, a sixteenth. A dot
// of 128 products of two codes is below 2^22 (16 · 128 · 8 · 127, too): the float of its bits is that much more, exactly.
template <int BITS> struct few_magic {
    static const int32_t bits = BITS == 4 ? 0x49400000 : BT_ROUND_MAGIC_BITS; // 1.5 · 2^19, 1.5 · 2^23
};

// acc += scale · dot for one block of 16 rows and eight tokens.
template <int BITS>
static __device__ __forceinline__ void
add_block(const float w[2], float2 sx, const int32_t dot[4], float acc[4])
{
    const float magic = BITS == 4 ? 786432.0f : BT_ROUND_MAGIC;
    float d[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        d[i] = __int_as_float(dot[i]) - magic;
    }
    acc[0] = fmaf(w[0] * sx.x, d[0], acc[0]);
    acc[1] = fmaf(w[0] * sx.y, d[1], acc[1]);
    acc[2] = fmaf(w[1] * sx.x, d[2], acc[2]);
    acc[3] = fmaf(w[1] * sx.y, d[3], acc[3]);
}

// A piece from column k of the segment on. WHOLE: all of its blocks are there, else those below `columns`.
template <int BITS, int BLOCK, int NT, bool WHOLE>
static __device__ __forceinline__ void
multiply_piece(const few_call &f, const uint8_t *piece, const few_factors &x, uint32_t k, uint32_t columns,
               uint32_t lane, int32_t dots[NT][4], float acc[NT][4])
{
    const int units = FEW_COLUMNS / UNIT, blocks = UNIT / (BLOCK ? BLOCK : UNIT), steps = 4 / blocks;
    const bool by_row = BITS == 8 && f.c.part[0].block == BT_BLOCK_ROW;
    const __half *scales = (const __half *)(piece + few_ring<BITS, BLOCK, 2>::code_bytes) + lane / 4;
    uint32_t a[units][4][4];

#pragma unroll
    for (int u = 0; u < units; u++) {
        read_unit<BITS>(piece + u * (BITS == 4 ? 1024 : UNIT), lane, a[u]);
    }
#pragma unroll
    for (int u = 0; u < units; u++) {
        if (!WHOLE && k + u * UNIT >= columns) {
            break;
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const uint32_t stride = NT == 2 ? 512 : x.stride;
            const int8_t *codes = x.codes + nt * x.eight + (k / 64 + u * 2) * stride;
            uint4 low = *(const uint4 *)codes, high = *(const uint4 *)(codes + stride);
            uint32_t b8[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};

#pragma unroll
            for (int b = 0; b < blocks; b++) {
                const int32_t zero = few_magic<BITS>::bits;
                int32_t dot[4] = {zero, zero, zero, zero};

#pragma unroll
                for (int st = b * steps; st < (b + 1) * steps; st++) {
                    int32_t *to = BLOCK == 0 ? dots[nt] : dot;

                    bt_mma_s8_from(to, a[u][st], b8[st][0], b8[st][1], to);
                }
                if (BLOCK != 0 && (WHOLE || k + u * UNIT + b * BLOCK < columns)) {
                    uint32_t row = (k + u * UNIT + b * BLOCK) >> f.c.act_shift;
                    const __half *scale = scales + (u * blocks + b) * 16;
                    float w[2] = {by_row ? x.row_scale[0] : __half2float(scale[0]),
                                  by_row ? x.row_scale[1] : __half2float(scale[8])};

                    add_block<BITS>(w, *(const float2 *)(x.sa + row * (NT == 2 ? 16 : f.sa_width) + nt * 8), dot,
                                    acc[nt]);
                }
            }
        }
    }
}

template <int NT, typename T>
static __device__ __forceinline__ void
put_sums(const few_call &f, uint8_t *memory, uint32_t segment, uint32_t tile, uint32_t lane, uint32_t tokens,
         T v[NT][4])
{
    T *sums = (T *)(memory + f.sums_at);

#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = nt * 8 + lane % 4 * 2 + i % 2;

            if (token < tokens) {
                sums[sum_at(f, segment >> f.join, tile, lane / 4 + i / 2 * 8, token)] = v[nt][i];
            }
            v[nt][i] = 0;
        }
    }
}

// The sums of a segment that is the first of two wait in `first` until the run is over.
template <int NT, typename T>
static __device__ __forceinline__ void
join_sums(const few_call &f, uint32_t segment, T v[NT][4], T first[NT][4])
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[nt][i] = (segment & f.join) != 0 ? first[nt][i] + v[nt][i] : v[nt][i];
            first[nt][i] = v[nt][i];
        }
    }
}

// What a warp reads while it multiplies.
typedef struct {
    few_item now, next;
} few_worker;

// A segment is multiplied: with the one before it, if both are of one run, and where it is the run's last to shared memory.
template <int NT, typename T>
static __device__ __forceinline__ void
end_segment(const few_call &f, uint8_t *memory, const few_worker *w, uint32_t first, uint32_t lane, T v[NT][4],
            T before[NT][4])
{
    if (NT == 2) {
        join_sums<NT>(f, w->now.segment, v, before);
    }
    if (NT == 1 || w->next.tile != w->now.tile || w->next.segment >> f.join != w->now.segment >> f.join) {
        put_sums<NT>(f, memory, w->now.segment, w->now.tile - first, lane, f.c.tokens, v);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[nt][i] = 0;
        }
    }
}

// The pieces of an item of 4-bit codes that are all there, before another such one, or none: few instructions beside the products.
template <int BITS, int BLOCK, int SLOTS, int NT>
static __device__ __forceinline__ void
multiply_whole(const few_call &f, const few_item &now, const few_item &next, const few_factors &x, uint8_t *ring,
               uint32_t lane, int32_t dots[NT][4], float acc[NT][4])
{
    typedef few_ring<BITS, BLOCK, SLOTS> R;
    few_feed feed = feed_of<BITS, BLOCK>(now, R::slots % FEW_PIECES, lane);
    const bool scales = (int)lane * 16 < R::scale_bytes;

#pragma unroll 1
    for (uint32_t p = 0; p < FEW_PIECES; p++) {
        uint8_t *piece = ring + p % R::slots * R::piece_bytes;

        bt_copy_wait<R::slots - 1>();
        __syncwarp();
        multiply_piece<BITS, BLOCK, NT, true>(f, piece, x, p * FEW_COLUMNS, SEGMENT, lane, dots, acc);
        __syncwarp(); // all have read the piece
        if (p == FEW_PIECES - R::slots) {
            feed = feed_of<BITS, BLOCK>(next, 0, lane);
        }
        feed_piece<BITS, BLOCK>(&feed, piece + lane * 16, scales);
    }
}

// The pieces of an item; what is read next goes where a piece was just multiplied.
template <int BITS, int BLOCK, int SLOTS, int NT>
static __device__ __forceinline__ void
multiply_pieces(const few_call &f, const few_item &now, const few_item &next, const few_factors &x, uint32_t columns,
                uint8_t *ring, uint32_t lane, int32_t dots[NT][4], float acc[NT][4])
{
    typedef few_ring<BITS, BLOCK, SLOTS> R;
    const bool WHOLE = BITS == 4 && NT == 1; // of 16 tokens it is slower (README.md)

    if (WHOLE && columns == SEGMENT && (next.columns == SEGMENT || next.columns == 0)) {
        multiply_whole<BITS, BLOCK, SLOTS, NT>(f, now, next, x, ring, lane, dots, acc);
        return;
    }
#pragma unroll 1
    for (uint32_t p = 0; p < FEW_PIECES; p++) {
        const bool same = R::slots < FEW_PIECES && p + R::slots < FEW_PIECES;
        const uint8_t *piece = ring + p % R::slots * R::piece_bytes;
        uint32_t k = p * FEW_COLUMNS;

        bt_copy_wait<R::slots - 1>();
        __syncwarp();
        if (!WHOLE && k + FEW_COLUMNS <= columns) {
            multiply_piece<BITS, BLOCK, NT, true>(f, piece, x, k, columns, lane, dots, acc);
        } else if (k < columns) {
            multiply_piece<BITS, BLOCK, NT, false>(f, piece, x, k, columns, lane, dots, acc);
        }
        __syncwarp(); // all have read the piece
        if (same) {
            fetch_piece<BITS, BLOCK, SLOTS>(now, (p + R::slots) % FEW_PIECES, lane, ring);
        } else {
            fetch_piece<BITS, BLOCK, SLOTS>(next, (p + R::slots) % FEW_PIECES, lane, ring);
        }
    }
}

// The worker's items of tiles before `end`, whose first tile is `first`; `last` is the block's end.
template <int BITS, int BLOCK, int SLOTS, int NT>
static __device__ __forceinline__ void
multiply_items(const few_call &f, few_worker *w, uint8_t *memory, uint32_t warp, uint32_t lane, uint32_t first,
               uint32_t end, uint32_t last)
{
    typedef few_ring<BITS, BLOCK, SLOTS> R;
    uint8_t *ring = memory + warp * R::bytes;
    uint32_t barriers = bt_shared_at(memory + f.at.barriers);
    const uint32_t g = lane / 4 & (f.width - 1), t = lane % 4;
    int32_t dots[NT][4] = {}, dots_before[NT][4] = {};
    float acc[NT][4] = {}, acc_before[NT][4] = {};
    few_factors x = {};

    x.stride = f.width * 64, x.eight = f.c.a8_stride * 8;
#pragma unroll 1
    while (w->now.columns != 0 && w->now.tile < end) {
        uint32_t k = w->now.segment * SEGMENT, columns = min(f.c.padded - k, SEGMENT);

        x.codes = (const int8_t *)(memory + f.at.codes) + (g * 4 + t) * 16 + k / 64 * x.stride;
        x.sa = (const float *)(memory + f.at.scales) + (k >> f.c.act_shift) * f.sa_width +
               (t * 2 & ((NT == 2 ? 8 : f.sa_width) - 1));
        w->next = item_after(f, w->now.tile, w->now.segment, last);
        if (BITS == 8 && BLOCK != 0 && f.c.part[0].block == BT_BLOCK_ROW) {
            x.row_scale[0] = __half2float(w->now.scales[lane / 4]);
            x.row_scale[1] = __half2float(w->now.scales[lane / 4 + 8]);
        }
        if (!f.encodes) {
            bt_barrier_wait(barriers + w->now.segment * 8, 0);
            if (BLOCK != 0 && f.c.act_shift == 31) { // their one scale comes with the first segment
                bt_barrier_wait(barriers, 0);
            }
        }
        multiply_pieces<BITS, BLOCK, SLOTS, NT>(f, w->now, w->next, x, columns, ring, lane, dots, acc);
        if (BLOCK == 0) {
            end_segment<NT>(f, memory, w, first, lane, dots, dots_before);
        } else {
            end_segment<NT>(f, memory, w, first, lane, acc, acc_before);
        }
        w->now = w->next;
    }
}
#endif
