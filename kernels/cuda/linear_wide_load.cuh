// linear_wide.cuh: the warp that loads. Codes, scales and activations come as boxes of tensor maps, 128 columns a stage.
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Codes and scales of a warpgroup's 64 rows.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load_weights(const linear_call &c, const wide_maps &maps, uint32_t half, uint32_t part, uint32_t tile, uint32_t k,
                  uint32_t to, uint32_t barrier)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t scale = c.part[part].block == BT_BLOCK_ROW ? 0 : k / (BLOCK ? BLOCK : 1) * 16;

    bt_bulk_box(to + W::codes_at + half * W::half_codes, &maps.codes[part], BITS == 4 ? k * 2 : k,
                BITS == 4 ? tile : tile * 16, barrier);
    if (BLOCK != 0) {
        bt_bulk_box(to + W::scales_at + half * 4 * W::tile_scales, &maps.scales[part], scale, tile, barrier);
    }
    if (ASYM) {
        bt_bulk_box(to + W::minima_at + half * 4 * W::tile_scales, &maps.minima[part], scale, tile, barrier);
    }
}

template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load_activations(const wide_call &w, const wide_maps &maps, uint32_t k, uint32_t to, uint32_t barrier)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t token = blockIdx.y * N;

    bt_bulk_box(to, &maps.a8, k, token, barrier);
    if (BLOCK != 0) {
        bt_bulk_box(to + W::sa_at, &maps.sa, token, w.c.act_shift < 31 ? k >> w.c.act_shift : 0, barrier);
    }
    if (ASYM) {
        bt_bulk_box(to + W::sums_at, &maps.sums, token, k / 32, barrier);
    }
}

// What the loading thread knows of its block of threads.
typedef struct {
    uint32_t part[WIDE_FOURS], tile[WIDE_FOURS], bytes; // of the warpgroups; of a stage
    bool there[WIDE_FOURS];
    uint32_t stages_at, barriers, first, units;
} wide_loader;

template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ wide_loader
wide_loader_of(const wide_call &w, uint32_t stages_at, uint32_t barriers, uint32_t first, uint32_t units)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t scales = BLOCK == 0 ? 0 : w.c.part[0].block == BT_BLOCK_ROW ? 32 : W::tile_scales;
    wide_loader l;

    l.bytes = N * 128 + (BLOCK == 0 ? 0 : w.c.act_rows * N * 4) + (ASYM ? 4 * N * 4 : 0);
#pragma unroll
    for (uint32_t i = 0; i < WIDE_FOURS; i++) {
        l.there[i] = wide_four(w.c, i, &l.part[i], &l.tile[i]);
        l.bytes += l.there[i] ? W::half_codes + 4 * scales * (ASYM ? 2 : 1) : 0;
    }
    l.stages_at = stages_at, l.barriers = barriers, l.first = first, l.units = units;
    return l;
}

// A stage's barrier, and the weights of a unit.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load_unit(const wide_call &w, const wide_maps &maps, const wide_loader &l, uint32_t unit, uint32_t slot)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;

    bt_barrier_expect(l.barriers + slot * 16, l.bytes);
#pragma unroll
    for (uint32_t half = 0; half < WIDE_FOURS; half++) {
        if (l.there[half]) {
            wide_load_weights<BITS, BLOCK, ASYM, N>(w.c, maps, half, l.part[half], l.tile[half],
                                                    l.first + unit * WIDE_UNIT, l.stages_at + slot * W::stage_bytes,
                                                    l.barriers + slot * 16);
        }
    }
}

// The loading warp. Weights of the first stages are on their way before what this kernel waits for is there.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load(const wide_call &w, const wide_maps &maps, const wide_loader &l, uint32_t lane)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;

    for (uint32_t u = 0; lane == 0 && u < l.units && u < w.stages; u++) {
        wide_load_unit<BITS, BLOCK, ASYM, N>(w, maps, l, u, u);
    }
    __syncwarp();
    bt_wait_before();
    for (uint32_t u = 0, slot = 0, round = 0; lane == 0 && u < l.units; u++) {
        if (round != 0) {
            bt_barrier_wait(l.barriers + slot * 16 + 8, (round - 1) & 1);
            wide_load_unit<BITS, BLOCK, ASYM, N>(w, maps, l, u, slot);
        }
        wide_load_activations<BITS, BLOCK, ASYM, N>(w, maps, l.first + u * WIDE_UNIT,
                                                    l.stages_at + slot * W::stage_bytes, l.barriers + slot * 16);
        slot = slot + 1 == w.stages ? 0 : slot + 1;
        round += slot == 0;
    }
    __syncwarp();
}

#endif
