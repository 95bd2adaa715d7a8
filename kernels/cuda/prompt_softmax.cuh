// The softmax of one warp's 16 rows and a tile of 64 keys, in as few instructions as give the bits of kernels/cpu/ref/attention.h.
//
// A lane has rows g and g + 8 and of each the keys 16 i + 4t + b (score tile j = 2 i + b / 2, register b % 2 + 2 · row half). How each
// number of the specification comes about:
//   u      the products start at BT_ROUND_MAGIC's bits, so the register is the float MAGIC + dot (|dot| < 2^22), and
//          u = fma(MAGIC + dot, scale, −MAGIC · scale): MAGIC · scale is exact (fp16 scale), so this rounds dot · scale once.
//   x ≤ 0  y = −x / 256 = fma(u, −w / 256, m / 256), within 0 … 1 by the instruction's own saturation. Powers of two change no rounding;
//          below −256 2^x is 0, as it is below −151.
//   2^x    fma(f, q, 1) gets its exponent by an addition to its bits, 2^64 too large, and a product by 2^-64 rounds it into the
//          subnormals once, as the specification's two products do; whatever the addition made of n < −190 is negative or no
//          number, and saturation makes 0 of it.
//   codes  two a chain: the odd one rounded to a multiple of 256, both added by one magic number.
// Rows whose w is no ordinary number, tiles with a scale that is none and softcaps go by prompt_weigh_any, which is the
// specification line by line.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

#define PROMPT_BIAS 64
#define PROMPT_SHIFTED (BT_ROUND_MAGIC + PROMPT_BIAS)

typedef struct {
    __align__(16) float k[64];
    float k_magic[64]; // −BT_ROUND_MAGIC · k (squad_softmax.cuh has its own there, and in minus_w)
    float v[64];
} prompt_scales;

// The keys that a row sees: prompt_first … end − 1.
typedef struct {
    uint32_t end, window;
} prompt_row;

static __device__ __forceinline__ uint32_t
prompt_first(const prompt_row &row)
{
    return row.window == 0 || row.end <= row.window ? 0 : row.end - row.window;
}

// Which of the block's rows is the lane's row of half h.
static __device__ __forceinline__ uint32_t
prompt_row_index(int h)
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + h * 8;
}

// A lane's part of the softmax: its own row (g, t odd: g + 8) and both rows.
typedef struct {
    float w, m;       // own
    float minus_w[2]; // −w / 256
    float l[2][4];
    bool odd;
} prompt_state;

// What a tile leaves for its values.
typedef struct {
    uint32_t low[2][4], high[2][4]; // codes: A of both steps of 32 keys, the lower and the upper two bytes of each word
    float corr[2], scale[2];
} prompt_weights;

// Where a byte of a key's row lies: 64-byte halves change places by turns, so that eight lanes that read two neighbouring keys meet no bank twice.
template <int DIM>
static __device__ __forceinline__ uint32_t
prompt_k_at(uint32_t key, uint32_t byte)
{
    return DIM >= 128 ? byte ^ (key % 2 * 64) : byte;
}

// The larger of both rows' lanes, each for the row that the lane owns.
static __device__ __forceinline__ float
prompt_own_max(bool odd, float low, float high)
{
    float keep = odd ? high : low;

    keep = fmaxf(keep, __shfl_xor_sync(0xffffffffu, odd ? low : high, 1));
    return fmaxf(keep, __shfl_xor_sync(0xffffffffu, keep, 2));
}

// The owners' numbers to both rows of a lane.
static __device__ __forceinline__ void
prompt_share(bool odd, float own, float both[2])
{
    float other = __shfl_xor_sync(0xffffffffu, own, 1);

    both[0] = odd ? other : own;
    both[1] = odd ? own : other;
}

// scale = most / 255 and its reciprocal, as IEEE has them: away from the ends of the range by a corrected product each (checked over all mantissas).
static __device__ __forceinline__ float
prompt_scale_of(float most, float *inverse)
{
    float scale;

    if (most > 0x1p-100f && most < 0x1p100f) {
        const float part = 1.0f / 255.0f;
        float q = most * part, r;

        scale = fmaf(fmaf(-255.0f, q, most), part, q);
        r = bt_reciprocal(scale);
        *inverse = fmaf(r, fmaf(-scale, r, 1.0f), r);
    } else {
        scale = most / 255.0f;
        *inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
    }
    return scale;
}

// Two weights' codes as bytes 0 and 1.
static __device__ __forceinline__ uint32_t
prompt_two_codes(float low, float high)
{
    const float magic = 256.0f * BT_ROUND_MAGIC;
    float shifted = fmaf(high, 256.0f, magic) - (magic - BT_ROUND_MAGIC);

    return __float_as_uint(low + shifted);
}

