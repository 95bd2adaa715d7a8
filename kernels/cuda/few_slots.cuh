// Few tokens whose codes come segment by segment (few_staged.cuh): the order of items, and the slots.
#pragma once

#include "kernels/cuda/few_items.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Where in the call: a chunk (tiles first … first + count − 1, the run-th), and an item of it.
typedef struct {
    uint32_t first, count, run, item;
} staged_at;

typedef struct {
    few_item item;
    uint32_t run;
} staged_item;

static __device__ __forceinline__ uint32_t
chunk_tiles(const few_call &f, uint32_t first, uint32_t end)
{
    return first < end ? min(f.chunk, end - first) : 0;
}

// On to the item `step` further on; count 0: there is none.
static __device__ __forceinline__ void
staged_move(const few_call &f, staged_at *at, uint32_t step, uint32_t end)
{
    at->item += step;
    while (at->count != 0 && at->item >= f.segments * at->count) {
        at->item -= f.segments * at->count;
        at->first += at->count;
        at->count = chunk_tiles(f, at->first, end);
        at->run++;
    }
}

static __device__ __forceinline__ staged_item
staged_item_at(const few_call &f, const staged_at &at, uint32_t end)
{
    staged_item s = {};

    if (at.count != 0) {
        s.item = item_at(f, at.first + at.item % at.count, at.item / at.count, end);
        s.run = at.run;
    }
    return s;
}

// ---- slots ----

static __device__ __forceinline__ uint32_t
fill_of(const few_call &f, uint32_t run, uint32_t segment)
{
    return f.ring.stay ? segment : run * f.segments + segment;
}

static __device__ __forceinline__ uint8_t *
slot_of(const few_call &f, uint8_t *memory, uint32_t fill)
{
    return memory + f.at.codes + (fill & f.ring.mask) * f.ring.slot_bytes;
}

static __device__ __forceinline__ uint32_t
full_of(const few_call &f, uint8_t *memory, uint32_t fill)
{
    return bt_shared_at(memory + f.at.barriers + (fill & f.ring.mask) * 8);
}

static __device__ __forceinline__ uint32_t
empty_of(const few_call &f, uint8_t *memory, uint32_t fill)
{
    return bt_shared_at(memory + f.at.barriers + (f.ring.slots + (fill & f.ring.mask)) * 8);
}

// Where it says which fill of a slot was asked for last.
static __device__ __forceinline__ uint32_t
asked_of(const few_call &f, uint8_t *memory, uint32_t fill)
{
    return bt_shared_at(memory + f.at.barriers + (2 * f.ring.slots + (fill & f.ring.mask)) * 8);
}

// Where the helpers meet (helpers_sync).
static __device__ __forceinline__ uint32_t
met_of(const few_call &f, uint8_t *memory)
{
    return bt_shared_at(memory + f.at.barriers + 3 * f.ring.slots * 8);
}

// By as many threads as there are slots. All that use a slot of a chunk leave it: a warp for each tile, and the helpers' warps.
static __device__ __forceinline__ void
make_slot(const few_call &f, uint8_t *memory, uint32_t slot)
{
    bt_barrier_init(full_of(f, memory, slot), 1);
    bt_barrier_init(empty_of(f, memory, slot), f.chunk + f.helpers);
    bt_shared_tell(asked_of(f, memory, slot), ~0u);
}

// A barrier tells a phase only from the one before, and who is segments ahead of the others may come phases too early: so the fill has to be
// asked for first, which is after all before it were used. None comes after it until this warp has left, too.
static __device__ __forceinline__ void
wait_for_slot(const few_call &f, uint8_t *memory, uint32_t fill)
{
    if (!f.ring.stay) {
        bt_shared_wait(asked_of(f, memory, fill), fill);
    }
    bt_barrier_wait(full_of(f, memory, fill), fill >> f.ring.shift & 1);
}

// A warp asks for a segment: first what will come is said, then it is asked for.
static __device__ __forceinline__ void
fill_slot(const few_call &f, uint8_t *memory, uint32_t fill, uint32_t lane)
{
    uint32_t segment = fill % f.segments, k = segment * SEGMENT, full = full_of(f, memory, fill);
    uint32_t columns = min((uint32_t)f.c.a8_stride - k, SEGMENT), tiles = f.sa_width / 8;
    uint32_t row = k >> f.c.act_shift, rows = ((k + columns - 1) >> f.c.act_shift) - row + 1;
    uint32_t to = bt_shared_at(slot_of(f, memory, fill));

    if (lane == 0) {
        bt_barrier_expect(full, tiles * columns * 8 + rows * f.sa_width * 4);
        bt_shared_tell(asked_of(f, memory, fill), fill);
    }
    __syncwarp();
    if (lane < tiles) {
        bt_bulk_copy(to + lane * SEGMENT * 8, f.c.a8 + (lane * f.c.a8_stride + k) * 8, columns * 8, full);
    }
    if (lane == tiles) {
        bt_bulk_copy(to + tiles * SEGMENT * 8, f.c.sa + row * f.sa_width, rows * f.sa_width * 4, full);
    }
}

// Segments that come in all: those of each chunk anew, unless they stay.
static __device__ __forceinline__ uint32_t
fills_of(const few_call &f, uint32_t tiles)
{
    return f.ring.stay ? f.segments : (tiles + f.chunk - 1) / f.chunk * f.segments;
}

// A warp, or `count` of them, are done with a slot.
static __device__ __forceinline__ void
leave_slot(const few_call &f, uint8_t *memory, uint32_t fill, uint32_t count, uint32_t lane)
{
    bt_fence_async();
    __syncwarp();
    if (!f.ring.stay && lane == 0) {
        bt_barrier_arrive_for(empty_of(f, memory, fill), count);
    }
}

// A helper's warp asks for what comes into a slot next once all have left it. `fills`: of this block.
static __device__ __forceinline__ void
refill_slot(const few_call &f, uint8_t *memory, uint32_t fill, uint32_t fills, uint32_t lane)
{
    if (fill + f.ring.slots < fills) {
        bt_barrier_wait(empty_of(f, memory, fill), fill >> f.ring.shift & 1);
        fill_slot(f, memory, fill + f.ring.slots, lane);
    }
}
#endif
