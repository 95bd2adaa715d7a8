// What a warp of attention_stream.cuh computes of a tile: scores, weights, values.
#pragma once

#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/prompt_softmax.cuh"

// What a warp knows of the (sequence, KV head) in hand.
template <typename D> struct stream_state {
    uint4 q[D::steps / 2];                   // B of the scores
    float acc[D::steps][2][2 * D::halves];   // of the split: 32 dims each, two of a lane's tiles of 16, [row][column]
    float total[D::steps][2][2 * D::halves]; // of all splits so far
    float m, factor;                         // of the query that the lane owns
    float minus_factor[2];                   // −factor / 256 of the lane's two
    float total_m[2], l[D::pairs], total_l[D::pairs], total_lm[D::pairs];
    bool odd;      // it owns its second query
    bool ordinary; // all factors are such as stream_weigh knows
};

// A tile's weights.
typedef struct {
    float corr[2], scale[2]; // of the lane's two queries
} stream_change;

// Lanes with the same two queries halve them between themselves: the largest of each over all keys, for the one that a lane owns.
template <typename D>
static __device__ __forceinline__ float
stream_own_max(bool odd, float first, float second)
{
    const int owner = D::halves == 2 ? 4 : 2;
    float keep = odd ? second : first;

    keep = larger(keep, __shfl_xor_sync(0xffffffffu, odd ? first : second, owner));
#pragma unroll
    for (int i = owner * 2; i < 32; i *= 2) {
        keep = larger(keep, __shfl_xor_sync(0xffffffffu, keep, i));
    }
    return keep;
}

// The owners' numbers to both queries of a lane.
template <typename D>
static __device__ __forceinline__ void
stream_share(bool odd, float own, float both[2])
{
    float other = __shfl_xor_sync(0xffffffffu, own, D::halves == 2 ? 4 : 2);

    both[0] = odd ? other : own;
    both[1] = odd ? own : other;
}

// Of the lane's numbers for its two queries those of the queries of its pairs (l): query lane / 16 + 2 n.
template <typename D>
static __device__ __forceinline__ void
stream_to_pairs(const float both[2], float of[D::pairs])
{
    uint32_t lane = threadIdx.x % 32;
    float mine = lane < 16 ? both[0] : both[1];

#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        of[n] = __shfl_sync(0xffffffffu, mine, (lane & 16) + n);
    }
}

// Queries of a (sequence, KV head) that are ready: B of the scores, and the factors.
template <typename D>
static __device__ __forceinline__ void
stream_open(const attention_call &c, const stream_warp<D> &s, stream_state<D> &q)
{
    uint32_t lane = threadIdx.x % 32, column = lane / 4 % D::columns;
    const int8_t *q8 = (const int8_t *)s.p + column * D::dims + lane % 4 * 16;
    float factor[2];
    bool strange = c.a.softcap > 0;

#pragma unroll
    for (int p = 0; p < D::steps / 2; p++) {
        q.q[p] = *(const uint4 *)(q8 + p * 64);
    }
#pragma unroll
    for (int col = 0; col < 2; col++) {
        float w = s.q_scale[stream_query<D>(col)];

        factor[col] = (c.a.softcap > 0 ? 1.0f : w) * BT_LOG2_E;
        q.minus_factor[col] = -factor[col] * 0x1p-8f;
        strange |= !((w > 0x1p-60f && w < 0x1p60f) || w == 0.0f); // (of a column without a query: 0)
    }
    q.odd = (lane & (D::halves == 2 ? 4 : 2)) != 0;
    q.factor = q.odd ? factor[1] : factor[0];
    q.ordinary = !__any_sync(0xffffffffu, strange);
    __syncwarp(); // all have the codes: weights lie there now
}

