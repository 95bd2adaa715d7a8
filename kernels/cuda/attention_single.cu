// Attention of few sequences that bring one token each, over an INT8 cache, on sm_90: a block a (sequence, KV head, split of 512 keys),
// a warp a tile of 64 of them. What counts here is how many instructions follow each other, as each is run once.
//
//     before the kernel in front is over   every warp asks for K and V of its tile
//     heads      a warp a query, and the new K and V      ── meet
//     scores     a warp a tile; its largest               ── meet
//     weights    once the largest of all tiles before is known: codes of p · scale_v, their scale, the sums of l   ── meet
//     values     a warp sixteen dims, through all tiles; the splits of a row are blocks of a cluster, and each is sent some dims of all
//
// What a warp computes is said in attention_stream.cuh; every number is that of kernels/cpu/ref/attention.h.
#include "kernels/cuda/attention_decode_merge.cuh"
#include "kernels/cuda/attention_stream_fetch.cuh"
#include "kernels/cuda/attention_stream_heads.cuh"
#include "kernels/cuda/attention_stream_math.cuh"
#include "kernels/cuda/ptx_cluster.cuh"

#define TILES 8u // of a split
#define THREADS (TILES * 32)

template <int STEPS, int COLUMNS> struct single_shape {
    typedef stream_shape<STEPS, COLUMNS, 2> tile; // slot 0: K, slot 1: V
    static const int dims = STEPS * 32, columns = COLUMNS, halves = COLUMNS / 4;
};

template <typename D> struct single_shared {
    stream_warp<typename D::tile> tile[TILES];
    __align__(16) float2 change[TILES][D::columns]; // scale of the codes, corr
    __align__(16) float most[D::columns][TILES];
    float sums[TILES][D::columns][16]; // of l
    float l[D::columns];
    float parts[CLUSTER_MAX][D::columns][D::dims / 2]; // some dims of all splits
    float parts_m[CLUSTER_MAX][D::columns], parts_l[CLUSTER_MAX][D::columns];
    uint64_t parts_full;
};

[[maybe_unused]] static __device__ __forceinline__ uint32_t
own_warp(void)
{
    return threadIdx.x / 32;
}

// The row, and where this block's split is in it; left = 0: there is none.
template <typename D>
static __device__ __forceinline__ stream_cursor
single_split(const attention_call &c)
{
    stream_cursor at = {};

    at.u.index = blockIdx.z, at.u.kv_head = blockIdx.y;
    enter_row(c, at.u);
    at.u.split = first_split(at.u) + blockIdx.x;
    if (at.u.split <= last_split(at.u)) {
        at.u.left = 1;
        stream_enter_head(c, at);
        stream_enter_split(c, at);
    }
    at.u.key = at.u.split * BT_ATTENTION_SPLIT + own_warp() * 64; // of this warp's tile
    return at;
}

// The heads: this warp's, and eight further on.
template <typename D>
static __device__ __forceinline__ void
single_ready(const attention_call &c, single_shared<D> &s, const decode_unit &u)
{
    typedef typename D::tile T;
    bool with_new = u.split == last_split(u);
    uint32_t lane = threadIdx.x % 32, count = c.group + (with_new ? 2 : 0), last = u.end - 1;
    uint32_t block = with_new ? c.blocks[u.table + (last >> c.block_shift)] : 0;
    stream_warp<T> &first = s.tile[0], &owner = s.tile[last % BT_ATTENTION_SPLIT / 64];
    int8_t *q8 = (int8_t *)first.p;
    decode_angles<T::steps> angles;

    load_angles<T::steps>(c, u, angles);
#pragma unroll 1
    for (uint32_t i = own_warp(); i < count; i += TILES) {
        bool is_v = i == c.group + 1, is_k = i == c.group;
        float x[T::steps];

        stream_load_head<T>(c, u, i, x);
        if (!is_v) {
            stream_turn_head<T>(c, u, angles, is_k ? u.kv_head : u.kv_head * c.group + i, is_k,
                                (float *)((int8_t *)s.tile[own_warp()].p + D::columns * D::dims), x);
        }
        if (i >= c.group) {
            stream_keep_new<T>(c, owner, u, block, is_v, x);
            continue;
        }
        bt_int8_scale scale = bt_row_int8_scale(stream_amax<T>(x));

#pragma unroll
        for (int k = 0; k < T::steps; k++) {
            q8[i * D::dims + lane + 32 * k] = bt_ref_int8_code(x[k], scale.inverse);
        }
        if (lane == 0) {
            first.q_scale[i] = scale.scale * c.a.scale;
        }
    }
    for (uint32_t i = threadIdx.x; i < (D::columns - c.group) * D::dims / 4; i += THREADS) { // columns without a query
        ((uint32_t *)(q8 + c.group * D::dims))[i] = 0;
    }
    if (threadIdx.x >= c.group && threadIdx.x < D::columns) {
        first.q_scale[threadIdx.x] = 0.0f;
    }
}

