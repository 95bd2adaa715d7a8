// linear_wide.cuh: the warps that multiply. A warpgroup has 64 rows; its sums stay in registers, but for the first pair of segments
// (of tall blocks that one, too: wide::late; of those of more than 32 tokens only one segment's: wide::kept).
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The warp's 16 rows of a unit of nibbles, as they lie.
static __device__ __forceinline__ void
wide_nibbles(uint32_t own, uint4 v[2])
{
    const uint4 *from = (const uint4 *)bt_shared_of(own);

    v[0] = from[0], v[1] = from[32];
}

// The same as wgmma's A: bytes, symmetric ones as 16 times themselves.
template <bool ASYM>
static __device__ __forceinline__ void
wide_codes(const uint4 v[2], uint32_t a[4][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t words[4] = {v[half].x, v[half].y, v[half].z, v[half].w};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t low = ASYM ? words[i] : words[i] << 4, high = ASYM ? words[i] >> 4 : words[i];

            a[half * 2 + i / 2][i % 2] = low & (ASYM ? 0x0f0f0f0fu : 0xf0f0f0f0u);
            a[half * 2 + i / 2][i % 2 + 2] = high & (ASYM ? 0x0f0f0f0fu : 0xf0f0f0f0u);
        }
    }
}

// Until a stage is there.
static __device__ __forceinline__ void
wide_await(uint32_t barrier, uint32_t parity)
{
    if (!bt_barrier_try(barrier, parity)) {
        bt_barrier_wait(barrier, parity);
    }
}

template <int BLOCK, bool ASYM, int N> struct wide_sums {
    float acc[N / 2], min[ASYM ? N / 2 : 1];
};

// Products of one block of a unit, on their way until bt_wgmma_wait.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_issue(uint32_t tokens_low, uint32_t codes_low, int b, const uint32_t a[4][4], int32_t dot[N / 2])
{
    const int steps = BLOCK / 32;
    const uint64_t rows = bt_wgmma_rows(0) >> 32 << 32, tokens = rows | tokens_low, codes = rows | codes_low;

    bt_wgmma_fence();
#pragma unroll
    for (int i = 0; i < steps; i++) {
        const int at = (b * steps + i) * 2; // 32 bytes, in sixteens

        if constexpr (BITS == 4) {
            bt_wgmma<N, ASYM>(dot, a[b * steps + i], tokens + at, i != 0);
        } else {
            bt_wgmma_shared<N>(dot, codes + at, tokens + at, i != 0);
        }
    }
    bt_wgmma_commit();
}

// Where a thread reads in the first stage: addresses in shared memory. Kept as they are: made anew for each unit they cost a tenth of it.
typedef struct {
    uint32_t nibbles, scales, minima, sa, sums;
} wide_places;

template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ wide_places
wide_places_of(uint32_t stages, bool row_scale, uint32_t warp, uint32_t lane)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t tile = stages + warp * (row_scale ? 32 : W::tile_scales) + lane / 4 * 2;
    wide_places p = {stages + W::codes_at + warp * 1024 + lane * 16, tile + W::scales_at, tile + W::minima_at,
                     stages + W::sa_at + lane % 4 * 8, stages + W::sums_at + lane % 4 * 8};

    asm volatile("" : "+r"(p.nibbles), "+r"(p.scales), "+r"(p.sa));
    return p;
}

