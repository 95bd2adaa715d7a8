// linear_wide.cuh: what blocks of threads that share K have summed, of a row's four tokens, as one: the balanced tree over their runs, or the
// whole dot of integers. Runs lie in the shared memory of a cluster's blocks or (far) in global memory.
#pragma once

#include "kernels/cuda/linear_wide_shape.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ float4
wide_plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Runs i and i + 1 (if there is one) of four neighbouring tokens.
static __device__ __forceinline__ float4
wide_two(uint32_t at, uint32_t i, uint32_t ranks)
{
    float4 v = bt_cluster_load4(bt_cluster_at(at, i));

    return i + 1 < ranks ? wide_plus(v, bt_cluster_load4(bt_cluster_at(at, i + 1))) : v;
}

// The balanced tree over the runs of the cluster's blocks.
static __device__ __forceinline__ float4
wide_tree(const float *own, uint32_t ranks)
{
    uint32_t at = bt_shared_at(own);
    float4 v;

    if (ranks == 1) {
        return *(const float4 *)own;
    }
    v = wide_two(at, 0, ranks);

    if (ranks > 2) {
        v = wide_plus(v, wide_two(at, 2, ranks));
    }
    if (ranks > 4) {
        float4 more = wide_two(at, 4, ranks);

        v = wide_plus(v, ranks > 6 ? wide_plus(more, wide_two(at, 6, ranks)) : more);
    }
    return v;
}

// The same of runs that lie `stride` floats apart in global memory. Other multiprocessors wrote them: not from the first-level cache. All are
// on their way before the first is added.
static __device__ __forceinline__ void
wide_fetch_runs(const float *own, size_t stride, uint32_t ranks, float4 v[WIDE_RANKS])
{
#pragma unroll
    for (uint32_t i = 0; i < WIDE_RANKS; i++) {
        if (i < ranks) {
            v[i] = __ldcg((const float4 *)(own + i * stride));
        }
    }
}

// Their balanced tree.
static __device__ __forceinline__ float4
wide_add_runs(uint32_t ranks, float4 v[WIDE_RANKS])
{
#pragma unroll
    for (uint32_t step = 1; step < WIDE_RANKS; step *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < WIDE_RANKS; i += 2 * step) {
            if (i + step < ranks) {
                v[i] = wide_plus(v[i], v[i + step]);
            }
        }
    }
    return v[0];
}

static __device__ __forceinline__ float4
wide_tree_far(const float *own, size_t stride, uint32_t ranks)
{
    float4 v[WIDE_RANKS];

    wide_fetch_runs(own, stride, ranks, v);
    return wide_add_runs(ranks, v);
}

// The trees of four tokens, and of the four that are WIDE_BOTH further: the runs of all are on their way before the first is added.
template <bool FAR>
static __device__ __forceinline__ void
wide_trees(const float *own, size_t stride, uint32_t ranks, float4 r[2])
{
    if (FAR) {
        float4 v[2][WIDE_RANKS];

        wide_fetch_runs(own, stride, ranks, v[0]);
        wide_fetch_runs(own + WIDE_BOTH, stride, ranks, v[1]);
        r[0] = wide_add_runs(ranks, v[0]), r[1] = wide_add_runs(ranks, v[1]);
    } else if (ranks == 2) {
        uint32_t at = bt_shared_at(own), first = bt_cluster_at(at, 0), second = bt_cluster_at(at, 1);
        float4 v[4] = {bt_cluster_load4(first), bt_cluster_load4(second), bt_cluster_load4(first + WIDE_BOTH * 4),
                       bt_cluster_load4(second + WIDE_BOTH * 4)};

        r[0] = wide_plus(v[0], v[1]), r[1] = wide_plus(v[2], v[3]);
    } else {
        r[0] = wide_tree(own, ranks), r[1] = wide_tree(own + WIDE_BOTH, ranks);
    }
}

static __device__ __forceinline__ int4
wide_plus_dot(int4 dot, float4 v)
{
    return make_int4(dot.x + __float_as_int(v.x), dot.y + __float_as_int(v.y), dot.z + __float_as_int(v.z),
                     dot.w + __float_as_int(v.w));
}

// The whole dot of runs of integers that are kept as floats' bits.
static __device__ __forceinline__ int4
wide_dot(const float *own, uint32_t ranks)
{
    uint32_t at = bt_shared_at(own);
    int4 dot = make_int4(0, 0, 0, 0);

#pragma unroll 1
    for (uint32_t i = 0; i < ranks; i++) {
        dot = wide_plus_dot(dot, bt_cluster_load4(bt_cluster_at(at, i)));
    }
    return dot;
}

static __device__ __forceinline__ int4
wide_dot_far(const float *own, size_t stride, uint32_t ranks)
{
    int4 dot = make_int4(0, 0, 0, 0);

#pragma unroll 1
    for (uint32_t i = 0; i < ranks; i++) {
        dot = wide_plus_dot(dot, __ldcg((const float4 *)(own + i * stride)));
    }
    return dot;
}

// One dot over all of K, scaled.
static __device__ __forceinline__ float4
wide_total(int4 dot, float sw, float4 sa)
{
    return make_float4(fmaf(sw * sa.x, (float)dot.x, 0.0f), fmaf(sw * sa.y, (float)dot.y, 0.0f),
                       fmaf(sw * sa.z, (float)dot.z, 0.0f), fmaf(sw * sa.w, (float)dot.w, 0.0f));
}
#endif
