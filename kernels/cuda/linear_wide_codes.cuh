// linear_wide.cuh: what a tall block of a pair leaves for the call that reads y (bt_linear_next): INT8 of its 128 rows, which are one block
// of that call's activations.
#pragma once

#include "kernels/cuda/linear_wide_finish.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The kernel of tall blocks has no other format (linear_wide_tall.cu); with N = 16 it is for calls that share K.
template <int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ bool
wide_leaves(const wide_call &w)
{
    static_assert(WIDE_FOURS != 4 || (BLOCK != 0 && !ASYM), "what wide_half adds up");
    return WIDE_FOURS == 4 && N > 16 && w.leaves.to.a8 != NULL;
}

// Four neighbouring lanes with four numbers each: lane i gets the i-th of all.
static __device__ __forceinline__ void
wide_exchange(float v[4])
{
    const uint32_t all = 0xffffffffu;
    bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
    float a = __shfl_xor_sync(all, upper ? v[0] : v[2], 2), b = __shfl_xor_sync(all, upper ? v[1] : v[3], 2);

    v[0] = upper ? a : v[0], v[1] = upper ? b : v[1];
    v[2] = upper ? v[2] : a, v[3] = upper ? v[3] : b;
    a = __shfl_xor_sync(all, odd ? v[0] : v[1], 1), b = __shfl_xor_sync(all, odd ? v[2] : v[3], 1);
    v[0] = odd ? a : v[0], v[2] = odd ? b : v[2];
    v[1] = odd ? v[1] : a, v[3] = odd ? v[3] : b;
}

// A gate, or an up, of four tokens: row `row` of its part, `place` among the block's.
template <int N>
static __device__ __forceinline__ float4
wide_half(const wide_call &w, const float *partials, const float *outliers, int part, uint32_t row, uint32_t place,
          uint32_t token)
{
    const linear_call &c = w.c;
    float4 r = *(const float4 *)(partials + place * wide_row_floats<N>::count + token);

    if (w.turned != NULL) {
        r = wide_plus(r, *(const float4 *)(outliers + place * (N + 4) + token));
    }
    if (c.bias[part] != NULL) {
        float bias = c.bias[part][row];

        r = wide_plus(r, make_float4(bias, bias, bias, bias));
    }
    return c.softcap > 0.0f ? wide_softcap(r, c.softcap) : r;
}

// Row `in` of the block's pairs, four tokens: to y if that is wanted, and to v; what is not there is 0.
template <int N>
static __device__ __forceinline__ void
wide_pair_row(const wide_call &w, const float *partials, const float *outliers, uint32_t in, uint32_t token, float v[4])
{
    const linear_call &c = w.c;
    uint32_t row = blockIdx.z * (WIDE_ROWS / 2) + in, at = blockIdx.y * N + token;
    float4 r = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    if (row < c.part[0].rows && token < N && at < c.tokens) {
        float4 up = wide_half<N>(w, partials, outliers, 1, row, in + WIDE_ROWS / 2, token);

        r = wide_pair(c, wide_half<N>(w, partials, outliers, 0, row, in, token), up, c.tokens - at);
        if (w.leaves.write) {
            const float none[4] = {};

            wide_store(c, c.y + at * c.y_stride + row, c.tokens - at, r, none);
        }
    }
    v[0] = r.x, v[1] = r.y, v[2] = r.z, v[3] = r.w;
}

// Sixteen threads take the rows of two tiles, four tokens each, as in wide_finish, and then, of one of those tokens, four rows: what lies side
// by side for the next call. Of 32 tokens, from `token` on. `largest`: shared memory, a word for each of them and two tiles.
template <int N>
static __device__ __forceinline__ void
wide_leave_piece(const wide_call &w, const float *partials, const float *outliers, uint32_t *largest, uint32_t thread,
                 uint32_t token)
{
    const bt_row_target &to = w.leaves.to;
    const uint32_t groups = WIDE_WORKERS / 128, all = 0xffffffffu;
    uint32_t group = thread / 128, of_piece, amax = 0;
    bt_int8_scale s;
    float v[2][4] = {};

    token += thread / 16 % 8 * 4;
#pragma unroll 1
    for (uint32_t in = group * 16 + thread % 16; in < WIDE_ROWS / 2; in += groups * 16) { // by turns: little code
        memcpy(v[0], v[1], sizeof v[0]);
        wide_pair_row<N>(w, partials, outliers, in, token, v[1]);
        wide_exchange(v[1]);
        amax = max(amax, bt_row_amax4(v[1]));
    }
    token += thread % 4, of_piece = token % 32;
    amax = max(amax, __shfl_xor_sync(all, amax, 4));
    amax = max(amax, __shfl_xor_sync(all, amax, 8));
    if (thread % 16 < 4) {
        largest[group * 32 + of_piece] = amax;
    }
    bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS);
#pragma unroll
    for (uint32_t i = 0; i < groups; i++) {
        amax = max(amax, largest[i * 32 + of_piece]);
    }
    if (token >= N || blockIdx.y * N + token >= w.c.tokens) {
        return;
    }
    token += blockIdx.y * N;
    s = bt_ref_int8_scale(amax);
    if (thread < 128 && thread % 16 < 4) {
        to.sa[blockIdx.z * to.sa_stride + token] = s.scale;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t k = blockIdx.z * 128 + (group + i * groups) * 16 + thread % 16 / 4 * 4;

        *(uint32_t *)(to.a8 + bt_cuda_a8_in(to.order, to.a8_stride, token, k)) = bt_row_codes4(v[i], s.inverse);
    }
}

template <int N>
static __device__ __forceinline__ void
wide_leave(const wide_call &w, const float *partials, const float *outliers, uint32_t *largest, uint32_t thread)
{
#pragma unroll 1
    for (uint32_t token = 0; token < N && blockIdx.y * N + token < w.c.tokens; token += 32) {
        wide_leave_piece<N>(w, partials, outliers, largest + token * (WIDE_WORKERS / 128), thread, token);
    }
}

#endif
