// Attention of sequences that bring one token each, over an INT8 cache, on sm_90: what one kernel does from Q|K|V to the output.
//
// A block takes a run of splits of 512 keys, in the order (sequence, KV head, split), UNIT tiles of 64 keys at a time. Of the warps of
// a tile each has a share of the queries; the first fetches K by bulk copies, AHEAD units ahead, the last V, one ahead. They score
// their tile, weigh it once the maxima of all tiles before it are known, and then all warps of the block multiply the unit's codes
// with V, a share of the head's dims each, tile after tile.
//
// A (sequence, KV head) whose splits are all in one block is merged there. Where there are few, their splits are blocks of a cluster,
// which merges them out of its shared memory. Else splits are left in `partials`, and the block that arrives last merges them (or,
// of long sequences, a kernel of its own), from the left as ever. K and V of the step's own token are made by the block with the last
// split, which puts them into the cache and into its own copy of the tile; nobody else reads them. So all of the cache that is
// fetched was there before the step, and is fetched before the kernel in front is over.
//
// In shared memory the second half of a tile of K is shifted by half of the banks against the first, and each quarter of V by a
// quarter. Row r of the i-th 16 × 8 product of scores is key 16 · (i ^ 2 · (r % 2)) + r; so neighbouring rows lie in different halves,
// and a lane has all four keys of one residue mod 16, which are one lane of l. A warp has up to four queries: the columns of B repeat
// them, and a lane weighs one of its two rows, so that none of the softmax is done for nothing.
//
// Every number is that of kernels/cpu/ref/attention.h.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_hopper.cuh"

#define CLUSTER_MAX 8u // splits of a row that blocks of a cluster merge

// STEPS: head_dim / 32. COLUMNS: room for the group: 2, 4, 8 or 16. UNIT: tiles at a time.
template <int STEPS, int COLUMNS, int UNIT, int AHEAD, int SHARE = COLUMNS <= 4 ? COLUMNS : 4> struct decode_shape {
    static const int steps = STEPS, columns = COLUMNS, unit = UNIT, ahead = AHEAD, dims = STEPS * 32;
    static const int share = SHARE, parts = COLUMNS / SHARE;     // queries of a warp, warps of a tile
    static const int warps = UNIT * parts, threads = warps * 32; // that compute
    static const int buffers =
        STEPS == 4 && COLUMNS <= 4 && UNIT == 4 ? 2 : 1; // of queries: with two, one warp more makes them ready
    static const int block_threads = threads + (buffers == 2 ? 32 : 0);
    static const int blocks_each = UNIT == 8 || STEPS == 8 || threads > 256 ? 1
                                   : STEPS == 2 && threads <= 128           ? 3
                                                                            : 2; // an SM
    static const int k_shift = STEPS >= 4 ? 64 : 0, q_stride = dims + k_shift, v_piece = 16 * dims + 32;
    static const int cols = share / 2;                          // queries that a lane weighs
    static const int abreast = COLUMNS > 8 ? warps / 2 : warps; // warps that share the dims; others have queries 8 … 15
    static const bool clustered = (UNIT == 8 || STEPS == 8) && COLUMNS <= 8; // may be launched in clusters
    static const int mt = STEPS * 2 > abreast ? STEPS * 2 / abreast : 1;     // tiles of 16 dims a warp
};

template <typename D> struct decode_shared {
    __align__(128) uint8_t k[D::ahead][D::unit][64 * D::dims + 128];
    __align__(128) uint8_t v[D::unit][4 * D::v_piece];
    __align__(16) __half scales[D::ahead][D::unit][2][64]; // of K, of V
    __align__(16) int8_t q8[D::buffers][D::columns][D::q_stride];
    __align__(16) uint8_t codes[D::unit][D::columns][64];
    __align__(16) float2 change[D::unit][D::columns]; // of a tile: scale of the codes, corr
    __align__(16) float most[D::unit][D::columns];
    float sums[D::unit][D::columns][16];
    float m[D::columns], l[D::columns]; // of the split, and at the end of all
    float q_scale[D::buffers][D::columns];
    float raw[D::columns + 2][D::dims]; // Q, K, V as they come
    int8_t new_k[D::buffers][D::dims], new_v[D::buffers][D::dims];
    __half new_scales[D::buffers][2];
    __align__(16) float parts[D::clustered ? CLUSTER_MAX : 1][D::columns]
                             [D::clustered ? D::dims / 2 : 1]; // of this block's dims, a split each
    float parts_m[D::clustered ? CLUSTER_MAX : 1][D::columns], parts_l[D::clustered ? CLUSTER_MAX : 1][D::columns];
    uint32_t last;
    uint64_t k_full[D::ahead][D::unit], v_full[D::unit];
    uint64_t q_full[2], q_free[2], left_behind; // the last: partials of the first (sequence, KV head)
};

