// The specification of linear layers, in plain C: one output of one token at a time.
#pragma once

#include "kernels/ops.h"

#include <stddef.h>

// Rows `first_row … end_row − 1` of every token. With a *_MUL epilogue these are rows of the gate and up matrices alike,
// else of the concatenation of all parts. `scratch` holds bt_ref_linear_scratch(cols) bytes.
void bt_ref_linear_rows(const bt_linear_args *args, uint32_t token, uint32_t first_row, uint32_t end_row,
                        void *scratch);
size_t bt_ref_linear_scratch(uint32_t cols);
