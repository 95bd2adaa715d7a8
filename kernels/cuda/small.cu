// The operations that move little: embedding, RoPE's angles, the post-norm, and the rows that want logits.
#include "kernels/cuda/launch.cuh"

#include "kernels/cpu/ref/math.h"
#include "kernels/cuda/weight.cuh"

#define THREADS 256

static __global__ void
embed_kernel(bt_cuda_matrix w, const int32_t *ids, float *out, size_t stride, float scale)
{
    uint32_t row = (uint32_t)ids[blockIdx.x];
    float *to = out + blockIdx.x * stride;

    bt_let_next();
    bt_wait_before();
    for (uint32_t k = blockIdx.y * THREADS + threadIdx.x; k < w.cols; k += gridDim.y * THREADS) {
        to[k] = scale * bt_cuda_value(&w, row, k);
    }
}

// Blocks of threads that share a row: one waits for three loads, one behind the other, for each 256 columns, and few tokens leave room for many.
static uint32_t
embed_blocks(const bt_cuda *cuda, uint32_t tokens, uint32_t cols)
{
    uint32_t room = 8 * (uint32_t)cuda->sms / tokens, most = (cols + THREADS - 1) / THREADS;

    return room == 0 ? 1 : room < most ? room : most;
}

bt_err
bt_cuda_embed(bt_device *device, const bt_embed_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);

    bt_cuda_forget(cuda, NULL);
    return bt_cuda_check(cuda,
                         bt_cuda_go(cuda, embed_kernel, dim3(a->tokens, embed_blocks(cuda, a->tokens, a->table->cols)),
                                    dim3(THREADS), 0, bt_cuda_matrix_of(a->table), cuda->step.at.ids, a->out,
                                    a->out_stride, a->scale),
                         "embed");
}

static __global__ void
rope_kernel(const uint32_t *positions, const float *inv_freq, uint32_t pairs, float factor, float *cosines,
            float *sines)
{
    float position = (float)positions[blockIdx.x];

    bt_let_next();
    for (uint32_t i = threadIdx.x; i < pairs;
         i += blockDim.x) { // beside the embedding: nobody of this step has read them yet
        size_t at = (size_t)blockIdx.x * pairs + i;
        float sine, cosine;

        bt_ref_sincos(position * inv_freq[i], &sine, &cosine);
        sines[at] = sine * factor;
        cosines[at] = cosine * factor;
    }
    bt_wait_before();
}

bt_err
bt_cuda_rope(bt_device *device, const bt_rope_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);

    return bt_cuda_check(cuda,
                         bt_cuda_go(cuda, rope_kernel, dim3(a->tokens), dim3(64), 0, cuda->step.at.positions,
                                    a->inv_freq, a->pairs, a->factor, a->cos, a->sin),
                         "rope");
}

static __global__ void
add_norm_kernel(bt_add_norm_args a)
{
    __shared__ float lanes[16];
    float *x = a.x + blockIdx.x * a.x_stride;
    const float *y = a.y + blockIdx.x * a.y_stride;
    float factor = 1.0f;

    bt_let_next();
    bt_wait_before();
    if (a.norm != NULL) {
        if (threadIdx.x < 16) {
            lanes[threadIdx.x] = bt_cuda_lane16(y, a.cols, threadIdx.x);
        }
        __syncthreads();
        factor = bt_ref_rms_factor(bt_ref_tree16(lanes), a.cols, a.norm_eps);
    }
    for (uint32_t i = threadIdx.x; i < a.cols; i += THREADS) {
        x[i] = fmaf(a.scale, a.norm == NULL ? y[i] : y[i] * factor * a.norm[i], x[i]);
    }
}

bt_err
bt_cuda_add_norm(bt_device *device, const bt_add_norm_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);

    bt_cuda_forget(cuda, NULL);
    return bt_cuda_check(cuda, bt_cuda_go(cuda, add_norm_kernel, dim3(a->tokens), dim3(THREADS), 0, *a), "add_norm");
}

// One block takes some columns of all rows in turn, so that a row is read before another lands on it.
static __global__ void
gather_kernel(float *x, size_t stride, uint32_t cols, const uint32_t *rows, uint32_t count)
{
    uint32_t col = blockIdx.x * THREADS + threadIdx.x;

    bt_let_next();
    bt_wait_before();
    for (uint32_t i = 0; i < count && col < cols; i++) {
        if (rows[i] != i) {
            x[i * stride + col] = x[rows[i] * stride + col];
        }
    }
}

bt_err
bt_cuda_gather(bt_device *device, const bt_gather_args *a)
{
    bt_cuda *cuda = bt_cuda_of(device);

    if (a->count == cuda->tokens) { // every row wants logits: all are in place
        return BT_OK;
    }
    bt_cuda_forget(cuda, NULL);
    return bt_cuda_check(cuda,
                         bt_cuda_go(cuda, gather_kernel, dim3((a->cols + THREADS - 1) / THREADS), dim3(THREADS), 0,
                                    a->x, a->x_stride, a->cols, cuda->step.at.rows, a->count),
                         "gather");
}
