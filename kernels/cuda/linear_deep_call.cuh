// Prompts of symmetric 4-bit codes on warpgroups (sm_90a): linear_deep.cuh.
#pragma once

#include "kernels/cuda/linear_call.cuh"

// From so many tokens on it was faster than linear_wide.cuh; and of more than 8,192 columns (kernels/README.md).
#define BT_CUDA_DEEP_TOKENS 1921u
#define BT_CUDA_DEEP_TOKENS_LONG 385u

// Takes it this call? `order` is the one in which it wants the activations then.
bool bt_cuda_wants_deep(const bt_cuda *cuda, const linear_call *c, bt_cuda_a8_order *order);
bt_err bt_cuda_linear_deep(bt_cuda *cuda, const linear_call *c);
