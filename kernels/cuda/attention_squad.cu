// Attention of prompts by a warpgroup (sm_90a): attention_prompt.cuh with both products on wgmma. Same rows, tiles, cuts and order of sums,
// same bits; heads of 128.
//
//     tile i:   softmax of its scores → codes
//               values of i, a quarter of the dims at a time ─┐   copies of tile i + 2
//               scores of i + 1 ──────────────────────────────┤   (all in flight)
//               acc takes each quarter as it comes  ──────────┘
//
// Three blocks of four warps a multiprocessor, so 168 registers: 64 of acc, 32 of scores, twice 16 of a quarter's values. What counts is
// instructions a score: about 17 of softmax (squad_softmax.cuh) and 6 of adding values; products, and V's way into rows, take next to none.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_split.cuh"
#include "kernels/cuda/squad_softmax.cuh"

// Which dims a lane has (prompt_split.cuh): registers 2h, 2h + 1 of tiles 2c and 2c + 1 are piece c of row g + 8h, dims 16c + 4t … + 3.
struct squad_pieces {
    static __device__ __forceinline__ uint32_t at(int piece)
    {
        return piece * 16 + threadIdx.x % 4 * 4;
    }

    template <int DIM> static __device__ __forceinline__ float4 of(const float acc[DIM / 8][4], int piece, int h)
    {
        return make_float4(acc[piece * 2][h * 2], acc[piece * 2][h * 2 + 1], acc[piece * 2 + 1][h * 2],
                           acc[piece * 2 + 1][h * 2 + 1]);
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// SQUAD_BIAS + q · k, on their way.
static __device__ __forceinline__ void
squad_multiply(const squad_shared &s, uint32_t slot, int32_t dot[32])
{
    uint64_t q = bt_wgmma_rows(bt_shared_at(s.q)), k = bt_wgmma_rows(bt_shared_at(s.stages[0].k));

    k += slot * (sizeof(squad_stage) / 16);

    bt_wgmma_start(dot, bt_wgmma_same(bt_shared_at(s.bias)));
#pragma unroll
    for (uint32_t i = 0; i < SQUAD_DIM / 32; i++) {
        bt_wgmma_shared<64>(dot, q + 2 * i, k + 2 * i, 1);
    }
    bt_wgmma_commit();
}

// codes · V of a quarter of the dims, on their way.
static __device__ __forceinline__ void
squad_quarter(const squad_shared &s, uint32_t slot, int quarter, const squad_weights &w, int32_t dot[16])
{
    uint64_t v = bt_wgmma_rows_64(bt_shared_at(s.stages[0].v));

    v += slot * (sizeof(squad_stage) / 16) + quarter * (32 * 64 / 16);

    bt_wgmma<32, true>(dot, w.codes[0], v, 0);
    bt_wgmma<32, true>(dot, w.codes[1], v + 2, 1);
    bt_wgmma_commit();
}

static __device__ __forceinline__ void
squad_add(int quarter, const squad_weights &w, int32_t dot[16], float acc[SQUAD_DIM / 8][4])
{
    bt_wgmma_there<16>(dot);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float &to = acc[quarter * 4 + i / 4][i % 4];

        to = fmaf(w.scale[i % 4 / 2], (float)dot[i], to * w.corr[i % 4 / 2]);
    }
}

// Is any scale no number? Of a tile that is not even.
static __device__ __forceinline__ bool
squad_is_strange(const prompt_scales &scales)
{
    uint32_t lane = threadIdx.x % 32;
    float sum = fabsf(scales.k_magic[lane]) + fabsf(scales.k_magic[lane + 32]) + scales.v[lane] + scales.v[lane + 32];

    return __any_sync(0xffffffffu, !(fabsf(sum) < INFINITY));
}

static __device__ __forceinline__ void
squad_weigh_tile(const attention_call &c, const prompt_scales &scales, prompt_state &state, const prompt_row rows[2],
                 uint32_t tile, bool whole, bool even, bool strange, const int32_t dot[32], squad_weights &out)
{
    if (strange || (!even && squad_is_strange(scales))) {
        squad_weigh_any(state, scales, c.a.softcap, rows, tile, dot, out);
    } else {
        squad_weigh(state, scales, rows, tile, whole, even, dot, out);
    }
}

// l of the thread's rows: in registers only while a tile's softmax, or the end of a split, needs it.
static __device__ __forceinline__ void
squad_take_sums(const squad_shared &s, prompt_state &state)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float4 l = s.sums[h][threadIdx.x];

