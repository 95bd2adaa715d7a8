// Attention of many splits of sequences that bring one token each, over an INT8 cache, on sm_90: every warp by itself.
//
// attention_decode.cuh gives a unit of tiles to the warps of a block, which meet three times a unit, and pays for that with two thirds of
// its instructions. Where there are more splits of 512 keys than warps have room, none of that is needed: here a warp takes a run of
// splits in the order (sequence, KV head, split), tile by tile, with a ring of three pieces (K or V of a tile) of its own:
//
//     slot   0    1    2    0    1    2   …
//     piece  K0   V0   K1   V1   K2   V2  …      the piece that lies three further on is asked for as soon as one is read
//
// (With an even number of slots K follows K, and V follows V.) It meets nobody. A (sequence, KV head) whose splits are all in one run is
// merged in registers; else they are left in `partials`, and the warp that arrives last merges them, or, of long sequences, a kernel of its
// own (attention_merge.cu).
//
// Row r of the i-th 16 × 8 product of scores is key 4 · group(r) + i, group(r) = r % 8 / 2 + 8 · (r % 2) + 4 · (r / 8). So the four keys that
// a lane weighs lie together: their scales are eight bytes, their codes one word, their weights sixteen bytes; and rows that eight lanes read
// at once lie in both halves of the tile by turns, the second of which is shifted by half of the banks.
// The columns of B are the group's queries, or four of them twice. Of four a lane keeps one of its two rows, so that nothing is
// computed twice.
//
// Every number is that of kernels/cpu/ref/attention.h; how the softmax comes about is said in prompt_softmax.cuh.
#pragma once

#include "kernels/cuda/attention_decode_heads.cuh"

// STEPS: head_dim / 32. COLUMNS: room for the group: 4 or 8.
template <int STEPS, int COLUMNS, int SLOTS = 3, int WARPS = 4> struct stream_shape {
    static const int steps = STEPS, columns = COLUMNS, dims = STEPS * 32;
    static const int halves = COLUMNS / 4; // rows of a product that a lane weighs
    static const int pairs = COLUMNS / 2;  // of (query, lane of l) a lane
    static const int slots = SLOTS, warps = WARPS, threads = warps * 32, blocks_each = STEPS == 2 ? 4 : 2; // an SM
    static const int k_shift = 64, v_piece = 16 * dims + 32, slot_bytes = 64 * dims + 128;
    static const int p_stride = COLUMNS == 4 ? 76 : 72; // floats: what keeps eight lanes' stores apart, and fits
};

template <typename D> struct stream_warp {
    __align__(16) uint8_t tile[D::slots][D::slot_bytes];
    __align__(16) __half scales[D::slots][2][64]; // with K: its scales and those of V
    __align__(16) float p[D::columns]
                         [D::p_stride]; // before a head's first tile: its queries' codes, and room to turn heads in
    __align__(16) uint8_t codes[D::columns][64];         // of p · scale_v
    __align__(16) int8_t new_k[D::dims], new_v[D::dims]; // the step's own token
    __half new_scales[2];
    float q_scale[D::columns];
    uint64_t full[D::slots];
};

// Where the weights and the codes of a query lie: those that lanes of one parity write lie apart.
template <typename D>
static __device__ __forceinline__ uint32_t
stream_row(uint32_t query)
{
    return query % 2 * (D::columns / 2) + query / 2;
}

// The group of four keys that a lane weighs, of its row g + 8 · half; or, of four queries, of the only one.
template <typename D>
static __device__ __forceinline__ uint32_t
stream_keys(int half)
{
    uint32_t g = threadIdx.x % 32 / 4, upper = D::halves == 2 ? (uint32_t)half : threadIdx.x % 4 / 2;

    return g / 2 + 8 * (g & 1) + 4 * upper;
}

// The queries in a lane's columns.
template <typename D>
static __device__ __forceinline__ uint32_t
stream_query(int col)
{
    return threadIdx.x % (D::columns / 2) * 2 + col;
}

// ---- the run ----

// Where a warp stands in its run. What is fetched lies at places of the lane's own block of the split, `base` + one of the two.
typedef struct {
    decode_unit u; // (its `block` is not used)
    const uint8_t *base;
    uint32_t to_v, to_scales; // from a head's K to its V; to scales of K (lanes 0 … 7) and of V (8 … 15)
} stream_cursor;

static __device__ __forceinline__ void
stream_enter_split(const attention_call &c, stream_cursor &at)
{
    uint32_t first = at.u.split * BT_ATTENTION_SPLIT, off = (threadIdx.x % 32) << c.block_shift;
    uint32_t seen = at.u.begin & ~63u;

    at.u.key = first < seen ? seen : first;
    if (off < BT_ATTENTION_SPLIT && first + off < at.u.end) {
        at.base =
            layer_at(c, c.blocks[at.u.table + ((first + off) >> c.block_shift)]) + at.u.kv_head * c.l.k_head_bytes;
    }
}

static __device__ __forceinline__ void
stream_enter_head(const attention_call &c, stream_cursor &at)
{
    uint32_t head = at.u.kv_head, of_k = head * (uint32_t)c.l.k_head_bytes;

    at.to_v = (uint32_t)c.l.v_offset + head * (uint32_t)c.l.v_head_bytes - of_k;
    at.to_scales = (threadIdx.x % 32 < 8 ? (uint32_t)c.l.k_scale_offset + head * (uint32_t)c.l.k_scale_head_bytes
                                         : (uint32_t)c.l.v_scale_offset + head * (uint32_t)c.l.v_scale_head_bytes) -
                   of_k;
}

