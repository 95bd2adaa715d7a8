// What happens to a token's row before it meets the weights: RMSNorm if there is one, and INT8.
#include "kernels/cuda/prologue_blocks.cuh"

#include <assert.h>

// Four columns that need not wait for the others.
static __device__ __forceinline__ void
put_some(const bt_row_target &t, uint32_t token, uint32_t k, const float v[4])
{
    if (!t.floats) {
        bt_row_int8_block(t, token, k, v);
    } else if (k < t.a8_stride) {
        *(float4 *)(t.normed + token * t.a8_stride + k) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

// Blocks of 512 threads that a multiprocessor takes: of 2,048 threads, or of 1,536 on those of workstations.
#if defined(__CUDA_ARCH__) &&                                                                                          \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define MANY_EACH 3
#else
#define MANY_EACH 4
#endif

// A row by a block of threads. ROW: it gets one scale. MANY: one of many, in BT_A8_ROWS: what counts then is how many fit a multiprocessor and
// how many instructions they take.
template <int PIECES, bool FOURS, bool ROW, bool MANY>
static __global__ void
__launch_bounds__(MANY ? 512 : 1024, MANY ? MANY_EACH : 1) row_kernel(const __grid_constant__ bt_prologue_rows a)
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
    if constexpr (ROW) {
        bt_row_int8<PIECES, MANY>(a.to, token, v, &shared);
    } else {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            put_some(a.to, token, (p * blockDim.x + threadIdx.x) * 4, v[p]);
        }
    }
}

// Where nothing goes over a whole row: a piece of one by a block of threads.
template <bool FOURS>
static __global__ void __launch_bounds__(512) piece_kernel(const __grid_constant__ bt_prologue_rows a)
{
    uint32_t token = blockIdx.x, k = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
    float v[4];

    bt_let_next();
    bt_wait_before();
    bt_row_read4<FOURS>(a.x + token * a.x_stride, k, a.to.cols, v);
    put_some(a.to, token, k, v);
}

static bt_prologue_rows
args_of(bt_cuda *cuda, const bt_linear_args *l, bt_cuda_a8_order order)
{
    const bt_weight *w = l->weights[0];
    bt_prologue_rows a;

    a.x = l->x, a.x_stride = l->x_stride;
    a.to.norm = l->norm, a.to.norm_eps = l->norm_eps;
    a.to.cols = w->cols, a.to.act_block = w->format.act_block;
    a.to.floats = w->format.kind != BT_WEIGHT_INT;
    a.to.order = order;
    a.to.a8 = cuda->a8, a.to.sa = cuda->sa, a.to.normed = cuda->normed;
    a.to.sums = w->format.asymmetric ? cuda->sums : NULL;
    a.to.a8_stride = bt_cuda_a8_columns(w->cols), a.to.sa_stride = bt_cuda_sa_stride(cuda, l->tokens);
    return a;
}

// Everything lies at multiples of 16 bytes and has whole fours: so it is in an engine.
static bool
by_fours(const bt_linear_args *l)
{
    return ((uintptr_t)l->x | (uintptr_t)l->norm) % 16 == 0 && l->x_stride % 4 == 0 && l->weights[0]->cols % 4 == 0;
}

template <bool ROW>
static cudaError_t
launch_rows(bt_cuda *cuda, const bt_prologue_rows &a, uint32_t tokens, bool fours)
{
    bt_row_cut c = bt_row_cut_of(a.to.cols, tokens <= (uint32_t)cuda->sms ? 1 : 4);
    size_t shared = a.to.norm != NULL ? (a.to.cols + 3) / 4 * 4 * sizeof(float) : 0;

    if (c.pieces > 8) {
        return bt_cuda_go(cuda, row_kernel<16, false, ROW, false>, tokens, c.threads, shared, a);
    }
    if (!fours) {
        return bt_cuda_go(cuda, row_kernel<8, false, ROW, false>, tokens, c.threads, shared, a);
    }
    switch (c.pieces) {
    case 1:
        return bt_cuda_go(cuda, row_kernel<1, true, ROW, false>, tokens, c.threads, shared, a);
    case 2:
        return bt_cuda_go(cuda, row_kernel<2, true, ROW, false>, tokens, c.threads, shared, a);
    case 4:
        return ROW && c.threads <= 512 && a.to.order == BT_A8_ROWS
                   ? bt_cuda_go(cuda, row_kernel<4, true, ROW, ROW>, tokens, c.threads, shared, a)
                   : bt_cuda_go(cuda, row_kernel<4, true, ROW, false>, tokens, c.threads, shared, a);
    default:
        return bt_cuda_go(cuda, row_kernel<8, true, ROW, false>, tokens, c.threads, shared, a);
    }
}

bt_err
bt_cuda_prologue(bt_cuda *cuda, const bt_linear_args *l, bt_cuda_a8_order order)
{
    bt_prologue_rows a = args_of(cuda, l, order);
    bool row = a.to.act_block == BT_BLOCK_ROW && !a.to.floats, fours = by_fours(l);
    cudaError_t error;

    assert(a.to.cols <= BT_ROW_COLS_MAX);
    if (fours && bt_cuda_prologue_blocks(cuda, &a, l->tokens, &error)) {
        return bt_cuda_check(cuda, error, "prologue");
    }
    if (row || a.to.norm != NULL) {
        error = row ? launch_rows<true>(cuda, a, l->tokens, fours) : launch_rows<false>(cuda, a, l->tokens, fours);
    } else {
        uint32_t quads = (uint32_t)a.to.a8_stride / 4, threads = quads < 512 ? quads : 512;
        dim3 grid(l->tokens, (quads + threads - 1) / threads);

        error = fours ? bt_cuda_go(cuda, piece_kernel<true>, grid, threads, 0, a)
                      : bt_cuda_go(cuda, piece_kernel<false>, grid, threads, 0, a);
    }
    return bt_cuda_check(cuda, error, "prologue");
}
