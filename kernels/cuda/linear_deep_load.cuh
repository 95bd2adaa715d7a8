// linear_deep.cuh: the warp that loads.
#pragma once

#include "kernels/cuda/linear_deep_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A tile's codes and their scales, as the loading warp knows them. Where two warpgroups' are one box the second has none of its own.
typedef struct {
    uint32_t part[2], tile[2], bytes; // of a stage
    bool there[2];
} deep_codes;

static __device__ __forceinline__ deep_codes
deep_codes_of(const deep_call &d, uint32_t block)
{
    deep_codes l;

    l.bytes = DEEP_TOKENS * DEEP_UNIT + DEEP_TOKENS * 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        l.there[i] = deep_four(d.w.c, block, i, &l.part[i], &l.tile[i]) && i % d.box_fours == 0;
        l.bytes += l.there[i] ? d.box_fours * (4096 + 128) : 0;
    }
    return l;
}

// One thread: a stage of a tile.
static __device__ __forceinline__ void
deep_load_stage(const deep_call &d, const deep_maps &maps, uint32_t at, uint32_t slot, const deep_codes &l,
                uint32_t token, uint32_t unit, uint32_t rank)
{
    uint32_t full = DEEP_FULL(at, slot), stage = at + slot * DEEP_STAGE_BYTES, k = unit * DEEP_UNIT;
    uint32_t small = at + DEEP_SMALL_AT + slot * DEEP_SMALL_BYTES;

    bt_barrier_expect(full, l.bytes);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        if (l.there[i]) {
            bt_bulk_box(stage + DEEP_TOKENS * DEEP_UNIT + i * 4096, &maps.codes[l.part[i]], k * 2, l.tile[i], full);
            bt_bulk_box(small + 512 + i * 128, &maps.scales[l.part[i]], unit * 16, l.tile[i], full);
        }
    }
    bt_bulk_box(small, &maps.sa, token, d.w.c.act_shift < 31 ? unit : 0, full);
    bt_bulk_box_all(stage + rank * (DEEP_TOKENS / 2 * DEEP_UNIT), &maps.a8, k, token + rank * DEEP_TOKENS / 2, full, 3);
}

// All stages of all tiles, and behind the last a stage in which nothing comes, so that who multiplies need not know which one is the last.
static __device__ __forceinline__ void
deep_load(const deep_call &d, const deep_maps &maps, uint32_t at, uint32_t rank)
{
    uint32_t slot = 0, round = 0;

    for (uint32_t index = blockIdx.x / 2; index < d.total; index += gridDim.x / 2) {
        deep_tile t = deep_tile_of(d, index, rank);
        deep_codes l = deep_codes_of(d, t.block);

#pragma unroll 1
        for (uint32_t unit = 0; unit < d.units; unit++) {
            if (round != 0) {
                bt_barrier_wait(DEEP_EMPTY(at, slot), (round - 1) & 1);
            }
            if (bt_elect()) {
                deep_load_stage(d, maps, at, slot, l, t.token, unit, rank);
            }
            slot = slot + 1 == DEEP_STAGES ? 0 : slot + 1;
            round += slot == 0;
        }
    }
    if (round != 0) {
        bt_barrier_wait(DEEP_EMPTY(at, slot), (round - 1) & 1);
    }
    if (bt_elect()) {
        bt_barrier_arrive(DEEP_FULL(at, slot));
    }
}

#endif
