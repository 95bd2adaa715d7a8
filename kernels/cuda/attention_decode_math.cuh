// What a block of attention_decode.cuh computes: scores, weights, values.
#pragma once

#include "kernels/cuda/attention_decode.cuh"

// bt_ref_exp2, the same bits: 2^(n + 64), which is normal, and then the one product that rounds.
static __device__ __forceinline__ float
exp2_of(float x)
{
    float shifted, f, q;

    x = bt_max_nan(x, BT_EXP2_MIN);
    shifted = x + BT_ROUND_MAGIC;
    f = x - (shifted - BT_ROUND_MAGIC);
    q = fmaf(f, BT_EXP2_C5, BT_EXP2_C4);
    q = fmaf(f, q, BT_EXP2_C3);
    q = fmaf(f, q, BT_EXP2_C2);
    q = fmaf(f, q, BT_EXP2_C1);
    return fmaf(f, q, 1.0f) * __uint_as_float((__float_as_uint(shifted) << 23) + ((127u + 64u) << 23)) * 0x1p-64f;
}

// A NaN passed over.
static __device__ __forceinline__ float
larger(float a, float b)
{
    return fmaxf(a, b);
}

// x / 255, rounded once: Markstein's division by a constant whose reciprocal is rounded to nearest. Where the remainder could vanish
// below the smallest numbers it is done in full.
static __device__ __forceinline__ float
over_255(float x)
{
    float q = x * (1.0f / 255.0f), exact = fmaf(fmaf(-q, 255.0f, x), 1.0f / 255.0f, q);

    return x >= 0x1p-90f && x <= 0x1p120f ? exact : x / 255.0f;
}

// ---- scores ----

// The query in column g of this warp's B.
template <typename D>
static __device__ __forceinline__ uint32_t
query_of_column(uint32_t g)
{
    return own_part<D>() * D::share + (D::share == 4 ? g % 4 : g / 2 % 2);
}

// The query that a lane weighs as its col-th.
template <typename D>
static __device__ __forceinline__ uint32_t
query_weighed(int col)
{
    return own_part<D>() * D::share + threadIdx.x % 2 * D::cols + col;
}

// The key that a lane weighs as its i-th, within the tile.
static __device__ __forceinline__ uint32_t
key_weighed(int i)
{
    uint32_t g = threadIdx.x % 32 / 4;

    return (i ^ (g & 1) * 2) * 16 + g + threadIdx.x % 4 / 2 * 8;
}

static __device__ __forceinline__ bool
key_seen(const decode_unit &u, uint32_t tile, int i)
{
    return tile + key_weighed(i) >= u.begin && tile + key_weighed(i) < u.end;
}

// The largest over the lanes that have the same queries, of each of N.
template <int N>
static __device__ __forceinline__ void
over_keys(float v[N])
{
#pragma unroll
    for (int i = 2; i < 32; i *= 2) {
        float other[N];

#pragma unroll
        for (int k = 0; k < N; k++) {
            other[k] = __shfl_xor_sync(0xffffffffu, v[k], i);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] = larger(v[k], other[k]);
        }
    }
}

static __device__ __forceinline__ bool
speaks_for_query(void)
{
    return threadIdx.x % 32 < 2;
}

// u of the tile. (Products in an order in which neighbours do not wait for each other.)
template <typename D>
static __device__ __forceinline__ void
scores(const decode_shared<D> &s, int buffer, uint32_t slot, float u[4][D::cols])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, odd = g & 1;
    const uint8_t *k = s.k[slot][own_tile<D>()] + g * D::dims + t * 16;
    const int8_t *q = s.q8[buffer][query_of_column<D>(g)] + t * 16;
    int32_t dot[4][4] = {};

#pragma unroll
    for (int p = 0; p < D::steps / 2; p++) {
        uint4 b = *(const uint4 *)(q + p * 64), low[4], high[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t *from = k + (i ^ odd * 2) * 16 * D::dims + (i / 2 ^ odd) * D::k_shift + p * 64;

            low[i] = *(const uint4 *)from, high[i] = *(const uint4 *)(from + 8 * D::dims);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[4] = {low[i].x, high[i].x, low[i].y, high[i].y};

            bt_mma_s8(dot[i], a, b.x, b.y);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[4] = {low[i].z, high[i].z, low[i].w, high[i].w};

            bt_mma_s8(dot[i], a, b.z, b.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float scale = __half2float(s.scales[slot][own_tile<D>()][0][key_weighed(i)]);

#pragma unroll
        for (int col = 0; col < D::cols; col++) {
            u[i][col] = fmaf((float)(t >= 2 ? dot[i][2 + col] : dot[i][col]), scale, 0.0f);
        }
    }
}

template <typename D>
static __device__ __noinline__ float
capped(float x, float softcap)
{
    return bt_ref_softcap(x, softcap);
}

// The tile's maxima, for the warps of the tiles after it.
template <typename D>
static __device__ __forceinline__ void
show_most(const attention_call &c, decode_shared<D> &s, const decode_unit &at, uint32_t tile, const float w[D::cols],
          float u[4][D::cols])
{
    float most[D::cols];

    if (c.a.softcap > 0) {
#pragma unroll
        for (int i = 0; i < 4 * D::cols; i++) {
            u[i / D::cols][i % D::cols] = capped<D>(u[i / D::cols][i % D::cols] * w[i % D::cols], c.a.softcap);
        }
    }
#pragma unroll
    for (int col = 0; col < D::cols; col++) {
        most[col] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            most[col] = key_seen(at, tile, i) ? larger(most[col], u[i][col]) : most[col];
        }
    }
    over_keys<D::cols>(most);
    if (speaks_for_query()) {
#pragma unroll
        for (int col = 0; col < D::cols; col++) {
            s.most[own_tile<D>()][query_weighed<D>(col)] = (c.a.softcap > 0 ? 1.0f : w[col]) * BT_LOG2_E * most[col];
        }
    }
}

