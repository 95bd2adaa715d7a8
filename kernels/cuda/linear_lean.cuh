// Two to sixteen tokens times symmetric 4-bit weights in blocks of 128, on sm_90: linear_few.cuh for plain calls (linear_one.cu says which), as
// linear_one.cuh is for one token. Codes come from the prologue's kernel. The numbers and the order of every sum are the same.
//
//     block of threads   tiles [first, first + tiles) of 16 rows, all of K; an item is (tile, run of one segment of 1,024 columns, or two)
//     worker w of W      items w, w + W, …, with a ring of pieces of 256 columns; of two segments sums are added in registers
//     first helper       asks for the codes of all segments, which workers wait for one at a time
//     helpers            outliers; nobody waits for them before the end
//     all threads        a (row, token) at a time: sums of runs as the balanced tree, outliers, epilogue
//
// Sums lie as [item][row][pitch], with outliers' [row][pitch] for all tiles; of so many items as workers, each where its worker's pieces were.
#pragma once

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/few_worker.cuh"
#include "kernels/cuda/one_items.cuh"

#define LEAN_PITCH(nt) ((nt)*8u + 1) // floats, odd: threads of neighbouring rows read without conflicts

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- weights ----

// What a worker asks for next: the lane's bytes of a piece. The pieces of an item follow each other.
static __device__ __forceinline__ few_feed
lean_feed_of(const one_item &item, uint32_t lane)
{
    few_feed feed;

    feed.codes = item.codes + lane * 16, feed.scales = item.scales + lane * 16, feed.there = item.count != 0;
    return feed;
}

// A piece to its slot, and on to the next. One group of copies, which may be empty.
template <int NT>
static __device__ __forceinline__ void
lean_feed(few_feed *feed, uint8_t *slot, uint32_t lane)
{
    feed_piece<4, 128>(feed, slot + lane * 16, (int)lane * 16 < few_ring<4, 128, FEW_SLOTS(4, NT)>::scale_bytes);
}

// ---- products ----

// acc += a piece times x. `codes` and `scales`: the activations of its columns, for this lane.
template <int NT>
static __device__ __forceinline__ void
lean_piece(const uint8_t *piece, const int8_t *codes, size_t eight, const float *scales, uint32_t lane,
           float acc[NT][4])
{
    const __half *w = (const __half *)(piece + few_ring<4, 128, 2>::code_bytes) + lane / 4;
    uint32_t a[2][4][4];

#pragma unroll
    for (int u = 0; u < 2; u++) {
        read_codes<4, false>(piece + u * 1024, lane, a[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const float of_row[2] = {__half2float(w[u * 16]), __half2float(w[u * 16 + 8])};

#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const int8_t *x = codes + nt * eight + u * 1024;
            const int32_t zero = few_magic<4>::bits;
            uint4 low = *(const uint4 *)x, high = *(const uint4 *)(x + 512);
            int32_t dot[4] = {zero, zero, zero, zero};

            bt_mma_s8_from(dot, a[u][0], low.x, low.y, dot);
            bt_mma_s8_from(dot, a[u][1], low.z, low.w, dot);
            bt_mma_s8_from(dot, a[u][2], high.x, high.y, dot);
            bt_mma_s8_from(dot, a[u][3], high.z, high.w, dot);
            add_block<4>(of_row, *(const float2 *)(scales + u * NT * 8 + nt * 8), dot, acc[nt]);
        }
    }
}

template <int NT>
static __device__ __forceinline__ void
lean_put(float *to, uint32_t lane, float acc[NT][4])
{
    to += lane / 4 * LEAN_PITCH(NT) + lane % 4 * 2;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[i / 2 * 8 * LEAN_PITCH(NT) + nt * 8 + i % 2] = acc[nt][i];
        }
    }
}

// One segment: acc = its sums.
template <int NT>
static __device__ __forceinline__ void
lean_segment(const few_call &f, uint8_t *memory, uint8_t *ring, uint32_t column, const one_item &next, uint32_t ahead,
             few_feed *feed, uint32_t lane, float acc[NT][4])
{
    typedef few_ring<4, 128, FEW_SLOTS(4, NT)> R;
    const int8_t *codes = (const int8_t *)memory + f.at.codes + column * 8 + lane * 16;
    const float *scales = (const float *)(memory + f.at.scales) + column / 128 * (NT * 8) + lane % 4 * 2;

#pragma unroll
    for (int i = 0; i < NT * 4; i++) {
        acc[i / 4][i % 4] = 0.0f;
    }
    bt_barrier_wait(bt_shared_at(memory + f.at.barriers) + column / SEGMENT * 8, 0);
#pragma unroll 1
    for (uint32_t p = 0; p < FEW_PIECES; p++) {
        uint8_t *slot = ring + p % R::slots * R::piece_bytes;

        bt_copy_wait<R::slots - 1>();
        __syncwarp();
        lean_piece<NT>(slot, codes + p * (FEW_COLUMNS * 8), f.c.a8_stride * 8, scales + p * (NT * 16), lane, acc);
        __syncwarp(); // all have read it
        if (p == ahead) {
            *feed = lean_feed_of(next, lane);
        }
        lean_feed<NT>(feed, slot, lane);
    }
}