// Up to UNIT tiles of a split, and where the block stands in its run.
typedef struct {
    uint32_t left;                            // splits of the block's run, this one included; 0: no more
    uint32_t index, row, kv_head, split, key; // key: the unit's first
    uint32_t begin, end;                      // the keys that are seen
    uint32_t table;                           // where the row's blocks begin
    uint32_t block;                           // lane: the block of piece lane % 4 of this warp's tile
} decode_unit;

// ---- runs ----

static __device__ __forceinline__ uint32_t
decode_row(const attention_call &c, uint32_t index)
{
    return c.singles == NULL ? index : c.singles[index].row;
}

static __device__ __forceinline__ uint32_t
first_seen(const attention_call &c, uint32_t end)
{
    return c.a.window == 0 || end <= c.a.window ? 0 : end - c.a.window;
}

static __device__ __forceinline__ uint32_t
splits_seen(const attention_call &c, uint32_t index)
{
    uint32_t position = c.positions[decode_row(c, index)];

    return position / BT_ATTENTION_SPLIT - first_seen(c, position + 1) / BT_ATTENTION_SPLIT + 1;
}

// Splits of all rows and one KV head. Whole warps.
static __device__ __forceinline__ uint32_t
splits_of_all(const attention_call &c)
{
    uint32_t sum = 0;

    for (uint32_t i = threadIdx.x % 32; i < c.single_count; i += 32) {
        sum += splits_seen(c, i);
    }
    return __reduce_add_sync(0xffffffffu, sum);
}

// Where item `item` of the order (row, KV head, split) is: its row's index; *item becomes the number within the row. Whole warps.
static __device__ __forceinline__ uint32_t
row_of_item(const attention_call &c, uint32_t *item)
{
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t first = 0;; first += 32) {
        uint32_t own = first + lane < c.single_count ? splits_seen(c, first + lane) * c.a.kv_heads : 0, sum = own, hit;

#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            uint32_t other = __shfl_up_sync(0xffffffffu, sum, i);

            sum += (int)lane >= i ? other : 0;
        }
        hit = __ballot_sync(0xffffffffu, *item < sum);
        if (hit != 0 || first + 32 >= c.single_count) {
            int at = hit != 0 ? __ffs(hit) - 1 : 31;

            *item -= __shfl_sync(0xffffffffu, sum - own, at);
            return first + at;
        }
        *item -= __shfl_sync(0xffffffffu, sum, 31);
    }
}

static __device__ __forceinline__ uint32_t
first_split(const decode_unit &u)
{
    return u.begin / BT_ATTENTION_SPLIT;
}

static __device__ __forceinline__ uint32_t
last_split(const decode_unit &u)
{
    return (u.end - 1) / BT_ATTENTION_SPLIT;
}

static __device__ __forceinline__ bool
tile_seen(const decode_unit &u, uint32_t tile)
{
    return tile < u.end && tile + 64 > u.begin;
}

static __device__ __forceinline__ bool
piece_seen(const decode_unit &u, uint32_t key)
{
    return key < u.end && key + 16 > u.begin;
}

static __device__ __forceinline__ void
enter_row(const attention_call &c, decode_unit &u)
{
    u.row = decode_row(c, u.index);
    u.end = c.positions[u.row] + 1;
    u.begin = first_seen(c, u.end);
    u.table = c.tables[u.row];
}

// The tile of this warp, and its share of the queries.
template <typename D>
static __device__ __forceinline__ uint32_t
own_tile(void)
{
    return threadIdx.x / 32 % D::unit;
}

