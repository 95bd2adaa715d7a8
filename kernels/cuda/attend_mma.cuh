// Attention of single tokens over an INT8 cache on tensor cores, where attention_decode.cuh does not run (before sm_90, or left out): one
// warp takes up to NT × 8 queries that share keys, the heads of a group, through tiles of 64 keys.
//
//     scores   m16n8k32: A = 16 keys, B = queries.     c of lane (g, t): keys g, g + 8 of each 16 × queries 2t, 2t + 1
//     values   m16n8k32: A = dims (a word of V is four keys of one dim), B = codes of p · scale_v, turned in shared memory
//
// So a query's numbers lie in the lanes of one t: maxima go over g by shuffles, and the sixteen lanes of l are (g, g + 8) as they
// are. Every number is that of kernels/cpu/ref/attention.h.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

#define BT_MMA_WARPS 4

template <int STEPS, int NT> struct attend_warp { // shared memory of one warp
    __align__(16) int8_t q8[NT * 8][STEPS * 32 + 16];
    __align__(16) uint8_t codes[NT * 8][64 + 16];
    float total[STEPS * 32 * NT * 8]; // [M tile][register][lane]
    float total_m[NT * 8], total_l[NT * 8];
    const uint8_t *layers[64];
};

// The keys that a query column sees.
typedef struct {
    uint32_t first, end;
} sight;

static __device__ __forceinline__ float
over_g(float v)
{
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, v, i);

        v = other > v ? other : v;
    }
    return v;
}

// The tree of sixteen lanes: i and i + 8 are one lane's, then g and g + 4, + 2, + 1.
static __device__ __forceinline__ float
tree_over_g(float low, float high)
{
    float v = low + high;

    v = v + __shfl_xor_sync(0xffffffffu, v, 16);
    v = v + __shfl_xor_sync(0xffffffffu, v, 8);
    return v + __shfl_xor_sync(0xffffffffu, v, 4);
}

template <int STEPS, int NT>
static __device__ __forceinline__ void
load_queries(const attention_call &c, attend_warp<STEPS, NT> &s, uint32_t row, uint32_t columns, uint32_t kv_head)
{
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t i = lane; i < NT * 8 * STEPS * 8; i += 32) {
        uint32_t n = i / (STEPS * 8), d = i % (STEPS * 8);
        size_t at = (size_t)(row + n / c.group) * c.a.heads + kv_head * c.group + n % c.group;

        ((uint32_t *)s.q8[n])[d] = n < columns ? ((const uint32_t *)(c.q8 + at * STEPS * 32))[d] : 0;
    }
}

// u of 64 keys and all queries: [sixteen][nt][4].
template <int STEPS, int NT>
static __device__ __forceinline__ void
scores(const attention_call &c, const attend_warp<STEPS, NT> &s, uint32_t kv_head, uint32_t tile, float u[4][NT][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int32_t dot[NT][4] = {};
        float scale[2];
        uint4 k[2][STEPS / 2];

#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t in_tile = i * 16 + h * 8 + g, slot = (tile + in_tile) % c.l.block_tokens;
            const uint8_t *layer = s.layers[in_tile];
            const uint8_t *from = layer + kv_head * c.l.k_head_bytes + (size_t)slot * STEPS * 32 + t * 16;

            scale[h] =
                __half2float(((const __half *)(layer + c.l.k_scale_offset + kv_head * c.l.k_scale_head_bytes))[slot]);
#pragma unroll
            for (int p = 0; p < STEPS / 2; p++) {
                k[h][p] = bt_load_once(from + p * 64);
            }
        }
#pragma unroll
        for (int p = 0; p < STEPS / 2; p++) {
            uint32_t a0[4] = {k[0][p].x, k[1][p].x, k[0][p].y, k[1][p].y};
            uint32_t a1[4] = {k[0][p].z, k[1][p].z, k[0][p].w, k[1][p].w};

#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                uint4 q = *(const uint4 *)(s.q8[nt * 8 + g] + p * 64 + t * 16);

                bt_mma_s8(dot[nt], a0, q.x, q.y);
                bt_mma_s8(dot[nt], a1, q.z, q.w);
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u[i][nt][j] = fmaf((float)dot[nt][j], scale[j / 2], 0.0f);
            }
        }
    }
}