// A worker's items, of which the first is on its way and what follows is `feed`.
template <int NT, int PARTS>
static __device__ __forceinline__ void
lean_multiply(const few_call &f, uint8_t *memory, uint32_t first, uint32_t tiles, one_item now, few_feed feed)
{
    typedef few_ring<4, 128, FEW_SLOTS(4, NT)> R;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint8_t *ring = memory + warp * R::bytes;
    float *sums = (float *)(memory + f.sums_at) + warp * f.sum_run;

#pragma unroll 1
    for (uint32_t n = 0; now.count != 0; n++) {
        one_item next = one_item_at<PARTS, true>(f, first, tiles, n + 1, warp);
        float acc[NT][4] = {}, before[NT][4] = {};

#pragma unroll 1
        for (uint32_t s = 0; s <= f.join; s++) {
#pragma unroll
            for (int i = 0; i < NT * 4; i++) {
                before[i / 4][i % 4] = acc[i / 4][i % 4];
            }
            lean_segment<NT>(f, memory, ring, now.column + s * SEGMENT, next, s == f.join ? FEW_PIECES - R::slots : ~0u,
                             &feed, lane, acc);
        }
#pragma unroll
        for (int i = 0; i < NT * 4; i++) {
            acc[i / 4][i % 4] = f.join != 0 ? before[i / 4][i % 4] + acc[i / 4][i % 4] : acc[i / 4][i % 4];
        }
        lean_put<NT>(sums, lane, acc);
        sums += f.workers * f.sum_run;
        now = next;
    }
}

// ---- the helpers ----

static __device__ __forceinline__ uint32_t
lean_met(const few_call &f, uint8_t *memory)
{
    return bt_shared_at(memory + f.at.barriers) + f.segments * 8;
}

// What the outliers add to each of the block's rows.
template <int NT>
static __device__ __forceinline__ float *
lean_extra(const few_call &f, uint8_t *memory, uint32_t row)
{
    return (float *)(memory + f.at.scratch) + row * LEAN_PITCH(NT);
}

// A helper's share of them: rows, four tokens at a time.
template <int NT>
static __device__ __forceinline__ void
lean_outliers(const few_call &f, uint8_t *memory, uint32_t helper, uint32_t first, uint32_t tiles)
{
    uint32_t shift = f.token_shift > 2 ? f.token_shift - 2 : 0;

#pragma unroll 1
    for (uint32_t i = helper; i < tiles * 16 << shift; i += f.helpers * 32) {
        uint32_t here = i >> shift, token = (i - (here << shift)) * 4;
        few_place p = place_of(f, first, here);
        float *extra = lean_extra<NT>(f, memory, here) + token, sum[4];

        if (token < f.c.tokens) {
            outliers_of<4>(f, list_of(f, memory, f.c.part[p.part], here / 16, p.tile, here % 16), token, memory, sum);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                extra[t] = sum[t];
            }
        }
    }
}

template <int NT>
static __device__ __forceinline__ void
lean_help(const few_call &f, uint8_t *memory, uint32_t first, uint32_t tiles)
{
    uint32_t helper = threadIdx.x / 32 - f.workers, lane = threadIdx.x % 32, met = lean_met(f, memory);

    if (helper != 0) {
        fetch_outliers(f, memory, helper - 1, f.helpers - 1, lane, first, first + tiles);
    }
    bt_wait_before();
    if (helper == 0) {
        fetch_codes(f, memory, bt_shared_at(memory + f.at.barriers));
    }
    bt_copy_wait<0>();
    helpers_sync(met, 0); // outliers are there
#pragma unroll 1
    for (uint32_t s = 0; s < f.segments; s++) {
        bt_barrier_wait(bt_shared_at(memory + f.at.barriers) + s * 8, 0);
    }
    lean_outliers<NT>(f, memory, threadIdx.x - f.workers * 32, first, tiles);
}

// ---- the end ----

// A row's number before the epilogue.
template <int NT>
static __device__ __forceinline__ float
lean_total(const few_call &f, uint8_t *memory, uint32_t tile, uint32_t row, uint32_t token)
{
    const float *sums = (const float *)(memory + f.sums_at) + tile * f.runs * f.sum_run + row * LEAN_PITCH(NT) + token;

    return tree_of(f, sums, f.sum_run) + lean_extra<NT>(f, memory, tile * 16 + row)[token];
}