static __device__ __forceinline__ void
stream_next_head(const attention_call &c, decode_unit &u)
{
    if (++u.kv_head == c.a.kv_heads) {
        u.kv_head = 0;
        u.index++;
        enter_row(c, u);
    }
    u.split = first_split(u);
}

// To the run's next tile; left = 0 behind the last.
static __device__ __forceinline__ void
stream_step(const attention_call &c, stream_cursor &at)
{
    at.u.key += 64;
    if (at.u.key < at.u.end && at.u.key % BT_ATTENTION_SPLIT != 0) {
        return;
    }
    if (--at.u.left == 0) {
        return;
    }
    if (++at.u.split > last_split(at.u)) {
        stream_next_head(c, at.u);
        stream_enter_head(c, at);
    }
    stream_enter_split(c, at);
}

// This warp's run: as many splits as any has, or what is left. Of all its first is *item. *apart: all leave partials.
template <typename D>
static __device__ __forceinline__ stream_cursor
stream_run(const attention_call &c, uint32_t *item, bool *apart)
{
    uint32_t items = splits_of_all(c) * c.a.kv_heads, warps = gridDim.x * D::warps, rest, splits, end;
    uint32_t each = (items + warps - 1) / warps, first = (blockIdx.x * D::warps + threadIdx.x / 32) * each;
    bool coarse = run_is_coarse(c, items);
    stream_cursor at = {};

    *apart = c.merge_apart && !coarse;
    first = first < items ? first : items;
    end = first + each < items ? first + each : items;
    if (coarse) {
        first = head_of_item(c, first, items);
        end = head_of_item(c, end, items);
    }
    *item = first;
    if (first == end) {
        return at;
    }
    at.u.left = end - first;
    rest = first;
    at.u.index = row_of_item(c, &rest);
    enter_row(c, at.u);
    splits = last_split(at.u) - first_split(at.u) + 1;
    at.u.kv_head = rest / splits;
    at.u.split = first_split(at.u) + rest % splits;
    stream_enter_head(c, at);
    stream_enter_split(c, at);
    return at;
}

// ---- fetching ----

// `base` of the lane whose block has the key at `off` of the split.
static __device__ __forceinline__ const uint8_t *
stream_base(const attention_call &c, const stream_cursor &at, uint32_t off)
{
    uint64_t base = (uint64_t)at.base;
    uint32_t lane = off >> c.block_shift, low = __shfl_sync(0xffffffffu, (uint32_t)base, lane),
             high = __shfl_sync(0xffffffffu, (uint32_t)(base >> 32), lane);

    return (const uint8_t *)((uint64_t)high << 32 | low);
}

// K of the cursor's tile into a slot, and the scales of K and V.
template <typename D>
static __device__ __forceinline__ void
stream_fetch_k(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t slot)
{
    uint32_t lane = threadIdx.x % 32, barrier = bt_shared_at(&s.full[slot]), run = c.block_shift < 5 ? 16 : 32;
    uint32_t mask = (1u << c.block_shift) - 1, in_split = at.u.key % BT_ATTENTION_SPLIT;
    uint32_t off = lane * run, key = at.u.key + off, eight = lane % 8 * 8;
    bool there = off < 64 && key < at.u.end && key + run > at.u.begin;
    uint32_t runs = __popc(__ballot_sync(0xffffffffu, there));
    const uint8_t *from = stream_base(c, at, in_split + off), *scales = stream_base(c, at, in_split + eight);

    if (lane == 0) {
        bt_barrier_expect(barrier, runs * run * D::dims);
    }
    __syncwarp();
    if (there) {
        bt_bulk_copy(bt_shared_at(s.tile[slot]) + off * D::dims + off / 32 * D::k_shift, from + (key & mask) * D::dims,
                     run * D::dims, barrier);
    }
    if (lane < 16 && piece_seen(at.u, at.u.key + eight / 16 * 16)) {
        bt_copy16(&s.scales[slot][lane / 8][eight], scales + at.to_scales + ((at.u.key + eight) & mask) * 2, true);
    }
    bt_copy_arrive(barrier);
}

// Its V.
template <typename D>
static __device__ __forceinline__ void
stream_fetch_v(const attention_call &c, stream_warp<D> &s, const stream_cursor &at, uint32_t slot)
{
    uint32_t lane = threadIdx.x % 32, barrier = bt_shared_at(&s.full[slot]), key = at.u.key + lane * 16;
    const uint8_t *from = stream_base(c, at, at.u.key % BT_ATTENTION_SPLIT + lane % 4 * 16);
    bool there = lane < 4 && piece_seen(at.u, key);
    uint32_t pieces = __popc(__ballot_sync(0xffffffffu, there));

    if (lane == 0) {
        bt_barrier_expect(barrier, pieces * 16 * D::dims);
    }
    __syncwarp();
    if (there) {
        bt_bulk_copy(bt_shared_at(s.tile[slot]) + lane * D::v_piece,
                     from + at.to_v + (key & ((1u << c.block_shift) - 1)) * D::dims, 16 * D::dims, barrier);
    }
    bt_copy_arrive(barrier); // as of K, so that a slot's barrier counts alike
}

// Where the warp reads in its ring.
typedef struct {
    uint32_t slot, parity;
} stream_at;

template <typename D>
static __device__ __forceinline__ void
stream_turn(stream_at &at)
{
    at.slot = at.slot + 1 == D::slots ? 0 : at.slot + 1;
    at.parity ^= at.slot == 0;
}