        state.l[h][0] = l.x, state.l[h][1] = l.y, state.l[h][2] = l.z, state.l[h][3] = l.w;
    }
}

static __device__ __forceinline__ void
squad_leave_sums(squad_shared &s, const prompt_state &state)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.sums[h][threadIdx.x] = make_float4(state.l[h][0], state.l[h][1], state.l[h][2], state.l[h][3]);
    }
}

// Where a block is.
typedef struct {
    uint32_t tile, end; // the tile in hand, and where its keys end
    uint32_t slot;      // of the tile's stage
    bool even;          // the tile's scales are all numbers, and V's above 0
    bool strange;       // numbers that only squad_weigh_any knows
} squad_place;

// The next tile is here, its scales turned; everybody is done with the one before this, whose stage takes the one after next.
static __device__ __forceinline__ void
squad_go_on(const attention_call &c, squad_shared &s, squad_place &at)
{
    uint32_t next = at.slot == SQUAD_STAGES - 1 ? 0 : at.slot + 1, free = at.slot == 0 ? SQUAD_STAGES - 1 : at.slot - 1;
    bool even;

    bt_copy_wait<0>();
    asm volatile("" ::: "memory"); // what has come is not read before here
    even = squad_turn_scale(s, s.scales[next], at.tile + 64);
    bt_fence_async();
    at.even = __syncthreads_or(!even) == 0;
    if (at.tile + 128 < at.end) {
        squad_load(c, s, s.stages[free], at.tile + 128);
    }
    bt_copy_commit();
    at.slot = next;
}

// What was multiplied for the tile in hand is in `dot`; afterwards it is what was multiplied for the next, if there is one.
static __device__ __forceinline__ void
squad_tile(const attention_call &c, squad_shared &s, prompt_state &state, const prompt_row rows[2],
           const prompt_row &low, const prompt_row &high, squad_place &at, int32_t dot[32], float acc[SQUAD_DIM / 8][4])
{
    uint32_t slot = at.slot;
    bool whole = at.tile + 64 <= low.end && at.tile >= prompt_first(high);
    int32_t one[16], other[16];
    squad_weights w;

    squad_take_sums(s, state);
    squad_weigh_tile(c, s.scales[at.slot], state, rows, at.tile, whole, at.even, at.strange, dot, w);
    squad_leave_sums(s, state);
    bt_wgmma_fence();
    squad_quarter(s, slot, 0, w, one);
    squad_quarter(s, slot, 1, w, other);
    squad_go_on(c, s, at);
    bt_wgmma_fence();
    squad_multiply(s, at.slot, dot);
    bt_wgmma_wait<2>();
    squad_add(0, w, one, acc);
    bt_wgmma_fence();
    squad_quarter(s, slot, 2, w, one);
    bt_wgmma_wait<2>();
    squad_add(1, w, other, acc);
    bt_wgmma_fence();
    squad_quarter(s, slot, 3, w, other);
    bt_wgmma_wait<1>();
    squad_add(2, w, one, acc);
    bt_wgmma_wait<0>();
    bt_wgmma_there<8>((int32_t *)w.codes);
    bt_wgmma_there<32>(dot);
    squad_add(3, w, other, acc);
}

