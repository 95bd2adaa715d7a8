// Attention of many splits of sequences that bring one token each, over an INT8 cache, on sm_90: every warp by itself.
//
// attention_decode.cuh gives a unit of tiles to the warps of a block, which meet three times a unit, and pays for that with two thirds of
// its instructions. Where there are more splits of 512 keys than warps have room, none of that is needed: here a warp takes a run of
// splits in the order (sequence, KV head, split), tile by tile, with a ring of three pieces (K or V of a tile) of its own:
//
//     slot   0    1    2    0    1    2   …
//     piece  K0   V0   K1   V1   K2   V2  …      the piece that lies three further on is asked for as soon as one is read
//
// It waits for nobody. A (sequence, KV head) whose splits are all in one run is merged in registers. Else splits are left in `partials`, and
// the warp that arrives last merges them, or, of long sequences, a kernel of its own (attention_merge.cu). Up to eight splits a sequence
// attention_meet.cu shares differently.
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

// STEPS: head_dim / 32. COLUMNS: room for the group: 4 or 8. MEETS: the warps of a block share (sequence, KV head)s (attention_meet.cu).
template <int STEPS, int COLUMNS, int SLOTS = 3, bool MEETS = false, int WARPS = 4> struct stream_shape {
    static const bool meets = MEETS;
    static const int steps = STEPS, columns = COLUMNS, dims = STEPS * 32;
    static const int halves = COLUMNS / 4; // rows of a product that a lane weighs
    static const int pairs = COLUMNS / 2;  // of (query, lane of l) a lane
    static const int slots = SLOTS, warps = WARPS, threads = warps * 32;
    static const int blocks_each = WARPS == 8 ? 1 : STEPS == 2 ? 3 : 2; // an SM
    static const int half_shift = 64, slot_bytes = 64 * dims + 128;
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
    uint64_t new_full; // where warps meet: the step's own token is there
};

// Where what belongs to a tile's keys from `key` on lies in a slot: the second half is shifted by half of the banks. (V's 16-byte reads
// are of two keys' pieces at once that lie in the same banks: that costs less than copies of 16 keys.)
template <typename D>
static __device__ __forceinline__ uint32_t
stream_place(uint32_t key)
{
    return key * D::dims + key / 32 * D::half_shift;
}

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

// To the run's next tile; left = 0 behind the last. Where warps meet, the later of their splits comes first.
template <typename D>
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
    if (D::meets) {
        at.u.split--;
    } else if (++at.u.split > last_split(at.u)) {
        stream_next_head(c, at.u);
        stream_enter_head(c, at);
    }
    stream_enter_split(c, at);
}

// What a lane knows of a row: 32 of them at a time.
typedef struct {
    uint32_t row, end, table, items; // items: its splits, of all KV heads
    uint32_t joined; // the same, where a last split that is not whole counts as one with the split before
} stream_row_ahead;

// Has a row of so many splits a head a last one that joins the split before?
static __device__ __forceinline__ bool
stream_joins(uint32_t end, uint32_t splits)
{
    return splits > 1 && end % BT_ATTENTION_SPLIT != 0;
}

static __device__ __forceinline__ stream_row_ahead
stream_load_row(const attention_call &c, uint32_t index)
{
    stream_row_ahead r = {};

    if (index < c.single_count) {
        r.row = decode_row(c, index);
        r.end = c.positions[r.row] + 1, r.table = c.tables[r.row];
        uint32_t splits = (r.end - 1) / BT_ATTENTION_SPLIT - first_seen(c, r.end) / BT_ATTENTION_SPLIT + 1;

        r.items = splits * c.a.kv_heads;
        r.joined = stream_joins(r.end, splits) ? r.items - c.a.kv_heads : r.items;
    }
    return r;
}

// Of all rows. r: lanes' rows of the first 32.
static __device__ __forceinline__ uint32_t
stream_count(const attention_call &c, const stream_row_ahead &r, uint32_t *joined)
{
    uint32_t items = r.items, fewer = r.joined;

    for (uint32_t i = 32 + threadIdx.x % 32; i < c.single_count; i += 32) {
        stream_row_ahead other = stream_load_row(c, i);

        items += other.items, fewer += other.joined;
    }
    *joined = __reduce_add_sync(0xffffffffu, fewer);
    return __reduce_add_sync(0xffffffffu, items);
}

