#include "kernels/cuda/layout.h"

#include "common/tensor/dtype.h"

#include <string.h>

static uint32_t
rounded(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static size_t
element_bytes(bt_format format)
{
    return format.kind == BT_WEIGHT_F32 ? 4 : 2;
}

bt_cuda_layout
bt_cuda_layout_of(bt_format format, uint32_t rows, uint32_t cols)
{
    bt_cuda_layout l = {.tiles = (rows + BT_CUDA_TILE - 1) / BT_CUDA_TILE};
    size_t scales;

    if (format.kind != BT_WEIGHT_INT) {
        l.padded = bt_cols_padded(cols);
        l.bytes = (size_t)l.tiles * BT_CUDA_TILE * l.padded * element_bytes(format);
        return l;
    }
    l.nibbles = format.bits == 4 && format.block != 16;
    l.padded = rounded(cols, l.nibbles ? 128 : 64);
    l.blocks = bt_format_blocks(format, cols);
    scales = ((size_t)l.tiles * l.blocks * BT_CUDA_TILE * 2 + 255) / 256 * 256;
    l.minima_offset = scales;
    l.codes_offset = format.asymmetric ? 2 * scales : scales;
    l.bytes = l.codes_offset + (size_t)l.tiles * BT_CUDA_TILE * l.padded / (l.nibbles ? 2 : 1);
    return l;
}

size_t
bt_cuda_weight_bytes(bt_format format, uint32_t rows, uint32_t cols)
{
    return bt_cuda_layout_of(format, rows, cols).bytes;
}

static void
put_nibble(uint8_t *codes, const bt_cuda_layout *l, uint32_t row, uint32_t col, uint8_t nibble)
{
    uint32_t tile = row / 16, h = row % 16 / 8, g = row % 8, unit = col / 128, step = col % 128 / 32;
    uint32_t t = col % 32 / 8, high = col % 8 / 4, j = col % 4;
    size_t at = ((size_t)tile * (l->padded / 128) + unit) * 1024 + step / 2 * 512 + (g * 4 + t) * 16 +
                (2 * (step % 2) + h) * 4 + j;

    codes[at] = (uint8_t)(high ? (codes[at] & 0x0f) | nibble << 4 : (codes[at] & 0xf0) | nibble);
}

static void
pack_row(const bt_weight *w, const bt_cuda_layout *l, uint32_t row, const uint8_t *from)
{
    uint32_t padded = bt_cols_padded(w->cols), zero = w->format.asymmetric ? 0 : 1u << (w->format.bits - 1);
    uint8_t *codes = w->data + l->codes_offset;

    for (uint32_t k = 0; k < l->padded; k++) {
        uint8_t code = k < padded ? (uint8_t)(from[k] - zero) : 0;

        if (l->nibbles) {
            put_nibble(codes, l, row, k, code & 15);
        } else {
            codes[(size_t)row * l->padded + k] = code;
        }
    }
}

void
bt_cuda_weight_pack(const bt_weight *w, uint32_t first_row, const bt_code_rows *rows)
{
    bt_cuda_layout l = bt_cuda_layout_of(w->format, w->rows, w->cols);
    uint32_t padded = bt_cols_padded(w->cols);

    for (uint32_t i = 0; i < rows->rows; i++) {
        uint32_t row = first_row + i;

        pack_row(w, &l, row, rows->codes + (size_t)i * padded);
        for (uint32_t b = 0; b < l.blocks; b++) {
            size_t at = ((size_t)(row / 16) * l.blocks + b) * 16 + row % 16;

            ((uint16_t *)(void *)w->data)[at] = rows->scales[(size_t)i * l.blocks + b];
            if (w->format.asymmetric) {
                ((uint16_t *)(void *)(w->data + l.minima_offset))[at] = rows->minima[(size_t)i * l.blocks + b];
            }
        }
    }
}

void
bt_cuda_weight_pack_floats(const bt_weight *w, uint32_t first_row, uint32_t rows, const void *elements, size_t stride)
{
    size_t bytes = element_bytes(w->format), padded = bt_cols_padded(w->cols);

    for (uint32_t i = 0; i < rows; i++) {
        uint8_t *to = w->data + (first_row + i) * padded * bytes;

        memcpy(to, (const uint8_t *)elements + i * stride * bytes, w->cols * bytes);
        memset(to + w->cols * bytes, 0, (padded - w->cols) * bytes);
    }
}

void
bt_cuda_weight_pack_f32(const bt_weight *w, uint32_t first_row, uint32_t rows, const float *elements, size_t stride)
{
    size_t padded = bt_cols_padded(w->cols);

    if (w->format.kind == BT_WEIGHT_F32) {
        bt_cuda_weight_pack_floats(w, first_row, rows, elements, stride);
        return;
    }
    for (uint32_t i = 0; i < rows; i++) {
        uint16_t *to = (uint16_t *)(void *)w->data + (first_row + i) * padded;

        for (uint32_t k = 0; k < padded; k++) {
            float value = k < w->cols ? elements[i * stride + k] : 0.0f;

            to[k] = w->format.kind == BT_WEIGHT_F16 ? bt_f32_to_f16(value) : bt_f32_to_bf16(value);
        }
    }
}
