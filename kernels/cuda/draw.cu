// Drawing tokens from logits, the bits of the host's sampler (kernels/cpu/ref/draw.h): the largest of a row, or of its scores.
//
//     row   [ piece 0 | piece 1 | … | piece 63 ]    a block each: its largest logit; then, with the row's largest, its largest score
//
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

static __device__ __forceinline__ void
put_best(bt_cuda_best best, bt_cuda_best *out)
{
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        out[blockIdx.y * BT_CUDA_DRAW_PIECES + blockIdx.x] = best;
    }
}

static __global__ void
__launch_bounds__(THREADS)
    largest_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends, bt_cuda_best *out)
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
    put_best(best, out);
}

// Of a row, by one warp, in every lane.
static __device__ __forceinline__ bt_cuda_best
best_of_pieces(const bt_cuda_best *pieces)
{
    bt_cuda_best best = pieces[threadIdx.x % 32];

    for (uint32_t i = 32 + threadIdx.x % 32; i < BT_CUDA_DRAW_PIECES; i += 32) {
        keep_better(&best, pieces[i].score, pieces[i].id);
    }
    return best_of_warp(best);
}

// Greedy rows have their token already.
static __global__ void
__launch_bounds__(THREADS) score_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends,
                                        const bt_cuda_best *logits, bt_cuda_best *out)
{
    const bt_draw draw = draws[blockIdx.y];
    bt_cuda_best best = {-INFINITY, NONE};
    float max;

    bt_let_next();
    bt_wait_before();
    if (draw.inverse_t == 0.0f) {
        return;
    }
    max = best_of_pieces(logits + blockIdx.y * BT_CUDA_DRAW_PIECES).score;
    each_logit(a, [&](float x, int32_t id) {
        float score = bt_ref_draw_score(x, max, draw.inverse_t, draw.key, (uint32_t)id);

        if (score > best.score && score <= FLT_MAX && !is_banned(&draw, ends, id)) {
            best = (bt_cuda_best){score, id};
        }
    });
    put_best(best, out);
}

// A warp a row.
static __global__ void
__launch_bounds__(THREADS) choose_kernel(const bt_draw *draws, uint32_t rows, const bt_cuda_best *logits,
                                         const bt_cuda_best *scores, int32_t *out)
{
    uint32_t row = (blockIdx.x * THREADS + threadIdx.x) / 32;
    bt_cuda_best best;
    int32_t id;

    bt_let_next();
    bt_wait_before();
    if (row >= rows) {
        return;
    }
    best = best_of_pieces(logits + row * BT_CUDA_DRAW_PIECES);
    id = best.id == NONE ? -1 : best.id; // no logit is a number
    if (best.id != NONE && draws[row].inverse_t != 0.0f) {
        best = best_of_pieces(scores + row * BT_CUDA_DRAW_PIECES);
        id = best.id != NONE ? best.id : 0; // as the host says where no score is a number
    }
    if (threadIdx.x % 32 == 0) {
        out[row] = id;
    }
}

bt_err
bt_cuda_draw(bt_device *device, const bt_draw_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_cuda_step *s = &cuda->step;
    dim3 grid(BT_CUDA_DRAW_PIECES, a->rows);

    bt_cuda_go(cuda, largest_kernel, grid, dim3(THREADS), 0, *a, s->draws, s->ends, s->best_logits);
    bt_cuda_go(cuda, score_kernel, grid, dim3(THREADS), 0, *a, s->draws, s->ends, s->best_logits, s->best_scores);
    bt_cuda_go(cuda, choose_kernel, dim3((a->rows * 32 + THREADS - 1) / THREADS), dim3(THREADS), 0, s->draws, a->rows,
               s->best_logits, s->best_scores, s->drawn);
    cudaMemcpyAsync(s->host_drawn, s->drawn, a->rows * 4, cudaMemcpyDeviceToHost, cuda->stream);
    return bt_cuda_launched(cuda, "draw");
}
