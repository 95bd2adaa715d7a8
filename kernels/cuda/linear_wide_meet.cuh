// linear_wide.cuh: how blocks of threads that share K meet.
//
// Those of a cluster read each other's shared memory. But of 32 clusters of four only about 29 are at work at once on 132 multiprocessors,
// so O and down (32 tiles of 128 rows) took two rounds. There the sums of each block go to global memory (the second-level cache) in one bulk
// copy instead, each block waits for its neighbours', and any free multiprocessor takes any block (linear_wide_launch.cuh, cut).
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// All sums of the cluster are there.
static __device__ __forceinline__ void
wide_meet(const wide_call &w)
{
    if (w.c.groups > 1 && w.runs == NULL) {
        bt_cluster_arrive();
        bt_cluster_wait();
    } else {
        bt_block_sync(); // those that multiply come from another place than the others
    }
}

// The place of those that share K with this block, its meeting there and the sums of the first.
static __device__ __forceinline__ uint32_t *
wide_meeting(const wide_call &w)
{
    return w.meetings + WIDE_TURNS + blockIdx.z * gridDim.y + blockIdx.y;
}

static __device__ __forceinline__ float *
wide_runs(const wide_call &w, uint32_t bytes)
{
    return w.runs + (size_t)(blockIdx.z * gridDim.y + blockIdx.y) * w.c.groups * (bytes / 4);
}

// The multiplying warps, when their sums lie in shared memory: out they go, and who waits hears of it. A meeting counts the blocks that have
// sent, and is 0 again with the last, as it was before the first: who waits has counted already. So nobody has to clear it at the end of a
// call, which took a microsecond.
static __device__ __forceinline__ void
wide_send(const wide_call &w, const float *partials, uint32_t rank, uint32_t bytes)
{
    bt_fence_async(); // written by ordinary stores, read by the copy engine
    bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS);
    if (threadIdx.x == 0) {
        bt_bulk_store(wide_runs(w, bytes) + rank * (bytes / 4), bt_shared_at(partials), bytes);
        bt_bulk_stored();
        __threadfence();
        atomicInc(wide_meeting(w), w.c.groups - 1);
    }
}

// Until all have sent. Blocks of threads begin in the order of their numbers and these are neighbours, so those that are waited for are at
// work or next. AT_ONCE: the last one, for which the others wait, finds all there by the first load. Gives up after some seconds.
template <bool AT_ONCE>
static __device__ __forceinline__ void
wide_wait(const wide_call &w)
{
    if (threadIdx.x == 0 && (!AT_ONCE || bt_load_acquire(wide_meeting(w)) != 0)) {
        for (uint32_t tries = 0; *(volatile uint32_t *)wide_meeting(w) != 0; tries++) {
            if (tries > 4000000u) {
                __trap();
            }
            __nanosleep(20);
        }
        bt_load_acquire(wide_meeting(w));
    }
    bt_bar_sync(WIDE_WORKERS_MEET, WIDE_WORKERS);
}

// The multiplying warps: until there is all that they finish from, the block's own sums and outliers and (FAR: in global memory) the others'.
template <bool FAR, bool AT_ONCE>
static __device__ __forceinline__ void
wide_all_there(const wide_call &w)
{
    wide_meet(w);
    if (FAR) {
        wide_wait<AT_ONCE>(w);
    }
}

#endif
