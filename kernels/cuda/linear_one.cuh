// One token times symmetric 4-bit weights in blocks of 128, on sm_90: linear_few.cuh for what steps of one sequence are made of.
//
// What such a kernel takes beside its weights is code that each warp runs once between the end of the kernel before and its first product, and
// from its last product to its end: with linear_few.cuh 5 µs of 9, whatever memory does (README.md). So here is only what plain calls need,
// in a kernel for each kind of call; what is rare stays with linear_few.cuh (linear_one.cu says which calls are plain). The numbers and
// the order of every sum are the same.
//
//     block of threads   tiles [first, first + tiles) of 16 rows, all of K, as there; an item is (tile, segment of 1,024 columns)
//     worker w of W      items w, w + W, …, with a ring of four pieces of 256 columns, of which AHEAD are asked for before x is there
//     first helper       the norm's chain, while workers ask for the rest of their rings
//     helpers            outliers; nobody waits for them before the end
#pragma once

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/few_worker.cuh"
#include "kernels/cuda/one_codes.cuh"
#include "kernels/cuda/one_items.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

#define ONE_AHEAD 2 // pieces: with more x comes behind them, with fewer memory has nothing to do

typedef few_ring<4, 128, 4> one_ring;

// Piece q of an item, if there is one, to its slot of a ring. One group of copies either way.
static __device__ __forceinline__ void
one_fetch(const one_item &item, uint32_t q, uint8_t *ring, uint32_t lane)
{
    bool there = q < item.count;
    uint8_t *to = ring + q * one_ring::piece_bytes + lane * 16;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        bt_copy16_if(to + i * 512, item.codes + lane * 16 + q * one_ring::code_bytes + i * 512, there);
    }
    bt_copy16_if(to + one_ring::code_bytes, item.scales + lane * 16 + q * one_ring::scale_bytes,
                 there && lane * 16 < one_ring::scale_bytes);
    bt_copy_commit();
}

// ---- products ----

