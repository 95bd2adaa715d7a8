// Our own elementary functions and sums: plain C, one definition, the same bits on every machine (DESIGN 7).
//
// Nothing here calls the C library but for fmaf, sqrtf, fabsf and copysignf, which IEEE 754 defines to the last bit; so
// 1 / sqrtf(x) is our rsqrt. The vector forms (x86/math_avx2.h, x86/math_avx512.h) take the same steps in the same order
// and give the same bits; tests/kernels/test_math.c compares all of them. Errors, against double precision over all of
// the range (that test): exp 1.03 ulp, exp2 2.02, tanh 2, silu 3, gelu 3 above −1 (below, the rounding of
// exp's argument shows), sine and cosine 0.501.
//
// A NaN goes in and a NaN comes out, whose bits mean nothing: any NaN equals any NaN. Subnormals are kept.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

// kernels/cuda compiles these same lines for the device.
#ifdef __CUDACC__
#define BT_MATH static inline __host__ __device__
#else
#define BT_MATH static inline
#endif

// What both exp and tanh need: e^r = 1 + r + r² · P(r) for |r| ≤ ln 2 / 2, P minimax of degree 4 (7.5e-9).
#define BT_EXP_C2 0x1.000000p-1f
#define BT_EXP_C3 0x1.5554dcp-3f
#define BT_EXP_C4 0x1.5554b8p-5f
#define BT_EXP_C5 0x1.120be6p-7f
#define BT_EXP_C6 0x1.6d75f2p-10f
#define BT_LOG2_E 0x1.715476p+0f
#define BT_LN2_HIGH 0x1.62e430p-1f
#define BT_LN2_LOW -0x1.05c610p-29f
#define BT_ROUND_MAGIC                                                                                                 \
    0x1.8p23f // adding it rounds |x| < 2^22 to an integer (half to even), which its low bits then show
#define BT_ROUND_MAGIC_BITS 0x4b400000
#define BT_EXP_MAX 89.0f // e^89 overflows, e^-105 vanishes: beyond, the answer is known
#define BT_EXP_MIN -105.0f
#define BT_TANH_MAX 20.0f

// 2^f = 1 + f · Q(f) for |f| ≤ 1/2, Q of degree 4, minimax for the relative error of the whole (1.1e-7).
#define BT_EXP2_C1 0x1.62e42ap-1f
#define BT_EXP2_C2 0x1.ebf9bcp-3f
#define BT_EXP2_C3 0x1.c6b752p-5f
#define BT_EXP2_C4 0x1.3cea88p-7f
#define BT_EXP2_C5 0x1.5bba14p-10f
#define BT_EXP2_MIN -151.0f

// √(2/π) and that times 0.044715, twice each: gelu(x) = x · sigmoid(2u), u = √(2/π) · (x + 0.044715 · x³).
#define BT_GELU_C1 0x1.988454p+0f
#define BT_GELU_C3 0x1.2444f2p-4f

BT_MATH float
bt_float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, 4);
    return value;
}

BT_MATH uint32_t
bt_bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    return bits;
}

// 2^n for −126 ≤ n ≤ 127 (any other n gives some number, never a trap).
BT_MATH float
bt_ref_exp2i(int32_t n)
{
    return bt_float_of_bits((uint32_t)(n + 127) << 23);
}

// Splits x = n · ln 2 + r and returns e^r − 1.
BT_MATH float
bt_ref_exp_split(float x, int32_t *n)
{
    float shifted = fmaf(x, BT_LOG2_E, BT_ROUND_MAGIC), count = shifted - BT_ROUND_MAGIC;
    float r = fmaf(count, -BT_LN2_LOW, fmaf(count, -BT_LN2_HIGH, x));
    float p = fmaf(r, BT_EXP_C6, BT_EXP_C5);

    p = fmaf(r, p, BT_EXP_C4);
    p = fmaf(r, p, BT_EXP_C3);
    p = fmaf(r, p, BT_EXP_C2);
    *n = (int32_t)bt_bits_of_float(shifted) - BT_ROUND_MAGIC_BITS;
    return fmaf(r * r, p, r);
}

