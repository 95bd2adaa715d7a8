// INT8 activations that are ready when a linear call begins: the call before it (linear or attention) was told who reads what it writes
// (bt_linear_next), knew whole blocks of it, and left their codes and scales in a8_next and sa_next, while its own lie in a8 and sa. The
// device remembers for which call that is (bt_cuda_ready). Where that one comes, the two pairs change places; with any other, or a write to
// activations in between, it is forgotten and the prologue's kernel runs as ever.
//
// Nothing that is still being read is overwritten: who writes a8_next has waited for all kernels before it (launch.cuh), and the last that
// read that memory, as a8 then, is one of them.
//
// The numbers are those of the prologue: bt_ref_int8_scale of a block's largest, bt_row_codes4.
#pragma once

#include "kernels/cuda/row.cuh"

// Will the call that comes next, with `tokens` tokens, begin with INT8 of y as it is, in blocks of 128 columns and without sums of them? Then
// in which order (linear.cu). False also where that is not known, and of one token, whose codes the kernel of few tokens makes itself.
bool bt_cuda_next_order(bt_cuda *cuda, const bt_linear_next *next, uint32_t tokens, bt_cuda_a8_order *order);

// Where what the next call begins with belongs.
bt_row_target bt_cuda_next_target(const bt_cuda *cuda, const bt_linear_next *next, uint32_t tokens,
                                  bt_cuda_a8_order order);

// It is being written there, from y. `alone`: y itself is not written.
void bt_cuda_remember(bt_cuda *cuda, const bt_linear_next *next, const float *y, size_t y_stride, uint32_t tokens,
                      bt_cuda_a8_order order, bool alone);

// What a kernel leaves of its y, where that is in blocks of 128 columns.
typedef struct {
    bt_row_target to; // a8 NULL: nothing
    bool write;       // y itself, too
} bt_cuda_leaves;
