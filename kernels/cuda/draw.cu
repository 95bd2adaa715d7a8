// Drawing tokens from logits, the bits of the host's sampler (kernels/cpu/ref/draw.h): the largest of a row, or of its scores.
//
//     row   [ piece 0 | piece 1 | … | piece 63 ]    a block each: its largest logit; then, with the row's largest, its largest score
//
// The row's last block to be done names the token, in the host's own memory: a kernel for it and a copy of a few bytes were 2 us each.
// A row of 128k logits is half a MiB: read by one block it took as long as a layer. The largest of pieces is the largest of all, ties to the
// lower id, so that the cut changes nothing.
#include "kernels/cuda/launch.cuh"

#include "kernels/cpu/ref/draw.h"

#include <float.h>

#define THREADS 256
#define AHEAD 8u
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

// In every lane.
static __device__ __forceinline__ bt_cuda_best
best_of_warp(bt_cuda_best mine)
{
    for (int step = 16; step != 0; step /= 2) {
        float score = __shfl_xor_sync(0xffffffffu, mine.score, step);
        int32_t id = __shfl_xor_sync(0xffffffffu, mine.id, step);

        keep_better(&mine, score, id);
    }
    return mine;
}

// The block's best, in thread 0.
static __device__ bt_cuda_best
best_of_block(bt_cuda_best mine)
{
    __shared__ bt_cuda_best warps[THREADS / 32];

    mine = best_of_warp(mine);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = mine;
    }
    __syncthreads();
    for (int i = 1; threadIdx.x == 0 && i < THREADS / 32; i++) {
        keep_better(&mine, warps[i].score, warps[i].id);
    }
    return mine;
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

static __device__ __forceinline__ uint32_t
piece_begin(uint32_t vocab, uint32_t piece)
{
    return (uint32_t)((uint64_t)vocab * piece / BT_CUDA_DRAW_PIECES);
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
        out[blockIdx.y * BT_CUDA_DRAW_PIECES + blockIdx.x] = best;
        __threadfence();
        last = atomicInc(&arrivals[blockIdx.y], BT_CUDA_DRAW_PIECES - 1) == BT_CUDA_DRAW_PIECES - 1; // and is 0 again
        __threadfence();
    }
    return threadIdx.x < 32 && __shfl_sync(0xffffffffu, last, 0);
}

// Of a row, by one warp, in every lane.
static __device__ __forceinline__ bt_cuda_best
best_of_pieces(const bt_cuda_best *all)
{
    const bt_cuda_best *pieces = all + blockIdx.y * BT_CUDA_DRAW_PIECES;
    bt_cuda_best best = {-INFINITY, NONE};

    for (uint32_t i = threadIdx.x % 32; i < BT_CUDA_DRAW_PIECES; i += 32) {
        keep_better(&best, __ldcg(&pieces[i].score), __ldcg(&pieces[i].id));
    }
    return best_of_warp(best);
}

// Greedy rows have their token then.
static __global__ void
__launch_bounds__(THREADS) largest_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends,
                                          bt_cuda_best *out, uint32_t *arrivals, int32_t *drawn)
{
    const bt_draw *draw = &draws[blockIdx.y];
    bt_cuda_best best = {-INFINITY, NONE};

    bt_let_next();
    bt_wait_before();
    each_logit(a, [&](float x, int32_t id) {
        if (x > best.score && x <= FLT_MAX && !is_banned(draw, ends, id)) {
            best = (bt_cuda_best){x, id};
        }
    });
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

bt_err
bt_cuda_draw(bt_device *device, const bt_draw_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_cuda_step *s = &cuda->step;
    dim3 grid(BT_CUDA_DRAW_PIECES, a->rows);

    bt_cuda_go(cuda, largest_kernel, grid, dim3(THREADS), 0, *a, s->at.draws, s->at.ends, s->best_logits, s->arrivals,
               s->drawn);
    if (cuda->draws == BT_CUDA_DRAWS_SCORES) {
        bt_cuda_go(cuda, score_kernel, grid, dim3(THREADS), 0, *a, s->at.draws, s->at.ends, s->best_logits,
                   s->best_scores, s->arrivals, s->drawn);
    }
    return bt_cuda_launched(cuda, "draw");
}
