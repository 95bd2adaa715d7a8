// Few tokens (linear_few.cuh): the INT8 codes of the activations, made by each block for itself or fetched.
#pragma once

#include "kernels/cuda/few_items.cuh"
#include "kernels/cuda/ptx_multicast.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Codes lie as fragments of `width` tokens: [64 columns][token][column / 8 % 4][16 bytes].
static __device__ __forceinline__ uint32_t
code_at(const few_call &f, uint32_t token, uint32_t k)
{
    return (token / 8 * (uint32_t)f.c.a8_stride * 8) + k / 64 * f.width * 64 + (token % 8 * 4 + k % 32 / 8) * 16 +
           k % 64 / 32 * 8 + k % 8;
}

// (float)code, without the unit that converts, which takes eight cycles a warp.
static __device__ __forceinline__ float
float_of_code(int code)
{
    return __int_as_float(BT_ROUND_MAGIC_BITS + code) - BT_ROUND_MAGIC;
}

// Numbered barriers.
#define FEW_WORKERS_MEET 1 // workers alone
#define FEW_FACTOR 2       // (one_codes.cuh) the norm's factor is there, of workers and the first helper
#define FEW_CODES_THERE 3  // helpers behind workers
#define FEW_X_THERE 4      // (one_codes.cuh) x is in shared memory, of workers and the first helper

static __device__ __forceinline__ void
workers_sync(const few_call &f)
{
    bt_bar_sync(FEW_WORKERS_MEET, f.workers * 32);
}

static __device__ __forceinline__ void
workers_are_ready(const few_call &f)
{
    bt_bar_arrive(FEW_CODES_THERE, (f.workers + f.helpers) * 32);
}

static __device__ __forceinline__ void
wait_for_workers(const few_call &f)
{
    bt_bar_sync(FEW_CODES_THERE, (f.workers + f.helpers) * 32);
}

// Helpers alone, at an mbarrier that counts their threads: what each of them has written is seen by all. By a numbered barrier it would be the
// same, but of who comes to such a one while others wait at __syncthreads() racecheck thinks that it was there (tests/gpu/README.md).
static __device__ __forceinline__ void
helpers_sync(uint32_t barrier, uint32_t parity)
{
    bt_barrier_arrive(barrier);
    bt_barrier_wait(barrier, parity);
    __syncwarp(); // and lanes go on together
}

// Four numbers of a row of x, which has a multiple of four; past the first cache, as they are also read before they are there.
static __device__ __forceinline__ float4
four_of(const float *x, uint32_t k, uint32_t cols)
{
    return k < cols ? __ldcg((const float4 *)(x + k)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// One of the sixteen lanes of bt_ref_sumsq16, over a multiple of 256 numbers (zeros change nothing); what comes next is on its way.
static __device__ __forceinline__ float
lane16(const float *x, uint32_t count)
{
    float sum = 0.0f, now[16], next[16];

#pragma unroll
    for (int i = 0; i < 16; i++) {
        now[i] = x[i * 16];
    }
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += 512) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            next[i] = first + 256 < count ? x[first + 256 + i * 16] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            sum = fmaf(now[i], now[i], sum);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            now[i] = first + 512 < count ? x[first + 512 + i * 16] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            sum = fmaf(next[i], next[i], sum);
        }
    }
    return sum;
}

