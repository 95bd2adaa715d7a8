// Attention of prompts by warpgroups (sm_90a): attention_prompt.cuh with both products on wgmma. Same tiles, cuts and order of sums, same bits;
// heads of 128. Three warpgroups (two, where that is enough for all multiprocessors) of 64 rows each share the tiles of a KV head, which a fourth
// brings (squad_load.cuh); they meet nowhere but at tiles' barriers, so that each is at something else:
//
//     tile i:   softmax of its scores → codes                    (squad_softmax.cuh)
//               values of i, some dims at a time ────┐
//               scores of i + 1 ─────────────────────┤   (all in flight: squad_tile.cuh)
//               acc takes some dims as they come  ───┘
//
// A block of threads a multiprocessor: it takes task after task, and the next one's first tiles are there before it has ended. 160 registers:
// 64 of acc, 32 of scores, twice 16 of values. What counts is instructions a score: about 16 of softmax, 6 of adding values, 6 of all else.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_split.cuh"
#include "kernels/cuda/squad_tile.cuh"

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

// prompt_merge with what was merged in shared memory, as reading it from `out` is waited for.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_merge(const attention_call &c, squad_shared<WARPGROUPS> &s, const prompt_item &item, const prompt_row &row, int h,
            float m, float sum, uint32_t split, const float acc[SQUAD_DIM / 8][4])
{
    prompt_total &total = s.totals[threadIdx.x][h];
    bool before = prompt_first(row) / BT_ATTENTION_SPLIT < split, last = (row.end - 1) / BT_ATTENTION_SPLIT == split;
    bool wide = ((size_t)c.a.out / 4 | c.a.out_stride) % 4 == 0;
    float most = before && total.m > m ? total.m : m, a = bt_ref_exp2(total.m - most), b = bt_ref_exp2(m - most);
    float *out = prompt_out_of(c, item, SQUAD_DIM, prompt_row_index(h)), inverse;

    total.l = before ? fmaf(total.l, a, sum * b) : sum;
    total.m = most;
    inverse = 1.0f / total.l;
#pragma unroll
    for (int i = 0; i < (int)SQUAD_DIM / 16; i++) {
        float4 x = squad_pieces::of<SQUAD_DIM>(acc, i, h);

        if (before) {
            float4 y = s.merged[h][i][threadIdx.x];

            x.x = fmaf(y.x, a, x.x * b), x.y = fmaf(y.y, a, x.y * b);
            x.z = fmaf(y.z, a, x.z * b), x.w = fmaf(y.w, a, x.w * b);
        }
        if (last) {
            x.x *= inverse, x.y *= inverse, x.z *= inverse, x.w *= inverse;
            prompt_store(out + squad_pieces::at(i), x, wide);
        } else {
            s.merged[h][i][threadIdx.x] = x;
        }
    }
}

template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_end_split(const attention_call &c, squad_shared<WARPGROUPS> &s, const prompt_item &item, prompt_state &state,
                uint32_t split, float acc[SQUAD_DIM / 8][4])
{
    uint2 ends = s.ends[threadIdx.x];
    prompt_row rows[2] = {{ends.x, c.a.window}, {ends.y, c.a.window}};
    auto merge = [&](int h, float m, float sum) { squad_merge(c, s, item, rows[h], h, m, sum, split, acc); };

    squad_take_state(s, threadIdx.x, state);
    squad_scale_sums(state, 0x1p-64f);
    prompt_end_split<SQUAD_DIM, squad_pieces>(c, item, merge, state, rows, split, acc);
    squad_leave_sums(s, threadIdx.x, state);
}