template <typename D>
static __device__ __forceinline__ uint32_t
own_part(void)
{
    return threadIdx.x / 32 / D::unit;
}

template <typename D>
static __device__ __forceinline__ void
enter_unit(const attention_call &c, decode_unit &u)
{
    uint32_t key = u.key + own_tile<D>() * 64 + threadIdx.x % 4 * 16;

    u.block = key < u.end ? c.blocks[u.table + (key >> c.block_shift)] : 0;
}

template <typename D>
static __device__ __forceinline__ void
enter_split(const attention_call &c, decode_unit &u)
{
    u.key = u.split * BT_ATTENTION_SPLIT;
    if (D::unit < 8 && u.key + D::unit * 64 <= u.begin) {
        u.key += D::unit * 64;
    }
    enter_unit<D>(c, u);
}

// A row that is on its way: by the time a run enters it, what was asked for has come.
typedef struct {
    uint32_t row, position, table;
} decode_row_ahead;

static __device__ __forceinline__ decode_row_ahead
row_ahead(const attention_call &c, uint32_t index)
{
    decode_row_ahead r = {};

    if (index < c.single_count) {
        r.row = decode_row(c, index);
        r.position = c.positions[r.row], r.table = c.tables[r.row];
    }
    return r;
}

static __device__ __forceinline__ void
next_head(const attention_call &c, decode_unit &u, decode_row_ahead &next)
{
    if (++u.kv_head == c.a.kv_heads) {
        u.kv_head = 0;
        u.index++;
        u.row = next.row, u.table = next.table, u.end = next.position + 1;
        u.begin = first_seen(c, u.end);
        next = row_ahead(c, u.index + 1);
    }
    u.split = first_split(u);
}

template <typename D>
static __device__ __forceinline__ decode_unit
unit_after(const attention_call &c, decode_unit u, decode_row_ahead &next)
{
    uint32_t key = u.key + D::unit * 64;

    if (u.left == 0) {
        return u;
    }
    if (D::unit < 8 && key % BT_ATTENTION_SPLIT != 0 && key < u.end) {
        u.key = key;
        enter_unit<D>(c, u);
        return u;
    }
    if (--u.left == 0) {
        return u;
    }
    if (++u.split > last_split(u)) {
        next_head(c, u, next);
    }
    enter_split<D>(c, u);
    return u;
}

// Is there too little room for all splits' partials? Then runs are cut at KV heads, and none is needed.
static __device__ __forceinline__ bool
run_is_coarse(const attention_call &c, uint32_t items)
{
    return (size_t)items * c.group * (BT_PARTIAL_HEAD + c.a.head_dim) > c.partial_floats;
}

// The first split of the (sequence, KV head) that `item` is of.
static __device__ __forceinline__ uint32_t
head_of_item(const attention_call &c, uint32_t item, uint32_t items)
{
    uint32_t rest = item, index;

    if (item >= items) {
        return items;
    }
    index = row_of_item(c, &rest);
    return item - rest % splits_seen(c, index);
}

// The block's run: of all items its first is *item. *apart: all leave partials.
template <typename D>
static __device__ __forceinline__ decode_unit
first_unit(const attention_call &c, uint32_t *item, bool *apart)
{
    uint32_t items = splits_of_all(c) * c.a.kv_heads, rest, splits, end;
    bool coarse = run_is_coarse(c, items);
    decode_unit u = {};

    *apart = c.merge_apart && !coarse;
    rest = items % gridDim.x;
    *item = items / gridDim.x * blockIdx.x + (blockIdx.x < rest ? blockIdx.x : rest);
    end = *item + items / gridDim.x + (blockIdx.x < rest);
    if (coarse) {
        *item = head_of_item(c, *item, items);
        end = head_of_item(c, end, items);
    }
    if (*item == end) {
        return u;
    }
    u.left = end - *item;
    rest = *item;
    u.index = row_of_item(c, &rest);
    enter_row(c, u);
    splits = last_split(u) - first_split(u) + 1;
    u.kv_head = rest / splits;
    u.split = first_split(u) + rest % splits;
    enter_split<D>(c, u);
    return u;
}

