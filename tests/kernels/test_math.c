// Elementary functions: against double precision with a bound in ulps, and each vector form against ref bit for bit.
#include "tests/support/test.h"

#include "common/base/rng.h"
#include "kernels/cpu/ref/math.h"
#if defined(__x86_64__)
#include "kernels/cpu/x86/math_avx2.h"
#include "kernels/cpu/x86/math_avx512.h"
#endif

#include <stdio.h>

typedef enum { EXP, EXP2, TANH, SILU, GELU, SOFTCAP, FUNCTION_COUNT } function;

static float
by_ref(function f, float x)
{
    switch (f) {
    case EXP:
        return bt_ref_exp(x);
    case EXP2:
        return bt_ref_exp2(x);
    case TANH:
        return bt_ref_tanh(x);
    case SILU:
        return bt_ref_silu(x);
    case GELU:
        return bt_ref_gelu_tanh(x);
    default:
        return bt_ref_softcap(x, 30.0f);
    }
}

static double
by_double(function f, double x)
{
    double u;

    switch (f) {
    case EXP:
        return exp(x);
    case EXP2:
        return exp2(x);
    case TANH:
        return tanh(x);
    case SILU:
        return x / (1 + exp(-x));
    case GELU:
        u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        return x / (1 + exp(-2 * u)); // = x/2 · (1 + tanh u), without its cancellation
    default:
        return 30 * tanh(x / 30);
    }
}

// |got − want| in units of the last place of want as a float (of the least normal number below that).
static double
ulps(float got, double want)
{
    int exponent;

    if (isinf(got) && fabs(want) > 0x1.ffffffp127) {
        return 0;
    }
    frexp(want, &exponent);
    exponent = exponent < -125 ? -125 : exponent;
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

// Every `stride`th float of both signs with |x| ≤ limit; the ulps of the worst.
static double
worst(function f, float limit, uint32_t stride, float low)
{
    double most = 0;
    float at = 0;

    for (uint32_t bits = 0; bits <= bt_bits_of_float(limit); bits += stride) {
        for (int sign = 0; sign < 2; sign++) {
            float x = bt_float_of_bits(bits | (uint32_t)sign << 31);
            bool lost = f == SOFTCAP && fabsf(x) < 0x1p-100f; // x / softcap is subnormal: digits go, by definition
            double error = x < low || lost || (f == EXP2 && x > 1.0f) ? 0 : ulps(by_ref(f, x), by_double(f, x));

            if (error > most) {
                most = error;
                at = x;
            }
        }
    }
    printf("function %d: %.3f ulp at %a\n", (int)f, most, (double)at);
    return most;
}

START_TEST(exp_is_within_a_good_ulp_everywhere)
{
    ck_assert_double_le(worst(EXP, 110.0f, 1009, -200.0f), 1.05);
}
END_TEST

START_TEST(exp2_is_within_two_ulps_and_a_bit_below_one)
{
    ck_assert_double_le(worst(EXP2, 1.0f, 1009, -2.0f), 2.05);
    ck_assert_double_le(worst(EXP2, 200.0f, 1009, -200.0f), 2.05);
}
END_TEST

START_TEST(tanh_is_within_two_ulps_everywhere)
{
    ck_assert_double_le(worst(TANH, 100.0f, 1009, -200.0f), 2.0);
    ck_assert_double_le(worst(SOFTCAP, 1000.0f, 1009, -2000.0f), 3.5); // two more roundings
}
END_TEST

// Below −5 the rounding of exp's argument, which grows with it, is seen; the results are then below 0.04 and vanishing.
// Below −87 silu's exp overflows and the result, 1e-36 of the true size of x, is −0.
START_TEST(silu_and_gelu_are_within_three_ulps)
{
    ck_assert_double_le(worst(SILU, 100.0f, 1009, -87.0f), 3.0);
    ck_assert_double_le(worst(GELU, 100.0f, 1009, -1.0f), 3.0);
    ck_assert_double_le(worst(GELU, 5.0f, 1009, -5.0f), 40.0);
}
END_TEST

START_TEST(special_values_give_what_mathematics_says)
{
    ck_assert(bt_ref_exp(0.0f) == 1.0f);
    ck_assert(bt_ref_exp(-0.0f) == 1.0f);
    ck_assert(bt_ref_exp(INFINITY) == INFINITY);
    ck_assert(bt_ref_exp(-INFINITY) == 0.0f);
    ck_assert(isnan(bt_ref_exp(NAN)));
    ck_assert(bt_ref_exp(-103.0f) > 0.0f); // a subnormal
    ck_assert(bt_ref_tanh(INFINITY) == 1.0f);
    ck_assert(bt_ref_tanh(-INFINITY) == -1.0f);
    ck_assert(isnan(bt_ref_tanh(-NAN)));
    ck_assert_uint_eq(bt_bits_of_float(bt_ref_tanh(-0.0f)), 0x80000000u);
    ck_assert_uint_eq(bt_bits_of_float(bt_ref_tanh(0x1p-140f)), bt_bits_of_float(0x1p-140f));
    ck_assert(bt_ref_silu(200.0f) == 200.0f);
    ck_assert(bt_ref_silu(-200.0f) == 0.0f);
    ck_assert(bt_ref_gelu_tanh(200.0f) == 200.0f);
    ck_assert(bt_ref_gelu_tanh(-200.0f) == 0.0f);
    ck_assert(isnan(bt_ref_gelu_tanh(NAN)) && isnan(bt_ref_silu(NAN)));
}
END_TEST

START_TEST(sine_and_cosine_are_nearly_correctly_rounded_up_to_a_hundred_million)
{
    bt_rng rng = {7};
    double most = 0;

    for (int i = 0; i < 2000000; i++) {
        float scale = i % 4 == 0 ? 1.0f : i % 4 == 1 ? 100.0f : i % 4 == 2 ? 131072.0f : 1e8f;
        float x = (bt_rng_float(&rng) * 2 - 1) * scale, s, c;
        double error;

        x = i % 1000 == 0 ? (float)(i / 1000) * 1.57079632679f : x; // next to the zeros
        bt_ref_sincos(x, &s, &c);
        error = fmax(ulps(s, sin((double)x)), ulps(c, cos((double)x)));
        most = error > most ? error : most;
    }
    printf("sincos: %.4f ulp\n", most);
    ck_assert_double_le(most, 0.51);
}
END_TEST

START_TEST(sine_and_cosine_of_odd_numbers_are_harmless)
{
    float s, c;

    bt_ref_sincos(0.0f, &s, &c);
    ck_assert(s == 0.0f && c == 1.0f);
    bt_ref_sincos(INFINITY, &s, &c);
    ck_assert(isnan(s) && isnan(c));
    bt_ref_sincos(4.0e9f, &s, &c); // the largest position
    ck_assert_double_le(fabs((double)s - sin((double)4.0e9f)), 1e-7);
    ck_assert_double_le(fabs((double)c - cos((double)4.0e9f)), 1e-7);
}
END_TEST

START_TEST(sums_are_those_of_sixteen_lanes_and_one_tree)
{
    float x[40], lanes[16] = {0};

    for (int i = 0; i < 40; i++) {
        x[i] = (float)(1 << (i % 24)) * (i % 3 == 0 ? 1.5f : -1.0f) / 7.0f;
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    }
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            lanes[i] = lanes[i] + lanes[i + step];
        }
    }
    ck_assert_uint_eq(bt_bits_of_float(bt_ref_sumsq16(x, 40)), bt_bits_of_float(lanes[0]));
    ck_assert(bt_ref_max(x, 40) == x[21]);
}
END_TEST

