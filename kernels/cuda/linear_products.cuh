// Linear layers of many tokens whose weights have one scale a row: one exact dot an output, which cuBLASLt can take.
//
// What becomes of its products is decided by what comes next. Alone, they are finished to y. Where the caller said who reads y
// (bt_linear_next) and that call will come by here too, a block of threads takes a whole token's row, finishes it, and leaves the INT8 that
// the next call begins with: y is not read again, and where nobody else reads it, not written either. The device remembers for which call
// that is (bt_cuda_ready); with any other call, or a write to activations in between, it is forgotten.
#pragma once

#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/row.cuh"

// Do calls with these weights and so many tokens go by cuBLASLt? They read their activations as BT_A8_ROWS.
bool bt_cuda_wants_products(const bt_cuda *cuda, const bt_weight *const *weights, uint32_t count, uint32_t tokens);
// Such a call, its prologue included.
bt_err bt_cuda_products(bt_cuda *cuda, const bt_linear_args *args, linear_call *c);

// Of `tokens` tokens the products s to whole rows of y (written if `write`), and from them what `to` wants (linear_rows.cu). One part or
// a pair; y and to->norm at multiples of 16 bytes; at most BT_CUDA_ROWS_COLS columns.
#define BT_CUDA_ROWS_COLS 32768u // shared memory holds them
bt_err bt_cuda_finish_rows(bt_cuda *cuda, const linear_call *c, const bt_products *s, uint32_t tokens,
                           const bt_row_target *to, bool write);
