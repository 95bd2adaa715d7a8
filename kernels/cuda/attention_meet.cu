// Attention as attention_stream.cuh has it, where some warps of a block share a (sequence, KV head) of up to eight splits, one or two each.
//
// They make its queries ready together, meet, attend to their splits, leave them where their rings were, meet again, and share the merge.
// So nothing waits for memory behind the K and V that was asked for: neither arrivals, nor partials that another block has left. Of two
// splits the later one comes first: where it is short it is over while memory is still busy. What is merged may be left as INT8, too, or only so
// (bt_cuda_attention_leaves).
#include "kernels/cuda/attention_stream_split.cuh"

#define SPLITS_EACH 2u // of a warp

// Of the `count` warps that share a (sequence, KV head) of so many splits: this one's number, and how many of them have one split, or none,
// before those with two.
typedef struct {
    uint32_t own, count, splits, single;
} meet_share;

// The place of the warp's first tile; end = 0: there is no such head. (A warp without a split has left = 0.)
template <typename D>
static __device__ __forceinline__ stream_cursor
meet_enter(const attention_call &c, meet_share &m)
{
    uint32_t warp = threadIdx.x / 32, head = blockIdx.x * (D::warps / m.count) + warp / m.count;
    stream_cursor at = {};

    m.own = warp % m.count;
    if (head >= c.single_count * c.a.kv_heads) {
        return at;
    }
    at.u.index = head / c.a.kv_heads, at.u.kv_head = head % c.a.kv_heads;
    enter_row(c, at.u);
    m.splits = last_split(at.u) - first_split(at.u) + 1;
    m.single = SPLITS_EACH * m.count - m.splits;
    if (m.own < m.splits) {
        at.u.left = m.own < m.single ? 1 : SPLITS_EACH;
        at.u.split = first_split(at.u) + m.own + (m.own < m.single ? 0 : m.own - m.single + 1);
        stream_enter_head(c, at);
        stream_enter_split(c, at);
    }
    return at;
}

// Queries to all warps, the new K and V to the one with the last split. Returns when all have the queries; K and V come after them, as that
// warp alone waits for them.
template <typename D, typename F>
static __device__ __forceinline__ void
meet_make_ready(const attention_call &c, stream_warp<D> *warps, const decode_unit &u, const meet_share &m,
                uint32_t barrier, F meanwhile)
{
    const uint32_t columns = D::columns;
    uint32_t block = stream_new_block(c, u), last = m.splits < m.count ? m.splits - 1 : m.count - 1;
    bool met = false;

    stream_ready<D, D::columns / 2 + 1>(c, warps[m.own], u, m.own, m.count, columns + 2, meanwhile,
                                        [&](uint32_t i, const float x[D::steps]) {
                                            if (i < columns) {
                                                stream_keep_query<D>(c, warps, m.count, i, x);
                                            }
                                            if (!met && i + m.count >= columns) {
                                                bt_bar_sync(barrier, m.count * 32);
                                                met = true;
                                            }
                                            if (i >= columns) {
                                                stream_keep_new<D>(c, warps[last], u, block, i > columns, x);
                                                bt_barrier_arrive(bt_shared_at(&warps[last].new_full));
                                            }
                                        });
    if (!met) {
        bt_bar_sync(barrier, m.count * 32);
    }
}

// The n-th of a warp's splits, as stream_leave has it, where its ring was.
template <typename D>
static __device__ __forceinline__ float *
meet_part(stream_warp<D> &s, uint32_t n)
{
    return (float *)s.tile + n * D::columns * (BT_PARTIAL_HEAD + D::dims);
}

