// Few tokens (linear_few.cuh): what helpers find out about the rows of a chunk while others multiply, and the end of a chunk.
#pragma once

#include "kernels/cuda/few_codes.cuh"
#include "kernels/cuda/few_outliers.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- the helpers ----

// What the end of a chunk needs of each of its rows, and of each (row, token), in shared memory behind the sums.
typedef struct {
    float *extra, *old;  // [rows, pitch] what is added to the dot, and what y held
    float *bias, *scale; // [rows] scale: of a row with one
    uint32_t *place;     // [rows] in y's row; NOWHERE: there is no such row
} few_rows;

#define NOWHERE 0xffffffffu

static __device__ __forceinline__ few_rows
rows_of(const few_call &f, uint8_t *memory)
{
    float *at = (float *)(memory + f.at.scratch) + (f.alone ? 0 : sum_at(f, f.runs, 0, 0, 0));
    uint32_t rows = f.chunk * 16;
    few_rows r;

    r.extra = at, r.old = at + rows * f.pitch;
    r.bias = f.c.epilogue == BT_LINEAR_ADD ? r.old + rows * f.pitch : r.old; // old: nothing then
    r.scale = r.bias + rows;
    r.place = (uint32_t *)(r.scale + rows);
    return r;
}

// The outliers of a row times N tokens from `token` on: −0 where there are none, which changes nothing when it is added.
template <int N>
static __device__ __forceinline__ void
outliers_of(const few_call &f, const few_list &l, uint32_t token, const uint8_t *memory, float sum[N])
{
    const int8_t *codes = (const int8_t *)(memory + f.at.codes);
    const float *scales = (const float *)(memory + f.at.scales);

#pragma unroll
    for (int t = 0; t < N; t++) {
        sum[t] = l.i == l.end ? -0.0f : 0.0f;
    }
#pragma unroll 1
    for (uint32_t i = l.i; i < l.end; i += 4) { // four terms at once; the sum is a chain
        __align__(16) float term[4][N];
        float delta[4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t n = i + j < l.end ? i + j : l.end - 1, k = l.cols[n];
            const float *scale = scales + (k >> f.c.act_shift) * f.sa_width + token;
            const int8_t *code = codes + code_at(f, token, k);

            delta[j] = __half2float(l.deltas[n]);
            if constexpr (N == 4) {
                *(float4 *)term[j] = *(const float4 *)scale;
            } else {
                term[j][0] = *scale;
            }
#pragma unroll
            for (int t = 0; t < N; t++) { // beyond the last token: some number
                term[j][t] *= float_of_code(code[t * 64]);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int t = 0; t < N; t++) {
                sum[t] = i + j < l.end ? fmaf(delta[j], term[j][t], sum[t]) : sum[t];
            }
        }
    }
}

// Row `here` of a chunk whose first tile is `first`.
typedef struct {
    uint32_t part, tile, row; // of the matrix
    uint32_t place;           // in y's row
    bool there;
} few_place;

static __device__ __forceinline__ few_place
place_of(const few_call &f, uint32_t first, uint32_t here)
{
    few_place p;

    p.tile = first + here / 16;
    p.part = part_of(f.c, &p.tile);
    p.row = p.tile * 16 + here % 16;
    p.place = (f.c.paired ? 0 : start_of(f.c, p.part)) + p.row;
    p.there = p.row < f.c.part[p.part].rows;
    return p;
}

// What the end needs of a row beside its sums. Bias and what y held come from afar and are on their way (bt_copy_commit is the caller's).
static __device__ __forceinline__ void
note_row(const few_call &f, const few_rows &r, const few_place &p, uint32_t here)
{
    const bt_cuda_matrix &m = f.c.part[p.part];
    const float *bias = f.c.bias[p.part];

    r.place[here] = p.there ? p.place : NOWHERE;
    r.scale[here] = m.block == BT_BLOCK_ROW ? bt_cuda_scale(&m, m.scales, p.row, 0) : 1.0f;
    if (bias != NULL && p.there) {
        bt_copy4(r.bias + here, bias + p.row);
    } else {
        r.bias[here] = -0.0f;
    }
    for (uint32_t t = 0; t < f.c.tokens && f.c.epilogue == BT_LINEAR_ADD && p.there; t++) {
        bt_copy4(r.old + here * f.pitch + t, f.c.y + t * f.c.y_stride + p.place);
    }
}

static __device__ __forceinline__ void
note_rows(const few_call &f, const few_rows &r, uint32_t helper, uint32_t first, uint32_t rows)
{
#pragma unroll 1
    for (uint32_t i = helper; i < rows; i += f.helpers * 32) {
        note_row(f, r, place_of(f, first, i), i);
    }
    bt_copy_commit();
}

static __device__ __forceinline__ void
put_extra(const few_call &f, const few_rows &r, uint32_t here, uint32_t token, const float *sum, int count)
{
#pragma unroll
    for (int t = 0; t < count; t++) {
        if (token + t < f.c.tokens) {
            r.extra[here * f.pitch + token + t] = sum[t];
        }
    }
}