// A warpgroup's rows through the task's tiles, one at least, as far as its keys go.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_attend(const attention_call &c, squad_shared<WARPGROUPS> &s, const squad_task &task, uint32_t rows_at,
             uint32_t end, squad_turn &turn)
{
    const prompt_item &item = task.item;
    uint32_t first_row = threadIdx.x / 32 * 16;
    float acc[SQUAD_DIM / 8][4] = {};
    int32_t dot[32];
    prompt_state state = prompt_begin(c, item);
    bool ordinary = state.w > 0x1p-60f && state.w < 0x1p60f;
    uint32_t base = bt_shared_at(&s) / 16 & 0x3fff;
    squad_place at = {__shfl_sync(0xffffffffu, threadIdx.x, threadIdx.x % 32),
                      {base + (uint32_t)offsetof(squad_shared<WARPGROUPS>, q) / 16 + rows_at * (64 * SQUAD_DIM / 16),
                       base + turn.slot * (uint32_t)(sizeof(squad_stage) / 16),
                       base + (uint32_t)offsetof(squad_shared<WARPGROUPS>, bias) / 16},
                      task.tile,
                      end,
                      turn};

    s.ends[threadIdx.x] =
        make_uint2(prompt_row_of(c, item, prompt_row_index(0)).end, prompt_row_of(c, item, prompt_row_index(1)).end);
    s.whole[threadIdx.x / 32] =
        make_uint2(prompt_row_of(c, item, first_row).end, prompt_first(prompt_row_of(c, item, first_row + 15)));
    __syncwarp();
    s.factors[threadIdx.x] = make_float4(state.w, state.minus_w[0] * 0x1p40f, state.minus_w[1] * 0x1p40f, 0.0f);
    squad_leave_sums(s, at.self, state);
    at.strange = __any_sync(0xffffffffu, !ordinary || c.a.softcap > 0) != 0;
    bt_barrier_wait(bt_shared_at(&s.full[turn.slot]), turn.parity);
    bt_wgmma_fence();
    squad_multiply(at.operands, dot);
    at.signs = squad_look_at(s, at);
    bt_wgmma_wait<0>();
    bt_wgmma_there<32>(dot);
    while (at.tile < at.end) {
        squad_tile(c, s, state, at, dot, acc);
        at.tile += 64;
        if (at.tile >= at.end || at.tile % BT_ATTENTION_SPLIT == 0) {
            squad_end_split(c, s, item, state, (at.tile - 64) / BT_ATTENTION_SPLIT, acc);
        }
    }
    turn = at.turn;
}

// A split apart of which nobody sees anything, because of a window.
static __device__ __forceinline__ void
squad_say_nothing(const attention_call &c, const prompt_item &item)
{
    float acc[SQUAD_DIM / 8][4] = {};

    for (int h = 0; h < 2; h++) {
        if (prompt_row_index(h) < item.rows) {
            prompt_keep<SQUAD_DIM, squad_pieces>(c, item, h, 0.0f, 0.0f, false, acc);
        }
    }
}

// Tiles behind a warpgroup's keys, or of a task of which it has no rows.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_let_pass(squad_shared<WARPGROUPS> &s, uint32_t tile, uint32_t end, squad_turn &turn)
{
    for (; tile < end; tile += 64) {
        bt_barrier_wait(bt_shared_at(&s.full[turn.slot]), turn.parity);
        bt_barrier_arrive(bt_shared_at(&s.empty[turn.slot]));
        squad_go_on(turn);
    }
}

// Where the keys of a warpgroup's rows end.
static __device__ __forceinline__ uint32_t
squad_end_of(const attention_call &c, const squad_task &task, uint32_t warpgroup)
{
    uint32_t own = prompt_row_of(c, task.item, warpgroup * 64 + 63).end;

    return warpgroup * 64 >= task.item.rows ? 0 : own < task.end ? own : task.end;
}

