// Element types of arrays outside the quantised weight formats (those are common/quant/format.h).
#pragma once

#include <stdint.h>
#include <string.h>

typedef enum { BT_F32, BT_F16, BT_BF16 } bt_dtype;

static inline unsigned
bt_dtype_bytes(bt_dtype dtype)
{
    return dtype == BT_F32 ? 4 : 2;
}

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
