// Attention through the KV cache, every number as kernels/cpu/ref/attention.h has it.
//
// prepare: one warp a (token, head of Q, K or V). attend: a block of threads takes one token, one KV head with all query heads of its
// group, and one split of 512 keys (or all splits, merging as it goes). merge: splits from the left, where they were apart.
#include "kernels/cuda/attend_mma.cuh"
#include "kernels/cuda/weight.cuh"

#include <assert.h>

#define TILE 64
#define HEAD_DIM_MAX 512u
#define GROUP_MAX 16u
#define THREADS 128

// ---- prepare ----

static __global__ void
whole_kernel(const __grid_constant__ attention_call c)
{
    __shared__ float lanes[2][16];
    const float *row = c.a.qkv + blockIdx.x * c.a.qkv_stride;
    uint32_t q_dims = c.a.heads * c.a.head_dim, k_dims = c.a.kv_heads * c.a.head_dim, is_k = threadIdx.x / 16;

    lanes[is_k][threadIdx.x % 16] = bt_cuda_lane16(is_k ? row + q_dims : row, is_k ? k_dims : q_dims, threadIdx.x % 16);
    __syncwarp();
    if (threadIdx.x % 16 == 0) {
        c.whole[2 * blockIdx.x + is_k] =
            bt_ref_rms_factor(bt_ref_tree16(lanes[is_k]), is_k ? k_dims : q_dims, c.a.norm_eps);
    }
}

// Norm, RoPE and shift of one head, in shared memory, by one warp.
static __device__ void
turn(const attention_call &c, uint32_t row, uint32_t head, bool is_k, float *x, float *lanes)
{
    const float *norm = is_k ? c.a.k_norm : c.a.q_norm;
    uint32_t lane = threadIdx.x, dims = c.a.head_dim, half = c.a.rope_dims / 2, kv_head = is_k ? head : head / c.group;

    if (norm != NULL) {
        float factor;

        if (lane < 16) {
            lanes[lane] = bt_cuda_lane16(x, dims, lane);
        }
        __syncwarp();
        factor = c.a.norm_whole ? c.whole[2 * row + is_k] : bt_ref_rms_factor(bt_ref_tree16(lanes), dims, c.a.norm_eps);
        norm += c.a.norm_whole ? head * dims : 0;
        for (uint32_t i = lane; i < dims; i += 32) {
            x[i] = x[i] * factor * norm[i];
        }
        __syncwarp();
    }
    for (uint32_t i = lane; c.a.rope_cos != NULL && i < half; i += 32) {
        float co = c.a.rope_cos[(size_t)row * half + i], si = c.a.rope_sin[(size_t)row * half + i], low = x[i],
              high = x[i + half];

        x[i] = fmaf(low, co, -(high * si));
        x[i + half] = fmaf(high, co, low * si);
    }
    __syncwarp();
    for (uint32_t i = lane; c.a.k_shift != NULL && i < dims / 2; i += 32) {
        int shift = c.a.k_shift[(size_t)kv_head * (dims / 2) + i];
        float power = bt_ref_exp2i(is_k ? -shift : shift);

        x[i] *= power;
        x[i + dims / 2] *= power;
    }
    __syncwarp();
}

static __device__ __forceinline__ uint32_t
amax_of(const float *x, uint32_t count)
{
    uint32_t amax = 0;

    for (uint32_t i = threadIdx.x; i < count; i += 32) {
        uint32_t bits = bt_bits_of_float(x[i]) & 0x7fffffffu;

        amax = bits > amax ? bits : amax;
    }
    return __reduce_max_sync(0xffffffffu, amax);
}

// bt_ref_kv_scale
static __device__ __forceinline__ uint16_t
kv_scale(uint32_t amax_bits, float *inverse)
{
    float scale = bt_float_of_bits(amax_bits) / 127.0f, rounded;
    __half half;

    *inverse = 0.0f;
    if (amax_bits >= 0x7f800000u) {
        return 0x7e00;
    }
    half = __float2half_rn(scale > 65504.0f ? 65504.0f : scale);
    rounded = __half2float(half);
    if (rounded > 0.0f) {
        *inverse = 1.0f / rounded;
    }
    return __half_as_ushort(half);
}

static __device__ void
write_floats(const attention_call &c, const float *x, uint8_t *to)
{
    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        if (c.l.format == BT_KV_F16) {
            ((__half *)to)[i] = __float2half_rn(x[i]);
        } else {
            ((float *)to)[i] = x[i];
        }
    }
}

static __device__ void
write_k(const attention_call &c, const float *x, uint8_t *layer, uint32_t slot, uint32_t head)
{
    uint8_t *to = layer + head * c.l.k_head_bytes + (size_t)slot * c.l.k_head_bytes / c.l.block_tokens;
    uint16_t *scales = (uint16_t *)(layer + c.l.k_scale_offset + head * c.l.k_scale_head_bytes) + slot * c.scale_groups;

    if (c.l.format != BT_KV_INT8) {
        write_floats(c, x, to);
        return;
    }
    for (uint32_t g = 0; g < c.scale_groups; g++) {
        const float *from = x + g * c.l.k_scale_group;
        float inverse;
        uint16_t scale = kv_scale(amax_of(from, c.l.k_scale_group), &inverse);

        if (threadIdx.x == 0) {
            scales[g] = scale;
        }
        for (uint32_t i = threadIdx.x; i < c.l.k_scale_group; i += 32) {
            ((int8_t *)to)[g * c.l.k_scale_group + i] = bt_ref_int8_code(from[i], inverse);
        }
    }
}