// In a cluster: a split a block, counted by blockIdx.x; the row is known also where there is none.
template <typename D>
static __device__ __forceinline__ decode_unit
cluster_unit(const attention_call &c)
{
    decode_unit u = {};

    u.index = blockIdx.z, u.kv_head = blockIdx.y;
    enter_row(c, u);
    u.split = first_split(u) + blockIdx.x;
    if (u.split <= last_split(u)) {
        u.left = 1;
        enter_split<D>(c, u);
    }
    return u;
}

// A partial: [group][BT_PARTIAL_HEAD + dims], items one after the other.
static __device__ __forceinline__ float *
partial_at(const attention_call &c, uint32_t item, uint32_t query, uint32_t dims)
{
    return c.partials + ((size_t)item * c.group + query) * (BT_PARTIAL_HEAD + dims);
}

// ---- fetching ----

static __device__ __forceinline__ const uint8_t *
layer_at(const attention_call &c, uint32_t block)
{
    return c.a.pool + (size_t)block * c.l.block_bytes + c.a.layer * c.l.layer_bytes;
}

// This warp's tile of K into slot `slot`, and the scales of K and V.
template <typename D>
static __device__ __forceinline__ void
fetch_k(const attention_call &c, decode_shared<D> &s, const decode_unit &u, uint32_t slot)
{
    uint32_t lane = threadIdx.x % 32, own = own_tile<D>(), tile = u.key + own * 64, mask = c.l.block_tokens - 1;

    if (own_part<D>() == 0 && u.left != 0 && tile_seen(u, tile)) {
        uint32_t barrier = bt_shared_at(&s.k_full[slot][own]), run = c.l.block_tokens < 32 ? 16 : 32;
        uint32_t at = lane * run, key = tile + at, eight = lane % 8 * 8;
        bool there = at < 64 && key < u.end && key + run > u.begin;
        uint32_t runs = __popc(__ballot_sync(0xffffffffu, there)),
                 block = __shfl_sync(0xffffffffu, u.block, at / 16 % 4),
                 scale_block = __shfl_sync(0xffffffffu, u.block, eight / 16);

        if (lane == 0) {
            bt_barrier_expect(barrier, runs * run * D::dims);
        }
        __syncwarp();
        if (there) {
            bt_bulk_copy(bt_shared_at(s.k[slot][own] + at * D::dims + at / 32 * D::k_shift),
                         layer_at(c, block) + u.kv_head * c.l.k_head_bytes + (key & mask) * D::dims, run * D::dims,
                         barrier);
        }
        if (lane < 16 && piece_seen(u, tile + eight / 16 * 16)) {
            size_t head = lane < 8 ? c.l.k_scale_offset + u.kv_head * c.l.k_scale_head_bytes
                                   : c.l.v_scale_offset + u.kv_head * c.l.v_scale_head_bytes;

            bt_copy16(&s.scales[slot][own][lane / 8][eight],
                      layer_at(c, scale_block) + head + (tile + eight & mask) * 2, true);
        }
        bt_copy_arrive(barrier);
    }
}

// The same of V, into the only slot.
template <typename D>
static __device__ __forceinline__ void
fetch_v(const attention_call &c, decode_shared<D> &s, const decode_unit &u)
{
    uint32_t lane = threadIdx.x % 32, own = own_tile<D>(), tile = u.key + own * 64;

    if (own_part<D>() == D::parts - 1 && u.left != 0 && tile_seen(u, tile)) {
        uint32_t key = tile + lane * 16, barrier = bt_shared_at(&s.v_full[own]);
        bool there = lane < 4 && piece_seen(u, key);
        uint32_t pieces = __popc(__ballot_sync(0xffffffffu, there));

        if (lane == 0) {
            bt_barrier_expect(barrier, pieces * 16 * D::dims);
        }
        __syncwarp();
        if (there) {
            bt_bulk_copy(bt_shared_at(s.v[own] + lane * D::v_piece),
                         layer_at(c, u.block) + c.l.v_offset + u.kv_head * c.l.v_head_bytes +
                             (key & (c.l.block_tokens - 1)) * D::dims,
                         16 * D::dims, barrier);
        }
    }
}