BT_MATH float
bt_ref_exp(float x)
{
    int32_t n, half;
    float p;

    x = x > BT_EXP_MAX ? BT_EXP_MAX : x; // a NaN stays
    x = x < BT_EXP_MIN ? BT_EXP_MIN : x;
    p = bt_ref_exp_split(x, &n) + 1.0f;
    half = n >> 1; // the first product is exact, so the second rounds once, subnormals too
    return p * bt_ref_exp2i(half) * bt_ref_exp2i(n - half);
}

// 2^x for x ≤ 1 (or NaN): what softmax needs, cheaper than exp by its reduction.
BT_MATH float
bt_ref_exp2(float x)
{
    float shifted, f, q;
    int32_t n, half;

    x = x < BT_EXP2_MIN ? BT_EXP2_MIN : x;
    shifted = x + BT_ROUND_MAGIC;
    f = x - (shifted - BT_ROUND_MAGIC);
    q = fmaf(f, BT_EXP2_C5, BT_EXP2_C4);
    q = fmaf(f, q, BT_EXP2_C3);
    q = fmaf(f, q, BT_EXP2_C2);
    q = fmaf(f, q, BT_EXP2_C1);
    n = (int32_t)bt_bits_of_float(shifted) - BT_ROUND_MAGIC_BITS;
    half = n >> 1;
    return fmaf(f, q, 1.0f) * bt_ref_exp2i(half) * bt_ref_exp2i(n - half);
}

// tanh |x| = −t / (2 + t) with t = e^(−2|x|) − 1, which keeps every digit near 0. 2 + t is rounded on its own: 2.4 → 2 ulp.
BT_MATH float
bt_ref_tanh(float x)
{
    float y = fabsf(x), q, power, t;
    int32_t n;

    y = -2.0f * (y > BT_TANH_MAX ? BT_TANH_MAX : y);
    q = bt_ref_exp_split(y, &n);
    power = bt_ref_exp2i(n);
    t = fmaf(power, q, power - 1.0f);
    return copysignf(-t / fmaf(power, q, power + 1.0f), x);
}

// x · sigmoid(x). silu(−inf) is a NaN, as it is elsewhere.
BT_MATH float
bt_ref_silu(float x)
{
    return x / (1.0f + bt_ref_exp(-x));
}

// The tanh form of GELU, written as x · sigmoid(2u): the same function without the cancellation in 1 + tanh(u).
BT_MATH float
bt_ref_gelu_tanh(float x)
{
    float u2 = x * fmaf(x * x, BT_GELU_C3, BT_GELU_C1);

    return x / (1.0f + bt_ref_exp(-u2));
}

// softcap · tanh(x / softcap)
BT_MATH float
bt_ref_softcap(float x, float softcap)
{
    return softcap * bt_ref_tanh(x / softcap);
}

// Sine and cosine in double, rounded once at the end. π/2 is taken off in three parts: the first two have at most 21 bits,
// so that their products with the count are exact and the whole is good to 1e-12 for |x| ≤ 2^32. All plain products and
// sums: a compiler may vectorise this, and every ISA shares this one form.
BT_MATH void
bt_ref_sincos(float x, float *sine, float *cosine)
{
    const double magic = 0x1.8p52;
    double count = ((double)x * 0x1.45f306dc9c883p-1 + magic) - magic;
    double r = (((double)x - count * 0x1.921fbp+0) - count * 0x1.5110bp-22) - count * 0x1.18469898cc517p-44;
    double r2 = r * r, s, c;
    uint64_t quadrant;
    double shifted = count + magic;

    memcpy(&quadrant, &shifted, 8);
    s = r2 * (1.0 / 6227020800.0) - 1.0 / 39916800.0;
    s = r2 * (r2 * (r2 * (r2 * s + 1.0 / 362880.0) - 1.0 / 5040.0) + 1.0 / 120.0) - 1.0 / 6.0;
    s = r2 * s * r + r;
    c = 1.0 / 479001600.0 - r2 * (1.0 / 87178291200.0);
    c = r2 * (r2 * (r2 * (r2 * c - 1.0 / 3628800.0) + 1.0 / 40320.0) - 1.0 / 720.0) + 1.0 / 24.0;
    c = r2 * (r2 * c - 0.5) + 1.0;
    if (quadrant & 1) {
        double swap = s;

        s = c;
        c = -swap;
    }
    *sine = (float)(quadrant & 2 ? -s : s);
    *cosine = (float)(quadrant & 2 ? -c : c);
}

