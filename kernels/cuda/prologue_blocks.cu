// INT8 of activations in blocks of 128 columns, and RMSNorm before it if there is one: what nearly all linear calls of 17 tokens and more begin with.
//
// Eight threads have a block, each four columns of every 32 of it: so a warp makes the scales of four blocks at once, and what a thread asks
// of memory it asks for at once. A row with a norm is a block of threads, since its factor goes over all of it.
#include "kernels/cuda/prologue_blocks.cuh"

#include "kernels/cuda/ptx.cuh"

#define TOKENS_MIN 17u    // of fewer prologue.cu is as fast, and faster without a norm
#define COLUMNS_MAX 8192u // of a row with a norm: 512 threads
#define RUN 8             // numbers of a chain that are loaded together
#define RUNS 4            // of which some are on their way while others are added
#define AHEAD 2

// The sum of squares of a row in shared memory, in the order of bt_ref_sumsq16: lane i has columns i, i + 16, …, twice. A step is four cycles, and a
// load thirty: so sixteen are on their way. `cols`: a multiple of 512; RUNS · RUN · 16 numbers more may be looked at.
static __device__ __forceinline__ float
sum_of_squares(const float *row, uint32_t cols)
{
    float v[RUNS][RUN], sum = 0.0f;

    row += threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < AHEAD * RUN; i++) {
        v[i / RUN][i % RUN] = bt_shared_load(row + i * 16);
    }
#pragma unroll 1
    for (uint32_t k = 0; k < cols; k += RUNS * RUN * 16, row += RUNS * RUN * 16) {
#pragma unroll
        for (int i = 0; i < RUNS * RUN; i++) {
            int next = i + AHEAD * RUN;

            v[next / RUN % RUNS][i % RUN] = bt_shared_load(row + next * 16);
            sum = fmaf(v[i / RUN][i % RUN], v[i / RUN][i % RUN], sum);
        }
    }
#pragma unroll
    for (int d = 8; d >= 1; d /= 2) { // a + b is b + a, so the butterfly gives the tree's bits
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    }
    return sum;
}

// Sixteen columns of one block, by each of eight neighbouring threads: codes and scale to their places.
static __device__ __forceinline__ void
put_block(const bt_row_target &t, uint32_t token, uint32_t first, const float v[4][4], bool there)
{
    uint32_t amax = 0;
    bt_int8_scale s;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        amax = max(amax, bt_row_amax4(v[i]));
    }
#pragma unroll
    for (int d = 1; d < 8; d *= 2) {
        amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, d));
    }
    s = bt_row_int8_scale(amax);
    if (!there) {
        return;
    }
    if (threadIdx.x % 8 == 0) {
        t.sa[first / 128 * t.sa_stride + token] = s.scale;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *(uint32_t *)(t.a8 + bt_cuda_a8_in(t.order, t.a8_stride, token, first + i * 32)) =
            bt_row_codes4(v[i], s.inverse);
    }
}

static __device__ __forceinline__ uint32_t
first_column(uint32_t thread)
{
    return thread / 8 * 128 + thread % 8 * 4;
}

static __global__ void __launch_bounds__(512) blocks_kernel(const __grid_constant__ bt_prologue_rows a)
{
    uint32_t token = blockIdx.x, first = first_column(blockIdx.y * blockDim.x + threadIdx.x);
    float v[4][4];

    bt_let_next();
    bt_wait_before();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bt_row_read4<true>(a.x + token * a.x_stride, first + i * 32, a.to.cols, v[i]);
    }
    put_block(a.to, token, first, v, first < a.to.a8_stride);
}

static __global__ void __launch_bounds__(512) norm_blocks_kernel(const __grid_constant__ bt_prologue_rows a)
{
    extern __shared__ float row[];
    __shared__ float its_factor;
    uint32_t token = blockIdx.x, first = first_column(threadIdx.x);
    float v[4][4], norm[4][4], factor;

    bt_let_next();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bt_row_read4<true>(a.to.norm, first + i * 32, a.to.cols, norm[i]);
    }
    bt_wait_before();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bt_row_read4<true>(a.x + token * a.x_stride, first + i * 32, a.to.cols, v[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *(float4 *)(row + first + i * 32) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        factor = bt_ref_rms_factor(sum_of_squares(row, blockDim.x * 16), a.to.cols, a.to.norm_eps);
        if (threadIdx.x == 0) {
            its_factor = factor;
        }
    }
    __syncthreads();
    factor = its_factor;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) { // beyond the last column both are 0
            v[i][j] = v[i][j] * factor * norm[i][j];
        }
    }
    put_block(a.to, token, first, v, first < a.to.a8_stride);
}

// Shared memory of a row with a norm, and what it looks at behind that. Blocks that begin while the kernel before is at work find the few
// multiprocessors that are free, four beside O and down of 8B: two on each and no more, as eight read 128 KB there one after the other.
static size_t
norm_shared(const bt_cuda *cuda, uint32_t threads, uint32_t tokens)
{
    size_t bytes = (threads * 16 + RUNS * RUN * 16) * sizeof(float), half = cuda->shared_max / 2 - 2048;

    return tokens > 2 * (uint32_t)cuda->sms || bytes > half ? bytes : half;
}

bool
bt_cuda_prologue_blocks(bt_cuda *cuda, const bt_prologue_rows *a, uint32_t tokens, cudaError_t *error)
{
    uint32_t sixteens = (uint32_t)a->to.a8_stride / 16, threads = (sixteens + 31) / 32 * 32;

    if (tokens < TOKENS_MIN || a->to.floats || a->to.sums != NULL || a->to.act_block != 128 ||
        (a->to.norm != NULL && a->to.cols > COLUMNS_MAX)) {
        return false;
    }
    if (a->to.norm != NULL) {
        *error = bt_cuda_go(cuda, norm_blocks_kernel, tokens, threads, norm_shared(cuda, threads, tokens), *a);
    } else {
        threads = threads < 256 ? threads : 256;
        *error = bt_cuda_go(cuda, blocks_kernel, dim3(tokens, (sixteens + threads - 1) / threads), threads, 0, *a);
    }
    return true;
}
