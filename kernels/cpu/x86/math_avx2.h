// kernels/cpu/ref/math.h eight floats at a time: the same steps, the same bits. For files whose functions are compiled for
// AVX2 and FMA (by flag or by attribute).
//
// _mm256_max_ps(a, b) is `a > b ? a : b` and _mm256_min_ps `a < b ? a : b`, also when a NaN is there: the second operand
// stays. So the order of operands below is part of the definition.
#pragma once

#include "kernels/cpu/ref/math.h"

#include <immintrin.h>

#define BT_AVX2_FN static inline __attribute__((target("avx2,fma")))

BT_AVX2_FN __m256
bt_avx2_exp2i(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

BT_AVX2_FN __m256
bt_avx2_exp_split(__m256 x, __m256i *n)
{
    __m256 magic = _mm256_set1_ps(BT_ROUND_MAGIC);
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(BT_LOG2_E), magic), count = _mm256_sub_ps(shifted, magic);
    __m256 r = _mm256_fmadd_ps(count, _mm256_set1_ps(-BT_LN2_HIGH), x), p;

    r = _mm256_fmadd_ps(count, _mm256_set1_ps(-BT_LN2_LOW), r);
    p = _mm256_fmadd_ps(r, _mm256_set1_ps(BT_EXP_C6), _mm256_set1_ps(BT_EXP_C5));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(BT_EXP_C4));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(BT_EXP_C3));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(BT_EXP_C2));
    *n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(BT_ROUND_MAGIC_BITS));
    return _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r);
}

BT_AVX2_FN __m256
bt_avx2_exp(__m256 x)
{
    __m256i n, half;
    __m256 p;

    x = _mm256_min_ps(_mm256_set1_ps(BT_EXP_MAX), x);
    x = _mm256_max_ps(_mm256_set1_ps(BT_EXP_MIN), x);
    p = _mm256_add_ps(bt_avx2_exp_split(x, &n), _mm256_set1_ps(1.0f));
    half = _mm256_srai_epi32(n, 1);
    p = _mm256_mul_ps(p, bt_avx2_exp2i(half));
    return _mm256_mul_ps(p, bt_avx2_exp2i(_mm256_sub_epi32(n, half)));
}

BT_AVX2_FN __m256
bt_avx2_exp2(__m256 x)
{
    __m256 count, f, q;
    __m256i n, half;

    x = _mm256_max_ps(_mm256_set1_ps(BT_EXP2_MIN), x);
    count = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    f = _mm256_sub_ps(x, count);
    q = _mm256_fmadd_ps(f, _mm256_set1_ps(BT_EXP2_C5), _mm256_set1_ps(BT_EXP2_C4));
    q = _mm256_fmadd_ps(f, q, _mm256_set1_ps(BT_EXP2_C3));
    q = _mm256_fmadd_ps(f, q, _mm256_set1_ps(BT_EXP2_C2));
    q = _mm256_fmadd_ps(f, q, _mm256_set1_ps(BT_EXP2_C1));
    n = _mm256_cvtps_epi32(count);
    half = _mm256_srai_epi32(n, 1);
    q = _mm256_mul_ps(_mm256_fmadd_ps(f, q, _mm256_set1_ps(1.0f)), bt_avx2_exp2i(half));
    return _mm256_mul_ps(q, bt_avx2_exp2i(_mm256_sub_epi32(n, half)));
}

BT_AVX2_FN __m256
bt_avx2_tanh(__m256 x)
{
    __m256 sign_bit = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f), y, q, power, t, d;
    __m256i n;

    y = _mm256_min_ps(_mm256_set1_ps(BT_TANH_MAX), _mm256_andnot_ps(sign_bit, x));
    y = _mm256_mul_ps(_mm256_set1_ps(-2.0f), y);
    q = bt_avx2_exp_split(y, &n);
    power = bt_avx2_exp2i(n);
    t = _mm256_fmadd_ps(power, q, _mm256_sub_ps(power, one));
    d = _mm256_fmadd_ps(power, q, _mm256_add_ps(power, one));
    t = _mm256_div_ps(_mm256_xor_ps(sign_bit, t), d);
    return _mm256_or_ps(_mm256_andnot_ps(sign_bit, t), _mm256_and_ps(sign_bit, x));
}

BT_AVX2_FN __m256
bt_avx2_silu(__m256 x)
{
    __m256 e = bt_avx2_exp(_mm256_xor_ps(_mm256_set1_ps(-0.0f), x));

    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

BT_AVX2_FN __m256
bt_avx2_gelu_tanh(__m256 x)
{
    __m256 u2 = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(BT_GELU_C3), _mm256_set1_ps(BT_GELU_C1)), e;

    u2 = _mm256_mul_ps(x, u2);
    e = bt_avx2_exp(_mm256_xor_ps(_mm256_set1_ps(-0.0f), u2));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

BT_AVX2_FN __m256
bt_avx2_softcap(__m256 x, float softcap)
{
    __m256 cap = _mm256_set1_ps(softcap);

    return _mm256_mul_ps(cap, bt_avx2_tanh(_mm256_div_ps(x, cap)));
}

// The tree over lanes 0–7 (`low`) and 8–15 (`high`).
BT_AVX2_FN float
bt_avx2_tree16(__m256 low, __m256 high)
{
    __m256 a = _mm256_add_ps(low, high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// The largest lane, NaNs passed over; `a` must have come from max_ps(x, a) with a starting at −inf, so that it holds none.
BT_AVX2_FN float
bt_avx2_max8(__m256 a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

// −1 in the first `count` of eight lanes, for maskload and maskstore.
BT_AVX2_FN __m256i
bt_avx2_mask(uint32_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(count < 8 ? count : 8)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

BT_AVX2_FN float
bt_avx2_dot16(const float *x, const float *y, uint32_t count)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    uint32_t i = 0;

    for (; i + 16 <= count; i += 16) {
        low = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), low);
        high = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8), high);
    }
    if (i < count) {
        uint32_t rest = count - i;
        __m256i m = bt_avx2_mask(rest), n = bt_avx2_mask(rest > 8 ? rest - 8 : 0);

        low = _mm256_fmadd_ps(_mm256_maskload_ps(x + i, m), _mm256_maskload_ps(y + i, m), low);
        high = _mm256_fmadd_ps(_mm256_maskload_ps(x + i + 8, n), _mm256_maskload_ps(y + i + 8, n), high);
    }
    return bt_avx2_tree16(low, high);
}

BT_AVX2_FN uint32_t
bt_avx2_amax_bits(const float *x, uint32_t count)
{
    __m256i max = _mm256_setzero_si256(), magnitude = _mm256_set1_epi32(0x7fffffff);
    __m128i b;
    uint32_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));

        max = _mm256_max_epi32(max, _mm256_and_si256(magnitude, bits));
    }
    if (i < count) {
        __m256i bits = _mm256_castps_si256(_mm256_maskload_ps(x + i, bt_avx2_mask(count - i)));

        max = _mm256_max_epi32(max, _mm256_and_si256(magnitude, bits));
    }
    b = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(b);
}
