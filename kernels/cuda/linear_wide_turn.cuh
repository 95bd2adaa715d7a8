// linear_wide.cuh: activations turned for the outliers, beside the products.
//
// Outliers want a column's activations of all tokens side by side, as floats: [columns][turned_stride]. A kernel of its own for that cost 2 µs
// a call, for which the products waited too. Here it is cut into pieces of 32 columns and 32 tokens, which the warps that have nothing else
// to do take from a counter, whatever block of threads they belong to; outliers begin when all pieces are there.
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"

#define WIDE_TURN_COLUMNS 32u
#define WIDE_TURN_TOKENS 32u

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Four codes of neighbouring columns.
static __device__ __forceinline__ void
wide_turn_four(float *to, size_t stride, uint32_t codes, float sa)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++, to += stride) {
        *to = sa * (float)(int8_t)(codes >> i * 8);
    }
}

// A lane has a token: its 32 codes are one sector, and a column's floats of all lanes 128 bytes. Word t of their half h has the columns
// 16h + 4t …, or in pairs (bt_cuda_a8_in) 8t + 4h ….
static __device__ __forceinline__ void
wide_turn_piece(const wide_call &w, uint32_t piece, uint32_t lane)
{
    const linear_call &c = w.c;
    uint32_t columns = (uint32_t)c.a8_stride / WIDE_TURN_COLUMNS, k = piece % columns * WIDE_TURN_COLUMNS,
             token = piece / columns * WIDE_TURN_TOKENS + lane;
    uint32_t of_half = c.order == BT_A8_ROWS ? 16 : 4, of_word = c.order == BT_A8_ROWS ? 4 : 8;
    float sa = 0.0f;

    if (token < c.tokens) {
        sa = c.sa[(c.act_shift < 31 ? k >> c.act_shift : 0) * c.sa_stride + token];
    }
#pragma unroll 1
    for (uint32_t half = 0; half < 2; half++) {
        float *to = (float *)w.turned + (k + half * of_half) * w.turned_stride + token;
        uint4 v = {};

        if (token < c.tokens) {
            v = *(const uint4 *)(c.a8 + token * c.a8_stride + k + half * 16);
        }
        wide_turn_four(to, w.turned_stride, v.x, sa);
        wide_turn_four(to + of_word * w.turned_stride, w.turned_stride, v.y, sa);
        wide_turn_four(to + 2 * of_word * w.turned_stride, w.turned_stride, v.z, sa);
        wide_turn_four(to + 3 * of_word * w.turned_stride, w.turned_stride, v.w, sa);
    }
}

// Pieces until there are none left.
static __device__ __forceinline__ void
wide_turn(const wide_call &w, uint32_t lane)
{
    for (;;) {
        uint32_t piece = 0;

        if (lane == 0) {
            piece = atomicAdd(&w.meetings[0], 1);
        }
        piece = __shfl_sync(0xffffffffu, piece, 0);
        if (piece >= w.turns) {
            return;
        }
        wide_turn_piece(w, piece, lane);
        __threadfence();
        __syncwarp();
        if (lane == 0) {
            atomicAdd(&w.meetings[1], 1);
        }
    }
}

// Until all pieces are there: whoever took one is at work on it. Gives up after some seconds.
static __device__ __forceinline__ void
wide_turn_wait(const wide_call &w, uint32_t lane)
{
    for (uint32_t tries = 0; lane == 0 && *(volatile uint32_t *)&w.meetings[1] != w.turns; tries++) {
        if (tries > 4000000u) {
            __trap();
        }
        __nanosleep(20);
    }
    if (lane == 0) {
        bt_load_acquire(&w.meetings[1]);
    }
    __syncwarp();
}

// A thread of each block, when all its warps are through with both counters: the last one leaves them as they were.
static __device__ __forceinline__ void
wide_turn_leave(const wide_call &w)
{
    if (atomicAdd(&w.meetings[2], 1) == gridDim.x * gridDim.y * gridDim.z - 1) {
        atomicExch(&w.meetings[0], 0), atomicExch(&w.meetings[1], 0), atomicExch(&w.meetings[2], 0);
    }
}

#endif
