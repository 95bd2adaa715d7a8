// The CPU layout of a weight matrix: panels of 16 output rows, one layout for every instruction set.
//
// Integer formats: all scales first, then all codes, so that a thread reads two plain streams.
//
//     scales  [panel][block][16] fp16; asymmetric [panel][block][2][16]: scales, then minima
//     codes   [panel][unit]: a unit is 16 columns × 16 rows = 256 codes, thought of as four vectors v0 … v3 of 64 bytes;
//             byte 4·row + (column mod 4) of vector j is the code of column 4j + (column mod 4) of the unit
//
//     bits    bytes of a unit       planes
//     8       256                   v0 v1 v2 v3
//     4       128                   byte i: v0[i] | v1[i] << 4, then v2[i] | v3[i] << 4
//     2       64                    byte i: v0[i] | v1[i] << 2 | v2[i] << 4 | v3[i] << 6
//     1       32                    byte i (of 32), bit 2j + h: bit of vj[i + 32 h]
//     6, 5, 3 192, 160, 96          4 + 2, 4 + 1, 2 + 1: the wide plane first
//
// This is what a dot-product instruction wants: it multiplies four neighbouring bytes of sixteen rows by four columns of one token. Rows
// are padded to 16 and columns to 64 with zero weights. Float formats are row-major, [rows padded][columns padded].
#pragma once

#include "common/quant/format.h"
#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

#define BT_PANEL_ROWS 16u
#define BT_UNIT_COLS 16u

typedef struct {
    uint32_t panels, units, blocks; // of the matrix; the last two are of one panel
    uint32_t unit_bytes;
    uint32_t scale_block; // fp16 numbers of one block: 16, or 32 with minima
    size_t codes_offset;
    size_t bytes;
} bt_panel_layout;

static inline uint32_t
bt_panel_unit_bytes(unsigned bits)
{
    return 32u * bits;
}

// Integer formats.
bt_panel_layout bt_panel_layout_of(bt_format format, uint32_t rows, uint32_t cols);

static inline const uint16_t *
bt_panel_scales(const bt_panel_layout *layout, const uint8_t *data, uint32_t panel)
{
    return (const uint16_t *)(const void *)data + (size_t)panel * layout->blocks * layout->scale_block;
}

static inline const uint8_t *
bt_panel_codes(const bt_panel_layout *layout, const uint8_t *data, uint32_t panel)
{
    return data + layout->codes_offset + (size_t)panel * layout->units * layout->unit_bytes;
}

size_t bt_panel_bytes(bt_format format, uint32_t rows, uint32_t cols);
void bt_panel_pack(const bt_weight *weight, uint32_t first_row, const bt_code_rows *codes);
void bt_panel_pack_floats(const bt_weight *weight, uint32_t first_row, uint32_t rows, const void *elements,
                          size_t stride);

// The codes of one row, [columns padded]; what ref and embed read.
void bt_panel_row_codes(const bt_weight *weight, uint32_t row, uint8_t *codes);
// The same with the row's scales and minima (NULL = not wanted), [blocks].
void bt_panel_row(const bt_weight *weight, uint32_t row, uint8_t *codes, uint16_t *scales, uint16_t *minima);
void bt_panel_row_floats(const bt_weight *weight, uint32_t row, float *out); // [cols]
// Element k of a row of a float format, widened.
float bt_panel_float(const bt_weight *weight, uint32_t row, uint32_t col);
