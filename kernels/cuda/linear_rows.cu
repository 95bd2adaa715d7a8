// Products of cuBLASLt to whole rows, and those at once to the INT8 of the next linear layer: gate|up to down, O and down to what follows
// the residual stream.
//
// A row of gate|up is 2 × 14,336 s32 in and as many bytes out as it has columns (8B shape): 264 MB for 2,048 tokens, 63 us of memory, and
// about 47 instructions an output, 50 us. With f32 between two kernels it was 500 MB. A row waits in shared memory, not in
// registers, so that several blocks of threads are at work on a multiprocessor.
#include "kernels/cuda/linear_products.cuh"

#define THREADS_MAX 512

// Finished, to shared memory and to y; returns the thread's largest.
template <bt_finish WHAT>
static __device__ __forceinline__ uint32_t
finish_row(const linear_call &c, const bt_products &s, uint32_t token, uint32_t cols, bool write, float *row)
{
    uint32_t amax = 0;

#pragma unroll 2
    for (uint32_t k = threadIdx.x * 4; k < cols; k += blockDim.x * 4) {
        float *y = c.y + token * c.y_stride + k, old[4] = {}, v[4];

        if (WHAT == BT_FINISH_ADD || (WHAT == BT_FINISH_ANY && c.epilogue == BT_LINEAR_ADD)) {
            bt_row_read4<true>(y, 0, 4, old);
        }
        bt_finish4<WHAT>(c, s, 0, 0, k, token, old, v);
        if (write) {
            *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
        }
        *(float4 *)(row + k) = make_float4(v[0], v[1], v[2], v[3]);
        amax = max(amax, bt_row_amax4(v));
    }
    return amax;
}

// The row in shared memory normed; returns the thread's largest.
static __device__ __forceinline__ uint32_t
norm_row(const bt_row_target &t, float *row, bt_row_shared *shared)
{
    uint32_t amax = 0;
    float factor;

    factor = bt_row_factor(t, row, shared);
#pragma unroll 2
    for (uint32_t k = threadIdx.x * 4; k < t.cols; k += blockDim.x * 4) {
        float v[4], w[4];

        bt_row_read4<true>(t.norm, k, t.cols, w);
        bt_row_read4<true>(row, k, t.cols, v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = v[i] * factor * w[i];
        }
        *(float4 *)(row + k) = make_float4(v[0], v[1], v[2], v[3]);
        amax = max(amax, bt_row_amax4(v));
    }
    return amax;
}

template <bt_finish WHAT>
static __global__ void
__launch_bounds__(THREADS_MAX, 3)
    rows_kernel(const __grid_constant__ linear_call c, const __grid_constant__ bt_products s,
                const __grid_constant__ bt_row_target to, bool write)
{
    extern __shared__ float row[];
    __shared__ bt_row_shared shared;
    uint32_t token = s.first_token + blockIdx.x, amax;
    bt_int8_scale scale;

    bt_let_next();
    bt_wait_before();
    amax = finish_row<WHAT>(c, s, token, to.cols, write, row);
    if (to.norm != NULL) {
        amax = norm_row(to, row, &shared);
    }
    scale = bt_row_scale(amax, &shared);
    if (threadIdx.x == 0) {
        to.sa[token] = scale.scale;
    }
#pragma unroll 2
    for (uint32_t k = threadIdx.x * 4; k < to.a8_stride; k += blockDim.x * 4) {
        float v[4];

        bt_row_read4<true>(row, k, to.cols, v); // what this thread put there
        *(uint32_t *)(to.a8 + token * to.a8_stride + k) = bt_row_codes4(v, scale.inverse);
    }
}

// Four pieces of four columns a thread, where threads suffice.
static uint32_t
threads_of(uint32_t cols)
{
    uint32_t threads = (cols + 511) / 512 * 32;

    return threads < 64 ? 64 : threads > THREADS_MAX ? THREADS_MAX : threads;
}

bt_err
bt_cuda_finish_rows(bt_cuda *cuda, const linear_call *c, const bt_products *s, uint32_t tokens, const bt_row_target *to,
                    bool write)
{
    uint32_t threads = threads_of(to->cols);
    size_t shared = to->cols * sizeof(float);
    cudaError_t error;

    switch (bt_finish_of(c)) {
    case BT_FINISH_ADD:
        error = bt_cuda_go(cuda, rows_kernel<BT_FINISH_ADD>, tokens, threads, shared, *c, *s, *to, write);
        break;
    case BT_FINISH_SILU:
        error = bt_cuda_go(cuda, rows_kernel<BT_FINISH_SILU>, tokens, threads, shared, *c, *s, *to, write);
        break;
    default:
        error = bt_cuda_go(cuda, rows_kernel<BT_FINISH_ANY>, tokens, threads, shared, *c, *s, *to, write);
    }
    return bt_cuda_check(cuda, error, "linear, rows");
}

// A row that is there, by one block of threads.
static __global__ void __launch_bounds__(256)
    encode_kernel(const float *y, size_t stride, uint32_t *amax, const __grid_constant__ bt_row_target to)
{
    uint32_t token = blockIdx.x;
    bt_int8_scale scale;

    bt_let_next();
    bt_wait_before();
    scale = bt_ref_int8_scale(amax[token]);
    __syncthreads();
    if (threadIdx.x == 0) {
        to.sa[token] = scale.scale, amax[token] = 0; // for the next call
    }
#pragma unroll 4
    for (uint32_t k = threadIdx.x * 4; k < to.a8_stride; k += blockDim.x * 4) {
        float v[4];

        bt_row_read4<true>(y + token * stride, k, to.cols, v);
        *(uint32_t *)(to.a8 + token * to.a8_stride + k) = bt_row_codes4(v, scale.inverse);
    }
}

bt_err
bt_cuda_encode_rows(bt_cuda *cuda, const linear_call *c, uint32_t *amax, const bt_row_target *to)
{
    return bt_cuda_check(cuda, bt_cuda_go(cuda, encode_kernel, c->tokens, 256, 0, c->y, c->y_stride, amax, *to),
                         "linear, INT8 of rows");
}
