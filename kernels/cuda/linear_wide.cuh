// Linear layers with integer weights for 17 tokens and more (symmetric nibbles: 9 and more) on sm_90a, every sum in the order of
// kernels/cpu/ref/linear.c.
//
//     128 output rows (8 tiles) x N tokens x `run` segments of 1,024 columns a block of threads; neighbours may share K
//
//     warp 8         loads boxes by the copy engine, 128 columns a stage
//     warps 9 - 11   outliers of the rows that this block will finish, in the meantime
//     warps 0 - 3    four tiles: nibbles to bytes in registers (they are wgmma's A as they lie), wgmma, acc += scale * dot
//     warps 4 - 7    four tiles, paired calls: up to the others' gate
//
// Tall blocks (linear_wide_tall.cu) have 256 rows and sixteen warps that multiply, of paired calls eight of them gate and eight up.
//
// Then the partial sums of those that share K meet (linear_wide_meet.cuh): each block takes the rows of some tiles, adds the runs as the
// balanced tree, the outliers' sums, bias and so on (linear_wide_finish.cuh). A pair's tall block that shares K with nobody may leave the INT8
// that the next call begins with (linear_wide_codes.cuh).
//
// Roofline at N = 128: a stage is 512 cycles of tensor cores (4,096 INT8 products a cycle), 480 of instructions (three an output
// and block of 128: to float, scale, sum) and 24 KiB from the second-level cache, which gives about 25 bytes a cycle.
#pragma once

#include "kernels/cuda/linear_wide_codes.cuh"
#include "kernels/cuda/linear_wide_finish.cuh"
#include "kernels/cuda/linear_wide_load.cuh"
#include "kernels/cuda/linear_wide_meet.cuh"
#include "kernels/cuda/linear_wide_outliers.cuh"
#include "kernels/cuda/linear_wide_turn.cuh"
#include "kernels/cuda/linear_wide_work.cuh"

template <int BITS, int BLOCK, bool ASYM, int N>
static __global__ void
__launch_bounds__(WIDE_THREADS, 1)
    wide_kernel(const __grid_constant__ wide_call w, const __grid_constant__ wide_maps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef wide<BITS, BLOCK, ASYM, N> W;
    typedef wide_registers<N> R;
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x;
    uint32_t first = rank * w.c.run * SEGMENT,
             end = first + w.c.run * SEGMENT < w.c.padded ? first + w.c.run * SEGMENT : w.c.padded;
    uint32_t units = (end - first + WIDE_UNIT - 1) / WIDE_UNIT;
    float *partials = (float *)(memory + (W::late ? 0 : w.stages * W::stage_bytes));
    float *outliers = (float *)(memory + w.stages * W::stage_bytes + W::own_bytes);
    uint32_t barriers_at = bt_shared_at(outliers) + w.outlier_bytes;
    uint32_t *taken = (uint32_t *)(outliers + w.outlier_bytes / 4 + WIDE_STAGES * 4), *rows = taken + 4; // of outliers
    uint32_t ready = barriers_at + WIDE_STAGES * 16 + 8;

    wide_loader loader;
    if (warp == WIDE_WORKERS / 32) {
        loader = wide_loader_of<BITS, BLOCK, ASYM, N>(w, bt_shared_at(memory), barriers_at, first, units);
        wide_load_ahead<BITS, BLOCK, ASYM, N>(w, maps, loader);
    } else if (threadIdx.x == 0) {
        *taken = 0;
        bt_barrier_init(ready, 3 * 32);
    }
    __syncthreads();
    bt_let_next();
    if (warp < WIDE_WORKERS / 32) {
        bt_registers_more<R::workers>();
        bt_wait_before();
        if constexpr (BLOCK == 0) {
            wide_work_whole<N>(w, memory, (int32_t *)partials, barriers_at, units, warp, lane);
        } else {
            wide_work<BITS, BLOCK, ASYM, N>(w, memory, partials, barriers_at, units, warp, lane);
        }
        if (w.runs != NULL) {
            wide_send(w, partials, rank, W::partials_bytes);
        }
        if (w.turned != NULL) {
            wide_outliers<N, R::columns_late>(w, rank, lane, rows, ready, taken, outliers);
        }
        if (w.runs != NULL) {
            wide_finish<BITS, BLOCK, ASYM, N, true>(w, wide_runs(w, W::partials_bytes), outliers, rank, threadIdx.x);
        } else if (wide_leaves<BLOCK, ASYM, N>(w)) {
            wide_meet(w);
            wide_leave<N>(w, partials, outliers, (uint32_t *)(memory + (W::late ? W::partials_bytes : 0)),
                          threadIdx.x); // behind the sums, or in the ring
        } else {
            wide_finish<BITS, BLOCK, ASYM, N, false>(w, partials, outliers, rank, threadIdx.x);
        }
    } else {
        bt_registers_fewer<R::others>();
        if (warp == WIDE_WORKERS / 32) {
            wide_load<BITS, BLOCK, ASYM, N>(w, maps, loader);
        } else {
            if (w.turned != NULL) {
                wide_outliers_ahead(w, rank, warp - WIDE_WORKERS / 32 - 1, 3, lane, rows, ready);
            }
            bt_wait_before();
            if (w.turns != 0) {
                wide_turn(w, lane);
            }
            if (w.turned != NULL) {
                wide_outliers<N, R::columns>(w, rank, lane, rows, ready, taken, outliers);
            }
        }
        wide_meet(w);
        if (w.turns != 0 && threadIdx.x == WIDE_WORKERS + 32) {
            wide_turn_leave(w); // while others finish
        }
    }
    if (w.c.groups > 1 && w.runs == NULL) {
        bt_cluster_arrive_relaxed(); // the others have read what lies here
        bt_cluster_wait();
    }
#endif
}
