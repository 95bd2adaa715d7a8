// Launching linear_deep.cuh: which calls it takes, what they load, how they are cut.
#include "kernels/cuda/linear_deep.cuh"

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/linear_deep_call.cuh"

#define NEAR_BYTES (16u << 20) // of activations turned for outliers that one sweep over the rows reads again and again

// ---- activations, turned for the outliers: [columns][turned_stride] ----

#define TURN_WARPS 8u

// A warp a piece of 32 columns and 32 tokens.
static __global__ void
__launch_bounds__(TURN_WARPS * 32) deep_turn_kernel(const __grid_constant__ deep_call d)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    uint32_t piece = blockIdx.x * TURN_WARPS + threadIdx.x / 32;

    bt_let_next();
    bt_wait_before();
    if (piece < d.w.turns) {
        wide_turn_piece(d.w, piece, threadIdx.x % 32);
    }
#endif
}

// Where they are turned to and in how many pieces, if a part has outliers.
static cudaError_t
turn(bt_cuda *cuda, deep_call *d)
{
    const linear_call *c = &d->w.c;
    uint32_t pieces = (c->tokens + WIDE_TURN_TOKENS - 1) / WIDE_TURN_TOKENS;

    for (uint32_t i = 0; i < c->part_count && d->w.turned == NULL; i++) {
        d->w.turned = c->part[i].row_start != NULL ? cuda->normed : NULL; // which integer weights have no use for
    }
    if (d->w.turned == NULL) {
        return cudaSuccess;
    }
    d->w.turned_stride = pieces * WIDE_TURN_TOKENS;
    d->w.turns = (uint32_t)(c->a8_stride / WIDE_TURN_COLUMNS) * pieces;
    return bt_cuda_go(cuda, deep_turn_kernel, dim3((d->w.turns + TURN_WARPS - 1) / TURN_WARPS), dim3(TURN_WARPS * 32),
                      0, *d);
}

// ---- what is loaded, as boxes ----

static bool
weight_maps(const bt_cuda_matrix *m, uint32_t tiles, CUtensorMap *codes, CUtensorMap *scales)
{
    const CUtensorMapSwizzle none = CU_TENSOR_MAP_SWIZZLE_NONE;

    return bt_cuda_plane(codes, CU_TENSOR_MAP_DATA_TYPE_UINT32, m->codes, m->padded * 2, m->tiles,
                         (uint64_t)m->padded * 8, 256, tiles, none) &&
           bt_cuda_plane(scales, CU_TENSOR_MAP_DATA_TYPE_UINT16, m->scales, m->blocks * 16, m->tiles,
                         (uint64_t)m->blocks * 32, 16, tiles, none);
}

static bool
maps_of(const deep_call *d, deep_maps *maps)
{
    const linear_call *c = &d->w.c;
    // Whole tiles of a8 are said to be there: what reaches beyond a matrix's end is slow. Memory is (scratch.cu rounds tokens up), and nobody
    // looks at what comes of it.
    bool good = bt_cuda_plane(&maps->a8, CU_TENSOR_MAP_DATA_TYPE_UINT8, c->a8, c->a8_stride, d->rows * DEEP_TOKENS,
                              c->a8_stride, DEEP_UNIT, DEEP_TOKENS / 2, CU_TENSOR_MAP_SWIZZLE_128B) &&
                bt_cuda_plane(&maps->sa, CU_TENSOR_MAP_DATA_TYPE_UINT32, c->sa, c->tokens,
                              c->act_shift < 31 ? c->a8_stride >> c->act_shift : 1, c->sa_stride * 4, DEEP_TOKENS, 1,
                              CU_TENSOR_MAP_SWIZZLE_NONE);

    for (uint32_t i = 0; i < c->part_count; i++) {
        good = good && weight_maps(&c->part[i], d->box_fours * 4, &maps->codes[i], &maps->scales[i]);
    }
    return good;
}

// ---- the cut ----

static uint32_t
fours_of(const bt_cuda_matrix *m)
{
    return (m->tiles + 3) / 4;
}

// Levels of the tree of segments that lie in global memory.
static uint32_t
far_levels(const linear_call *c)
{
    uint32_t segments = (c->padded + SEGMENT - 1) / SEGMENT, levels = 0;

    for (uint32_t level = 2; 1u << level < segments; level++) {
        levels++;
    }
    return levels;
}

static uint32_t
blocks_at_once(const bt_cuda *cuda)
{
    return (uint32_t)cuda->sms / 2 * 2;
}

static void
cut(const bt_cuda *cuda, deep_call *d)
{
    const linear_call *c = &d->w.c;
    uint32_t fours = 0, near = NEAR_BYTES / (DEEP_TOKENS * 4) / (uint32_t)c->a8_stride;

    d->box_fours = c->paired ? 1 : 2;
    for (uint32_t i = 0; i < (c->paired ? 1 : c->part_count); i++) {
        fours += fours_of(&c->part[i]);
        if (i + 1 < c->part_count && fours_of(&c->part[i]) % 2 != 0) {
            d->box_fours = 1;
        }
    }
    d->columns = c->paired ? (fours + 1) / 2 : (fours + 3) / 4;
    d->rows = (c->tokens + DEEP_TOKENS - 1) / DEEP_TOKENS;
    d->total = d->columns * d->rows;
    d->near = near < 1 ? 1 : near;
    d->units = (c->padded + DEEP_UNIT - 1) / DEEP_UNIT;
    d->scratch = (float *)cuda->s32, d->levels = far_levels(c);
}

// ---- a call ----

bool
bt_cuda_wants_deep(const bt_cuda *cuda, const linear_call *c, bt_cuda_a8_order *order)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint64_t floats = (uint64_t)blocks_at_once(cuda) * (1 + far_levels(c)) * (DEEP_ROWS * DEEP_TOKENS);

    // Fewer than a segment's columns: a warpgroup might be a tile ahead of the other (deep_pair).
    if (!cuda->deep || c->padded < SEGMENT ||
        c->tokens < (c->padded > 8 * SEGMENT ? BT_CUDA_DEEP_TOKENS_LONG : BT_CUDA_DEEP_TOKENS) ||
        m->kind != BT_WEIGHT_INT || !m->nibbles || m->asymmetric || m->block != 128 || c->act_rows != 1 ||
        !bt_cuda_has_boxes() || !are_alike(c) || floats > (uint64_t)cuda->s32_tokens * 4 * cuda->limits.cols) {
        return false;
    }
    *order = BT_A8_ROWS_PAIRED;
    return true;
}

bt_err
bt_cuda_linear_deep(bt_cuda *cuda, const linear_call *c)
{
    deep_maps maps;
    deep_call d;
    cudaError_t error;

    memset(&d, 0, sizeof d);
    memset(&maps, 0, sizeof maps);
    d.w.c = *c;
    cut(cuda, &d);
    if (!maps_of(&d, &maps)) {
        return bt_cuda_check(cuda, cudaErrorInvalidValue, "linear, prompt of 4 bits: a map");
    }
    if ((error = turn(cuda, &d)) == cudaSuccess) {
        uint32_t blocks = d.total * 2 < blocks_at_once(cuda) ? d.total * 2 : blocks_at_once(cuda);

        error = bt_cuda_go_clustered(cuda, deep_kernel, dim3(blocks), dim3(DEEP_THREADS), DEEP_SHARED, 2, d, maps);
    }
    return bt_cuda_check(cuda, error, "linear, prompt of 4 bits");
}
