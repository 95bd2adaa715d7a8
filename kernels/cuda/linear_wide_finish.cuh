// linear_wide.cuh: what becomes of the sums of blocks of threads that share K.
#pragma once

#include "kernels/cuda/linear_wide_meet.cuh"
#include "kernels/cuda/linear_wide_tree.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One output row of a block of threads, as its finishing threads know it.
typedef struct {
    uint32_t part, row; // in its matrix
    uint32_t own;       // of its partial sums: where, in floats
    const float *sums;  // of its outliers
    float sw, bias;
    bool there, biased;
    uint32_t to; // its place in y
} wide_row;

template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ wide_row
wide_row_of(const wide_call &w, const float *outliers, uint32_t here, uint32_t in_share, uint32_t row)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    const linear_call &c = w.c;
    wide_row r = {};
    uint32_t tile;

    r.there = wide_tile(c, here, &r.part, &tile) && tile * 16 + row < c.part[r.part].rows;
    r.row = tile * 16 + row;
    r.own = (here * 16 + row) * W::row_floats;
    r.sums = outliers + (in_share * 16 + row) * (N + 4);
    if (r.there && BLOCK == 0) {
        r.sw = bt_cuda_scale(&c.part[r.part], c.part[r.part].scales, r.row, 0);
    }
    r.biased = c.bias[r.part] != NULL;
    if (r.there && r.biased) {
        r.bias = c.bias[r.part][r.row];
    }
    r.to = start_of(c, c.paired ? 0 : r.part) + r.row;
    return r;
}

// Code is read from the second-level cache as it is run, and each place that is jumped to costs a load from there. So what is rare is out of
// line, and does not lie between what is not (kernels/README.md).
static __device__ __noinline__ float4
wide_softcap(float4 r, float cap)
{
    float v[4] = {r.x, r.y, r.z, r.w};

#pragma unroll 1
    for (int i = 0; i < 4; i++) { // by turns, so that the four stay in registers
        float y = bt_ref_softcap(v[0], cap);

        v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = y;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

// What becomes of gates that bt_silu_within does not know.
static __device__ __noinline__ float4
wide_gate_any(float4 r, bool silu)
{
    float v[4] = {r.x, r.y, r.z, r.w};

#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float y = silu ? bt_ref_silu(v[0]) : bt_ref_gelu_tanh(v[0]);

        v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = y;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

// `count` of them, or all, are of tokens that there are: what is computed for others is no reason to go by the rare path.
static __device__ __forceinline__ float4
wide_gate(float4 r, bool silu, uint32_t count)
{
    const float v[4] = {r.x, r.y, r.z, r.w};
    uint32_t most = 0;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        most = max(most, i < count ? (bt_bits_of_float(v[i]) & 0x7fffffffu) - BT_SILU_LEAST : 0);
    }
    return silu && most <= BT_SILU_MOST - BT_SILU_LEAST
               ? make_float4(bt_silu_within(v[0]), bt_silu_within(v[1]), bt_silu_within(v[2]), bt_silu_within(v[3]))
               : wide_gate_any(r, silu);
}

// What follows the sums of four tokens, up to the epilogue.
static __device__ __forceinline__ float4
wide_rest(const wide_call &w, const wide_row &row, uint32_t token, float4 r)
{
    if (w.turned != NULL) {
        r = wide_plus(r, *(const float4 *)(row.sums + token));
    }
    if (row.biased) {
        r = wide_plus(r, make_float4(row.bias, row.bias, row.bias, row.bias));
    }
    return w.c.softcap > 0.0f ? wide_softcap(r, w.c.softcap) : r;
}

// r of four tokens, up to the epilogue. `partials`: the cluster's, here in shared memory, or (FAR) the first run's in global memory.
template <int BITS, int BLOCK, bool ASYM, int N, bool FAR>
static __device__ __forceinline__ float4
wide_values(const wide_call &w, const float *partials, const wide_row &row, uint32_t token)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    const linear_call &c = w.c;
    const size_t stride = W::partials_bytes / 4;
    const float *own = partials + row.own + token;
    float4 r;

    if constexpr (BLOCK == 0) {
        r = wide_total(FAR ? wide_dot_far(own, stride, c.groups) : wide_dot(own, c.groups), row.sw,
                       *(const float4 *)(c.sa + blockIdx.y * N + token));
    } else {
        r = FAR ? wide_tree_far(own, stride, c.groups) : wide_tree(own, c.groups);
    }
    if constexpr (ASYM) {
        own += W::partial_bytes / 4;
        r = wide_plus(r, FAR ? wide_tree_far(own, stride, c.groups) : wide_tree(own, c.groups));
    }
    return wide_rest(w, row, token, r);
}

// The same of four tokens, and of the four that are WIDE_BOTH further.
template <int BITS, int BLOCK, bool ASYM, int N, bool FAR>
static __device__ __forceinline__ void
wide_values_both(const wide_call &w, const float *partials, const wide_row &row, uint32_t token, float4 r[2])
{
    typedef wide<BITS, BLOCK, ASYM, N> W;

    static_assert(!ASYM, "asymmetric formats take 64 tokens at most");
    if constexpr (BLOCK == 0) {
        r[0] = wide_values<BITS, BLOCK, ASYM, N, FAR>(w, partials, row, token);
        r[1] = wide_values<BITS, BLOCK, ASYM, N, FAR>(w, partials, row, token + WIDE_BOTH);
    } else {
        wide_trees<FAR>(partials + row.own + token, W::partials_bytes / 4, w.c.groups, r);
        r[0] = wide_rest(w, row, token, r[0]);
        r[1] = wide_rest(w, row, token + WIDE_BOTH, r[1]);
    }
}

// Of gates and their partners, of which `count` are wanted, or all.
static __device__ __forceinline__ float4
wide_pair(const linear_call &c, float4 gate, float4 up, uint32_t count)
{
    float4 v = wide_gate(gate, c.epilogue == BT_LINEAR_SILU_MUL, count);

    return make_float4(v.x * up.x, v.y * up.y, v.z * up.z, v.w * up.w);
}

// What is there already of four tokens of a row of y, `count` of which are wanted; on its way while their sums are fetched.
static __device__ __forceinline__ void
wide_old(const linear_call &c, const float *y, uint32_t count, float old[4])
{
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        old[j] = c.epilogue == BT_LINEAR_ADD && j < count ? y[j * c.y_stride] : 0.0f;
    }
}

