// The 16-bit float types, to and from f32 (the quantised weight formats are common/quant/format.h).
#pragma once

#include <stdint.h>
#include <string.h>

static inline float
bt_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, 4);
    return value;
}

// IEEE binary16, subnormals and infinities included; to nearest even on the way back. The same bits as F16C.
float bt_f16_to_f32(uint16_t bits);
uint16_t bt_f32_to_f16(float value);
// bfloat16 to nearest even; a NaN stays a NaN.
uint16_t bt_f32_to_bf16(float value);
