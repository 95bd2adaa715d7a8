// Linear layers with integer weights for 17 tokens and more on sm_90a, every sum in the order of kernels/cpu/ref/linear.c.
//
//     128 output rows (8 tiles) x N tokens x `run` segments of 1,024 columns a block of threads; neighbours may share K
//
//     warp 8         loads boxes by the copy engine, 128 columns a stage
//     warps 9 - 11   outliers of the rows that this block will finish, in the meantime
//     warps 0 - 3    four tiles: nibbles to bytes in registers (they are wgmma's A as they lie), wgmma, acc += scale * dot
//     warps 4 - 7    four tiles, paired calls: up to the others' gate; while one half scales, the other multiplies
//
// Then the partial sums of those that share K meet in global memory (the second-level cache): each block takes the rows of some tiles, adds
// the runs as the balanced tree, the outliers' sums, bias and so on. Clusters and their shared memory were tried: of 32 clusters of four only 29
// or so are at work at once on 132 multiprocessors, and the others waited for a second round.
//
// Roofline at N = 128: a stage is 512 cycles of tensor cores (4,096 INT8 products a cycle), 480 of instructions (three an output
// and block of 128: to float, scale, sum) and 24 KiB from the second-level cache, which gives about 25 bytes a cycle.
#pragma once

#include "kernels/cuda/linear_wide_finish.cuh"
#include "kernels/cuda/linear_wide_load.cuh"
#include "kernels/cuda/linear_wide_outliers.cuh"
#include "kernels/cuda/linear_wide_work.cuh"

// Who has written its sums (low half) and who has read them all (high half), of the blocks of threads that share K. Zero between launches.
static __device__ uint32_t wide_meetings[WIDE_MEETINGS];

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A thread of each block: its sums are written.
static __device__ __forceinline__ void
wide_arrive(uint32_t *meeting)
{
    __threadfence();
    atomicAdd(meeting, 1);
}

// Until all have arrived. Blocks of threads begin in the order of their numbers and these are neighbours, so those that are waited for
// are at work or next. Gives up after some seconds.
static __device__ __forceinline__ void
wide_wait(uint32_t *meeting, uint32_t ranks)
{
    for (uint32_t tries = 0; (*(volatile uint32_t *)meeting & 0xffff) != ranks; tries++) {
        if (tries > 100000000u) {
            __trap();
        }
        __nanosleep(20);
    }
    __threadfence();
}

// The last one leaves it as it was.
static __device__ __forceinline__ void
wide_leave(uint32_t *meeting, uint32_t ranks)
{
    if (atomicAdd(meeting, 0x10000) >> 16 == ranks - 1) {
        atomicExch(meeting, 0);
    }
}

#endif

template <int BITS, int BLOCK, bool ASYM, int N>
static __global__ void
__launch_bounds__(WIDE_THREADS, 1)
    wide_kernel(const __grid_constant__ wide_call w, const __grid_constant__ wide_maps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef wide<BITS, BLOCK, ASYM, N> W;
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x;
    uint32_t first = rank * w.c.run * SEGMENT,
             end = first + w.c.run * SEGMENT < w.c.padded ? first + w.c.run * SEGMENT : w.c.padded;
    uint32_t units = (end - first + WIDE_UNIT - 1) / WIDE_UNIT;
    float *partials = (float *)(memory + w.stages * W::stage_bytes);
    uint32_t place = blockIdx.z * gridDim.y + blockIdx.y, *meeting = &wide_meetings[w.c.groups > 1 ? place : 0];
    float *first_run = w.partials + (size_t)place * w.c.groups * (W::partials_bytes / 4);
    float *out = w.c.groups > 1 ? first_run + rank * (W::partials_bytes / 4) : partials;
    float *outliers = partials + W::partials_bytes / 4;
    uint32_t barriers_at = bt_shared_at(outliers) + w.outlier_bytes;
    uint32_t *taken = (uint32_t *)(outliers + w.outlier_bytes / 4 + WIDE_STAGES * 4);

    if (threadIdx.x == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < w.stages; i++) {
            bt_barrier_init(barriers_at + i * 16, 1);
            bt_barrier_init(barriers_at + i * 16 + 8, WIDE_WORKERS / 32);
        }
        *taken = 0;
        bt_barrier_init_done();
    }
    __syncthreads();
    bt_let_next();
    if (warp < WIDE_WORKERS / 32) {
        bt_registers_more<WIDE_WORKER_REGISTERS>();
        bt_wait_before();
        if constexpr (BLOCK == 0) {
            wide_work_whole<N>(w, memory, (int32_t *)out, barriers_at, units, warp, lane);
        } else {
            wide_work<BITS, BLOCK, ASYM, N>(w, memory, partials, out, barriers_at, first, units, warp, lane);
        }
        if (w.c.groups > 1) {
            __threadfence();
            bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS);
            if (threadIdx.x == 0) {
                wide_arrive(meeting);
            }
        }
        if (w.turned != NULL) {
            wide_outliers<N, 8>(w, rank, lane, taken, outliers);
        }
        __syncthreads();
        if (w.c.groups > 1) {
            if (threadIdx.x == 0) {
                wide_wait(meeting, w.c.groups);
            }
            bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS);
        }
        wide_finish<BITS, BLOCK, ASYM, N>(w, w.c.groups > 1 ? first_run : partials, outliers, rank, threadIdx.x);
        if (w.c.groups > 1) {
            bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS);
            if (threadIdx.x == 0) {
                wide_leave(meeting, w.c.groups);
            }
        }
    } else {
        bt_registers_fewer<WIDE_OTHER_REGISTERS>();
        if (warp == WIDE_WORKERS / 32) {
            wide_load<BITS, BLOCK, ASYM, N>(
                w, maps, wide_loader_of<BITS, BLOCK, ASYM, N>(w, bt_shared_at(memory), barriers_at, first, units),
                lane);
        } else {
            if (w.turned != NULL) {
                wide_outliers_ahead(w, rank, threadIdx.x - WIDE_WORKERS - 32, WIDE_THREADS - WIDE_WORKERS - 32);
            }
            bt_wait_before();
            if (w.turned != NULL) {
                wide_outliers<N, (N == 128 ? 2 : N == 64 ? 4 : 8)>(w, rank, lane, taken, outliers);
            }
        }
        __syncthreads();
    }
#endif
}