// A helper's share of a chunk from tile `first` on: for each row, N tokens at a time. `origin` is the block's first tile.
template <int N>
static __device__ __forceinline__ void
help(const few_call &f, uint8_t *memory, uint32_t helper, uint32_t origin, uint32_t first, uint32_t tiles)
{
    uint32_t groups = N == 1 ? 1 : (f.c.tokens + N - 1) / N;
    few_rows r = rows_of(f, memory);

    note_rows(f, r, helper, first, tiles * 16);
#pragma unroll 1
    for (uint32_t i = helper; i < tiles * 16 * groups; i += f.helpers * 32) {
        uint32_t here = i / groups, token = i % groups * N;
        few_place p = place_of(f, first, here);
        const bt_cuda_matrix &m = f.c.part[p.part];
        float sum[N];

        outliers_of<N>(f, list_of(f, memory, m, first - origin + here / 16, p.tile, here % 16), token, memory, sum);
        put_extra(f, r, here, token, sum, N);
    }
    bt_copy_wait<0>();
}

// ---- the end ----

// The balanced tree over the runs of a row, at most 32: eights of them, and those two by two.
static __device__ __forceinline__ float
tree_of(const few_call &f, const float *sums, uint32_t step)
{
    float eights = 0.0f, pair = 0.0f, sum = 0.0f;

    if (f.runs <= 2) {
        return f.runs == 1 ? sums[0] : sums[0] + sums[step];
    }
    if (f.runs == 4) {
        return (sums[0] + sums[step]) + (sums[2 * step] + sums[3 * step]);
    }
#pragma unroll 1
    for (uint32_t first = 0; first < f.runs; first += 8) {
        float v[8];

#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            v[i] = first + i < f.runs ? sums[(first + i) * step] : 0.0f;
        }
#pragma unroll
        for (uint32_t stride = 1; stride < 8; stride *= 2) {
#pragma unroll
            for (uint32_t i = 0; i + stride < 8; i += 2 * stride) {
                v[i] = first + i + stride < f.runs ? v[i] + v[i + stride] : v[i];
            }
        }
        // The eights: a, a + b, (a + b) + c, (a + b) + (c + d).
        sum = first % 16 != 0 ? eights + v[0] : v[0];
        eights = v[0];
        pair = first == 8 ? sum : pair;
        sum = first > 8 ? pair + sum : sum;
    }
    return sum;
}

// A row's number before the epilogue; `here` is its place in the chunk.
template <int BLOCK>
static __device__ __forceinline__ float
total_of(const few_call &f, const uint8_t *memory, const few_rows &rows, uint32_t here, uint32_t token)
{
    const float *sums = (const float *)(memory + f.sums_at) + sum_at(f, 0, here / 16, here % 16, token);
    uint32_t step = f.sum_run;
    float r;

    if (BLOCK == 0) {
        int32_t dot = 0;

        for (uint32_t s = 0; s < f.runs; s++) {
            dot += ((const int32_t *)sums)[s * step];
        }
        r = fmaf(rows.scale[here] * ((const float *)(memory + f.at.scales))[token], (float)dot, 0.0f);
    } else {
        r = tree_of(f, sums, step);
    }
    r += rows.extra[here * f.pitch + token];
    r += rows.bias[here];
    return f.c.softcap > 0.0f ? bt_ref_softcap(r, f.c.softcap) : r;
}

template <int BLOCK>
static __device__ __forceinline__ void
finish_chunk(const few_call &f, uint8_t *memory, uint32_t tiles)
{
    uint32_t pairs = f.c.paired ? 2 : 1, all = tiles / pairs * 16, token = threadIdx.x / all, row = threadIdx.x % all,
             tokens_on = blockDim.x / all, rows_on = blockDim.x % all;
    few_rows rows = rows_of(f, memory);

#pragma unroll 1
    for (; token < f.c.tokens; token += tokens_on, row += rows_on) {
        uint32_t here, place;
        float *y, r = 0.0f, gate = 0.0f;

        if (row >= all) {
            row -= all;
            if (++token >= f.c.tokens) {
                break;
            }
        }
        here = row / 16 * pairs * 16 + row % 16;
        place = rows.place[here];

        if (place == NOWHERE) {
            continue;
        }
#pragma unroll 1
        for (uint32_t p = 0; p < pairs; p++) {
            gate = r;
            r = total_of<BLOCK>(f, memory, rows, here + p * 16, token);
        }
        y = f.c.y + token * f.c.y_stride + place;
        if (f.c.paired) {
            *y = pair_value(f.c, gate, r);
        } else if (f.c.epilogue == BT_LINEAR_ADD) {
            *y = fmaf(f.c.scale, r, rows.old[here * f.pitch + token]);
        } else {
            *y = f.c.scale * r;
        }
    }
}
#endif
