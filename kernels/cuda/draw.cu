// Drawing tokens from logits, the bits of the host's sampler (kernels/cpu/ref/draw.h): the largest of a row, or of its scores.
//
//     row   [ piece 0 | piece 1 | … | piece 15 ]    a block each: its largest logit; then, with the row's largest, its largest score
//
// A row of 128k logits is half a MiB: read by one block it took as long as a layer. The largest of pieces is the largest of all, ties to the
// lower id, so that the cut changes nothing.
#include "kernels/cuda/cuda.cuh"

#include "kernels/cpu/ref/draw.h"

#include <float.h>

#define THREADS 256
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

// The block's best, in thread 0.
static __device__ bt_cuda_best
best_of_block(bt_cuda_best mine)
{
    __shared__ bt_cuda_best warps[THREADS / 32];

    for (int step = 16; step != 0; step /= 2) {
        float score = __shfl_down_sync(0xffffffffu, mine.score, step);
        int32_t id = __shfl_down_sync(0xffffffffu, mine.id, step);

        keep_better(&mine, score, id);
    }
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

static __global__ void
largest_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends, bt_cuda_best *out)
{
    const float *row = a.logits + blockIdx.y * a.stride;
    const bt_draw *draw = &draws[blockIdx.y];
    bt_cuda_best best = {-INFINITY, NONE};

    for (uint32_t i = piece_begin(a.vocab, blockIdx.x) + threadIdx.x; i < piece_begin(a.vocab, blockIdx.x + 1);
         i += THREADS) {
        float x = row[i];

        if (x > best.score && x <= FLT_MAX && !is_banned(draw, ends, (int32_t)i)) {
            best = (bt_cuda_best){x, (int32_t)i};
        }
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        out[blockIdx.y * BT_CUDA_DRAW_PIECES + blockIdx.x] = best;
    }
}

static __device__ __forceinline__ bt_cuda_best
best_of_pieces(const bt_cuda_best *pieces)
{
    bt_cuda_best best = pieces[0];

    for (uint32_t i = 1; i < BT_CUDA_DRAW_PIECES; i++) {
        keep_better(&best, pieces[i].score, pieces[i].id);
    }
    return best;
}

// Greedy rows have their token already.
static __global__ void
score_kernel(bt_draw_args a, const bt_draw *draws, const bt_cuda_ends *ends, const bt_cuda_best *logits,
             bt_cuda_best *out)
{
    const float *row = a.logits + blockIdx.y * a.stride;
    const bt_draw draw = draws[blockIdx.y];
    float max = best_of_pieces(logits + blockIdx.y * BT_CUDA_DRAW_PIECES).score;
    bt_cuda_best best = {-INFINITY, NONE};

    if (draw.inverse_t == 0.0f) {
        return;
    }
    for (uint32_t i = piece_begin(a.vocab, blockIdx.x) + threadIdx.x; i < piece_begin(a.vocab, blockIdx.x + 1);
         i += THREADS) {
        float score = bt_ref_draw_score(row[i], max, draw.inverse_t, draw.key, i);

        if (score > best.score && score <= FLT_MAX && !is_banned(&draw, ends, (int32_t)i)) {
            best = (bt_cuda_best){score, (int32_t)i};
        }
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        out[blockIdx.y * BT_CUDA_DRAW_PIECES + blockIdx.x] = best;
    }
}

static __global__ void
choose_kernel(const bt_draw *draws, uint32_t rows, const bt_cuda_best *logits, const bt_cuda_best *scores, int32_t *out)
{
    uint32_t row = blockIdx.x * THREADS + threadIdx.x;
    bt_cuda_best best;

    if (row >= rows) {
        return;
    }
    best = best_of_pieces(logits + row * BT_CUDA_DRAW_PIECES);
    if (best.id == NONE) { // no logit is a number
        out[row] = -1;
        return;
    }
    if (draws[row].inverse_t != 0.0f) {
        best = best_of_pieces(scores + row * BT_CUDA_DRAW_PIECES);
    }
    out[row] = best.id != NONE ? best.id : 0; // as the host says where no score is a number
}

bt_err
bt_cuda_draw(bt_device *device, const bt_draw_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);
    bt_cuda_step *s = &cuda->step;
    dim3 grid(BT_CUDA_DRAW_PIECES, a->rows);

    largest_kernel<<<grid, THREADS, 0, cuda->stream>>>(*a, s->draws, s->ends, s->best_logits);
    score_kernel<<<grid, THREADS, 0, cuda->stream>>>(*a, s->draws, s->ends, s->best_logits, s->best_scores);
    choose_kernel<<<(a->rows + THREADS - 1) / THREADS, THREADS, 0, cuda->stream>>>(s->draws, a->rows, s->best_logits,
                                                                                   s->best_scores, s->drawn);
    cudaMemcpyAsync(s->host_drawn, s->drawn, a->rows * 4, cudaMemcpyDeviceToHost, cuda->stream);
    return bt_cuda_launched(cuda, "draw");
}