// The state of a query column, the same in all lanes of its t: [nt][2].
template <int NT> struct columns {
    float m[NT][2], w[NT][2], corr[NT][2], scale[NT][2];
    float l[NT][4]; // as c: rows g, g + 8
    bool seen[NT][2], here[NT][2];
    sight see[NT][2];
};

// From u to p in place; m, corr, l, and the codes of p · scale_v.
template <int STEPS, int NT>
static __device__ __forceinline__ void
weigh_columns(const attention_call &c, attend_warp<STEPS, NT> &s, columns<NT> &q, uint32_t kv_head, uint32_t tile,
              float u[4][NT][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scale_v[4][2];

#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t in_tile = i / 2 * 16 + i % 2 * 8 + g;

        scale_v[i / 2][i % 2] =
            __half2float(((const __half *)(s.layers[in_tile] + c.l.v_scale_offset +
                                           kv_head * c.l.v_scale_head_bytes))[(tile + in_tile) % c.l.block_tokens]);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            sight see = q.see[nt][col];
            float largest = -INFINITY, before = q.m[nt][col], m, most = 0.0f, scale, inverse;
            bool poison = false, here = see.first < tile + 64 && see.end > tile;

#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t key = tile + i / 2 * 16 + i % 2 * 8 + g;
                float &x = u[i / 2][nt][i % 2 * 2 + col];

                if (c.a.softcap > 0) {
                    x = bt_ref_softcap(x * q.w[nt][col], c.a.softcap);
                }
                largest = key >= see.first && key < see.end && x > largest ? x : largest;
            }
            {
                float w = (c.a.softcap > 0 ? 1.0f : q.w[nt][col]) * BT_LOG2_E;

                largest = w * over_g(largest);
                m = largest > before ? largest : before;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    uint32_t key = tile + i / 2 * 16 + i % 2 * 8 + g;
                    float &p = u[i / 2][nt][i % 2 * 2 + col], x = fmaf(p, w, -m), wv;
                    bool visible = key >= see.first && key < see.end;

                    p = visible ? bt_ref_exp2(x > 0.0f ? 0.0f : x) : 0.0f;
                    poison |= visible && isnan(scale_v[i / 2][i % 2]);
                    wv = visible ? p * scale_v[i / 2][i % 2] : 0.0f;
                    most = wv > most ? wv : most;
                }
            }
            if (here) {
                float corr = bt_ref_exp2(before - m);

#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float sum = ((u[0][nt][h * 2 + col] + u[1][nt][h * 2 + col]) + u[2][nt][h * 2 + col]) +
                                u[3][nt][h * 2 + col];

                    q.l[nt][h * 2 + col] = fmaf(q.l[nt][h * 2 + col], corr, sum);
                }
                q.m[nt][col] = m;
                q.corr[nt][col] = corr;
                q.seen[nt][col] = true;
            }
            q.here[nt][col] = here;
            most = over_g(most);
            poison = (__ballot_sync(0xffffffffu, poison) & (0x11111111u << t)) != 0;
            scale = poison ? NAN : most / 255.0f;
            inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
            q.scale[nt][col] = scale;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t in_tile = i / 2 * 16 + i % 2 * 8 + g, key = tile + in_tile;
                bool visible = key >= see.first && key < see.end;
                float code = (visible ? u[i / 2][nt][i % 2 * 2 + col] * scale_v[i / 2][i % 2] : 0.0f) * inverse;

                s.codes[nt * 8 + t * 2 + col][in_tile] =
                    isnan(code) ? 0 : (uint8_t)(int32_t)((code + BT_ROUND_MAGIC) - BT_ROUND_MAGIC);
            }
        }
    }
    __syncwarp();
}

