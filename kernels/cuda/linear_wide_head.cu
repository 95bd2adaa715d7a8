// Linear layers of 8-bit codes with one scale a row and many rows, 17 tokens and more on sm_90a: heads. One exact dot over all columns, so any order
// of products gives its bits (kernels/cpu/ref/linear.c).
//
//     256 output rows x N tokens, all columns: an item; a block of threads takes every gridDim.x-th
//
//     warp 8         loads boxes by the copy engine, 128 columns a stage, without an end: the next item's while this one is finished
//     warps 0 - 3    rows 0 … 127, as two times 64
//     warps 4 - 7    rows 128 … 255
//
// linear_wide.cuh starts anew for each 128 rows, which is a third of the time where rows are many, and reads activations for half as many rows:
// with 128 tokens they are half of what comes from the second-level cache.
#include "kernels/cuda/linear_wide_finish.cuh"

#include "kernels/cuda/linear_wide_call.cuh"
#include "kernels/cuda/ptx_multicast.cuh"

#define ROWS 256u
#define WARPS 8u                   // that multiply
#define THREADS (WARPS * 32 + 128) // a warpgroup gives registers to the others
#define SHARED_MAX (227u * 1024)
#define STAGES_MAX 8u

// Where things lie in a stage.
template <int N> struct head_stage {
    static const uint32_t codes_at = N * 128, bytes = codes_at + ROWS * 128;
    static const uint32_t count = (SHARED_MAX - 256) / bytes < STAGES_MAX ? (SHARED_MAX - 256) / bytes : STAGES_MAX;
};

typedef struct {
    wide_call w;
    uint32_t items, tiles; // tiles of tokens; items of neighbouring numbers have the same rows
    uint32_t units;
} head_call;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A place in the ring. A stage is read once a round.
typedef struct {
    uint32_t slot, round;
} head_at;

template <int N>
static __device__ __forceinline__ void
head_next(head_at &at)
{
    at.slot = at.slot + 1 == head_stage<N>::count ? 0 : at.slot + 1;
    at.round += at.slot == 0;
}

template <int N>
static __device__ __forceinline__ void
head_load_codes(const head_call &h, const wide_maps &maps, uint32_t item, uint32_t unit, uint32_t stage, uint32_t full)
{
    uint32_t row = item / h.tiles * ROWS, rows = h.w.c.part[0].tiles * 16;

    bt_barrier_expect(full, N * 128 + (row + ROWS / 2 < rows ? ROWS : ROWS / 2) * 128);
    for (uint32_t half = 0; half < ROWS; half += ROWS / 2) {
        if (row + half < rows) {
            bt_bulk_box(stage + head_stage<N>::codes_at + half * 128, &maps.codes[0], unit * WIDE_UNIT, row + half,
                        full);
        }
    }
}

template <int N>
static __device__ __forceinline__ void
head_load(const head_call &h, const wide_maps &maps, uint32_t memory, uint32_t barriers)
{
    typedef head_stage<N> S;
    head_at at = {0, 0};

    if (bt_elect()) {
        for (uint32_t u = 0; u < WIDE_AHEAD && u < h.units;
             u++) { // (more would come before what the kernel before has to load)
            head_load_codes<N>(h, maps, blockIdx.x, u, memory + u * S::bytes, barriers + u * 16);
        }
        bt_prefetch_map(&maps.a8);
    }
    __syncwarp();
    bt_wait_before();
    for (uint32_t item = blockIdx.x; item < h.items; item += gridDim.x) {
#pragma unroll 1
        for (uint32_t u = 0; u < h.units; u++) {
            uint32_t stage = memory + at.slot * S::bytes, full = barriers + at.slot * 16;

            if (at.round != 0) {
                bt_barrier_wait(full + 8, (at.round - 1) & 1);
            }
            if (bt_elect()) {
                if (item != blockIdx.x || u >= WIDE_AHEAD) {
                    head_load_codes<N>(h, maps, item, u, stage, full);
                }
                bt_bulk_box(stage, &maps.a8, u * WIDE_UNIT, item % h.tiles * N, full);
            }
            __syncwarp();
            head_next<N>(at);
        }
    }
}

// Four dots, of two rows and two tokens, to y.
static __device__ __forceinline__ void
head_store(const linear_call &c, const int32_t dot[4], uint32_t row, const float sw[2], uint32_t token,
           const float sa[2])
{
    float v[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = fmaf(sw[i / 2] * sa[i % 2], (float)dot[i], 0.0f);
    }
    if (c.softcap > 0.0f) {
        float4 r = wide_softcap(make_float4(v[0], v[1], v[2], v[3]), c.softcap);

        v[0] = r.x, v[1] = r.y, v[2] = r.z, v[3] = r.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (token + i % 2 < c.tokens && row + i / 2 * 8 < c.part[0].rows) {
            c.y[(token + i % 2) * c.y_stride + row + i / 2 * 8] = c.scale * v[i];
        }
    }
}

