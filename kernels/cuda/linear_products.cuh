// Linear layers of many tokens whose weights have one scale a row: one exact dot an output, which cuBLASLt can take.
#pragma once

#include "kernels/cuda/linear_call.cuh"

// Does this call go by cuBLASLt? It then reads its activations as BT_A8_ROWS.
bool bt_cuda_wants_products(const bt_cuda *cuda, const linear_call *c);
// The call after its prologue.
bt_err bt_cuda_products(bt_cuda *cuda, const linear_call *c);
