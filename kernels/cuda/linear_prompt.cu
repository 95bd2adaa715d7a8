#include "kernels/cuda/linear_prompt.cuh"

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/linear_products.cuh"

// Rows of INT8 in boxes of 128 columns.
static bool
map_of(CUtensorMap *map, const void *at, uint64_t width, uint64_t rows, uint64_t stride, uint32_t box_rows)
{
    return bt_cuda_plane(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, at, width, rows, stride, PROMPT_K, box_rows,
                         CU_TENSOR_MAP_SWIZZLE_128B);
}

static bool
maps_of(const linear_call *c, prompt_maps *maps)
{
    bool good = map_of(&maps->a8, c->a8, c->a8_stride, bt_cuda_box_tokens(c->tokens), c->a8_stride, PROMPT_TOKENS);

    for (uint32_t i = 0; i < c->part_count; i++) {
        const bt_cuda_matrix *m = &c->part[i];

        good = good && map_of(&maps->codes[i], m->codes, m->padded, m->rows, m->padded, PROMPT_COLUMNS / 2);
    }
    return good;
}

bool
bt_cuda_has_prompt(void)
{
    cudaFuncAttributes code;

    if (cudaFuncGetAttributes(&code, prompt_kernel<BT_FINISH_STORE>) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return code.binaryVersion == 90 && code.ptxVersion >= 90 && bt_cuda_has_boxes();
}

bool
bt_cuda_wants_prompt(const bt_cuda *cuda, const linear_call *c)
{
    for (uint32_t i = 0; i < c->part_count; i++) {
        if (c->part[i].row_start != NULL || (c->paired && c->bias[i] != NULL)) {
            return false;
        }
    }
    return cuda->gemm && c->tokens >= BT_CUDA_PROMPT_TOKENS && c->softcap <= 0.0f &&
           c->epilogue != BT_LINEAR_GELU_MUL && c->y_stride % 2 == 0 && (uintptr_t)c->y % 8 == 0;
}

bt_err
bt_cuda_prompt(bt_cuda *cuda, const linear_call *c, uint32_t *amax)
{
    prompt_maps maps;
    prompt_cut p = bt_cuda_prompt_cut(c, (c->padded + PROMPT_K - 1) / PROMPT_K);
    unsigned blocks = (unsigned)(p.total < (unsigned)cuda->sms / 2 ? p.total : (unsigned)cuda->sms / 2) * 2;
    cudaError_t error;

    p.amax = amax;
    memset(&maps, 0, sizeof maps);
    if (!maps_of(c, &maps)) {
        return bt_cuda_check(cuda, cudaErrorInvalidValue, "linear, prompt: a map");
    }
    switch (c->epilogue) {
    case BT_LINEAR_STORE:
        error = bt_cuda_go_clustered(cuda, prompt_kernel<BT_FINISH_STORE>, blocks, PROMPT_THREADS, PROMPT_SHARED, 2,
                                     maps, *c, p);
        break;
    case BT_LINEAR_ADD:
        error = bt_cuda_go_clustered(cuda, prompt_kernel<BT_FINISH_ADD>, blocks, PROMPT_THREADS, PROMPT_SHARED, 2, maps,
                                     *c, p);
        break;
    default:
        error = bt_cuda_go_clustered(cuda, prompt_kernel<BT_FINISH_SILU>, blocks, PROMPT_THREADS, PROMPT_SHARED, 2,
                                     maps, *c, p);
    }
    return bt_cuda_check(cuda, error, "linear, prompt");
}