// An item's dots, out of registers.
template <int N>
static __device__ __forceinline__ void
head_finish(const head_call &h, const int32_t dot[2][N / 2], uint32_t row, const float sw[2][2], uint32_t first)
{
    const linear_call &c = h.w.c;
    uint32_t token = first + threadIdx.x % 4 * 2;

#pragma unroll
    for (uint32_t j = 0; j < N / 8; j++, token += 8) {
        const float sa[2] = {c.sa[token], c.sa[token + 1]};

        head_store(c, dot[0] + j * 4, row, sw[0], token, sa);
        head_store(c, dot[1] + j * 4, row + 64, sw[1], token, sa);
    }
}

template <int N>
static __device__ __forceinline__ void
head_work(const head_call &h, uint32_t memory, uint32_t barriers)
{
    typedef head_stage<N> S;
    const bt_cuda_matrix &m = h.w.c.part[0];
    uint32_t lane = threadIdx.x % 32, own = threadIdx.x / 128 * 128; // rows of an item before this warpgroup's
    uint64_t tokens_of_first = bt_wgmma_rows(memory), codes_of_first = tokens_of_first + (S::codes_at + own * 128) / 16;
    head_at at = {0, 0};

    bt_wait_before();
    for (uint32_t item = blockIdx.x; item < h.items; item += gridDim.x) {
        uint32_t row = item / h.tiles * ROWS + own + threadIdx.x % 128 / 32 * 16 + lane / 4;
        int32_t dot[2][N / 2];
        float sw[2][2];

#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // there when it is wanted
            uint32_t r = row + i / 2 * 64 + i % 2 * 8;

            sw[i / 2][i % 2] = r < m.rows ? bt_cuda_scale(&m, m.scales, r, 0) : 0.0f;
        }
#pragma unroll 1
        for (uint32_t u = 0; u < h.units; u++) {
            uint32_t full = barriers + at.slot * 16, stage = at.slot * (S::bytes / 16);

            bt_barrier_wait(full, at.round & 1);
            bt_wgmma_fence();
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    bt_wgmma_shared<N>(dot[half], codes_of_first + stage + half * (64 * 128 / 16) + i * 2,
                                       tokens_of_first + stage + i * 2, u + i != 0);
                }
            }
            bt_wgmma_commit();
            bt_wgmma_wait<0>();
            __syncwarp();
            if (lane == 0) {
                bt_barrier_arrive(full + 8);
            }
            head_next<N>(at);
        }
        bt_wgmma_there<N / 2>(dot[0]);
        bt_wgmma_there<N / 2>(dot[1]);
        head_finish<N>(h, dot, row, sw, item % h.tiles * N);
    }
}

#endif

template <int N>
static __global__ void
__launch_bounds__(THREADS, 1) head_kernel(const __grid_constant__ head_call h, const __grid_constant__ wide_maps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t memory[];
    uint32_t at = bt_shared_at(memory), barriers = at + head_stage<N>::count * head_stage<N>::bytes;

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < head_stage<N>::count; i++) {
            bt_barrier_init(barriers + i * 16, 1);
            bt_barrier_init(barriers + i * 16 + 8, WARPS);
        }
        bt_barrier_init_done();
    }
    __syncthreads();
    bt_let_next();
    if (threadIdx.x / 32 < WARPS) {
        bt_registers_more<216>();
        head_work<N>(h, at, barriers);
    } else {
        bt_registers_fewer<72>();
        if (threadIdx.x / 32 == WARPS) {
            head_load<N>(h, maps, at, barriers);
        } else {
            bt_wait_before();
        }
    }
#endif
}

template <int N>
static cudaError_t
go(bt_cuda *cuda, head_call *h)
{
    uint32_t rows = (h->w.c.part[0].tiles + ROWS / 16 - 1) / (ROWS / 16), sms = (uint32_t)cuda->sms;
    wide_maps maps;

    h->tiles = (h->w.c.tokens + N - 1) / N;
    h->items = rows * h->tiles;
    h->units = (h->w.c.padded + WIDE_UNIT - 1) / WIDE_UNIT;
    h->w.fours = ROWS / 2 / 64; // rows of a box
    if (!bt_cuda_wide_maps(&h->w, N, 0, &maps)) {
        return cudaErrorNotSupported;
    }
    return bt_cuda_go(cuda, head_kernel<N>, dim3(h->items < sms ? h->items : sms), dim3(THREADS),
                      head_stage<N>::count * (head_stage<N>::bytes + 16), *h, maps);
}

bool
bt_cuda_wide_head(bt_cuda *cuda, const wide_call *w, cudaError_t *error)
{
    const linear_call *c = &w->c;
    const bt_cuda_matrix *m = &c->part[0];
    head_call h = {*w, 0, 0, 0};

    if (c->part_count != 1 || m->nibbles || m->asymmetric || dot_columns(m) != BT_BLOCK_ROW || w->turned != NULL ||
        c->epilogue != BT_LINEAR_STORE || c->bias[0] != NULL || m->tiles < 2 * (ROWS / 16) * (uint32_t)cuda->sms) {
        return false;
    }
    *error = c->tokens <= 32 ? go<32>(cuda, &h) : c->tokens <= 64 ? go<64>(cuda, &h) : go<128>(cuda, &h);
    return true;
}
