// PTX under names: the instructions that C has no words for.
#pragma once

#include <stdint.h>

// c[4] += A (16 × 32, s8) · B (32 × 8, s8): rows g, g + 8 and columns 2t, 2t + 1 of lane 4g + t.
static __device__ __forceinline__ void
bt_mma_s8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with A u8.
static __device__ __forceinline__ void
bt_mma_u8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with A s8 and B u8.
static __device__ __forceinline__ void
bt_mma_su8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sum of four products, a u8 and b s8.
static __device__ __forceinline__ int32_t
bt_dp4a_us(uint32_t a, uint32_t b, int32_t c)
{
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}

// Sixteen bytes that are read once: past the first cache.
static __device__ __forceinline__ uint4
bt_load_once(const void *from)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// A word of shared memory, in this place among the others that are loaded so: the compiler puts ordinary loads right before their use.
static __device__ __forceinline__ float
bt_shared_load(const float *from)
{
    float v;

    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"((uint32_t)__cvta_generic_to_shared(from)) : "memory");
    return v;
}

// The same of memory that others may be writing.
static __device__ __forceinline__ uint4
bt_load_stream(const void *from)
{
    uint4 v;

    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

// Sixteen bytes into shared memory, on their way from now on; zeros where `there` is false (`from` must be readable then, too).
static __device__ __forceinline__ void
bt_copy16(void *to, const void *from, bool there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0));
}

// Sixteen bytes, or, where `there` is false, nothing: what lies there stays.
static __device__ __forceinline__ void
bt_copy16_if(void *to, const void *from, bool there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile(
        "{.reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16;}" ::"r"(at),
        "l"(from), "r"((uint32_t)there));
}

// Four bytes into shared memory, on their way from now on.
static __device__ __forceinline__ void
bt_copy4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

static __device__ __forceinline__ void
bt_copy_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

// All but the last N groups of this thread's copies have come.
template <int N>
static __device__ __forceinline__ void
bt_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void
bt_bar_sync(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// All threads of the block, from wherever in the kernel each warp calls it. __syncthreads() is the aligned form of the same: for one place.
static __device__ __forceinline__ void
bt_block_sync(void)
{
    asm volatile("barrier.sync 0;" ::: "memory");
}

// Of a numbered barrier (bt_bar_sync), without waiting.
static __device__ __forceinline__ void
bt_bar_arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Into the L2 cache, some time.
static __device__ __forceinline__ void
bt_prefetch(const void *what)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(what));
}

// bt_mma_s8 and bt_mma_u8 with a start of their own: d = c + A · B. Not volatile: they may be moved.
static __device__ __forceinline__ void
bt_mma_s8_from(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

static __device__ __forceinline__ void
bt_mma_u8_from(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// a · b + c, within 0 … 1 (a NaN: 0), and a · b likewise.
static __device__ __forceinline__ float
bt_fma_sat(float a, float b, float c)
{
    float d;

    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}

static __device__ __forceinline__ float
bt_mul_sat(float a, float b)
{
    float d;

    asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

// The larger and the smaller where a NaN stays one.
static __device__ __forceinline__ float
bt_max_nan(float a, float b)
{
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
}

static __device__ __forceinline__ float
bt_min_nan(float a, float b)
{
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
}

// Four numbers rounded to bytes, half to even, within 0 … 255 (a NaN: 0), `a` the lowest: one instruction for two of them.
static __device__ __forceinline__ uint32_t
bt_round_u8(float a, float b, float c, float d)
{
    uint32_t r;

    asm("{.reg .s32 i, j; cvt.rni.s32.f32 i, %1; cvt.rni.s32.f32 j, %2; cvt.pack.sat.u8.s32.b32 %0, j, i, 0;}"
        : "=r"(r)
        : "f"(c), "f"(d));
    asm("{.reg .s32 i, j; cvt.rni.s32.f32 i, %1; cvt.rni.s32.f32 j, %2; cvt.pack.sat.u8.s32.b32 %0, j, i, %0;}"
        : "+r"(r)
        : "f"(a), "f"(b));
    return r;
}

// 1 / x to within an ulp, for a normal x whose reciprocal is normal.
static __device__ __forceinline__ float
bt_reciprocal(float x)
{
    float r;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Two numbers as bf16, half to even, `low` in the low half.
static __device__ __forceinline__ uint32_t
bt_bf16_pair(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The same as f16.
static __device__ __forceinline__ uint32_t
bt_f16_pair(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The bits of a where `mask` has them, and those of b elsewhere: one instruction, which keeps b's register for it until then.
static __device__ __forceinline__ uint32_t
bt_blend(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t r;

    asm volatile("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
    return r;
}