// sum[2] += a piece times x, for rows g and g + 8 of lane 4g + t. `codes` and `scales`: the activations of its columns, the latter two of each.
static __device__ __forceinline__ void
one_piece(const uint8_t *piece, const int8_t *codes, const float *scales, uint32_t lane, float sum[2])
{
    const __half *w = (const __half *)(piece + one_ring::code_bytes) + lane / 4;
    const float magic = __int_as_float(few_magic<4>::bits);
    float4 sx = *(const float4 *)scales;
    uint32_t a[2][4][4];

#pragma unroll
    for (int u = 0; u < 2; u++) {
        read_codes<4, false>(piece + u * 1024, lane, a[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const int32_t zero = few_magic<4>::bits;
        uint4 low = *(const uint4 *)(codes + u * 128), high = *(const uint4 *)(codes + u * 128 + 64);
        int32_t dot[4] = {zero, zero, zero, zero};
        float s = u == 0 ? sx.x : sx.z;

        bt_mma_s8_from(dot, a[u][0], low.x, low.y, dot);
        bt_mma_s8_from(dot, a[u][1], low.z, low.w, dot);
        bt_mma_s8_from(dot, a[u][2], high.x, high.y, dot);
        bt_mma_s8_from(dot, a[u][3], high.z, high.w, dot);
        sum[0] = fmaf(__half2float(w[u * 16]) * s, __int_as_float(dot[0]) - magic, sum[0]);
        sum[1] = fmaf(__half2float(w[u * 16 + 8]) * s, __int_as_float(dot[2]) - magic, sum[1]);
    }
}

// A worker's items, of which the first is on its way. Sums: [item][16 rows].
template <int PARTS>
static __device__ __forceinline__ void
one_multiply(const few_call &f, uint8_t *memory, uint32_t first, uint32_t tiles, one_item now)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint8_t *ring = memory + warp * one_ring::bytes;
    float *sums = (float *)(memory + f.at.scratch) + lane / 4;

#pragma unroll 1
    for (uint32_t n = 0; now.count != 0; n++) {
        one_item next = one_item_at<PARTS, false>(f, first, tiles, n + 1, warp);
        float sum[2] = {};

#pragma unroll 1
        for (uint32_t q = 0; q < FEW_PIECES; q++) {
            uint32_t k = now.column + q * FEW_COLUMNS;

            bt_copy_wait<FEW_PIECES - 1>();
            __syncwarp();
            one_piece(ring + q * one_ring::piece_bytes, (const int8_t *)memory + f.at.codes + k + lane % 4 * 16,
                      (const float *)(memory + f.at.scales) + k / 64, lane, sum);
            __syncwarp(); // all have read it
            one_fetch(next, q, ring, lane);
        }
        if (lane % 4 == 0) {
            float *to = sums + (n * f.workers + warp) * 16;

            to[0] = sum[0], to[8] = sum[1];
        }
        now = next;
    }
}

// ---- the end ----

// What the outliers add to each of the block's rows, behind the sums.
static __device__ __forceinline__ float *
one_extra(const few_call &f, uint8_t *memory, uint32_t tiles)
{
    return (float *)(memory + f.at.scratch) + f.segments * tiles * 16;
}

// A helper's share of them.
static __device__ __forceinline__ void
one_outliers(const few_call &f, uint8_t *memory, uint32_t helper, uint32_t first, uint32_t tiles)
{
    float *extra = one_extra(f, memory, tiles);

#pragma unroll 1
    for (uint32_t here = helper; here < tiles * 16; here += f.helpers * 32) {
        few_place p = place_of(f, first, here);

        outliers_of<1>(f, list_of(f, memory, f.c.part[p.part], here / 16, p.tile, here % 16), 0, memory, extra + here);
    }
}

// A row's number before the epilogue.
static __device__ __forceinline__ float
one_total(const few_call &f, uint8_t *memory, uint32_t tiles, uint32_t here)
{
    const float *sums = (const float *)(memory + f.at.scratch) + here / 16 * f.segments * 16 + here % 16;
    float r = f.segments == 4 ? (sums[0] + sums[16]) + (sums[32] + sums[48]) : tree_of(f, sums, 16);

    return r + one_extra(f, memory, tiles)[here];
}

template <int PARTS>
static __device__ __forceinline__ void
one_finish(const few_call &f, uint8_t *memory, uint32_t tiles, float *y, float old)
{
    if (PARTS == ONE_PAIR) {
        uint32_t here = threadIdx.x / 16 * 32 + threadIdx.x % 16;
        float gate = one_total(f, memory, tiles, here);

        *y = pair_value(f.c, gate, one_total(f, memory, tiles, here + 16));
    } else {
        float r = one_total(f, memory, tiles, threadIdx.x);

        *y = f.c.epilogue == BT_LINEAR_ADD ? fmaf(f.c.scale, r, old) : f.c.scale * r;
    }
}

// ---- the two kinds of warps ----

template <bool NORM>
static __device__ __forceinline__ void
one_help(const few_call &f, uint8_t *memory, float *factor, uint32_t first, uint32_t tiles)
{
    uint32_t warp = threadIdx.x / 32;

    bt_let_next();
    if (warp > f.workers && f.at.outliers != 0) {
        fetch_outliers(f, memory, warp - f.workers - 1, f.helpers - 1, threadIdx.x % 32, first, first + tiles);
    }
    bt_wait_before();
    if (NORM && warp == f.workers) {
        one_norm(f, memory, factor);
    }
    bt_copy_wait<0>();
    wait_for_workers(f); // codes are there, and what the helpers fetched
    one_outliers(f, memory, threadIdx.x - f.workers * 32, first, tiles);
}

// Returns what y held, of threads that finish a row.
template <int PIECES, bool NORM, int PARTS>
static __device__ __forceinline__ float
one_work(const few_call &f, uint8_t *memory, const float *factor, uint32_t first, uint32_t tiles, const float *y,
         bool finishes)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint8_t *ring = memory + warp * one_ring::bytes;
    one_item item = one_item_at<PARTS, false>(f, first, tiles, 0, warp);
    float4 weights[PIECES];
    float old = 0.0f;

#pragma unroll
    for (int q = 0; q < ONE_AHEAD; q++) {
        one_fetch(item, q, ring, lane);
    }
#pragma unroll
    for (int p = 0; p < PIECES && NORM; p++) {
        uint32_t k = threadIdx.x * 4 + p * f.workers * 128;

        weights[p] = k < f.cols ? __ldg((const float4 *)(f.norm + k)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    bt_wait_before();
    if (f.c.epilogue == BT_LINEAR_ADD && finishes) {
        old = __ldcg(y);
    }
    one_encode<PIECES, NORM>(f, memory, factor, weights, [&]() {
#pragma unroll
        for (int q = ONE_AHEAD; q < FEW_PIECES; q++) {
            one_fetch(item, q, ring, lane);
        }
    });
    workers_sync(f); // codes are there
    workers_are_ready(f);
    one_multiply<PARTS>(f, memory, first, tiles, item);
    return old;
}
#endif

// PIECES: of four columns a worker's thread, that x has at most.
template <int PIECES, bool NORM, int PARTS>
static __global__ void
__launch_bounds__(FEW_THREADS, 1) one_kernel(const __grid_constant__ few_call f)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t one_memory[];
    __shared__ float factor;
    const uint32_t step = PARTS == ONE_PAIR ? 2 : 1, first = (blockIdx.x * f.each + min(blockIdx.x, f.more)) * step,
                   tiles = (f.each + (blockIdx.x < f.more ? 1 : 0)) * step;
    bool finishes = threadIdx.x < tiles * 16 / step;
    float *y = f.c.y + first * 16 / step + threadIdx.x, old = 0.0f;

    if (threadIdx.x / 32 < f.workers) {
        old = one_work<PIECES, NORM, PARTS>(f, one_memory, &factor, first, tiles, y, finishes);
    } else {
        one_help<NORM>(f, one_memory, &factor, first, tiles);
    }
    __syncthreads(); // all sums are there
    if (finishes) {
        one_finish<PARTS>(f, one_memory, tiles, y, old);
    }
#endif
}