// These four tokens.
static __device__ __forceinline__ void
wide_store(const linear_call &c, float *y, uint32_t count, float4 r, const float old[4])
{
    const float v[4] = {r.x, r.y, r.z, r.w};

#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float to = c.epilogue == BT_LINEAR_ADD ? fmaf(c.scale, v[j], old[j]) : c.paired ? v[j] : c.scale * v[j];

        if (j < count) {
            y[j * c.y_stride] = to;
        }
    }
}

// A row's four tokens from `token` on and the four that are WIDE_BOTH further, of those in this block of threads: to y.
template <int BITS, int BLOCK, bool ASYM, int N, bool FAR>
static __device__ __forceinline__ void
wide_finish_both(const wide_call &w, const float *partials, const wide_row &row, const wide_row &up, uint32_t token)
{
    const linear_call &c = w.c;
    uint32_t first = blockIdx.y * N + token, left = min(c.tokens - first, N - token);
    const uint32_t count[2] = {left, left > WIDE_BOTH ? left - WIDE_BOTH : 0};
    float *y = c.y + first * c.y_stride + row.to;
    float old[2][4];
    float4 r[2], more[2];

#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        wide_old(c, y + i * WIDE_BOTH * c.y_stride, count[i], old[i]);
    }
    wide_values_both<BITS, BLOCK, ASYM, N, FAR>(w, partials, row, token, r);
    if (c.paired) {
        wide_values_both<BITS, BLOCK, ASYM, N, FAR>(w, partials, up, token, more);
        r[0] = wide_pair(c, r[0], more[0], count[0]);
        r[1] = wide_pair(c, r[1], more[1], count[1]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        wide_store(c, y + i * WIDE_BOTH * c.y_stride, count[i], r[i], old[i]);
    }
}

// This block's share of y: sixteen threads the rows of a tile, four tokens each, so that loads are without conflicts and stores of 64
// neighbouring bytes. Little code: all of it is read from afar the first time. Up to 64 tokens what the first of a thread's rows needs besides
// sums is there, or on its way, before the others are waited for: with it comes the code. (Above 64 the meeting first: 1 % faster.)
template <int BITS, int BLOCK, bool ASYM, int N, bool FAR>
static __device__ __forceinline__ void
wide_finish(const wide_call &w, const float *partials, const float *outliers, uint32_t rank, uint32_t thread)
{
    const linear_call &c = w.c;
    const uint32_t fours = N <= 16 ? 4 : N <= 32 ? 8 : 16, at_once = WIDE_WORKERS / 16 / fours; // tiles
    const bool once = N / 4 <= 16; // a row's tokens in one go
    uint32_t first, tiles = wide_share(w, rank, &first), first_token = blockIdx.y * N;
    uint32_t t = thread / 16 / fours, own_token = thread / 16 % fours * 4;
    bool met = !once;

    static_assert(!once || fours * 4 >= N, "a thread has four tokens of a row");

    if (!once) {
        wide_all_there<FAR, once>(w);
    }
#pragma unroll 1
    for (; !met || t < tiles; t += at_once) {
        wide_row row = {}, up;
        float old[4] = {};

        if (t < tiles) {
            row = wide_row_of<BITS, BLOCK, ASYM, N>(w, outliers, first + t, t, thread % 16);
        }
        up = row;
        if (c.paired && t < tiles) {
            up = wide_row_of<BITS, BLOCK, ASYM, N>(w, outliers, first + t + WIDE_TILES / 2, tiles + t, thread % 16);
        }
        row.there = row.there && own_token < N && first_token + own_token < c.tokens;
        if (once && row.there) {
            wide_old(c, c.y + (first_token + own_token) * c.y_stride + row.to, c.tokens - first_token - own_token, old);
        }
        if (!met) {
            __syncwarp(); // rows that are not there went another way
            wide_all_there<FAR, once>(w);
            met = true;
        }
        if constexpr (!once) {
            if (row.there) {
                wide_finish_both<BITS, BLOCK, ASYM, N, FAR>(w, partials, row, up, own_token);
            }
        } else if (row.there) {
            uint32_t count = c.tokens - first_token - own_token;
            float4 r = wide_values<BITS, BLOCK, ASYM, N, FAR>(w, partials, row, own_token);

            if (c.paired) {
                r = wide_pair(c, r, wide_values<BITS, BLOCK, ASYM, N, FAR>(w, partials, up, own_token), count);
            }
            wide_store(c, c.y + (first_token + own_token) * c.y_stride + row.to, count, r, old);
        }
    }
}

#endif
