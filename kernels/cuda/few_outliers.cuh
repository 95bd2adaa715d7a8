// Few tokens (linear_few.cuh): the outliers of a block's rows, in shared memory before anybody wants them.
//
// Where a row's outliers begin, their columns and their deltas are three loads, one behind the other; behind a full queue of weights each
// takes microseconds, and griddepcontrol.wait lets go of what the first cache holds. So helpers fetch those of all tiles while
// the kernel before is still at work. A tile has room for `room` of them; one with more leaves them where they are, which is slow and right.
//
//     a tile     row_start[17] as they are, padded to 80 bytes | columns [room] u32 | deltas [room + 2] fp16
#pragma once

#include "kernels/cuda/few_items.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

#define FEW_STARTS 20u // words

static __device__ __forceinline__ uint32_t *
outliers_at(const few_call &f, uint8_t *memory, uint32_t local_tile)
{
    return (uint32_t *)(memory + f.at.outliers + local_tile * f.outlier_bytes);
}

// Deltas lie two by two where they are, so they do here: the first may be one behind.
static __device__ __forceinline__ __half *
deltas_at(const few_call &f, uint32_t *tile)
{
    return (__half *)(tile + FEW_STARTS + f.room) + (tile[0] & 1);
}

// A warp asks where the rows of a tile begin, and where the last one ends.
static __device__ __forceinline__ void
ask_starts(const few_call &f, uint32_t tile, uint32_t *to, uint32_t lane)
{
    const bt_cuda_matrix &m = f.c.part[part_of(f.c, &tile)];

    if (lane <= 16 && m.row_start != NULL) {
        bt_copy4(to + lane, m.row_start + min(tile * 16 + lane, m.rows));
    } else if (lane <= 16) {
        to[lane] = 0;
    }
}

// A warp asks for the outliers of a tile whose starts are there.
static __device__ __forceinline__ void
ask_outliers(const few_call &f, uint32_t tile, uint32_t *to, uint32_t lane)
{
    const bt_cuda_matrix &m = f.c.part[part_of(f.c, &tile)];
    uint32_t begin = to[0], count = to[16] - begin, odd = begin & 1;
    __half *deltas = (__half *)(to + FEW_STARTS + f.room);

    if (count > f.room) {
        return;
    }
#pragma unroll 1
    for (uint32_t i = lane; i < count; i += 32) {
        bt_copy4(to + FEW_STARTS + i, m.outlier_cols + begin + i);
    }
#pragma unroll 1
    for (uint32_t i = lane * 2; i < count + odd; i += 64) {
        const __half *from = m.deltas + (begin - odd) + i;

        if (i + 1 < count + odd) {
            bt_copy4(deltas + i, from);
        } else { // the last may be the array's last
            deltas[i] = *from;
        }
    }
}

// A helper warp's share, one in `warps`, of the tiles of this block: two waits in all. They are there after bt_copy_wait<0> and a barrier.
static __device__ __forceinline__ void
fetch_outliers(const few_call &f, uint8_t *memory, uint32_t helper_warp, uint32_t warps, uint32_t lane, uint32_t first,
               uint32_t end)
{
    if (f.at.outliers != 0) {
#pragma unroll 1
        for (uint32_t tile = first + helper_warp; tile < end; tile += warps) {
            ask_starts(f, tile, outliers_at(f, memory, tile - first), lane);
        }
        bt_copy_commit();
        bt_copy_wait<0>();
        __syncwarp();
#pragma unroll 1
        for (uint32_t tile = first + helper_warp; tile < end; tile += warps) {
            ask_outliers(f, tile, outliers_at(f, memory, tile - first), lane);
        }
    }
    bt_copy_commit();
}

// The outliers of a row: numbers i … end − 1 of two arrays.
typedef struct {
    const uint32_t *cols;
    const __half *deltas;
    uint32_t i, end;
    bool near; // the arrays are in shared memory
} few_list;

// Of row 16 · tile + r of a matrix, whose tile is the local_tile-th of this block.
static __device__ __forceinline__ few_list
list_of(const few_call &f, uint8_t *memory, const bt_cuda_matrix &m, uint32_t local_tile, uint32_t tile, uint32_t r)
{
    few_list l = {};

    l.cols = m.outlier_cols, l.deltas = m.deltas;
    if (f.at.outliers != 0) {
        uint32_t *here = outliers_at(f, memory, local_tile), begin = here[0];

        l.i = here[r], l.end = here[r + 1];
        if (here[16] - begin <= f.room) {
            l.i -= begin, l.end -= begin;
            l.cols = here + FEW_STARTS, l.deltas = deltas_at(f, here), l.near = true;
        }
    } else if (m.row_start != NULL && tile * 16 + r < m.rows) {
        l.i = m.row_start[tile * 16 + r], l.end = m.row_start[tile * 16 + r + 1];
    }
    return l;
}
#endif