// Row g of M tile j of a pair of 32 dims is dim 4g + j, row g + 8 is 32 dims on: a lane loads four dims at once.
template <int STEPS, int NT>
static __device__ __forceinline__ void
load_values(const attention_call &c, const attend_warp<STEPS, NT> &s, uint32_t kv_head, uint32_t tile, int pair,
            uint4 v[2][2][2]) // [keys][quad][half]
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t in_tile = i * 16 + t * 4, slot = (tile + in_tile) % c.l.block_tokens;
        const uint8_t *from = s.layers[in_tile] + c.l.v_offset + kv_head * c.l.v_head_bytes +
                              ((size_t)slot / 4 * STEPS * 32 + pair * 64 + g * 4) * 4;

        v[i / 2][i % 2][0] = bt_load_once(from);
        v[i / 2][i % 2][1] = bt_load_once(from + 32 * 4);
    }
}

// One warp with few queries waits for memory alone: V comes while scores are computed.
template <int STEPS, int NT> struct early {
    static const bool value = NT == 1 && STEPS <= 4;
    static const int pairs = NT == 1 && STEPS <= 4 ? STEPS / 2 : 1;
};

// What the next tile needs, into the L2 cache: a key's row a lane, and as much of V.
template <int STEPS>
static __device__ __forceinline__ void
prefetch_tile(const attention_call &c, uint32_t row, uint32_t kv_head, uint32_t tile, uint32_t end)
{
    uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t key = tile + lane + i * 32;

        if (key < end) {
            const uint8_t *layer = block_of(c, row, key);
            uint32_t slot = key % c.l.block_tokens;

            bt_prefetch(layer + kv_head * c.l.k_head_bytes + (size_t)slot * STEPS * 32);
            bt_prefetch(layer + c.l.v_offset + kv_head * c.l.v_head_bytes + (size_t)slot * STEPS * 32);
        }
    }
}

template <int STEPS, int NT>
static __device__ __forceinline__ void
values(const attention_call &c, const attend_warp<STEPS, NT> &s, const columns<NT> &q, uint32_t kv_head, uint32_t tile,
       const uint4 come[early<STEPS, NT>::pairs][2][2][2], float acc[STEPS * 2][NT][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t b[2][NT][2];

#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            b[k][nt][0] = *(const uint32_t *)(s.codes[nt * 8 + g] + k * 32 + t * 4);
            b[k][nt][1] = *(const uint32_t *)(s.codes[nt * 8 + g] + k * 32 + 16 + t * 4);
        }
    }
#pragma unroll
    for (int pair = 0; pair < STEPS / 2; pair++) { // 64 dims
        int32_t dot[4][NT][4] = {};
        uint4 here[2][2][2];

        if (!early<STEPS, NT>::value) {
            load_values<STEPS, NT>(c, s, kv_head, tile, pair, here);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 v[2][2];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i / 2][i % 2] = early<STEPS, NT>::value ? come[early<STEPS, NT>::value ? pair : 0][k][i / 2][i % 2]
                                                          : here[k][i / 2][i % 2];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t a[4] = {((const uint32_t *)&v[0][0])[j], ((const uint32_t *)&v[0][1])[j],
                                 ((const uint32_t *)&v[1][0])[j], ((const uint32_t *)&v[1][1])[j]};

#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    bt_mma_su8(dot[j][nt], a, b[k][nt][0], b[k][nt][1]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &to = acc[pair * 4 + j][nt][i];

                    to =
                        q.here[nt][i % 2] ? fmaf(q.scale[nt][i % 2], (float)dot[j][nt][i], to * q.corr[nt][i % 2]) : to;
                }
            }
        }
    }
    __syncwarp(); // codes and layers are read
}

