// Linear layers of many tokens on warpgroups (sm_90a): linear_wide.cuh.
#pragma once

#include "kernels/cuda/linear_call.cuh"
#include "kernels/cuda/ready.cuh"

#define BT_CUDA_WIDE_TOKENS 17u
#define BT_CUDA_WIDE_TOKENS_4 9u // of symmetric codes of four bits

// Takes it this call? `order` is the one in which it wants the activations then.
bool bt_cuda_wants_wide(const bt_cuda *cuda, const linear_call *c, bt_cuda_a8_order *order);
// `leaves`: what it is to leave of y, beside that or instead; a8 becomes NULL where it leaves nothing.
bt_err bt_cuda_linear_wide(bt_cuda *cuda, const linear_call *c, bt_cuda_leaves *leaves);
