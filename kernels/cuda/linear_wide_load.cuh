// linear_wide.cuh: the warp that loads. Codes, scales and activations come as boxes of tensor maps, 128 columns a stage.
//
// Weights could be asked for up to the whole ring while the kernel before is at work. But then what that one still has to load comes behind
// them: a ring of gate|up is 21 MB, 4.7 µs of memory. So it is two stages, about what memory brings in a microsecond, and the others when
// activations are there, which nobody waits for: a stage is multiplied more slowly than it comes.
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"
#include "kernels/cuda/ptx_multicast.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What the loading warp knows of its block of threads. A box has the rows of `wide_call.fours` warpgroups; those that follow the first of a box
// have none of their own.
typedef struct {
    uint32_t part[WIDE_FOURS], tile[WIDE_FOURS], bytes; // of the boxes; of a stage
    bool there[WIDE_FOURS];
    uint32_t stages_at, barriers, first, units;
} wide_loader;

template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ wide_loader
wide_loader_of(const wide_call &w, uint32_t stages_at, uint32_t barriers, uint32_t first, uint32_t units)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t box = w.fours * (W::half_codes + 4 * W::scales_of(w.c) * (ASYM ? 2 : 1));
    wide_loader l;

    l.bytes = N * 128 + (BLOCK == 0 ? 0 : w.c.act_rows * N * 4) + (ASYM ? 4 * N * 4 : 0);
#pragma unroll
    for (uint32_t i = 0; i < WIDE_FOURS; i++) {
        l.there[i] = i % w.fours == 0 && wide_four(w.c, i, &l.part[i], &l.tile[i]);
        l.bytes += l.there[i] ? box : 0;
    }
    l.stages_at = stages_at, l.barriers = barriers, l.first = first, l.units = units;
    return l;
}

// A stage's barrier, and the weights of a unit. By one thread, as all that loads.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load_weights(const wide_call &w, const wide_maps &maps, const wide_loader &l, uint32_t unit, uint32_t slot)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t to = l.stages_at + slot * W::stage_bytes, barrier = l.barriers + slot * 16, k = l.first + unit * WIDE_UNIT;
    uint32_t scale = W::by_row(w.c) ? 0 : k / (BLOCK ? BLOCK : 1) * 16;

    bt_barrier_expect(barrier, l.bytes);
#pragma unroll
    for (uint32_t i = 0; i < WIDE_FOURS; i++) {
        if (l.there[i]) {
            bt_bulk_box(to + W::codes_at + i * W::half_codes, &maps.codes[l.part[i]], BITS == 4 ? k * 2 : k,
                        BITS == 4 ? l.tile[i] : l.tile[i] * 16, barrier);
            if (BLOCK != 0) {
                bt_bulk_box(to + W::scales_at + i * 4 * W::scales_of(w.c), &maps.scales[l.part[i]], scale, l.tile[i],
                            barrier);
            }
            if (ASYM) {
                bt_bulk_box(to + W::minima_at + i * 4 * W::scales_of(w.c), &maps.minima[l.part[i]], scale, l.tile[i],
                            barrier);
            }
        }
    }
}

template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load_activations(const wide_call &w, const wide_maps &maps, const wide_loader &l, uint32_t unit, uint32_t slot)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    uint32_t to = l.stages_at + slot * W::stage_bytes, barrier = l.barriers + slot * 16, k = l.first + unit * WIDE_UNIT;
    uint32_t token = blockIdx.y * N;

    bt_bulk_box(to, &maps.a8, k, token, barrier);
    if (BLOCK != 0) {
        bt_bulk_box(to + W::sa_at, &maps.sa, token, w.c.act_shift < 31 ? k >> w.c.act_shift : 0, barrier);
    }
    if (ASYM) {
        bt_bulk_box(to + W::sums_at, &maps.sums, token, k / 32, barrier);
    }
}

// The loading warp before anything else: barriers, and weights of the first stages on their way.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load_ahead(const wide_call &w, const wide_maps &maps, const wide_loader &l)
{
    if (bt_elect()) {
#pragma unroll 1
        for (uint32_t i = 0; i < w.stages; i++) {
            bt_barrier_init(l.barriers + i * 16, 1);
            bt_barrier_init(l.barriers + i * 16 + 8, WIDE_WORKERS / 32);
        }
        bt_barrier_init_done();
#pragma unroll 1
        for (uint32_t u = 0; u < l.units && u < WIDE_AHEAD; u++) {
            wide_load_weights<BITS, BLOCK, ASYM, N>(w, maps, l, u, u);
        }
        bt_prefetch_map(&maps.a8);
        bt_prefetch_map(&maps.sa);
    }
    __syncwarp();
}

// Then, when what this kernel waits for is there: activations, and the other units as stages are read. Behind the last one a stage is said to
// be there in which nothing comes, so that who multiplies need not know which one is the last.
template <int BITS, int BLOCK, bool ASYM, int N>
static __device__ __forceinline__ void
wide_load(const wide_call &w, const wide_maps &maps, const wide_loader &l)
{
    bt_wait_before();
#pragma unroll 1
    for (uint32_t u = 0, slot = 0, round = 0; u <= l.units; u++) {
        if (round != 0) {
            bt_barrier_wait(l.barriers + slot * 16 + 8, (round - 1) & 1);
        }
        if (bt_elect()) {
            if (u == l.units) {
                bt_barrier_arrive(l.barriers + slot * 16);
                break;
            }
            if (u >= WIDE_AHEAD) {
                wide_load_weights<BITS, BLOCK, ASYM, N>(w, maps, l, u, slot);
            }
            wide_load_activations<BITS, BLOCK, ASYM, N>(w, maps, l, u, slot);
        }
        slot = slot + 1 == w.stages ? 0 : slot + 1;
        round += slot == 0;
    }
    __syncwarp();
}

#endif