// Dim of register i of M tile j.
static __device__ __forceinline__ uint32_t
dim_of(uint32_t tile, uint32_t i, uint32_t g)
{
    return tile / 4 * 64 + i / 2 * 32 + g * 4 + tile % 4;
}

template <int STEPS, int NT>
static __device__ __forceinline__ void
begin_split(columns<NT> &q, float acc[STEPS * 2][NT][4])
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q.m[nt][i % 2] = -INFINITY;
            q.seen[nt][i % 2] = false;
            q.l[nt][i] = 0.0f;
#pragma unroll
            for (int j = 0; j < STEPS * 2; j++) {
                acc[j][nt][i] = 0.0f;
            }
        }
    }
}

// total ∪= this split, in shared memory; a lane touches only its own.
template <int STEPS, int NT>
static __device__ __forceinline__ void
merge_split(attend_warp<STEPS, NT> &s, const columns<NT> &q, bool seen[NT][2], const float acc[STEPS * 2][NT][4])
{
    uint32_t lane = threadIdx.x % 32, t = lane % 4;

#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            uint32_t n = nt * 8 + t * 2 + col;
            float l = tree_over_g(q.l[nt][col], q.l[nt][2 + col]), other = q.m[nt][col], m = s.total_m[n];
            float most = other > m ? other : m, a = bt_ref_exp2(m - most), b = bt_ref_exp2(other - most);

            __syncwarp();
            if (q.seen[nt][col]) {
#pragma unroll
                for (int j = 0; j < STEPS * 2; j++) {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float *to = &s.total[((j * NT + nt) * 4 + h * 2 + col) * 32 + lane];
                        float x = acc[j][nt][h * 2 + col];

                        *to = seen[nt][col] ? fmaf(*to, a, x * b) : x;
                    }
                }
                if (lane / 4 == 0) {
                    s.total_l[n] = seen[nt][col] ? fmaf(s.total_l[n], a, l * b) : l;
                    s.total_m[n] = seen[nt][col] ? most : other;
                }
                seen[nt][col] = true;
            }
            __syncwarp();
        }
    }
}

template <int STEPS, int NT>
static __device__ __forceinline__ void
store_out(const attention_call &c, const attend_warp<STEPS, NT> &s, uint32_t row, uint32_t columns_here,
          uint32_t kv_head)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t n = nt * 8 + t * 2 + i % 2;
            float inverse = n < columns_here ? 1.0f / s.total_l[n] : 0.0f;
            float *out =
                c.a.out + (row + n / c.group) * c.a.out_stride + (kv_head * c.group + n % c.group) * STEPS * 32;

#pragma unroll
            for (int j = 0; j < STEPS * 2; j++) {
                if (n < columns_here) {
                    out[dim_of(j, i, g)] = s.total[((j * NT + nt) * 4 + i) * 32 + lane] * inverse;
                }
            }
        }
    }
}

template <int STEPS, int NT>
static __device__ __forceinline__ void
store_partial(const attention_call &c, const columns<NT> &q, uint32_t row, uint32_t columns_here, uint32_t kv_head,
              uint32_t split, const float acc[STEPS * 2][NT][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            uint32_t n = nt * 8 + t * 2 + col;
            float l = tree_over_g(q.l[nt][col], q.l[nt][2 + col]);
            float *to =
                c.partials +
                (((size_t)(row + n / c.group) * c.a.heads + kv_head * c.group + n % c.group) * c.splits + split) *
                    (BT_PARTIAL_HEAD + STEPS * 32);

            if (n >= columns_here) {
                continue;
            }
            if (g == 0) {
                to[BT_PARTIAL_MAX] = q.m[nt][col];
                to[BT_PARTIAL_SUM] = l;
                to[BT_PARTIAL_SEEN] = q.seen[nt][col] ? 1.0f : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < STEPS * 2; j++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    to[BT_PARTIAL_HEAD + dim_of(j, h * 2, g)] = acc[j][nt][h * 2 + col];
                }
            }
        }
    }
}

