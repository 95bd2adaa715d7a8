// A split by a warp of attention_stream.cuh: its tiles, and what is left of it.
#pragma once

#include "kernels/cuda/attention_decode_merge.cuh"
#include "kernels/cuda/attention_stream_fetch.cuh"
#include "kernels/cuda/attention_stream_heads.cuh"
#include "kernels/cuda/attention_stream_math.cuh"

template <typename D>
static __device__ __forceinline__ void
stream_begin_split(stream_state<D> &q)
{
#pragma unroll
    for (int i = 0; i < D::steps * 4 * D::halves; i++) {
        q.acc[i / (4 * D::halves)][i / (2 * D::halves) % 2][i % (2 * D::halves)] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        q.l[n] = 0.0f;
    }
    q.m = -INFINITY;
}

// Calls `put` with (query, dim, its number) for what a lane has of x.
template <typename D, typename F>
static __device__ __forceinline__ void
stream_each(const attention_call &c, const float x[D::steps][2][2 * D::halves], F put)
{
#pragma unroll
    for (int col = 0; col < 2; col++) {
        uint32_t query = stream_query<D>(col);

        if (query >= c.group) {
            continue;
        }
#pragma unroll
        for (int n = 0; n < D::steps * 2 * D::halves; n++) {
            int j = n / (2 * D::halves), tile = n / D::halves % 2, i = n % D::halves * 2 + col;

            put(query, stream_dim<D>(j, tile, i), x[j][tile][i]);
        }
    }
}

// The split into a partial, of [group][BT_PARTIAL_HEAD + dims].
template <typename D>
static __device__ __forceinline__ void
stream_leave(const attention_call &c, stream_state<D> &q, float *partial)
{
    uint32_t lane = threadIdx.x % 32;
    float both[2], of[D::pairs];

    stream_each<D>(c, q.acc, [&](uint32_t query, uint32_t dim, float x) {
        partial[query * (BT_PARTIAL_HEAD + D::dims) + BT_PARTIAL_HEAD + dim] = x;
    });
    stream_share<D>(q.odd, q.m, both);
    stream_to_pairs<D>(both, of);
#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        uint32_t query = lane / 16 + 2 * (uint32_t)n;
        float l = split_l(q.l[n]);

        if (lane % 16 == 0 && query < c.group) {
            *(float2 *)(partial + query * (BT_PARTIAL_HEAD + D::dims)) = make_float2(of[n], l);
        }
    }
}

typedef struct {
    float m, l, acc[4];
} stream_merged;

// A split onto what came before it.
[[maybe_unused]] static __device__ __forceinline__ void
stream_merge_one(stream_merged &to, float2 of, const float4 &x, bool is_first)
{
    float most = larger(to.m, of.x), a = exp2_of(to.m - most), b = exp2_of(of.x - most);
    const float y[4] = {x.x, x.y, x.z, x.w};

    to.l = is_first ? of.y : fmaf(to.l, a, of.y * b);
    to.m = is_first ? of.x : most;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        to.acc[k] = is_first ? y[k] : fmaf(to.acc[k], a, y[k] * b);
    }
}

// Asks for K of the cursor's tile, if there is one. What a lane copies itself is a group of its copies either way, so that they can be
// counted.
template <typename D>
static __device__ __forceinline__ void
stream_ask_k(const attention_call &c, stream_warp<D> &s, const stream_cursor &ahead, uint32_t slot)
{
    if (ahead.u.left != 0) {
        stream_fetch_k<D>(c, s, ahead, slot);
    }
    bt_copy_commit();
}

// Asks for its V, and goes to the next.
template <typename D>
static __device__ __forceinline__ void
stream_ask_v(const attention_call &c, stream_warp<D> &s, stream_cursor &ahead, uint32_t slot)
{
    if (ahead.u.left != 0) {
        stream_fetch_v<D>(c, s, ahead, slot);
        stream_step<D>(c, ahead);
    }
}

