// The kernels of attention_decode.cuh, and their launch.
#include "kernels/cuda/attention_decode_heads.cuh"
#include "kernels/cuda/attention_decode_merge.cuh"

#define MERGE_HERE 16u // splits of the longest row up to which the last block merges; beyond, a kernel of its own does
#define MERGE_BY_WARP 8u // the same where a warp does (attention_stream.cu)

// The bytes that came for the step's own token are old. By the first of the warps that share its tile.
template <typename D>
static __device__ __forceinline__ void
put_new_k(decode_shared<D> &s, int buffer, uint32_t slot, uint32_t key)
{
    uint32_t lane = threadIdx.x % 32, own = own_tile<D>();

    for (uint32_t d = lane; d < D::dims; d += 32) {
        s.k[slot][own][key * D::dims + key / 32 * D::k_shift + d] = (uint8_t)s.new_k[buffer][d];
    }
    if (lane < 2) {
        s.scales[slot][own][lane][key] = s.new_scales[buffer][lane];
    }
    bt_fence_async();
    __syncwarp();
}

template <typename D>
static __device__ __forceinline__ void
put_new_v(decode_shared<D> &s, int buffer, uint32_t key)
{
    for (uint32_t d = threadIdx.x % 32; d < D::dims; d += 32) {
        s.v[own_tile<D>()][key / 16 * D::v_piece + (key % 16 / 4 * D::dims + d) * 4 + key % 4] =
            (uint8_t)s.new_v[buffer][d];
    }
    bt_fence_async();
}

// `before` of this warp's tile, and the largest of all tiles so far.
template <typename D>
static __device__ __forceinline__ void
chain_maxima(decode_shared<D> &s, decode_state<D> &q, float before[D::cols])
{
#pragma unroll
    for (int col = 0; col < D::cols; col++) {
#pragma unroll
        for (int j = 0; j < D::unit; j++) {
            before[col] = j == (int)own_tile<D>() ? q.carry[col] : before[col];
            q.carry[col] = larger(q.carry[col], s.most[j][query_weighed<D>(col)]);
        }
        if (own_tile<D>() == 0 && speaks_for_query()) {
            s.m[query_weighed<D>(col)] = q.carry[col];
        }
    }
}

// Scores and weights of this warp's tile.
template <typename D>
static __device__ __forceinline__ void
weigh_unit(const attention_call &c, decode_shared<D> &s, decode_state<D> &q, const decode_unit &u, int buffer,
           uint32_t slot, uint32_t &k_parity, uint32_t v_parity)
{
    uint32_t own = own_tile<D>(), lane = threadIdx.x % 32, tile = u.key + own * 64, key = u.end - 1 - tile;
    float score[4][D::cols], before[D::cols] = {};
    bool here = tile_seen(u, tile);

    if (here) {
        bt_barrier_wait(bt_shared_at(&s.k_full[slot][own]), k_parity >> slot & 1);
        k_parity ^= 1u << slot;
        if (key < 64 && own_part<D>() == 0) {
            put_new_k<D>(s, buffer, slot, key);
        }
    }
    if (D::parts > 1 && u.end - 1 - u.key < D::unit * 64) {
        meet<D>(); // the step's own token is in one of the unit's tiles, which other warps read, too
    }
    if (here) {
        scores<D>(s, buffer, slot, score);
        bt_fence_async();
        show_most<D>(c, s, u, tile, q.w, score);
    } else if (lane < D::share) {
        s.most[own][own_part<D>() * D::share + lane] = -INFINITY;
    }
    meet<D>();
    chain_maxima<D>(s, q, before);
    if (here) {
        weigh<D>(c, s, u, slot, tile, q.w, before, score);
    }
    if (here && key < 64 && own_part<D>() == D::parts - 1) {
        bt_barrier_wait(bt_shared_at(&s.v_full[own]), v_parity >> own & 1);
        put_new_v<D>(s, buffer, key);
    }
    meet<D>();
}

