// kernels/cuda/ptx*.cuh where kernels are emulated.
#pragma once

#include "emulated.h"

// Addresses of shared memory: of another block of the cluster, bit 31 and its rank above the low 24.
#define EMU_RANK(at) ((at) >> 24 & 0x7f)

void emu_copy(void *to, const void *from, uint32_t bytes); // cp.async
void emu_copy_commit(void);
void emu_copy_wait(uint32_t left);
void emu_copy_arrive(uint32_t barrier);
void emu_barrier_init(uint32_t barrier, uint32_t arrivals); // mbarrier
void emu_barrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes);
bool emu_barrier_over(uint32_t barrier, uint32_t parity);
void emu_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void emu_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier);
void emu_box_all(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t barrier, uint32_t mask);
void emu_store(void *to, uint32_t from, uint32_t bytes);
void emu_stored(void);
uint32_t emu_cluster_rank(void);
void emu_cluster_barrier_arrive(uint32_t barrier);
void emu_cluster_arrive(void);
void emu_cluster_wait(void);
void emu_cluster_send(uint32_t at, float v, uint32_t barrier);
uint8_t *emu_memory_at(uint32_t at); // of any block of the cluster
void emu_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4], bool a_unsigned,
             bool b_unsigned);
// wgmma: A from registers, or where a is NULL from shared memory.
void emu_gmma(uint32_t n, int32_t *d, const uint32_t *a, uint64_t a_desc, uint64_t b, int add, bool a_unsigned,
              bool b_unsigned = false);
// How a matrix in shared memory lies, in its descriptor: rows of 128 bytes or of 64, swizzled, or sixteens of bytes in eights.
#define EMU_ROWS_64 ((uint64_t)1 << 62)
#define EMU_SIXTEENS ((uint64_t)2 << 62)
void emu_gmma_commit(void);
void emu_gmma_wait(uint32_t left);

// ---- ptx.cuh ----

static inline void
bt_mma_s8_from(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4])
{
    emu_mma(d, a, b0, b1, c, false, false);
}

static inline void
bt_mma_u8_from(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4])
{
    emu_mma(d, a, b0, b1, c, true, false);
}

static inline void
bt_mma_s8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emu_mma(c, a, b0, b1, c, false, false);
}

static inline void
bt_mma_u8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emu_mma(c, a, b0, b1, c, true, false);
}

static inline void
bt_mma_su8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emu_mma(c, a, b0, b1, c, false, true);
}

static inline void
bt_copy16(void *to, const void *from, bool there)
{
    static const uint8_t zeros[16] = {0};

    emu_copy(to, there ? from : zeros, 16);
}

static inline void
bt_copy16_if(void *to, const void *from, bool there)
{
    if (there) {
        emu_copy(to, from, 16);
    }
}

static inline void
bt_copy4(void *to, const void *from)
{
    emu_copy(to, from, 4);
}

static inline void
bt_copy_commit(void)
{
    emu_copy_commit();
}

template <int N>
static inline void
bt_copy_wait(void)
{
    emu_copy_wait(N);
}

static inline void
bt_block_sync(void)
{
    __syncthreads();
}

static inline void
bt_bar_sync(uint32_t id, uint32_t threads)
{
    emu_barrier(id, threads, true);
}

static inline void
bt_bar_arrive(uint32_t id, uint32_t threads)
{
    emu_barrier(id, threads, false);
}

static inline void
bt_prefetch(const void *)
{
}

static inline void
bt_touch(const void *)
{
}

static inline float
emu_saturated(float v)
{
    return v > 0 ? min(v, 1.0f) : 0; // NaN: 0
}

static inline float
bt_fma_sat(float a, float b, float c)
{
    return emu_saturated(fmaf(a, b, c));
}

static inline float
bt_mul_sat(float a, float b)
{
    return emu_saturated(a * b);
}

static inline uint32_t
emu_byte(float v)
{
    return v > 0 ? (uint32_t)rintf(min(v, 255.0f)) : 0;
}

static inline uint32_t
bt_round_u8(float a, float b, float c, float d)
{
    return emu_byte(a) | emu_byte(b) << 8 | emu_byte(c) << 16 | emu_byte(d) << 24;
}

