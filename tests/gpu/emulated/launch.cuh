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
bt_cuda_go(bt_cuda *, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A &&...args)
{
    for (uint32_t i = 0; i < grid.x; i++) {
        emulated_run(i, block.x, shared, [&]() { kernel(args...); });
    }
    return cudaSuccess;
}
