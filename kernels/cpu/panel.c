#include "kernels/cpu/panel.h"

#include "common/tensor/dtype.h"

#include <assert.h>
#include <string.h>

#define UNIT_CODES (BT_PANEL_ROWS * BT_UNIT_COLS)

bt_panel_layout
bt_panel_layout_of(bt_format format, uint32_t rows, uint32_t cols)
{
    bt_panel_layout layout = {
        .panels = (rows + BT_PANEL_ROWS - 1) / BT_PANEL_ROWS,
        .units = bt_cols_padded(cols) / BT_UNIT_COLS,
        .blocks = bt_format_blocks(format, cols),
        .unit_bytes = bt_panel_unit_bytes(format.bits),
        .scale_block = format.asymmetric ? 2 * BT_PANEL_ROWS : BT_PANEL_ROWS,
    };
    size_t scales = (size_t)layout.panels * layout.blocks * layout.scale_block * sizeof(uint16_t);

    layout.codes_offset = (scales + 63) / 64 * 64;
    layout.bytes = layout.codes_offset + (size_t)layout.panels * layout.units * layout.unit_bytes;
    return layout;
}

static size_t
element_bytes(bt_format format)
{
    return format.kind == BT_WEIGHT_F32 ? 4 : 2;
}

size_t
bt_panel_bytes(bt_format format, uint32_t rows, uint32_t cols)
{
    if (format.kind == BT_WEIGHT_INT) {
        return bt_panel_layout_of(format, rows, cols).bytes;
    }
    return (size_t)((rows + BT_PANEL_ROWS - 1) / BT_PANEL_ROWS * BT_PANEL_ROWS) * bt_cols_padded(cols) *
           element_bytes(format);
}

// The place of a code within its unit: vector and byte.
static inline unsigned
unit_index(unsigned row, unsigned col)
{
    return col / 4 * 64 + row * 4 + col % 4;
}

// Writes the plane of `width` bits of 256 values (64 · vector + byte).
static void
plane_put(uint8_t *plane, unsigned width, const uint8_t values[UNIT_CODES])
{
    const uint8_t *v0 = values, *v1 = values + 64, *v2 = values + 128, *v3 = values + 192;

    switch (width) {
    case 8:
        memcpy(plane, values, UNIT_CODES);
        break;
    case 4:
        for (unsigned i = 0; i < 64; i++) {
            plane[i] = (uint8_t)(v0[i] | v1[i] << 4);
            plane[64 + i] = (uint8_t)(v2[i] | v3[i] << 4);
        }
        break;
    case 2:
        for (unsigned i = 0; i < 64; i++) {
            plane[i] = (uint8_t)(v0[i] | v1[i] << 2 | v2[i] << 4 | v3[i] << 6);
        }
        break;
    default:
        for (unsigned i = 0; i < 32; i++) {
            plane[i] = (uint8_t)(v0[i] | v0[32 + i] << 1 | v1[i] << 2 | v1[32 + i] << 3 | v2[i] << 4 | v2[32 + i] << 5 |
                                 v3[i] << 6 | v3[32 + i] << 7);
        }
    }
}

// `index` is 64 · vector + byte.
static unsigned
plane_get(const uint8_t *plane, unsigned width, unsigned index)
{
    unsigned vector = index / 64, byte = index % 64;

    switch (width) {
    case 8:
        return plane[index];
    case 4:
        return plane[vector / 2 * 64 + byte] >> 4 * (vector % 2) & 15;
    case 2:
        return plane[byte] >> 2 * vector & 3;
    default:
        return plane[byte % 32] >> (2 * vector + byte / 32) & 1;
    }
}

// The width of the first plane; what is left, if anything, is the second.
static unsigned
wide_plane(unsigned bits)
{
    return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1;
}

static void
unit_pack(uint8_t *unit, unsigned bits, const uint8_t codes[UNIT_CODES])
{
    unsigned wide = wide_plane(bits), rest = bits - wide;
    uint8_t low[UNIT_CODES], high[UNIT_CODES];

    if (rest == 0) {
        plane_put(unit, wide, codes);
        return;
    }
    for (unsigned i = 0; i < UNIT_CODES; i++) {
        low[i] = (uint8_t)(codes[i] & ((1u << wide) - 1));
        high[i] = (uint8_t)(codes[i] >> wide);
    }
    plane_put(unit, wide, low);
    plane_put(unit + 32 * wide, rest, high);
}

static unsigned
unit_code(const uint8_t *unit, unsigned bits, unsigned index)
{
    unsigned wide = wide_plane(bits), rest = bits - wide;
    unsigned code = plane_get(unit, wide, index);

    return rest == 0 ? code : code | plane_get(unit + 32 * wide, rest, index) << wide;
}

// Scales of rows beyond the matrix are zero, so their outputs are.
static void
pack_scales(const bt_panel_layout *layout, uint8_t *data, uint32_t panel, uint32_t row, const bt_code_rows *codes)
{
    uint16_t *out = (uint16_t *)(uintptr_t)bt_panel_scales(layout, data, panel);

    for (uint32_t b = 0; b < layout->blocks; b++, out += layout->scale_block) {
        for (uint32_t i = 0; i < BT_PANEL_ROWS; i++) {
            size_t from = (size_t)(row + i) * layout->blocks + b;
            bool there = row + i < codes->rows;

            out[i] = there ? codes->scales[from] : 0;
            if (layout->scale_block > BT_PANEL_ROWS) {
                out[BT_PANEL_ROWS + i] = there ? codes->minima[from] : 0;
            }
        }
    }
}

