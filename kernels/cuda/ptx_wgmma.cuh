// PTX under names, what products of a warpgroup (sm_90a) and boxes of tensor maps need beside ptx_hopper.cuh.
#pragma once

#include "kernels/cuda/ptx_hopper.cuh"

#include <cuda.h>

// The box of `map` at column x and row y into shared memory; zeros beyond its ends. Its bytes count at `barrier`.
static __device__ __forceinline__ void
bt_bulk_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

// `map` is at hand when a box of it is wanted.
static __device__ __forceinline__ void
bt_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Is the phase of this parity over? Waits a little for it.
static __device__ __forceinline__ bool
bt_barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;

    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

// `bytes` (a multiple of 16, both addresses too) of shared memory to global memory, on their way until bt_bulk_stored.
static __device__ __forceinline__ void
bt_bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

// This thread's bulk stores are in global memory, and it sees them.
static __device__ __forceinline__ void
bt_bulk_stored(void)
{
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}

// A counter of other blocks of threads, and what they wrote before they counted is seen behind it.
static __device__ __forceinline__ uint32_t
bt_load_acquire(const uint32_t *at)
{
    uint32_t v;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}

// bt_cluster_arrive where nothing that this thread wrote is read behind the barrier.
static __device__ __forceinline__ void
bt_cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ float4
bt_cluster_load4(uint32_t at)
{
    float4 v;

    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- registers of a warpgroup's threads ----

template <int R>
static __device__ __forceinline__ void
bt_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
}

template <int R>
static __device__ __forceinline__ void
bt_registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
}

// ---- products of a warpgroup ----

// Rows of 128 bytes in the 128-byte swizzle, eight of them 1,024 bytes, K inside: what B is, and A in shared memory. `at` may be moved on by 32 bytes a step.
static __device__ __forceinline__ uint64_t
bt_wgmma_rows(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

// Rows of 64 bytes in the 64-byte swizzle, eight of them 512 bytes, likewise.
static __device__ __forceinline__ uint64_t
bt_wgmma_rows_64(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)32 << 32 | (uint64_t)2 << 62;
}

// 64 rows of 32 bytes, of which all sixteens are the same: in whatever order they are read.
static __device__ __forceinline__ uint64_t
bt_wgmma_same(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)8 << 16 | (uint64_t)16 << 32;
}

static __device__ __forceinline__ void
bt_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
bt_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT>
static __device__ __forceinline__ void
bt_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// After the wait: d is read from here on and no earlier.
template <int COUNT>
static __device__ __forceinline__ void
bt_wgmma_there(int32_t *d)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}

#define BT_D8(d, i)                                                                                                    \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]),        \
        "+r"(d[i + 7])
#define BT_D16(d, i) BT_D8(d, i), BT_D8(d, (i) + 8)
#define BT_D32(d, i) BT_D16(d, i), BT_D16(d, (i) + 16)
#define BT_D12(d) BT_D8(d, 0), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11])
#define BT_D24(d) BT_D16(d, 0), BT_D8(d, 16)
#define BT_D40(d) BT_D32(d, 0), BT_D8(d, 32)
#define BT_D48(d) BT_D32(d, 0), BT_D16(d, 32)
#define BT_D56(d) BT_D48(d), BT_D8(d, 48)
#define BT_D64(d) BT_D32(d, 0), BT_D32(d, 32)
#define BT_P8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BT_P12 BT_P8 ",%8,%9,%10,%11"
#define BT_P16 BT_P12 ",%12,%13,%14,%15"
#define BT_P24 BT_P16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define BT_P32 BT_P24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define BT_P40 BT_P32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define BT_P48 BT_P40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define BT_P56 BT_P48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define BT_P64 BT_P56 ",%56,%57,%58,%59,%60,%61,%62,%63"

// Operands after d's: A (four registers, or a descriptor), B, whether to add.
#define BT_WGMMA_A4(N, types, places, a0, a1, a2, a3, desc, more, d)                                                   \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " more ", 0;"                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." types " {" places "}, {" a0 "," a1 "," a2 "," a3    \
                 "}, " desc ", p;}"                                                                                    \
                 : d                                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define BT_WGMMA_SHARED(N, types, places, from, desc, more, d)                                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " more ", 0;"                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." types " {" places "}, " from ", " desc ", p;}"      \
                 : d                                                                                                   \
                 : "l"(a), "l"(b), "r"(add))

