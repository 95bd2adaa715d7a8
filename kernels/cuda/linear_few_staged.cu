// How few_staged.cuh shares shared memory out.
#include "kernels/cuda/few_staged.cuh"
#include "kernels/cuda/linear_wide_call.cuh"

#define WORKERS 12u
#define HELPERS 4u
#define SLOTS_MAX 8u

// Places with `slots` (all, 8, 4 or 2) segments of codes; false if there is no room for a tile, or, `whole`, for all.
static bool
lay_out(few_call *f, uint32_t tiles, uint32_t ring_bytes, uint32_t slots, bool whole)
{
    uint32_t step = f->c.paired ? 2 : 1, a_tile = ((f->segments + bt_few_beside(f)) * f->pitch + 3 + 5) * 16 * 4;
    uint32_t rows = f->c.act_shift < 31 ? SEGMENT >> f->c.act_shift : 1, room, chunks;

    f->ring.slots = slots, f->ring.stay = slots == f->segments;
    f->ring.mask = f->ring.stay ? ~0u : slots - 1, f->ring.shift = f->ring.stay ? 31 : slots == 8 ? 3 : slots / 2;
    f->ring.slot_bytes = bt_few_rounded(f->sa_width * (SEGMENT + rows * 4), 128);
    f->at.codes = bt_few_rounded(f->workers * ring_bytes, 128);
    f->at.scales = f->at.codes + slots * f->ring.slot_bytes; // one a token, where it has one
    f->at.barriers = f->at.scales + 128;
    f->at.outliers = f->at.barriers + bt_few_rounded(slots * 24 + 8, 128);
    f->at.scratch = f->at.outliers + bt_few_rounded(tiles * f->outlier_bytes, 128);
    f->at.outliers = f->room != 0 ? f->at.outliers : 0;
    room = f->at.scratch <= FEW_SHARED_MAX ? (FEW_SHARED_MAX - f->at.scratch) / a_tile / step * step : 0;
    if (room == 0 || (whole && room < tiles)) {
        return false;
    }
    chunks = (tiles + room - 1) / room;
    f->chunk = (tiles + chunks * step - 1) / (chunks * step) * step;
    f->sums_at = f->at.scratch, f->sum_tile = 16 * f->pitch, f->sum_run = f->chunk * f->sum_tile;
    f->at.bytes = f->at.scratch + f->chunk * a_tile;
    f->at.bytes = f->at.bytes > FEW_SHARED_MIN ? f->at.bytes : FEW_SHARED_MIN;
    return true;
}

static bool
may_be(const few_call *f, uint32_t slots)
{
    return slots == f->segments || (slots < f->segments && (slots == 8 || slots == 4 || slots == 2));
}

// As many slots as leave room for all tiles at once; else codes that stay, or as few chunks as can be: each asks for all codes anew.
static bool
find_slots(few_call *f, uint32_t tiles, uint32_t ring_bytes)
{
    uint32_t best = 0, chunk = 0;

    for (uint32_t slots = SLOTS_MAX; slots >= 1; slots--) {
        if (may_be(f, slots) && lay_out(f, tiles, ring_bytes, slots, true)) {
            return true;
        }
    }
    for (uint32_t slots = SLOTS_MAX; slots >= 1; slots--) {
        if (may_be(f, slots) && lay_out(f, tiles, ring_bytes, slots, false) && f->chunk > chunk) {
            best = slots, chunk = f->ring.stay ? tiles : f->chunk;
        }
    }
    return best != 0 && lay_out(f, tiles, ring_bytes, best, false);
}

static bool
find_room(few_call *f, uint32_t tiles, uint32_t ring_bytes)
{
    f->helpers = HELPERS;
    for (f->workers = WORKERS; f->workers >= WORKERS / 2; f->workers /= 2) {
        if (find_slots(f, tiles, ring_bytes)) {
            return true;
        }
    }
    return false;
}

// More than eight tokens, and a block has two tiles at most or asks for all codes anew for each chunk: warpgroups are faster (README.md).
static bool
yields(const bt_cuda *cuda, const few_call *f, uint32_t tiles)
{
    bt_cuda_a8_order order;

    return f->c.tokens > 8 && (tiles <= 2 || (!f->ring.stay && f->chunk < tiles)) &&
           bt_cuda_wants_wide(cuda, &f->c, &order);
}

struct staged_launch {
    template <int BITS, int BLOCK, int NT>
    static bt_err of(bt_cuda *cuda, const bt_linear_args *a, few_call *f, bool *taken)
    {
        uint32_t grid, tiles = bt_few_share(f, (uint32_t)cuda->sms, &grid);
        bt_err err;

        bt_few_outliers(f, tiles);
        if (!find_room(f, tiles, few_ring<BITS, BLOCK, FEW_SLOTS(BITS, 2)>::bytes) || yields(cuda, f, tiles)) {
            return BT_OK;
        }
        *taken = true;
        if (f->asks) {
            return BT_OK;
        }
        if ((err = bt_cuda_activations(cuda, a, &f->c)) != BT_OK) {
            return err;
        }
        return bt_cuda_check(cuda,
                             bt_cuda_go(cuda, staged_kernel<BITS, BLOCK, NT>, dim3(grid),
                                        dim3((f->workers + f->helpers) * 32), f->at.bytes, *f),
                             "linear, few tokens");
    }
};

bt_err
bt_cuda_linear_staged(bt_cuda *cuda, const bt_linear_args *a, few_call *f, uint32_t block, bool *taken)
{
    f->encodes = false, f->alone = false, f->runs = f->segments, f->join = 0, f->sa_width = a->tokens > 8 ? 16 : 8;
    return bt_few_by_format<staged_launch>(cuda, a, f, block, taken);
}
