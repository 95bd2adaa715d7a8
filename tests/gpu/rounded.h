// What a GPU computes where layers have 16-bit weights, by the CPU: the twin of kernels/cuda/linear_half.cuh but for the order of sums.
#pragma once

#include "common/engine/engine.h"
#include "common/quant/format.h"

// x [cols], normed, as it meets weights of this kind (BT_WEIGHT_F16 or BT_WEIGHT_BF16), in place. F16's rows are scaled, rounded and scaled back,
// which is exact but for numbers near the smallest.
void bt_round_row(float *x, uint32_t cols, uint8_t kind);

// From now on a CPU's engine rounds the activations of calls whose weights are all F16 or all BF16. One engine a program at a time.
void bt_round_engine(bt_engine *engine);
