// Which calls linear_few.cuh takes, and how shared memory is shared out.
#include "kernels/cuda/linear_few.cuh"

#define ENCODES_MAX 4096u // columns that a block encodes for itself

// Room for the outliers of the `tiles` that a block has: for one weight in 512, which is what formats have at most, and some more.
void
bt_few_outliers(few_call *f, uint32_t tiles)
{
    bool any = false, pairs = true;

    for (uint32_t i = 0; i < f->c.part_count; i++) {
        any |= f->c.part[i].row_start != NULL;
        pairs &= (uintptr_t)f->c.part[i].deltas % 4 == 0;
    }
    f->room = (f->cols * 16 / 512 + 16) / 4 * 4;
    if (any && tiles * (f->room * 6 + 96) > FEW_OUTLIERS_MAX) {
        f->room = FEW_OUTLIERS_MAX / tiles < 144 ? 0 : (FEW_OUTLIERS_MAX / tiles - 96) / 24 * 4;
    }
    if (!any || !pairs) {
        f->room = 0;
    }
    f->outlier_bytes = f->room == 0 ? 0 : bt_few_rounded(80 + f->room * 6 + 8, 16);
}

// Places with so many workers, and a chunk of at most `tiles`; false if there is no room for that many, or, not `whole`, for one.
bool
bt_few_lay_out(few_call *f, uint32_t tiles, uint32_t ring_bytes, uint32_t workers, bool whole)
{
    bool alone = f->join != 0 && tiles * f->runs <= workers;
    uint32_t step = f->c.paired ? 2 : 1, beside = (alone ? 0 : f->runs) + bt_few_beside(f),
             a_tile = (beside * f->pitch + 3) * 16 * 4;
    uint32_t blocks = f->c.act_shift < 31 ? (uint32_t)f->c.a8_stride >> f->c.act_shift : 1;
    uint32_t codes = (uint32_t)f->c.a8_stride * f->width * (f->sa_width > 8 ? 2 : 1);
    uint32_t rows = f->encodes && f->norm != NULL ? f->row_floats * 4 : 0, norm = rows != 0 ? f->cols * 4 : 0;
    uint32_t room, chunks, scratch;

    f->workers = workers,
    f->helpers = f->c.tokens > 8 ? 4 : workers / 4; // the outliers of a token are work of their own
    f->at.codes = bt_few_rounded(workers * ring_bytes, 128);
    f->at.scales = f->at.codes + bt_few_rounded(codes, 128);
    f->at.barriers = f->at.scales + bt_few_rounded(blocks * f->sa_width * 4, 128);
    f->at.outliers = f->at.barriers + bt_few_rounded((f->segments + 1) * 8, 128);
    f->at.norm = f->at.outliers + bt_few_rounded(tiles * f->outlier_bytes, 128);
    f->at.outliers = f->room != 0 ? f->at.outliers : 0;
    f->at.scratch = f->at.norm + bt_few_rounded(norm, 128);
    f->at.norm = norm != 0 ? f->at.norm : 0;
    // Half a piece is read beyond the last columns, for nothing: scratch is at least as much.
    room = f->at.scratch + 2048 <= FEW_SHARED_MAX ? (FEW_SHARED_MAX - f->at.scratch) / a_tile / step * step : 0;
    if (room == 0 || ((whole || alone) && room < tiles) || f->at.scratch + rows > FEW_SHARED_MAX) {
        return false;
    }
    chunks = (tiles + room - 1) / room;
    f->chunk = (tiles + chunks * step - 1) / (chunks * step) * step;
    f->alone = alone, f->sums_at = alone ? 0 : f->at.scratch;
    f->sum_run = alone ? ring_bytes / 4 : f->chunk * 16 * f->pitch,
    f->sum_tile = alone ? f->runs * f->sum_run : 16 * f->pitch;
    scratch = f->chunk * a_tile > rows ? f->chunk * a_tile : rows;
    scratch = scratch > 2048 ? scratch : 2048;
    f->at.bytes = f->at.scratch + scratch > FEW_SHARED_MIN ? f->at.scratch + scratch : FEW_SHARED_MIN;
    return true;
}

// Items that the busiest worker multiplies, chunk by chunk.
static uint32_t
rounds_of(const few_call *f, uint32_t tiles)
{
    uint32_t chunks = tiles / f->chunk, rest = tiles % f->chunk;

    return (chunks * ((f->chunk * f->runs + f->workers - 1) / f->workers) +
            (rest * f->runs + f->workers - 1) / f->workers)
           << f->join;
}

// Places with as many workers as make the fewest rounds, and no more of them. `whole`: more than the fewest only if all tiles are one chunk.
static uint32_t
find_workers(few_call *f, uint32_t tiles, uint32_t ring_bytes, bool whole)
{
    few_call best = *f;
    uint32_t rounds = ~0u;

    for (uint32_t workers = FEW_WORKERS; workers >= FEW_WORKERS / 2; workers -= FEW_WORKERS / 4) {
        if (bt_few_lay_out(f, tiles, ring_bytes, workers, whole && workers > FEW_WORKERS / 2) &&
            rounds_of(f, tiles) <= rounds) {
            best = *f, rounds = rounds_of(f, tiles);
        }
    }
    *f = best;
    return rounds;
}

