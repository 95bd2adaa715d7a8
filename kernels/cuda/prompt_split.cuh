// What attention_prompt.cuh and attention_squad.cu do alike before and after tiles: how a block begins, and the end of a split.
//
// A lane has rows g and g + 8, and of each some dims in acc: PIECES says which, by pieces of four neighbours. at(piece) is the dim of a
// piece's first, of<DIM>(acc, piece, h) the piece of row g + 8h.
#pragma once

#include "kernels/cuda/prompt_load.cuh"

// ---- a block's beginning ----

static __device__ __forceinline__ prompt_row
prompt_row_of(const attention_call &c, const prompt_item &item, uint32_t n)
{
    uint32_t token = n / c.group;
    prompt_row row;

    row.end = item.position + (token < item.count ? token : item.count - 1) +
              1; // a row that is none sees what the last one sees
    row.window = c.a.window;
    return row;
}

// The block's tiles: its first, and where its keys end, with the cache blocks of the first three. False: it has none of this split.
static __device__ __forceinline__ bool
prompt_range(const attention_call &c, const prompt_item &item, uint4 blocks[8], uint32_t *tile, uint32_t *end)
{
    *tile = item.first / 64 * 64, *end = item.end;
    if (c.splits != 0) {
        uint32_t from = item.split * BT_ATTENTION_SPLIT, to = from + BT_ATTENTION_SPLIT;

        if (from >= item.end) {
            return false;
        }
        *tile = *tile > from ? *tile : from, *end = *end < to ? *end : to;
    }
    if (threadIdx.x < 12) {
        uint32_t first = *tile + threadIdx.x / 4 * 64;

        ((uint32_t *)&blocks[first / 64 % 8])[threadIdx.x % 4] = *prompt_find(c, item, first, threadIdx.x % 4);
    }
    return true;
}

static __device__ __forceinline__ prompt_state
prompt_begin(const attention_call &c, const prompt_item &item)
{
    prompt_state s;
    float w[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t n = prompt_row_index(h);
        size_t at = (size_t)(item.row + n / c.group) * c.a.heads + item.kv_head * c.group + n % c.group;

        w[h] = n < item.rows ? c.q_scale[at] : 1.0f;
        w[h] = c.a.softcap > 0 ? w[h] : w[h] * BT_LOG2_E;
        s.minus_w[h] = -w[h] * 0x1p-8f;
        s.l[h][0] = s.l[h][1] = s.l[h][2] = s.l[h][3] = 0.0f;
    }
    s.odd = threadIdx.x % 2 != 0;
    s.w = s.odd ? w[1] : w[0];
    s.m = -INFINITY;
    return s;
}

// ---- the end of a split ----

// The row's sum, in all of its lanes: the tree of sixteen.
static __device__ __forceinline__ float
prompt_sum(const float l[4])
{
    float a[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = l[i] + __shfl_xor_sync(0xffffffffu, l[i], 2);
        a[i] = a[i] + __shfl_xor_sync(0xffffffffu, a[i], 1);
    }
    return (a[0] + a[2]) + (a[1] + a[3]);
}

