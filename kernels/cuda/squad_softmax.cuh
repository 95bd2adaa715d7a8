// The softmax of prompt_softmax.cuh in fewer instructions yet, for products of a warpgroup (attention_squad.cu): about 17 a score.
//
//   u      a warpgroup's products cannot start from a number of each thread's own without moves. They start from SQUAD_BIAS instead, one product
//          more: no sum is negative then, and the bits of one below 2^23 are those of the float sum · 2^-149. So u · 2^-39 =
//          fma(bits, scale · 2^110, −SQUAD_BIAS · 2^-39 · scale). SQUAD_BIAS is 8065 · 256, so that SQUAD_BIAS · scale (fp16) is exact and
//          this rounds dot · scale once; it is at least 128 · 127², the most that Q · K can be. Everything else is a power of two elsewhere.
//   2^x    y = −x / 128, within 0 … 1, so x is −128 where it is less, and 2^(x + 64) needs no more than an addition to its exponent. What
//          should be less than 2^-128, or 0, is 2^-128: too little to be seen beside a score of the tile that is 2^-60 at least, in l as in
//          codes (where V's scales are above 0: they differ by less than 2^40). Other tiles, and those with masks, take prompt_power.
//          l is kept times 2^64, too (so that its lanes never become subnormal, which is too little to be seen), and the scale of the codes is
//          taken down by 2^-64.
//   codes  rounded and packed two by two by one instruction.
#pragma once

#include "kernels/cuda/squad_load.cuh"

#define SQUAD_LEAST -60.0f

// What a tile leaves for its values.
typedef struct {
    uint32_t codes[2][4]; // A of both steps of 32 keys
    float corr[2], scale[2];
} squad_weights;

// 2^(64 − 128 y)
static __device__ __forceinline__ float
squad_power(float y)
{
    float shifted = fmaf(y, -128.0f, PROMPT_SHIFTED), f = fmaf(y, -128.0f, -(shifted - PROMPT_SHIFTED));
    float q = fmaf(f, BT_EXP2_C5, BT_EXP2_C4), r;

    q = fmaf(f, q, BT_EXP2_C3);
    q = fmaf(f, q, BT_EXP2_C2);
    q = fmaf(f, q, BT_EXP2_C1);
    r = fmaf(f, q, 1.0f);
    return __uint_as_float(__float_as_uint(r) + (__float_as_uint(shifted) << 23));
}

// What a row does not see is −inf.
static __device__ __forceinline__ void
squad_mask(const prompt_row rows[2], uint32_t tile, float u[8][4])
{
    uint32_t t = threadIdx.x % 4;

#pragma unroll
    for (int j = 0; j < 32; j++) {
        float &x = prompt_at(u, j / 16, j / 4 % 4, j % 4);

        x = prompt_sees(rows[j / 16], tile + t * 4, j / 4 % 4 * 16 + j % 4) ? x : -INFINITY;
    }
}

static __device__ __forceinline__ void
squad_scale_sums(prompt_state &s, float by)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        s.l[i / 4][i % 4] *= by;
    }
}

// p for u, times 2^64 where `near`, and l, always times 2^64.
static __device__ __forceinline__ void
squad_powers(prompt_state &s, const float m[2], bool near, const float corr[2], float u[8][4])
{
    if (__builtin_expect(near, 1)) {
#pragma unroll
        for (int j = 0; j < 32; j++) {
            int h = j / 4 % 2;
            float &x = prompt_at(u, h, j / 8, j % 4);

            x = squad_power(bt_fma_sat(x, s.minus_w[h], m[h]));
        }
        prompt_add_sums(s, u, corr);
    } else {
        squad_scale_sums(s, 0x1p-64f);
#pragma unroll
        for (int j = 0; j < 32; j++) {
            int h = j / 4 % 2;
            float &x = prompt_at(u, h, j / 8, j % 4);

            x = prompt_power(bt_fma_sat(x, s.minus_w[h] * 0.5f, m[h] * 0.5f));
        }
        prompt_add_sums(s, u, corr);
        squad_scale_sums(s, 0x1p64f);
    }
}

// The largest of numbers that are 0 or more, by their bits.
static __device__ __forceinline__ float
squad_max3(float a, float b, float c)
{
    return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}

