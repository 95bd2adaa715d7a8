// Drawing tokens from logits, the bits of the host's sampler (kernels/cpu/ref/draw.h): the largest of a row, or of its scores.
//
//     row   [ piece 0 | piece 1 | … ]    a block each: its largest logit; then, with the row's largest, its largest score
//
// The row's last block to be done names the token, in the host's own memory: a kernel for it and a copy of a few bytes were 2 us each.
// A row of 128k logits is half a MiB: read by one block it took as long as a layer. The largest of pieces is the largest of all, ties to the
// lower id, so that the cut changes nothing.
#include "kernels/cuda/launch.cuh"

#include "kernels/cpu/ref/draw.h"

#include <float.h>

#define THREADS 256
#define BLOCKS_EACH 4 // of a multiprocessor, at once
#define AHEAD 8u
#define FOURS_AHEAD 4u
#define NONE 0x7fffffff

// −inf is the least and no token's; NaN and +inf are no numbers here.
static __device__ __forceinline__ void
keep_better(bt_cuda_best *best, float score, int32_t id)
{
    if (score > best->score || (score == best->score && id < best->id)) {
        best->score = score;
        best->id = id;
    }
}

// A number that rises with a float's; of the two zeros it is the same.
static __device__ __forceinline__ int32_t
rank_of(float x)
{
    int32_t bits = __float_as_int(x + 0.0f);

    return bits ^ (bits >> 31 & 0x7fffffff);
}

static __device__ __forceinline__ float
of_rank(int32_t rank)
{
    return __int_as_float(rank ^ (rank >> 31 & 0x7fffffff));
}

// In every lane. No score is NaN.
static __device__ __forceinline__ bt_cuda_best
best_of_warp(bt_cuda_best mine)
{
    int32_t rank = rank_of(mine.score), most = __reduce_max_sync(0xffffffffu, rank);
    bt_cuda_best best = {of_rank(most), __reduce_min_sync(0xffffffffu, rank == most ? mine.id : NONE)};

    return best;
}