static inline uint32_t
bt_blend(uint32_t a, uint32_t b, uint32_t mask)
{
    return (a & mask) | (b & ~mask);
}

static inline float
bt_reciprocal(float x)
{
    return 1.0f / x;
}

static inline float
bt_max_nan(float a, float b)
{
    return a != a || b != b ? NAN : fmaxf(a, b);
}

static inline float
bt_min_nan(float a, float b)
{
    return a != a || b != b ? NAN : fminf(a, b);
}

// ---- ptx_hopper.cuh, ptx_cluster.cuh, ptx_multicast.cuh ----

static inline bool
bt_elect(void)
{
    return emu_thread.x % 32 == 0;
}

static inline uint32_t
bt_shared_at(const void *p)
{
    return (uint32_t)((const uint8_t *)p - emu_shared);
}

static inline const void *
bt_shared_of(uint32_t at)
{
    return emu_shared + at;
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
bt_barrier_arrive_for(uint32_t b, uint32_t count)
{
    emu_barrier_arrive(b, count, 0);
}

static inline void
bt_barrier_expect(uint32_t b, uint32_t bytes)
{
    emu_barrier_arrive(b, 1, bytes);
}

static inline void
bt_barrier_wait(uint32_t b, uint32_t parity)
{
    while (!emu_barrier_over(b, parity)) {
        emu_yield();
    }
}

static inline bool
bt_barrier_try(uint32_t b, uint32_t parity)
{
    return emu_barrier_over(b, parity);
}

static inline void
bt_shared_wait(uint32_t at, uint32_t value)
{
    while (*(volatile uint32_t *)emu_memory_at(at) != value) {
        emu_yield();
    }
}

static inline void
bt_shared_tell(uint32_t at, uint32_t value)
{
    *(uint32_t *)emu_memory_at(at) = value;
    emu_progress();
}

static inline void
bt_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t b)
{
    emu_bulk(to, from, bytes, b);
}

static inline void
bt_bulk_box(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t b)
{
    emu_box(to, map, x, y, b);
}

static inline void
bt_bulk_box_all(uint32_t to, const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t b, uint16_t mask)
{
    emu_box_all(to, map, x, y, b, mask);
}

static inline uint32_t
bt_cluster_rank(void)
{
    return emu_cluster_rank();
}

static inline void
bt_barrier_arrive_there(uint32_t b)
{
    emu_cluster_barrier_arrive(b);
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

static inline void
bt_copy_arrive(uint32_t b)
{
    emu_copy_arrive(b);
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
bt_cluster_begun(void)
{
    emu_cluster_arrive();
}

static inline void
bt_cluster_wait(void)
{
    emu_cluster_wait();
}

static inline void
bt_cluster_sync(void)
{
    emu_cluster_arrive();
    emu_cluster_wait();
}

static inline uint32_t
bt_cluster_at(uint32_t at, uint32_t rank)
{
    return (at & 0xffffff) | rank << 24 | 1u << 31;
}

static inline float4
bt_cluster_load4(uint32_t at)
{
    float4 v;

    memcpy(&v, emu_memory_at(at), sizeof v);
    return v;
}

static inline void
bt_cluster_store(uint32_t at, float v)
{
    memcpy(emu_memory_at(at), &v, sizeof v);
}

static inline void
bt_cluster_send(uint32_t at, float v, uint32_t b)
{
    emu_cluster_send(at, v, b);
}

static inline uint32_t
bt_load_acquire(const uint32_t *at)
{
    return *(const volatile uint32_t *)at;
}

static inline void
bt_prefetch_map(const CUtensorMap *)
{
}

static inline uint32_t
bt_add_in_order(uint32_t *at, uint32_t v)
{
    return atomicAdd(at, v);
}

// ---- ptx_wgmma.cuh ----

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

static inline uint64_t
bt_wgmma_rows_64(uint32_t at)
{
    return at / 16 | EMU_ROWS_64;
}

static inline uint64_t
bt_wgmma_same(uint32_t at)
{
    return at / 16 | EMU_SIXTEENS;
}

static inline void
bt_wgmma_start(int32_t *d, uint64_t x)
{
    emu_gmma(64, d, NULL, x, x, 0, true, true);
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