// Items: [tile of queries][kv head][split], a warp each. Without `splits` a warp goes through all of them.
template <int STEPS, int NT>
static __global__ void
__launch_bounds__(BT_MMA_WARPS * 32)
    attend_mma_kernel(const __grid_constant__ attention_call c, const bt_cuda_tile *tiles, uint32_t tile_count)
{
    extern __shared__ __align__(16) uint8_t memory[];
    attend_warp<STEPS, NT> &s = ((attend_warp<STEPS, NT> *)memory)[threadIdx.x / 32];
    uint32_t lane = threadIdx.x % 32, t = lane % 4, apart = c.splits != 0 ? c.splits : 1;
    uint32_t item = blockIdx.x * BT_MMA_WARPS + threadIdx.x / 32, index = item / (c.a.kv_heads * apart);
    uint32_t kv_head = item / apart % c.a.kv_heads, split = item % apart;
    float acc[STEPS * 2][NT][4], u[4][NT][4];
    bool seen[NT][2] = {};
    columns<NT> q;

    if (index >= tile_count) {
        return;
    }
    bt_cuda_tile tile_of = tiles[index];
    uint32_t row = tile_of.row, columns_here = tile_of.count * c.group;
    uint32_t end_all = c.positions[row] + tile_of.count, first_all = c.positions[row] + 1, splits;

    first_all = c.a.window == 0 || first_all <= c.a.window ? 0 : first_all - c.a.window;
    splits = (end_all + BT_ATTENTION_SPLIT - 1) / BT_ATTENTION_SPLIT;
    if (split >= splits) {
        return;
    }
    load_queries<STEPS, NT>(c, s, row, columns_here, kv_head);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int col = 0; col < 2; col++) {
            uint32_t n = nt * 8 + t * 2 + col, token = n / c.group, end = c.positions[row] + token + 1;
            bool used = n < columns_here;

            q.see[nt][col].end = used ? end : 0;
            q.see[nt][col].first = !used || c.a.window == 0 || end <= c.a.window ? 0 : end - c.a.window;
            q.w[nt][col] = used ? c.q_scale[(size_t)(row + token) * c.a.heads + kv_head * c.group + n % c.group] : 0.0f;
        }
    }
    for (uint32_t last = c.splits != 0 ? split + 1 : splits; split < last; split++) {
        begin_split<STEPS, NT>(q, acc);
        for (uint32_t tile = split * BT_ATTENTION_SPLIT; tile < (split + 1) * BT_ATTENTION_SPLIT && tile < end_all;
             tile += 64) {
            if (tile + 64 <= first_all) {
                continue;
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) { // what nobody sees stands in for nothing: any block that is there
                uint32_t key = tile + lane + i * 32;

                key = key < end_all ? key : end_all - 1;
                key = key < first_all / 4 * 4 ? first_all / 4 * 4 : key;
                s.layers[lane + i * 32] = block_of(c, row, key);
            }
            __syncwarp();
            uint4 come[early<STEPS, NT>::pairs][2][2][2];

            if (early<STEPS, NT>::value) {
#pragma unroll
                for (int pair = 0; pair < early<STEPS, NT>::pairs; pair++) {
                    load_values<STEPS, NT>(c, s, kv_head, tile, pair, come[pair]);
                }
                prefetch_tile<STEPS>(c, row, kv_head, tile + 64, end_all);
            }
            scores<STEPS, NT>(c, s, kv_head, tile, u);
            weigh_columns<STEPS, NT>(c, s, q, kv_head, tile, u);
            values<STEPS, NT>(c, s, q, kv_head, tile, come, acc);
        }
        if (c.splits != 0) {
            store_partial<STEPS, NT>(c, q, row, columns_here, kv_head, split, acc);
        } else {
            merge_split<STEPS, NT>(s, q, seen, acc);
        }
    }
    if (c.splits == 0) {
        __syncwarp();
        store_out<STEPS, NT>(c, s, row, columns_here, kv_head);
    }
}