// The largest of the tiles before this warp's, of the lane's own query, and *all: of all.
template <typename D>
static __device__ __forceinline__ float
single_before(const single_shared<D> &s, uint32_t query, float *all)
{
    float4 low = *(const float4 *)&s.most[query][0], high = *(const float4 *)&s.most[query][4];
    const float most[TILES] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float before = -INFINITY, m = -INFINITY;

#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
        before = j == own_warp() ? m : before;
        m = larger(m, most[j]);
    }
    *all = m;
    return before;
}

// Scores and weights of this warp's tile. Returns m of the split, of the lane's own query. Whole blocks.
template <typename D>
static __device__ __forceinline__ float
single_weigh(const attention_call &c, single_shared<D> &s, stream_state<typename D::tile> &q, const decode_unit &u)
{
    typedef typename D::tile T;
    stream_warp<T> &own = s.tile[own_warp()];
    uint32_t lane = threadIdx.x % 32, tile = u.key, key = u.end - 1 - tile, query = stream_query<T>(q.odd);
    bool here = u.left != 0 && tile_seen(u, tile), masked = tile < u.begin || tile + 64 > u.end, strange = false;
    float x[T::halves][2][4], m = -INFINITY, all;
    stream_scales<T> scales;
    stream_change change;
    stream_any<T> any;
    int32_t dot[4][4];

    if (here) {
        bt_barrier_wait(bt_shared_at(&own.full[0]), 0);
        bt_copy_wait<0>();
        __syncwarp(); // the scales have come, too
        if (key < 64) {
            stream_put_k<T>(own, 0, key);
        }
        strange = (masked ? stream_read_scales<T, true>(own, u, 0, tile, scales)
                          : stream_read_scales<T, false>(own, u, 0, tile, scales)) ||
                  !q.ordinary;
        stream_dots<T>(own, q, 0, dot);
        stream_scores<T>(dot, scales, x);
        if (__builtin_expect(strange, 0)) {
            any = stream_any_of<T>(q, x, scales);
            stream_most_any<T>(c, own, decode_unit(u), tile, any);
            m = any.most;
        } else {
            m = masked ? stream_most<T, true>(q, u, tile, x) : stream_most<T, false>(q, u, tile, x);
        }
    }
    if (lane < D::columns) { // these have all queries
        s.most[query][own_warp()] = m;
    }
    bt_bar_sync(1, THREADS);
    q.m = single_before<D>(s, query, &all);
    if (here) {
        m = larger(q.m, m);
        if (__builtin_expect(strange, 0)) {
            any.m = q.m;
            stream_weigh_any<T>(c, own, decode_unit(u), tile, any);
            change = any.change;
        } else if (__builtin_expect(masked, 0)) {
            stream_weigh<T, true>(own, q, u, tile, m, scales, x, change);
        } else {
            stream_weigh<T, false>(own, q, u, tile, m, scales, x, change);
        }
        if (lane < D::columns) {
            s.change[own_warp()][query] =
                q.odd ? make_float2(change.scale[1], change.corr[1]) : make_float2(change.scale[0], change.corr[0]);
        }
        if (key < 64) {
            bt_barrier_wait(bt_shared_at(&own.full[1]), 0);
            stream_put_v<T>(own, 1, key);
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < T::pairs; n++) {
            s.sums[own_warp()][lane / 16 + 2 * n][lane % 16] = stream_sum<T>(own, n);
        }
    }
    bt_bar_sync(1, THREADS);
    return all;
}

