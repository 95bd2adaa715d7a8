// PTX of sm_90 and up under names: barriers in shared memory, bulk copies, clusters.
//
// Callers are under __CUDA_ARCH__ >= 900. Addresses of shared memory are 32 bits wide, as bt_shared_at gives them.
#pragma once

#include <stdint.h>

static __device__ __forceinline__ uint32_t
bt_shared_at(const void *in_shared)
{
    return (uint32_t)__cvta_generic_to_shared(in_shared);
}

// The other way round.
static __device__ __forceinline__ const void *
bt_shared_of(uint32_t at)
{
    return __cvta_shared_to_generic(at);
}

// ---- barriers ----

static __device__ __forceinline__ void
bt_barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the inits, before anybody else (also the copy engine) sees them.
static __device__ __forceinline__ void
bt_barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What this thread wrote before is seen by who waits; and what its warp wrote, if that met in between (__syncwarp). Where one lane arrives for
// all, racecheck takes what the others wrote for a race: where that is read by ordinary loads, and it is not often, each lane arrives.
static __device__ __forceinline__ void
bt_barrier_arrive(uint32_t barrier)
{
    asm volatile("{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0];}" ::"r"(barrier) : "memory");
}

// As if `count` had arrived.
static __device__ __forceinline__ void
bt_barrier_arrive_for(uint32_t barrier, uint32_t count)
{
    asm volatile("{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0], %1;}" ::"r"(barrier), "r"(count) : "memory");
}

// Arrives, and `bytes` of bulk copies have to come before the phase is over.
static __device__ __forceinline__ void
bt_barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("{.reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1;}" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Until the phase of this parity is over. Gives up after some seconds: the step fails then, and nothing hangs.
static __device__ __forceinline__ void
bt_barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done = 0;

    for (uint32_t tries = 0; !done; tries++) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (tries > 4000000u) {
            __trap();
        }
    }
}

// Until a word of shared memory that others write is `value`. Gives up as bt_barrier_wait does.
static __device__ __forceinline__ void
bt_shared_wait(uint32_t at, uint32_t value)
{
    uint32_t seen;

    for (uint32_t tries = 0;; tries++) {
        asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(at) : "memory");
        if (seen == value) {
            return;
        }
        if (tries > 100000000u) {
            __trap();
        }
    }
}

static __device__ __forceinline__ void
bt_shared_tell(uint32_t at, uint32_t value)
{
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

// ---- copies ----

// `bytes` (a multiple of 16, both addresses too) into shared memory; they count at `barrier`.
static __device__ __forceinline__ void
bt_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Arrives once this thread's copies of sixteen bytes so far have come; counts among the arrivals that the barrier was made for.
static __device__ __forceinline__ void
bt_copy_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// What this thread wrote to shared memory is seen by bulk copies and wgmmas that are queued later; and what it read there is not overwritten
// by them, which PTX orders by nothing else. Who asks for the copy might do it for all that it met; compute-sanitizer follows that in some
// kernels only, so it is done by those who read, as late as can be.
static __device__ __forceinline__ void
bt_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- clusters ----

static __device__ __forceinline__ void
bt_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// The two halves of bt_cluster_sync: what was written before the one is seen after the other.
static __device__ __forceinline__ void
bt_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
bt_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
bt_cluster_store(uint32_t at, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

// The same place in the shared memory of block `rank` of the cluster.
static __device__ __forceinline__ uint32_t
bt_cluster_at(uint32_t at, uint32_t rank)
{
    uint32_t there;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