// x into shared memory, zeros behind it; RMSNorm's factor.
static __device__ __forceinline__ float
norm_factor(const few_call &f, float *row, float *factor)
{
#pragma unroll 4
    for (uint32_t k = threadIdx.x * 4; k < f.row_floats; k += f.workers * 128) {
        *(float4 *)(row + k) = four_of(f.x, k, f.cols);
    }
    workers_sync(f);
    if (threadIdx.x < 32) {
        float sum = lane16(row + threadIdx.x % 16, f.row_floats);

#pragma unroll
        for (int step = 8; step != 0; step /= 2) { // the tree of bt_ref_tree16
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        if (threadIdx.x == 0) {
            *factor = bt_ref_rms_factor(sum, f.cols, f.norm_eps);
        }
    }
    workers_sync(f);
    return *factor;
}

static __device__ __forceinline__ uint32_t
largest_of(float4 v)
{
    uint32_t a = __float_as_uint(v.x) & 0x7fffffffu, b = __float_as_uint(v.y) & 0x7fffffffu,
             c = __float_as_uint(v.z) & 0x7fffffffu, d = __float_as_uint(v.w) & 0x7fffffffu;

    return max(max(a, b), max(c, d));
}

// A row that is being encoded: x, or with a norm what lies in shared memory, beside the norm's weights.
typedef struct {
    const float *x, *norm;
    float factor;
} few_row;

static __device__ __forceinline__ float4
read_four(const few_call &f, const few_row &row, uint32_t k)
{
    if (row.norm == NULL) {
        return four_of(row.x, k, f.cols);
    }
    return k < f.cols ? *(const float4 *)(row.x + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Four numbers that were read, as they meet the weights.
static __device__ __forceinline__ float4
value_of(const few_call &f, const few_row &row, float4 v, uint32_t k)
{
    float4 w;

    if (row.norm == NULL || k >= f.cols) {
        return v;
    }
    w = *(const float4 *)(row.norm + k);
    return make_float4(v.x * row.factor * w.x, v.y * row.factor * w.y, v.z * row.factor * w.z, v.w * row.factor * w.w);
}

// bt_ref_int8_code in the low byte. Where a scale is NaN the code does not matter, which is all that the reference looks at besides.
static __device__ __forceinline__ uint32_t
code_of(float v, float inverse)
{
    return __float_as_uint(fmaxf(fminf(v * inverse, 127.0f), -127.0f) + BT_ROUND_MAGIC);
}

static __device__ __forceinline__ void
put_four(const few_call &f, int8_t *codes, uint32_t k, float4 v, float inverse)
{
    uint32_t low = __byte_perm(code_of(v.x, inverse), code_of(v.y, inverse), 0x0040),
             high = __byte_perm(code_of(v.z, inverse), code_of(v.w, inverse), 0x0040);

    *(uint32_t *)(codes + code_at(f, 0, k)) = __byte_perm(low, high, 0x5410);
}

// Lanes read the scales of two tokens.
static __device__ __forceinline__ void
put_scale(float *scales, uint32_t block, float scale)
{
    scales[block * 2] = scales[block * 2 + 1] = scale;
}

// The scale of all of a row.
static __device__ __forceinline__ bt_int8_scale
scale_of_row(const few_call &f, const few_row &row, uint32_t *largest)
{
    uint32_t amax = 0;

#pragma unroll 2
    for (uint32_t k = threadIdx.x * 4; k < f.c.a8_stride; k += f.workers * 128) {
        amax = max(amax, largest_of(value_of(f, row, read_four(f, row, k), k)));
    }
    amax = __reduce_max_sync(0xffffffffu, amax);
    if (threadIdx.x % 32 == 0) {
        largest[threadIdx.x / 32] = amax;
    }
    workers_sync(f);
    for (uint32_t i = 0; i < f.workers; i++) {
        amax = max(amax, largest[i]);
    }
    return bt_ref_int8_scale(amax);
}

// The reciprocals of the scales of four blocks of 128 columns, one a warp at a time, or of what smaller blocks a lane is in.
template <int ACT>
static __device__ __forceinline__ void
scales_of_blocks(const few_call &f, const float4 v[4], uint32_t k, float *scales, float inverse[4])
{
    uint32_t lane = threadIdx.x % 32;
    [[maybe_unused]] uint32_t mine = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t amax = largest_of(v[i]);
        [[maybe_unused]] uint32_t at = k + lane * 4 + i * f.workers * 128;

        if constexpr (ACT == 128) {
            amax = __reduce_max_sync(0xffffffffu, amax);
            mine = lane == (uint32_t)i ? amax : mine;
        } else {
            bt_int8_scale s;

            for (uint32_t step = 1; step < ACT / 4; step *= 2) {
                amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, step));
            }
            s = bt_ref_int8_scale(amax);
            inverse[i] = s.inverse;
            if (at % ACT == 0 && at < f.c.a8_stride) {
                put_scale(scales, at / ACT, s.scale);
            }
        }
    }
    if constexpr (ACT == 128) { // a lane divides for each of the four
        bt_int8_scale s = bt_ref_int8_scale(mine);

        if (lane < 4 && k + lane * f.workers * 128 < f.c.a8_stride) {
            put_scale(scales, k / 128 + lane * f.workers, s.scale);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            inverse[i] = __shfl_sync(0xffffffffu, s.inverse, i);
        }
    }
}

