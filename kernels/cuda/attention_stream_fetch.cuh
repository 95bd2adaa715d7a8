// Tiles on their way into the ring of a warp of attention_stream.cuh.
#pragma once

#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/ptx_multicast.cuh"

// `base` of the lane whose block has the key at `off` of the split.
static __device__ __forceinline__ const uint8_t *
stream_base(const attention_call &c, const stream_cursor &at, uint32_t off)
{
    uint64_t base = (uint64_t)at.base;
    uint32_t lane = off >> c.block_shift, low = __shfl_sync(0xffffffffu, (uint32_t)base, lane),
             high = __shfl_sync(0xffffffffu, (uint32_t)(base >> 32), lane);

    return (const uint8_t *)((uint64_t)high << 32 | low);
}

// Pieces of 16 keys, those that are seen.
template <typename D>
static __device__ __noinline__ void
stream_fetch_pieces(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t to_head,
                    uint32_t slot)
{
    uint32_t barrier = bt_shared_at(&s.full[slot]), bytes = 0;

#pragma unroll 1
    for (uint32_t key = at.u.key; key < at.u.key + 64; key += 16) {
        bytes += piece_seen(at.u, key) ? 16 * D::dims : 0;
    }
    bt_fence_async();
    if (threadIdx.x % 32 == 0) {
        bt_barrier_expect(barrier, bytes);
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t in = 0; in < 64; in += 16) {
        uint32_t place = (at.u.key + in) & ((1u << c.block_shift) - 1);
        const uint8_t *from = stream_base(c, at, at.u.key % BT_ATTENTION_SPLIT + in) + to_head + place * D::dims;

        if (piece_seen(at.u, at.u.key + in) && bt_elect()) {
            bt_bulk_copy(bt_shared_at(s.tile[slot]) + stream_place<D>(in), from, 16 * D::dims, barrier);
        }
    }
}

// The cursor's tile of K, or of V, which is `to_head` further on, into a slot. The copy engine is told by one lane that the compiler knows
// to be one: else it asks all lanes one after the other, and waits each time until the engine has read what it was told (a fifth of the
// kernel's time; kernels/README.md). Where warps meet, blocks have 32 tokens or more: a half of which one is seen is fetched whole, and
// again into the other where none of that is (so that there is no branch here, behind which all would wait for the engine).
template <typename D>
static __device__ __forceinline__ void
stream_fetch(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t to_head, uint32_t slot)
{
    uint32_t barrier = bt_shared_at(&s.full[slot]), to = bt_shared_at(s.tile[slot]), to_high = to + stream_place<D>(32),
             off = at.u.key % BT_ATTENTION_SPLIT;

    if (D::meets || __builtin_expect(c.block_shift >= 5 && at.u.key >= at.u.begin && at.u.key + 64 <= at.u.end, 1)) {
        const uint8_t *low = stream_base(c, at, off) + to_head, *high = stream_base(c, at, off + 32) + to_head;

        high += (32 & ((1u << c.block_shift) - 1)) * D::dims;
        if (D::meets && at.u.key + 32 >= at.u.end) {
            high = low;
        }
        if (D::meets && at.u.key + 32 <= at.u.begin) {
            low = high;
        }
        bt_fence_async(); // by all lanes, as each has read what is overwritten
        __syncwarp();
        if (bt_elect()) {
            bt_barrier_expect(barrier, 64 * D::dims);
            bt_bulk_copy(to, low, 32 * D::dims, barrier);
            bt_bulk_copy(to_high, high, 32 * D::dims, barrier);
        }
    } else {
        stream_fetch_pieces<D>(c, s, stream_cursor(at), to_head, slot);
    }
}

// The scales of K and V of the cursor's tile, by the lanes' own copies.
template <typename D>
static __device__ __forceinline__ void
stream_fetch_scales(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t slot)
{
    uint32_t lane = threadIdx.x % 32, eight = lane % 8 * 8, mask = (1u << c.block_shift) - 1;
    const uint8_t *scales = stream_base(c, at, at.u.key % BT_ATTENTION_SPLIT + eight);

    if (lane < 16 && piece_seen(at.u, at.u.key + eight / 16 * 16)) {
        bt_copy16(&s.scales[slot][lane / 8][eight], scales + at.to_scales + ((at.u.key + eight) & mask) * 2, true);
    }
}

// K of the cursor's tile, and all scales; its V.
template <typename D>
static __device__ __forceinline__ void
stream_fetch_k(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t slot)
{
    stream_fetch<D>(c, s, at, 0, slot);
    stream_fetch_scales<D>(c, s, at, slot);
}

template <typename D>
static __device__ __forceinline__ void
stream_fetch_v(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t slot)
{
    stream_fetch<D>(c, s, at, at.to_v, slot);
}

// The scales of the tile in hand have come, of this lane and of all: in each of the lane's groups of copies are those of one tile, and
// those of one more tile are on their way.
static __device__ __forceinline__ void
stream_await_scales(void)
{
    bt_copy_wait<1>();
    __syncwarp();
}

// Where the warp reads in its ring.
typedef struct {
    uint32_t slot, parity;
} stream_at;

template <typename D>
static __device__ __forceinline__ void
stream_turn(stream_at &at)
{
    at.slot = at.slot + 1 == D::slots ? 0 : at.slot + 1;
    at.parity ^= at.slot == 0;
}
