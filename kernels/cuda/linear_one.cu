// Which calls linear_one.cuh takes.
#include "kernels/cuda/linear_one.cuh"

#define ONE_COLUMNS_MAX 16384u // columns that a block makes codes of: eight pieces a thread

template <int PIECES, bool NORM, int PARTS>
static cudaError_t
go(bt_cuda *cuda, const few_call *f, uint32_t grid)
{
    return bt_cuda_go(cuda, one_kernel<PIECES, NORM, PARTS>, dim3(grid), dim3((f->workers + f->helpers) * 32),
                      f->at.bytes, *f);
}

template <int PIECES, bool NORM>
static cudaError_t
go_parts(bt_cuda *cuda, const few_call *f, uint32_t grid)
{
    return f->c.paired            ? go<PIECES, NORM, ONE_PAIR>(cuda, f, grid)
           : f->c.part_count == 1 ? go<PIECES, NORM, ONE_SINGLE>(cuda, f, grid)
                                  : go<PIECES, NORM, ONE_THREE>(cuda, f, grid);
}

template <int PIECES>
static cudaError_t
go_norm(bt_cuda *cuda, const few_call *f, uint32_t grid)
{
    return f->norm != NULL ? go_parts<PIECES, true>(cuda, f, grid) : go_parts<PIECES, false>(cuda, f, grid);
}

bool
bt_few_is_plain(const few_call *f)
{
    bool plain = f->c.act_shift == 7 && f->cols % SEGMENT == 0 && f->columns == f->cols && f->c.softcap == 0.0f;

    for (uint32_t i = 0; i < f->c.part_count; i++) {
        plain &=
            f->c.part[i].nibbles && f->c.part[i].block == 128 && f->c.part[i].rows % 16 == 0 && f->c.bias[i] == NULL;
    }
    return plain;
}

// All workers, and all tiles one chunk, with outliers in shared memory or without. No runs of two, so sums lie beside each other.
static bool
lay_out(few_call *f, uint32_t tiles)
{
    bool fits = bt_few_lay_out(f, tiles, few_ring<4, 128, 4>::bytes, FEW_WORKERS, true);

    if (!fits && f->room != 0) {
        f->room = f->outlier_bytes = 0;
        fits = bt_few_lay_out(f, tiles, few_ring<4, 128, 4>::bytes, FEW_WORKERS, true);
    }
    return fits && tiles * 16 / (f->c.paired ? 2 : 1) <= f->workers * 32;
}

bt_err
bt_cuda_linear_one(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool *taken)
{
    few_call f = bt_few_call_of(c, a, 128, ONE_COLUMNS_MAX);
    uint32_t grid, tiles = bt_few_share(&f, (uint32_t)cuda->sms, &grid), pieces;
    cudaError_t error;

    bt_few_outliers(&f, tiles);
    *taken = f.encodes && bt_few_is_plain(&f) && lay_out(&f, tiles);
    if (!*taken) {
        return BT_OK;
    }
    f.run_inverse = (65536 + f.runs - 1) / f.runs;
    bt_cuda_forget(cuda, a->x);
    pieces = (f.cols + FEW_WORKERS * 128 - 1) / (FEW_WORKERS * 128);
    error = pieces <= 2   ? go_norm<2>(cuda, &f, grid)
            : pieces <= 4 ? go_norm<4>(cuda, &f, grid)
                          : go_norm<8>(cuda, &f, grid);
    return bt_cuda_check(cuda, error, "linear, one token");
}