// acc of sixteen dims, rows g and g + 8 of which are dims 2g and 2g + 1, through the tiles first … end − 1 (N of them at once).
template <typename D, int N>
static __device__ __forceinline__ void
single_values(const single_shared<D> &s, uint32_t tile, float acc[2 * D::halves])
{
    typedef typename D::tile T;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t codes = stream_row<T>(D::columns == 4 ? g % 4 : g);
    int32_t dot[N][4];
    uint2 a[N][4];
    uint4 b[N];

#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint8_t *v = s.tile[tile + j].tile[1] + stream_place<T>(t * 16) + (own_warp() * 16 + g * 2) * 4;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[j][i] = *(const uint2 *)(v + i * D::dims * 4);
            dot[j][i] = BT_ROUND_MAGIC_BITS;
        }
        b[j] = *(const uint4 *)(s.tile[tile + j].codes[codes] + t * 16);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint32_t low[4] = {a[j][0].x, a[j][0].y, a[j][1].x, a[j][1].y};

        bt_mma_su8(dot[j], low, b[j].x, b[j].y);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint32_t high[4] = {a[j][2].x, a[j][2].y, a[j][3].x, a[j][3].y};

        bt_mma_su8(dot[j], high, b[j].z, b[j].w);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        float4 change = *(const float4 *)&s.change[tile + j][stream_query<T>(0)];

#pragma unroll
        for (int i = 0; i < 2 * D::halves; i++) {
            int32_t sum = D::halves == 2 ? dot[j][i] : t >= 2 ? dot[j][2 + i % 2] : dot[j][i % 2];

            acc[i] = fmaf(i % 2 == 0 ? change.x : change.z, __int_as_float(sum) - BT_ROUND_MAGIC,
                          acc[i] * (i % 2 == 0 ? change.y : change.w));
        }
    }
}

// The dim of acc[i].
template <typename D>
static __device__ __forceinline__ uint32_t
single_dim(int i)
{
    uint32_t row = D::halves == 2 ? (uint32_t)i / 2 : threadIdx.x % 4 / 2;

    return own_warp() * 16 + threadIdx.x % 32 / 4 * 2 + row;
}

// acc and l of the split: l of thread 16 · query + lane, in all sixteen.
template <typename D>
static __device__ __forceinline__ float
single_add(single_shared<D> &s, const decode_unit &u, float acc[2 * D::halves])
{
    uint32_t split = u.split * BT_ATTENTION_SPLIT, query = threadIdx.x / 16;
    uint32_t first = u.begin > split ? (u.begin - split) / 64 : 0, seen = (u.end - split + 63) / 64,
             end = seen < TILES ? seen : TILES;
    bool has_dims = D::dims == 128 || own_warp() < 4;
    float l = 0.0f;

    for (uint32_t j = first; j < end; j++) {
        bt_barrier_wait(bt_shared_at(&s.tile[j].full[1]), 0);
    }
    if (query < D::columns) {
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) { // (all are read at once)
            float next = fmaf(l, s.change[j][query].y, s.sums[j][query][threadIdx.x % 16]);

            l = j >= first && j < end ? next : l;
        }
    }
    if (has_dims && end - first == TILES) {
        single_values<D, 4>(s, 0, acc);
        single_values<D, 4>(s, 4, acc);
    } else if (has_dims) {
#pragma unroll 1
        for (uint32_t j = first; j < end; j++) {
            single_values<D, 1>(s, j, acc);
        }
    }
    return query < D::columns ? split_l(l) : 0.0f;
}