// The one tree in which 16 lanes are added: i with i + 8, then + 4, + 2, + 1.
BT_MATH float
bt_ref_tree16(const float lanes[16])
{
    float a[8];

    for (int i = 0; i < 8; i++) {
        a[i] = lanes[i] + lanes[i + 8];
    }
    for (int i = 0; i < 4; i++) {
        a[i] += a[i + 4];
    }
    a[0] += a[2];
    a[1] += a[3];
    return a[0] + a[1];
}

// The 16-lane sums: element i goes to lane i mod 16, in rising order, by fmaf; then the tree. When `count` is not a
// multiple of 16 the rest counts as zeros (fmaf(0, 0, lane): only ever visible as the sign of a zero).
BT_MATH float
bt_ref_dot16(const float *x, const float *y, uint32_t count)
{
    float lanes[16] = {0};

    for (uint32_t i = 0; i < (count + 15) / 16 * 16; i++) {
        lanes[i % 16] = i < count ? fmaf(x[i], y[i], lanes[i % 16]) : fmaf(0.0f, 0.0f, lanes[i % 16]);
    }
    return bt_ref_tree16(lanes);
}

BT_MATH float
bt_ref_sumsq16(const float *x, uint32_t count)
{
    return bt_ref_dot16(x, x, count);
}

// The largest, NaNs passed over; −inf for none. (Order does not matter but for the sign of a zero, which nothing here
// depends on.)
BT_MATH float
bt_ref_max(const float *x, uint32_t count)
{
    float max = -INFINITY;

    for (uint32_t i = 0; i < count; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

// The factor of RMSNorm: y[i] = (x[i] · factor) · weight[i], each product rounded.
BT_MATH float
bt_ref_rms_factor(float sumsq, uint32_t count, float eps)
{
    return 1.0f / sqrtf(sumsq / (float)count + eps);
}

// INT8 of a vector, where the scale is kept in f32 (activations, Q): scale = amax / 127, one reciprocal, codes half to
// even and within ±127. `amax_bits` is the largest of bits & 0x7fffffff as integers, which needs no order and finds NaN
// and infinity: a vector that holds one has scale NaN and codes 0, so that whatever reads it turns NaN. A vector too small
// for a normal scale (amax < 127 · 2^-126) is a zero vector.
typedef struct {
    float scale, inverse; // inverse 0 → all codes 0
} bt_int8_scale;

BT_MATH uint32_t
bt_ref_amax_bits(const float *x, uint32_t count)
{
    uint32_t max = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = bt_bits_of_float(x[i]) & 0x7fffffffu;

        max = bits > max ? bits : max;
    }
    return max;
}

BT_MATH bt_int8_scale
bt_ref_int8_scale(uint32_t amax_bits)
{
    bt_int8_scale s = {bt_float_of_bits(amax_bits) / 127.0f, 0.0f};

    if (amax_bits >= 0x7f800000u) {
        s.scale = NAN;
    } else if (s.scale < 0x1p-126f) {
        s.scale = 0.0f;
    } else {
        s.inverse = 1.0f / s.scale;
    }
    return s;
}

// Only with a finite x, or inverse 0 (which gives 0 for every x).
BT_MATH int8_t
bt_ref_int8_code(float x, float inverse)
{
    float v = x * inverse;

    if (inverse == 0.0f) {
        return 0;
    }
    v = v > 127.0f ? 127.0f : v;
    v = v < -127.0f ? -127.0f : v;
    return (int8_t)(int32_t)((v + BT_ROUND_MAGIC) - BT_ROUND_MAGIC);
}

BT_MATH void
bt_ref_int8_codes(const float *x, uint32_t count, float inverse, int8_t *codes)
{
    for (uint32_t i = 0; i < count; i++) {
        codes[i] = bt_ref_int8_code(x[i], inverse);
    }
}
