// linear_wide.cuh: the warps that multiply. A warpgroup has 64 rows; its sums stay in registers, but for the first pair of segments.
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The warp's 16 rows of a unit of nibbles, as they lie.
static __device__ __forceinline__ void
wide_nibbles(const uint8_t *tile, uint32_t lane, uint4 v[2])
{
    v[0] = *(const uint4 *)(tile + lane * 16), v[1] = *(const uint4 *)(tile + 512 + lane * 16);
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
wide_issue(uint64_t tokens, uint64_t codes, int b, const uint32_t a[4][4], int32_t dot[N / 2])
{
    const int steps = BLOCK / 32;

    bt_wgmma_fence();
#pragma unroll
    for (int i = 0; i < steps; i++) {
        const int at = (b * steps + i) * 2; // 32 bytes, in sixteens

        if (BITS == 4) {
            bt_wgmma<N, ASYM>(dot, a[b * steps + i], tokens + at, i != 0);
        } else {
            bt_wgmma_shared<N>(dot, codes + at, tokens + at, i != 0);
        }
    }
    bt_wgmma_commit();
}

// An integer of less than 22 bits as float, exactly: a conversion takes eight cycles of a warp, this takes three.
static __device__ __forceinline__ float
wide_float(int32_t v)
{
    return __int_as_float(0x4b400000 + v) - 12582912.0f; // 1.5 * 2^23
}

// acc += scale * dot for those.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_scale(const linear_call &c, const uint8_t *stage, uint32_t tile, int b, bool row_scale, uint32_t lane,
           const int32_t dot[N / 2], wide_sums<BLOCK, ASYM, N> *s)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t tiles_at = tile * (row_scale ? 32 : W::tile_scales);
    uint32_t tokens_at = lane % 4 * 2;
    const __half *scales = (const __half *)(stage + W::scales_at + tiles_at) + (row_scale ? 0 : b * 16) + lane / 4;
    const __half *minima = (const __half *)(stage + W::minima_at + tiles_at) + b * 16 + lane / 4;
    const float *sa =
        (const float *)(stage + W::sa_at) + (c.act_shift < 31 ? b * BLOCK >> c.act_shift : 0) * N + tokens_at;
    const int32_t *sums = (const int32_t *)(stage + W::sums_at) + b * (BLOCK / 32) * N + tokens_at;
    const float unit16 = BITS == 4 && !ASYM ? 0.0625f : 1.0f; // exact
    float sw[2] = {__half2float(scales[0]) * unit16, __half2float(scales[8]) * unit16}, sm[2];
    float *acc = s->acc, *min = s->min;

    if (ASYM) {
        sm[0] = __half2float(minima[0]), sm[1] = __half2float(minima[8]);
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 sx = *(const float2 *)(sa + j * 8);

        acc[j * 4] = fmaf(sw[0] * sx.x, wide_float(dot[j * 4]), acc[j * 4]);
        acc[j * 4 + 1] = fmaf(sw[0] * sx.y, wide_float(dot[j * 4 + 1]), acc[j * 4 + 1]);
        acc[j * 4 + 2] = fmaf(sw[1] * sx.x, wide_float(dot[j * 4 + 2]), acc[j * 4 + 2]);
        acc[j * 4 + 3] = fmaf(sw[1] * sx.y, wide_float(dot[j * 4 + 3]), acc[j * 4 + 3]);
        if constexpr (ASYM) {
            int2 sum = *(const int2 *)(sums + j * 8);

#pragma unroll
            for (int i = 1; i < BLOCK / 32; i++) {
                int2 more = *(const int2 *)(sums + i * N + j * 8);

                sum.x += more.x, sum.y += more.y;
            }
            sx.x *= wide_float(sum.x), sx.y *= wide_float(sum.y);
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
    return (warp * 16 + lane / 4 + i * 8) * (N + 4) + j * 8 + lane % 4 * 2;
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

// Segment r (of up to four) of the run is over: pairs join, and the first pair waits in shared memory.
template <int COUNT, int N>
static __device__ __forceinline__ void
wide_join(uint32_t r, float *partials, uint32_t warp, uint32_t lane, float *acc, float *pair)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        pair[i] = r % 2 == 0 ? acc[i] : pair[i] + acc[i];
        acc[i] = 0.0f;
    }
    if (r == 1) {
        wide_put<N>(partials, warp, lane, pair);
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
template <int N>
static __device__ __forceinline__ void
wide_put_run(uint32_t segments, float *partials, uint32_t warp, uint32_t lane, float *pair)
{
    if (segments == 2) {
        return; // it is there
    }
    if (segments > 2) {
        wide_add_put<N>(partials, warp, lane, pair);
    }
    wide_put<N>(partials, warp, lane, pair);
}

// The multiplying warps: leave the block's sums among the partials. While products are on their way the next stage is waited for and, where
// there are registers, its nibbles are read.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_work(const wide_call &w, const uint8_t *stages, float *partials, uint32_t barriers, uint32_t units, uint32_t warp,
          uint32_t lane)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    const bool EARLY =
        BITS == 4 && BLOCK == 128 && N <= 64 && WIDE_FOURS == 2; // of four warpgroups one can always go on
    bool row_scale = W::by_row(w.c);
    int32_t dot[N / 2];
    uint32_t a[4][4], segment = 0, half = warp / 4;
    uint4 nibbles[2];
    wide_sums<BLOCK, ASYM, N> s = {}, pair = {};
    float *minima = partials + W::partial_bytes / 4;
    const uint8_t *own = stages + W::codes_at + warp * 1024; // nibbles
    const uint64_t tokens_of_first = bt_wgmma_rows(bt_shared_at(stages));
    uint64_t tokens = tokens_of_first;
    uint32_t slot = 0, at = 0, parity = 0; // the stage, and bytes before it

    bt_barrier_wait(barriers, 0);
    if (BITS == 4) {
        wide_nibbles(own, lane, nibbles);
        wide_codes<ASYM>(nibbles, a);
    }
#pragma unroll 1
    for (uint32_t left = units; left != 0; segment++) {
        uint32_t here = left < SEGMENT / WIDE_UNIT ? left : SEGMENT / WIDE_UNIT;

        left -= here;
#pragma unroll 1
        for (; here != 0; here--) {
            uint32_t next = slot + 1 == w.stages ? 0 : slot + 1, next_at = next == 0 ? 0 : at + W::stage_bytes;
            bool more = left + here > 1;

            parity ^= next == 0;
#pragma unroll
            for (int b = 0; b < W::blocks; b++) {
                wide_issue<BITS, BLOCK, ASYM, N>(tokens, tokens + (W::codes_at + half * W::half_codes) / 16, b, a, dot);
                if (b + 1 == W::blocks && more) {
                    wide_await(barriers + next * 16, parity);
                    if (EARLY) {
                        wide_nibbles(own + next_at, lane, nibbles);
                    }
                }
                bt_wgmma_wait<0>();
                bt_wgmma_there<N / 2>(dot);
                wide_scale<BITS, BLOCK, ASYM, N>(w.c, stages + at, warp, b, row_scale, lane, dot, &s);
            }
            wide_release(barriers + slot * 16, lane);
            if (BITS == 4 && more) { // not before the products that read these registers are there
                if (!EARLY) {
                    wide_nibbles(own + next_at, lane, nibbles);
                }
                wide_codes<ASYM>(nibbles, a);
            }
            slot = next, at = next_at;
            tokens = tokens_of_first + at / 16;
        }
        wide_join<W::outputs, N>(segment, partials, warp, lane, s.acc, pair.acc);
        if constexpr (ASYM) {
            wide_join<W::outputs, N>(segment, minima, warp, lane, s.min, pair.min);
        }
    }
    wide_put_run<N>(segment, partials, warp, lane, pair.acc);
    if constexpr (ASYM) {
        wide_put_run<N>(segment, minima, warp, lane, pair.min);
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
