// A call of few tokens (linear_few.cuh) as its kernel sees it, and its weights on their way into shared memory.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_mma.cuh"
#include "kernels/cuda/ptx_hopper.cuh"

#define FEW_TOKENS 16u
#define FEW_WORKERS 16u                                        // at most
#define FEW_THREADS 640u                                       // at most
#define FEW_SLOTS(bits, nt) ((bits) == 4 && (nt) == 1 ? 4 : 2) // of a worker: pieces on their way
#define FEW_COLUMNS 256u                                       // of a piece
#define FEW_PIECES 4                                           // of an item
#define FEW_SHARED_MAX (226u * 1024)                           // bytes beside what a kernel names itself
#define FEW_SHARED_MIN (115u * 1024)                           // more than a half: no SM takes two blocks
#define FEW_OUTLIERS_MAX (24u * 1024)                          // bytes, of all tiles of a block

// Where things lie in shared memory: bytes from its beginning.
typedef struct {
    uint32_t barriers, codes, scales, scratch, norm, bytes; // norm 0: it stays where it is
    uint32_t outliers;                                      // 0: there are none, or they stay where they are
} few_places;

// Codes of a call that come segment by segment (few_staged.cuh).
typedef struct {
    uint32_t slots, slot_bytes; // segments that there is room for at once: a power of two, or all
    bool stay;                  // all segments have a slot: they come once
    uint32_t mask, shift;       // fill n is the (n >> shift)-th of slot n & mask
} few_codes_ring;

typedef struct {
    linear_call c;
    const float *x, *norm; // of a block that makes the codes itself
    float norm_eps;
    uint32_t cols, columns;                     // columns: that are fetched
    bool encodes;                               // the block makes its own codes: x and norm can be read by fours
    uint32_t width;                             // tokens of eight that codes are there for: 1 or 8
    uint32_t sa_width;                          // floats of a row of activation scales: 2, 8 or 16
    uint32_t pitch;                             // floats from a row to the next in sums
    uint32_t row_floats;                        // of x in shared memory
    uint32_t segments, chunk, workers, helpers; // the latter two: warps
    uint32_t run_inverse, token_shift;   // (one_items.cuh) 65,536 / runs, rounded up; tokens: 1 << token_shift at most
    uint32_t runs, join;                 // of segments that a worker multiplies and adds: 1 << join segments each
    bool alone;                          // a worker has one run at most, whose sums go where its pieces were
    uint32_t sums_at, sum_run, sum_tile; // where sums begin, in bytes; floats from a run, and a tile, to the next
    uint32_t each, more;                 // units (tiles, or pairs of them) of a block; blocks that have one more
    uint32_t room, outlier_bytes;        // outliers of a tile there is room for; bytes of a tile's
    few_codes_ring ring;                 // of few_staged.cuh
    few_places at;
    bool asks; // whether it would be taken: nothing is queued
} few_call;

