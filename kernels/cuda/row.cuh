// A token's row in the registers of a block of threads: RMSNorm and INT8 on its way to a linear layer.
//
// Thread i of T holds columns 4 (p · T + i) … + 3 of its pieces p; T is a multiple of 32. What a row costs is waiting: loads, the
// norm's chain of cols / 16 additions (16 lanes at once, which is the order of bt_ref_sumsq16), three barriers. So that other
// rows are at work meanwhile, a row has as few threads as registers allow when there are many, and as many as there are when not.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/weight.cuh"

typedef struct {
    const float *norm; // NULL = none
    float norm_eps;
    uint32_t cols, act_block;
    bool floats; // `normed` is wanted and nothing else
    bt_cuda_a8_order order;
    int8_t *a8;
    float *sa, *normed;
    int32_t *sums; // NULL = nobody reads them
    size_t a8_stride, sa_stride;
} bt_row_target;

// Shared memory of a block beside the row itself.
typedef struct {
    float factor;
    uint32_t amax[32];
} bt_row_shared;

// Four columns from k on, zeros beyond the last. FOURS: x lies at a multiple of 16 bytes and has whole fours.
template <bool FOURS>
static __device__ __forceinline__ void
bt_row_read4(const float *x, uint32_t k, uint32_t cols, float v[4])
{
    if constexpr (FOURS) {
        float4 four = k < cols ? *(const float4 *)(x + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = k + i < cols ? x[k + i] : 0.0f;
        }
    }
}

#define BT_ROW_CHAIN 8

// The sum of squares of a row in shared memory, by the first warp: sixteen lanes, then their tree (a + b is b + a, so the
// butterfly gives the tree's bits). Squares are never −0: the zeros that ref adds to an uneven row change nothing. The next loads are on
// their way while the chain works on those before: load by load it waited 30 cycles a step instead of 4.
static __device__ __forceinline__ float
bt_row_sumsq16(const float *row, uint32_t cols)
{
    uint32_t i = threadIdx.x % 16, whole = cols / (16 * BT_ROW_CHAIN);
    float sum = 0.0f, here[BT_ROW_CHAIN], next[BT_ROW_CHAIN];

#pragma unroll
    for (int j = 0; j < BT_ROW_CHAIN; j++) {
        here[j] = whole != 0 ? row[i + j * 16] : 0.0f;
    }
    for (uint32_t b = 1; b <= whole; b++) {
        i += b < whole ? 16 * BT_ROW_CHAIN : 0; // the last looks at its own once more
#pragma unroll
        for (int j = 0; j < BT_ROW_CHAIN; j++) {
            next[j] = row[i + j * 16];
        }
#pragma unroll
        for (int j = 0; j < BT_ROW_CHAIN; j++) {
            sum = fmaf(here[j], here[j], sum);
            here[j] = next[j];
        }
    }
    for (i = whole * 16 * BT_ROW_CHAIN + threadIdx.x % 16; i < cols; i += 16) {
        sum = fmaf(row[i], row[i], sum);
    }
    for (i = 8; i >= 1; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    }
    return sum;
}

// The norm's factor of a row that this block's threads just wrote to shared memory.
static __device__ __forceinline__ float
bt_row_factor(const bt_row_target &t, const float *row, bt_row_shared *shared)
{
    __syncthreads();
    if (threadIdx.x < 32) {
        float factor = bt_ref_rms_factor(bt_row_sumsq16(row, t.cols), t.cols, t.norm_eps);

        if (threadIdx.x == 0) {
            shared->factor = factor;
        }
    }
    __syncthreads();
    return shared->factor;
}

// The norm's weights, which are there before the row is, are read ahead where there is room for them.
#define BT_ROW_AHEAD(PIECES) ((PIECES) <= 2 ? (PIECES) : 1)

template <int PIECES, bool FOURS>
static __device__ __forceinline__ void
bt_row_norm_ahead(const bt_row_target &t, float w[BT_ROW_AHEAD(PIECES)][4])
{
    if (PIECES <= 2 && t.norm != NULL) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            bt_row_read4<FOURS>(t.norm, (p * blockDim.x + threadIdx.x) * 4, t.cols, w[p]);
        }
    }
}

// v = v · factor · norm. `row` is shared memory for `cols` floats, in whole fours.
template <int PIECES, bool FOURS>
static __device__ __forceinline__ void
bt_row_norm(const bt_row_target &t, float v[PIECES][4], const float ahead[BT_ROW_AHEAD(PIECES)][4], float *row,
            bt_row_shared *shared)
{
    float factor;

#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint32_t k = (p * blockDim.x + threadIdx.x) * 4;

        if (k < t.cols) {
            *(float4 *)(row + k) = make_float4(v[p][0], v[p][1], v[p][2], v[p][3]);
        }
    }
    factor = bt_row_factor(t, row, shared);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint32_t k = (p * blockDim.x + threadIdx.x) * 4;
        float w[4];

        if constexpr (PIECES <= 2) {
            memcpy(w, ahead[p], sizeof w);
        } else { // read again, so that the chain has the registers
            bt_row_read4<FOURS>(t.norm, k, t.cols, w);
            bt_row_read4<true>(row, k, t.cols, v[p]);
        }
