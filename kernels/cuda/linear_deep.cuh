// Linear layers of symmetric 4-bit codes in blocks of 128, prompts of many tokens (sm_90a), every sum in the order of kernels/cpu/ref/linear.c.
//
//     cluster        two blocks of threads: 2 x 128 output rows x 128 tokens, all of K. Each loads its own codes and half of the tokens
//                    for both: 16 KiB a stage of 128 columns from the second-level cache instead of 24
//     warps 0 - 3    four tiles (64 rows) x 128 tokens, as two products of 64 tokens: while one is on its way the other's sums are scaled
//     warps 4 - 7    likewise, of paired calls up to the others' gate
//     warp 8         has the copy engine fill stages, tile after tile
//     warps 9 - 11   outliers of the tile in progress, to global memory, for the end of the tile
//
// Blocks are as many as there are multiprocessors and go on to the next tile by themselves, its first product on its way before the last
// one's outputs are stored. A segment's sums wait for their partner of the tree where their thread put them (deep_join).
//
// Roofline: a stage is 512 cycles of tensor cores (4,096 INT8 products a cycle) and, of each scheduler, about 500 instructions (three an
// output and block of 128: to float, scale, sum; and what unpacks codes and reads scales).
#pragma once

#include "kernels/cuda/linear_deep_finish.cuh"
#include "kernels/cuda/linear_deep_load.cuh"
#include "kernels/cuda/linear_deep_outliers.cuh"
#include "kernels/cuda/linear_deep_work.cuh"

static __global__ void
__launch_bounds__(DEEP_THREADS, 1)
    deep_kernel(const __grid_constant__ deep_call d, const __grid_constant__ deep_maps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, rank = bt_cluster_rank();
    uint32_t at = bt_shared_at(memory);

    deep_begin(at);
    if (warp < DEEP_WORKERS / 32) {
        bt_registers_more<200>();
        deep_work(d, memory, at, rank, warp, lane);
    } else {
        bt_registers_fewer<104>();
        if (warp == DEEP_WORKERS / 32) {
            deep_load(d, maps, at, rank);
        } else if (d.w.turned != NULL) {
            deep_outliers(d, at, rank, warp - DEEP_WORKERS / 32 - 1, lane);
        }
        __syncwarp();
    }
    bt_cluster_sync(); // nobody leaves while the other may still write here
#endif
}
