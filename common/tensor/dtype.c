#include "common/tensor/dtype.h"

static uint32_t
bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    return bits;
}

static float
float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, 4);
    return value;
}

float
bt_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;

    if (exponent == 0x1f) { // a signalling NaN becomes quiet, as F16C does
        return float_of(sign | 0x7f800000 | fraction << 13 | (fraction != 0 ? 0x400000u : 0));
    }
    if (exponent == 0) {
        float value = (float)fraction * 0x1p-24f;

        return float_of(sign | bits_of(value));
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t
bt_f32_to_f16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    }
    if (magnitude >= 0x477ff000) { // 65520 and above round to infinity
        return (uint16_t)(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { // subnormal: let the adder round at 2^-24
        uint32_t rounded = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);

        return (uint16_t)(sign | rounded);
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112 << 10)));
}

uint16_t
bt_f32_to_bf16(float value)
{
    uint32_t bits = bits_of(value);

    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
