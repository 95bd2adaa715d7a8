// Attention of any shape and cache format: a block of threads takes one token, one KV head with all query heads of its group, and one split
// of 512 keys (or all splits, merging as it goes).
#pragma once

#include "kernels/cuda/attention_prepare.cuh"
#include "kernels/cuda/ptx.cuh"

#define TILE 64
#define GROUP_MAX BT_CUDA_GROUP_MAX
#define THREADS 128

typedef struct {
    __align__(16) int8_t q8[GROUP_MAX][HEAD_DIM_MAX]; // or the group's head of q32, one after the other
    float q_scale[GROUP_MAX];
    float u[GROUP_MAX][TILE];
    __align__(16) uint8_t codes[GROUP_MAX][TILE];
    float p[GROUP_MAX][TILE]; // floats: instead of codes
    float m[GROUP_MAX], corr[GROUP_MAX], scale[GROUP_MAX], l[GROUP_MAX][16];
    float total_m[GROUP_MAX], total_l[GROUP_MAX], seen[GROUP_MAX], a[GROUP_MAX], b[GROUP_MAX];
    const uint8_t *layers[TILE]; // of the tile's keys: their block's layer
} attend_shared;

static __device__ __forceinline__ float
cached_float(const attention_call &c, const uint8_t *from, uint32_t i)
{
    return c.l.format == BT_KV_F16 ? __half2float(((const __half *)from)[i]) : ((const float *)from)[i];
}

// u of one query and key.
static __device__ float
score(const attention_call &c, const attend_shared &s, uint32_t h, uint32_t head, uint32_t row, uint32_t kv_head,
      uint32_t key, uint32_t in_tile)
{
    uint32_t slot = key % c.l.block_tokens, dims = c.a.head_dim;
    const uint8_t *k =
        s.layers[in_tile] + kv_head * c.l.k_head_bytes + (size_t)slot * c.l.k_head_bytes / c.l.block_tokens;
    float u = 0.0f, w = c.a.scale;

    if (c.l.format == BT_KV_INT8) {
        const __half *scales =
            (const __half *)(s.layers[in_tile] + c.l.k_scale_offset + kv_head * c.l.k_scale_head_bytes) +
            slot * c.scale_groups;

        for (uint32_t g = 0; g < c.scale_groups; g++) {
            int dot = 0;

            for (uint32_t i = g * c.l.k_scale_group; i < (g + 1) * c.l.k_scale_group; i += 4) {
                dot = __dp4a(*(const int *)(s.q8[h] + i), *(const int *)(k + i), dot);
            }
            u = fmaf((float)dot, __half2float(scales[g]), u);
        }
        w = s.q_scale[h];
    } else {
        const float *q = c.q32 + ((size_t)row * c.a.heads + head) * dims;
        float lanes[16] = {};

#pragma unroll 1
        for (uint32_t i = 0; i < (dims + 15) / 16 * 16; i += 16) {
#pragma unroll
            for (uint32_t j = 0; j < 16; j++) {
                lanes[j] =
                    i + j < dims ? fmaf(q[i + j], cached_float(c, k, i + j), lanes[j]) : fmaf(0.0f, 0.0f, lanes[j]);
            }
        }
        u = bt_ref_tree16(lanes);
    }
    return c.a.softcap > 0 ? bt_ref_softcap(u * w, c.a.softcap) : u;
}

static __device__ __forceinline__ float
warp_max(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, v, i);

        v = other > v ? other : v;
    }
    return v;
}

// One warp a query: from u to p, l, and the codes of p · scale_v.
static __device__ void
weigh(const attention_call &c, attend_shared &s, uint32_t h, uint32_t kv_head, uint32_t tile, uint32_t from,
      uint32_t to)
{
    uint32_t lane = threadIdx.x % 32;
    float w = (c.a.softcap > 0 ? 1.0f : c.l.format == BT_KV_INT8 ? s.q_scale[h] : c.a.scale) * BT_LOG2_E;
    float before = s.m[h], largest = -INFINITY, p[2], m, corr, sum;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t key = tile + lane + 32 * i;
        float u = s.u[h][lane + 32 * i];

        largest = key >= from && key < to && u > largest ? u : largest;
    }
    largest = w * warp_max(largest);
    m = largest > before ? largest : before;
    corr = bt_ref_exp2(before - m);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t key = tile + lane + 32 * i;
        float x = fmaf(s.u[h][lane + 32 * i], w, -m);

        p[i] = key >= from && key < to ? bt_ref_exp2(x > 0.0f ? 0.0f : x) : 0.0f;
    }
    sum = p[0] + __shfl_down_sync(0xffffffffu, p[0], 16);
    sum = sum + p[1];
    sum = sum + __shfl_down_sync(0xffffffffu, p[1], 16);
    if (lane < 16) {
        s.l[h][lane] = fmaf(s.l[h][lane], corr, sum);
    }
    if (c.l.format != BT_KV_INT8) {
        s.p[h][lane] = p[0], s.p[h][lane + 32] = p[1];
    } else {
        float wv[2] = {0.0f, 0.0f}, most = 0.0f, scale, inverse;
        bool poison = false;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t key = tile + lane + 32 * i;

            if (key >= from && key < to) {
                float scale_v =
                    __half2float(((const __half *)(s.layers[lane + 32 * i] + c.l.v_scale_offset +
                                                   kv_head * c.l.v_scale_head_bytes))[key % c.l.block_tokens]);

                poison |= isnan(scale_v);
                wv[i] = p[i] * scale_v;
                most = wv[i] > most ? wv[i] : most;
            }
        }
        most = warp_max(most);
        poison = __any_sync(0xffffffffu, poison);
        scale = poison ? NAN : most / 255.0f;
        inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float code = wv[i] * inverse;

            s.codes[h][lane + 32 * i] = isnan(code) ? 0 : (uint8_t)(int32_t)((code + BT_ROUND_MAGIC) - BT_ROUND_MAGIC);
        }
        if (lane == 0) {
            s.scale[h] = scale;
        }
    }
    __syncwarp(); // all have read what m was
    if (lane == 0) {
        s.m[h] = m;
        s.corr[h] = corr;
    }
}

