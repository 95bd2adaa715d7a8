// linear_wide.cuh: outliers, whose chains have nothing to do with the products and run beside them.
#pragma once

#include "kernels/cuda/linear_wide_turn.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What changes nothing that it is added to.
static __device__ __forceinline__ float4
wide_nothing(void)
{
    return make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
}

// Four rows of the share: eight lanes have a row, four tokens a piece of 32.
typedef struct {
    uint32_t pass, part, begin, count; // its outliers: where in those of its matrix, and how many
} wide_hits;

// The next four rows that nobody has taken; none: rows without outliers.
static __device__ __forceinline__ wide_hits
wide_take(const uint32_t *rows, uint32_t passes, uint32_t lane, uint32_t *taken)
{
    wide_hits h = {};

    if (lane == 0) {
        h.pass = atomicInc(taken, 0x7fffffffu); // of atomicAdd(…, 1) ptxas makes twelve instructions
    }
    h.pass = __shfl_sync(0xffffffffu, h.pass, 0);
    if (h.pass < passes) {
        const uint32_t *tile = rows + h.pass / 4 * WIDE_ROW_STARTS, *row = tile + h.pass % 4 * 4 + lane / 8;

        h.begin = row[0], h.count = row[1] - h.begin, h.part = tile[17];
    }
    return h;
}

// A lane's one of the outliers s … s + 7 of its row: column and delta.
static __device__ __forceinline__ void
wide_hit(const linear_call &c, const wide_hits &h, uint32_t s, uint32_t lane, uint32_t *col, __half *delta)
{
    const bt_cuda_matrix &m = c.part[h.part];

    *col = 0, *delta = __half();
    if (s + lane % 8 < h.count) {
        *col = m.outlier_cols[h.begin + s + lane % 8], *delta = m.deltas[h.begin + s + lane % 8];
    }
}

// o += delta * x of eight of them in rising order, as fmaf; AHEAD columns at once on their way. No load is under a condition, which would make
// it a load and four moves: a lane whose row has fewer adds 0 times column 0, from the first-level cache, since what all the GPU reads at one
// place of the second-level cache is what everybody waits for; tokens beyond those turned are what lies there (BT_CUDA_TURNED_PAD), in sums
// that nobody reads.
template <int N, int AHEAD>
static __device__ __forceinline__ void
wide_chain(const char *turned, uint32_t stride, uint32_t steps, uint32_t col, float delta, float4 o[(N + 31) / 32])
{
    const uint32_t all = 0xffffffffu;
    const int pieces = (N + 31) / 32;

#pragma unroll
    for (uint32_t b = 0; b < 8; b += AHEAD) {
        float4 x[AHEAD][pieces];

        if (b != 0 && b >= steps) {
            break;
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            const char *at = turned + (uint64_t)__shfl_sync(all, col, b + i, 8) * stride;

#pragma unroll
            for (int p = 0; p < pieces; p++) {
                x[i][p] = __ldca((const float4 *)(at + p * 128));
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            float d = __shfl_sync(all, delta, b + i, 8);

#pragma unroll
            for (int p = 0; p < pieces; p++) {
                o[p].x = fmaf(d, x[i][p].x, o[p].x), o[p].y = fmaf(d, x[i][p].y, o[p].y);
                o[p].z = fmaf(d, x[i][p].z, o[p].z), o[p].w = fmaf(d, x[i][p].w, o[p].w);
            }
        }
    }
}

// What there is to do of outliers, by whoever has time: chains of fmaf by rising column to sums [rows][N + 4], four rows at a time, which are
// taken from `taken`. Rows without any get −0, which changes nothing that it is added to. The warps that have nothing else to do begin at
// once; those that multiply help when they are through. The next columns are on their way while one's activations are.
template <int N, int AHEAD>
static __device__ __forceinline__ void
wide_outliers(const wide_call &w, uint32_t rank, uint32_t lane, const uint32_t *rows, uint32_t ready, uint32_t *taken,
              float *sums)
{
    uint32_t first, passes = wide_share(w, rank, &first) * (w.c.paired ? 8 : 4), col, steps;
    __half delta;
    const int pieces = (N + 31) / 32;
    float4 o[pieces] = {};
    const char *turned = (const char *)(w.turned + blockIdx.y * N + lane % 8 * 4); // of this lane
    uint32_t stride = (uint32_t)w.turned_stride * 4;
    wide_hits now;

    asm volatile("" : "+l"(turned), "+r"(stride)); // or each address is made anew
    bt_barrier_wait(ready, 0);
    now = wide_take(rows, passes, lane, taken);
    if (now.pass >= passes) {
        return;
    }
    wide_hit(w.c, now, 0, lane, &col, &delta);
    wide_turn_wait(w, lane);
    steps = __reduce_max_sync(0xffffffffu, now.count);
#pragma unroll 1
    for (uint32_t s = 0;;) {
        bool ends = s + 8 >= steps;
        wide_hits next = ends ? wide_take(rows, passes, lane, taken) : now;
        uint32_t next_s = ends ? 0 : s + 8, next_col;
        __half next_delta;

        wide_hit(w.c, next, next_s, lane, &next_col, &next_delta);
        if (s < steps) {
            wide_chain<N, AHEAD>(turned, stride, steps - s, col, __half2float(delta), o);
        }
        if (ends) {
#pragma unroll
            for (int p = 0; p < pieces; p++) {
                if (p * 32 + lane % 8 * 4 < N) {
                    *(float4 *)(sums + (now.pass * 4 + lane / 8) * (N + 4) + p * 32 + lane % 8 * 4) =
                        now.count != 0 ? o[p] : wide_nothing();
                }
                o[p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            if (next.pass >= passes) {
                return;
            }
            steps = __reduce_max_sync(0xffffffffu, next.count);
        }
        now = next, s = next_s, col = next_col, delta = next_delta;
    }
}

// Where the outliers of the share's rows begin, to shared memory: WIDE_ROW_STARTS a tile, 17 and its part. And all of them into the
// second-level cache: nothing before this kernel wrote that. `ready` counts the threads that are through.
static __device__ __forceinline__ void
wide_outliers_ahead(const wide_call &w, uint32_t rank, uint32_t warp, uint32_t warps, uint32_t lane, uint32_t *rows,
                    uint32_t ready)
{
    uint32_t first, tiles = wide_share(w, rank, &first), all = tiles * (w.c.paired ? 2 : 1), part, tile;

    for (uint32_t i = warp; i < all; i += warps) {
        bool there = wide_tile(w.c, wide_share_tile(first, tiles, i * 16), &part, &tile);
        const bt_cuda_matrix &m = w.c.part[part];
        uint32_t at = 0, end;

        if (there && m.row_start != NULL && lane < 17) {
            at = m.row_start[tile * 16 + lane < m.rows ? tile * 16 + lane : m.rows];
        }
        if (lane < 18) {
            rows[i * WIDE_ROW_STARTS + lane] = lane < 17 ? at : part;
        }
        end = __shfl_sync(0xffffffffu, at, 16);
        for (at = __shfl_sync(0xffffffffu, at, 0) + lane * 32; at < end; at += 1024) {
            bt_prefetch(m.outlier_cols + at);
            bt_prefetch(m.deltas + at);
        }
    }
    __syncwarp(); // lanes that had less to ask for go on with the others
    bt_barrier_arrive(ready);
}

#endif