START_TEST(an_int8_vector_holds_its_largest_value_and_poison_shows)
{
    float x[4] = {0.5f, -2.0f, 1.0f, 0.0f};
    bt_int8_scale s = bt_ref_int8_scale(bt_ref_amax_bits(x, 4));

    ck_assert(s.scale == 2.0f / 127.0f);
    ck_assert_int_eq(bt_ref_int8_code(x[1], s.inverse), -127);
    ck_assert_int_eq(bt_ref_int8_code(x[0], s.inverse), 32); // 31.75
    ck_assert_int_eq(bt_ref_int8_code(2.5f, 1.0f), 2);       // half to even
    ck_assert_int_eq(bt_ref_int8_code(-3.5f, 1.0f), -4);
    x[2] = NAN;
    s = bt_ref_int8_scale(bt_ref_amax_bits(x, 4));
    ck_assert(isnan(s.scale));
    ck_assert_int_eq(bt_ref_int8_code(x[2], s.inverse), 0);
    x[2] = -INFINITY;
    ck_assert(isnan(bt_ref_int8_scale(bt_ref_amax_bits(x, 4)).scale));
    s = bt_ref_int8_scale(bt_bits_of_float(0x1p-126f));
    ck_assert(s.scale == 0.0f && s.inverse == 0.0f);
}
END_TEST

#if defined(__x86_64__)
static bool
same(float a, float b)
{
    return bt_bits_of_float(a) == bt_bits_of_float(b) || (isnan(a) && isnan(b));
}

__attribute__((target("avx2,fma"))) static void
by_avx2(function f, const float *x, float *y)
{
    for (int i = 0; i < 16; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);

        v = f == EXP    ? bt_avx2_exp(v)
            : f == EXP2 ? bt_avx2_exp2(v)
            : f == TANH ? bt_avx2_tanh(v)
            : f == SILU ? bt_avx2_silu(v)
            : f == GELU ? bt_avx2_gelu_tanh(v)
                        : bt_avx2_softcap(v, 30.0f);
        _mm256_storeu_ps(y + i, v);
    }
}

__attribute__((target("avx512f,avx512dq,avx2,fma"))) static void
by_avx512(function f, const float *x, float *y)
{
    __m512 v = _mm512_loadu_ps(x);

    v = f == EXP    ? bt_avx512_exp(v)
        : f == EXP2 ? bt_avx512_exp2(v)
        : f == TANH ? bt_avx512_tanh(v)
        : f == SILU ? bt_avx512_silu(v)
        : f == GELU ? bt_avx512_gelu_tanh(v)
                    : bt_avx512_softcap(v, 30.0f);
    _mm512_storeu_ps(y, v);
}