// Sixteen threads' rows of one token: the n-th of the block's. there: it is one.
typedef struct {
    uint32_t tile, token;
    float *y;
    bool there;
} lean_place;

template <int PARTS>
static __device__ __forceinline__ lean_place
lean_place_of(const few_call &f, uint32_t first, uint32_t tiles, uint32_t n)
{
    const uint32_t step = PARTS == ONE_PAIR ? 2 : 1;
    lean_place p;

    p.tile = n >> f.token_shift, p.token = n - (p.tile << f.token_shift);
    p.there = p.tile < tiles / step && p.token < f.c.tokens;
    p.y = f.c.y + p.token * f.c.y_stride + (first / step + p.tile) * 16 + threadIdx.x % 16;
    return p;
}

// `old`: what y held where the thread's first number goes.
template <int NT, int PARTS>
static __device__ __forceinline__ void
lean_finish(const few_call &f, uint8_t *memory, uint32_t first, uint32_t tiles, float old)
{
    uint32_t row = threadIdx.x % 16, step = PARTS == ONE_PAIR ? 2 : 1;

#pragma unroll 1
    for (uint32_t n = threadIdx.x / 16; n < tiles / step << f.token_shift; n += blockDim.x / 16) {
        lean_place p = lean_place_of<PARTS>(f, first, tiles, n);

        if (!p.there) {
            continue;
        }
        if (PARTS == ONE_PAIR) {
            float gate = lean_total<NT>(f, memory, p.tile * 2, row, p.token);

            *p.y = pair_value(f.c, gate, lean_total<NT>(f, memory, p.tile * 2 + 1, row, p.token));
        } else {
            float r = lean_total<NT>(f, memory, p.tile, row, p.token);

            if (f.c.epilogue == BT_LINEAR_ADD) {
                *p.y = fmaf(f.c.scale, r, n == threadIdx.x / 16 ? old : __ldcg(p.y));
            } else {
                *p.y = f.c.scale * r;
            }
        }
    }
}

// ---- the beginning ----

// A worker's ring: it asks for a piece once the one before has come, as codes would wait behind all that is on its way.
template <int NT>
static __device__ __forceinline__ void
lean_fill(few_feed *feed, uint8_t *ring, uint32_t lane)
{
    typedef few_ring<4, 128, FEW_SLOTS(4, NT)> R;

#pragma unroll
    for (int q = 1; q < R::slots; q++) {
        bt_copy_wait<0>();
        lean_feed<NT>(feed, ring + q * R::piece_bytes, lane);
    }
}

// The first helper's: a barrier a segment, and one where helpers meet.
static __device__ __forceinline__ void
lean_barriers(const few_call &f, uint8_t *memory)
{
#pragma unroll 1
    for (uint32_t s = threadIdx.x % 32; s <= f.segments; s += 32) {
        bt_barrier_init(bt_shared_at(memory + f.at.barriers) + s * 8, s < f.segments ? 1 : f.helpers * 32);
    }
    bt_barrier_init_done();
}
#endif

template <int NT, int PARTS>
static __global__ void
__launch_bounds__(FEW_THREADS, 1) lean_kernel(const __grid_constant__ few_call f)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    typedef few_ring<4, 128, FEW_SLOTS(4, NT)> R;
    extern __shared__ __align__(128) uint8_t lean_memory[];
    uint8_t *memory = lean_memory;
    const uint32_t step = PARTS == ONE_PAIR ? 2 : 1, first = (blockIdx.x * f.each + min(blockIdx.x, f.more)) * step,
                   tiles = (f.each + (blockIdx.x < f.more ? 1 : 0)) * step, lane = threadIdx.x % 32,
                   warp = threadIdx.x / 32;
    bool works = warp < f.workers;
    one_item item;
    few_feed feed;
    float old = 0.0f;

    if (works) {
        item = one_item_at<PARTS, true>(f, first, tiles, 0, warp);
        feed = lean_feed_of(item, lane);
        lean_feed<NT>(&feed, memory + warp * R::bytes, lane);
    } else {
        bt_let_next();
        if (warp == f.workers) {
            lean_barriers(f, memory);
        }
    }
    __syncthreads(); // barriers are there
    if (works) {
        lean_fill<NT>(&feed, memory + warp * R::bytes, lane);
        bt_wait_before();
    } else {
        lean_help<NT>(f, memory, first, tiles);
    }
    if (PARTS != ONE_PAIR && f.c.epilogue == BT_LINEAR_ADD) {
        lean_place p = lean_place_of<PARTS>(f, first, tiles, threadIdx.x / 16);

        old = p.there ? __ldcg(p.y) : 0.0f;
    }
    if (works) {
        lean_multiply<NT, PARTS>(f, memory, first, tiles, item, feed);
    }
    __syncthreads(); // all sums are there
    lean_finish<NT, PARTS>(f, memory, first, tiles, old);
#endif
}
