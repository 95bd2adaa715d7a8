// Few tokens whose codes do not fit beside the weights: codes come segment by segment.
//
//     a chunk of tiles   items by rising segment, tile by tile within a segment; item j is worker j mod W's
//     slots              a segment's INT8 codes and their scales; all workers multiply by them, helpers sum the outliers of their columns
//     who leaves last    asks for the segment that comes next into the slot
//
// 16 tokens of 8,192 columns are 128 KB, which leaves room for eight workers and no K
// beyond 9,000. Segments are added at the end as everywhere (finish_chunk), so the order in which they come changes nothing.
#pragma once

#include "kernels/cuda/few_walk.cuh"
#include "kernels/cuda/few_worker.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- workers ----

// What a worker reads while it multiplies.
typedef struct {
    staged_at at; // of `next`
    staged_item now, next;
} staged_worker;

// The worker's items of a chunk of `count` tiles from `first` on; `last` is the block's end.
template <int BITS, int BLOCK, int NT>
static __device__ __forceinline__ void
staged_multiply(const few_call &f, staged_worker *w, uint8_t *memory, uint32_t warp, uint32_t lane, uint32_t first,
                uint32_t count, uint32_t last)
{
    typedef few_ring<BITS, BLOCK, FEW_SLOTS(BITS, 2)> R;
    uint8_t *ring = memory + warp * R::bytes;
    int32_t dots[NT][4] = {};
    float acc[NT][4] = {};
    few_factors x = {};

#pragma unroll 1
    while (w->now.item.columns != 0 && w->now.item.tile < first + count) {
        const few_item &item = w->now.item;
        uint32_t fill = fill_of(f, w->now.run, item.segment);
        uint8_t *slot = slot_of(f, memory, fill);

        x.codes = (const int8_t *)slot + lane * 16, x.stride = 512, x.eight = SEGMENT * 8;
        x.sa = (const float *)(slot + f.sa_width * SEGMENT) + lane % 4 * 2;
        staged_move(f, &w->at, f.workers, last);
        w->next = staged_item_at(f, w->at, last);
        if (BITS == 8 && BLOCK != 0 && f.c.part[0].block == BT_BLOCK_ROW) {
            x.row_scale[0] = __half2float(item.scales[lane / 4]);
            x.row_scale[1] = __half2float(item.scales[lane / 4 + 8]);
        }
        wait_for_slot(f, memory, fill);
        multiply_pieces<BITS, BLOCK, R::slots, NT>(
            f, item, w->next.item, x, min(f.c.padded - item.segment * SEGMENT, SEGMENT), ring, lane, dots, acc);
        if (BLOCK == 0) {
            put_sums<NT>(f, memory, item.segment, item.tile - first, lane, f.c.tokens, dots);
        } else {
            put_sums<NT>(f, memory, item.segment, item.tile - first, lane, f.c.tokens, acc);
        }
        leave_slot(f, memory, fill, 1, lane);
        w->now = w->next;
    }
}

// ---- the kernel ----

// As get_ready of linear_few.cuh.
template <int BLOCK>
static __device__ __forceinline__ void
staged_get_ready(const few_call &f, uint8_t *memory, uint32_t first, uint32_t end, uint32_t fills)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool works = warp < f.workers;

    if (!works) {
        fetch_outliers(f, memory, warp - f.workers, f.helpers, lane, first, end);
    }
    bt_wait_before();
    if (warp < f.ring.slots && warp < fills) {
        fill_slot(f, memory, warp, lane);
    }
    if (BLOCK == 0 && threadIdx.x < f.sa_width) {
        ((float *)(memory + f.at.scales))[threadIdx.x] = f.c.sa[threadIdx.x];
    }
    if (!works) {
        bt_copy_wait<0>(); // the outliers
        helpers_sync(met_of(f, memory), 0);
    }
}

template <int BITS, int BLOCK, int NT>
static __global__ void __launch_bounds__(512, 1) staged_kernel(const __grid_constant__ few_call f)
{
    typedef few_ring<BITS, BLOCK, FEW_SLOTS(BITS, 2)> R;
    extern __shared__ __align__(128) uint8_t few_memory[];
    uint8_t *memory = few_memory;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, helper = threadIdx.x - f.workers * 32, run = 0;
    uint32_t step = f.c.paired ? 2 : 1, first = (blockIdx.x * f.each + min(blockIdx.x, f.more)) * step,
             end = first + (f.each + (blockIdx.x < f.more ? 1 : 0)) * step;
    uint32_t fills = fills_of(f, end - first);
    bool works = warp < f.workers;
    staged_worker worker = {};

    if (works) {
        worker.at.first = first, worker.at.count = chunk_tiles(f, first, end);
        staged_move(f, &worker.at, warp, end);
        worker.now = staged_item_at(f, worker.at, end);
        fill_ring<BITS, BLOCK, R::slots, 0, R::slots>(worker.now.item, lane, memory + warp * R::bytes);
    } else {
        bt_let_next();
        if (helper < f.ring.slots) {
            make_slot(f, memory, helper);
        } else if (helper == f.ring.slots) {
            bt_barrier_init(met_of(f, memory), f.helpers * 32);
        }
        bt_barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    staged_get_ready<BLOCK>(f, memory, first, end, fills);
#pragma unroll 1
    for (uint32_t tile = first; tile < end; tile += f.chunk, run++) {
        uint32_t count = chunk_tiles(f, tile, end);

        if (works) {
            staged_multiply<BITS, BLOCK, NT>(f, &worker, memory, warp, lane, tile, count, end);
        } else {
            staged_help(f, memory, helper, first, tile, count, run, fills);
        }
        __syncthreads();
        finish_chunk<BLOCK>(f, memory, count);
        if (tile + f.chunk < end) {
            __syncthreads(); // the sums are read
        }
    }
}
#else
template <int BITS, int BLOCK, int NT>
static __global__ void
staged_kernel(const __grid_constant__ few_call f)
{
}
#endif
