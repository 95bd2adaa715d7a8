// Kernels of CUDA run by a CPU: the same text, a fiber for each thread, some blocks of threads at once (emu_slots, in the order of their
// numbers, a cluster's together). README.md says what that shows and what it cannot.
//
// run.sh writes copies of kernels/cuda in which shared memory is reached through emu_shared, puts this before each, and ptx.h in place of
// ptx*.cuh. Here: what CUDA's language brings.
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
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

using std::max;
using std::min;

#define EMU_SHARED 232448u // bytes of a block
#define EMU_SLOTS 16u
#define EMU_THREADS 1024u

extern uint3 emu_thread, emu_block;
extern dim3 emu_block_dim, emu_grid_dim; // run.sh writes blockDim and gridDim so: launchers have members of these names
extern uint8_t *emu_shared;              // of the block that runs
extern bool emu_eager;                   // copies and products at once, not as late as they may be
extern uint32_t emu_slots;               // blocks at once; kernels with static shared memory: 1
extern int emu_clusters[17];             // how many clusters of so many blocks find room, as launchers are told
#define threadIdx emu_thread
#define blockIdx emu_block

// Runs a kernel; block.x a multiple of 32.
void emu_run(dim3 grid, dim3 block, size_t shared, uint32_t cluster, const std::function<void()> &kernel);

void emu_fail(const char *what); // says where, and ends the program
void emu_yield(void);            // others' turn
void emu_progress(void);         // something has changed: nobody is stuck
void emu_dawdle(void);           // now and then for a while, as where another block holds the multiprocessor

// ---- what threads do together ----

void emu_warp(void);                                        // all 32 are here
void emu_barrier(uint32_t id, uint32_t threads, bool wait); // bar.sync, bar.arrive
uint32_t *emu_words(uint32_t lane);                         // 16 words of a lane, until the next but one time they meet
uint32_t emu_shuffle(uint32_t v, uint32_t from);

bool emu_any(bool yes); // all of a block are here, and one of them says so

static inline void
__syncthreads(void)
{
    emu_barrier(0, emu_block_dim.x, true);
}

static inline int
__syncthreads_or(int yes)
{
    return emu_any(yes != 0);
}

static inline void
__syncwarp(uint32_t = 0)
{
    emu_warp();
}

template <typename T>
static inline T
emu_shuffled(T v, uint32_t from)
{
    uint32_t u = 0;

    static_assert(sizeof v <= 4, "");
    memcpy(&u, &v, sizeof v);
    u = emu_shuffle(u, from);
    memcpy((void *)&v, &u, sizeof v);
    return v;
}

template <typename T>
static inline T
__shfl_sync(uint32_t, T v, int from, int width = 32)
{
    return emu_shuffled(v, emu_thread.x % 32 / width * width + (uint32_t)from % width);
}

template <typename T>
static inline T
__shfl_xor_sync(uint32_t, T v, int x)
{
    return emu_shuffled(v, emu_thread.x % 32 ^ (uint32_t)x);
}

template <typename T>
static inline T
__shfl_up_sync(uint32_t, T v, uint32_t d)
{
    uint32_t lane = emu_thread.x % 32;

    return emu_shuffled(v, lane >= d ? lane - d : lane);
}

template <typename T>
static inline T
__shfl_down_sync(uint32_t, T v, uint32_t d)
{
    uint32_t lane = emu_thread.x % 32;

    return emu_shuffled(v, lane + d < 32 ? lane + d : lane);
}

static inline uint32_t
__reduce_max_sync(uint32_t, uint32_t v)
{
    for (uint32_t i = 16; i >= 1; i /= 2) {
        v = max(v, emu_shuffled(v, emu_thread.x % 32 ^ i));
    }
    return v;
}

static inline uint32_t
__reduce_add_sync(uint32_t, uint32_t v)
{
    for (uint32_t i = 16; i >= 1; i /= 2) {
        v += emu_shuffled(v, emu_thread.x % 32 ^ i);
    }
    return v;
}

static inline uint32_t
__ballot_sync(uint32_t, bool yes)
{
    return __reduce_add_sync(0, yes ? 1u << emu_thread.x % 32 : 0);
}

static inline bool
__any_sync(uint32_t, bool yes)
{
    return __ballot_sync(0, yes) != 0;
}

static inline bool
__all_sync(uint32_t, bool yes)
{
    return __ballot_sync(0, yes) == 0xffffffffu;
}

// ---- memory ----

static inline void
__threadfence(void)
{
}

static inline void
__threadfence_block(void)
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
    emu_fail("a trap");
}

static inline uint32_t
atomicMax(uint32_t *at, uint32_t v)
{
    uint32_t before = *at;

    *at = max(before, v);
    return before;
}

static inline uint32_t
atomicAdd(uint32_t *at, uint32_t v)
{
    uint32_t before = *at;

    *at += v;
    emu_progress();
    emu_dawdle(); // others get on before this one knows
    return before;
}

static inline uint32_t
atomicInc(uint32_t *at, uint32_t last)
{
    uint32_t before = *at;

    *at = before >= last ? 0 : before + 1;
    emu_progress();
    emu_dawdle();
    return before;
}

static inline uint32_t
atomicExch(uint32_t *at, uint32_t v)
{
    uint32_t before = *at;

    *at = v;
    emu_progress();
    return before;
}

template <typename T>
static inline T
__ldg(const T *from)
{
    return *from;
}

template <typename T>
static inline void
__stcg(T *to, T v)
{
    *to = v;
}

template <typename T>
static inline T
__ldcg(const T *from)
{
    return *from;
}

template <typename T>
static inline T
__ldca(const T *from)
{
    return *from;
}

// ---- numbers ----

template <typename To, typename From>
static inline To
emu_as(From v)
{
    To u;

    static_assert(sizeof u == sizeof v, "");
    memcpy(&u, &v, sizeof u);
    return u;
}
#define __int_as_float(v) emu_as<float>((int32_t)(v))
#define __float_as_int(v) emu_as<int32_t>((float)(v))
#define __uint_as_float(v) emu_as<float>((uint32_t)(v))
#define __float_as_uint(v) emu_as<uint32_t>((float)(v))

static inline int
__vimax3_s32(int a, int b, int c)
{
    return max(max(a, b), c);
}

static inline int
__ffs(int v)
{
    return __builtin_ffs(v);
}

static inline int
__popc(uint32_t v)
{
    return __builtin_popcount(v);
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

// ---- what launchers ask ----

#define cudaGetLastError() cudaSuccess
#define cudaFuncGetAttributes(attributes, kernel) (memset(attributes, 0, sizeof *(attributes)), cudaSuccess)
#define cudaFuncSetAttribute(kernel, what, value) ((void)(value), cudaSuccess)
#define cudaOccupancyMaxActiveClusters(n, kernel, config) (*(n) = emu_clusters[(config)->gridDim.x], cudaSuccess)
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, kernel, threads, bytes)                                       \
    (*(n) = (int)((threads) + (bytes) > 0), cudaSuccess)
