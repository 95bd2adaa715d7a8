// What a block of attention_decode.cuh knows of the (sequence, KV head) in hand, and how its splits are merged: in the block, in a
// cluster, or by the block that arrives last.
#pragma once

#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/ptx_cluster.cuh"

#define MERGE_AHEAD 8u // partials on their way at once

static __device__ __forceinline__ float *
out_at(const attention_call &c, const decode_unit &u, uint32_t query, uint32_t dims)
{
    return c.a.out + u.row * c.a.out_stride + (size_t)(u.kv_head * c.group + query) * dims;
}

// All warps that compute.
template <typename D>
static __device__ __forceinline__ void
meet(void)
{
    bt_bar_sync(1, D::threads);
}

// What a block knows of the (sequence, KV head) in hand.
template <typename D> struct decode_state {
    float acc[D::mt][4], total[D::mt][4]; // of the split, of all so far
    float total_m[2];                     // of the two queries in acc
    float carry[D::cols], w[D::cols];     // of the queries that are weighed: m of the split so far, and the factor
    float l, total_l, total_lm;           // of thread 16 · query + lane
};

template <typename D>
static __device__ __forceinline__ void
begin_split(decode_state<D> &q)
{
#pragma unroll
    for (int i = 0; i < D::mt * 4; i++) {
        q.acc[i / 4][i % 4] = 0.0f;
    }
#pragma unroll
    for (int col = 0; col < D::cols; col++) {
        q.carry[col] = -INFINITY;
    }
    q.l = 0.0f;
}

// l of the split, in all sixteen lanes.
static __device__ __forceinline__ float
split_l(float l)
{
#pragma unroll
    for (int i = 8; i > 0; i /= 2) {
        l = l + __shfl_xor_sync(0xffffffffu, l, i);
    }
    return l;
}

// total ∪= the split.
template <typename D>
static __device__ __forceinline__ void
merge_split(decode_shared<D> &s, decode_state<D> &q, bool is_first)
{
    uint32_t query = threadIdx.x / 16;

#pragma unroll
    for (int col = 0; col < 2; col++) {
        float other = s.m[query_multiplied<D>(threadIdx.x % 4 * 2 + col)], m = larger(q.total_m[col], other),
              a = exp2_of(q.total_m[col] - m), b = exp2_of(other - m);

#pragma unroll
        for (int j = 0; j < D::mt; j++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                float &to = q.total[j][row * 2 + col], x = q.acc[j][row * 2 + col];

                to = is_first ? x : fmaf(to, a, x * b);
            }
        }
        q.total_m[col] = is_first ? other : m;
    }
    if (query < D::columns) {
        float l = split_l(q.l), other = s.m[query], m = larger(q.total_lm, other);

        q.total_l = is_first ? l : fmaf(q.total_l, exp2_of(q.total_lm - m), l * exp2_of(other - m));
        q.total_lm = is_first ? other : m;
        if (threadIdx.x % 16 == 0) {
            s.l[query] = q.total_l;
        }
    }
}

// Calls `put` with (query, first dim, numbers that lie there: two, or four) for what a lane has of x.
template <typename D, typename F>
static __device__ __forceinline__ void
each_run(const attention_call &c, const float x[D::mt][4], F put)
{
#pragma unroll
    for (int col = 0; col < 2; col++) {
        uint32_t column = threadIdx.x % 4 * 2 + col, query = query_multiplied<D>(column);

        if (!has_dims<D>() || column >= D::columns || query >= c.group) {
            continue;
        }
#pragma unroll
        for (int j = 0; j < D::mt; j += 2) {
            float run[4] = {x[j][col], x[j][2 + col], x[j + (D::mt > 1)][col], x[j + (D::mt > 1)][2 + col]};

            put(query, dim_of<D>(j), run);
        }
    }
}

template <typename D>
static __device__ __forceinline__ void
store_run(float *to, const float run[4])
{
#pragma unroll
    for (int i = 0; i < (D::mt > 1 ? 4 : 2); i++) {
        to[i] = run[i];
    }
}

template <typename D>
static __device__ __forceinline__ void
leave_partial(const attention_call &c, decode_shared<D> &s, const decode_state<D> &q, uint32_t item)
{
    uint32_t query = threadIdx.x / 16;

    each_run<D>(c, q.acc, [&](uint32_t i, uint32_t d, const float run[4]) {
        store_run<D>(partial_at(c, item, i, D::dims) + BT_PARTIAL_HEAD + d, run);
    });
    if (query < D::columns) {
        float l = split_l(q.l);

        if (query < c.group && threadIdx.x % 16 == 0) {
            float *to = partial_at(c, item, query, D::dims);

            to[BT_PARTIAL_MAX] = s.m[query];
            to[BT_PARTIAL_SUM] = l;
        }
    }
}

