// Kernels of warpgroups run by a CPU: the same text, a fiber for each thread, several blocks of threads at once (`emu_slots`, in the order of
// their numbers, clusters together), so that blocks which wait for each other can be tried.
//
// What it shows: which numbers come out, and deadlocks. Copies by boxes come as late as they may, and by turns; products are made at the wait
// for them, from what lies in shared memory then, and their sums hold nonsense until then. `emu_eager`: all at once. What it does not show:
// memory models, time, and registers: A is taken when a product is issued (wgmma_registers.py is for that).
// run.sh writes copies of kernels/cuda and puts this before them in place of ptx.cuh, ptx_hopper.cuh and ptx_wgmma.cuh.
//
// Akin to tests/gpu/emulated of branch `few`, which has mma.sync and bulk copies and one block at a time: to become one when both land.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cuda.h>
using std::max;
using std::min;
#define EMU_SHARED 232448u
extern uint3 emu_thread, emu_block;
extern dim3 emu_block_dim, emu_grid_dim;
extern bool emu_eager;
extern uint32_t emu_slots;
#define threadIdx emu_thread
#define blockIdx emu_block
uint8_t *emu_memory(void);             // of this block
uint8_t *emu_memory_of(uint32_t rank); // of a block of the cluster
void emu_run(dim3 grid, dim3 block, size_t shared, uint32_t cluster, const std::function<void()> &kernel);
void emu_yield(void);
void emu_progress(void);
void emu_dawdle(void); // for some turns, now and then
void emu_warp(void);
void emu_barrier(uint32_t id, uint32_t threads, bool wait);
uint32_t *emu_words(uint32_t lane);
uint32_t emu_shuffle(uint32_t v, uint32_t from);
void emu_cluster_arrive(void);
void emu_cluster_wait(void);
void emu_barrier_init(uint32_t b, uint32_t n);
void emu_barrier_arrive(uint32_t b, uint32_t count, uint32_t bytes);
bool emu_barrier_over(uint32_t b, uint32_t parity);
void emu_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier);
void emu_store(void *to, uint32_t from, uint32_t bytes);
void emu_stored(void);
void emu_gmma(uint32_t n, int32_t *d, const uint32_t *a, uint64_t a_desc, uint64_t b, int add, bool u8);
void emu_gmma_commit(void);
void emu_gmma_wait(uint32_t left);
static inline void
__syncthreads(void)
{
    emu_barrier(0, emu_block_dim.x, true);
}
static inline void
__syncwarp(void)
{
    emu_warp();
}
static inline void
__threadfence(void)
{
}
static inline void
__nanosleep(unsigned)
{
    emu_yield();
}
static inline void
__trap(void)
{
    fprintf(stderr, "trap\n"), abort();
}
static inline uint32_t
atomicAdd(uint32_t *at, uint32_t v)
{
    uint32_t o = *at;
    *at += v;
    emu_progress();
    emu_dawdle(); // others get on before this one knows
    return o;
}
static inline uint32_t
atomicInc(uint32_t *at, uint32_t last)
{
    uint32_t o = *at;
    *at = o >= last ? 0 : o + 1;
    emu_progress();
    emu_dawdle();
    return o;
}
static inline uint32_t
atomicExch(uint32_t *at, uint32_t v)
{
    uint32_t o = *at;
    *at = v;
    emu_progress();
    return o;
}
static inline uint32_t
emu_from(int from, int width)
{
    return (emu_thread.x % 32 / width * width) + (uint32_t)from % width;
}
static inline uint32_t
__shfl_sync(uint32_t, uint32_t v, int from, int width = 32)
{
    return emu_shuffle(v, emu_from(from, width));
}
static inline __half
__shfl_sync(uint32_t, __half v, int from, int width = 32)
{
    uint16_t u;
    memcpy(&u, &v, 2);
    u = (uint16_t)emu_shuffle(u, emu_from(from, width));
    memcpy(&v, &u, 2);
    return v;
}
static inline uint32_t
__reduce_max_sync(uint32_t, uint32_t v)
{
    for (uint32_t i = 16; i >= 1; i /= 2)
        v = max(v, emu_shuffle(v, (emu_thread.x % 32) ^ i));
    return v;
}
static inline float
__int_as_float(int32_t v)
{
    float f;
    memcpy(&f, &v, 4);
    return f;
}
static inline int32_t
__float_as_int(float v)
{
    int32_t f;
    memcpy(&f, &v, 4);
    return f;
}
static inline float
__uint_as_float(uint32_t v)
{
    float f;
    memcpy(&f, &v, 4);
    return f;
}
static inline uint32_t
__float_as_uint(float v)
{
    uint32_t f;
    memcpy(&f, &v, 4);
    return f;
}
static inline float4
__ldcg(const float4 *p)
{
    return *p;
}
static inline void
bt_prefetch(const void *)
{
}
static inline void
bt_bar_sync(uint32_t id, uint32_t n)
{
    emu_barrier(id, n, true);
}
static inline void
bt_bar_arrive(uint32_t id, uint32_t n)
{
    emu_barrier(id, n, false);
}
static inline uint32_t
bt_shared_at(const void *p)
{
    return (uint32_t)((const uint8_t *)p - emu_memory());
}
static inline void
bt_barrier_init(uint32_t b, uint32_t n)
{
    emu_barrier_init(b, n);
}
static inline void
bt_barrier_init_done(void)
{
}
static inline void
bt_barrier_arrive(uint32_t b)
{
    emu_barrier_arrive(b, 1, 0);
}
static inline void
bt_barrier_expect(uint32_t b, uint32_t bytes)
{
    emu_barrier_arrive(b, 1, bytes);
}
static inline void
bt_barrier_wait(uint32_t b, uint32_t parity)
{
    while (!emu_barrier_over(b, parity))
        emu_yield();
}
static inline bool
bt_barrier_try(uint32_t b, uint32_t parity)
{
    return emu_barrier_over(b, parity);
}
static inline uint32_t
bt_load_acquire(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}
static inline bool
bt_elect(void)
{
    return threadIdx.x % 32 == 0;
}
static inline void
bt_prefetch_map(const CUtensorMap *)
{
}
static inline void
bt_fence_async(void)
{
}
static inline void
bt_cluster_arrive(void)
{
    emu_cluster_arrive();
}
static inline void
bt_cluster_arrive_relaxed(void)
{
    emu_cluster_arrive();
}
static inline void
bt_cluster_wait(void)
{
    emu_cluster_wait();
}
static inline uint32_t
bt_cluster_at(uint32_t at, uint32_t rank)
{
    return at | rank << 24;
}
static inline float4
bt_cluster_load4(uint32_t at)
{
    float4 v;
    memcpy(&v, emu_memory_of(at >> 24) + (at & 0xffffff), 16);
    return v;
}
static inline void
bt_bulk_box(uint32_t to, const CUtensorMap *m, uint32_t x, uint32_t y, uint32_t b)
{
    emu_box(to, m, x, y, b);
}
static inline void
bt_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    emu_store(to, from, bytes);
}
static inline void
bt_bulk_stored(void)
{
    emu_stored();
}
template <int R>
static inline void
bt_registers_more(void)
{
}
template <int R>
static inline void
bt_registers_fewer(void)
{
}
static inline uint64_t
bt_wgmma_rows(uint32_t at)
{
    return at / 16;
}
static inline void
bt_wgmma_fence(void)
{
}
static inline void
bt_wgmma_commit(void)
{
    emu_gmma_commit();
}
template <int L>
static inline void
bt_wgmma_wait(void)
{
    emu_gmma_wait(L);
}
template <int C>
static inline void
bt_wgmma_there(int32_t *)
{
}
template <int N, bool U>
static inline void
bt_wgmma(int32_t *d, const uint32_t *a, uint64_t b, int add)
{
    emu_gmma(N, d, a, 0, b, add, U);
}
template <int N>
static inline void
bt_wgmma_shared(int32_t *d, uint64_t a, uint64_t b, int add)
{
    emu_gmma(N, d, NULL, a, b, add, false);
}
static inline float
bt_reciprocal(float x)
{
    return 1.0f / x;
}
// host
template <typename T>
static inline cudaError_t
emu_attr(T, int, int)
{
    return cudaSuccess;
}
#define cudaFuncSetAttribute(k, w, v) emu_attr(k, 0, (int)(v))
extern int emu_clusters[9];
template <typename T>
static inline cudaError_t
emu_occupancy(int *n, T, const cudaLaunchConfig_t *c)
{
    *n = emu_clusters[c->gridDim.x];
    return cudaSuccess;
}
#define cudaOccupancyMaxActiveClusters(n, k, c) emu_occupancy(n, k, c)
#define cudaGetLastError() cudaSuccess