static __device__ __forceinline__ float
prompt_power(float y)
{
    float shifted = fmaf(y, -256.0f, PROMPT_SHIFTED), f = fmaf(y, -256.0f, -(shifted - PROMPT_SHIFTED));
    float q = fmaf(f, BT_EXP2_C5, BT_EXP2_C4), r;

    q = fmaf(f, q, BT_EXP2_C3);
    q = fmaf(f, q, BT_EXP2_C2);
    q = fmaf(f, q, BT_EXP2_C1);
    r = fmaf(f, q, 1.0f);
    return bt_mul_sat(__uint_as_float(__float_as_uint(r) + (__float_as_uint(shifted) << 23)), 0x1p-64f);
}

// Element (row half h, key 16 i + 4t + b) of u.
static __device__ __forceinline__ float &
prompt_at(float u[8][4], int h, int i, int b)
{
    return u[i * 2 + b / 2][h * 2 + b % 2];
}

// The sum of the lane's four p that go to lane-sum b of a row: in the specification's order.
static __device__ __forceinline__ float
prompt_four(float u[8][4], int h, int b)
{
    return ((prompt_at(u, h, 0, b) + prompt_at(u, h, 1, b)) + prompt_at(u, h, 2, b)) + prompt_at(u, h, 3, b);
}

// l, from all p of a tile.
static __device__ __forceinline__ void
prompt_add_sums(prompt_state &s, float u[8][4], const float corr[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int b = 0; b < 4; b++) {
            s.l[h][b] = fmaf(s.l[h][b], corr[h], prompt_four(u, h, b));
        }
    }
}

// Does the row see key `off` of the lane's own, which begin at `from`?
static __device__ __forceinline__ bool
prompt_sees(const prompt_row &row, uint32_t from, int off)
{
    return off >= (int)(prompt_first(row) - from) && off < (int)(row.end - from);
}

static __device__ __forceinline__ bool
prompt_sees_some(const prompt_row &row, uint32_t tile)
{
    return prompt_first(row) < tile + 64 && row.end > tile;
}

// u of all of the lane's keys, from products as they come: those of an m16n8 tile are four neighbours.
static __device__ __forceinline__ void
prompt_scores(const prompt_scales &scales, const int32_t *dot, float u[8][4])
{
    uint32_t t = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 k4 = *(const float4 *)(scales.k + i * 16 + t * 4),
               m4 = *(const float4 *)(scales.k_magic + i * 16 + t * 4);
        float k[4] = {k4.x, k4.y, k4.z, k4.w}, start[4] = {m4.x, m4.y, m4.z, m4.w};

#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int b = 0; b < 4; b++) {
                prompt_at(u, h, i, b) = fmaf(__int_as_float(dot[(i * 2 + b / 2) * 4 + h * 2 + b % 2]), k[b], start[b]);
            }
        }
    }
}

// The largest of the lane's sixteen of a row.
static __device__ __forceinline__ float
prompt_largest(float u[8][4], int h)
{
    float max[4];

#pragma unroll
    for (int b = 0; b < 4; b++) {
        max[b] = fmaxf(fmaxf(prompt_at(u, h, 0, b), prompt_at(u, h, 1, b)),
                       fmaxf(prompt_at(u, h, 2, b), prompt_at(u, h, 3, b)));
    }
    return fmaxf(fmaxf(max[0], max[1]), fmaxf(max[2], max[3]));
}

// From products to codes where every number is an ordinary one. MASKED: some row does not see all keys. What it does not see is −inf, of
// which y = 1 and p = 0; only a row that has seen nothing of its split yet (m = −inf) gets nonsense here, which its first tile's
// corr = 0 takes away.
template <bool MASKED>
static __device__ __forceinline__ void
prompt_weigh(prompt_state &s, const prompt_scales &scales, const prompt_row rows[2], uint32_t tile,
             const int32_t dot[8][4], prompt_weights &out)
{
    uint32_t t = threadIdx.x % 4;
    float u[8][4], largest[2], most[2] = {0.0f, 0.0f}, m, corr, both[2], scale, inverse;
    bool here = !MASKED || (s.odd ? prompt_sees_some(rows[1], tile) : prompt_sees_some(rows[0], tile));

    prompt_scores(scales, &dot[0][0], u);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int j = 0; MASKED && j < 16; j++) {
            float &x = prompt_at(u, h, j % 4, j / 4);

            x = prompt_sees(rows[h], tile + t * 4, j % 4 * 16 + j / 4) ? x : -INFINITY;
        }
        largest[h] = prompt_largest(u, h);
    }
    m = fmaxf(s.m, s.w * prompt_own_max(s.odd, largest[0], largest[1]));
    corr = prompt_power(bt_mul_sat(s.m - m, -0x1p-8f));
    corr = here ? corr : 1.0f;
    s.m = m;
    prompt_share(s.odd, corr, out.corr);
    prompt_share(s.odd, m * 0x1p-8f, both);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int b = 0; b < 4; b++) {
                float &x = prompt_at(u, h, i, b);

                x = prompt_power(bt_fma_sat(x, s.minus_w[h], both[h]));
            }
        }
    }
    prompt_add_sums(s, u, out.corr);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 v4 = *(const float4 *)(scales.v + i * 16 + t * 4);
        float v[4] = {v4.x, v4.y, v4.z, v4.w};