// Of a row with one split.
template <typename D>
static __device__ __forceinline__ void
single_store(const attention_call &c, single_shared<D> &s, const decode_unit &u, const float acc[2 * D::halves],
             float l)
{
    typedef typename D::tile T;

    if (threadIdx.x % 16 == 0 && threadIdx.x / 16 < D::columns) {
        s.l[threadIdx.x / 16] = 1.0f / l;
    }
    bt_bar_sync(1, THREADS);
    if (D::dims == 128 || own_warp() < 4) {
#pragma unroll
        for (int i = 0; i < 2 * D::halves; i++) {
            uint32_t query = stream_query<T>(i % 2);

            if (query < c.group) {
                out_at(c, u, query, D::dims)[single_dim<D>(i)] = acc[i] * s.l[query];
            }
        }
    }
}

// The merge of SPLITS splits at most of some dims, from the left. What depends on maxima alone comes first.
template <typename D, int SPLITS>
static __device__ __forceinline__ void
single_merge(const attention_call &c, const single_shared<D> &s, const decode_unit &u)
{
    const uint32_t each = D::dims / SPLITS;
    uint32_t splits = last_split(u) - first_split(u) + 1;

    for (uint32_t e = threadIdx.x; e < c.group * each; e += THREADS) {
        uint32_t i = e / each, d = e % each;
        float m = s.parts_m[0][i], l = s.parts_l[0][i], total = s.parts[0][i][d], a[SPLITS], b[SPLITS];

#pragma unroll
        for (int k = 1; k < SPLITS; k++) {
            float other = s.parts_m[k][i], n = (uint32_t)k < splits ? larger(m, other) : m;

            a[k] = exp2_of(m - n), b[k] = exp2_of(other - n);
            m = n;
        }
#pragma unroll
        for (int k = 1; k < SPLITS; k++) {
            bool there = (uint32_t)k < splits;

            l = there ? fmaf(l, a[k], s.parts_l[k][i] * b[k]) : l;
            total = there ? fmaf(total, a[k], s.parts[k][i][d] * b[k]) : total;
        }
        out_at(c, u, i, D::dims)[blockIdx.x * each + d] = total * (1.0f / l);
    }
}

// A number into block `rank` of the cluster, at `to` of this one's.
template <typename D>
static __device__ __forceinline__ void
single_put(single_shared<D> &s, const float *to, uint32_t rank, float x)
{
    bt_cluster_send(bt_cluster_at(bt_shared_at(to), rank), x, bt_cluster_at(bt_shared_at(&s.parts_full), rank));
}

// Each block is sent its dims of this one's split; m: of lanes' own queries.
template <typename D>
static __device__ __forceinline__ void
single_send(const attention_call &c, single_shared<D> &s, const float acc[2 * D::halves], float l, float m, bool odd)
{
    typedef typename D::tile T;
    uint32_t each = D::dims / gridDim.x, rank = threadIdx.x % 16;

#pragma unroll
    for (int i = 0; i < 2 * D::halves && (D::dims == 128 || own_warp() < 4); i++) {
        uint32_t query = stream_query<T>(i % 2), dim = single_dim<D>(i);

        if (query < c.group) {
            single_put<D>(s, &s.parts[blockIdx.x][query][dim % each], dim / each, acc[i]);
        }
    }
    if (threadIdx.x / 16 < D::columns && rank < gridDim.x) {
        single_put<D>(s, &s.parts_l[blockIdx.x][threadIdx.x / 16], rank, l);
    }
    if (own_warp() == TILES - 1) { // (the last warp has less to do.) Each run of lanes has all queries
#pragma unroll 1
        for (uint32_t to = threadIdx.x % 32 / D::columns; to < gridDim.x; to += 32 / D::columns) {
            single_put<D>(s, &s.parts_m[blockIdx.x][stream_query<T>(odd)], to, m);
        }
    }
}

// What all splits of the row send a block.
template <typename D>
static __device__ __forceinline__ uint32_t
single_bytes(const attention_call &c, const decode_unit &u)
{
    return (last_split(u) - first_split(u) + 1) * (c.group * (D::dims / gridDim.x) + 2 * D::columns) * 4;
}