// ---- weights ----

// From u to the codes of p · scale_v, with their scale, corr, and the tile's part of l.
template <typename D>
static __device__ __forceinline__ void
weigh(const attention_call &c, decode_shared<D> &s, const decode_unit &at, uint32_t slot, uint32_t tile,
      const float w[D::cols], const float before[D::cols], const float u[4][D::cols])
{
    uint32_t own = own_tile<D>(), odd = threadIdx.x / 4 & 1;
    float scale_v[4], p[D::cols][4], most[D::cols], m[D::cols];
    bool poison = false, seen[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        seen[i] = key_seen(at, tile, i);
        scale_v[i] = seen[i] ? __half2float(s.scales[slot][own][1][key_weighed(i)]) : 0.0f;
        poison |= isnan(scale_v[i]);
    }
    poison = __any_sync(0xffffffffu, poison);
#pragma unroll
    for (int col = 0; col < D::cols; col++) {
        float factor = (c.a.softcap > 0 ? 1.0f : w[col]) * BT_LOG2_E;

        m[col] = larger(before[col], s.most[own][query_weighed<D>(col)]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[col][i] = seen[i] ? exp2_of(bt_min_nan(fmaf(u[i][col], factor, -m[col]), 0.0f)) : 0.0f;
        }
        s.sums[own][query_weighed<D>(col)][key_weighed(0) % 16] =
            (((odd ? p[col][2] : p[col][0]) + (odd ? p[col][3] : p[col][1])) + (odd ? p[col][0] : p[col][2])) +
            (odd ? p[col][1] : p[col][3]);
        most[col] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[col][i] *= scale_v[i];
            most[col] = larger(most[col], p[col][i]);
        }
    }
    over_keys<D::cols>(most);
#pragma unroll
    for (int col = 0; col < D::cols; col++) {
        float scale = poison ? NAN : over_255(most[col]), inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
        uint8_t *codes = s.codes[own][query_weighed<D>(col)];

        if (speaks_for_query()) {
            s.change[own][query_weighed<D>(col)] = make_float2(scale, exp2_of(before[col] - m[col]));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) { // (no code is below 0; that of a NaN is 0)
            codes[key_weighed(i)] = (uint8_t)__float_as_uint(fmaxf(p[col][i] * inverse, 0.0f) + BT_ROUND_MAGIC);
        }
    }
}

// ---- values ----

template <typename D>
static __device__ __forceinline__ uint32_t
first_dim(void)
{
    return threadIdx.x / 32 % D::abreast * D::mt * 16;
}

template <typename D>
static __device__ __forceinline__ bool
has_dims(void)
{
    return D::abreast * D::mt * 16 == D::dims || first_dim<D>() < D::dims;
}

// The query in column `column` of what this warp multiplies. Below eight queries columns repeat them.
template <typename D>
static __device__ __forceinline__ uint32_t
query_multiplied(uint32_t column)
{
    return threadIdx.x / 32 / D::abreast * 8 + column % (D::columns < 8 ? D::columns : 8);
}

// Of rows g and g + 8 of tile j: a lane's dims lie together.
template <typename D>
static __device__ __forceinline__ uint32_t
dim_of(int j)
{
    uint32_t g = threadIdx.x % 32 / 4;

    return first_dim<D>() + (D::mt == 1 ? g * 2 : j / 2 * 32 + g * 4 + j % 2 * 2);
}

// acc of T tiles of the unit, from `tile` on. (Their products in an order in which neighbours do not wait for each other.)
template <typename D, int T>
static __device__ __forceinline__ void
values(const decode_shared<D> &s, int tile, float acc[D::mt][4])
{
    const int pair = D::mt > 1 ? 2 : 1;
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

#pragma unroll
    for (int j = 0; j < D::mt; j += 2) {
        int32_t dot[T][pair][4] = {};

#pragma unroll
        for (int step = 0; step < 2; step++) {
            uint4 v[T][2];
            uint2 b[T];

#pragma unroll
            for (int n = 0; n < T; n++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint8_t *at =
                        s.v[tile + n] + t * D::v_piece + ((step * 2 + half) * D::dims + dim_of<D>(j)) * 4;

                    if (D::mt == 1) {
                        uint2 two = *(const uint2 *)at;

                        v[n][half] = make_uint4(two.x, two.y, 0, 0);
                    } else {
                        v[n][half] = *(const uint4 *)at;
                    }
                }
                b[n] = *(const uint2 *)(s.codes[tile + n][query_multiplied<D>(g)] + t * 16 + step * 8);
            }
#pragma unroll
            for (int n = 0; n < T; n++) {
                uint32_t a0[4] = {v[n][0].x, v[n][0].y, v[n][1].x, v[n][1].y},
                         a1[4] = {v[n][0].z, v[n][0].w, v[n][1].z, v[n][1].w};

                bt_mma_su8(dot[n][0], a0, b[n].x, b[n].y);
                if (D::mt > 1) {
                    bt_mma_su8(dot[n][pair - 1], a1, b[n].x, b[n].y);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < T; n++) {
            float4 change = *(const float4 *)&s.change[tile + n][query_multiplied<D>(t * 2)];

#pragma unroll
            for (int k = 0; k < pair; k++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &to = acc[j + k][i];

                    to = fmaf(i % 2 == 0 ? change.x : change.z, (float)dot[n][k][i],
                              to * (i % 2 == 0 ? change.y : change.w));
                }
            }
        }
    }
}