// The sum over the lanes up to this one.
static __device__ __forceinline__ uint32_t
stream_sum_to(uint32_t x)
{
#pragma unroll
    for (uint32_t i = 1; i < 32; i *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, x, i);

        x += threadIdx.x % 32 >= i ? other : 0;
    }
    return x;
}

// To the row that the piece `piece` of all is of, a split or two that are joined; returns what is left of it within the row. *item: the
// row's first split among all.
static __device__ __forceinline__ uint32_t
stream_enter_row(const attention_call &c, stream_row_ahead r, uint32_t piece, bool joins, decode_unit &u,
                 uint32_t *item)
{
    uint32_t before = 0;

#pragma unroll 1
    for (uint32_t first = 0;; first += 32, r = stream_load_row(c, first + threadIdx.x % 32)) {
        uint32_t pieces = joins ? r.joined : r.items, sum = stream_sum_to(pieces),
                 items = joins ? stream_sum_to(r.items) : sum, hit = __ballot_sync(0xffffffffu, piece < sum);

        if (hit != 0 || first + 32 >= c.single_count) {
            int at = hit != 0 ? __ffs((int)hit) - 1 : 31;

            u.index = first + (uint32_t)at;
            u.row = __shfl_sync(0xffffffffu, r.row, at), u.end = __shfl_sync(0xffffffffu, r.end, at);
            u.table = __shfl_sync(0xffffffffu, r.table, at);
            u.begin = first_seen(c, u.end);
            *item = before + __shfl_sync(0xffffffffu, items - r.items, at);
            return piece - __shfl_sync(0xffffffffu, sum - pieces, at);
        }
        piece -= __shfl_sync(0xffffffffu, sum, 31), before += __shfl_sync(0xffffffffu, items, 31);
    }
}

// The same to its split; returns the number of that among all.
static __device__ __forceinline__ uint32_t
stream_enter(const attention_call &c, const stream_row_ahead &r, uint32_t piece, bool joins, decode_unit &u)
{
    uint32_t item, rest = stream_enter_row(c, r, piece, joins, u, &item), splits = last_split(u) - first_split(u) + 1,
                   pieces = joins && stream_joins(u.end, splits) ? splits - 1 : splits;

    u.kv_head = rest / pieces;
    u.split = first_split(u) + rest % pieces;
    return item + u.kv_head * splits + rest % pieces;
}

// Of the warp's run: the number of its first split among all, whether all leave partials for a kernel of its own.
typedef struct {
    uint32_t item;
    bool apart;
} stream_plan;

// This warp's run: as many splits as any has, or what is left. (Nearly equal runs would cut heads of rows that are equally long.) Where runs
// are of few splits, a short one costs as much as a long one: 32 sequences of 2,048 tokens have a split for each of 1,024 warps, and with a
// token more five a head, of which one is nearly empty, in 640 runs of two. Then short ones go with the splits before them.
template <typename D>
static __device__ __forceinline__ stream_cursor
stream_run(const attention_call &c, stream_plan *plan)
{
    stream_row_ahead rows = stream_load_row(c, threadIdx.x % 32);
    uint32_t joined, items = stream_count(c, rows, &joined), warps = gridDim.x * D::warps,
                     warp = blockIdx.x * D::warps + threadIdx.x / 32;
    uint32_t each = (items + warps - 1) / warps, each_joined = (joined + warps - 1) / warps, pieces = items, first, end;
    bool coarse = run_is_coarse(c, items), joins = !coarse && each <= 4 && each_joined < each;
    stream_cursor at = {};

    if (joins) {
        each = each_joined, pieces = joined;
    }
    plan->apart = c.merge_apart && !coarse;
    first = warp * each < pieces ? warp * each : pieces;
    end = first + each < pieces ? first + each : pieces;
    if (coarse) {
        first = head_of_item(c, first, items);
        end = head_of_item(c, end, items);
    }
    plan->item = first;
    if (first == end) {
        return at;
    }
    plan->item = stream_enter(c, rows, first, joins, at.u);
    at.u.left = end - first;
    if (joins && each == 1) {
        at.u.left += at.u.split + 1 == last_split(at.u) && stream_joins(at.u.end, 2);
    } else if (joins) {
        decode_unit behind = {};

        at.u.left = (end == pieces ? items : stream_enter(c, rows, end, true, behind)) - plan->item;
    }
    stream_enter_head(c, at);
    stream_enter_split(c, at);
    return at;
}