// acc += scale * dot for those; of symmetric nibbles dots are 16 times as much, which the weights' scales take back: exactly, but where a product of
// both scales is less than 2^-122, or would be infinity in cpu/ref.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_scale(const linear_call &c, uint32_t stage, const wide_places &at, int b, bool row_scale, const int32_t dot[N / 2],
           wide_sums<BLOCK, ASYM, N> *s)
{
    const __half *scales = (const __half *)bt_shared_of(at.scales + stage) + (row_scale ? 0 : b * 16);
    const __half *minima = (const __half *)bt_shared_of(at.minima + stage) + b * 16;
    const float *sa = (const float *)bt_shared_of(at.sa + stage) +
                      (BLOCK < 128 && c.act_shift < 31 ? b * BLOCK >> c.act_shift : 0) * N;
    const int32_t *sums = (const int32_t *)bt_shared_of(at.sums + stage) + b * (BLOCK / 32) * N;
    const float unit = BITS == 4 && !ASYM ? 0.0625f : 1.0f;
    float sw[2] = {__half2float(scales[0]) * unit, __half2float(scales[8]) * unit}, sm[2];
    float *acc = s->acc, *min = s->min;

    if (ASYM) {
        sm[0] = __half2float(minima[0]), sm[1] = __half2float(minima[8]);
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 sx = *(const float2 *)(sa + j * 8);

        acc[j * 4] = fmaf(sw[0] * sx.x, (float)dot[j * 4], acc[j * 4]);
        acc[j * 4 + 1] = fmaf(sw[0] * sx.y, (float)dot[j * 4 + 1], acc[j * 4 + 1]);
        acc[j * 4 + 2] = fmaf(sw[1] * sx.x, (float)dot[j * 4 + 2], acc[j * 4 + 2]);
        acc[j * 4 + 3] = fmaf(sw[1] * sx.y, (float)dot[j * 4 + 3], acc[j * 4 + 3]);
        if constexpr (ASYM) {
            int2 sum = *(const int2 *)(sums + j * 8);

#pragma unroll
            for (int i = 1; i < BLOCK / 32; i++) {
                int2 more = *(const int2 *)(sums + i * N + j * 8);

                sum.x += more.x, sum.y += more.y;
            }
            sx.x *= (float)sum.x, sx.y *= (float)sum.y;
            min[j * 4] = fmaf(sm[0], sx.x, min[j * 4]);
            min[j * 4 + 1] = fmaf(sm[0], sx.y, min[j * 4 + 1]);
            min[j * 4 + 2] = fmaf(sm[1], sx.x, min[j * 4 + 2]);
            min[j * 4 + 3] = fmaf(sm[1], sx.y, min[j * 4 + 3]);
        }
    }
}

// Where a thread's outputs 4j and 4j + 2 lie among the partial sums; 4j + 1 and 4j + 3 follow.
template <int N>
static __device__ __forceinline__ uint32_t
wide_place(uint32_t warp, uint32_t lane, int j, int i)
{
    return (warp * 16 + lane / 4 + i * 8) * wide_row_floats<N>::count + j * 8 + lane % 4 * 2;
}

template <int N, typename V>
static __device__ __forceinline__ void
wide_put(V *partials, uint32_t warp, uint32_t lane, const V *v)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            V *to = partials + wide_place<N>(warp, lane, j, i);

            to[0] = v[j * 4 + i * 2], to[1] = v[j * 4 + i * 2 + 1];
        }
    }
}

// v += what the thread put.
template <int N>
static __device__ __forceinline__ void
wide_add_put(const float *partials, uint32_t warp, uint32_t lane, float *v)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *from = partials + wide_place<N>(warp, lane, j, i);

            v[j * 4 + i * 2] = from[0] + v[j * 4 + i * 2], v[j * 4 + i * 2 + 1] = from[1] + v[j * 4 + i * 2 + 1];
        }
    }
}

// Segment r (of up to four) of the run is over: pairs join, and the first pair waits in shared memory or in `first`.
template <typename W, int COUNT, int N>
static __device__ __forceinline__ void
wide_join(uint32_t r, float *partials, uint32_t warp, uint32_t lane, float *acc, float *pair, float *first)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        pair[i] = r % 2 == 0 ? acc[i] : pair[i] + acc[i];
        acc[i] = 0.0f;
        if (W::late && r == 1) {
            first[i] = pair[i];
        }
    }
    if (!W::late && r == 1) {
        wide_put<N>(partials, warp, lane, pair);
    }
}

