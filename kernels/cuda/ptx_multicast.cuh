// PTX of sm_90a under names, for blocks of a cluster that share what they load.
#pragma once

#include "kernels/cuda/ptx_wgmma.cuh"

static __device__ __forceinline__ uint32_t
bt_cluster_rank(void)
{
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// True for one lane of a whole warp: the compiler then knows that what the lane hands to the copy engine is the warp's.
static __device__ __forceinline__ bool
bt_elect(void)
{
    uint32_t chosen;

    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
    return chosen != 0;
}

// bt_bulk_box into the shared memory of all blocks of the cluster in `mask`, at the same place in each, where each one's barrier counts.
static __device__ __forceinline__ void
bt_bulk_box_all(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
                 : "memory");
}

// Arrives at a barrier of any block of the cluster (bt_cluster_at), to say that what was read may be overwritten: nothing that this thread
// wrote is published (with .release.cluster each arrival waited about 1,000 cycles for a MEMBAR.GPU).
static __device__ __forceinline__ void
bt_barrier_arrive_there(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
