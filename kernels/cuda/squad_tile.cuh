// A tile of keys for a warpgroup's 64 rows (attention_squad.cu): its softmax, its values, and the next tile's scores.
#pragma once

#include "kernels/cuda/squad_softmax.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Where what tensor cores read lies, in sixteens of bytes: the 64 rows of Q, the stage of the tile in hand (K, then V), SQUAD_BIAS. In numbers that
// go on with the tiles, as ptxas otherwise makes each operand anew from the beginning of shared memory.
typedef struct {
    uint32_t q, stage, bias;
} squad_operands;

// An operand `at`, of a kind that bt_wgmma_rows and others make of address 0.
static __device__ __forceinline__ uint64_t
squad_operand(uint64_t kind, uint32_t at)
{
    return (kind & 0xffffffff00000000u) | ((uint32_t)kind + at);
}

// SQUAD_BIAS + q · k, on their way.
static __device__ __forceinline__ void
squad_multiply(const squad_operands &o, int32_t dot[32])
{
    bt_wgmma_start(dot, squad_operand(bt_wgmma_same(0), o.bias));
#pragma unroll
    for (uint32_t i = 0; i < SQUAD_DIM / 32; i++) {
        bt_wgmma_shared<64>(dot, squad_operand(bt_wgmma_rows(0), o.q + 2 * i),
                            squad_operand(bt_wgmma_rows(0), o.stage + 2 * i), 1);
    }
    bt_wgmma_commit();
}

// codes · V of DIMS dims from number `first` on, on their way.
template <int DIMS>
static __device__ __forceinline__ void
squad_values(uint32_t stage, int first, const squad_weights &w, int32_t dot[DIMS / 2])
{
    uint32_t v = stage + offsetof(squad_stage, v) / 16 + first * (64 / 16);

    bt_wgmma<DIMS, true>(dot, w.codes[0], squad_operand(bt_wgmma_rows_64(0), v), 0);
    bt_wgmma<DIMS, true>(dot, w.codes[1], squad_operand(bt_wgmma_rows_64(0), v + 2), 1);
    bt_wgmma_commit();
}

template <int DIMS>
static __device__ __forceinline__ void
squad_add(int first, const squad_weights &w, int32_t dot[DIMS / 2], float acc[SQUAD_DIM / 8][4])
{
    bt_wgmma_there<DIMS / 2>(dot);
#pragma unroll
    for (int i = 0; i < DIMS / 2; i++) {
        float &to = acc[first / 8 + i / 4][i % 4];

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

// l of the thread's rows, and what never changes of its state: in registers only while a tile's softmax, or the end of a split, needs it.
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_take_state(const squad_shared<WARPGROUPS> &s, uint32_t self, prompt_state &state)
{
    float4 factors = s.factors[self];

    state.w = factors.x, state.minus_w[0] = factors.y, state.minus_w[1] = factors.z;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float4 l = s.sums[h][self];

        state.l[h][0] = l.x, state.l[h][1] = l.y, state.l[h][2] = l.z, state.l[h][3] = l.w;
    }
}

template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_leave_sums(squad_shared<WARPGROUPS> &s, uint32_t self, const prompt_state &state)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.sums[h][self] = make_float4(state.l[h][0], state.l[h][1], state.l[h][2], state.l[h][3]);
    }
}

// What decides of what kind a tile is: read when it has come, and used when it is its turn.
typedef struct {
    uint32_t uneven, end, first;
} squad_signs;

// Where a warpgroup is.
typedef struct {
    uint32_t self; // threadIdx.x, which ptxas otherwise reads anew for each use, and waits for it
    squad_operands operands;
    uint32_t tile, end; // the tile in hand, and where its keys end
    squad_turn turn;    // the tile's stage
    bool strange;       // the rows have numbers that only squad_weigh_any knows
    squad_signs signs;  // of the tile
} squad_place;

template <int WARPGROUPS>
static __device__ __forceinline__ squad_signs
squad_look_at(const squad_shared<WARPGROUPS> &s, const squad_place &at)
{
    uint2 seen = s.whole[at.self / 32];

    return squad_signs{((const uint32_t *)&s.uneven[at.turn.slot])[at.self % 4], seen.x, seen.y};
}

template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_weigh_tile(const attention_call &c, const squad_shared<WARPGROUPS> &s, const prompt_scales &scales,
                 prompt_state &state, const squad_place &at, const int32_t dot[32], squad_weights &out)
{
    prompt_row rows[2] = {{s.ends[at.self].x, c.a.window}, {s.ends[at.self].y, c.a.window}};
    bool whole = at.tile + 64 <= at.signs.end && at.tile >= at.signs.first; // all of the warp's rows see all of it
    bool even = at.signs.uneven != at.tile + 1;                             // scales are numbers, V's above 0

    if (__builtin_expect(at.strange || (!even && squad_is_strange(scales)), 0)) {
        squad_weigh_any(state, scales, c.a.softcap, rows, at.tile, dot, out);
    } else {
        squad_weigh(state, scales, rows, at.tile, whole, even, dot, out);
    }
}

// What was multiplied for the tile in hand is in `dot`; afterwards it is what was multiplied for the next (nonsense, if there is none).
template <int WARPGROUPS>
static __device__ __forceinline__ void
squad_tile(const attention_call &c, squad_shared<WARPGROUPS> &s, prompt_state &state, squad_place &at, int32_t dot[32],
           float acc[SQUAD_DIM / 8][4])
{
    uint32_t slot = at.turn.slot, stage = at.operands.stage;
    bool more = at.tile + 64 < at.end;
    constexpr int dims = WARPGROUPS == 3 ? 32 : 64; // at a time, as registers allow
    int32_t one[dims / 2], other[dims / 2];
    squad_weights w;

    squad_take_state(s, at.self, state);
    squad_weigh_tile(c, s, s.scales[slot], state, at, dot, w);
    squad_leave_sums(s, at.self, state);
    bt_wgmma_fence();
    squad_values<dims>(stage, 0, w, one);
    squad_values<dims>(stage, dims, w, other);
    squad_go_on(at.turn);
    at.operands.stage = at.turn.slot == 0 ? stage - (SQUAD_STAGES - 1) * (uint32_t)(sizeof(squad_stage) / 16)
                                          : stage + (uint32_t)(sizeof(squad_stage) / 16);
    if (more) {
        bt_barrier_wait(bt_shared_at(&s.full[at.turn.slot]), at.turn.parity);
    }
    bt_wgmma_fence();
    squad_multiply(at.operands, dot);
    if (more) {
        at.signs = squad_look_at(s, at);
    }
    bt_wgmma_wait<2>();
    squad_add<dims>(0, w, one, acc);
    if constexpr (dims == 32) {
        bt_wgmma_fence();
        squad_values<dims>(stage, 64, w, one);
        bt_wgmma_wait<2>();
        squad_add<dims>(32, w, other, acc);
        bt_wgmma_fence();
        squad_values<dims>(stage, 96, w, other);
        bt_wgmma_wait<1>();
        squad_add<dims>(64, w, one, acc);
    }
    bt_wgmma_wait<0>();
    bt_wgmma_there<8>((int32_t *)w.codes);
    bt_wgmma_there<32>(dot);
    bt_barrier_arrive(bt_shared_at(&s.empty[slot]));
    squad_add<dims>(128 - dims, w, other, acc);
}

#endif