// What begins at BT_ROUND_MAGIC's bits is, read as a float, that number and the dot. (Products in an order in which neighbours do not wait
// for each other.)
template <typename D>
static __device__ __forceinline__ void
stream_dots(const stream_warp<D> &s, const stream_state<D> &q, uint32_t slot, int32_t dot[4][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint8_t *k = s.tile[slot] + g / 2 * 4 * D::dims + (g & 1) * stream_place<D>(32) + t * 16;

#pragma unroll
    for (int i = 0; i < 16; i++) {
        dot[i / 4][i % 4] = BT_ROUND_MAGIC_BITS;
    }
#pragma unroll
    for (int p = 0; p < D::steps / 2; p++) {
        uint4 low[4], high[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = *(const uint4 *)(k + i * D::dims + p * 64);
            high[i] = *(const uint4 *)(k + (16 + i) * D::dims + p * 64);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[4] = {low[i].x, high[i].x, low[i].y, high[i].y};

            bt_mma_s8(dot[i], a, q.q[p].x, q.q[p].y);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[4] = {low[i].z, high[i].z, low[i].w, high[i].w};

            bt_mma_s8(dot[i], a, q.q[p].z, q.q[p].w);
        }
    }
}

// Scales of the keys that a lane weighs.
template <typename D> struct stream_scales {
    float k[D::halves][4], v[D::halves][4];
};

// Returns whether one of the warp's is NaN. MASKED: those of keys that are not seen are 0.
template <typename D, bool MASKED>
static __device__ __forceinline__ bool
stream_read_scales(const stream_warp<D> &s, const decode_unit &u, uint32_t slot, uint32_t tile, stream_scales<D> &to)
{
    bool poison = false;

#pragma unroll
    for (int h = 0; h < D::halves; h++) {
        uint32_t keys = stream_keys<D>(h) * 4;
        uint2 k = *(const uint2 *)&s.scales[slot][0][keys], v = *(const uint2 *)&s.scales[slot][1][keys];
        const uint32_t words[4] = {k.x, k.y, v.x, v.y};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *at = i < 2 ? &to.k[h][i * 2] : &to.v[h][i * 2 - 4];
            uint32_t key = tile + keys + i % 2 * 2;
            float2 two = __half22float2(*(const __half2 *)&words[i]);

            at[0] = !MASKED || (key >= u.begin && key < u.end) ? two.x : 0.0f;
            at[1] = !MASKED || (key + 1 >= u.begin && key + 1 < u.end) ? two.y : 0.0f;
        }
        // (no scale is negative or infinite: a sum of them is NaN where one of them is)
        poison |= isnan(((to.k[h][0] + to.k[h][1]) + (to.k[h][2] + to.k[h][3])) +
                        ((to.v[h][0] + to.v[h][1]) + (to.v[h][2] + to.v[h][3])));
    }
    return __any_sync(0xffffffffu, poison);
}

// dot · scale_k, rounded once: BT_ROUND_MAGIC · scale_k is exact.
template <typename D>
static __device__ __forceinline__ void
stream_scores(const int32_t dot[4][4], const stream_scales<D> &scales, float x[D::halves][2][4])
{
    bool upper = threadIdx.x % 4 >= 2;

#pragma unroll
    for (int h = 0; h < D::halves; h++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float magic = -BT_ROUND_MAGIC * scales.k[h][i];

#pragma unroll
            for (int col = 0; col < 2; col++) {
                int32_t sum = D::halves == 2 ? dot[i][h * 2 + col] : upper ? dot[i][2 + col] : dot[i][col];

                x[h][col][i] = fmaf(__int_as_float(sum), scales.k[h][i], magic);
            }
        }
    }
}

static __device__ __forceinline__ bool
stream_sees(const decode_unit &u, uint32_t key)
{
    return key >= u.begin && key < u.end;
}

// The weights of a group of four keys and a query, where the sums of l are made of them.
template <typename D>
static __device__ __forceinline__ void
stream_put_weights(stream_warp<D> &s, int half, int col, const float p[4])
{
    uint32_t keys = stream_keys<D>(half);

    *(float4 *)&s.p[stream_row<D>(stream_query<D>(col))][keys * 4 + keys / 8 * 8] = make_float4(p[0], p[1], p[2], p[3]);
}

template <typename D>
static __device__ __forceinline__ void
stream_put_codes(stream_warp<D> &s, int half, int col, uint32_t word)
{
    *(uint32_t *)&s.codes[stream_row<D>(stream_query<D>(col))][stream_keys<D>(half) * 4] = word;
}

// The largest score of the lane's own query, as m has it. Where every number is an ordinary one:
template <typename D, bool MASKED>
static __device__ __forceinline__ float
stream_most(const stream_state<D> &q, const decode_unit &u, uint32_t tile, const float x[D::halves][2][4])
{
    float largest[2];

#pragma unroll
    for (int col = 0; col < 2; col++) {
        largest[col] = -INFINITY;
#pragma unroll
        for (int h = 0; h < D::halves; h++) {
            float y[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[i] = !MASKED || stream_sees(u, tile + stream_keys<D>(h) * 4 + i) ? x[h][col][i] : -INFINITY;
            }
            largest[col] = larger(largest[col], larger(larger(y[0], y[1]), larger(y[2], y[3])));
        }
    }
    return q.factor * stream_own_max<D>(q.odd, largest[0], largest[1]);
}