// Four neighbouring floats; `wide`: at addresses of sixteen bytes.
static __device__ __forceinline__ void
prompt_store(float *to, float4 x, bool wide)
{
    if (wide) {
        *(float4 *)to = x;
    } else {
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
}

static __device__ __forceinline__ float4
prompt_read(const float *from, bool wide)
{
    return wide ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
}

// Where the sums of row n go.
static __device__ __forceinline__ float *
prompt_out_of(const attention_call &c, const prompt_item &item, uint32_t dim, uint32_t n)
{
    return c.a.out + (size_t)(item.row + n / c.group) * c.a.out_stride +
           (size_t)(item.kv_head * c.group + n % c.group) * dim;
}

// total ∪= this split of one row: the running total lies in `out`, where each thread reads only what it wrote itself.
template <int DIM, typename PIECES>
static __device__ __forceinline__ void
prompt_merge(const attention_call &c, const prompt_item &item, prompt_total &total, const prompt_row &row, int h,
             float m, float sum, uint32_t split, const float acc[DIM / 8][4])
{
    bool before = prompt_first(row) / BT_ATTENTION_SPLIT < split, last = (row.end - 1) / BT_ATTENTION_SPLIT == split;
    bool wide = ((size_t)c.a.out / 4 | c.a.out_stride) % 4 == 0;
    float most = before && total.m > m ? total.m : m, a = bt_ref_exp2(total.m - most), b = bt_ref_exp2(m - most);
    float *out = prompt_out_of(c, item, DIM, prompt_row_index(h)), inverse;

    total.l = before ? fmaf(total.l, a, sum * b) : sum;
    total.m = most;
    inverse = last ? 1.0f / total.l : 1.0f;
#pragma unroll
    for (int first = 0; first < DIM / 16; first += 4) {
        float4 y[4]; // (never left without a value: ptxas would keep places for them in all of the loop around)

#pragma unroll
        for (int j = 0; j < 4; j++) { // all on their way before the first is needed
            y[j] = before ? prompt_read(out + PIECES::at(first + j), wide) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 x = PIECES::template of<DIM>(acc, first + j, h);

            if (before) {
                x.x = fmaf(y[j].x, a, x.x * b), x.y = fmaf(y[j].y, a, x.y * b);
                x.z = fmaf(y[j].z, a, x.z * b), x.w = fmaf(y[j].w, a, x.w * b);
            }
            x.x *= inverse, x.y *= inverse, x.z *= inverse, x.w *= inverse;
            prompt_store(out + PIECES::at(first + j), x, wide);
        }
    }
}

// One split for itself, as prompt_merge_kernel reads it.
template <int DIM, typename PIECES>
static __device__ __forceinline__ void
prompt_keep(const attention_call &c, const prompt_item &item, int h, float m, float sum, bool seen,
            const float acc[DIM / 8][4])
{
    uint32_t n = prompt_row_index(h);
    size_t at = (size_t)(item.row + n / c.group) * c.a.heads + item.kv_head * c.group + n % c.group;
    float *to = c.partials + (at * c.splits + item.split) * (BT_PARTIAL_HEAD + DIM);

    if (threadIdx.x % 4 == 0) {
        to[BT_PARTIAL_MAX] = m, to[BT_PARTIAL_SUM] = sum, to[BT_PARTIAL_SEEN] = seen ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < DIM / 16; j++) {
        *(float4 *)(to + BT_PARTIAL_HEAD + PIECES::at(j)) = PIECES::template of<DIM>(acc, j, h);
    }
}

// merge(h, m, sum) adds the split to what was merged of row half h.
template <int DIM, typename PIECES, typename MERGE>
static __device__ __forceinline__ void
prompt_end_split(const attention_call &c, const prompt_item &item, const MERGE &merge, prompt_state &state,
                 const prompt_row rows[2], uint32_t split, float acc[DIM / 8][4])
{
    float m[2];

    prompt_share(state.odd, state.m, m);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = prompt_sum(state.l[h]);
        bool seen =
            prompt_first(rows[h]) < (split + 1) * BT_ATTENTION_SPLIT && rows[h].end > split * BT_ATTENTION_SPLIT;

        if (prompt_row_index(h) < item.rows && c.splits != 0) {
            prompt_keep<DIM, PIECES>(c, item, h, m[h], sum, seen, acc);
        } else if (prompt_row_index(h) < item.rows && seen) {
            merge(h, m[h], sum);
        }
#pragma unroll
        for (int b = 0; b < 4; b++) {
            state.l[h][b] = 0.0f;
        }
    }
    state.m = -INFINITY;
#pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++) {
        acc[i / 4][i % 4] = 0.0f;
    }
}