// What the prologue's kernel does, for one token and by this block for itself; workers only. A warp takes 128 columns of every 128 a worker,
// four times that at once, and reads ahead. ACT: columns that have a scale, 0: all.
template <int ACT>
static __device__ __forceinline__ void
encode(const few_call &f, uint8_t *memory)
{
    __shared__ float factor;
    __shared__ uint32_t largest[FEW_WORKERS];
    const uint32_t stride = f.workers * 128, lane = threadIdx.x % 32;
    float *copy = (float *)(memory + f.at.scratch), *scales = (float *)(memory + f.at.scales);
    int8_t *codes = (int8_t *)(memory + f.at.codes);
    few_row row = {f.x, NULL, 1.0f};
    bt_int8_scale whole = {};
    float4 ahead[4];

    if (f.norm != NULL) {
        row.factor = norm_factor(f, copy, &factor);
        row.x = copy, row.norm = f.at.norm != 0 ? (const float *)(memory + f.at.norm) : f.norm;
    }
    if (ACT == 0) {
        whole = scale_of_row(f, row, largest);
        if (threadIdx.x == 0) {
            put_scale(scales, 0, whole.scale);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        ahead[i] = read_four(f, row, threadIdx.x * 4 + i * stride);
    }
#pragma unroll 1
    for (uint32_t k = threadIdx.x / 32 * 128; k < f.c.a8_stride; k += 4 * stride) {
        float4 v[4];
        float inverse[4] = {whole.inverse, whole.inverse, whole.inverse, whole.inverse};

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = value_of(f, row, ahead[i], k + i * stride + lane * 4);
            ahead[i] = read_four(f, row, k + (i + 4) * stride + lane * 4);
        }
        if (ACT != 0) {
            scales_of_blocks<ACT ? ACT : 4>(f, v, k, scales, inverse);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (k + i * stride < f.c.a8_stride) {
                put_four(f, codes, k + i * stride + lane * 4, v[i], inverse[i]);
            }
        }
    }
}

// The codes of the prologue's kernel and their scales, which lie as they are wanted: bulk copies, a barrier a segment. One warp, of which
// a lane asks: lanes that each asked for one were served one after the other, 24 copies in 3.5 µs.
static __device__ __forceinline__ void
fetch_codes(const few_call &f, uint8_t *memory, uint32_t barriers)
{
    uint32_t tiles = f.sa_width / 8;

#pragma unroll 1
    for (uint32_t i = 0; i < f.segments; i++) {
        uint32_t s = f.join == 0 ? i : i < f.runs ? i * 2 : (i - f.runs) * 2 + 1; // first what runs begin with
        uint32_t k = s * SEGMENT, columns = min((uint32_t)f.c.a8_stride - k, SEGMENT), bytes = columns * 8;
        uint32_t row = k >> f.c.act_shift, rows = f.c.act_shift < 31 ? columns >> f.c.act_shift : s == 0;
        uint32_t sa_bytes = rows * f.sa_width * 4, barrier = barriers + s * 8;

        if (bt_elect()) {
            bt_barrier_expect(barrier, bytes * tiles + sa_bytes);
            for (uint32_t t = 0; t < tiles; t++) {
                size_t at = (t * f.c.a8_stride + k) * 8;

                bt_bulk_copy(bt_shared_at(memory + f.at.codes + at), f.c.a8 + at, bytes, barrier);
            }
            if (rows != 0) {
                bt_bulk_copy(bt_shared_at(memory + f.at.scales + row * f.sa_width * 4), f.c.sa + row * f.sa_width,
                             sa_bytes, barrier);
            }
        }
    }
}
#endif
