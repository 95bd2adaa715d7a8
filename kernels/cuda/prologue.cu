// What happens to a token's row before it meets the weights: RMSNorm if there is one, and INT8.
#include "kernels/cuda/weight.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

typedef struct {
    const float *x, *norm;
    size_t x_stride;
    float norm_eps;
    uint32_t cols, padded, act_block; // padded: what ref pads to
    bool floats;
    int8_t *a8;
    float *sa, *normed;
    int32_t *sums;
    size_t a8_stride, sa_stride;
} prologue_args;

static __device__ __forceinline__ uint32_t
warp_max(uint32_t v)
{
    return __reduce_max_sync(0xffffffffu, v);
}

// The row, normed, in shared memory: zeros from `cols` to the stride's end.
static __device__ void
norm_row(const prologue_args &a, float *row, float *lanes)
{
    const float *x = a.x + blockIdx.x * a.x_stride;
    float factor = 1.0f;

    for (uint32_t k = threadIdx.x; k < a.a8_stride; k += THREADS) {
        row[k] = k < a.cols ? x[k] : 0.0f;
    }
    __syncthreads();
    if (a.norm == NULL) {
        return;
    }
    if (threadIdx.x < 16) {
        lanes[threadIdx.x] = bt_cuda_lane16(row, a.cols, threadIdx.x);
    }
    __syncthreads();
    factor = bt_ref_rms_factor(bt_ref_tree16(lanes), a.cols, a.norm_eps);
    for (uint32_t k = threadIdx.x; k < a.cols; k += THREADS) {
        row[k] = row[k] * factor * a.norm[k];
    }
    __syncthreads();
}

// Codes of every `step`-th 32 columns from `first` on, and their sums.
static __device__ void
encode(const prologue_args &a, const float *row, int8_t *a8, uint32_t first, uint32_t step, uint32_t end, float inverse)
{
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t k = first; k < end; k += step) {
        int8_t code = bt_ref_int8_code(row[k + lane], inverse);
        int32_t sum = __reduce_add_sync(0xffffffffu, (int32_t)code);

        a8[k + lane] = code;
        if (lane == 0) {
            a.sums[k / 32 * a.sa_stride + blockIdx.x] = sum;
        }
    }
}

static __global__ void
prologue_kernel(prologue_args a)
{
    extern __shared__ float row[];
    __shared__ float lanes[16];
    __shared__ uint32_t warp_amax[WARPS];
    uint32_t token = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, amax = 0;
    uint32_t width = a.act_block == BT_BLOCK_ROW ? a.padded : a.act_block;
    int8_t *a8 = a.a8 + token * a.a8_stride;
    bt_int8_scale whole;

    norm_row(a, row, lanes);
    if (a.floats) {
        for (uint32_t k = threadIdx.x; k < a.a8_stride; k += THREADS) {
            a.normed[token * a.a8_stride + k] = row[k];
        }
        return;
    }
    if (a.act_block == BT_BLOCK_ROW) {
        for (uint32_t k = threadIdx.x; k < a.padded; k += THREADS) {
            uint32_t bits = bt_bits_of_float(row[k]) & 0x7fffffffu;

            amax = bits > amax ? bits : amax;
        }
        amax = warp_max(amax);
        if (lane == 0) {
            warp_amax[warp] = amax;
        }
        __syncthreads();
        for (uint32_t i = 0; i < WARPS; i++) {
            amax = warp_amax[i] > amax ? warp_amax[i] : amax;
        }
        whole = bt_ref_int8_scale(amax);
        if (threadIdx.x == 0) {
            a.sa[token] = whole.scale;
        }
    }
    if (a.act_block == BT_BLOCK_ROW) {
        encode(a, row, a8, warp * 32, WARPS * 32, (uint32_t)a.a8_stride, whole.inverse);
        return;
    }
    for (uint32_t first = warp * width; first < a.a8_stride; first += WARPS * width) { // a warp takes a block
        uint32_t end = first + width < a.a8_stride ? first + width : (uint32_t)a.a8_stride;
        bt_int8_scale s;

        amax = 0;
        for (uint32_t k = first + lane; k < end; k += 32) {
            uint32_t bits = bt_bits_of_float(row[k]) & 0x7fffffffu;

            amax = bits > amax ? bits : amax;
        }
        s = bt_ref_int8_scale(warp_max(amax));
        if (lane == 0) {
            a.sa[first / width * a.sa_stride + token] = s.scale;
        }
        encode(a, row, a8, first, 32, end, s.inverse);
    }
}

static prologue_args
args_of(bt_cuda *cuda, const bt_linear_args *l)
{
    const bt_weight *w = l->weights[0];
    prologue_args a;

    a.x = l->x, a.norm = l->norm, a.x_stride = l->x_stride, a.norm_eps = l->norm_eps;
    a.cols = w->cols, a.padded = bt_cols_padded(w->cols), a.act_block = w->format.act_block;
    a.floats = w->format.kind != BT_WEIGHT_INT;
    a.a8 = cuda->a8, a.sa = cuda->sa, a.normed = cuda->normed, a.sums = cuda->sums;
    // The stride of this call, not of the widest: what lies behind a row's end is never older than the call.
    a.a8_stride = (w->cols + 127) / 128 * 128, a.sa_stride = cuda->sa_stride;
    return a;
}

bt_err
bt_cuda_prologue(bt_cuda *cuda, const bt_linear_args *l)
{
    prologue_args a = args_of(cuda, l);
    size_t shared = a.a8_stride * sizeof(float);

    if (shared > 48 * 1024) {
        cudaError_t error =
            cudaFuncSetAttribute(prologue_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);

        if (error != cudaSuccess) {
            return bt_cuda_check(cuda, error, "a row this wide does not fit in shared memory");
        }
    }
    prologue_kernel<<<l->tokens, THREADS, shared, cuda->stream>>>(a);
    return bt_cuda_launched(cuda, "prologue");
}
