// Launching linear_wide.cuh: which calls it takes, what they load, and where activations are turned to.
#include "kernels/cuda/linear_wide_turn.cuh"

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/linear_wide_call.cuh"

// ---- activations, turned ----

// Where they are turned to and in how many pieces, if a part has outliers.
static void
turn(const bt_cuda *cuda, wide_call *w)
{
    const linear_call *c = &w->c;
    uint32_t pieces = (c->tokens + WIDE_TURN_TOKENS - 1) / WIDE_TURN_TOKENS;

    for (uint32_t i = 0; i < c->part_count; i++) {
        if (c->part[i].row_start != NULL) {
            w->turned = cuda->normed; // which integer weights have no use for
            w->turned_stride = pieces * WIDE_TURN_TOKENS;
            w->turns = (uint32_t)(c->a8_stride / WIDE_TURN_COLUMNS) * pieces;
            return;
        }
    }
}

// ---- what is loaded, as boxes ----

static bool
weight_maps(const bt_cuda_matrix *m, uint32_t blocks, uint32_t tiles, uint32_t part, wide_maps *maps)
{
    const CUtensorMapSwizzle none = CU_TENSOR_MAP_SWIZZLE_NONE;
    uint32_t scales = m->block == BT_BLOCK_ROW ? 16 : blocks * 16;
    bool good = m->nibbles ? bt_cuda_plane(&maps->codes[part], CU_TENSOR_MAP_DATA_TYPE_UINT32, m->codes, m->padded * 2,
                                           m->tiles, (uint64_t)m->padded * 8, 256, tiles, none)
                           : bt_cuda_plane(&maps->codes[part], CU_TENSOR_MAP_DATA_TYPE_UINT8, m->codes, m->padded,
                                           m->tiles * 16, m->padded, 128, tiles * 16, CU_TENSOR_MAP_SWIZZLE_128B);

    if (blocks != 0) {
        good = good && bt_cuda_plane(&maps->scales[part], CU_TENSOR_MAP_DATA_TYPE_UINT16, m->scales, m->blocks * 16,
                                     m->tiles, (uint64_t)m->blocks * 32, scales, tiles, none);
    }
    if (m->asymmetric) {
        good = good && bt_cuda_plane(&maps->minima[part], CU_TENSOR_MAP_DATA_TYPE_UINT16, m->minima, m->blocks * 16,
                                     m->tiles, (uint64_t)m->blocks * 32, scales, tiles, none);
    }
    return good;
}

bool
bt_cuda_wide_maps(const wide_call *w, uint32_t n, uint32_t blocks, wide_maps *maps)
{
    const CUtensorMapSwizzle none = CU_TENSOR_MAP_SWIZZLE_NONE;
    const linear_call *c = &w->c;
    // Whole tiles of a8 are said to be there: what reaches beyond a matrix's end is slow. Memory is (scratch.cu rounds
    // tokens up), and nobody looks at what comes of it.
    bool good = bt_cuda_plane(&maps->a8, CU_TENSOR_MAP_DATA_TYPE_UINT8, c->a8, c->a8_stride,
                              (c->tokens + n - 1) / n * n, c->a8_stride, 128, n, CU_TENSOR_MAP_SWIZZLE_128B);

    if (blocks != 0) {
        uint64_t rows = c->act_shift < 31 ? c->a8_stride >> c->act_shift : 1;

        good = good && bt_cuda_plane(&maps->sa, CU_TENSOR_MAP_DATA_TYPE_UINT32, c->sa, c->tokens, rows,
                                     c->sa_stride * 4, n, c->act_rows, none);
    }
    if (c->part[0].asymmetric) {
        good = good && bt_cuda_plane(&maps->sums, CU_TENSOR_MAP_DATA_TYPE_UINT32, c->sums, c->tokens, c->a8_stride / 32,
                                     c->sa_stride * 4, n, 4, none);
    }
    for (uint32_t i = 0; i < c->part_count; i++) {
        good = good && weight_maps(&c->part[i], blocks, w->fours * 4, i, maps);
    }
    return good;
}

// ---- which calls ----

bool
bt_cuda_wants_wide(const bt_cuda *cuda, const linear_call *c, bt_cuda_a8_order *order)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t block = dot_columns(m);
    bool few = m->nibbles && !m->asymmetric; // of these it takes what linear_few leaves

    if (!cuda->wide || c->tokens < (few ? BT_CUDA_WIDE_TOKENS_4 : BT_CUDA_WIDE_TOKENS) || m->kind != BT_WEIGHT_INT ||
        !bt_cuda_has_boxes() || (block != BT_BLOCK_ROW && block < 32) || c->padded > WIDE_RUN * WIDE_RANKS * SEGMENT ||
        !are_alike(c)) {
        return false;
    }
    *order = m->nibbles ? BT_A8_ROWS_PAIRED : BT_A8_ROWS;
    return true;
}

// Would 256 rows a block of threads be one round of the GPU where 128 rows are two? With up to 16 tokens they are faster, however many.
static bool
wants_tall(const bt_cuda *cuda, const linear_call *c)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t rows = (uint32_t)(c->tiles_all + 15) / 16, sms = (uint32_t)cuda->sms;

    if (!m->nibbles || m->asymmetric || m->block != 128 || c->tokens > 64) {
        return false;
    }
    return c->tokens <= 16 || (c->padded <= WIDE_RUN * SEGMENT && rows <= sms && rows * 2 > sms);
}

// The tile of linear_wide_between.cu that is right for this call; 0: it is one of the others. As few tiles as there must be, and they as small as
// can be.
static uint32_t
tile_between(const linear_call *c)
{
    static const uint32_t tiles[] = {24, 32, 48, 64, 80, 96, 112, 128};
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t count = (c->tokens + 127) / 128, each = (c->tokens + count - 1) / count, i = 0;

    if (!m->nibbles || m->asymmetric || m->block != 128) {
        return 0;
    }
    while (tiles[i] < each) {
        i++;
    }
    return tiles[i] == 32 || tiles[i] == 64 || tiles[i] == 128 ? 0 : tiles[i];
}

bt_err
bt_cuda_linear_wide(bt_cuda *cuda, const linear_call *c, bt_cuda_leaves *leaves)
{
    uint32_t between = tile_between(c);
    wide_call w;
    cudaError_t error;

    memset(&w, 0, sizeof w);
    w.c = *c;
    w.meetings = cuda->meetings;
    w.leaves = *leaves;
    turn(cuda, &w);
    if (bt_cuda_wide_head(cuda, &w, &error)) {
        leaves->to.a8 = NULL;
        return bt_cuda_check(cuda, error, "linear, many rows");
    }
    error = wants_tall(cuda, c)  ? bt_cuda_wide_tall(cuda, &w)
            : between != 0       ? bt_cuda_wide_between(cuda, &w, between)
            : c->part[0].nibbles ? bt_cuda_wide_nibbles(cuda, &w)
                                 : bt_cuda_wide_bytes(cuda, &w);
    *leaves = w.leaves;
    return bt_cuda_check(cuda, error, "linear, warpgroups");
}