template <typename D, int T>
static __device__ __forceinline__ void
add_tiles(const decode_shared<D> &s, decode_state<D> &q, int tile)
{
    uint32_t query = threadIdx.x / 16;

#pragma unroll
    for (int j = tile; j < tile + T; j++) {
        q.l = query < D::columns ? fmaf(q.l, s.change[j][query].y, s.sums[j][query][threadIdx.x % 16]) : q.l;
    }
    if (has_dims<D>()) {
        values<D, T>(s, tile, q.acc);
    }
}

// The unit's tiles onto acc and l.
template <typename D>
static __device__ __forceinline__ void
add_unit(decode_shared<D> &s, decode_state<D> &q, const decode_unit &u, uint32_t &v_parity)
{
    const int at_once = D::mt > 1 ? 2 : 4;

#pragma unroll
    for (int j = 0; j < D::unit; j++) {
        if (tile_seen(u, u.key + j * 64)) {
            bt_barrier_wait(bt_shared_at(&s.v_full[j]), v_parity >> j & 1);
            v_parity ^= 1u << j;
        }
    }
    if (u.key >= u.begin && u.key + D::unit * 64 <= u.end) {
#pragma unroll
        for (int j = 0; j < D::unit; j += at_once) {
            add_tiles<D, at_once>(s, q, j);
        }
        return;
    }
#pragma unroll 1
    for (int j = 0; j < D::unit; j++) {
        if (tile_seen(u, u.key + j * 64)) {
            add_tiles<D, 1>(s, q, j);
        }
    }
}

// The warp that makes queries ready while others compute, all but the block's first. It also sees to it that the first is merged, if
// others have parts of it: both would make the others wait for memory that is busy with their K and V.
template <typename D>
static __device__ __forceinline__ void
attend_others(const attention_call &c, decode_shared<D> &s)
{
    uint32_t item, lane = threadIdx.x % 32;
    bool apart;
    decode_unit u = first_unit<D>(c, &item, &apart);
    decode_row_ahead next = row_ahead(c, u.index + 1);

    bt_wait_before();
    if (u.left != 0) {
        bt_bar_sync(2, D::block_threads); // the first is ready
    }
    for (uint32_t n = 1; u.left != 0; n++) {
        decode_unit opening = u;
        decode_part p = part_of(u, item);

        if ((u.left -= p.done) == 0) {
            return;
        }
        item += p.done;
        next_head(c, u, next);
        if (n >= 2) {
            bt_barrier_wait(bt_shared_at(&s.q_free[n & 1]), n / 2 - 1 & 1);
        }
        make_ready<D>(c, s, decode_unit(u), u.left > last_split(u) - u.split, n & 1, 0, 1, false);
        __syncwarp();
        if (lane == 0) {
            bt_barrier_arrive(bt_shared_at(&s.q_full[n & 1]));
        }
        if (n == 1 && p.done != p.splits && !apart) {
            uint32_t last = 0;

            bt_barrier_wait(bt_shared_at(&s.left_behind), 0);
            if (lane == 0) {
                last = count_arrival(c, opening, p);
            }
            if (__shfl_sync(0xffffffffu, last, 0) != 0) {
                merge_here<D>(c, decode_unit(opening), p.item, p.splits, 32);
            }
        }
    }
}

