// What happens to a token's row before it meets 16-bit weights: RMSNorm if there is one, and their type (linear_half.cuh says which numbers).
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row.cuh"

typedef struct {
    const float *x;
    size_t x_stride;
    bt_row_target to; // its norm and columns
    uint16_t *out;    // [tokens, stride]
    size_t stride;
    float *scales; // [tokens], F16
} rows_args;

// 2^s takes the largest to 2^14 … 2^15; *back is 2^-s. Both are normal numbers: rows that are smaller than 2^-112 stay small. Rows with an
// infinity or a NaN keep those.
static __device__ __forceinline__ float
row_power(uint32_t amax, float *back)
{
    uint32_t exponent = min(max(amax >> 23, 15u), 254u);

    *back = bt_float_of_bits((exponent - 14) << 23);
    return bt_float_of_bits((268 - exponent) << 23);
}

// Four columns from k on. What lies beyond the last column is not read.
template <bool BRAIN>
static __device__ __forceinline__ void
put4(const rows_args &a, uint32_t token, uint32_t k, const float v[4])
{
    if (k < a.to.cols) {
        *(uint2 *)(a.out + token * a.stride + k) = BRAIN
                                                       ? make_uint2(bt_bf16_pair(v[0], v[1]), bt_bf16_pair(v[2], v[3]))
                                                       : make_uint2(bt_f16_pair(v[0], v[1]), bt_f16_pair(v[2], v[3]));
    }
}

// A row by a block of threads.
template <int PIECES, bool FOURS, bool BRAIN>
static __global__ void __launch_bounds__(1024, 1) half_row_kernel(const __grid_constant__ rows_args a)
{
    extern __shared__ float row[];
    __shared__ bt_row_shared shared;
    float v[PIECES][4], w[BT_ROW_AHEAD(PIECES)][4];
    uint32_t token = blockIdx.x;

    bt_let_next();
    bt_row_norm_ahead<PIECES, FOURS>(a.to, w);
    bt_wait_before();
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        bt_row_read4<FOURS>(a.x + token * a.x_stride, (p * blockDim.x + threadIdx.x) * 4, a.to.cols, v[p]);
    }
    if (a.to.norm != NULL) {
        bt_row_norm<PIECES, FOURS>(a.to, v, w, row, &shared);
    }
    if constexpr (!BRAIN) {
        uint32_t amax = 0;
        float power, back;

#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            amax = max(amax, bt_row_amax4(v[p]));
        }
        power = row_power(bt_row_largest(amax, &shared), &back);
        if (threadIdx.x == 0) {
            a.scales[token] = back;
        }
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[p][i] *= power;
            }
        }
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        put4<BRAIN>(a, token, (p * blockDim.x + threadIdx.x) * 4, v[p]);
    }
}

template <bool BRAIN>
static cudaError_t
launch(bt_cuda *cuda, const rows_args &a, uint32_t tokens, bool fours)
{
    bt_row_cut c = bt_row_cut_of(a.to.cols, tokens <= (uint32_t)cuda->sms ? 1 : 4);
    size_t shared = a.to.norm != NULL ? (a.to.cols + 3) / 4 * 4 * sizeof(float) : 0;

    if (c.pieces > 8) {
        return bt_cuda_go(cuda, half_row_kernel<16, false, BRAIN>, tokens, c.threads, shared, a);
    }
    if (!fours) {
        return bt_cuda_go(cuda, half_row_kernel<8, false, BRAIN>, tokens, c.threads, shared, a);
    }
    switch (c.pieces) {
    case 1:
        return bt_cuda_go(cuda, half_row_kernel<1, true, BRAIN>, tokens, c.threads, shared, a);
    case 2:
        return bt_cuda_go(cuda, half_row_kernel<2, true, BRAIN>, tokens, c.threads, shared, a);
    case 4:
        return bt_cuda_go(cuda, half_row_kernel<4, true, BRAIN>, tokens, c.threads, shared, a);
    default:
        return bt_cuda_go(cuda, half_row_kernel<8, true, BRAIN>, tokens, c.threads, shared, a);
    }
}

bt_err
bt_cuda_half_rows(bt_cuda *cuda, const bt_linear_args *l)
{
    const bt_weight *w = l->weights[0];
    bool fours = ((uintptr_t)l->x | (uintptr_t)l->norm) % 16 == 0 && l->x_stride % 4 == 0 && w->cols % 4 == 0;
    rows_args a;

    assert(w->cols <= BT_ROW_COLS_MAX);
    memset(&a, 0, sizeof a);
    a.x = l->x, a.x_stride = l->x_stride;
    a.to.norm = l->norm, a.to.norm_eps = l->norm_eps, a.to.cols = w->cols;
    a.out = cuda->halves, a.stride = bt_cuda_a8_columns(w->cols), a.scales = cuda->sa;
    return bt_cuda_check(cuda,
                         w->format.kind == BT_WEIGHT_BF16 ? launch<true>(cuda, a, l->tokens, fours)
                                                          : launch<false>(cuda, a, l->tokens, fours),
                         "rows of 16-bit activations");
}
