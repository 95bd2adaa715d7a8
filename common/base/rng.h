// Chance, from a seed: a counter-based hash (SplitMix64's finaliser) and a small generator on top of it. The value for
// (seed, counter) never depends on what was drawn before, which is what sampling and replay need.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__ // kernels/cuda draws with the same bits
__host__ __device__
#endif
    static inline uint64_t
    bt_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

typedef struct {
    uint64_t state;
} bt_rng;

static inline uint64_t
bt_rng_next(bt_rng *rng)
{
    rng->state += 0x9e3779b97f4a7c15u;
    return bt_mix64(rng->state);
}

// Uniform in [0, bound); bound > 0. The bias of the multiplication is below 2^-32 for bounds below 2^32.
static inline uint64_t
bt_rng_below(bt_rng *rng, uint64_t bound)
{
    return (uint64_t)((unsigned __int128)bt_rng_next(rng) * bound >> 64);
}

// Uniform in [0, 1) with 24 bits, exact in float.
static inline float
bt_rng_float(bt_rng *rng)
{
    return (float)(bt_rng_next(rng) >> 40) * 0x1p-24f;
}
