// The kernels of attention_decode.cuh, and their launch.
#include "kernels/cuda/attention_decode_heads.cuh"
#include "kernels/cuda/attention_decode_merge.cuh"

#define MERGE_HERE 16u // splits of the longest row up to which the last block merges; beyond, a kernel of its own does
#define MERGE_DIMS 32u // of a block of merge_apart
#define MERGE_CHUNK 128u // splits of it at a time

// The bytes that came for the step's own token are old: both warps of a pair write the same.
template <typename D>
static __device__ __forceinline__ void
put_new_k(decode_shared<D> &s, uint32_t slot, uint32_t key)
{
    uint32_t lane = threadIdx.x % 32, own = own_tile<D>();

    for (uint32_t d = lane; d < D::dims; d += 32) {
        s.k[slot][own][key * D::dims + key / 32 * D::k_shift + d] = (uint8_t)s.new_k[d];
    }
    if (lane < 2) {
        s.scales[slot][own][lane][key] = s.new_scales[lane];
    }
    bt_fence_async();
    __syncwarp();
}

template <typename D>
static __device__ __forceinline__ void
put_new_v(decode_shared<D> &s, uint32_t key)
{
    for (uint32_t d = threadIdx.x % 32; d < D::dims; d += 32) {
        s.v[own_tile<D>()][key / 16 * D::v_piece + (key % 16 / 4 * D::dims + d) * 4 + key % 4] = (uint8_t)s.new_v[d];
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
weigh_unit(const attention_call &c, decode_shared<D> &s, decode_state<D> &q, const decode_unit &u, uint32_t slot,
           uint32_t &k_parity, uint32_t v_parity)
{
    uint32_t own = own_tile<D>(), lane = threadIdx.x % 32, tile = u.key + own * 64, key = u.end - 1 - tile;
    float score[4][D::cols], before[D::cols] = {};
    bool here = tile_seen(u, tile);

    if (here) {
        bt_barrier_wait(bt_shared_at(&s.k_full[slot][own]), k_parity >> slot & 1);
        k_parity ^= 1u << slot;
        if (key < 64) {
            put_new_k<D>(s, slot, key);
        }
        scores<D>(s, slot, score);
        show_most<D>(c, s, u, tile, q.w, score);
    } else if (lane < D::share) {
        s.most[own][own_part<D>() * D::share + lane] = -INFINITY;
    }
    __syncthreads();
    chain_maxima<D>(s, q, before);
    if (here) {
        weigh<D>(c, s, u, slot, tile, q.w, before, score);
    }
    if (here && key < 64 && own_part<D>() == D::parts - 1) {
        bt_barrier_wait(bt_shared_at(&s.v_full[own]), v_parity >> own & 1);
        put_new_v<D>(s, key);
    }
    __syncthreads();
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
        bt_barrier_init_done();
    }
    for (uint32_t i = threadIdx.x; i < D::columns * (D::q_stride / 4); i += D::threads) { // columns without a query
        ((uint32_t *)s.q8)[i] = 0;
    }
    if (threadIdx.x < D::columns) {
        s.q_scale[threadIdx.x] = 0.0f;
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

template <typename D>
static __global__ void
__launch_bounds__(D::threads, D::unit == 8 || D::steps == 8 ? 1
                              : D::threads <= 128           ? 4 - D::ahead
                              : D::threads <= 256           ? 2
                                                            : 1) decode_kernel(const __grid_constant__ attention_call c)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t memory[];
    decode_shared<D> &s = *(decode_shared<D> *)memory;
    decode_state<D> q;
    decode_unit u[D::ahead + 1];
    uint32_t k_parity = 0, v_parity = 0, slot = 0, item = 0, done = 0;
    bool opens = true, splits_open = true, apart = false, whole = false, has_split;

    if (c.clusters) {
        bt_cluster_arrive();
    }
    set_up<D>(c, s);
    u[0] = c.clusters ? cluster_unit<D>(c) : first_unit<D>(c, &item, &apart);
    has_split = u[0].left != 0;
    fetch_k<D>(c, s, u[0], 0);
    fetch_v<D>(c, s, u[0]);
    u[1] = unit_after<D>(c, u[0]);
    if (D::ahead > 1) {
        fetch_k<D>(c, s, u[1], 1);
        u[D::ahead] = unit_after<D>(c, u[1]);
    }
    bt_let_next();
    warm_up<D>(c, u[0]);
    bt_wait_before();
    while (u[0].left != 0) {
        bool closes, split_ends;

        if (opens) {
            uint32_t rest = last_split(u[0]) - u[0].split;

            whole = u[0].split == first_split(u[0]) && u[0].left > rest && !apart && !c.clusters;
            done = 0;
            make_ready<D>(c, s, decode_unit(u[0]), u[0].left > rest);
            __syncthreads();
#pragma unroll
            for (int col = 0; col < D::cols; col++) {
                q.w[col] = s.q_scale[query_weighed<D>(col)];
            }
        }
        if (splits_open) {
            begin_split<D>(q);
        }
        weigh_unit<D>(c, s, q, u[0], slot, k_parity, v_parity);
        fetch_k<D>(c, s, u[D::ahead], slot);
        add_unit<D>(s, q, u[0], v_parity);
        closes = u[1].left == 0 || u[1].index != u[0].index || u[1].kv_head != u[0].kv_head;
        split_ends = closes || u[1].split != u[0].split;
        if (split_ends && whole) {
            merge_split<D>(s, q, u[0].split == first_split(u[0]));
        } else if (split_ends && !c.clusters) {
            leave_partial<D>(c, s, q, item);
        }
        __syncthreads();
        if (c.clusters && closes) {
            break;
        }
        fetch_v<D>(c, s, u[1]);
        done += split_ends;
        if (closes && whole) {
            store_out<D>(c, s, q, u[0]);
        } else if (closes && !apart) {
            arrive<D>(c, s, decode_unit(u[0]), item - (u[0].split - first_split(u[0])),
                      last_split(u[0]) - first_split(u[0]) + 1, done);
        }
        item += split_ends;
        opens = closes, splits_open = split_ends;
        slot = (slot + 1) % D::ahead;
        u[0] = u[1];
        if (D::ahead > 1) {
            u[1] = u[D::ahead];
        }
        u[D::ahead] = unit_after<D>(c, u[D::ahead]);
    }
    if constexpr (D::clustered) {
        if (c.clusters) {
            merge_cluster<D>(c, s, q, u[0], has_split);
        }
    }
#endif
}

// so_far[i] = the largest of `before` and m[0 … i]. The whole block.
static __device__ __forceinline__ void
largest_so_far(const float *m, float *so_far, uint32_t count, float before)
{
    uint32_t lane = threadIdx.x;
    float largest = before;

    for (uint32_t k = lane; lane < 32 && k - lane < count; k += 32) {
        float own = k < count ? m[k] : -INFINITY;

#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            float other = __shfl_up_sync(0xffffffffu, own, j);

            own = (int)lane >= j ? larger(own, other) : own;
        }
        own = larger(largest, own);
        largest = __shfl_sync(0xffffffffu, own, 31);
        if (k < count) {
            so_far[k] = own;
        }
    }
    __syncthreads();
}

// The merge of rows with many splits: a block a (row, head, 32 dims).
static __global__ void
__launch_bounds__(MERGE_CHUNK) merge_apart_kernel(const __grid_constant__ attention_call c)
{
    __shared__ __align__(16) float values[MERGE_CHUNK][MERGE_DIMS];
    __shared__ float a[MERGE_CHUNK], b[MERGE_CHUNK], m[MERGE_CHUNK], so_far[MERGE_CHUNK], sum[MERGE_CHUNK];
    uint32_t index = blockIdx.y, head = blockIdx.x, first_dim = blockIdx.z * MERGE_DIMS, i = threadIdx.x;
    uint32_t splits = splits_seen(c, index), item = 0, dims = c.a.head_dim;
    float l = 0.0f, acc = 0.0f, before = -INFINITY;

    for (uint32_t k = i % 32; k < index; k += 32) {
        item += splits_seen(c, k);
    }
    item = __reduce_add_sync(0xffffffffu, item) * c.a.kv_heads + head / c.group * splits;
    bt_let_next();
    bt_wait_before();
    if (run_is_coarse(c, splits_of_all(c) * c.a.kv_heads)) {
        return; // all were merged
    }
    for (uint32_t first = 0; first < splits; first += MERGE_CHUNK) {
        uint32_t count = splits - first < MERGE_CHUNK ? splits - first : MERGE_CHUNK;

        if (i < count) {
            const float *p = partial_at(c, item + first + i, head % c.group, dims);

            sum[i] = p[BT_PARTIAL_SUM];
            m[i] = p[BT_PARTIAL_MAX];
        }
        for (uint32_t k = i; k < count * (MERGE_DIMS / 4); k += MERGE_CHUNK) {
            uint32_t split = k / (MERGE_DIMS / 4), d = k % (MERGE_DIMS / 4) * 4;

            *(float4 *)&values[split][d] = *(const float4 *)(partial_at(c, item + first + split, head % c.group, dims) +
                                                             BT_PARTIAL_HEAD + first_dim + d);
        }
        __syncthreads();
        largest_so_far(m, so_far, count, before);
        if (i < count) {
            a[i] = exp2_of((i == 0 ? before : so_far[i - 1]) - so_far[i]);
            b[i] = exp2_of(m[i] - so_far[i]);
        }
        before = so_far[count - 1];
        __syncthreads();
        for (uint32_t k = 0; i < MERGE_DIMS && k < count; k++) {
            bool is_first = first + k == 0;

            l = is_first ? sum[k] : fmaf(l, a[k], sum[k] * b[k]);
            acc = is_first ? values[k][i] : fmaf(acc, a[k], values[k][i] * b[k]);
        }
        __syncthreads();
    }
    if (i < MERGE_DIMS) {
        c.a.out[decode_row(c, index) * c.a.out_stride + (size_t)head * dims + first_dim + i] = acc * (1.0f / l);
    }
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
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, decode_kernel<D>, D::threads, bytes);
    }
    if (error == cudaSuccess && c.clusters) {
        error = bt_cuda_go_clustered(cuda, decode_kernel<D>, dim3(cuda->splits, c.a.kv_heads, c.single_count),
                                     dim3(D::threads), bytes, cuda->splits, c);
    } else if (error == cudaSuccess) {
        size_t most = (size_t)cuda->sms * (size_t)each;

        error = bt_cuda_go(cuda, decode_kernel<D>, dim3((unsigned)(items < most ? items : most)), dim3(D::threads),
                           bytes, c);
    }
    if (error == cudaSuccess && c.merge_apart) {
        error = bt_cuda_go(cuda, merge_apart_kernel, dim3(c.a.heads, c.single_count, c.a.head_dim / MERGE_DIMS),
                           dim3(MERGE_CHUNK), 0, c);
    }
    return bt_cuda_check(cuda, error, "attention of single tokens");
}

