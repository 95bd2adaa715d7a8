// The fast form of linear layers, shared by all instruction sets: tiles of up to 16 tokens against panels of 16 rows.
//
// The tokens of a call are cut into tiles of nearly equal size, so that no token is left over. A tile's INT8 activations
// lie as the dot products read them:
//
//     a8       [cols padded / group][tokens][group] int8, where group is 4, or 64 for AMX
//     scales   [act blocks][tokens] f32
//     records  one set for each distinct block width among the matrices of the call, [blocks][2][tokens] 32-bit words:
//              the activation scale of the block (f32), and then
//                symmetric    −128 · Σ a8 (int32): where a dot over codes stored with 128 added begins
//                asymmetric   scale · (float)Σ a8 (f32): what the block's minimum multiplies
//
// A kernel gives r [tokens][16] of one panel before outliers and bias, which `finish` adds with the rest of the epilogue.
// Matrices below 8 bits are multiplied straight from their planes for a few tokens, and unpacked to 8-bit codes once a
// panel for more: then one kernel serves every width.
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#define BT_TILE_TOKENS 16u // at most, of any path
#define BT_SEGMENT_COLS 1024u
#define BT_TREE_DEPTH 12u // segments of one K: below 2^12

typedef struct {
    uint32_t tokens, first_token;
    uint32_t group;
    int8_t *a8;
    float *scales;
    uint32_t *records[3]; // by part; parts of equal block share
} bt_tile;

// One panel of one matrix against one tile.
typedef struct {
    const uint8_t *codes;   // units
    const uint16_t *scales; // fp16, `scale_step` further a block (0: one scale a row)
    uint32_t scale_step;
    uint32_t units;         // of the panel
    uint32_t block_units;   // units of a block; the last one may be shorter
    uint32_t segment_units; // units of a segment, a multiple of block_units
    const int8_t *a8;
    const uint32_t *records;
    uint32_t tokens;
    uint32_t first_unit; // 0; kernels count on in their copy
} bt_dot_args;

typedef void bt_dot_fn(const bt_dot_args *args, float *r); // r [tokens][16]

// What `finish` does to a panel's results of a tile.
typedef struct {
    const bt_linear_args *args;
    const bt_tile *tile;
    uint32_t part, panel; // of the gate matrix when paired
    float *r, *up;        // up NULL unless paired
    uint32_t y_col;       // of the panel's first row
} bt_finish_args;

// Dot products of the 16 rows of a panel of a float matrix with `tokens` rows of x, all [cols padded].
typedef struct {
    bt_weight_kind kind;
    const void *w;
    const float *x;
    uint32_t cols, tokens;
    float *r; // [tokens][16]
} bt_float_dot_args;

typedef struct {
    uint32_t tile_symmetric, tile_asymmetric; // tokens of a tile at most
    // Straight from the planes up to so many tokens a tile and tiles; beyond, panels are unpacked first.
    uint32_t direct_tokens, direct_tiles;
    uint32_t code_group;
    bool unpack_bytes; // 8-bit codes too
    // Row `token` of the call, normed and quantised, into place `slot` of a tile of `tile->tokens`. `unit_sums` [units] gets Σ a8 of
    // every 16 columns. `row` is [cols padded] floats of scratch.
    void (*quantise)(const bt_linear_args *args, uint32_t token, const bt_tile *tile, uint32_t slot, float *row,
                     int32_t *unit_sums);
    void (*norm)(const bt_linear_args *args, uint32_t token, float *row); // for float formats: [cols padded]
    bt_dot_fn *(*dot)(unsigned bits, bool asymmetric, uint32_t tokens);
    // NULL: always straight from the planes.
    void (*unpack)(const uint8_t *codes, bt_format format, uint32_t units,
                   uint8_t *out); // symmetric codes with zero at 128
    void (*float_dot)(const bt_float_dot_args *args);
    void (*finish)(const bt_finish_args *args);
} bt_linear_path;

extern const bt_linear_path bt_linear_amx; // calls of many tokens in blocks of 32 and more
extern const bt_linear_path bt_linear_avx512;
extern const bt_linear_path bt_linear_avx2;

bt_cpu_scratch bt_tiled_scratch(const bt_device_limits *limits);
void bt_tiled_linear(bt_device *device, const bt_linear_path *path, const bt_linear_args *args);

// Where the code of column k and token `slot` lies in a tile's a8.
static inline size_t
bt_tile_code(const bt_tile *tile, uint32_t k, uint32_t slot)
{
    return ((size_t)(k / tile->group) * tile->tokens + slot) * tile->group + k % tile->group;
}

// Whether outliers are added to a row.
static inline bool
bt_row_has_outliers(const bt_weight *w, uint32_t row)
{
    return w->outliers.row_start != NULL && row < w->rows &&
           w->outliers.row_start[row + 1] > w->outliers.row_start[row];
}