// p · scale_v for p, and codes.
static __device__ __forceinline__ void
squad_codes(const prompt_state &s, const prompt_scales &scales, bool here, float down, float u[8][4],
            squad_weights &out)
{
    uint32_t t = threadIdx.x % 4;
    float most[2] = {0.0f, 0.0f}, scale, inverse, both[2];

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
            most[h] = squad_max3(squad_max3(most[h], prompt_at(u, h, i, 0), prompt_at(u, h, i, 1)),
                                 prompt_at(u, h, i, 2), prompt_at(u, h, i, 3));
        }
    }
    scale = prompt_scale_of(prompt_own_max(s.odd, most[0], most[1]), &inverse) * down;
    prompt_share(s.odd, inverse, both);
    prompt_share(s.odd, here ? scale : -0.0f, out.scale); // −0 · 0 + acc is acc, whatever its sign
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            out.codes[i / 2][i % 2 * 2 + h] =
                bt_round_u8(prompt_at(u, h, i, 0) * both[h], prompt_at(u, h, i, 1) * both[h],
                            prompt_at(u, h, i, 2) * both[h], prompt_at(u, h, i, 3) * both[h]);
        }
    }
}

// From products to codes. state.minus_w is −w · 2^39 / 128. `whole`: all rows see all keys. `even`: all scales are numbers and V's above 0;
// without it they are numbers.
static __device__ __forceinline__ void
squad_weigh(prompt_state &s, const prompt_scales &scales, const prompt_row rows[2], uint32_t tile, bool whole,
            bool even, const int32_t dot[32], squad_weights &out)
{
    bool here = true, near;
    float u[8][4], w = s.w * 0x1p39f, most[2], largest, m, corr, both[2], down;

    if (__builtin_expect(whole, 1)) {  // (twice, so that maxima lie among the scores)
        prompt_scores(scales, dot, u); // times 2^-39
        most[0] = prompt_largest(u, 0), most[1] = prompt_largest(u, 1);
    } else {
        int32_t same[32];

#pragma unroll
        for (int i = 0; i < 32; i++) {
            same[i] = dot[i];
            asm volatile("" : "+r"(same[i])); // (or the compiler makes one of both)
        }
        here = s.odd ? prompt_sees_some(rows[1], tile) : prompt_sees_some(rows[0], tile);
        prompt_scores(scales, same, u);
        squad_mask(rows, tile, u);
        most[0] = prompt_largest(u, 0), most[1] = prompt_largest(u, 1);
    }
    largest = prompt_own_max(s.odd, most[0], most[1]);
    m = fmaxf(s.m, w * largest);
    prompt_share(s.odd, m * 0x1p-7f, both); // (on its way before the chain of corr)
    corr = prompt_power(bt_mul_sat(s.m - m, -0x1p-8f));
    corr = here ? corr : 1.0f;
    s.m = m;
    near = __all_sync(0xffffffffu, whole && even && fmaf(largest, w, -m) >= SQUAD_LEAST);
    down = near ? 0x1p-64f : 1.0f;
    prompt_share(s.odd, corr, out.corr);
    squad_powers(s, both, near, out.corr, u);
    squad_codes(s, scales, here, down, u, out);
}

// The same for any numbers. (Not a call: ptxas keeps acc in memory then, in all of the loop.)
static __device__ __forceinline__ void
squad_weigh_any(prompt_state &s, const prompt_scales &scales, float softcap, const prompt_row rows[2], uint32_t tile,
                const int32_t dot[32], squad_weights &out)
{
    int32_t dots[8][4];
    prompt_weights halves;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        dots[i / 4][i % 4] = dot[i] + (BT_ROUND_MAGIC_BITS - SQUAD_BIAS);
    }
    squad_scale_sums(s, 0x1p-64f);
    prompt_weigh_any(s, scales, 0x1p-110f, softcap, rows, tile, dots, halves);
    squad_scale_sums(s, 0x1p64f);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out.codes[i / 4][i % 4] = __byte_perm(halves.low[i / 4][i % 4], halves.high[i / 4][i % 4], 0x5410);
    }
    out.corr[0] = halves.corr[0], out.corr[1] = halves.corr[1];
    out.scale[0] = halves.scale[0], out.scale[1] = halves.scale[1];
}