// `few`: the time of one unit counts, not how much comes from memory at once.
template <int STEPS>
static bt_err
launch_group(bt_cuda *cuda, const attention_call &c, bool few)
{
    const int ahead = STEPS == 2 ? 2 : 1, unit = STEPS == 8 ? 4 : 8;

    if (few) {
        return c.group <= 2   ? launch<decode_shape<STEPS, 2, unit, 1>>(cuda, c)
               : c.group <= 4 ? launch<decode_shape<STEPS, 4, unit, 1>>(cuda, c)
                              : launch<decode_shape<STEPS, 8, unit, 1>>(cuda, c);
    }
    return c.group <= 2   ? launch<decode_shape<STEPS, 2, 4, ahead>>(cuda, c)
           : c.group <= 4 ? launch<decode_shape<STEPS, 4, 4, ahead>>(cuda, c)
           : c.group <= 8 ? launch<decode_shape<STEPS, 8, 4, ahead>>(cuda, c)
                          : launch<decode_shape<STEPS, 16, 4, ahead>>(cuda, c);
}

bool
bt_cuda_decodes(const bt_cuda *cuda, const attention_call *c)
{
    return cuda->early_launch && c->l.format == BT_KV_INT8 && c->scale_groups == 1 && c->group <= 16 &&
           (c->a.head_dim == 64 || c->a.head_dim == 128 || c->a.head_dim == 256);
}

bt_err
bt_cuda_attention_decode(bt_cuda *cuda, const attention_call *call)
{
    attention_call c = *call;
    bool few = c.group <= 8 && (size_t)cuda->step.single_count * c.a.kv_heads * cuda->splits <= (size_t)cuda->sms;

    c.single_count = cuda->step.single_count;
    c.singles = c.single_count == cuda->tokens ? NULL : cuda->step.singles;
    c.arrivals = cuda->arrivals;
    c.clusters = few && cuda->splits > 1 && cuda->splits <= CLUSTER_MAX;
    c.merge_apart = cuda->splits > MERGE_HERE;
    c.partial_floats = cuda->partial_floats;
    c.block_shift = c.l.block_tokens == 16 ? 4 : c.l.block_tokens == 32 ? 5 : 6;
    return c.a.head_dim == 64    ? launch_group<2>(cuda, c, few)
           : c.a.head_dim == 128 ? launch_group<4>(cuda, c, few)
                                 : launch_group<8>(cuda, c, few);
}
