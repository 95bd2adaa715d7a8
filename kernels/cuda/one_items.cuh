// What a worker of a plain call (linear_one.cuh, linear_lean.cuh) multiplies: symmetric 4-bit weights in blocks of 128, whole segments and tiles.
#pragma once

#include "kernels/cuda/few_items.cuh"

// Parts: of ONE_PAIR tiles alternate, of ONE_THREE, which may be two, they follow each other.
typedef enum { ONE_SINGLE, ONE_PAIR, ONE_THREE } one_parts;

// linear_one.cu: whole blocks, whole tiles, and nothing of what is rare.
bool bt_few_is_plain(const few_call *f);

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// An item's weights, and the column of its first. count: pieces; 0: there is no such item.
typedef struct {
    const uint8_t *codes, *scales;
    uint32_t column, count;
} one_item;

// A worker's n-th item: a segment, or where JOINS a run of two of them, if the call has such.
template <int PARTS, bool JOINS>
static __device__ __forceinline__ one_item
one_item_at(const few_call &f, uint32_t first, uint32_t tiles, uint32_t n, uint32_t worker)
{
    const uint8_t *codes = f.c.part[0].codes, *scales = (const uint8_t *)f.c.part[0].scales;
    uint32_t index = n * f.workers + worker, tile = index * f.run_inverse >> 16, run = index - tile * f.runs;
    one_item item;

    item.column = run * SEGMENT << (JOINS ? f.join : 0);
    item.count = tile < tiles ? FEW_PIECES << (JOINS ? f.join : 0) : 0;
    tile += first;
    if (PARTS == ONE_PAIR) {
        codes = (tile & 1) != 0 ? f.c.part[1].codes : codes;
        scales = (tile & 1) != 0 ? (const uint8_t *)f.c.part[1].scales : scales;
        tile >>= 1;
    } else if (PARTS == ONE_THREE && tile >= f.c.part[0].tiles) {
        tile -= f.c.part[0].tiles;
        codes = f.c.part[1].codes, scales = (const uint8_t *)f.c.part[1].scales;
        if (tile >= f.c.part[1].tiles) {
            tile -= f.c.part[1].tiles;
            codes = f.c.part[2].codes, scales = (const uint8_t *)f.c.part[2].scales;
        }
    }
    item.codes = codes + (size_t)tile * f.columns * 8 + item.column * 8;
    item.scales = scales + (size_t)tile * f.columns / 4 + item.column / 4;
    return item;
}
#endif