// A kernel's first steps: the first pieces asked for, the next kernel let in, and when the one before is over. `u`: what the cursor was at, if there is some.
template <typename D>
static __device__ __forceinline__ void
stream_begin(const attention_call &c, stream_warp<D> &s, stream_cursor &ahead, const decode_unit &u, bool some)
{
    stream_ask_k<D>(c, s, ahead, 0);
    stream_ask_v<D>(c, s, ahead, 1);
    bt_let_next();
    if (threadIdx.x % 32 == 0 && some) { // so that their addresses' translation is at hand
        bt_prefetch(c.a.qkv + u.row * c.a.qkv_stride);
        bt_prefetch(out_at(c, u, 0, D::dims));
    }
    bt_wait_before();
}

// Scores, weights and values of the tile at `tile`; what lies three pieces further on is asked for, of the tile that `ahead` is at.
template <typename D, bool MASKED>
static __device__ __forceinline__ void
stream_tile(const attention_call &c, stream_warp<D> &s, stream_state<D> &q, const decode_unit &u, uint32_t tile,
            stream_cursor &ahead, stream_at &at)
{
    uint32_t own = u.end - 1 - tile; // where the step's token lies, if it is here
    int32_t dot[4][4];
    float x[D::halves][2][4];
    stream_scales<D> scales;
    stream_change change;
    bool strange;

    bt_barrier_wait(bt_shared_at(&s.full[at.slot]), at.parity);
    stream_await_scales();
    if (MASKED && own < 64) {
        if (D::meets) {
            bt_barrier_wait(bt_shared_at(&s.new_full), 0);
        }
        stream_put_k<D>(s, at.slot, own);
    }
    strange = stream_read_scales<D, MASKED>(s, u, at.slot, tile, scales) || !q.ordinary;
    stream_dots<D>(s, q, at.slot, dot);
    __syncwarp(); // K is read, and the weights of the tile before
    stream_ask_v<D>(c, s, ahead, at.slot);
    stream_turn<D>(at);
    stream_scores<D>(dot, scales, x);
    if (__builtin_expect(strange, 0)) {
        stream_any<D> any = stream_any_of<D>(q, x, scales);

        stream_most_any<D>(c, s, decode_unit(u), tile, any);
        stream_weigh_any<D>(c, s, decode_unit(u), tile, any);
        q.m = any.m, change = any.change;
    } else {
        float m = larger(q.m, stream_most<D, MASKED>(q, u, tile, x));

        stream_weigh<D, MASKED>(s, q, u, tile, m, scales, x, change);
        q.m = m;
    }
    __syncwarp(); // weights and codes are there
    stream_add_sums<D>(s, q, change.corr);
    bt_barrier_wait(bt_shared_at(&s.full[at.slot]), at.parity);
    if (MASKED && own < 64) {
        stream_put_v<D>(s, at.slot, own);
    }
    stream_values<D>(s, q, at.slot, change);
    __syncwarp(); // V is read
    stream_ask_k<D>(c, s, ahead, at.slot);
    stream_turn<D>(at);
}

// A split's tiles from `tile` on.
template <typename D>
static __device__ __forceinline__ void
stream_split(const attention_call &c, stream_warp<D> &s, stream_state<D> &q, const decode_unit &u, stream_cursor &ahead,
             stream_at &at)
{
    uint32_t first = u.split * BT_ATTENTION_SPLIT, seen = u.begin & ~63u, end = first + BT_ATTENTION_SPLIT;

    end = u.end < end ? u.end : end;
    stream_begin_split<D>(q);
#pragma unroll 1
    for (uint32_t tile = first < seen ? seen : first; tile < end; tile += 64) {
        if (tile >= u.begin && tile + 64 < u.end) { // all are seen, and none is the step's own
            stream_tile<D, false>(c, s, q, u, tile, ahead, at);
        } else {
            stream_tile<D, true>(c, s, q, u, tile, ahead, at);
        }
    }
}
