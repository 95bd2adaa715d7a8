// kernels/cpu/ref/math.h sixteen floats at a time: the same steps, the same bits. For files whose functions are compiled
// for AVX-512 F and DQ (by flag or by attribute). The order of operands of max and min is part of the definition, as in
// math_avx2.h. scalef rounds once, as the two products of the reference do.
#pragma once

#include "kernels/cpu/ref/math.h"

#include <immintrin.h>

#define BT_AVX512_FN static inline __attribute__((target("avx512f,avx512dq,avx2,fma")))

BT_AVX512_FN __m512
bt_avx512_exp_split(__m512 x, __m512 *count)
{
    __m512 magic = _mm512_set1_ps(BT_ROUND_MAGIC), r, p;

    *count = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(BT_LOG2_E), magic), magic);
    r = _mm512_fmadd_ps(*count, _mm512_set1_ps(-BT_LN2_HIGH), x);
    r = _mm512_fmadd_ps(*count, _mm512_set1_ps(-BT_LN2_LOW), r);
    p = _mm512_fmadd_ps(r, _mm512_set1_ps(BT_EXP_C6), _mm512_set1_ps(BT_EXP_C5));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(BT_EXP_C4));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(BT_EXP_C3));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(BT_EXP_C2));
    return _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
}

BT_AVX512_FN __m512
bt_avx512_exp(__m512 x)
{
    __m512 count, q;

    x = _mm512_min_ps(_mm512_set1_ps(BT_EXP_MAX), x);
    x = _mm512_max_ps(_mm512_set1_ps(BT_EXP_MIN), x);
    q = bt_avx512_exp_split(x, &count);
    return _mm512_scalef_ps(_mm512_add_ps(q, _mm512_set1_ps(1.0f)), count);
}

BT_AVX512_FN __m512
bt_avx512_exp2(__m512 x)
{
    __m512 count, f, q;

    x = _mm512_max_ps(_mm512_set1_ps(BT_EXP2_MIN), x);
    count = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    f = _mm512_sub_ps(x, count);
    q = _mm512_fmadd_ps(f, _mm512_set1_ps(BT_EXP2_C5), _mm512_set1_ps(BT_EXP2_C4));
    q = _mm512_fmadd_ps(f, q, _mm512_set1_ps(BT_EXP2_C3));
    q = _mm512_fmadd_ps(f, q, _mm512_set1_ps(BT_EXP2_C2));
    q = _mm512_fmadd_ps(f, q, _mm512_set1_ps(BT_EXP2_C1));
    return _mm512_scalef_ps(_mm512_fmadd_ps(f, q, _mm512_set1_ps(1.0f)), count);
}

BT_AVX512_FN __m512
bt_avx512_tanh(__m512 x)
{
    __m512 sign_bit = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f), y, q, power, t, d, count;

    y = _mm512_min_ps(_mm512_set1_ps(BT_TANH_MAX), _mm512_andnot_ps(sign_bit, x));
    y = _mm512_mul_ps(_mm512_set1_ps(-2.0f), y);
    q = bt_avx512_exp_split(y, &count);
    power = _mm512_scalef_ps(one, count);
    t = _mm512_fmadd_ps(power, q, _mm512_sub_ps(power, one));
    d = _mm512_fmadd_ps(power, q, _mm512_add_ps(power, one));
    t = _mm512_div_ps(_mm512_xor_ps(sign_bit, t), d);
    return _mm512_or_ps(_mm512_andnot_ps(sign_bit, t), _mm512_and_ps(sign_bit, x));
}

BT_AVX512_FN __m512
bt_avx512_silu(__m512 x)
{
    __m512 e = bt_avx512_exp(_mm512_xor_ps(_mm512_set1_ps(-0.0f), x));

    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

BT_AVX512_FN __m512
bt_avx512_gelu_tanh(__m512 x)
{
    __m512 u2 = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(BT_GELU_C3), _mm512_set1_ps(BT_GELU_C1)), e;

    u2 = _mm512_mul_ps(x, u2);
    e = bt_avx512_exp(_mm512_xor_ps(_mm512_set1_ps(-0.0f), u2));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

BT_AVX512_FN __m512
bt_avx512_softcap(__m512 x, float softcap)
{
    __m512 cap = _mm512_set1_ps(softcap);

    return _mm512_mul_ps(cap, bt_avx512_tanh(_mm512_div_ps(x, cap)));
}

// The tree over the lanes of one register.
BT_AVX512_FN float
bt_avx512_tree16(__m512 lanes)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// The first `count` of 16 lanes.
BT_AVX512_FN __mmask16
bt_avx512_mask(uint32_t count)
{
    return (__mmask16)(count < 16 ? (1u << count) - 1 : 0xffffu);
}

BT_AVX512_FN float
bt_avx512_dot16(const float *x, const float *y, uint32_t count)
{
    __m512 lanes = _mm512_setzero_ps();
    uint32_t i = 0;

    for (; i + 16 <= count; i += 16) {
        lanes = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i), lanes);
    }
    if (i < count) {
        __mmask16 m = bt_avx512_mask(count - i);

        lanes = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i), lanes);
    }
    return bt_avx512_tree16(lanes);
}

BT_AVX512_FN uint32_t
bt_avx512_amax_bits(const float *x, uint32_t count)
{
    __m512i max = _mm512_setzero_si512(), magnitude = _mm512_set1_epi32(0x7fffffff);

    for (uint32_t i = 0; i < count; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(bt_avx512_mask(count - i), x + i));

        max = _mm512_max_epi32(max, _mm512_and_si512(magnitude, bits));
    }
    return (uint32_t)_mm512_reduce_max_epi32(max);
}