#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int b = 0; b < 4; b++) {
                float &p = prompt_at(u, h, i, b);

                p = p * v[b];
            }
            most[h] = fmaxf(most[h], fmaxf(fmaxf(prompt_at(u, h, i, 0), prompt_at(u, h, i, 1)),
                                           fmaxf(prompt_at(u, h, i, 2), prompt_at(u, h, i, 3))));
        }
    }
    scale = prompt_scale_of(prompt_own_max(s.odd, most[0], most[1]), &inverse);
    prompt_share(s.odd, inverse, both);
    prompt_share(s.odd, here ? scale : -0.0f, out.scale); // −0 · 0 + acc is acc, whatever its sign
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t low = prompt_two_codes(prompt_at(u, h, i, 0) * both[h], prompt_at(u, h, i, 1) * both[h]);
            uint32_t high = prompt_two_codes(prompt_at(u, h, i, 2) * both[h], prompt_at(u, h, i, 3) * both[h]);

            out.low[i / 2][i % 2 * 2 + h] = low, out.high[i / 2][i % 2 * 2 + h] = high;
        }
    }
}

// The same for any numbers, in the specification's own steps. K's scales are scales.k · unit, a power of two.
static __device__ __forceinline__ void
prompt_weigh_any(prompt_state &s, const prompt_scales &scales, float unit, float softcap, const prompt_row rows[2],
                 uint32_t tile, const int32_t dot[8][4], prompt_weights &out)
{
    uint32_t t = threadIdx.x % 4;
    float u[8][4], own_m[2], w[2], corr[2], scale[2];

    prompt_share(s.odd, s.m, own_m);
    prompt_share(s.odd, s.w, w);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float largest = -INFINITY, most = 0.0f, inverse, before = own_m[h], m;
        float factor = softcap > 0 ? w[h] : 1.0f, power = softcap > 0 ? BT_LOG2_E : w[h];
        bool poison = false, here = prompt_sees_some(rows[h], tile);

#pragma unroll
        for (int j = 0; j < 16; j++) {
            uint32_t in_tile = (uint32_t)j / 4 * 16 + t * 4 + j % 4;
            float sum = __int_as_float(dot[j / 4 * 2 + j % 4 / 2][h * 2 + j % 2]) - BT_ROUND_MAGIC;
            float &x = prompt_at(u, h, j / 4, j % 4);

            x = fmaf(sum, scales.k[in_tile] * unit, 0.0f);
            x = softcap > 0 ? bt_ref_softcap(x * factor, softcap) : x;
            largest = prompt_sees(rows[h], tile, (int)in_tile) && x > largest ? x : largest;
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = power * fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        m = here && largest > before ? largest : before;
        corr[h] = here ? bt_ref_exp2(before - m) : 1.0f;
        own_m[h] = m;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            uint32_t in_tile = (uint32_t)j / 4 * 16 + t * 4 + j % 4;
            float &p = prompt_at(u, h, j / 4, j % 4), x = fmaf(p, power, -m), weight, scale_v = scales.v[in_tile];
            bool visible = prompt_sees(rows[h], tile, (int)in_tile);

            p = visible ? bt_ref_exp2(x > 0.0f ? 0.0f : x) : 0.0f;
            weight = visible ? p * scale_v : 0.0f;
            poison |= visible && isnan(scale_v);
            most = weight > most ? weight : most;
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        poison = (__ballot_sync(0xffffffffu, poison) >> (threadIdx.x % 32 / 4 * 4) & 15) != 0;
        scale[h] = poison ? NAN : most / 255.0f;
        inverse = scale[h] >= 0x1p-126f ? 1.0f / scale[h] : 0.0f;
        out.corr[h] = corr[h], out.scale[h] = here ? scale[h] : -0.0f;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            s.l[h][b] = here ? fmaf(s.l[h][b], corr[h], prompt_four(u, h, b)) : s.l[h][b];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t word = 0;

#pragma unroll
            for (int b = 0; b < 4; b++) {
                uint32_t in_tile = i * 16 + t * 4 + b;
                bool visible = prompt_sees(rows[h], tile, (int)in_tile);
                float code = (visible ? prompt_at(u, h, i, b) * scales.v[in_tile] : 0.0f) * inverse;

                word |= (isnan(code) ? 0 : (uint32_t)(int32_t)((code + BT_ROUND_MAGIC) - BT_ROUND_MAGIC) & 255)
                        << (8 * b);
            }
            out.low[i / 2][i % 2 * 2 + h] = word, out.high[i / 2][i % 2 * 2 + h] = word >> 16;
        }
    }
    s.m = s.odd ? own_m[1] : own_m[0];
}
