// A weight matrix as kernels see it, and its numbers one by one.
#pragma once

#include "kernels/cpu/ref/math.h"
#include "kernels/cuda/cuda.cuh"

typedef struct {
    const uint8_t *codes; // or floats
    const __half *scales, *minima;
    const uint32_t *row_start, *outlier_cols; // outliers; NULL = none
    const __half *deltas;
    uint32_t rows, cols, padded, tiles, blocks, block, act_block;
    uint8_t kind, bits;
    bool asymmetric, nibbles;
} bt_cuda_matrix;

static inline bt_cuda_matrix
bt_cuda_matrix_of(const bt_weight *w)
{
    bt_cuda_layout l = bt_cuda_layout_of(w->format, w->rows, w->cols);
    bt_cuda_matrix m;

    memset(&m, 0, sizeof m);
    m.codes = w->data + l.codes_offset;
    m.scales = (const __half *)w->data;
    m.minima = (const __half *)(w->data + l.minima_offset);
    m.row_start = w->outliers.row_start;
    m.outlier_cols = w->outliers.cols;
    m.deltas = (const __half *)w->outliers.deltas;
    m.rows = w->rows, m.cols = w->cols, m.padded = l.padded, m.tiles = l.tiles, m.blocks = l.blocks;
    m.block = w->format.block, m.act_block = w->format.act_block;
    m.kind = w->format.kind, m.bits = w->format.bits;
    m.asymmetric = w->format.asymmetric, m.nibbles = l.nibbles;
    return m;
}

// Code minus zero (asymmetric: the code).
static __device__ __forceinline__ int
bt_cuda_code(const bt_cuda_matrix *m, uint32_t row, uint32_t k)
{
    uint32_t byte;

    if (!m->nibbles) {
        return (int8_t)m->codes[(size_t)row * m->padded + k];
    }
    byte = m->codes[((size_t)(row / 16) * (m->padded / 128) + k / 128) * 1024 + k % 128 / 64 * 512 +
                    (row % 8 * 4 + k % 32 / 8) * 16 + (2 * (k % 64 / 32) + row % 16 / 8) * 4 + k % 4];
    byte = k % 8 >= 4 ? byte >> 4 : byte & 15;
    return m->asymmetric ? (int)byte : (int)(byte ^ 8) - 8;
}

static __device__ __forceinline__ float
bt_cuda_scale(const bt_cuda_matrix *m, const __half *of, uint32_t row, uint32_t block)
{
    return __half2float(of[((size_t)(row / 16) * m->blocks + block) * 16 + row % 16]);
}

static __device__ __forceinline__ float
bt_cuda_float(const bt_cuda_matrix *m, uint32_t row, uint32_t k)
{
    size_t at = (size_t)row * m->padded + k;

    if (m->kind == BT_WEIGHT_F32) {
        return ((const float *)m->codes)[at];
    }
    return m->kind == BT_WEIGHT_F16 ? __half2float(((const __half *)m->codes)[at])
                                    : __uint_as_float((uint32_t)((const uint16_t *)m->codes)[at] << 16);
}

// As embedding wants it: dequantised, with its outlier.
static __device__ __forceinline__ float
bt_cuda_value(const bt_cuda_matrix *m, uint32_t row, uint32_t k)
{
    uint32_t block = m->block == BT_BLOCK_ROW ? 0 : k / m->block;
    float scale, value;

    if (m->kind != BT_WEIGHT_INT) {
        return bt_cuda_float(m, row, k);
    }
    scale = bt_cuda_scale(m, m->scales, row, block);
    value = m->asymmetric ? fmaf(scale, (float)bt_cuda_code(m, row, k), bt_cuda_scale(m, m->minima, row, block))
                          : scale * (float)bt_cuda_code(m, row, k);
    if (m->row_start != NULL) {
        for (uint32_t i = m->row_start[row]; i < m->row_start[row + 1]; i++) {
            if (m->outlier_cols[i] == k) {
                value += __half2float(m->deltas[i]);
            }
        }
    }
    return value;
}

// One of the sixteen lanes of bt_ref_sumsq16.
static __device__ __forceinline__ float
bt_cuda_lane16(const float *x, uint32_t count, uint32_t lane)
{
    float sum = 0.0f;

    for (uint32_t i = lane; i < (count + 15) / 16 * 16; i += 16) {
        sum = i < count ? fmaf(x[i], x[i], sum) : fmaf(0.0f, 0.0f, sum);
    }
    return sum;
}
