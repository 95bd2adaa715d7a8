// linear_deep.cuh: the warps that multiply.
#pragma once

#include "kernels/cuda/linear_deep_finish.cuh"
#include "kernels/cuda/linear_wide_work.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A thread's sums of a tile, as wgmma has them: [half][4j + 2i + e] is row 16 · warp + lane / 4 + 8i, token 64 · half + 8j + 2 · (lane % 4) + e.
typedef struct {
    float acc[2][32];
    float kept[4]; // of the tree's first level
} deep_sums;

// The warp's 16 rows of a stage, as they lie.
static __device__ __forceinline__ void
deep_nibbles(uint32_t own, uint4 v[2])
{
    const uint4 *from = (const uint4 *)bt_shared_of(own);

    v[0] = from[0], v[1] = from[32];
}

// The same as wgmma's A: bytes, 16 times themselves. What was there before has zeros where these have, and is part of the new: so its register is
// no other value's until the products that read it are over (tests/gpu/wgmma_registers.py).
static __device__ __forceinline__ void
deep_unpack(const uint4 v[2], uint32_t a[4][4])
{
    const uint32_t mask = 0xf0f0f0f0u;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t words[4] = {v[half].x, v[half].y, v[half].z, v[half].w};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t *low = &a[half * 2 + i / 2][i % 2], *high = &a[half * 2 + i / 2][i % 2 + 2];

            *low = bt_blend(words[i] << 4, *low, mask);
            *high = bt_blend(words[i], *high, mask);
        }
    }
}

// The products of a stage and half of the tokens, on their way until bt_wgmma_wait.
static __device__ __forceinline__ void
deep_issue(uint32_t tokens_low, const uint32_t a[4][4], int32_t dot[32])
{
    const uint64_t tokens = bt_wgmma_rows(0) >> 32 << 32 | tokens_low;

    bt_wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bt_wgmma<64, false>(dot, a[i], tokens + i * 2, i != 0);
    }
    bt_wgmma_commit();
}

// acc += scale * dot, of 64 tokens.
static __device__ __forceinline__ void
deep_scale(const float *sa, const float sw[2], const int32_t dot[32], float acc[32])
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 sx = *(const float2 *)(sa + j * 8);

        acc[j * 4] = fmaf(sw[0] * sx.x, (float)dot[j * 4], acc[j * 4]);
        acc[j * 4 + 1] = fmaf(sw[0] * sx.y, (float)dot[j * 4 + 1], acc[j * 4 + 1]);
        acc[j * 4 + 2] = fmaf(sw[1] * sx.x, (float)dot[j * 4 + 2], acc[j * 4 + 2]);
        acc[j * 4 + 3] = fmaf(sw[1] * sx.y, (float)dot[j * 4 + 3], acc[j * 4 + 3]);
    }
}

// A level of the tree from the second on, as this thread has it: fours DEEP_WORKERS apart.
static __device__ __forceinline__ float4 *
deep_level(const deep_call &d, uint8_t *memory, uint32_t level)
{
    float *far = deep_scratch(d) + (size_t)(level - 1) * (DEEP_ROWS * DEEP_TOKENS);

    return (level == 1 ? (float4 *)(memory + DEEP_LEVEL_1_AT) : (float4 *)far) + threadIdx.x;
}

static __device__ __forceinline__ void
deep_put(float4 *to, const float *v)
{
    *to = make_float4(v[0], v[1], v[2], v[3]);
}

// v = what is there + v.
static __device__ __forceinline__ void
deep_add(const float4 *from, float *v)
{
    float4 first = *from;

    v[0] = first.x + v[0], v[1] = first.y + v[1], v[2] = first.z + v[2], v[3] = first.w + v[3];
}

// Segment r of a tile is over. It joins the levels of the tree that wait for it; of the last
// segment that is all there are, and the result stays in acc. Otherwise it waits there for the next, and acc begins anew.
static __device__ __forceinline__ void
deep_join(const deep_call &d, uint8_t *memory, uint32_t r, bool last, deep_sums *s)
{
    float4 *first = (float4 *)(memory + DEEP_LEVEL_0_AT) + threadIdx.x;
    float *acc = s->acc[0];
    uint32_t level = 1;

    if (r % 2 != 0) {
#pragma unroll
        for (int i = 0; i < 15; i++) {
            deep_add(first + i * DEEP_WORKERS, acc + i * 4);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[60 + i] = s->kept[i] + acc[60 + i];
        }
    } else if (!last) {
#pragma unroll
        for (int i = 0; i < 15; i++) {
            deep_put(first + i * DEEP_WORKERS, acc + i * 4);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s->kept[i] = acc[60 + i];
        }
        level = 0;
    }
    if (level != 0) {
#pragma unroll 1
        for (; last ? r >> level != 0 : (r >> level & 1) != 0; level++) {
            if ((r >> level & 1) != 0) {
                const float4 *from = deep_level(d, memory, level);

#pragma unroll
                for (int i = 0; i < 16; i++) {
                    deep_add(from + i * DEEP_WORKERS, acc + i * 4);
                }
            }
        }
        if (!last) {
            float4 *to = deep_level(d, memory, level);

#pragma unroll
            for (int i = 0; i < 16; i++) {
                deep_put(to + i * DEEP_WORKERS, acc + i * 4);
            }
        }
    }
    if (!last) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            acc[i] = 0.0f;
        }
    }
}

