// One row of add_norm, by instruction set: x[i] = fma(scale, (y[i] · factor) · norm[i], x[i]), or fma(scale, y[i], x[i])
// without norm; factor = 1 / √(sumsq16(y) / cols + eps).
#pragma once

#include "kernels/ops.h"

void bt_ref_add_norm_row(const bt_add_norm_args *args, uint32_t token);
void bt_avx2_add_norm_row(const bt_add_norm_args *args, uint32_t token);
void bt_avx512_add_norm_row(const bt_add_norm_args *args, uint32_t token);
