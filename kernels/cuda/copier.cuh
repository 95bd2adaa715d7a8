// The kernels of the copier: checksums of KV blocks, alone, while copying, or to stamp. The sum is common/kv/trailer.h's.
//
// Roofline: a sum reads each byte once, a fetch reads and writes it once; nine instructions a word are a fifth of what the SMs do in
// the time that HBM takes to bring it.
#pragma once

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/ptx.cuh"

#define BT_SUM_THREADS 512u
#define BT_SUM_VECTORS 4u // of 16 bytes, a thread: 256 threads of 8 reach 5 % less
#define BT_SUM_PIECE_VECTORS ((size_t)BT_SUM_THREADS * BT_SUM_VECTORS) // of a block of threads: 32 KiB

// Tail of a block: the trailer and what fills it up.
#define BT_SUM_TAIL_WORDS 8
static_assert(sizeof(bt_kv_trailer) <= BT_SUM_TAIL_WORDS * 8, "a trailer fits into its tail");

// One pass over KV blocks, a piece a block of threads. Whoever finishes a KV block last does what comes after its bytes.
typedef struct {
    size_t block_bytes, trailer_offset;
    uint32_t pieces; // of a KV block
    uint64_t *totals;
    uint32_t *counts;
    bt_copier_landed *landed;
} bt_sum_args;

// Neighbouring blocks.
typedef struct {
    uint8_t *to;                 // NULL: only sums
    const uint8_t *from, *tails; // where bytes and trailers are read
    uint32_t first;              // of all blocks
} bt_sum_run;
typedef struct {
    uint32_t count;
    bt_sum_run runs[BT_COPIER_RUNS_MAX];
} bt_sum_runs;

// Blocks that are named one by one travel with the launch: in the host's memory each would be a journey over the bus.
#define BT_SUM_NAMED_MAX 128u
typedef struct {
    uint8_t *pool;
    uint64_t epoch, generations[BT_SUM_NAMED_MAX];
    uint32_t blocks[BT_SUM_NAMED_MAX];
} bt_sum_named;