// From scores to codes where every number is an ordinary one. m: the largest of all tiles so far, q.m that of those before.
template <typename D, bool MASKED>
static __device__ __forceinline__ void
stream_weigh(stream_warp<D> &s, const stream_state<D> &q, const decode_unit &u, uint32_t tile, float m,
             const stream_scales<D> &scales, float x[D::halves][2][4], stream_change &out)
{
    float most[2] = {0.0f, 0.0f}, both[2], scale, inverse;

    stream_share<D>(q.odd, m * 0x1p-8f, both);
    stream_share<D>(q.odd, prompt_power(bt_mul_sat(q.m - m, -0x1p-8f)), out.corr);
#pragma unroll
    for (int h = 0; h < D::halves; h++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            float *p = x[h][col];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[i] = prompt_power(bt_fma_sat(p[i], q.minus_factor[col], both[col]));
                p[i] = !MASKED || stream_sees(u, tile + stream_keys<D>(h) * 4 + i) ? p[i] : 0.0f;
            }
            stream_put_weights<D>(s, h, col, p);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[i] *= scales.v[h][i];
            }
            most[col] = larger(most[col], larger(larger(p[0], p[1]), larger(p[2], p[3])));
        }
    }
    scale = prompt_scale_of(stream_own_max<D>(q.odd, most[0], most[1]), &inverse);
    stream_share<D>(q.odd, inverse, both);
    stream_share<D>(q.odd, scale, out.scale);
#pragma unroll
    for (int h = 0; h < D::halves; h++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            const float *p = x[h][col];

            stream_put_codes<D>(s, h, col,
                                __byte_perm(prompt_two_codes(p[0] * both[col], p[1] * both[col]),
                                            prompt_two_codes(p[2] * both[col], p[3] * both[col]), 0x5410));
        }
    }
}

// A tile with any numbers: what is known of it, and what becomes of that. `m` is the largest of the tiles before, then of all so far; `most`
// the largest of this one.
template <typename D> struct stream_any {
    float x[D::halves][2][4], m, most, factor;
    stream_scales<D> scales;
    stream_change change;
    bool odd;
};

// `most`; with a softcap x becomes what that makes of it. These two are out of line: they would lie within the loop over tiles.
template <typename D>
static __device__ __noinline__ void
stream_most_any(const attention_call &c, const stream_warp<D> &s, const decode_unit &u, uint32_t tile, stream_any<D> &a)
{
    float largest[2] = {-INFINITY, -INFINITY};

#pragma unroll
    for (int n = 0; n < D::halves * 8; n++) {
        int h = n / 8, col = n / 4 % 2, i = n % 4;
        float &y = a.x[h][col][i];

        y = c.a.softcap > 0 ? bt_ref_softcap(y * s.q_scale[stream_query<D>(col)], c.a.softcap) : y;
        largest[col] = stream_sees(u, tile + stream_keys<D>(h) * 4 + i) ? larger(largest[col], y) : largest[col];
    }
    a.most = a.factor * stream_own_max<D>(a.odd, largest[0], largest[1]);
}

// stream_weigh for any numbers, in the specification's own steps.
template <typename D>
static __device__ __noinline__ void
stream_weigh_any(const attention_call &c, stream_warp<D> &s, const decode_unit &u, uint32_t tile, stream_any<D> &a)
{
    float m[2], most[2] = {0.0f, 0.0f}, own_m = larger(a.m, a.most);
    bool poison = false;

#pragma unroll
    for (int n = 0; n < D::halves * 4; n++) {
        poison |= isnan(a.scales.v[n / 4][n % 4]);
    }
    poison = __any_sync(0xffffffffu, poison);
    stream_share<D>(a.odd, own_m, m);
    stream_share<D>(a.odd, exp2_of(a.m - own_m), a.change.corr);
    a.m = own_m;
#pragma unroll
    for (int h = 0; h < D::halves; h++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            float *p = a.x[h][col], factor = (c.a.softcap > 0 ? 1.0f : s.q_scale[stream_query<D>(col)]) * BT_LOG2_E;

#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool seen = stream_sees(u, tile + stream_keys<D>(h) * 4 + i);

                p[i] = seen ? exp2_of(bt_min_nan(fmaf(p[i], factor, -m[col]), 0.0f)) : 0.0f;
            }
            stream_put_weights<D>(s, h, col, p);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[i] *= a.scales.v[h][i];
                most[col] = larger(most[col], p[i]);
            }
        }
    }
    stream_share<D>(a.odd, stream_own_max<D>(a.odd, most[0], most[1]), most);