// This warp has read the stage, of which the other block's loader brings half.
static __device__ __forceinline__ void
deep_release(uint32_t empty, uint32_t lane)
{
    __syncwarp();
    if (lane < 2) {
        bt_barrier_arrive_there(bt_cluster_at(empty, lane));
    }
}

// ptxas moves sums about over waits and products as it likes, but not over a branch: this one is never taken.
static __device__ __forceinline__ void
deep_fence(uint32_t never_zero)
{
    if (never_zero == 0) {
        __trap();
    }
}

// Where a thread reads in the first stage: addresses in shared memory, kept as they are.
typedef struct {
    uint32_t nibbles, sa, scales;
} deep_places;

static __device__ __forceinline__ deep_places
deep_places_of(uint32_t at, uint32_t warp, uint32_t lane)
{
    deep_places p = {at + DEEP_TOKENS * DEEP_UNIT + warp * 1024 + lane * 16, at + DEEP_SMALL_AT + lane % 4 * 8,
                     at + DEEP_SMALL_AT + 512 + warp * 32 + lane / 4 * 2};

#ifdef __CUDA_ARCH__
    asm volatile("" : "+r"(p.nibbles), "+r"(p.sa), "+r"(p.scales));
#endif
    return p;
}

// All tiles of this block. When a stage's second product is over the next stage's first is on its way before the second's sums are scaled.
static __device__ __forceinline__ void
deep_work(const deep_call &d, uint8_t *memory, uint32_t at, uint32_t rank, uint32_t warp, uint32_t lane)
{
    const deep_places places = deep_places_of(at, warp, lane);
    const uint32_t tokens_of_first = (uint32_t)bt_wgmma_rows(at), half = DEEP_TOKENS / 2 * DEEP_UNIT / 16;
    const uint32_t full_of_first = DEEP_FULL(at, 0), empty_of_first = DEEP_EMPTY(at, 0);
    uint32_t slot = 0, parity = 0, tiles = 0, a[4][4] = {}, tokens = tokens_of_first;
    int32_t dot[2][32];
    uint4 nibbles[2];
    deep_sums s = {};

    bt_barrier_wait(full_of_first, 0);
    deep_nibbles(places.nibbles, nibbles);
    deep_unpack(nibbles, a);
    deep_issue(tokens, a, dot[0]);
#pragma unroll 1
    for (uint32_t index = blockIdx.x / 2; index < d.total; index += gridDim.x / 2, tiles++) {
#pragma unroll 1
        for (uint32_t unit = 0; unit < d.units;) {
            uint32_t next = slot + 1 == DEEP_STAGES ? 0 : slot + 1, next_parity = next == 0 ? parity ^ 1 : parity;
            const float *sa = (const float *)bt_shared_of(places.sa + slot * DEEP_SMALL_BYTES);
            const __half *scales = (const __half *)bt_shared_of(places.scales + slot * DEEP_SMALL_BYTES);
            float sw[2];

            deep_issue(tokens + half, a, dot[1]);
            wide_await(full_of_first + next * 8, next_parity);
            sw[0] = __half2float(scales[0]) * 0.0625f, sw[1] = __half2float(scales[8]) * 0.0625f; // (wide_scale)
            deep_nibbles(places.nibbles + next * DEEP_STAGE_BYTES, nibbles);
            tokens = next == 0 ? tokens_of_first : tokens + DEEP_STAGE_BYTES / 16;
            bt_wgmma_wait<1>();
            bt_wgmma_there<32>(dot[0]);
            deep_scale(sa, sw, dot[0], s.acc[0]);
            deep_fence(d.units);
            bt_wgmma_wait<0>();
            bt_wgmma_there<32>(dot[1]);
            deep_unpack(nibbles, a);
            deep_issue(tokens, a, dot[0]);
            deep_fence(d.near);
            deep_scale(sa + 64, sw, dot[1], s.acc[1]);
            deep_release(empty_of_first + slot * 8, lane);
            slot = next, parity = next_parity, unit++;
            if (unit % (SEGMENT / DEEP_UNIT) == 0 || unit == d.units) {
                deep_join(d, memory, (unit - 1) / (SEGMENT / DEEP_UNIT), unit == d.units, &s);
            }
        }
        bt_wgmma_wait<0>(); // no calls while products are on their way
        deep_finish(d, memory, at, deep_tile_of(d, index, rank), tiles, warp, lane, s.acc[0]);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            s.acc[0][i] = 0.0f;
        }
    }
    bt_wgmma_wait<0>();
    bt_wgmma_there<32>(dot[0]);
}

#endif
