// Which calls linear_lean.cuh takes, and how shared memory is shared out.
#include "kernels/cuda/linear_lean.cuh"

#define SHARED_MAX (227u * 1024) // these kernels name no shared memory themselves
#define HELPERS 4u
#define WORKERS_MIN 8u

// Places with so many workers and all tiles at once; false if there is no room for that. `alone`: sums lie where pieces were.
static bool
lay_out(few_call *f, uint32_t tiles, int nt, uint32_t workers)
{
    uint32_t ring = nt == 1 ? few_ring<4, 128, FEW_SLOTS(4, 1)>::bytes : few_ring<4, 128, FEW_SLOTS(4, 2)>::bytes;
    uint32_t rows = 16 * LEAN_PITCH(nt), items = tiles * f->runs;

    f->workers = workers, f->helpers = HELPERS, f->alone = items <= workers;
    f->at.codes = bt_few_rounded(workers * ring, 128);
    f->at.scales = f->at.codes + f->columns * nt * 8;
    f->at.barriers = f->at.scales + bt_few_rounded(f->columns / 128 * nt * 32, 128);
    f->at.outliers = f->at.barriers + bt_few_rounded((f->segments + 1) * 8, 128);
    f->at.scratch = f->at.outliers + bt_few_rounded(tiles * f->outlier_bytes, 128);
    f->at.outliers = f->room != 0 ? f->at.outliers : 0;
    f->sums_at = f->alone ? 0 : f->at.scratch + tiles * rows * 4;
    f->sum_run = f->alone ? ring / 4 : rows;
    f->at.bytes = f->at.scratch + (tiles + (f->alone ? 0 : items)) * rows * 4;
    f->at.bytes = f->at.bytes > FEW_SHARED_MIN ? f->at.bytes : FEW_SHARED_MIN;
    return f->at.bytes <= SHARED_MAX;
}

// Segments that the busiest worker multiplies, with the most workers of those that make them fewest; ~0: there is no room.
static uint32_t
find_workers(few_call *f, uint32_t tiles, int nt)
{
    uint32_t fewest = ~0u, workers = 0;

    for (uint32_t w = FEW_WORKERS; w >= WORKERS_MIN; w--) {
        uint32_t rounds = ((tiles * f->runs + w - 1) / w) << f->join;

        if (rounds < fewest && lay_out(f, tiles, nt, w)) {
            fewest = rounds, workers = w;
        }
    }
    return workers != 0 && lay_out(f, tiles, nt, workers) ? fewest : ~0u;
}

// With outliers in shared memory, unless all that there is room for is half as fast then.
static uint32_t
find_room(few_call *f, uint32_t tiles, int nt)
{
    few_call without = *f;
    uint32_t rounds = find_workers(f, tiles, nt), fewest;

    without.room = without.outlier_bytes = 0;
    fewest = f->room != 0 ? find_workers(&without, tiles, nt) : ~0u;
    if (fewest <= rounds / 2) {
        *f = without;
        return fewest;
    }
    return rounds;
}

// Runs of two segments where a worker has less to multiply by that, or, of more than eight tokens, no more: these are half of the sums.
static bool
find_runs(few_call *f, uint32_t tiles, int nt)
{
    few_call twos = *f;
    uint32_t rounds = find_room(f, tiles, nt), of_twos;

    twos.join = 1, twos.runs = f->segments / 2;
    of_twos = f->segments % 2 == 0 ? find_room(&twos, tiles, nt) : ~0u;
    if (of_twos < rounds || (of_twos == rounds && of_twos != ~0u && nt == 2)) {
        *f = twos;
        return true;
    }
    return rounds != ~0u;
}

template <int NT, int PARTS>
static cudaError_t
go(bt_cuda *cuda, const few_call *f, uint32_t grid)
{
    return bt_cuda_go(cuda, lean_kernel<NT, PARTS>, dim3(grid), dim3((f->workers + f->helpers) * 32), f->at.bytes, *f);
}

template <int NT>
static cudaError_t
go_parts(bt_cuda *cuda, const few_call *f, uint32_t grid)
{
    return f->c.paired            ? go<NT, ONE_PAIR>(cuda, f, grid)
           : f->c.part_count == 1 ? go<NT, ONE_SINGLE>(cuda, f, grid)
                                  : go<NT, ONE_THREE>(cuda, f, grid);
}

bt_err
bt_cuda_linear_lean(bt_cuda *cuda, const bt_linear_args *a, const few_call *call, bool *taken)
{
    few_call f = *call;
    int nt = a->tokens > 8 ? 2 : 1;
    uint32_t grid, tiles = bt_few_share(&f, (uint32_t)cuda->sms, &grid);
    cudaError_t error;
    bt_err err;

    bt_few_outliers(&f, tiles);
    *taken = bt_few_is_plain(&f) && find_runs(&f, tiles, nt);
    if (!*taken || f.asks) {
        return BT_OK;
    }
    f.run_inverse = (65536 + f.runs - 1) / f.runs;
    while (1u << f.token_shift < a->tokens) {
        f.token_shift++;
    }
    if ((err = bt_cuda_activations(cuda, a, &f.c)) != BT_OK) {
        return err;
    }
    error = nt == 1 ? go_parts<1>(cuda, &f, grid) : go_parts<2>(cuda, &f, grid);
    return bt_cuda_check(cuda, error, "linear, few tokens");
}