template <typename D>
static __device__ __forceinline__ void
set_up(const attention_call &c, decode_shared<D> &s)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < D::ahead * D::unit; i++) {
            bt_barrier_init(bt_shared_at(&s.k_full[0][i]), 1 + 32);
        }
        for (int i = 0; i < D::unit; i++) {
            bt_barrier_init(bt_shared_at(&s.v_full[i]), 1);
        }
        for (int i = 0; i < 2; i++) {
            bt_barrier_init(bt_shared_at(&s.q_full[i]), 1);
            bt_barrier_init(bt_shared_at(&s.q_free[i]), D::warps);
        }
        bt_barrier_init(bt_shared_at(&s.left_behind), D::warps);
        bt_barrier_init_done();
    }
    for (uint32_t i = threadIdx.x; i < sizeof s.q8 / 4; i += D::block_threads) { // columns without a query
        ((uint32_t *)s.q8)[i] = 0;
    }
    for (uint32_t i = threadIdx.x; i < D::buffers * D::columns; i += D::block_threads) {
        (&s.q_scale[0][0])[i] = 0.0f;
    }
    __syncthreads();
}

template <typename D>
static __device__ __forceinline__ void
store_out(const attention_call &c, const decode_shared<D> &s, const decode_state<D> &q, const decode_unit &u)
{
    each_run<D>(c, q.total, [&](uint32_t query, uint32_t d, const float run[4]) {
        float inverse = 1.0f / s.l[query],
              out[4] = {run[0] * inverse, run[1] * inverse, run[2] * inverse, run[3] * inverse};

        store_run<D>(out_at(c, u, query, D::dims) + d, out);
    });
}

// Addresses of what is still being written are asked for once, so that their translation is at hand.
template <typename D>
static __device__ __forceinline__ void
warm_up(const attention_call &c, const decode_unit &u)
{
    if (threadIdx.x == 0 && u.left != 0) {
        bt_prefetch(c.a.qkv + u.row * c.a.qkv_stride);
        bt_prefetch(out_at(c, u, 0, D::dims));
        if (c.a.rope_cos != NULL) {
            bt_prefetch(c.a.rope_cos + u.row * (c.a.rope_dims / 2));
        }
    }
}

// Is the first V fetched at once? Where much is fetched, queries would come after it.
template <typename D>
static __device__ __forceinline__ bool
v_is_early(const attention_call &c)
{
    return D::buffers == 1 || c.clusters;
}

// The queries of the n-th (sequence, KV head) of the block's run, in buffer n % 2 or the only one.
template <typename D>
static __device__ __forceinline__ void
await_queries(const attention_call &c, decode_shared<D> &s, decode_state<D> &q, const decode_unit &u, uint32_t n)
{
    uint32_t buffer = n % D::buffers;

    if (D::buffers == 1 || n == 0) {
        make_ready<D>(c, s, decode_unit(u), u.left > last_split(u) - u.split, (int)buffer, threadIdx.x / 32, D::warps,
                      n == 0 && !v_is_early<D>(c));
        if (D::buffers == 2 && !c.clusters) {
            bt_bar_sync(2, D::block_threads); // `raw` is free for the warp that attends
        } else {
            meet<D>();
        }
    } else {
        bt_barrier_wait(bt_shared_at(&s.q_full[buffer]), (n - 1) / 2 & 1);
    }
#pragma unroll
    for (int col = 0; col < D::cols; col++) {
        q.w[col] = s.q_scale[buffer][query_weighed<D>(col)];
    }
}