#pragma unroll
        for (int i = 0; i < 4;
             i++) { // beyond the last column both are 0; a factor that makes a NaN of that makes one of the row
            v[p][i] = v[p][i] * factor * w[i];
        }
    }
}

// Bits of the largest of four, without signs.
static __device__ __forceinline__ uint32_t
bt_row_amax4(const float v[4])
{
    uint32_t amax = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        amax = max(amax, bt_bits_of_float(v[i]) & 0x7fffffffu);
    }
    return amax;
}

// From each thread's largest to the row's.
static __device__ __forceinline__ uint32_t
bt_row_largest(uint32_t amax, bt_row_shared *shared)
{
    uint32_t lane = threadIdx.x % 32;

    amax = __reduce_max_sync(0xffffffffu, amax);
    if (lane == 0) {
        shared->amax[threadIdx.x / 32] = amax;
    }
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, lane < blockDim.x / 32 ? shared->amax[lane] : 0);
}

static __device__ __forceinline__ bt_int8_scale
bt_row_scale(uint32_t amax, bt_row_shared *shared)
{
    return bt_ref_int8_scale(bt_row_largest(amax, shared));
}

// bt_ref_int8_scale. Away from the ends of the range quotients are corrected products (prompt_scale_of): a third of the instructions.
static __device__ __forceinline__ bt_int8_scale
bt_row_int8_scale(uint32_t amax)
{
    float most = __uint_as_float(amax);

    if (most > 0x1p-90f && most < 0x1p90f) {
        const float part = 1.0f / 127.0f;
        float q = most * part, scale = fmaf(fmaf(-127.0f, q, most), part, q), r = bt_reciprocal(scale);
        bt_int8_scale s = {scale, fmaf(r, fmaf(-scale, r, 1.0f), r)};

        return s;
    }
    return bt_ref_int8_scale(amax);
}

// Four codes. No number is larger than what the scale was made of, so that bt_ref_int8_code's limits never act, and a code is the low byte
// of the sum that rounds.
static __device__ __forceinline__ uint32_t
bt_row_codes4(const float v[4], float inverse)
{
    uint32_t bits[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        bits[i] = bt_bits_of_float(v[i] * inverse + BT_ROUND_MAGIC);
    }
    return inverse == 0.0f
               ? 0
               : __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

// To their place, and the sum of each 32. All lanes of a warp call it.
static __device__ __forceinline__ void
bt_row_put(const bt_row_target &t, uint32_t token, uint32_t k, uint32_t codes)
{
    if (t.sums != NULL) {
        int32_t sum = __dp4a((int)codes, 0x01010101, 0);

        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        if (threadIdx.x % 8 == 0 && k < t.a8_stride) {
            t.sums[k / 32 * t.sa_stride + token] = sum;
        }
    }
    if (k < t.a8_stride) {
        *(uint32_t *)(t.a8 + bt_cuda_a8_in(t.order, t.a8_stride, token, k)) = codes;
    }
}

// A row with one scale. PLAIN: in BT_A8_ROWS and without sums, a fourth of the instructions.
template <int PIECES, bool PLAIN>
static __device__ __forceinline__ void
bt_row_int8(const bt_row_target &t, uint32_t token, const float v[PIECES][4], bt_row_shared *shared)
{
    uint32_t amax = 0;
    bt_int8_scale s;

#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        amax = max(amax, bt_row_amax4(v[p]));
    }
    s = bt_row_scale(amax, shared);
    if (threadIdx.x == 0) {
        t.sa[token] = s.scale;
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint32_t k = (p * blockDim.x + threadIdx.x) * 4, codes = bt_row_codes4(v[p], s.inverse);

        if constexpr (PLAIN) {
            if (k < t.a8_stride) {
                *(uint32_t *)(t.a8 + token * t.a8_stride + k) = codes;
            }
        } else {
            bt_row_put(t, token, k, codes);
        }
    }
}

// Four columns of a row whose blocks have scales of their own.
static __device__ __forceinline__ void
bt_row_int8_block(const bt_row_target &t, uint32_t token, uint32_t k, const float v[4])
{
    uint32_t amax = bt_row_amax4(v);
    bt_int8_scale s;

    for (uint32_t i = 1; i < t.act_block / 4; i *= 2) {
        amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, i));
    }
    s = bt_ref_int8_scale(amax);
    if (k % t.act_block == 0 && k < t.a8_stride) {
        t.sa[k / t.act_block * t.sa_stride + token] = s.scale;
    }
    bt_row_put(t, token, k, bt_row_codes4(v, s.inverse));
}

// Threads of a row of so many columns, and the pieces they take: a power of two from `least` on (1 for few tokens, 4 for many). Rows that
// need more than 16 pieces have no cut: more than BT_ROW_COLS_MAX columns.
typedef struct {
    uint32_t threads;
    int pieces;
} bt_row_cut;

#define BT_ROW_COLS_MAX (1024u * 4 * 16)

static inline bt_row_cut
bt_row_cut_of(uint32_t cols, int least)
{
    uint32_t quads = (cols + 127) / 128 * 32;
    bt_row_cut c = {0, least};

    while (quads > (uint32_t)c.pieces * (least == 4 && c.pieces == 4 ? 512 : 1024)) {
        c.pieces *= 2;
    }
    c.threads = ((quads + (uint32_t)c.pieces - 1) / (uint32_t)c.pieces + 31) / 32 * 32;
    return c;
}