template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_attend_all(const attention_call &c, squad_shared<WARPGROUPS> &s, uint32_t warpgroup)
{
    squad_turn turn = {0, 0};

    bt_barrier_wait(bt_shared_at(&s.known[0]), 0);
    for (uint32_t n = 0; s.tasks[n % 2].item.rows != 0;) {
        const squad_task &task = s.tasks[n % 2];
        uint32_t tile = task.tile, end = squad_end_of(c, task, warpgroup);

        if (tile < end) {
            squad_attend(c, s, task, n % 2 * WARPGROUPS + warpgroup, end, turn);
            tile = (end + 63) / 64 * 64;
        } else if (tile >= task.end && end > task.item.split * BT_ATTENTION_SPLIT) { // (else it is not read)
            squad_say_nothing(c, task.item);
        }
        squad_let_pass(s, tile, task.end, turn);
        bt_barrier_arrive(bt_shared_at(&s.done[n % 2]));
        n++;
        bt_barrier_wait(bt_shared_at(&s.known[n % 2]), n / 2 % 2);
    }
}

// Barriers, and what makes SQUAD_BIAS.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_begin(squad_shared<WARPGROUPS> &s)
{
    if (threadIdx.x < SQUAD_STAGES) {
        bt_barrier_init(bt_shared_at(&s.full[threadIdx.x]), SQUAD_BRINGERS);
        bt_barrier_init(bt_shared_at(&s.empty[threadIdx.x]), WARPGROUPS * 128);
        s.uneven[threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x < 2) {
        bt_barrier_init(bt_shared_at(&s.known[threadIdx.x]), SQUAD_BRINGERS);
        bt_barrier_init(bt_shared_at(&s.done[threadIdx.x]), WARPGROUPS * 128);
    }
    bt_barrier_init_done();
    if (threadIdx.x < 128) { // 247, four times 253 and eleven times 255: the sum of their squares, twice.
        *(uint4 *)(s.bias + threadIdx.x * 16) = make_uint4(0xfdfdfdf7, 0xfffffffd, 0xffffffff, 0xffffffff);
    }
    bt_fence_async();
    __syncthreads();
}

#endif

template <int WARPGROUPS>
static __global__ void
__launch_bounds__(WARPGROUPS * 128 + SQUAD_BRINGERS, 1)
    squad_kernel(const __grid_constant__ attention_call c, const bt_cuda_tile *squads, uint32_t tasks)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t memory[];
    static_assert(sizeof(squad_shared<WARPGROUPS>) <= 227 * 1024, "what a block may have");
    squad_shared<WARPGROUPS> &s = *(squad_shared<WARPGROUPS> *)memory;
    uint32_t warpgroup =
        __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); // as a number that the compiler knows to be a warp's

    squad_begin(s);
    bt_wait_before();
    bt_let_next();
    if (warpgroup == WARPGROUPS) {
        bt_registers_fewer<WARPGROUPS == 3 ? 32 : 40>(); // with the others' as many as the launch has
        squad_bring_all(c, s, squads, tasks);
    } else {
        bt_registers_more<WARPGROUPS == 3 ? 160 : 232>();
        squad_attend_all(c, s, warpgroup);
    }
#endif
}

bool
bt_cuda_wants_squad(const bt_cuda *cuda, const attention_call &c)
{
    return cuda->squad && c.a.head_dim == SQUAD_DIM && cuda->splits > 1 && cuda->step.squad_count != 0;
}

template <int WARPGROUPS>
static cudaError_t
launch(bt_cuda *cuda, const attention_call &c)
{
    uint32_t tasks = cuda->step.squad_count * c.a.kv_heads * (c.splits != 0 ? c.splits : 1), sms = (uint32_t)cuda->sms;

    return bt_cuda_go(cuda, squad_kernel<WARPGROUPS>, dim3(tasks < sms ? tasks : sms),
                      dim3(WARPGROUPS * 128 + SQUAD_BRINGERS), sizeof(squad_shared<WARPGROUPS>), c,
                      cuda->step.at.squads, tasks);
}

cudaError_t
bt_cuda_squad(bt_cuda *cuda, const attention_call &c)
{
    return cuda->step.squad_tiles == 3 ? launch<3>(cuda, c) : launch<2>(cuda, c);
}