static inline uint32_t
bt_few_rounded(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

// Numbers of each (row, token) beside its runs' sums: few_rows' extra, and old.
static inline uint32_t
bt_few_beside(const few_call *f)
{
    return f->c.epilogue == BT_LINEAR_ADD ? 2 : 1;
}

// linear_few.cu. A call as a few_call, whose blocks make codes of `encodes_max` columns at most, if of any; how its tiles are shared out,
// at most so many a block; f->room and outlier_bytes; and places with so many workers and a chunk of at most `tiles`: false if there is no
// room for that many, or, not `whole`, for one.
few_call bt_few_call_of(const linear_call *c, const bt_linear_args *a, uint32_t block, uint32_t encodes_max);
uint32_t bt_few_share(few_call *f, uint32_t sms, uint32_t *grid);
void bt_few_outliers(few_call *f, uint32_t tiles);
bool bt_few_lay_out(few_call *f, uint32_t tiles, uint32_t ring_bytes, uint32_t workers, bool whole);

// linear_few_staged.cu, linear_one.cu, linear_lean.cu: queue the call by the kernel of that name, if that is for it: *taken says so.
bt_err bt_cuda_linear_staged(bt_cuda *cuda, const bt_linear_args *a, few_call *f, uint32_t block, bool *taken);
bt_err bt_cuda_linear_one(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool *taken);
bt_err bt_cuda_linear_lean(bt_cuda *cuda, const bt_linear_args *a, const few_call *call, bool *taken);

// The call by LAUNCH::of<BITS, BLOCK, NT> of its format and number of tokens, if there is one.
template <typename LAUNCH, int BITS, int BLOCK>
static inline bt_err
bt_few_by_tokens(bt_cuda *cuda, const bt_linear_args *a, few_call *f, bool *taken)
{
    return a->tokens <= 8 ? LAUNCH::template of<BITS, BLOCK, 1>(cuda, a, f, taken)
                          : LAUNCH::template of<BITS, BLOCK, 2>(cuda, a, f, taken);
}

template <typename LAUNCH>
static inline bt_err
bt_few_by_format(bt_cuda *cuda, const bt_linear_args *a, few_call *f, uint32_t block, bool *taken)
{
    if (f->c.part[0].nibbles) {
        return block == 128  ? bt_few_by_tokens<LAUNCH, 4, 128>(cuda, a, f, taken)
               : block == 64 ? bt_few_by_tokens<LAUNCH, 4, 64>(cuda, a, f, taken)
               : block == 32 ? bt_few_by_tokens<LAUNCH, 4, 32>(cuda, a, f, taken)
                             : BT_OK;
    }
    return block == 128            ? bt_few_by_tokens<LAUNCH, 8, 128>(cuda, a, f, taken)
           : block == 64           ? bt_few_by_tokens<LAUNCH, 8, 64>(cuda, a, f, taken)
           : block == 32           ? bt_few_by_tokens<LAUNCH, 8, 32>(cuda, a, f, taken)
           : block == BT_BLOCK_ROW ? bt_few_by_tokens<LAUNCH, 8, 0>(cuda, a, f, taken)
                                   : BT_OK;
}

// A worker's pieces on their way: a slot has codes, and scales of blocks behind them.
template <int BITS, int BLOCK, int SLOTS> struct few_ring {
    static const int slots = SLOTS;
    static const int row_bytes = FEW_COLUMNS + 16; // 8 bits: without bank conflicts
    static const int code_bytes = BITS == 4 ? FEW_COLUMNS * 8 : 16 * row_bytes;
    static const int scale_bytes = BLOCK == 0 ? 0 : (int)FEW_COLUMNS / (BLOCK ? BLOCK : 1) * 32;
    static const int piece_bytes = code_bytes + scale_bytes;
    static const int bytes = slots * piece_bytes;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Where the sums of (run, tile of the chunk, row, token) lie.
static __device__ __forceinline__ uint32_t
sum_at(const few_call &f, uint32_t run, uint32_t tile, uint32_t row, uint32_t token)
{
    return run * f.sum_run + tile * f.sum_tile + row * f.pitch + token;
}

typedef struct {
    const uint8_t *codes;
    const __half *scales; // NULL: one a row
    size_t stride;        // 8 bits: from a row to the next
    uint32_t tile, segment;
    uint32_t columns, blocks; // columns 0: there is none
} few_item;

// The item at (tile, segment), which may be some tiles further on.
static __device__ __forceinline__ few_item
item_at(const few_call &f, uint32_t tile, uint32_t segment, uint32_t end)
{
    few_item item = {};
    uint32_t here, k;

    while (segment >= f.segments) {
        segment -= f.segments;
        tile++;
    }
    item.tile = tile, item.segment = segment;
    if (tile >= end) {
        return item;
    }
    here = tile;
    const bt_cuda_matrix &m = f.c.part[part_of(f.c, &here)];
    k = segment * SEGMENT;
    item.columns = min(f.columns - k, SEGMENT);
    item.stride = f.columns;
    item.codes = m.codes + (m.nibbles ? (size_t)here * f.columns * 8 + k * 8 : (size_t)here * f.columns * 16 + k);
    if (m.block != BT_BLOCK_ROW) {
        uint32_t block = k / m.block;

        item.scales = m.scales + ((size_t)here * m.blocks + block) * 16;
        item.blocks = m.blocks - block;
    } else {
        item.scales = m.scales + here * 16;
    }
    return item;
}

// The first item of a run, which may be some tiles further on.
static __device__ __forceinline__ few_item
run_at(const few_call &f, uint32_t tile, uint32_t run, uint32_t end)
{
    while (run >= f.runs) {
        run -= f.runs;
        tile++;
    }
    return item_at(f, tile, run << f.join, end);
}

// What a worker multiplies after an item: the rest of its run, or its next one.
static __device__ __forceinline__ few_item
item_after(const few_call &f, uint32_t tile, uint32_t segment, uint32_t end)
{
    if ((segment + 1) >> f.join == segment >> f.join && segment + 1 < f.segments) {
        return item_at(f, tile, segment + 1, end);
    }
    return run_at(f, tile, (segment >> f.join) + f.workers, end);
}

// Piece q of an item into its slot. One group of copies, which may be empty.
template <int BITS, int BLOCK, int SLOTS>
static __device__ __forceinline__ void
fetch_piece(const few_item &item, uint32_t q, uint32_t lane, uint8_t *ring)
{
    typedef few_ring<BITS, BLOCK, SLOTS> R;
    uint8_t *to = ring + q % R::slots * R::piece_bytes;

    if (BITS == 4) {
        const uint8_t *from = item.codes + q * R::code_bytes + lane * 16;

        if (q * FEW_COLUMNS < item.columns) {
            bt_copy16(to + lane * 16, from, true);
            bt_copy16(to + 512 + lane * 16, from + 512, true);
        }
        if (q * FEW_COLUMNS + UNIT < item.columns) {
            bt_copy16(to + 1024 + lane * 16, from + 1024, true);
            bt_copy16(to + 1536 + lane * 16, from + 1536, true);
        }
    } else if (q * FEW_COLUMNS + lane % 16 * 16 < item.columns) {
        const uint8_t *from = item.codes + lane / 16 * item.stride + q * FEW_COLUMNS + lane % 16 * 16;

        to += lane / 16 * R::row_bytes + lane % 16 * 16;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bt_copy16(to + i * 2 * R::row_bytes, from, true);
            from += 2 * item.stride;
        }
    }
    if (BLOCK != 0 && (int)lane * 16 < R::scale_bytes && q * R::scale_bytes + lane * 16 < item.blocks * 32) {
        bt_copy16(ring + q % R::slots * R::piece_bytes + R::code_bytes + lane * 16,
                  (const uint8_t *)item.scales + q * R::scale_bytes + lane * 16, true);
    }
    bt_copy_commit();
}

// What a lane fetches of an item's next piece, where all pieces are whole: a fourth of fetch_piece's instructions.
typedef struct {
    const uint8_t *codes, *scales;
    bool there;
} few_feed;

template <int BITS, int BLOCK>
static __device__ __forceinline__ few_feed
feed_of(const few_item &item, uint32_t q, uint32_t lane)
{
    typedef few_ring<BITS, BLOCK, 2> R;
    few_feed feed;

    feed.codes = item.codes + q * R::code_bytes + lane * 16;
    feed.scales = (const uint8_t *)item.scales + q * R::scale_bytes + lane * 16;
    feed.there = item.columns != 0;
    return feed;
}

// Its next piece, to the lane's 16 bytes of a slot. One group of copies.
template <int BITS, int BLOCK>
static __device__ __forceinline__ void
feed_piece(few_feed *feed, uint8_t *to, bool scales)
{
    typedef few_ring<BITS, BLOCK, 2> R;

    if (feed->there) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bt_copy16(to + i * 512, feed->codes + i * 512, true);
        }
        if (scales) {
            bt_copy16(to + R::code_bytes, feed->scales, true);
        }
    }
    feed->codes += R::code_bytes, feed->scales += R::scale_bytes;
    bt_copy_commit();
}

// The first pieces of a worker's first item.
template <int BITS, int BLOCK, int SLOTS, int FROM, int TO>
static __device__ __forceinline__ void
fill_ring(const few_item &item, uint32_t lane, uint8_t *ring)
{
#pragma unroll
    for (int q = FROM; q < TO; q++) {
        fetch_piece<BITS, BLOCK, SLOTS>(item, q, lane, ring);
    }
}
#endif
