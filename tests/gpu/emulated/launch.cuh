// launch.cuh where kernels are emulated: they follow each other whole.
#pragma once

#include "kernels/cuda/cuda.cuh"

static inline void
bt_wait_before(void)
{
}

static inline void
bt_let_next(void)
{
}

template <typename... P, typename... A>
static inline cudaError_t
bt_cuda_go_clustered(bt_cuda *cuda, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, uint32_t cluster,
                     A &&...args)
{
    if (shared > cuda->shared_max) {
        return cudaErrorInvalidValue;
    }
    emu_run(grid, block, shared, cluster, [&]() { kernel(args...); });
    return cudaSuccess;
}

template <typename... P, typename... A>
static inline cudaError_t
bt_cuda_go(bt_cuda *cuda, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A &&...args)
{
    return bt_cuda_go_clustered(cuda, kernel, grid, block, shared, 1, args...);
}