template <typename D>
static __global__ void
__launch_bounds__(D::block_threads, D::blocks_each) decode_kernel(const __grid_constant__ attention_call c)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t memory[];
    decode_shared<D> &s = *(decode_shared<D> *)memory;
    decode_state<D> q;
    decode_unit u[D::ahead + 1];
    decode_row_ahead next;
    decode_part part = {};
    uint32_t k_parity = 0, v_parity = 0, slot = 0, item = 0, n = 0;
    bool opens = true, splits_open = true, apart = false, whole = false, has_split;

    if (c.clusters) {
        bt_cluster_arrive();
    }
    set_up<D>(c, s);
    if (D::buffers == 2 && threadIdx.x >= D::threads) {
        if (!c.clusters) {
            attend_others<D>(c, s);
        }
        bt_wait_before();
        return;
    }
    u[0] = c.clusters ? cluster_unit<D>(c) : first_unit<D>(c, &item, &apart);
    has_split = u[0].left != 0;
    fetch_k<D>(c, s, u[0], 0);
    if (v_is_early<D>(c)) {
        fetch_v<D>(c, s, u[0]);
    }
    next = row_ahead(c, u[0].index + 1);
    u[1] = unit_after<D>(c, u[0], next);
    if (D::ahead > 1) {
        fetch_k<D>(c, s, u[1], 1);
        u[D::ahead] = unit_after<D>(c, u[1], next);
    }
    bt_let_next();
    warm_up<D>(c, u[0]);
    bt_wait_before();
    while (u[0].left != 0) {
        bool closes, split_ends;

        if (opens) {
            await_queries<D>(c, s, q, u[0], n);
            part = part_of(u[0], item);
            whole = part.done == part.splits && !apart && !c.clusters;
        }
        if (splits_open) {
            begin_split<D>(q);
        }
        weigh_unit<D>(c, s, q, u[0], n % D::buffers, slot, k_parity, v_parity);
        fetch_k<D>(c, s, u[D::ahead], slot);
        add_unit<D>(s, q, u[0], v_parity);
        bt_fence_async();
        closes = u[1].left == 0 || u[1].index != u[0].index || u[1].kv_head != u[0].kv_head;
        split_ends = closes || u[1].split != u[0].split;
        if (split_ends && whole) {
            merge_split<D>(s, q, u[0].split == first_split(u[0]));
        } else if (split_ends && !c.clusters) {
            leave_partial<D>(c, s, q, item);
        }
        meet<D>();
        if (c.clusters && closes) {
            break;
        }
        fetch_v<D>(c, s, u[1]);
        if (closes && whole) {
            store_out<D>(c, s, q, u[0]);
        } else if (closes && !apart && (D::buffers == 1 || n != 0 || u[1].left == 0)) {
            arrive<D>(c, s, decode_unit(u[0]), part);
        } else if (closes && !apart && threadIdx.x % 32 == 0) {
            bt_barrier_arrive(bt_shared_at(&s.left_behind));
        }
        if (closes && D::buffers == 2 && threadIdx.x % 32 == 0) {
            bt_barrier_arrive(bt_shared_at(&s.q_free[n & 1]));
        }
        n += closes;
        item += split_ends;
        opens = closes, splits_open = split_ends;
        slot = (slot + 1) % D::ahead;
        u[0] = u[1];
        if (D::ahead > 1) {
            u[1] = u[D::ahead];
        }
        u[D::ahead] = unit_after<D>(c, u[D::ahead], next);
    }
    if constexpr (D::clustered) {
        if (c.clusters) {
            merge_cluster<D>(c, s, q, u[0], has_split);
        }
    }
#endif
}

// ---- launch ----

template <typename D>
static bt_err
launch(bt_cuda *cuda, attention_call c)
{
    size_t items = (size_t)c.single_count * c.a.kv_heads * cuda->splits, bytes = sizeof(decode_shared<D>);
    int each = 0;
    cudaError_t error = cudaFuncSetAttribute(decode_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, decode_kernel<D>, D::block_threads, bytes);
    }
    if (error == cudaSuccess && c.clusters) {
        error = bt_cuda_go_clustered(cuda, decode_kernel<D>, dim3(cuda->splits, c.a.kv_heads, c.single_count),
                                     dim3(D::block_threads), bytes, cuda->splits, c);
    } else if (error == cudaSuccess) {
        size_t most = (size_t)cuda->sms * (size_t)each, whole = (size_t)c.single_count * c.a.kv_heads;

        if (whole < most && whole * 4 >= most * 3) { // a block each, so that nothing is merged apart
            most = whole;
        }
        error = bt_cuda_go(cuda, decode_kernel<D>, dim3((unsigned)(items < most ? items : most)),
                           dim3(D::block_threads), bytes, c);
    }
    return error == cudaSuccess && c.merge_apart ? bt_cuda_merge_apart(cuda, &c)
                                                 : bt_cuda_check(cuda, error, "attention of single tokens");
}

