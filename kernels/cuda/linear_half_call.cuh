// What the files of 16-bit linear calls share on the host's side.
#pragma once

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/linear_half_finish.cuh"

#define BT_CUDA_HALF_FEW 128u // tokens; above, clusters of 2 × 128 have enough of them

// Rows of 16-bit elements, `stride` elements apart, in boxes of 64 columns.
static inline bool
bt_cuda_half_plane(CUtensorMap *map, uint8_t kind, const void *at, uint64_t width, uint64_t rows, uint64_t stride,
                   uint32_t box_rows)
{
    return bt_cuda_plane(map,
                         kind == BT_WEIGHT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                         at, width, rows, stride * 2, 64, box_rows, CU_TENSOR_MAP_SWIZZLE_128B);
}

// More tokens than BT_CUDA_HALF_FEW (linear_half_prompt.cu).
bt_err bt_cuda_half_prompt(bt_cuda *cuda, bt_finish what, const linear_call *c, const half_out &out);
