// Weight formats: how the numbers of a weight matrix are held, described once for loaders, quantisers and kernels.
//
// A matrix has `rows` outputs and `cols` inputs (K). Integer formats hold unsigned codes of `bits` bits in blocks of
// `block` columns, each with an fp16 scale (and, asymmetric, an fp16 minimum):
//
//     symmetric    value = scale · (code − 2^(bits−1))        codes 0 … 2^bits − 1
//     asymmetric   value = scale · code + minimum
//
// Activations meet them as INT8 with one scale per `act_block` columns (a multiple of `block`, or BT_BLOCK_ROW: one scale
// a token). The order in which products are summed belongs to the format and is fixed by kernels/cpu/ref (DESIGN 7).
// K is padded to a multiple of 64 with zero weights when it is packed: a last partial block has its own scale.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    BT_WEIGHT_F32,
    BT_WEIGHT_F16,
    BT_WEIGHT_BF16,
    BT_WEIGHT_INT,
} bt_weight_kind;

#define BT_BLOCK_ROW 0u // one scale for a whole row (w8) or token

typedef struct {
    uint8_t kind;       // bt_weight_kind; the fields below are for BT_WEIGHT_INT
    uint8_t bits;       // 2, 3, 4, 5, 6, 8
    bool asymmetric;    // bits 4, 5, 6 (and 2, 3 on import)
    uint16_t block;     // 16 (import of 16-wide sub-blocks only), 32, 64, 128, or BT_BLOCK_ROW with bits 8
    uint16_t act_block; // 32, 64, 128 or BT_BLOCK_ROW
} bt_format;

static inline bool
bt_format_equal(bt_format a, bt_format b)
{
    return a.kind == b.kind && (a.kind != BT_WEIGHT_INT || (a.bits == b.bits && a.asymmetric == b.asymmetric &&
                                                            a.block == b.block && a.act_block == b.act_block));
}

static inline uint32_t
bt_cols_padded(uint32_t cols)
{
    return (cols + 63) / 64 * 64;
}

// Scales (and minima) a row.
static inline uint32_t
bt_format_blocks(bt_format format, uint32_t cols)
{
    return format.block == BT_BLOCK_ROW ? 1 : (bt_cols_padded(cols) + format.block - 1) / format.block;
}

// A lasting name: "f32", "bf16", "q4_32" (4 bit, block 32), "q4a_32" (asymmetric), "w8" (row scale), "w8_g128" …
// `out` holds at least 24 bytes.
const char *bt_format_name(bt_format format, char out[24]);
// BT_OK when the combination is one of the family above.
bool bt_format_valid(bt_format format);
// Bits a weight including scales and minima, for plans and reports.
double bt_format_bits(bt_format format);

// Rows of a matrix in exchange form, between a reader or quantiser and a packer: one code a byte.
typedef struct {
    uint32_t rows, cols;    // true columns; arrays below have bt_cols_padded(cols) columns
    const uint8_t *codes;   // [rows, cols_padded], padding = the code of zero
    const uint16_t *scales; // [rows, blocks] fp16
    const uint16_t *minima; // [rows, blocks] fp16, asymmetric only
} bt_code_rows;

// Outliers: fp16 deltas added to a few weights, in CSR by row. They multiply scale_a · (float)a8 and are added once, after
// everything else of the row (DESIGN 7), in rising column order.
typedef struct {
    uint32_t *row_start; // [rows + 1]
    uint32_t *cols;      // [row_start[rows]]
    uint16_t *deltas;    // fp16
} bt_outliers;