static __device__ void
write_v(const attention_call &c, const float *x, uint8_t *layer, uint32_t slot, uint32_t head)
{
    uint8_t *to = layer + c.l.v_offset + head * c.l.v_head_bytes;
    uint16_t scale;
    float inverse;

    if (c.l.format != BT_KV_INT8) {
        write_floats(c, x, to + (size_t)slot * c.l.v_head_bytes / c.l.block_tokens);
        return;
    }
    scale = kv_scale(amax_of(x, c.a.head_dim), &inverse);
    if (threadIdx.x == 0) {
        ((uint16_t *)(layer + c.l.v_scale_offset + head * c.l.v_scale_head_bytes))[slot] = scale;
    }
    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        ((int8_t *)to)[(slot / 4 * c.a.head_dim + i) * 4 + slot % 4] = bt_ref_int8_code(x[i], inverse);
    }
}

static __device__ void
keep_q(const attention_call &c, const float *x, uint32_t row, uint32_t head)
{
    size_t at = (size_t)row * c.a.heads + head;
    bt_int8_scale s;

    if (c.l.format != BT_KV_INT8) {
        for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
            c.q32[at * c.a.head_dim + i] = x[i];
        }
        return;
    }
    s = bt_ref_int8_scale(amax_of(x, c.a.head_dim));
    if (threadIdx.x == 0) {
        c.q_scale[at] = s.scale * c.a.scale;
    }
    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        c.q8[at * c.a.head_dim + i] = bt_ref_int8_code(x[i], s.inverse);
    }
}

static __global__ void
prepare_kernel(const __grid_constant__ attention_call c)
{
    __shared__ float x[HEAD_DIM_MAX], lanes[16];
    uint32_t row = blockIdx.x, head = blockIdx.y, position = c.positions[row], slot = position % c.l.block_tokens;
    const float *from = c.a.qkv + row * c.a.qkv_stride + (size_t)head * c.a.head_dim;

    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        x[i] = from[i];
    }
    __syncwarp();
    if (head < c.a.heads) {
        turn(c, row, head, false, x, lanes);
        keep_q(c, x, row, head);
    } else if (head < c.a.heads + c.a.kv_heads) {
        turn(c, row, head - c.a.heads, true, x, lanes);
        write_k(c, x, block_of(c, row, position), slot, head - c.a.heads);
    } else {
        write_v(c, x, block_of(c, row, position), slot, head - c.a.heads - c.a.kv_heads);
    }
}

// ---- attend ----

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

#define AHEAD 8u // splits that merge_kernel loads at once

static __global__ void
merge_kernel(const __grid_constant__ attention_call c)
{
    uint32_t row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    uint32_t splits = (c.positions[row] + BT_ATTENTION_SPLIT) / BT_ATTENTION_SPLIT;
    size_t floats = BT_PARTIAL_HEAD + (c.a.head_dim + 15) / 16 * 16;
    const float *p = c.partials + ((size_t)row * c.a.heads + head) * c.splits * floats;
    float m = 0.0f, l = 0.0f, acc = 0.0f;
    bool seen = false;

    if (d >= c.a.head_dim) {
        return;
    }
    for (uint32_t first = 0; first < splits; first += AHEAD) {
        float max[AHEAD], sum[AHEAD], there[AHEAD], value[AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) { // all on their way before the first is needed
            const float *at = p + (first + i < splits ? first + i : first) * floats;

            max[i] = at[BT_PARTIAL_MAX], sum[i] = at[BT_PARTIAL_SUM], there[i] = at[BT_PARTIAL_SEEN];
            value[i] = at[BT_PARTIAL_HEAD + d];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            float n = max[i] > m ? max[i] : m, a, b;

            if (first + i >= splits || there[i] == 0.0f) {
                continue;
            }
            if (!seen) {
                m = max[i], l = sum[i], acc = value[i];
                seen = true;
                continue;
            }
            a = bt_ref_exp2(m - n);
            b = bt_ref_exp2(max[i] - n);
            m = n;
            l = fmaf(l, a, sum[i] * b);
            acc = fmaf(acc, a, value[i] * b);
        }
    }
    c.a.out[row * c.a.out_stride + (size_t)head * c.a.head_dim + d] = acc * (1.0f / l);
}

// ---- launch ----

