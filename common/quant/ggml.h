// The tensor types of GGUF files: how many bytes a row takes, its values, and its way into our own weight formats.
//
// Type numbers are ggml's and never change. Rows come from outside: their size has been checked against the file by
// whoever read it, their content may be anything. Pure functions; any thread.
#pragma once

#include "common/base/err.h"
#include "common/quant/format.h"

#include <stddef.h>

typedef enum {
    BT_GGML_F32 = 0,
    BT_GGML_F16 = 1,
    BT_GGML_Q4_0 = 2,
    BT_GGML_Q4_1 = 3,
    BT_GGML_Q5_0 = 6,
    BT_GGML_Q5_1 = 7,
    BT_GGML_Q8_0 = 8,
    BT_GGML_Q2_K = 10,
    BT_GGML_Q3_K = 11,
    BT_GGML_Q4_K = 12,
    BT_GGML_Q5_K = 13,
    BT_GGML_Q6_K = 14,
    BT_GGML_IQ4_NL = 20,
    BT_GGML_IQ4_XS = 23,
    BT_GGML_BF16 = 30,
    BT_GGML_TYPE_COUNT = 43 // numbers above are unknown to us
} bt_ggml_type;

// "Q4_K" …; "unknown" for numbers that name no type.
const char *bt_ggml_name(uint32_t type);
// Elements of a block and its bytes; both 0 for an unknown type.
uint32_t bt_ggml_block_cols(uint32_t type);
uint32_t bt_ggml_block_bytes(uint32_t type);
// Bytes of a row of `cols` elements, a multiple of the block.
size_t bt_ggml_row_bytes(uint32_t type, uint64_t cols);

// Whether rows of this type can be read: F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K…Q6_K IQ4_NL IQ4_XS. The others are
// known by size only.
bool bt_ggml_readable(uint32_t type);
// A readable row's values in f32, the same bits as ggml's reference gives. `row` may be unaligned.
void bt_ggml_dequantise(uint32_t type, const void *row, uint32_t cols, float *out);

// The weight format that a readable type is held in: its own where the family has it, else the nearest that loses
// nothing measurable (common/quant/README.md has the figures). BT_GGML_LOSSLESS: every value is the same number.
// BT_GGML_SCALES: codes are the file's, products of two scales are rounded to fp16. BT_GGML_REQUANTISED: sub-blocks of 16
// columns were put on the grid of one 8-bit block of 32.
typedef enum { BT_GGML_LOSSLESS, BT_GGML_SCALES, BT_GGML_REQUANTISED } bt_ggml_loss;
bt_format bt_ggml_format(uint32_t type, bt_ggml_loss *loss); // `loss` may be NULL

// A row of a readable block type in bt_ggml_format(): codes [bt_cols_padded(cols)], scales and minima
// [bt_format_blocks(…)]; minima are written for asymmetric formats only. Padding becomes zeros.
void bt_ggml_codes(uint32_t type, const void *row, uint32_t cols, uint8_t *codes, uint16_t *scales, uint16_t *minima);