// `few`: the time of one unit counts, not how much comes from memory at once.
template <int STEPS>
static bt_err
launch_group(bt_cuda *cuda, const attention_call &c, bool few)
{
    const int ahead = STEPS == 8 ? 1 : 2, unit = STEPS == 8 ? 4 : 8;

    if (few) {
        return c.group <= 2   ? launch<decode_shape<STEPS, 2, unit, 1>>(cuda, c)
               : c.group <= 4 ? launch<decode_shape<STEPS, 4, unit, 1>>(cuda, c)
                              : launch<decode_shape<STEPS, 8, unit, 1>>(cuda, c);
    }
    return c.group <= 2   ? launch<decode_shape<STEPS, 2, 4, ahead>>(cuda, c)
           : c.group <= 4 ? launch<decode_shape<STEPS, 4, 4, ahead>>(cuda, c)
           : c.group <= 8 ? launch<decode_shape<STEPS, 8, 4, 1>>(cuda, c)
                          : launch<decode_shape<STEPS, 16, 4, 1>>(cuda, c);
}

bool
bt_cuda_decodes(const bt_cuda *cuda, const attention_call *c)
{
    return c->l.format == BT_KV_INT8 && c->scale_groups == 1 && c->group <= 16 &&
           (c->a.head_dim == 64 || c->a.head_dim == 128 || c->a.head_dim == 256) &&
           (cuda->decode || bt_cuda_attention_streams(cuda, c));
}

// Measured (kernels/README.md). What the host knows, and a graph is made for, is how many rows there are and the splits of the longest,
// rounded up to a power of two: there may be fewer.
static bool
stream_pays(const bt_cuda *cuda, size_t items)
{
    return items >= 3 * (size_t)cuda->sms;
}

// Where there are fewer: are warps that share a head faster than a block's that share units of tiles?
static bool
meeting_pays(const bt_cuda *cuda, const attention_call *c)
{
    return c->a.head_dim == 128 && cuda->splits >= 4;
}

bt_err
bt_cuda_attention_decode(bt_cuda *cuda, const attention_call *call)
{
    attention_call c = *call;
    size_t items = (size_t)cuda->step.single_count * c.a.kv_heads * cuda->splits;
    bool few = c.group <= 8 && items <= (size_t)cuda->sms, streams = bt_cuda_attention_streams(cuda, call),
         many = stream_pays(cuda, items) || !cuda->decode;
    bt_err err;

    c.single_count = cuda->step.single_count;
    c.singles = c.single_count == cuda->tokens ? NULL : cuda->step.at.singles;
    c.arrivals = cuda->arrivals;
    c.clusters = few && cuda->splits > 1 && cuda->splits <= CLUSTER_MAX;
    c.merge_apart = cuda->splits > MERGE_HERE;
    c.partial_floats = cuda->partial_floats;
    c.block_shift = c.l.block_tokens == 16 ? 4 : c.l.block_tokens == 32 ? 5 : 6;
    if (bt_cuda_attention_is_single(cuda, &c, items)) {
        return bt_cuda_attention_single(cuda, &c);
    }
    if (streams && (many || meeting_pays(cuda, &c)) && bt_cuda_attention_meet(cuda, &c, &err)) {
        return err;
    }
    if (streams && many) {
        c.merge_apart = cuda->splits > MERGE_BY_WARP;
        err = bt_cuda_attention_stream(cuda, &c, items);
        return err == BT_OK && c.merge_apart ? bt_cuda_merge_apart(cuda, &c) : err;
    }
    return c.a.head_dim == 64    ? launch_group<2>(cuda, c, few)
           : c.a.head_dim == 128 ? launch_group<4>(cuda, c, few)
                                 : launch_group<8>(cuda, c, few);
}