// All of float from one NaN to the other in steps of `stride`, sixteen neighbours of the stride at a time.
static void
check_sweep(function f, void (*vector)(function f, const float *x, float *y), uint32_t stride)
{
    float x[16], y[16];

    for (uint64_t bits = 0; bits < 1ull << 32; bits += 16ull * stride) {
        for (uint32_t i = 0; i < 16; i++) {
            x[i] = bt_float_of_bits((uint32_t)(bits + (uint64_t)i * stride));
        }
        vector(f, x, y);
        for (int i = 0; i < 16; i++) {
            bool outside = f == EXP2 && x[i] > 1.0f; // not defined there

            if (!outside && !same(by_ref(f, x[i]), y[i])) {
                ck_abort_msg("function %d of %a: ref %a, vector %a", (int)f, (double)x[i], (double)by_ref(f, x[i]),
                             (double)y[i]);
            }
        }
    }
}

static void
check_specials(function f, void (*vector)(function f, const float *x, float *y))
{
    static const float x[16] = {0.0f,   -0.0f,  INFINITY, -INFINITY, NAN,     -NAN,     0x1p-149f, -0x1p-126f,
                                88.72f, 88.73f, -87.34f,  -103.97f,  -104.5f, 0x1p127f, 1.0f,      -20.0f};
    float y[16];

    vector(f, x, y);
    for (int i = 0; i < 16; i++) {
        ck_assert((f == EXP2 && x[i] > 1.0f) || same(by_ref(f, x[i]), y[i]));
    }
}

typedef struct {
    void (*function)(function f, const float *x, float *y);
    float (*dot)(const float *x, const float *y, uint32_t count);
    uint32_t (*amax)(const float *x, uint32_t count);
} path;

static float
dot_avx2(const float *x, const float *y, uint32_t count)
{
    return bt_avx2_dot16(x, y, count);
}

static float
dot_avx512(const float *x, const float *y, uint32_t count)
{
    return bt_avx512_dot16(x, y, count);
}

static uint32_t
amax_avx2(const float *x, uint32_t count)
{
    return bt_avx2_amax_bits(x, count);
}

static uint32_t
amax_avx512(const float *x, uint32_t count)
{
    return bt_avx512_amax_bits(x, count);
}

static void
check_sums(const path *isa)
{
    float x[200] = {0}, y[200] = {0};
    bt_rng rng = {3};

    for (uint32_t count = 0; count <= 200; count++) {
        for (uint32_t i = 0; i < count; i++) {
            x[i] = ldexpf(bt_rng_float(&rng) - 0.5f, (int)bt_rng_below(&rng, 20));
            y[i] = bt_rng_float(&rng) - 0.5f;
        }
        ck_assert(same(bt_ref_dot16(x, y, count), isa->dot(x, y, count)));
        ck_assert_uint_eq(bt_ref_amax_bits(x, count), isa->amax(x, count));
    }
}

// True when this machine lacks what test number `i` needs.
static bool
lacks(int i)
{
    if (i == 0 ? __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") : __builtin_cpu_supports("avx512dq")) {
        return false;
    }
    bt_test_skip(i == 0 ? "AVX2 math: not on this machine" : "AVX-512 math: not on this machine");
    return true;
}

static const path isas[2] = {{by_avx2, dot_avx2, amax_avx2}, {by_avx512, dot_avx512, amax_avx512}};

START_TEST(vector_functions_give_the_bits_of_ref)
{
    if (lacks(_i)) {
        return;
    }
    for (function f = 0; f < FUNCTION_COUNT; f++) {
        check_specials(f, isas[_i].function);
        check_sweep(f, isas[_i].function, 2003);
    }
}
END_TEST

START_TEST(vector_sums_give_the_bits_of_ref)
{
    if (!lacks(_i)) {
        check_sums(&isas[_i]);
    }
}
END_TEST
#endif

int
main(void)
{
    Suite *suite = suite_create("math");
    TCase *tcase = tcase_create("math");

    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, exp_is_within_a_good_ulp_everywhere);
    tcase_add_test(tcase, exp2_is_within_two_ulps_and_a_bit_below_one);
    tcase_add_test(tcase, tanh_is_within_two_ulps_everywhere);
    tcase_add_test(tcase, silu_and_gelu_are_within_three_ulps);
    tcase_add_test(tcase, special_values_give_what_mathematics_says);
    tcase_add_test(tcase, sine_and_cosine_are_nearly_correctly_rounded_up_to_a_hundred_million);
    tcase_add_test(tcase, sine_and_cosine_of_odd_numbers_are_harmless);
    tcase_add_test(tcase, sums_are_those_of_sixteen_lanes_and_one_tree);
    tcase_add_test(tcase, an_int8_vector_holds_its_largest_value_and_poison_shows);
#if defined(__x86_64__)
    tcase_add_loop_test(tcase, vector_functions_give_the_bits_of_ref, 0, 2);
    tcase_add_loop_test(tcase, vector_sums_give_the_bits_of_ref, 0, 2);
#endif
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
