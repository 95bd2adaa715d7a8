// The driver's maker of maps, found at run time: a program without a driver still starts.
#include "kernels/cuda/boxes.cuh"

#include <cuda_runtime.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn
find_encode(void)
{
    static encode_fn encode;
    cudaDriverEntryPointQueryResult found;
    void *at = NULL;

    if (encode == NULL &&
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault, &found) ==
            cudaSuccess &&
        found == cudaDriverEntryPointSuccess) {
        encode = (encode_fn)at;
    }
    return encode;
}

bool
bt_cuda_has_boxes(void)
{
    return find_encode() != NULL;
}

bool
bt_cuda_plane(CUtensorMap *map, CUtensorMapDataType type, const void *at, uint64_t width, uint64_t rows,
              uint64_t stride, uint32_t box_width, uint32_t box_rows, CUtensorMapSwizzle swizzle)
{
    cuuint64_t sizes[2] = {width, rows}, strides[1] = {stride};
    cuuint32_t box[2] = {box_width, box_rows}, steps[2] = {1, 1};

    return find_encode()(map, type, 2, (void *)at, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