// The first tile is here, the second on its way.
static __device__ __forceinline__ squad_place
squad_begin(const attention_call &c, squad_shared &s, uint32_t tile, uint32_t end, bool strange)
{
    squad_place at = {tile, end, SQUAD_STAGES - 1, false, strange};

    s.sources[threadIdx.x] = squad_source_of(c, s.item);
    if (squad_helper() < 64) {
        squad_load_scales(c, s, tile);
    }
    squad_load(c, s, s.stages[0], tile);
    bt_copy_commit();
    bt_copy_wait<0>();
    __syncthreads(); // scales are turned by others
    at.tile -= 64;
    squad_go_on(c, s, at); // as if there had been one before
    at.tile += 64;
    return at;
}

#endif

// BLOCKS: how many a multiprocessor takes at once.
template <int BLOCKS>
static __global__ void
__launch_bounds__(PROMPT_THREADS, BLOCKS)
    squad_kernel(const __grid_constant__ attention_call c, const bt_cuda_tile *tiles)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t memory[];
    squad_shared &s = *(squad_shared *)memory;
    float acc[SQUAD_DIM / 8][4] = {};
    int32_t dot[32];

    bt_wait_before();
    bt_let_next();
    s.item = prompt_item_of(c, tiles); // the same of all threads
    __syncthreads();
    const prompt_item &item = s.item;
    uint32_t tile, end, first_row = threadIdx.x / 32 * 16;

    if (!prompt_range(c, item, s.blocks, &tile, &end)) {
        return;
    }
    squad_load_queries(c, item, s);
    prompt_row rows[2] = {prompt_row_of(c, item, prompt_row_index(0)), prompt_row_of(c, item, prompt_row_index(1))};
    prompt_row low = prompt_row_of(c, item, first_row), high = prompt_row_of(c, item, first_row + 15); // of the warp
    prompt_state state = prompt_begin(c, item);
    bool ordinary = state.w > 0x1p-60f && state.w < 0x1p60f;

    state.minus_w[0] *= 0x1p40f, state.minus_w[1] *= 0x1p40f;
    squad_place at = squad_begin(c, s, tile, end, __syncthreads_or(!ordinary || c.a.softcap > 0) != 0);
    bt_wgmma_fence();
    squad_multiply(s, at.slot, dot);
    bt_wgmma_wait<0>();
    bt_wgmma_there<32>(dot);
    squad_leave_sums(s, state);
    while (at.tile < end) {
        squad_tile(c, s, state, rows, low, high, at, dot, acc);
        at.tile += 64;
        if (at.tile >= end || at.tile % BT_ATTENTION_SPLIT == 0) {
            squad_take_sums(s, state);
            prompt_end_split<SQUAD_DIM, squad_pieces>(c, item, s.totals[threadIdx.x], state, rows,
                                                      (at.tile - 64) / BT_ATTENTION_SPLIT, acc);
            squad_leave_sums(s, state);
        }
    }
    if (c.splits != 0 && item.first / 64 * 64 >= item.split * BT_ATTENTION_SPLIT + BT_ATTENTION_SPLIT) {
        prompt_end_split<SQUAD_DIM, squad_pieces>(c, item, s.totals[threadIdx.x], state, rows, item.split,
                                                  acc); // nobody saw any of it
    }
#endif
}

bool
bt_cuda_wants_squad(const bt_cuda *cuda, const attention_call &c)
{
    return cuda->squad && c.a.head_dim == SQUAD_DIM && cuda->splits > 1;
}

cudaError_t
bt_cuda_squad(bt_cuda *cuda, const attention_call &c, uint32_t blocks)
{
    const bt_cuda_tile *tiles = cuda->step.at.tiles;

    // Where there are two a multiprocessor at most, some get three if they may, and the others wait for those.
    return blocks <= 2 * (uint32_t)cuda->sms
               ? bt_cuda_go(cuda, squad_kernel<2>, dim3(blocks), dim3(PROMPT_THREADS), sizeof(squad_shared), c, tiles)
               : bt_cuda_go(cuda, squad_kernel<3>, dim3(blocks), dim3(PROMPT_THREADS), sizeof(squad_shared), c, tiles);
}
