// Linear layers with symmetric integer weights for 1 … 16 tokens on sm_90: as fast as the weights come.
//
//     block of threads   tiles [first, end) of 16 rows, all of K
//     worker w of W      runs w, w + W, …   an item is (tile, segment of 1,024 columns); a run is one, or of more than eight tokens two
//                        that are neighbours in a tile, added in registers; tile by tile
//                        ring of pieces of 256 columns: what is read next goes where a piece was just multiplied
//     helpers            sum the outliers of the rows while the workers multiply, and fetch what y held
//
// Weights do not wait for the kernel before (launch.cuh): each worker fills its ring first. One token's codes, of up to 4,096 columns, are then
// made by each block for itself, which costs less than a kernel between two others; those of more come from the prologue's kernel, segment by segment, which
// workers wait for one at a time.
// Runs' sums meet in shared memory, a `chunk` of tiles at a time, are added as the balanced tree, and each (row, token) is finished by one
// thread. Where no worker has more than one run of two they lie where its pieces were, and all tiles are one chunk.
// A block has an SM's shared memory to itself: with room for two, one SM got two blocks of a kernel and another none.
#pragma once

#include "kernels/cuda/few_codes.cuh"
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/few_worker.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// From the first numbers of the kernel before to codes, and outliers, in shared memory. All threads of the block.
template <int BITS, int BLOCK, int SLOTS>
static __device__ __forceinline__ void
get_ready(const few_call &f, uint8_t *memory, const few_worker &worker, uint32_t first, uint32_t end)
{
    typedef few_ring<BITS, BLOCK, SLOTS> R;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool works = warp < f.workers;

    if (works && !f.encodes) { // a piece after the other: codes would wait behind all that is on its way
#pragma unroll
        for (int q = 1; q < R::slots; q++) {
            bt_copy_wait<0>();
            fetch_piece<BITS, BLOCK, SLOTS>(worker.now, q, lane, memory + warp * R::bytes);
        }
    }
    if (warp > f.workers && f.at.outliers != 0) {
        fetch_outliers(f, memory, warp - f.workers - 1, f.helpers - 1, lane, first, end);
    }
    bt_wait_before();
    if (warp == f.workers && !f.encodes) {
        fetch_codes(f, memory, bt_shared_at(memory + f.at.barriers));
    }
    if (!works) {
        bt_copy_wait<0>(); // the outliers, which workers do not wait for
        if (f.encodes) {
            wait_for_workers(f);
        } else {
            helpers_sync(bt_shared_at(memory + f.at.barriers) + f.segments * 8, 0);
        }
        return;
    }
    if (f.encodes) {
        encode<BLOCK>(f, memory);
        fill_ring<BITS, BLOCK, SLOTS, R::slots / 2, R::slots>(worker.now, lane, memory + warp * R::bytes);
        workers_sync(f);
        workers_are_ready(f);
    }
}
#endif

template <int BITS, int BLOCK, int NT>
static __global__ void
__launch_bounds__(FEW_THREADS, 1) few_kernel(const __grid_constant__ few_call f)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    typedef few_ring<BITS, BLOCK, FEW_SLOTS(BITS, NT)> R;
    extern __shared__ __align__(128) uint8_t few_memory[];
    uint8_t *memory = few_memory;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = f.c.paired ? 2 : 1;
    uint32_t first = (blockIdx.x * f.each + min(blockIdx.x, f.more)) * step,
             end = first + (f.each + (blockIdx.x < f.more ? 1 : 0)) * step;
    uint32_t barriers = bt_shared_at(memory + f.at.barriers);
    bool works = warp < f.workers;
    few_worker worker = {};

    if (works) {
        if (f.at.norm != 0) {
            for (uint32_t k = threadIdx.x * 4; k < f.cols; k += f.workers * 128) {
                bt_copy16(memory + f.at.norm + k * 4, f.norm + k, true);
            }
            bt_copy_commit();
        }
        worker.now = run_at(f, first, warp, end);
        if (f.encodes) {
            fill_ring<BITS, BLOCK, R::slots, 0, R::slots / 2>(worker.now, lane, memory + warp * R::bytes);
            bt_copy_wait<R::slots / 2>(); // the norm's weights
        } else {
            fill_ring<BITS, BLOCK, R::slots, 0, 1>(worker.now, lane, memory + warp * R::bytes);
        }
    } else {
        bt_let_next();
        for (uint32_t s = threadIdx.x - f.workers * 32; s <= f.segments; s += f.helpers * 32) {
            bt_barrier_init(barriers + s * 8, s < f.segments ? 1 : f.helpers * 32); // the last: the helpers' own
        }
        bt_barrier_init_done();
    }
    __syncthreads(); // the barriers and the norm are there
    get_ready<BITS, BLOCK, R::slots>(f, memory, worker, first, end);
#pragma unroll 1
    for (uint32_t tile = first; tile < end; tile += f.chunk) {
        uint32_t next = tile + f.chunk < end ? tile + f.chunk : end;

        if (works) {
            multiply_items<BITS, BLOCK, R::slots, NT>(f, &worker, memory, warp, lane, tile, next, end);
        } else {
            for (uint32_t s = 0; s < f.segments && !f.encodes; s++) {
                bt_barrier_wait(barriers + s * 8, 0);
            }
            if (f.c.tokens == 1) {
                help<1>(f, memory, threadIdx.x - f.workers * 32, first, tile, next - tile);
            } else {
                help<4>(f, memory, threadIdx.x - f.workers * 32, first, tile, next - tile);
            }
        }
        __syncthreads();
        finish_chunk<BLOCK>(f, memory, next - tile);
        if (next < end) {
            __syncthreads(); // the sums are read
        }
    }
#endif
}