// The split in hand is kept while the other one is; BACK: and taken up again.
template <typename D, bool BACK>
static __device__ __forceinline__ void
meet_move(stream_state<D> &q)
{
    auto move = [](float &kept, float &in_hand) { (BACK ? in_hand : kept) = BACK ? kept : in_hand; };

    move(q.total_m[0], q.m);
#pragma unroll
    for (int n = 0; n < D::pairs; n++) {
        move(q.total_l[n], q.l[n]);
    }
#pragma unroll
    for (int i = 0; i < D::steps * 4 * D::halves; i++) {
        int j = i / (4 * D::halves), tile = i / (2 * D::halves) % 2, at = i % (2 * D::halves);

        move(q.total[j][tile][at], q.acc[j][tile][at]);
    }
}

// The warp's splits, left at meet_part.
template <typename D>
static __device__ __forceinline__ void
meet_attend(const attention_call &c, stream_warp<D> &s, decode_unit u, stream_cursor &ahead)
{
    uint32_t splits = u.left;
    stream_state<D> q;
    stream_at at = {0, 0};

    stream_open<D>(c, s, q);
#pragma unroll 1
    for (uint32_t n = splits; n != 0; n--, u.split--) {
        if (n != splits) {
            meet_move<D, false>(q);
        }
        stream_split<D>(c, s, q, u, ahead, at);
    }
#pragma unroll 1
    for (uint32_t n = 0; n < splits; n++) {
        stream_leave<D>(c, q, meet_part<D>(s, n));
        meet_move<D, true>(q);
    }
}

// Four dims from `dim` on of a head of 128 that a warp has all of, four a lane, as the linear call that comes next begins with them (bt_linear_next):
// a head is a block of its activations.
template <typename D>
static __device__ __forceinline__ void
meet_leave(const attention_call &c, uint32_t row, uint32_t head, uint32_t dim, const float v[4])
{
    const bt_row_target &to = c.leaves.to;
    bt_int8_scale s = bt_row_int8_scale(__reduce_max_sync(0xffffffffu, bt_row_amax4(v)));

    if (threadIdx.x % 32 == 0) {
        to.sa[head * to.sa_stride + row] = s.scale;
    }
    *(uint32_t *)(to.a8 + bt_cuda_a8_in(to.order, to.a8_stride, row, head * 128 + dim)) = bt_row_codes4(v, s.inverse);
}

// All splits' merge, from the left: a lane has a vector of four dims of a query at a time.
template <typename D>
static __device__ __forceinline__ void
meet_merge(const attention_call &c, stream_warp<D> *warps, const decode_unit &u, const meet_share &m)
{
    const uint32_t row = D::dims / 4;

#pragma unroll 1
    for (uint32_t e = m.own * 32 + threadIdx.x % 32; e < c.group * row; e += 32 * m.count) {
        uint32_t query = e / row, from = query * (BT_PARTIAL_HEAD + D::dims);
        float *out = out_at(c, u, query, D::dims) + e % row * 4;
        stream_merged sum = {};

        for (uint32_t warp = 0, n = 0, split = 0; split < m.splits; split++) {
            const float *part = meet_part<D>(warps[warp], n) + from;

            stream_merge_one(sum, *(const float2 *)part, ((const float4 *)(part + BT_PARTIAL_HEAD))[e % row],
                             split == 0);
            if (warp < m.single || ++n == SPLITS_EACH) {
                warp++, n = 0;
            }
        }
        sum.l = 1.0f / sum.l;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sum.acc[k] *= sum.l;
        }
        if (D::dims == 128 && c.leaves.to.a8 != NULL) {
            meet_leave<D>(c, u.row, u.kv_head * c.group + query, e % row * 4, sum.acc);
        }
        if (D::dims == 64 || c.leaves.write) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                out[k] = sum.acc[k];
            }
        }
    }
}

