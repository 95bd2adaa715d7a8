// What happens to a token's row before it meets the weights: RMSNorm if there is one, and INT8.
#pragma once

#include "common/quant/format.h"

#include <stdint.h>

// out[cols padded] = norm == NULL ? x : (x · factor) · norm, zeros behind.
void bt_ref_norm_row(const float *x, uint32_t cols, const float *norm, float eps, float *out);

// Activation blocks of a row: scale and codes of each `act_block` columns (BT_BLOCK_ROW: of the whole row).
uint32_t bt_ref_act_blocks(uint32_t act_block, uint32_t cols);
void bt_ref_quantise_row(const float *x, uint32_t cols, uint32_t act_block, int8_t *codes, float *scales);
