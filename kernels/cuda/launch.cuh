// Launching with programmatic dependence: the next kernel's blocks may start while this one's last are still at work.
//
// A kernel that is launched by bt_cuda_go calls bt_wait_before() before it touches anything that a kernel before it wrote or reads
// (weights, and what the host wrote before the step, are free before that), and bt_let_next() as soon as the next one's blocks may
// take what room is left. Every thread of such a kernel calls bt_wait_before(), also those that do nothing else: the kernel after it relies
// on that to know that the ones before both are over. Below sm_90 both do nothing and kernels follow each other whole.
#pragma once

#include "kernels/cuda/cuda.cuh"

#include <utility>

static __device__ __forceinline__ void
bt_wait_before(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void
bt_let_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Queues `kernel` on the device's stream, which may be being recorded. Shared memory beyond 48 KiB is asked for here, a launch at a
// time: what a kernel may have is the process's, and another engine on this GPU may ask for less meanwhile. More than shared_max is refused,
// as an older GPU would (BATON_CUDA_AS). Blocks of neighbouring x are clusters of `cluster` (1 below sm_90).
template <typename... P, typename... A>
static inline cudaError_t
bt_cuda_go_clustered(bt_cuda *cuda, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, uint32_t cluster,
                     A &&...args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    bool large =
        shared > 40 * 1024; // the 48 KiB that need no asking are of both kinds, and a kernel has some of its own
    cudaError_t error = shared <= cuda->shared_max ? cudaSuccess : cudaErrorInvalidValue;

    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster, attributes[1].val.clusterDim.y = 1, attributes[1].val.clusterDim.z = 1;
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = cuda->stream;
    config.attrs = attributes, config.numAttrs = !cuda->early_launch ? 0 : cluster > 1 ? 2 : 1;
    if (error != cudaSuccess) {
        return error;
    }
    if (large) {
        bt_cuda_lock_launch(true);
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    }
    error = error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...) : error;
    if (large) {
        bt_cuda_lock_launch(false);
    }
    return error;
}

template <typename... P, typename... A>
static inline cudaError_t
bt_cuda_go(bt_cuda *cuda, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A &&...args)
{
    return bt_cuda_go_clustered(cuda, kernel, grid, block, shared, 1, std::forward<A>(args)...);
}