// The merge of a (sequence, KV head), four dims a thread, by `threads` threads of the last block that had a part.
template <typename D>
static __device__ __noinline__ void
merge_here(const attention_call &c, const decode_unit &u, uint32_t item, uint32_t splits, uint32_t threads)
{
    for (uint32_t e = threadIdx.x % threads; e < c.group * D::dims / 4; e += threads) {
        uint32_t query = e / (D::dims / 4), d = e % (D::dims / 4) * 4;
        float m = 0.0f, l = 0.0f, acc[4] = {};

        for (uint32_t first = 0; first < splits; first += MERGE_AHEAD) {
            float max[MERGE_AHEAD], sum[MERGE_AHEAD];
            float4 value[MERGE_AHEAD];

#pragma unroll
            for (uint32_t i = 0; i < MERGE_AHEAD; i++) {
                const float *p = partial_at(c, item + (first + i < splits ? first + i : first), query, D::dims);

                max[i] = __ldcg(p + BT_PARTIAL_MAX), sum[i] = __ldcg(p + BT_PARTIAL_SUM);
                value[i] = __ldcg((const float4 *)(p + BT_PARTIAL_HEAD + d));
            }
#pragma unroll
            for (uint32_t i = 0; i < MERGE_AHEAD; i++) {
                float n = larger(m, max[i]), a = exp2_of(m - n), b = exp2_of(max[i] - n);
                const float v[4] = {value[i].x, value[i].y, value[i].z, value[i].w};
                bool is_first = first + i == 0;

                if (first + i >= splits) {
                    break;
                }
                l = is_first ? sum[i] : fmaf(l, a, sum[i] * b);
                m = is_first ? max[i] : n;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    acc[k] = is_first ? v[k] : fmaf(acc[k], a, v[k] * b);
                }
            }
        }
        for (int k = 0; k < 4; k++) {
            out_at(c, u, query, D::dims)[d + k] = acc[k] * (1.0f / l);
        }
    }
}

// What a block has of a (sequence, KV head) that others have parts of, too.
typedef struct {
    uint32_t item, splits, done; // its first item, its splits, those of this block
} decode_part;

static __device__ __forceinline__ decode_part
part_of(const decode_unit &opening, uint32_t item)
{
    uint32_t rest = last_split(opening) - opening.split + 1;
    decode_part p;

    p.item = item - (opening.split - first_split(opening));
    p.splits = last_split(opening) - first_split(opening) + 1;
    p.done = opening.left < rest ? opening.left : rest;
    return p;
}

// One thread, after all partials of the block's part: is it the last?
static __device__ __forceinline__ bool
count_arrival(const attention_call &c, const decode_unit &u, const decode_part &p)
{
    uint32_t *counter = c.arrivals + u.row * c.a.kv_heads + u.kv_head;
    bool last;

    last = bt_add_in_order(counter, p.done) + p.done == p.splits;
    if (last) {
        *counter = 0; // for the next call
    }
    return last;
}

template <typename D>
static __device__ __forceinline__ void
arrive(const attention_call &c, decode_shared<D> &s, const decode_unit &u, const decode_part &p)
{
    meet<D>();
    if (threadIdx.x == 0) {
        s.last = count_arrival(c, u, p);
    }
    meet<D>();
    if (s.last) {
        merge_here<D>(c, u, p.item, p.splits, D::threads);
    }
}

// The blocks of a cluster have a split each, or none. Each is sent its share of the dims of all splits, and merges them.
template <typename D>
static __device__ __forceinline__ void
merge_cluster(const attention_call &c, decode_shared<D> &s, const decode_state<D> &q, const decode_unit &u,
              bool has_split)
{
    uint32_t splits = last_split(u) - first_split(u) + 1, each = D::dims / gridDim.x, query = threadIdx.x / 16;

    bt_cluster_wait(); // all have begun
    if (has_split) {
        each_run<D>(c, q.acc, [&](uint32_t i, uint32_t d, const float run[4]) {
            uint32_t to = bt_cluster_at(bt_shared_at(&s.parts[blockIdx.x][i][d % each]), d / each);

#pragma unroll
            for (int k = 0; k < (D::mt > 1 ? 4 : 2); k++) {
                bt_cluster_store(to + k * 4, run[k]);
            }
        });
        if (query < D::columns) {
            float l = split_l(q.l);
            uint32_t rank = threadIdx.x % 16;

            if (rank < gridDim.x) {
                bt_cluster_store(bt_cluster_at(bt_shared_at(&s.parts_m[blockIdx.x][query]), rank), s.m[query]);
                bt_cluster_store(bt_cluster_at(bt_shared_at(&s.parts_l[blockIdx.x][query]), rank), l);
            }
        }
    }
    bt_cluster_sync();
    for (uint32_t e = threadIdx.x; e < c.group * each; e += D::threads) {
        uint32_t i = e / each, d = e % each;
        float m = s.parts_m[0][i], l = s.parts_l[0][i], total = s.parts[0][i][d];

        for (uint32_t k = 1; k < splits; k++) {
            float other = s.parts_m[k][i], n = larger(m, other), a = exp2_of(m - n), b = exp2_of(other - n);

            l = fmaf(l, a, s.parts_l[k][i] * b);
            total = fmaf(total, a, s.parts[k][i][d] * b);
            m = n;
        }
        out_at(c, u, i, D::dims)[blockIdx.x * each + d] = total * (1.0f / l);
    }
}
