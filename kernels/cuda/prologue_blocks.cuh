// The prologue of activations in blocks of 128 columns (prologue_blocks.cu).
#pragma once

#include "kernels/cuda/row.cuh"

// Rows of x, and what becomes of them.
typedef struct {
    const float *x;
    size_t x_stride;
    bt_row_target to;
} bt_prologue_rows;

// Queues it, where rows lie at multiples of 16 bytes and are whole fours long; false: other kernels have to, since tokens are few, the blocks are others, sums or floats are wanted, or a row with a norm is too long.
bool bt_cuda_prologue_blocks(bt_cuda *cuda, const bt_prologue_rows *a, uint32_t tokens, cudaError_t *error);