static __device__ __forceinline__ uint64_t
term(uint64_t w, uint64_t key)
{
    uint64_t x = w ^ key;

    return w + (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
}

static __device__ __forceinline__ uint64_t
term_of_vector(uint4 v, uint64_t key)
{
    return term((uint64_t)v.y << 32 | v.x, key) + term((uint64_t)v.w << 32 | v.z, key + BT_KV_CHECKSUM_KEY);
}

static __device__ __forceinline__ uint64_t
sum_of_threads(uint64_t sum)
{
    __shared__ uint64_t warps[BT_SUM_THREADS / 32];

    for (int away = 16; away != 0; away /= 2) {
        sum += __shfl_xor_sync(~0u, sum, away);
    }
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = 0;
    for (uint32_t i = 0; i < BT_SUM_THREADS / 32; i++) {
        sum += warps[i];
    }
    return sum;
}

static __device__ void
write_stamp(const bt_sum_args &a, uint8_t *block, uint64_t epoch, uint64_t generation, uint64_t sum)
{
    uint64_t value = bt_mix64(sum ^ a.trailer_offset / 8);

    *(bt_kv_trailer *)(block + a.trailer_offset) = bt_kv_trailer{epoch, generation, value != 0 ? value : 1, 0};
}

// The trailer, read now, from where the block was fetched.
static __device__ void
land_block(const bt_sum_args &a, uint32_t index, uint64_t sum, uint8_t *to, const uint8_t *tail_block)
{
    const volatile uint64_t *tail = (const volatile uint64_t *)(tail_block + a.trailer_offset);
    bt_copier_landed *landed = &a.landed[index];
    uint64_t words[BT_SUM_TAIL_WORDS];

    for (int i = 0; i < BT_SUM_TAIL_WORDS; i++) {
        words[i] = tail[i];
    }
    for (int i = 0; to != NULL && i < BT_SUM_TAIL_WORDS; i++) {
        ((uint64_t *)(to + a.trailer_offset))[i] = words[i];
    }
    landed->sum = sum;
    landed->trailer = bt_kv_trailer{words[0], words[1], words[2], words[3]};
}

// The sum of this block of threads' piece, which is stored to `to` on the way.
template <bool COPY>
static __device__ __forceinline__ uint64_t
sum_piece(uint4 *to, const uint4 *from, size_t vectors, size_t at)
{
    uint64_t sum = 0, key = (2 * at + 1) * BT_KV_CHECKSUM_KEY;
    uint4 v[BT_SUM_VECTORS];

    // load: all on their way at once
#pragma unroll
    for (uint32_t i = 0; i < BT_SUM_VECTORS; i++) {
        v[i] =
            at + i * BT_SUM_THREADS < vectors ? bt_load_stream(from + at + i * BT_SUM_THREADS) : make_uint4(0, 0, 0, 0);
    }
    // sum, store
#pragma unroll
    for (uint32_t i = 0; i < BT_SUM_VECTORS; i++) {
        if (at + i * BT_SUM_THREADS < vectors) {
            sum += term_of_vector(v[i], key + i * (2 * BT_SUM_THREADS * BT_KV_CHECKSUM_KEY));
            if (COPY) {
                __stcs(to + at + i * BT_SUM_THREADS, v[i]);
            }
        }
    }
    return sum_of_threads(sum);
}

// Adds a piece's sum to its KV block's; true, with the sum of all, to the one thread that adds the last.
static __device__ bool
add_piece(const bt_sum_args &a, uint32_t index, uint64_t *sum)
{
    if (threadIdx.x != 0) {
        return false;
    }
    atomicAdd((unsigned long long *)&a.totals[index], (unsigned long long)*sum);
    __threadfence();
    if (atomicAdd(&a.counts[index], 1) + 1 != a.pieces) {
        return false;
    }
    __threadfence_system();
    *sum = atomicExch((unsigned long long *)&a.totals[index], 0ull);
    a.counts[index] = 0;
    return true;
}

template <bool COPY>
static __global__ void
__launch_bounds__(BT_SUM_THREADS) bt_sum_land(bt_sum_args a, const __grid_constant__ bt_sum_runs r)
{
    uint32_t index = blockIdx.x / a.pieces, piece = blockIdx.x % a.pieces, run = 0;
    uint64_t sum;
    uint8_t *to;
    size_t at;

    while (run + 1 < r.count && r.runs[run + 1].first <= index) {
        run++;
    }
    at = (index - r.runs[run].first) * a.block_bytes;
    to = r.runs[run].to != NULL ? r.runs[run].to + at : NULL;
    sum = sum_piece<COPY>((uint4 *)to, (const uint4 *)(r.runs[run].from + at), a.trailer_offset / 16,
                          piece * BT_SUM_PIECE_VECTORS + threadIdx.x);
    if (add_piece(a, index, &sum)) {
        land_block(a, index, sum, to, r.runs[run].tails + at);
    }
}

static __global__ void
__launch_bounds__(BT_SUM_THREADS) bt_sum_stamp(bt_sum_args a, const __grid_constant__ bt_sum_named n)
{
    uint32_t index = blockIdx.x / a.pieces, piece = blockIdx.x % a.pieces;
    uint8_t *block = n.pool + n.blocks[index] * a.block_bytes;
    uint64_t sum =
        sum_piece<false>(NULL, (const uint4 *)block, a.trailer_offset / 16, piece * BT_SUM_PIECE_VECTORS + threadIdx.x);

    if (add_piece(a, index, &sum)) {
        write_stamp(a, block, n.epoch, n.generations[index], sum);
    }
}

static __global__ void
bt_sum_clear(bt_sum_args a, const __grid_constant__ bt_sum_named n)
{
    *(bt_kv_trailer *)(n.pool + n.blocks[threadIdx.x] * a.block_bytes + a.trailer_offset) = bt_kv_trailer{0, 0, 0, 0};
}
