// What happens to a token's row before it meets the weights: RMSNorm if there is one, and INT8.
#include "kernels/cuda/weight.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define PIECE (THREADS * 4) // columns that a block of threads takes at a time

typedef struct {
    const float *x, *norm;
    size_t x_stride;
    float norm_eps;
    uint32_t cols, padded, act_block; // padded: what ref pads to
    bool floats;
    bt_cuda_a8_order order;
    int8_t *a8;
    float *sa, *normed;
    int32_t *sums;
    size_t a8_stride, sa_stride;
} prologue_args;

static __device__ __forceinline__ float
value_at(const prologue_args &a, const float *x, uint32_t k, float factor)
{
    float v = k < a.cols ? x[k] : 0.0f;

    return a.norm != NULL && k < a.cols ? v * factor * a.norm[k] : v;
}

// One of the sixteen lanes of bt_ref_sumsq16, for whole sixteens: loads run ahead of the chain of sums.
static __device__ __forceinline__ float
lane16_ahead(const float *x, uint32_t count, uint32_t lane)
{
    float sum = 0.0f;

#pragma unroll 16
    for (uint32_t i = lane; i < count; i += 16) {
        float v = x[i];

        sum = fmaf(v, v, sum);
    }
    return sum;
}

static __device__ float
norm_factor(const prologue_args &a, const float *x, float *row, float *lanes)
{
    for (uint32_t k = threadIdx.x; k < a.cols; k += THREADS) {
        row[k] = x[k];
    }
    __syncthreads();
    if (threadIdx.x < 16) {
        lanes[threadIdx.x] =
            a.cols % 16 == 0 ? lane16_ahead(row, a.cols, threadIdx.x) : bt_cuda_lane16(row, a.cols, threadIdx.x);
    }
    __syncthreads();
    return bt_ref_rms_factor(bt_ref_tree16(lanes), a.cols, a.norm_eps);
}

// The largest of v among the `lanes` (a power of two) neighbours that a lane belongs to.
static __device__ __forceinline__ uint32_t
max_among(uint32_t v, uint32_t lanes)
{
    for (uint32_t i = 1; i < lanes; i *= 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, v, i);

        v = other > v ? other : v;
    }
    return v;
}

static __device__ __forceinline__ uint32_t
amax_of(const float v[4])
{
    uint32_t amax = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t bits = bt_bits_of_float(v[i]) & 0x7fffffffu;

        amax = bits > amax ? bits : amax;
    }
    return amax;
}

// Four codes to their place, and the sum of each 32.
static __device__ __forceinline__ void
put_codes(const prologue_args &a, const float v[4], float inverse, uint32_t k)
{
    uint32_t token = blockIdx.x, packed = 0;
    int32_t sum = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int8_t code = bt_ref_int8_code(v[i], inverse);

        packed |= (uint32_t)(uint8_t)code << 8 * i;
        sum += code;
    }
    *(uint32_t *)(a.a8 + bt_cuda_a8_in(a.order, a.a8_stride, token, k)) = packed;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    if (threadIdx.x % 8 == 0) {
        a.sums[k / 32 * a.sa_stride + token] = sum;
    }
}

// From each thread's largest to the row's scale.
static __device__ __forceinline__ bt_int8_scale
scale_of_row(uint32_t amax, uint32_t *warp_amax)
{
    amax = __reduce_max_sync(0xffffffffu, amax);
    if (threadIdx.x % 32 == 0) {
        warp_amax[threadIdx.x / 32] = amax;
    }
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; i++) {
        amax = warp_amax[i] > amax ? warp_amax[i] : amax;
    }
    return bt_ref_int8_scale(amax);
}

// The scale of the whole row.
static __device__ bt_int8_scale
row_scale(const prologue_args &a, const float *x, float factor, uint32_t *warp_amax)
{
    uint32_t amax = 0;

    for (uint32_t k = threadIdx.x * 4; k < a.a8_stride; k += PIECE) {
        float v[4];
        uint32_t here;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = value_at(a, x, k + i, factor);
        }
        here = amax_of(v);
        amax = here > amax ? here : amax;
    }
    return scale_of_row(amax, warp_amax);
}

#define KEPT 8 // pieces that a row may have and be kept in registers