static attention_call
call_of(bt_cuda *cuda, const bt_attention_args *args)
{
    attention_call c;

    memset(&c, 0, sizeof c);
    c.a = *args;
    c.l = *args->layout;
    c.a.layout = NULL; // the host's
    c.a.spans = NULL;
    c.positions = cuda->step.positions, c.tables = cuda->step.tables, c.blocks = cuda->step.blocks;
    c.q8 = cuda->q8, c.q32 = cuda->q32, c.q_scale = cuda->q_scale, c.whole = cuda->whole, c.partials = cuda->partials;
    c.group = args->heads / args->kv_heads;
    c.scale_groups = args->head_dim / c.l.k_scale_group;
    return c;
}

// Splits apart: where there are too few workers otherwise, and room. 0: a worker goes through all of them.
static uint32_t
splits_apart(const bt_cuda *cuda, const bt_attention_args *args, size_t rows, size_t workers)
{
    size_t floats = bt_attention_partial_floats(args->head_dim);

    return cuda->splits == 1 || rows * args->heads * cuda->splits * floats > cuda->partial_floats ||
                   rows * args->kv_heads > workers
               ? 0
               : cuda->splits;
}

static void
launch_merge(bt_cuda *cuda, const attention_call &c)
{
    if (c.splits != 0) {
        merge_kernel<<<dim3(cuda->tokens, c.a.heads), (c.a.head_dim + 31) / 32 * 32, 0, cuda->stream>>>(c);
    }
}

// Any shape and format.
static void
launch_plain(bt_cuda *cuda, attention_call c)
{
    dim3 grid;

    c.splits = splits_apart(cuda, &c.a, cuda->tokens, 8 * (size_t)cuda->sms);
    grid = dim3(c.splits != 0 ? c.splits : 1, c.a.kv_heads, cuda->tokens);
    if (c.a.head_dim <= THREADS) {
        attend_kernel<1><<<grid, THREADS, 0, cuda->stream>>>(c);
    } else if (c.a.head_dim <= 2 * THREADS) {
        attend_kernel<2><<<grid, THREADS, 0, cuda->stream>>>(c);
    } else {
        attend_kernel<4><<<grid, THREADS, 0, cuda->stream>>>(c);
    }
    launch_merge(cuda, c);
}

template <int STEPS, int NT>
static bt_err
launch_tiles(bt_cuda *cuda, const attention_call &c, const bt_cuda_tile *tiles, uint32_t count)
{
    size_t items = (size_t)count * c.a.kv_heads * (c.splits != 0 ? c.splits : 1);
    size_t bytes = sizeof(attend_warp<STEPS, NT>) * BT_MMA_WARPS;
    cudaError_t error = cudaSuccess;

    if (bytes > 48 * 1024) {
        error =
            cudaFuncSetAttribute(attend_mma_kernel<STEPS, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    }
    attend_mma_kernel<STEPS, NT>
        <<<(unsigned)((items + BT_MMA_WARPS - 1) / BT_MMA_WARPS), BT_MMA_WARPS * 32, bytes, cuda->stream>>>(c, tiles,
                                                                                                            count);
    return bt_cuda_check(cuda, error, "attention");
}

template <int STEPS>
static bt_err
launch_mma(bt_cuda *cuda, attention_call c)
{
    const bt_cuda_step *s = &cuda->step;
    bt_err err = BT_OK;

    if (s->single_count != 0) {
        c.splits = s->tile_count == 0 ? splits_apart(cuda, &c.a, cuda->tokens, 64 * (size_t)cuda->sms) : 0;
        err = c.group <= 8 ? launch_tiles<STEPS, 1>(cuda, c, s->singles, s->single_count)
                           : launch_tiles<STEPS, 2>(cuda, c, s->singles, s->single_count);
        launch_merge(cuda, c);
    }
    if (err == BT_OK && s->tile_count != 0) {
        c.splits = 0;
        err = launch_tiles<STEPS, 2>(cuda, c, s->tiles, s->tile_count);
    }
    return err;
}

bt_err
bt_cuda_attention(bt_device *device, const bt_attention_args *args)
{
    bt_cuda *cuda = bt_cuda_of(device);
    attention_call c = call_of(cuda, args);
    bool mma = c.l.format == BT_KV_INT8 && c.scale_groups == 1;
    bt_err err = BT_OK;

    if (args->head_dim > HEAD_DIM_MAX || c.group > GROUP_MAX) {
        bt_log_error("CUDA-SHAPE", "attention with heads of %u and groups of %u: %u and %u are the most here",
                     args->head_dim, c.group, HEAD_DIM_MAX, GROUP_MAX);
        return BT_ERR_UNSUPPORTED;
    }
    if (args->norm_whole && args->q_norm != NULL) {
        whole_kernel<<<cuda->tokens, 32, 0, cuda->stream>>>(c);
    }
    prepare_kernel<<<dim3(cuda->tokens, args->heads + 2 * args->kv_heads), 32, 0, cuda->stream>>>(c);
    if (mma && args->head_dim == 64) {
        err = launch_mma<2>(cuda, c);
    } else if (mma && args->head_dim == 128) {
        err = launch_mma<4>(cuda, c);
    } else if (mma && args->head_dim == 256) {
        err = launch_mma<8>(cuda, c);
    } else {
        launch_plain(cuda, c);
    }
    return err != BT_OK ? err : bt_cuda_launched(cuda, "attention");
}