#pragma unroll
    for (int col = 0; col < 2; col++) {
        float scale = poison ? NAN : most[col] / 255.0f, inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;

        a.change.scale[col] = scale;
#pragma unroll
        for (int h = 0; h < D::halves; h++) {
            uint32_t word = 0;

#pragma unroll
            for (int i = 0; i < 4; i++) { // (no code is below 0; that of a NaN is 0)
                float code = fmaxf(a.x[h][col][i] * inverse, 0.0f) + BT_ROUND_MAGIC;

                word |= (__float_as_uint(code) & 255) << (8 * i);
            }
            stream_put_codes<D>(s, h, col, word);
        }
    }
}

template <typename D>
static __device__ __forceinline__ stream_any<D>
stream_any_of(const stream_state<D> &q, const float x[D::halves][2][4], const stream_scales<D> &scales)
{
    stream_any<D> a;

#pragma unroll
    for (int n = 0; n < D::halves * 8; n++) {
        a.x[n / 8][n / 4 % 2][n % 4] = x[n / 8][n / 4 % 2][n % 4];
    }
    a.m = q.m, a.factor = q.factor, a.odd = q.odd, a.scales = scales;
    return a;
}

// The sum of the tile's weights that l of a lane's n-th pair takes, of what stream_put_weights has put down.
template <typename D>
static __device__ __forceinline__ float
stream_sum(const stream_warp<D> &s, int n)
{
    uint32_t lane = threadIdx.x % 32;
    const float *p = s.p[stream_row<D>(lane / 16 + 2 * (uint32_t)n)] + lane % 16;

    return ((p[0] + p[16]) + p[32 + 8]) + p[48 + 8];
}

// l of the lane's pairs, of what stream_put_weights has put down.
template <typename D>
static __device__ __forceinline__ void
stream_add_sums(const stream_warp<D> &s, stream_state<D> &q, const float corr[2])
{
    float of[D::pairs];

    stream_to_pairs<D>(corr, of);
#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        q.l[n] = fmaf(q.l[n], of[n], stream_sum<D>(s, n));
    }
}

// acc = fma(scale, codes · v, acc · corr).
template <typename D>
static __device__ __forceinline__ void
stream_values(const stream_warp<D> &s, stream_state<D> &q, uint32_t slot, const stream_change &change)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint8_t *v = s.tile[slot] + stream_place<D>(t * 16) + g * 16;
    const uint8_t *codes = s.codes[stream_row<D>(D::columns == 4 ? g % 4 : g)] + t * 16;
    uint4 b = *(const uint4 *)codes; // of both steps of 32 keys
    bool upper = t >= 2;

#pragma unroll
    for (int first = 0; first < D::steps; first += 2) {
        int32_t dot[2][2][4];
        uint4 a[2][2][2]; // 32 dims, step, four keys

#pragma unroll
        for (int i = 0; i < 16; i++) {
            dot[i / 8][i / 4 % 2][i % 4] = BT_ROUND_MAGIC_BITS;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            a[i / 4][i / 2 % 2][i % 2] = *(const uint4 *)(v + (i % 4 * D::dims + (first + i / 4) * 32) * 4);
        }
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint4 &low = a[j][step][0], &high = a[j][step][1];
                uint32_t a0[4] = {low.x, low.y, high.x, high.y}, a1[4] = {low.z, low.w, high.z, high.w};

                bt_mma_su8(dot[j][0], a0, step == 0 ? b.x : b.z, step == 0 ? b.y : b.w);
                bt_mma_su8(dot[j][1], a1, step == 0 ? b.x : b.z, step == 0 ? b.y : b.w);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int n = 0; n < 4 * D::halves; n++) {
                int tile = n / (2 * D::halves), i = n % (2 * D::halves);
                const int32_t *from = dot[j][tile];
                float &to = q.acc[first + j][tile][i];
                int32_t sum = D::halves == 2 ? from[i] : upper ? from[2 + i % 2] : from[i % 2];

                to = fmaf(change.scale[i % 2], __int_as_float(sum) - BT_ROUND_MAGIC, to * change.corr[i % 2]);
            }
        }
    }
}

// The dim of q.acc[j][tile][i].
template <typename D>
static __device__ __forceinline__ uint32_t
stream_dim(int j, int tile, int i)
{
    uint32_t g = threadIdx.x % 32 / 4, row = D::halves == 2 ? (uint32_t)i / 2 : threadIdx.x % 4 / 2;

    return (uint32_t)j * 32 + g * 4 + (uint32_t)tile * 2 + row;
}