// The same of wide::kept: sums wait in shared memory, but those of a third segment, where a fourth comes, in global memory.
template <typename W, int N>
static __device__ __forceinline__ void
wide_keep(const wide_call &w, uint32_t r, bool last, float *partials, uint32_t warp, uint32_t lane, float *acc)
{
    float4 *kept = (float4 *)w.kept +
                   ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * (W::kept_bytes / 16) +
                   threadIdx.x;

    if (r == 2 && !last) {
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            __stcg(kept + i * WIDE_WORKERS, make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]));
        }
    } else {
        if (r == 3) {
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float4 v = __ldcg(kept + i * WIDE_WORKERS);

                acc[i * 4] = v.x + acc[i * 4], acc[i * 4 + 1] = v.y + acc[i * 4 + 1];
                acc[i * 4 + 2] = v.z + acc[i * 4 + 2], acc[i * 4 + 3] = v.w + acc[i * 4 + 3];
            }
        }
        if (r != 0) {
            wide_add_put<N>(partials, warp, lane, acc);
        }
        wide_put<N>(partials, warp, lane, acc);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        acc[i] = 0.0f;
    }
}

// This warp has read the stage.
static __device__ __forceinline__ void
wide_release(uint32_t full, uint32_t lane)
{
    __syncwarp();
    if (lane == 0) {
        bt_barrier_arrive(full + 8);
    }
}

// What a run of segments has come to, after pairs have joined: to its place.
template <typename W, int N>
static __device__ __forceinline__ void
wide_put_run(uint32_t segments, float *partials, uint32_t warp, uint32_t lane, float *pair, const float *first)
{
    if constexpr (W::late) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            pair[i] = segments > 2 ? first[i] + pair[i] : pair[i];
        }
        bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS); // all have read their last stage
    } else if (segments == 2) {
        return; // it is there
    } else if (segments > 2) {
        wide_add_put<N>(partials, warp, lane, pair);
    }
    wide_put<N>(partials, warp, lane, pair);
}

// The multiplying warps: leave the block's sums among the partials. While products are on their way the next stage is waited for and, where
// there are registers, its nibbles are read: behind the last one there is one of nothing (wide_load). Where there are few (wide::kept) they
// come while the products are scaled, and are turned to bytes when the next ones begin. Two stages are a turn of the loop where the ring has
// an even number (wide::turn).
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_work(const wide_call &w, const uint8_t *stages, float *partials, uint32_t barriers, uint32_t units, uint32_t warp,
          uint32_t lane)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    // Of four warpgroups one can always go on.
    const bool EARLY = BITS == 4 && BLOCK == 128 && N <= 64 && WIDE_FOURS == 2, LATE = W::kept;
    bool row_scale = W::by_row(w.c);
    int32_t dot[N / 2];
    uint32_t a[4][4], segment = 0, half = warp / 4;
    uint4 nibbles[2];
    wide_sums<BLOCK, ASYM, N> s = {}, pair = {}, first = {}; // of a segment, of a pair, and (W::late) of the first pair
    float *minima = partials + W::partial_bytes / 4;
    const wide_places places = wide_places_of<BITS, BLOCK, ASYM, N>(bt_shared_at(stages), row_scale, warp, lane);
    const uint32_t tokens_of_first = (uint32_t)bt_wgmma_rows(bt_shared_at(stages)), ring = w.stages * W::stage_bytes;
    // Of a turn's first stage: bytes before it, its tokens' descriptor, its barrier. Chosen by numbers: all of it stays uniform.
    uint32_t at = 0, tokens_at = tokens_of_first, full = barriers, parity = 0;

    bt_barrier_wait(barriers, 0);
    if (BITS == 4) {
        wide_nibbles(places.nibbles, nibbles);
        if (!LATE) {
            wide_codes<ASYM>(nibbles, a);
        }
    }
