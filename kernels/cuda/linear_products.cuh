// Linear layers of many tokens whose weights have one scale a row: one exact dot an output, which cuBLASLt can take.
//
// What becomes of its products is decided by what comes next. Alone, they are finished to y. Where the caller said who reads y
// (bt_linear_next) and that call will come by here too, a block of threads takes a whole token's row, finishes it, and leaves the INT8 that
// the next call begins with (ready.cuh): y is not read again, and where nobody else reads it, not written either.
#pragma once

#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/row.cuh"

// Does this call come by here? It then reads its activations as BT_A8_ROWS.
bool bt_cuda_wants_products(const bt_cuda *cuda, const bt_linear_args *args, const linear_call *c);
// Such a call, its prologue included.
bt_err bt_cuda_products(bt_cuda *cuda, const bt_linear_args *args, linear_call *c);

// Of `tokens` tokens the products s to whole rows of y (written if `write`), and from them what `to` wants (linear_rows.cu). One part or
// a pair; y and to->norm at multiples of 16 bytes; bt_cuda_rows_fit of its columns.
bt_err bt_cuda_finish_rows(bt_cuda *cuda, const linear_call *c, const bt_products *s, uint32_t tokens,
                           const bt_row_target *to, bool write);

// Does shared memory hold a row of so many columns? 58,000 on Hopper, 41,000 on sm_80, 25,000 on sm_86 and sm_89.
static inline bool
bt_cuda_rows_fit(const bt_cuda *cuda, uint32_t cols)
{
    return cols * sizeof(float) + sizeof(bt_row_shared) <= cuda->shared_max;
}

// ---- sm_90a: products and what follows them in one kernel (linear_prompt.cuh) ----

#define BT_CUDA_PROMPT_TOKENS 256u // below, half of the blocks would have no tokens

bool bt_cuda_wants_prompt(const bt_cuda *cuda, const linear_call *c);
// y of all tokens, its activations being there; of a pair also the largest of each row and of what is in `amax` (0), as bits, unless that is NULL.
bt_err bt_cuda_prompt(bt_cuda *cuda, const linear_call *c, uint32_t *amax);
// INT8 of y, whose rows' largest are known and are 0 again then (linear_rows.cu).
bt_err bt_cuda_encode_rows(bt_cuda *cuda, const linear_call *c, uint32_t *amax, const bt_row_target *to);
