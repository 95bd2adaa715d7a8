// Kernels of CUDA run by a CPU: the same text, a fiber for each thread of a block, one block after the other.
//
// What it shows: which numbers come out, deadlocks of barriers, writes beyond shared memory, copies that nobody waited for (they are made as
// late as they may be, or at once, by `emulated_eager`). What it does not: memory models, registers, time.
// tests/gpu/emulated/run.sh writes copies of kernels/cuda in which __shared__ is static, and puts this before them in place of ptx.cuh,
// ptx_hopper.cuh and launch.cuh.
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
#include <cuda_fp16.h>
#include <cuda_runtime.h>

using std::max;
using std::min;

#define EMULATED_SHARED (232448u)
extern uint8_t few_memory[];
extern uint3 emulated_thread, emulated_block;
extern dim3 emulated_block_dim;
extern bool emulated_eager;
#define threadIdx emulated_thread
#define blockIdx emulated_block
#define blockDim emulated_block_dim

// Runs one block; `threads` a multiple of 32, `shared` bytes of shared memory.
void emulated_run(uint32_t block, uint32_t threads, size_t shared, const std::function<void()> &kernel);

// ---- what threads do together ----

void emulated_warp(void); // all 32 are here
void emulated_barrier(uint32_t id, uint32_t threads);
void emulated_arrive(uint32_t id, uint32_t threads);
uint32_t *emulated_words(uint32_t lane); // 16 words of a lane, until the next but one time they meet
uint32_t emulated_shuffle(uint32_t v, uint32_t from);
void emulated_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4], bool a_unsigned,
                  bool b_unsigned);

static inline void
__syncthreads(void)
{
    emulated_barrier(0, emulated_block_dim.x);
}
static inline void
__syncwarp(void)
{
    emulated_warp();
}
static inline void
__threadfence_block(void)
{
}
static inline uint32_t
atomicAdd(uint32_t *at, uint32_t v)
{
    uint32_t old = *at;
    *at += v;
    return old;
}
static inline uint32_t
__shfl_sync(uint32_t, uint32_t v, int from)
{
    return emulated_shuffle(v, (uint32_t)from);
}
static inline float
__shfl_sync(uint32_t, float v, int from)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    u = emulated_shuffle(u, (uint32_t)from);
    memcpy(&v, &u, 4);
    return v;
}
static inline float
__shfl_xor_sync(uint32_t m, float v, int x)
{
    return __shfl_sync(m, v, (int)(emulated_thread.x % 32) ^ x);
}
static inline uint32_t
__shfl_xor_sync(uint32_t m, uint32_t v, int x)
{
    return __shfl_sync(m, v, (int)(emulated_thread.x % 32) ^ x);
}
static inline uint32_t
__reduce_max_sync(uint32_t, uint32_t v)
{
    for (int i = 16; i >= 1; i /= 2) {
        v = max(v, emulated_shuffle(v, emulated_thread.x % 32 ^ (uint32_t)i));
    }
    return v;
}
static inline uint32_t
__float_as_uint(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
static inline float
__uint_as_float(uint32_t v)
{
    float u;
    memcpy(&u, &v, 4);
    return u;
}
static inline float
__int_as_float(int32_t v)
{
    float u;
    memcpy(&u, &v, 4);
    return u;
}
static inline float4
__ldcg(const float4 *p)
{
    return *p;
}
static inline int
__dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) {
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    }
    return c;
}
static inline uint32_t
__byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        r |= (uint32_t)(both >> (s >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    }
    return r;
}

// ---- ptx.cuh, ptx_hopper.cuh ----

void emulated_copy(void *to, const void *from, uint32_t bytes); // cp.async
void emulated_commit(void);
void emulated_wait(uint32_t left);
void emulated_barrier_init(uint32_t barrier, uint32_t arrivals);
void emulated_barrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes);
bool emulated_barrier_over(uint32_t barrier, uint32_t parity);
void emulated_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void emulated_yield(void);

static inline void
bt_copy16(void *to, const void *from, bool there)
{
    static const uint8_t zeros[16] = {0};
    emulated_copy(to, there ? from : zeros, 16);
}
static inline void
bt_copy4(void *to, const void *from)
{
    emulated_copy(to, from, 4);
}
static inline void
bt_copy_commit(void)
{
    emulated_commit();
}
template <int N>
static inline void
bt_copy_wait(void)
{
    emulated_wait(N);
}
static inline void
bt_bar_sync(uint32_t id, uint32_t threads)
{
    emulated_barrier(id, threads);
}
static inline void
bt_bar_arrive(uint32_t id, uint32_t threads)
{
    emulated_arrive(id, threads);
}
static inline void
bt_prefetch(const void *)
{
}
static inline void
bt_touch(const void *)
{
}
static inline void
bt_mma_s8_from(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4])
{
    emulated_mma(d, a, b0, b1, c, false, false);
}
static inline void
bt_mma_s8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emulated_mma(c, a, b0, b1, c, false, false);
}
static inline void
bt_mma_u8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emulated_mma(c, a, b0, b1, c, true, false);
}
static inline uint32_t
bt_shared_at(const void *p)
{
    return (uint32_t)((const uint8_t *)p - few_memory);
}
static inline void
bt_barrier_init(uint32_t b, uint32_t n)
{
    emulated_barrier_init(b, n);
}
static inline void
bt_barrier_init_done(void)
{
}
static inline void
bt_barrier_arrive(uint32_t b)
{
    emulated_barrier_arrive(b, 1, 0);
}
static inline void
bt_barrier_arrive_for(uint32_t b, uint32_t count)
{
    emulated_barrier_arrive(b, count, 0);
}
static inline void
bt_barrier_expect(uint32_t b, uint32_t bytes)
{
    emulated_barrier_arrive(b, 1, bytes);
}
static inline void
bt_barrier_wait(uint32_t b, uint32_t parity)
{
    while (!emulated_barrier_over(b, parity)) {
        emulated_yield();
    }
}
static inline void
bt_shared_wait(uint32_t at, uint32_t value)
{
    while (*(volatile uint32_t *)(few_memory + at) != value) {
        emulated_yield();
    }
}
static inline void
bt_shared_tell(uint32_t at, uint32_t value)
{
    *(uint32_t *)(few_memory + at) = value;
}
static inline void
bt_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t b)
{
    emulated_bulk(to, from, bytes, b);
}
