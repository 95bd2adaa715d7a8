// Quantising float rows: the scale of each block is searched so that the error weighted by how much each column matters
// is least, and the few weights that hurt most are kept as fp16 outliers.
//
// `importance` is the second moment E[x_j²] of the layer's input column j over calibration text: the diagonal of the
// layer's Hessian, so that Σ_j importance_j · (w_j − ŵ_j)² is the expected squared error of an output (the idea behind
// llama.cpp's imatrix and GPTQ's diagonal). Rounding to nearest alone costs small models half their quality (DESIGN 6).
// Pure functions of their arguments: the same codes on every machine; any thread.
#pragma once

#include "common/base/err.h"
#include "common/quant/format.h"

#include <stddef.h>

#define BT_SEARCH_ROWS 64   // rows a call takes: also the tile within which outliers compete
#define BT_SEARCH_CROWDED 4 // a row gets at most so many times its even share of them

typedef struct {
    uint16_t row, delta; // row within the call; fp16 bits of w − ŵ
    uint32_t col;
} bt_outlier;

typedef struct {
    bt_format format; // symmetric integer formats, bits 2…8
    uint32_t cols;
    const float *importance; // [cols], NULL = all columns alike
    float outlier_share;     // of the weights, as in 0.001; 0 = none
    bool hasty; // no search: the largest value of a block at the end of the range. Quick and worse, for measuring speed
} bt_search;

// Outliers one row gets at most. Without a limit a row of large weights would get nearly all of its 64's, which no quality
// comes of (README, "Quality"), and whose sum is one chain that a GPU waits for (kernels/README.md).
size_t bt_search_outliers_of_row(const bt_search *search);

// Outliers one call may yield at most: room for `outliers` below.
size_t bt_search_outliers_max(const bt_search *search);

// x [rows ≤ 64, cols] f32, rows `stride` floats apart, to codes [rows, bt_cols_padded(cols)], scales [rows, blocks] and
// outliers in rising (row, col). Weights that are not finite count as zero. BT_ERR_NO_MEMORY leaves nothing behind.
bt_err bt_search_rows(const bt_search *search, const float *x, uint32_t rows, size_t stride, uint8_t *codes,
                      uint16_t *scales, bt_outlier *outliers, size_t *outlier_count);

// Smoothing (SmoothQuant, arXiv 2211.10438): factors by which input columns are divided and weight columns multiplied, so
// that activations with a few large columns fit INT8. s_j = sqrt(amax_x_j / amax_w_j), kept within 1/16 … 16 of the
// geometric mean 1; columns that are never used get 1. amax_x, amax_w, factors: [cols].
void bt_smoothing_factors(const float *amax_x, const float *amax_w, uint32_t cols, float *factors);