// Outliers come into shared memory ahead, unless that doubles the rounds; false if there is no room for anything.
static bool
find_room(few_call *f, uint32_t tiles, uint32_t ring_bytes, bool whole)
{
    few_call without = *f;
    uint32_t rounds = find_workers(f, tiles, ring_bytes, whole);

    without.room = without.outlier_bytes = 0;
    if (f->room != 0 && find_workers(&without, tiles, ring_bytes, whole) <= rounds / 2) {
        *f = without;
        return true;
    }
    return rounds != ~0u;
}

// Runs of two segments, where the busiest worker has no more to multiply by that: half of the sums, and so fewer chunks.
static bool
find_runs(few_call *f, uint32_t tiles, uint32_t ring_bytes, bool whole)
{
    few_call twos = *f;
    bool found = find_room(f, tiles, ring_bytes, whole);

    twos.join = 1, twos.runs = (f->segments + 1) / 2;
    if (!whole && f->segments > 1 && find_room(&twos, tiles, ring_bytes, whole) &&
        (!found || rounds_of(&twos, tiles) <= rounds_of(f, tiles))) {
        *f = twos;
        return true;
    }
    return found;
}

// Can a block make the codes itself, and should it? It reads x by fours, and its scales are those of the weights' blocks.
static bool
encodes(const linear_call *c, const bt_linear_args *a, uint32_t block, uint32_t most)
{
    bool fours = a->weights[0]->cols % 4 == 0 && (uintptr_t)a->x % 16 == 0 && (uintptr_t)a->norm % 16 == 0;

    return a->tokens == 1 && fours && a->x != a->y && c->part[0].act_block == block && c->a8_stride <= most;
}

few_call
bt_few_call_of(const linear_call *c, const bt_linear_args *a, uint32_t block, uint32_t encodes_max)
{
    few_call f;

    memset(&f, 0, sizeof f);
    f.c = *c;
    f.x = a->x, f.norm = a->norm, f.norm_eps = a->norm_eps;
    f.cols = a->weights[0]->cols, f.columns = c->part[0].padded;
    f.encodes = encodes(c, a, block, encodes_max);
    f.row_floats = bt_few_rounded((uint32_t)c->a8_stride, 256);
    f.width = f.encodes ? 1 : 8;
    f.sa_width = f.encodes ? 2 : a->tokens > 8 ? 16 : 8;
    f.pitch = a->tokens == 1 ? 1 : a->tokens | 1;
    f.segments = f.runs = (c->padded + SEGMENT - 1) / SEGMENT;
    return f;
}

uint32_t
bt_few_share(few_call *f, uint32_t sms, uint32_t *grid)
{
    uint32_t step = f->c.paired ? 2 : 1, units = f->c.tiles_all / step;

    *grid = units < sms ? units : sms;
    f->each = units / *grid, f->more = units % *grid;
    return (units + *grid - 1) / *grid * step;
}

struct few_launch {
    template <int BITS, int BLOCK, int NT>
    static bt_err of(bt_cuda *cuda, const bt_linear_args *a, few_call *f, bool *taken)
    {
        uint32_t grid, tiles = bt_few_share(f, (uint32_t)cuda->sms, &grid);
        uint32_t ring = few_ring<BITS, BLOCK, FEW_SLOTS(BITS, NT)>::bytes;
        bt_err err = BT_OK;

        bt_few_outliers(f, tiles);
        if (!find_runs(f, tiles, ring, NT == 1)) {
            return BT_OK;
        }
        *taken = true;
        if (f->asks) {
            return BT_OK;
        }
        if (f->encodes) {
            bt_cuda_forget(cuda, a->x);
        } else if ((err = bt_cuda_activations(cuda, a, &f->c)) != BT_OK) {
            return err;
        }
        return bt_cuda_check(cuda,
                             bt_cuda_go(cuda, few_kernel<BITS, BLOCK, NT>, dim3(grid),
                                        dim3((f->workers + f->helpers) * 32), f->at.bytes, *f),
                             "linear, few tokens");
    }
};

static bt_err
go(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool asks, bool *taken)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t block = dot_columns(m);
    few_call f;
    bt_err err;

    *taken = false;
    if (!cuda->few || a->tokens > FEW_TOKENS || m->kind != BT_WEIGHT_INT || m->asymmetric || !are_alike(c)) {
        return BT_OK;
    }
    if (a->tokens == 1 && ((err = bt_cuda_linear_one(cuda, a, c, taken)) != BT_OK || *taken)) {
        return err;
    }
    f = bt_few_call_of(c, a, block, ENCODES_MAX);
    f.asks = asks;
    if (f.segments > 32) {
        return BT_OK;
    }
    if (a->tokens > 1 && ((err = bt_cuda_linear_lean(cuda, a, &f, taken)) != BT_OK || *taken)) {
        return err;
    }
    err = bt_few_by_format<few_launch>(cuda, a, &f, block, taken);
    // Codes that do not fit beside the weights come segment by segment.
    return err != BT_OK || *taken ? err : bt_cuda_linear_staged(cuda, a, &f, block, taken);
}

bt_err
bt_cuda_linear_few(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool *taken)
{
    return go(cuda, a, c, false, taken);
}

bool
bt_cuda_takes_few(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool *taken)
{
    linear_call rare = *c;
    bool plain = false, other = false;

    rare.softcap = 1.0f;
    go(cuda, a, c, true, &plain);
    go(cuda, a, &rare, true, &other);
    *taken = plain;
    return plain == other;
}
