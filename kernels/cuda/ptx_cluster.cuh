// PTX of sm_90: what blocks tell each other, of a cluster or through memory. Beside ptx_hopper.cuh.
#pragma once

#include "kernels/cuda/ptx_hopper.cuh"

// bt_cluster_arrive of a block that has made barriers (bt_barrier_init_done) and written nothing else that others wait for.
static __device__ __forceinline__ void
bt_cluster_begun(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// A number into the shared memory of a block of the cluster (bt_cluster_at). It counts as four bytes at `barrier`, of the same block: who
// waits there sees it, and the cluster need not meet, which waits for all of global memory too.
static __device__ __forceinline__ void
bt_cluster_send(uint32_t at, float v, uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at), "f"(v),
                 "r"(barrier)
                 : "memory");
}

// What was there plus n. All that this thread wrote, or saw written, before is seen by whoever adds later.
static __device__ __forceinline__ uint32_t
bt_add_in_order(uint32_t *to, uint32_t n)
{
    uint32_t before;

    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(n) : "memory");
    return before;
}
