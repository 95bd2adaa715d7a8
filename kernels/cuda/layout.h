// The CUDA layout of a weight matrix: what a warp of tensor cores reads in its own order.
//
//     scales   [tile][block][16] fp16, then minima likewise (asymmetric); a tile is 16 output rows
//     codes    4 bits: [tile][unit of 128 columns][2][32 lanes][16 bytes], see below; other widths: [row][column] int8
//
// mma.m16n8k32 gives lane (g = lane / 4, t = lane % 4) four words of A: rows g and g + 8, columns 4t … and 16 + 4t … of the step.
// Which column stands where does not matter to an exact dot, as long as A and B agree: here word pairs of a step of 32 columns hold
// columns 8t … 8t + 3 and 8t + 4 … 8t + 7, so that a lane reads eight neighbouring activations.
//
//     4 bits   word (2 · (step % 2) + h) of half step / 2: byte j is column 8t + j of row g + 8h in the low and column 8t + 4 + j in
//              the high nibble. Symmetric: code − 8 in two's complement (a nibble in the high half of a byte is 16 times
//              itself); asymmetric: the code
//     others   symmetric: code − zero; asymmetric: the code. Natural order, as cuBLASLt wants it
//
// Rows are padded to 16, columns to 64 (4 bits: 128) with zeros. Float formats are row-major, rows padded to 16, columns to 64.
#pragma once

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BT_CUDA_TILE 16u

typedef struct {
    uint32_t tiles, blocks, padded; // padded: columns of codes
    bool nibbles;
    size_t minima_offset, codes_offset, bytes;
} bt_cuda_layout;

bt_cuda_layout bt_cuda_layout_of(bt_format format, uint32_t rows, uint32_t cols);
size_t bt_cuda_weight_bytes(bt_format format, uint32_t rows, uint32_t cols);
// Into host memory of weight->data.
void bt_cuda_weight_pack(const bt_weight *weight, uint32_t first_row, const bt_code_rows *codes);
void bt_cuda_weight_pack_floats(const bt_weight *weight, uint32_t first_row, uint32_t rows, const void *elements,
                                size_t stride);
void bt_cuda_weight_pack_f32(const bt_weight *weight, uint32_t first_row, uint32_t rows, const float *elements,
                             size_t stride);

#ifdef __cplusplus
}
#endif
