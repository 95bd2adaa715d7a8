// One token's activations for linear_one.cuh, made by each block for itself: x into registers, with a norm normed by a factor that the first
// helper's warp makes of x in shared memory meanwhile, then codes and scales. The numbers and the order of the norm's sum are row.cuh's.
#pragma once

#include "kernels/cuda/few_codes.cuh"
#include "kernels/cuda/row.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Four columns of x to where the norm's chains read them: sixteen chains, four steps of each side by side.
static __device__ __forceinline__ void
one_put_x(const few_call &f, uint8_t *memory, uint32_t k, float4 v)
{
    float *to = (float *)(memory + f.at.scratch) + k / 64 * 64 + k % 16 * 4 + k / 16 % 4;

    if (k < f.cols) {
        to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
    }
}

// x into registers: worker i of T has columns 4i … 4i + 3 of each 4T; with a norm normed. `then` is run once x is there.
template <int PIECES, bool NORM, typename F>
static __device__ __forceinline__ void
one_read_x(const few_call &f, uint8_t *memory, const float *factor, const float4 weights[PIECES], float4 v[PIECES],
           F then)
{
    const uint32_t stride = f.workers * 128;

#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        v[p] = four_of(f.x, threadIdx.x * 4 + p * stride, f.cols);
    }
    if (NORM) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            one_put_x(f, memory, threadIdx.x * 4 + p * stride, v[p]);
        }
        bt_bar_arrive(FEW_X_THERE, f.workers * 32 + 32);
        then();
        bt_bar_sync(FEW_FACTOR, f.workers * 32 + 32);
        float by = *factor;

#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            v[p].x = v[p].x * by * weights[p].x, v[p].y = v[p].y * by * weights[p].y;
            v[p].z = v[p].z * by * weights[p].z, v[p].w = v[p].w * by * weights[p].w;
        }
    }
}

// x as codes and scales in shared memory; a warp has whole blocks of 128 columns.
template <int PIECES, bool NORM, typename F>
static __device__ __forceinline__ void
one_encode(const few_call &f, uint8_t *memory, const float *factor, const float4 weights[PIECES], F then)
{
    const uint32_t lane = threadIdx.x % 32, stride = f.workers * 128;
    bt_int8_scale scale;
    uint32_t mine = 0;
    float4 v[PIECES];

    one_read_x<PIECES, NORM>(f, memory, factor, weights, v, then);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint32_t amax = __reduce_max_sync(0xffffffffu, largest_of(v[p]));

        mine = lane == (uint32_t)p ? amax : mine;
    }
    if (!NORM) {
        then();
    }
    scale = bt_ref_int8_scale(mine); // a lane divides for each piece
    if (lane < PIECES && threadIdx.x / 32 * 128 + lane * stride < f.cols) {
        put_scale((float *)(memory + f.at.scales), threadIdx.x / 32 + lane * f.workers, scale.scale);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const float four[4] = {v[p].x, v[p].y, v[p].z, v[p].w};
        float inverse = __shfl_sync(0xffffffffu, scale.inverse, p);
        uint32_t k = threadIdx.x * 4 + p * stride;

        if (k < f.cols) { // (code_at, of one token)
            *(uint32_t *)(memory + f.at.codes + k / 64 * 64 + k % 32 / 8 * 16 + k % 64 / 32 * 8 + k % 8) =
                bt_row_codes4(four, inverse);
        }
    }
}

// Sixteen steps of a chain of bt_ref_sumsq16, as one_put_x left them.
static __device__ __forceinline__ void
one_read16(const float4 *x, float4 v[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = x[i * 16];
    }
}

static __device__ __forceinline__ float
one_add16(const float4 v[4], float sum)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = fmaf(v[i].x, v[i].x, sum), sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum), sum = fmaf(v[i].w, v[i].w, sum);
    }
    return sum;
}

// The norm's factor, by one warp. Columns are a multiple of 512.
static __device__ __forceinline__ void
one_norm(const few_call &f, const uint8_t *memory, float *factor)
{
    const float4 *x = (const float4 *)(memory + f.at.scratch) + threadIdx.x % 16;
    float4 now[4], next[4];
    float sum = 0.0f;

    bt_bar_sync(FEW_X_THERE, f.workers * 32 + 32);
    one_read16(x, now);
#pragma unroll 1
    for (uint32_t k = 0; k < f.cols; k += 512) {
        one_read16(x + 64, next);
        sum = one_add16(now, sum);
        x += k + 512 < f.cols ? 128 : 0; // the last looks at its own once more
        one_read16(x, now);
        sum = one_add16(next, sum);
    }
#pragma unroll
    for (int step = 8; step != 0; step /= 2) { // the tree of bt_ref_tree16
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x % 32 == 0) {
        *factor = bt_ref_rms_factor(sum, f.cols, f.norm_eps);
    }
    __syncwarp();
    bt_bar_arrive(FEW_FACTOR, f.workers * 32 + 32);
}
#endif