template <typename D>
static __global__ void
__launch_bounds__(THREADS, 1) single_kernel(const __grid_constant__ attention_call c)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    typedef typename D::tile T;
    extern __shared__ __align__(128) uint8_t memory[];
    single_shared<D> &s = *(single_shared<D> *)memory;
    stream_warp<T> &own = s.tile[own_warp()];
    float acc[2 * D::halves] = {}, l = 0.0f, m = 0.0f;
    stream_state<T> q;
    stream_cursor at;
    bool odd = false;

    if (threadIdx.x % 32 == 0) {
        bt_barrier_init(bt_shared_at(&own.full[0]), 1);
        bt_barrier_init(bt_shared_at(&own.full[1]), 1);
        if (threadIdx.x == 0) {
            bt_barrier_init(bt_shared_at(&s.parts_full), 1);
        }
        bt_barrier_init_done();
    }
    __syncwarp();
    if (gridDim.x > 1) {
        bt_cluster_begun();
    }
    at = single_split<D>(c);
    if (at.u.left != 0 && tile_seen(at.u, at.u.key)) {
        stream_fetch_k<T>(c, own, at, 0);
        bt_copy_commit();
        stream_fetch_v<T>(c, own, at, 1);
    }
    bt_let_next();
    if (threadIdx.x == 0) { // so that their addresses' translation is at hand
        bt_prefetch(c.a.qkv + at.u.row * c.a.qkv_stride);
        bt_prefetch(out_at(c, at.u, 0, D::dims));
    }
    bt_wait_before();
    if (at.u.left != 0) {
        single_ready<D>(c, s, at.u);
        bt_bar_sync(1, THREADS);
        if (own_warp() != 0 && threadIdx.x % 32 < D::columns) { // (the first warp has them, and others read them now)
            own.q_scale[threadIdx.x % 32] = s.tile[0].q_scale[threadIdx.x % 32];
        }
        stream_open<T>(c, s.tile[0], q);
        odd = q.odd;
        m = single_weigh<D>(c, s, q, at.u);
        l = single_add<D>(s, at.u, acc);
    }
    if (gridDim.x == 1) {
        single_store<D>(c, s, at.u, acc, l);
        return;
    }
    bt_cluster_wait(); // all have begun
    if (threadIdx.x == 0) {
        bt_barrier_expect(bt_shared_at(&s.parts_full), single_bytes<D>(c, at.u));
    }
    if (at.u.left != 0) {
        single_send<D>(c, s, acc, l, m, odd);
    }
    bt_barrier_wait(bt_shared_at(&s.parts_full), 0);
    if (gridDim.x == 2) {
        single_merge<D, 2>(c, s, at.u);
    } else if (gridDim.x == 4) {
        single_merge<D, 4>(c, s, at.u);
    } else {
        single_merge<D, 8>(c, s, at.u);
    }
#endif
}

// ---- launch ----

template <typename D>
static bt_err
single_launch(bt_cuda *cuda, const attention_call &c)
{
    cudaError_t error = bt_cuda_go_clustered(cuda, single_kernel<D>, dim3(cuda->splits, c.a.kv_heads, c.single_count),
                                             dim3(THREADS), sizeof(single_shared<D>), cuda->splits, c);

    return bt_cuda_check(cuda, error, "attention of few splits");
}

bool
bt_cuda_attention_is_single(const bt_cuda *cuda, const attention_call *c, size_t items)
{
    return cuda->single && c->group <= 8 && (c->a.head_dim == 64 || c->a.head_dim == 128) &&
           cuda->splits <= CLUSTER_MAX && items <= (size_t)cuda->sms;
}

bt_err
bt_cuda_attention_single(bt_cuda *cuda, const attention_call *c)
{
    if (c->a.head_dim == 64) {
        return c->group <= 4 ? single_launch<single_shape<2, 4>>(cuda, *c)
                             : single_launch<single_shape<2, 8>>(cuda, *c);
    }
    return c->group <= 4 ? single_launch<single_shape<4, 4>>(cuda, *c) : single_launch<single_shape<4, 8>>(cuda, *c);
}