// acc of the dims that this thread has: thread, thread + THREADS.
template <int DIMS>
static __device__ void
add_values(const attention_call &c, const attend_shared &s, uint32_t kv_head, uint32_t tile, uint32_t from, uint32_t to,
           float acc[DIMS][GROUP_MAX])
{
    uint32_t dims = c.a.head_dim;

#pragma unroll
    for (int n = 0; n < DIMS; n++) {
        uint32_t d = threadIdx.x + n * THREADS;

        if (d >= dims) {
            break;
        }
        if (c.l.format == BT_KV_INT8) {
            int dot[GROUP_MAX] = {};
            uint32_t first = (from - tile) & ~3u, end = to - tile; // codes before `from` are 0; V there is some number

            for (uint32_t k = first; k < end; k += 4) {
                uint32_t slot = (tile + k) % c.l.block_tokens;
                uint32_t v = *(const uint32_t *)(s.layers[k] + c.l.v_offset + kv_head * c.l.v_head_bytes +
                                                 ((size_t)slot / 4 * dims + d) * 4);

#pragma unroll
                for (int h = 0; h < (int)GROUP_MAX; h++) {
                    if (h < (int)c.group) {
                        dot[h] = bt_dp4a_us(*(const uint32_t *)(s.codes[h] + k), v, dot[h]);
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < (int)GROUP_MAX; h++) {
                if (h < (int)c.group) {
                    acc[n][h] = fmaf(s.scale[h], (float)dot[h], acc[n][h] * s.corr[h]);
                }
            }
        } else {
#pragma unroll
            for (int h = 0; h < (int)GROUP_MAX; h++) {
                acc[n][h] *= h < (int)c.group ? s.corr[h] : 1.0f;
            }
            for (uint32_t key = from; key < to; key++) {
                float v = cached_float(c,
                                       s.layers[key - tile] + c.l.v_offset + kv_head * c.l.v_head_bytes +
                                           (size_t)(key % c.l.block_tokens) * c.l.v_head_bytes / c.l.block_tokens,
                                       d);

#pragma unroll
                for (int h = 0; h < (int)GROUP_MAX; h++) {
                    if (h < (int)c.group) {
                        acc[n][h] = fmaf(s.p[h][key - tile], v, acc[n][h]);
                    }
                }
            }
        }
    }
}

static __device__ void
attend_tile_scores(const attention_call &c, attend_shared &s, uint32_t row, uint32_t kv_head, uint32_t tile,
                   uint32_t from, uint32_t to)
{
    uint32_t in_tile = threadIdx.x % TILE, key = tile + in_tile;

    if (threadIdx.x < TILE && key < to && (key | 3) >= from) { // (the whole four: V is read by fours)
        s.layers[in_tile] = block_of(c, row, key);
    }
    __syncthreads();
    for (uint32_t h = threadIdx.x / TILE; h < c.group; h += THREADS / TILE) {
        if (key >= from && key < to) {
            s.u[h][in_tile] = score(c, s, h, kv_head * c.group + h, row, kv_head, key, in_tile);
        }
    }
    __syncthreads();
    for (uint32_t h = threadIdx.x / 32; h < c.group; h += THREADS / 32) {
        weigh(c, s, h, kv_head, tile, from, to);
    }
    __syncthreads();
}

template <int DIMS>
static __device__ void
write_partial(const attention_call &c, const attend_shared &s, uint32_t row, uint32_t kv_head, uint32_t split,
              bool seen, const float acc[DIMS][GROUP_MAX])
{
    for (uint32_t h = 0; h < c.group; h++) {
        float *to = c.partials + (((size_t)row * c.a.heads + kv_head * c.group + h) * c.splits + split) *
                                     (BT_PARTIAL_HEAD + (c.a.head_dim + 15) / 16 * 16);

        if (threadIdx.x == 0) {
            to[BT_PARTIAL_MAX] = s.m[h];
            to[BT_PARTIAL_SUM] = bt_ref_tree16(s.l[h]);
            to[BT_PARTIAL_SEEN] = seen ? 1.0f : 0.0f;
        }
    }
#pragma unroll
    for (int n = 0; n < DIMS; n++) {
        uint32_t d = threadIdx.x + n * THREADS;

#pragma unroll
        for (int h = 0; h < (int)GROUP_MAX; h++) {
            if (h < (int)c.group && d < c.a.head_dim) {
                c.partials[(((size_t)row * c.a.heads + kv_head * c.group + h) * c.splits + split) *
                               (BT_PARTIAL_HEAD + (c.a.head_dim + 15) / 16 * 16) +
                           BT_PARTIAL_HEAD + d] = acc[n][h];
            }
        }
    }
}

// total ∪= the split that was just done.
template <int DIMS>
static __device__ void
merge_here(const attention_call &c, attend_shared &s, float total[DIMS][GROUP_MAX], const float acc[DIMS][GROUP_MAX])
{
    if (threadIdx.x < c.group) {
        uint32_t h = threadIdx.x;
        float m = s.total_m[h], other = s.m[h], n = other > m ? other : m, l = bt_ref_tree16(s.l[h]);

        if (s.seen[h] == 0.0f) {
            s.a[h] = -1.0f; // take it as it is
            s.total_m[h] = other;
            s.total_l[h] = l;
            s.seen[h] = 1.0f;
        } else {
            s.a[h] = bt_ref_exp2(m - n);
            s.b[h] = bt_ref_exp2(other - n);
            s.total_m[h] = n;
            s.total_l[h] = fmaf(s.total_l[h], s.a[h], l * s.b[h]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < DIMS; n++) {
#pragma unroll
        for (int h = 0; h < (int)GROUP_MAX; h++) {
            if (h < (int)c.group) {
                total[n][h] = s.a[h] == -1.0f ? acc[n][h] : fmaf(total[n][h], s.a[h], acc[n][h] * s.b[h]);
            }
        }
    }
}

template <int DIMS>
static __global__ void
__launch_bounds__(THREADS) attend_kernel(const __grid_constant__ attention_call c)
{
    __shared__ attend_shared s;
    uint32_t row = blockIdx.z, kv_head = blockIdx.y, position = c.positions[row];
    uint32_t end = position + 1, first = c.a.window == 0 || end <= c.a.window ? 0 : end - c.a.window;
    uint32_t splits = (end + BT_ATTENTION_SPLIT - 1) / BT_ATTENTION_SPLIT;
    float acc[DIMS][GROUP_MAX], total[DIMS][GROUP_MAX] = {};

    if (c.splits != 0 && blockIdx.x >= splits) {
        return;
    }
    if (c.l.format == BT_KV_INT8) {
        for (uint32_t i = threadIdx.x; i < c.group * c.a.head_dim / 4; i += THREADS) {
            uint32_t h = i / (c.a.head_dim / 4), d = i % (c.a.head_dim / 4);

            ((uint32_t *)s.q8[h])[d] =
                ((const uint32_t *)(c.q8 + ((size_t)row * c.a.heads + kv_head * c.group + h) * c.a.head_dim))[d];
        }
    }
    if (threadIdx.x < c.group) {
        s.q_scale[threadIdx.x] = c.q_scale[(size_t)row * c.a.heads + kv_head * c.group + threadIdx.x];
        s.seen[threadIdx.x] = 0.0f;
    }
    for (uint32_t split = c.splits != 0 ? blockIdx.x : 0; split < (c.splits != 0 ? blockIdx.x + 1 : splits); split++) {
        bool seen = false;

        __syncthreads();
        for (uint32_t i = threadIdx.x; i < c.group * 16; i += THREADS) {
            s.l[i / 16][i % 16] = 0.0f;
            s.m[i / 16] = -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < DIMS * (int)GROUP_MAX; i++) {
            acc[i / GROUP_MAX][i % GROUP_MAX] = 0.0f;
        }
        for (uint32_t tile = split * BT_ATTENTION_SPLIT; tile < (split + 1) * BT_ATTENTION_SPLIT; tile += TILE) {
            uint32_t from = first > tile ? first : tile, to = end < tile + TILE ? end : tile + TILE;

            if (from < to) {
                __syncthreads();
                attend_tile_scores(c, s, row, kv_head, tile, from, to);
                add_values<DIMS>(c, s, kv_head, tile, from, to, acc);
                seen = true;
            }
        }
        __syncthreads();
        if (c.splits != 0) {
            write_partial<DIMS>(c, s, row, kv_head, split, seen, acc);
        } else if (seen) {
            merge_here<DIMS>(c, s, total, acc);
        }
    }
    if (c.splits != 0) {
        return;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < DIMS; n++) {
        uint32_t d = threadIdx.x + n * THREADS;

#pragma unroll
        for (int h = 0; h < (int)GROUP_MAX; h++) {
            if (h < (int)c.group && d < c.a.head_dim) {
                c.a.out[row * c.a.out_stride + (size_t)(kv_head * c.group + h) * c.a.head_dim + d] =
                    total[n][h] * (1.0f / s.total_l[h]);
            }
        }
    }
}