static void
pack_codes(const bt_panel_layout *layout, uint8_t *data, unsigned bits, uint32_t panel, uint32_t row,
           const bt_code_rows *codes)
{
    uint8_t *out = (uint8_t *)(uintptr_t)bt_panel_codes(layout, data, panel);
    uint32_t cols = layout->units * BT_UNIT_COLS;

    for (uint32_t u = 0; u < layout->units; u++, out += layout->unit_bytes) {
        uint8_t unit[UNIT_CODES] = {0};

        for (uint32_t i = 0; i < BT_PANEL_ROWS && row + i < codes->rows; i++) {
            const uint8_t *from = codes->codes + (size_t)(row + i) * cols + u * BT_UNIT_COLS;

            for (unsigned c = 0; c < BT_UNIT_COLS; c += 4) {
                memcpy(unit + unit_index(i, c), from + c, 4);
            }
        }
        unit_pack(out, bits, unit);
    }
}

void
bt_panel_pack(const bt_weight *weight, uint32_t first_row, const bt_code_rows *codes)
{
    bt_panel_layout layout = bt_panel_layout_of(weight->format, weight->rows, weight->cols);

    assert(weight->format.kind == BT_WEIGHT_INT && first_row % BT_PANEL_ROWS == 0);
    assert(codes->cols == weight->cols && first_row + codes->rows <= weight->rows);
    assert(codes->rows % BT_PANEL_ROWS == 0 || first_row + codes->rows == weight->rows);
    for (uint32_t row = 0; row < codes->rows; row += BT_PANEL_ROWS) {
        uint32_t panel = (first_row + row) / BT_PANEL_ROWS;

        pack_scales(&layout, weight->data, panel, row, codes);
        pack_codes(&layout, weight->data, weight->format.bits, panel, row, codes);
    }
}

void
bt_panel_pack_floats(const bt_weight *weight, uint32_t first_row, uint32_t rows, const void *elements, size_t stride)
{
    size_t bytes = element_bytes(weight->format), row_bytes = bt_cols_padded(weight->cols) * bytes;
    uint8_t *out = weight->data + first_row * row_bytes;

    assert(weight->format.kind != BT_WEIGHT_INT && first_row + rows <= weight->rows);
    for (uint32_t r = 0; r < rows; r++, out += row_bytes) {
        memcpy(out, (const uint8_t *)elements + r * stride * bytes, weight->cols * bytes);
        memset(out + weight->cols * bytes, 0, row_bytes - weight->cols * bytes);
    }
    if (first_row + rows == weight->rows) { // the rows that pad the last panel
        memset(out, 0, (size_t)(weight->data + bt_panel_bytes(weight->format, weight->rows, weight->cols) - out));
    }
}

void
bt_panel_row_codes(const bt_weight *weight, uint32_t row, uint8_t *codes)
{
    bt_panel_layout layout = bt_panel_layout_of(weight->format, weight->rows, weight->cols);
    const uint8_t *unit = bt_panel_codes(&layout, weight->data, row / BT_PANEL_ROWS);

    for (uint32_t u = 0; u < layout.units; u++, unit += layout.unit_bytes) {
        for (unsigned c = 0; c < BT_UNIT_COLS; c++) {
            *codes++ = (uint8_t)unit_code(unit, weight->format.bits, unit_index(row % BT_PANEL_ROWS, c));
        }
    }
}

float
bt_panel_float(const bt_weight *weight, uint32_t row, uint32_t col)
{
    size_t at = (size_t)row * bt_cols_padded(weight->cols) + col;
    const void *data = weight->data;

    switch (weight->format.kind) {
    case BT_WEIGHT_F32:
        return ((const float *)data)[at];
    case BT_WEIGHT_F16:
        return bt_f16_to_f32(((const uint16_t *)data)[at]);
    default:
        return bt_bf16_to_f32(((const uint16_t *)data)[at]);
    }
}

void
bt_panel_row(const bt_weight *weight, uint32_t row, uint8_t *codes, uint16_t *scales, uint16_t *minima)
{
    bt_panel_layout layout = bt_panel_layout_of(weight->format, weight->rows, weight->cols);
    const uint16_t *from = bt_panel_scales(&layout, weight->data, row / BT_PANEL_ROWS) + row % BT_PANEL_ROWS;

    bt_panel_row_codes(weight, row, codes);
    for (uint32_t block = 0; block < layout.blocks; block++, from += layout.scale_block) {
        scales[block] = from[0];
        if (weight->format.asymmetric && minima != NULL) {
            minima[block] = from[BT_PANEL_ROWS];
        }
    }
}

void
bt_panel_row_floats(const bt_weight *weight, uint32_t row, float *out)
{
    for (uint32_t k = 0; k < weight->cols; k++) {
        out[k] = bt_panel_float(weight, row, k);
    }
}
