// Few tokens whose codes come segment by segment (few_staged.cuh): the outliers, by helpers.
//
// A row's are a chain by rising column, so helpers walk along it with the segments: a thread takes a row and eight tokens, about one
// outlier a segment where one weight in a thousand is one.
#pragma once

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/few_slots.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

#define WALK_TOKENS 8u // of a row at a time
#define WALK_FAR 0xffffffffu

// How far a row's outliers are summed, for each eight tokens; the sums themselves are in `extra`.
typedef struct {
    uint32_t cols, deltas; // where the lists are in shared memory; WALK_FAR: in the matrix
    uint32_t end, i[2];
} staged_walk;

static __device__ __forceinline__ staged_walk *
walks_of(const few_call &f, const few_rows &r)
{
    return (staged_walk *)(r.place + f.chunk * 16);
}

static __device__ __forceinline__ void
begin_walk(const few_call &f, uint8_t *memory, const few_rows &r, uint32_t origin, uint32_t first, uint32_t here)
{
    few_place p = place_of(f, first, here);
    few_list l = list_of(f, memory, f.c.part[p.part], first - origin + here / 16, p.tile, here % 16);
    staged_walk *w = walks_of(f, r) + here;

    w->cols = l.near ? (uint32_t)((const uint8_t *)l.cols - memory) : WALK_FAR;
    w->deltas = l.near ? (uint32_t)((const uint8_t *)l.deltas - memory) : WALK_FAR;
    w->end = l.end, w->i[0] = w->i[1] = l.i;
    for (uint32_t t = 0; t < f.c.tokens; t++) {
        r.extra[here * f.pitch + t] = l.i == l.end ? -0.0f : 0.0f;
    }
}

// One outlier of a row.
static __device__ __forceinline__ uint32_t
read_outlier(const few_call &f, const uint8_t *memory, const staged_walk &w, uint32_t i, uint32_t first, uint32_t here,
             float *delta)
{
    if (w.cols != WALK_FAR) {
        *delta = __half2float(*(const __half *)(memory + w.deltas + i * 2));
        return *(const uint32_t *)(memory + w.cols + i * 4);
    }
    const bt_cuda_matrix &m = f.c.part[place_of(f, first, here).part];

    *delta = __half2float(m.deltas[i]);
    return m.outlier_cols[i];
}

// A thread's task: a row times eight tokens. Its next outlier is read ahead: k is its column, WALK_FAR where there is none.
typedef struct {
    uint32_t here, eight, i, k;
    float delta, sum[WALK_TOKENS];
    staged_walk row;
} staged_task;

static __device__ __forceinline__ void
next_outlier(const few_call &f, const uint8_t *memory, staged_task *t, uint32_t first)
{
    t->k = t->i < t->row.end ? read_outlier(f, memory, t->row, t->i, first, t->here, &t->delta) : WALK_FAR;
}

static __device__ __forceinline__ void
take_task(const few_call &f, const uint8_t *memory, const few_rows &r, staged_task *t, uint32_t first)
{
    const float *extra = r.extra + t->here * f.pitch + t->eight * WALK_TOKENS;

    t->row = walks_of(f, r)[t->here];
    t->i = t->eight == 0 ? t->row.i[0] : t->row.i[1];
#pragma unroll
    for (uint32_t j = 0; j < WALK_TOKENS; j++) {
        t->sum[j] = t->eight * WALK_TOKENS + j < f.c.tokens ? extra[j] : 0.0f;
    }
    next_outlier(f, memory, t, first);
}

static __device__ __forceinline__ void
put_task(const few_call &f, const few_rows &r, const staged_task *t)
{
    float *extra = r.extra + t->here * f.pitch + t->eight * WALK_TOKENS;

    walks_of(f, r)[t->here].i[t->eight] = t->i;
#pragma unroll
    for (uint32_t j = 0; j < WALK_TOKENS; j++) {
        if (t->eight * WALK_TOKENS + j < f.c.tokens) {
            extra[j] = t->sum[j];
        }
    }
}

// The outliers of a task below column `stop`, which are in a slot.
static __device__ __forceinline__ void
walk(const few_call &f, const uint8_t *memory, const uint8_t *slot, staged_task *t, uint32_t first, uint32_t stop)
{
    const float *scales = (const float *)(slot + f.sa_width * SEGMENT) + t->eight * WALK_TOKENS;

    slot += t->eight * (SEGMENT * 8);
#pragma unroll 1
    while (t->k < stop) {
        uint32_t at = t->k % SEGMENT;
        const int8_t *code = (const int8_t *)slot + at / 64 * 512 + at % 32 / 8 * 16 + at % 64 / 32 * 8 + at % 8;
        const float4 *row = (const float4 *)(scales + (at >> f.c.act_shift) * f.sa_width);
        float delta = t->delta;
        __align__(16) float scale[WALK_TOKENS];

        *(float4 *)scale = row[0], *(float4 *)(scale + 4) = row[1];
        t->i++;
        next_outlier(f, memory, t, first);
#pragma unroll
        for (uint32_t j = 0; j < WALK_TOKENS; j++) { // beyond the last token: some number
            t->sum[j] = fmaf(delta, scale[j] * float_of_code(code[j * 64]), t->sum[j]);
        }
    }
}

// A helper's share of a chunk.
static __device__ __forceinline__ void
staged_help(const few_call &f, uint8_t *memory, uint32_t helper, uint32_t origin, uint32_t first, uint32_t count,
            uint32_t run, uint32_t fills)
{
    uint32_t rows = count * 16, tasks = rows * (f.sa_width / WALK_TOKENS), lane = threadIdx.x % 32;
    bool alone = tasks <= f.helpers * 32; // each thread has one task at most, which stays with it
    few_rows r = rows_of(f, memory);
    staged_task t = {};

    note_rows(f, r, helper, first, rows);
#pragma unroll 1
    for (uint32_t here = helper; here < rows; here += f.helpers * 32) {
        begin_walk(f, memory, r, origin, first, here);
    }
    helpers_sync(met_of(f, memory), (run + 1) & 1); // the first time was before the first chunk
#pragma unroll 1
    for (uint32_t segment = 0; segment < f.segments; segment++) {
        uint32_t fill = fill_of(f, run, segment);

        wait_for_slot(f, memory, fill);
#pragma unroll 1
        for (uint32_t task = helper; task < tasks; task += f.helpers * 32) {
            if (!alone || segment == 0) {
                t.eight = task >= rows ? 1 : 0, t.here = task - t.eight * rows;
                take_task(f, memory, r, &t, first);
            }
            walk(f, memory, slot_of(f, memory, fill), &t, first, (segment + 1) * SEGMENT);
            if (!alone || segment + 1 == f.segments) {
                put_task(f, r, &t);
            }
        }
        // The first warp speaks for the tiles that the last chunk lacks; each in turn waits for the others.
        leave_slot(f, memory, fill, helper < 32 ? 1 + f.chunk - count : 1, lane);
        if (fill % f.helpers == helper / 32) {
            refill_slot(f, memory, fill, fills, lane);
        }
    }
    bt_copy_wait<0>();
}
#endif