// A row with one scale, read once.
static __device__ __forceinline__ void
encode_row(const prologue_args &a, const float *x, float factor, uint32_t *warp_amax)
{
    float v[KEPT][4];
    uint32_t amax = 0;
    bt_int8_scale s;

#pragma unroll
    for (int p = 0; p < KEPT; p++) {
        uint32_t k = p * PIECE + threadIdx.x * 4, here;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[p][i] = value_at(a, x, k + i, factor);
        }
        here = amax_of(v[p]);
        amax = here > amax ? here : amax;
    }
    s = scale_of_row(amax, warp_amax);
    if (threadIdx.x == 0) {
        a.sa[blockIdx.x] = s.scale;
    }
#pragma unroll
    for (int p = 0; p < KEPT; p++) {
        uint32_t k = p * PIECE + threadIdx.x * 4;

        if (k < a.a8_stride) {
            put_codes(a, v[p], s.inverse, k);
        }
    }
}

// A row by a block of threads, or, where no sum goes over it, a piece of a row.
static __global__ void
__launch_bounds__(THREADS) prologue_kernel(const __grid_constant__ prologue_args a)
{
    extern __shared__ float row[];
    __shared__ float lanes[16];
    __shared__ uint32_t warp_amax[WARPS];
    uint32_t token = blockIdx.x;
    const float *x = a.x + token * a.x_stride;
    float factor = a.norm != NULL ? norm_factor(a, x, row, lanes) : 1.0f;
    bt_int8_scale whole = {};

    x = a.norm != NULL ? row : x;
    if (a.floats) {
        for (uint32_t k = blockIdx.y * THREADS + threadIdx.x; k < a.a8_stride; k += THREADS * gridDim.y) {
            a.normed[token * a.a8_stride + k] = value_at(a, x, k, factor);
        }
        return;
    }
    if (a.act_block == BT_BLOCK_ROW && a.a8_stride <= KEPT * PIECE) {
        encode_row(a, x, factor, warp_amax);
        return;
    }
    if (a.act_block == BT_BLOCK_ROW) {
        whole = row_scale(a, x, factor, warp_amax);
        if (threadIdx.x == 0) {
            a.sa[token] = whole.scale;
        }
    }
    // a8_stride is a multiple of 128: a warp is inside or outside as a whole.
    for (uint32_t k = blockIdx.y * PIECE + threadIdx.x * 4; k < a.a8_stride; k += PIECE * gridDim.y) {
        bt_int8_scale s = whole;
        float v[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = value_at(a, x, k + i, factor);
        }
        if (a.act_block != BT_BLOCK_ROW) {
            s = bt_ref_int8_scale(max_among(amax_of(v), a.act_block / 4));
            if (k % a.act_block == 0) {
                a.sa[k / a.act_block * a.sa_stride + token] = s.scale;
            }
        }
        put_codes(a, v, s.inverse, k);
    }
}

static prologue_args
args_of(bt_cuda *cuda, const bt_linear_args *l, bt_cuda_a8_order order)
{
    const bt_weight *w = l->weights[0];
    prologue_args a;

    a.x = l->x, a.norm = l->norm, a.x_stride = l->x_stride, a.norm_eps = l->norm_eps;
    a.cols = w->cols, a.padded = bt_cols_padded(w->cols), a.act_block = w->format.act_block;
    a.order = order;
    a.floats = w->format.kind != BT_WEIGHT_INT;
    a.a8 = cuda->a8, a.sa = cuda->sa, a.normed = cuda->normed, a.sums = cuda->sums;
    // The stride of this call, not of the widest: what lies behind a row's end is never older than the call.
    a.a8_stride = (w->cols + 127) / 128 * 128, a.sa_stride = cuda->sa_stride;
    return a;
}

bt_err
bt_cuda_prologue(bt_cuda *cuda, const bt_linear_args *l, bt_cuda_a8_order order)
{
    prologue_args a = args_of(cuda, l, order);
    size_t shared = a.norm != NULL ? a.cols * sizeof(float) : 0;
    bool whole = a.norm != NULL || (a.act_block == BT_BLOCK_ROW && !a.floats);
    cudaError_t error = cudaSuccess;

    if (shared > 48 * 1024) {
        error = cudaFuncSetAttribute(prologue_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    }
    prologue_kernel<<<dim3(l->tokens, whole ? 1 : (unsigned)((a.a8_stride + PIECE - 1) / PIECE)), THREADS, shared,
                      cuda->stream>>>(a);
    return bt_cuda_check(cuda, error != cudaSuccess ? error : cudaGetLastError(), "prologue");
}
