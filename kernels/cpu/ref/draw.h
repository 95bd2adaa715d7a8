// How a token is drawn from logits (DESIGN 7): Gumbel-max with noise keyed by (key, token id). One definition for the host's sampler
// (common/engine/row.c) and for devices that draw themselves.
#pragma once

#include "common/base/rng.h"
#include "kernels/cpu/ref/math.h"

// log of a normal x > 0, about 1 ulp: log(1 + f) = f − s · (f − R), s = f / (2 + f), R = Σ 2 s^(2k) / (2k + 1).
BT_MATH float
bt_ref_log(float x)
{
    int32_t bits = (int32_t)bt_bits_of_float(x), e = (bits - 0x3f3504f3) >> 23;
    float f = bt_float_of_bits((uint32_t)(bits - e * 0x800000)) - 1.0f;
    float s = f / (2.0f + f), z = s * s, r;

    r = fmaf(z, 2.0f / 9.0f, 2.0f / 7.0f);
    r = fmaf(z, r, 2.0f / 5.0f);
    r = fmaf(z, r, 2.0f / 3.0f);
    r = z * r;
    return fmaf((float)e, BT_LN2_HIGH, f - s * (f - r) + (float)e * BT_LN2_LOW);
}

// −log(−log u), u = (23 bits + ½) / 2^23, exact and never 0 or 1.
BT_MATH float
bt_ref_noise(uint64_t key, uint32_t id)
{
    float u = ((float)(int32_t)(bt_mix64(key + id) >> 41) + 0.5f) * 0x1p-23f;

    return -bt_ref_log(-bt_ref_log(u));
}

// What the largest of is drawn. `max` is the largest logit; what is none (NaN, +inf, a banned −inf) loses.
BT_MATH float
bt_ref_draw_score(float logit, float max, float inverse_t, uint64_t key, uint32_t id)
{
    float d = logit - max;

    d = d <= 0.0f ? d : -INFINITY;
    return d * inverse_t + bt_ref_noise(key, id);
}