// d [N/2] (+)= A (64 × 32: lane 4g + t of warp w has rows 16w + g and + 8, as mma.m16n8k32) · B (32 × N, s8, in shared memory), in
// flight until bt_wgmma_wait. d[4j + i] is row g + 8 · (i / 2), column 8j + 2t + i % 2. Without `add` d is not read.
template <int N, bool UNSIGNED>
static __device__ __forceinline__ void
bt_wgmma(int32_t *d, const uint32_t a[4], uint64_t b, int add)
{
    static_assert(!UNSIGNED || N == 32 || N == 64, "32 or 64 tokens, of symmetric formats also others");
    if constexpr (N == 16) {
        BT_WGMMA_A4(16, "s8.s8", BT_P8, "%8", "%9", "%10", "%11", "%12", "%13", BT_D8(d, 0));
    } else if constexpr (N == 24) {
        BT_WGMMA_A4(24, "s8.s8", BT_P12, "%12", "%13", "%14", "%15", "%16", "%17", BT_D12(d));
    } else if constexpr (N == 32 && UNSIGNED) {
        BT_WGMMA_A4(32, "u8.s8", BT_P16, "%16", "%17", "%18", "%19", "%20", "%21", BT_D16(d, 0));
    } else if constexpr (N == 32) {
        BT_WGMMA_A4(32, "s8.s8", BT_P16, "%16", "%17", "%18", "%19", "%20", "%21", BT_D16(d, 0));
    } else if constexpr (N == 48) {
        BT_WGMMA_A4(48, "s8.s8", BT_P24, "%24", "%25", "%26", "%27", "%28", "%29", BT_D24(d));
    } else if constexpr (N == 64 && UNSIGNED) {
        BT_WGMMA_A4(64, "u8.s8", BT_P32, "%32", "%33", "%34", "%35", "%36", "%37", BT_D32(d, 0));
    } else if constexpr (N == 80) {
        BT_WGMMA_A4(80, "s8.s8", BT_P40, "%40", "%41", "%42", "%43", "%44", "%45", BT_D40(d));
    } else if constexpr (N == 96) {
        BT_WGMMA_A4(96, "s8.s8", BT_P48, "%48", "%49", "%50", "%51", "%52", "%53", BT_D48(d));
    } else if constexpr (N == 112) {
        BT_WGMMA_A4(112, "s8.s8", BT_P56, "%56", "%57", "%58", "%59", "%60", "%61", BT_D56(d));
    } else if constexpr (N == 128) {
        BT_WGMMA_A4(128, "s8.s8", BT_P64, "%64", "%65", "%66", "%67", "%68", "%69", BT_D64(d));
    } else {
        static_assert(N == 64, "a number of tokens that is above");
        BT_WGMMA_A4(64, "s8.s8", BT_P32, "%32", "%33", "%34", "%35", "%36", "%37", BT_D32(d, 0));
    }
}

// The same with A (s8) in shared memory, 64 rows as bt_wgmma_rows has them.
template <int N>
static __device__ __forceinline__ void
bt_wgmma_shared(int32_t *d, uint64_t a, uint64_t b, int add)
{
    if constexpr (N == 32) {
        BT_WGMMA_SHARED(32, "s8.s8", BT_P16, "%16", "%17", "%18", BT_D16(d, 0));
    } else if constexpr (N == 64) {
        BT_WGMMA_SHARED(64, "s8.s8", BT_P32, "%32", "%33", "%34", BT_D32(d, 0));
    } else {
        static_assert(N == 128, "32, 64 or 128 tokens");
        BT_WGMMA_SHARED(128, "s8.s8", BT_P64, "%64", "%65", "%66", BT_D64(d));
    }
}

#define BT_O8(d, i)                                                                                                    \
    "=r"(d[i]), "=r"(d[i + 1]), "=r"(d[i + 2]), "=r"(d[i + 3]), "=r"(d[i + 4]), "=r"(d[i + 5]), "=r"(d[i + 6]),        \
        "=r"(d[i + 7])
#define BT_O32(d) BT_O8(d, 0), BT_O8(d, 8), BT_O8(d, 16), BT_O8(d, 24)

// d [32] = x · x, u8, of the 64 × 32 bytes that are both A and B: what other products are added to. What was in d
// is not kept for it.
static __device__ __forceinline__ void
bt_wgmma_start(int32_t *d, uint64_t x)
{
    const uint64_t a = x, b = x;
    const int add = 0;

    BT_WGMMA_SHARED(64, "u8.u8", BT_P32, "%32", "%33", "%34", BT_O32(d));
}

#endif