template <typename D>
static __global__ void
__launch_bounds__(D::threads, D::blocks_each) meet_kernel(const __grid_constant__ attention_call c, uint32_t count)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t memory[];
    uint32_t first = threadIdx.x / 32 / count * count;
    stream_warp<D> *warps = (stream_warp<D> *)memory + first, &s = ((stream_warp<D> *)memory)[threadIdx.x / 32];
    meet_share m = {};
    stream_cursor ahead;
    decode_unit u;

    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < D::slots; i++) {
            bt_barrier_init(bt_shared_at(&s.full[i]), 1);
        }
        bt_barrier_init(bt_shared_at(&s.new_full), 2 * 32); // K and V, of each lane (bt_barrier_arrive)
        bt_barrier_init_done();
    }
    __syncwarp();
    m.count = count;
    ahead = meet_enter<D>(c, m);
    u = ahead.u;
    stream_begin<D>(c, s, ahead, u, u.end != 0);
    if (u.end == 0) {
        return;
    }
    meet_make_ready<D>(c, warps, u, m, 1 + first, [&] { stream_ask_k<D>(c, s, ahead, 2); });
    if (u.left != 0) {
        meet_attend<D>(c, s, u, ahead);
    }
    bt_bar_sync(1 + first, count * 32);
    meet_merge<D>(c, warps, u, m);
#endif
}

// ---- launch ----

// How many warps of a block share a (sequence, KV head); 0: it is runs that are right. As many as the longest has splits, or half as many where
// it has eight: a block of eight warps is a multiprocessor's only one, which is right where there are about as many heads as those.
// Blocks that do not fit at once follow one another, which also evens out sequences of unequal lengths. Of 64 dims, with fewer heads than
// multiprocessors there are blocks for, runs use more of them (of 128 what a head's warps save at the start and in the merge is more); and they
// merge most cheaply what has more than eight splits. `splits` is a power of
// two (cuda.cuh): of another number a head's warps would lie in two blocks and wait for each other for ever.
template <typename D>
static uint32_t
warps_sharing(const bt_cuda *cuda, const attention_call &c)
{
    size_t sms = (size_t)cuda->sms, heads = (size_t)c.single_count * c.a.kv_heads;

    if (!cuda->meets || c.block_shift < 5 || cuda->splits < 2 || cuda->splits > 8 ||
        (cuda->splits & (cuda->splits - 1)) != 0) {
        return 0;
    }
    if (D::warps == 8) {
        return cuda->splits == 8 && heads <= sms && (D::dims == 128 || heads * 4 >= sms * 3) ? 8 : 0;
    }
    return cuda->splits < 8 ? cuda->splits : heads > sms ? 4 : 0;
}

template <typename D>
static bool
meet_launch(bt_cuda *cuda, const attention_call &call, bt_err *err)
{
    uint32_t count = warps_sharing<D>(cuda, call), heads = call.single_count * call.a.kv_heads;

    if (count != 0) {
        attention_call c = call;

        bt_cuda_attention_leaves(cuda, &c);
        *err = bt_cuda_check(cuda,
                             bt_cuda_go(cuda, meet_kernel<D>, dim3((heads * count + D::warps - 1) / D::warps),
                                        dim3(D::threads), sizeof(stream_warp<D>) * D::warps, c, count),
                             "attention of shared heads");
    }
    return count != 0;
}

template <int STEPS, int COLUMNS>
static bool
meet_launch_any(bt_cuda *cuda, const attention_call &c, bt_err *err)
{
    return meet_launch<stream_shape<STEPS, COLUMNS, 3, true, 8>>(cuda, c, err) ||
           meet_launch<stream_shape<STEPS, COLUMNS, 3, true>>(cuda, c, err);
}

bool
bt_cuda_attention_meet(bt_cuda *cuda, const attention_call *c, bt_err *err)
{
    if (c->a.head_dim == 64) {
        return c->group <= 4 ? meet_launch_any<2, 4>(cuda, *c, err) : meet_launch_any<2, 8>(cuda, *c, err);
    }
    return c->group <= 4 ? meet_launch_any<4, 4>(cuda, *c, err) : meet_launch_any<4, 8>(cuda, *c, err);
}