#pragma unroll 1
    for (uint32_t left = units; left != 0; segment++) {
        uint32_t here = left < SEGMENT / WIDE_UNIT ? left : SEGMENT / WIDE_UNIT;

        left -= here;
#pragma unroll 1
        for (;;) {
            uint32_t after = at + W::turn * W::stage_bytes, after_full = full + W::turn * 16, after_parity = parity;
            uint32_t after_tokens = tokens_at + W::turn * W::stage_bytes / 16;

            if (after == ring) {
                after = 0, after_tokens = tokens_of_first, after_full = barriers, after_parity ^= 1;
            }
#pragma unroll
            for (uint32_t i = 0; i < W::turn; i++) {
                const bool last = i + 1 == W::turn;
                const uint32_t stage = at + i * W::stage_bytes, next = last ? after : stage + W::stage_bytes;
                const uint32_t tokens = tokens_at + i * W::stage_bytes / 16;

                if (i != 0 && here == i) {
                    break;
                }
#pragma unroll
                for (int b = 0; b < W::blocks; b++) {
                    if (LATE && b == 0) {
                        wide_codes<ASYM>(nibbles, a);
#pragma unroll
                        for (int i = 0; i < 16; i++) { // all of it before the products begin
                            asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
                        }
                    }
                    wide_issue<BITS, BLOCK, ASYM, N>(tokens, tokens + (W::codes_at + half * W::half_codes) / 16, b, a,
                                                     dot);
                    if (b + 1 == W::blocks) {
                        wide_await(last ? after_full : full + (i + 1) * 16, last ? after_parity : parity);
                        if (EARLY) {
                            wide_nibbles(places.nibbles + next, nibbles);
                        }
                    }
                    bt_wgmma_wait<0>();
                    bt_wgmma_there<N / 2>(dot);
                    if (LATE && b + 1 == W::blocks) {
                        wide_nibbles(places.nibbles + next, nibbles);
                    }
                    wide_scale<BITS, BLOCK, ASYM, N>(w.c, stage, places, b, row_scale, dot, &s);
                }
                wide_release(full + i * 16, lane);
                if (BITS == 4 && !LATE) { // not before the products that read these registers are there
                    if (!EARLY) {
                        wide_nibbles(places.nibbles + next, nibbles);
                    }
                    wide_codes<ASYM>(nibbles, a);
                }
            }
            at = after, tokens_at = after_tokens, full = after_full, parity = after_parity;
            if (here <= W::turn) {
                break;
            }
            here -= W::turn;
        }
        if constexpr (W::kept) {
            wide_keep<W, N>(w, segment, left == 0, partials, warp, lane, s.acc);
        } else {
            wide_join<W, W::outputs, N>(segment, partials, warp, lane, s.acc, pair.acc, first.acc);
        }
        if constexpr (ASYM) {
            wide_join<W, W::outputs, N>(segment, minima, warp, lane, s.min, pair.min, first.min);
        }
    }
    if constexpr (!W::kept) {
        wide_put_run<W, N>(segment, partials, warp, lane, pair.acc, first.acc);
    }
    if constexpr (ASYM) {
        wide_put_run<W, N>(segment, minima, warp, lane, pair.min, first.min);
    }
}

// The same for one exact dot over all columns.
template <int N>
static __device__ __forceinline__ void
wide_work_whole(const wide_call &w, const uint8_t *stages, int32_t *partials, uint32_t barriers, uint32_t units,
                uint32_t warp, uint32_t lane)
{
    typedef wide<8, 0, false, N> W;
    int32_t dot[N / 2];
    uint64_t tokens_of_first = bt_wgmma_rows(bt_shared_at(stages));
    uint64_t codes_of_first = tokens_of_first + (W::codes_at + warp / 4 * W::half_codes) / 16;

    for (uint32_t u = 0, slot = 0, parity = 0; u < units; u++) {
        uint32_t full = barriers + slot * 16, at = slot * (W::stage_bytes / 16);

        bt_barrier_wait(full, parity);
        bt_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bt_wgmma_shared<N>(dot, codes_of_first + at + i * 2, tokens_of_first + at + i * 2, u + i != 0);
        }
        bt_wgmma_commit();
        bt_wgmma_wait<0>();
        wide_release(full, lane);
        slot = slot + 1 == w.stages ? 0 : slot + 1;
        parity ^= slot == 0;
    }
    bt_wgmma_there<N / 2>(dot);
    wide_put<N>(partials, warp, lane, dot);
}

#endif