// The block's best, in the first warp.
static __device__ bt_cuda_best
best_of_block(bt_cuda_best mine)
{
    __shared__ bt_cuda_best warps[THREADS / 32];
    uint32_t lane = threadIdx.x % 32;

    mine = best_of_warp(mine);
    if (lane == 0) {
        warps[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    return threadIdx.x < 32 ? best_of_warp(warps[lane % (THREADS / 32)]) : mine;
}

// Looked at for the few that would be the best so far, not for all.
static __device__ __forceinline__ bool
is_banned(const bt_draw *draw, const bt_cuda_ends *ends, int32_t id)
{
    for (uint32_t i = 0; draw->no_end && i < ends->count; i++) {
        if (ends->ids[i] == id) {
            return true;
        }
    }
    return false;
}

// Of `count` things in a row, the first of a piece. (A vocabulary has less than 2^26 tokens.)
static __device__ __forceinline__ uint32_t
piece_begin(uint32_t count, uint32_t piece)
{
    return count * piece / gridDim.x;
}

// Calls take(logit, id) for this thread's logits of the block's piece, AHEAD of them read at once.
template <typename T>
static __device__ __forceinline__ void
each_logit(const bt_draw_args &a, T take)
{
    const float *row = a.logits + blockIdx.y * a.stride;
    uint32_t end = piece_begin(a.vocab, blockIdx.x + 1);

    for (uint32_t first = piece_begin(a.vocab, blockIdx.x) + threadIdx.x; first < end; first += AHEAD * THREADS) {
        float x[AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            x[i] = first + i * THREADS < end ? row[first + i * THREADS] : -INFINITY;
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (first + i * THREADS < end) {
                take(x[i], (int32_t)(first + i * THREADS));
            }
        }
    }
}

// Puts the block's best where the row's others are. True for the first warp of the block that comes last: it finds all of them.
static __device__ __forceinline__ bool
put_best(bt_cuda_best best, bt_cuda_best *out, uint32_t *arrivals)
{
    bool last = false;

    best = best_of_block(best);
    if (threadIdx.x == 0) {
        out[blockIdx.y * gridDim.x + blockIdx.x] = best;
        __threadfence();
        last = atomicInc(&arrivals[blockIdx.y], gridDim.x - 1) == gridDim.x - 1; // and is 0 again
        __threadfence();
    }
    return threadIdx.x < 32 && __shfl_sync(0xffffffffu, last, 0);
}

// Of a row, by one warp, in every lane.
static __device__ __forceinline__ bt_cuda_best
best_of_pieces(const bt_cuda_best *all)
{
    const bt_cuda_best *pieces = all + blockIdx.y * gridDim.x;
    bt_cuda_best best = {-INFINITY, NONE};

    for (uint32_t i = threadIdx.x % 32; i < gridDim.x; i += 32) {
        keep_better(&best, __ldcg(&pieces[i].score), __ldcg(&pieces[i].id));
    }
    return best_of_warp(best);
}

// Four logits, -inf for what is behind the last. FOURS: rows lie at multiples of 16 bytes and are whole fours.
template <bool FOURS>
static __device__ __forceinline__ float4
read_four(const float *row, uint32_t id, uint32_t vocab)
{
    float4 x;

    if (FOURS) {
        return *(const float4 *)(row + id);
    }
    x.x = row[id], x.y = id + 1 < vocab ? row[id + 1] : -INFINITY;
    x.z = id + 2 < vocab ? row[id + 2] : -INFINITY, x.w = id + 3 < vocab ? row[id + 3] : -INFINITY;
    return x;
}

// Does a thread, whose fours are first, first + THREADS … below `end`, have one with a banned id?
static __device__ __forceinline__ bool
has_banned(const bt_draw *draw, const bt_cuda_ends *ends, uint32_t first, uint32_t end)
{
    bool has = false;

    for (uint32_t i = 0; draw->no_end && i < ends->count; i++) {
        uint32_t four = (uint32_t)ends->ids[i] / 4;

        has = has || (four >= first && four < end && (four - first) % THREADS == 0);
    }
    return has;
}

static __device__ __noinline__ void
largest_one_by_one(const bt_draw_args &a, const bt_draw *draw, const bt_cuda_ends *ends, uint32_t first, uint32_t end,
                   bt_cuda_best *best)
{
    const float *row = a.logits + blockIdx.y * a.stride;

    *best = (bt_cuda_best){-INFINITY, NONE};
    for (; first < end; first += THREADS) {
        for (uint32_t id = first * 4; id < first * 4 + 4 && id < a.vocab; id++) {
            float x = row[id];

            if (x > best->score && x <= FLT_MAX && !is_banned(draw, ends, (int32_t)id)) {
                *best = (bt_cuda_best){x, (int32_t)id};
            }
        }
    }
}

// The thread's largest logit: the largest of four first, and which of them when all are done. Infinity and banned ids are rare: whoever has one
// looks at all of its own again.
template <bool FOURS>
static __device__ __forceinline__ bt_cuda_best
largest(const bt_draw_args &a, const bt_draw *draw, const bt_cuda_ends *ends)
{
    const float *row = a.logits + blockIdx.y * a.stride;
    uint32_t fours = (a.vocab + 3) / 4, first = piece_begin(fours, blockIdx.x) + threadIdx.x,
             end = piece_begin(fours, blockIdx.x + 1), at = 0;
    bt_cuda_best best = {-INFINITY, NONE};
    float4 kept = {};

    for (uint32_t four = first; four < end; four += FOURS_AHEAD * THREADS) {
        float4 x[FOURS_AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < FOURS_AHEAD; i++) {
            x[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (four + i * THREADS < end) {
                x[i] = read_four<FOURS>(row, (four + i * THREADS) * 4, a.vocab);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < FOURS_AHEAD; i++) {
            float most = fmaxf(fmaxf(x[i].x, x[i].y), fmaxf(x[i].z, x[i].w)); // of those that are no NaN

            if (most > best.score) {
                best.score = most, at = four + i * THREADS, kept = x[i];
            }
        }
    }
    if (best.score > FLT_MAX || has_banned(draw, ends, first, end)) {
        largest_one_by_one(a, draw, ends, first, end, &best);
    } else if (best.score > -INFINITY) {
        best.id = (int32_t)(at * 4 + (kept.x == best.score   ? 0
                                      : kept.y == best.score ? 1
                                      : kept.z == best.score ? 2
                                                             : 3));
    }
    return best;
}

// Greedy rows have their token then.
template <bool FOURS>
static __global__ void
__launch_bounds__(THREADS, BLOCKS_EACH) largest_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends,
                                                       bt_cuda_best *out, uint32_t *arrivals, int32_t *drawn)
{
    const bt_draw *draw = &draws[blockIdx.y];
    bt_cuda_best best;

    bt_let_next();
    bt_wait_before();
    best = largest<FOURS>(a, draw, ends);
    if (put_best(best, out, arrivals) && draw->inverse_t == 0.0f) {
        best = best_of_pieces(out);
        if (threadIdx.x == 0) {
            drawn[blockIdx.y] = best.id == NONE ? -1 : best.id; // no logit is a number
        }
    }
}

static __global__ void
__launch_bounds__(THREADS)
    score_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends, const bt_cuda_best *logits,
                 bt_cuda_best *out, uint32_t *arrivals, int32_t *drawn)
{
    const bt_draw draw = draws[blockIdx.y];
    bt_cuda_best best = {-INFINITY, NONE}, largest;

    bt_let_next();
    bt_wait_before();
    if (draw.inverse_t == 0.0f) {
        return;
    }
    largest = best_of_pieces(logits);
    each_logit(a, [&](float x, int32_t id) {
        float score = bt_ref_draw_score(x, largest.score, draw.inverse_t, draw.key, (uint32_t)id);

        if (score > best.score && score <= FLT_MAX && !is_banned(&draw, ends, id)) {
            best = (bt_cuda_best){score, id};
        }
    });
    if (put_best(best, out, arrivals)) {
        best = best_of_pieces(out);
        if (threadIdx.x == 0) { // 0: as the host says where no score is a number
            drawn[blockIdx.y] = largest.id == NONE ? -1 : best.id == NONE ? 0 : best.id;
        }
    }
}

// Blocks that share a row: all that are at work at once, or twice as many of rows that are many.
static uint32_t
pieces_of(const bt_cuda *cuda, uint32_t rows)
{
    uint32_t blocks = (uint32_t)cuda->sms * BLOCKS_EACH, pieces = (rows * 3 > blocks ? 2 * blocks : blocks) / rows;

    return pieces == 0 ? 1 : pieces < BT_CUDA_DRAW_PIECES ? pieces : BT_CUDA_DRAW_PIECES;
}

bt_err
bt_cuda_draw(bt_device *device, const bt_draw_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_cuda_step *s = &cuda->step;
    dim3 grid(pieces_of(cuda, a->rows), a->rows);
    bool fours = (uintptr_t)a->logits % 16 == 0 && (a->stride | a->vocab) % 4 == 0;

    bt_cuda_go(cuda, fours ? largest_kernel<true> : largest_kernel<false>, grid, dim3(THREADS), 0, *a, s->at.draws,
               s->at.ends, s->best_logits, s->arrivals, s->drawn);
    if (cuda->draws == BT_CUDA_DRAWS_SCORES) {
        bt_cuda_go(cuda, score_kernel, grid, dim3(THREADS), 0, *a, s->at.draws, s->at.ends, s->best_logits,
                   s->best_scores, s->arrivals, s->drawn);
    }
    return bt_cuda_launched(cuda, "draw");
}
