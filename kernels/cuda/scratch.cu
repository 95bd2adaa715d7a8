// What steps work in: one piece of memory, shared out at once.
#include "kernels/cuda/cuda.cuh"

#include "kernels/cpu/ref/attention.h"

#define PARTIAL_BYTES ((size_t)256 << 20)
#define S32_TOKENS 2048u

typedef struct {
    uint8_t *base; // NULL: only counts
    size_t used;
} carve;

static void *
take(carve *c, size_t bytes)
{
    size_t at = c->used;

    c->used = at + (bytes + 255) / 256 * 256;
    return c->base == NULL ? NULL : c->base + at;
}

static size_t
rounded(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void
take_arrays(carve *c, bt_cuda_arrays *a, size_t room, size_t logit_rows, size_t blocks)
{
    a->room = (uint32_t)room;
    a->ids = (int32_t *)take(c, room * 4);
    a->positions = (uint32_t *)take(c, room * 4);
    a->tables = (uint32_t *)take(c, room * 4);
    a->rows = (uint32_t *)take(c, logit_rows * 4);
    a->draws = (bt_draw *)take(c, logit_rows * sizeof(bt_draw));
    a->ends = (bt_cuda_ends *)take(c, sizeof(bt_cuda_ends));
    a->singles = (bt_cuda_tile *)take(c, room * sizeof(bt_cuda_tile));
    a->tiles = (bt_cuda_tile *)take(c, room * sizeof(bt_cuda_tile));
    a->squads = (bt_cuda_tile *)take(c, room * sizeof(bt_cuda_tile));
    a->blocks = (uint32_t *)take(c, blocks * 4);
}

size_t
bt_cuda_lay_out(bt_cuda *cuda, uint8_t *base)
{
    carve all = {base, 0}, *c = &all;
    const bt_device_limits *l = &cuda->limits;
    size_t tokens = rounded(l->tokens, BT_CUDA_TOKENS_PAD), sequences = l->sequences != 0 ? l->sequences : l->tokens;
    size_t boxes = bt_cuda_box_tokens(l->tokens), box_tokens = boxes > tokens ? boxes : tokens;
    size_t logit_rows = bt_cuda_rows_max(cuda), heads = (size_t)l->tokens * l->heads;
    size_t block_tokens = l->block_tokens != 0 ? l->block_tokens : 32;
    bt_cuda_step *s = &cuda->step;

    s->blocks_max = (uint32_t)(sequences * (l->context / block_tokens + 1));
    s->tile_tokens = l->kv_heads != 0 ? BT_CUDA_TILE_COLUMNS / (l->heads / l->kv_heads) : 1;
    s->tile_tokens = s->tile_tokens != 0 ? s->tile_tokens : 1;
    take_arrays(c, &s->few, logit_rows < l->tokens ? logit_rows : l->tokens, logit_rows, s->blocks_max);
    take_arrays(c, &s->many, l->tokens, logit_rows, s->blocks_max);
    s->bytes = c->used;
    s->best_logits = (bt_cuda_best *)take(c, logit_rows * BT_CUDA_DRAW_PIECES * sizeof(bt_cuda_best));
    s->arrivals = (uint32_t *)take(c, logit_rows * 4);
    s->best_scores = (bt_cuda_best *)take(c, logit_rows * BT_CUDA_DRAW_PIECES * sizeof(bt_cuda_best));

    cuda->a8_stride = bt_cuda_a8_columns(l->cols);
    cuda->sa_stride = tokens;
    cuda->a8 = (int8_t *)take(c, box_tokens * cuda->a8_stride);
    cuda->sa = (float *)take(c, cuda->a8_stride / 32 * tokens * 4);
    cuda->a8_next = (int8_t *)take(c, box_tokens * cuda->a8_stride);
    cuda->sa_next = (float *)take(c, cuda->a8_stride / 32 * tokens * 4);
    cuda->amax = (uint32_t *)take(c, tokens * sizeof *cuda->amax);
    cuda->sums = (int32_t *)take(c, cuda->a8_stride / 32 * tokens * 4);
    cuda->normed = (float *)take(c, (box_tokens * cuda->a8_stride + BT_CUDA_TURNED_PAD) * 4);
    cuda->halves = (uint16_t *)cuda->normed;
    cuda->halves_next = base == NULL ? NULL : cuda->halves + box_tokens * cuda->a8_stride;
    cuda->s32_tokens = (uint32_t)(tokens < S32_TOKENS ? tokens : S32_TOKENS); // whole sixty-fours
    // The head's rows are wanted of few tokens, which do not go by cuBLASLt.
    cuda->s32 = (int32_t *)take(c, l->tokens < 128 ? 0 : (size_t)cuda->s32_tokens * 4 * l->cols * 4);
    cuda->q32 = (float *)take(c, heads * l->head_dim * 4);
    cuda->q8 = (int8_t *)cuda->q32;
    cuda->q_scale = (float *)take(c, heads * 4);
    cuda->whole = (float *)take(c, (size_t)l->tokens * 8);
    cuda->partial_floats = PARTIAL_BYTES / 4;
    {
        size_t most = heads * (l->context / BT_ATTENTION_SPLIT + 1) * bt_attention_partial_floats(l->head_dim);

        cuda->partial_floats = most < cuda->partial_floats ? most : cuda->partial_floats;
    }
    cuda->partials = (float *)take(c, cuda->partial_floats * 4);
    cuda->arrivals = (uint32_t *)take(c, (size_t)l->tokens * l->kv_heads * 4);
    cuda->meetings = (uint32_t *)take(c, BT_CUDA_MEETINGS * 4);
    cuda->workspace = (uint8_t *)take(c, BT_CUBLAS_WORKSPACE);
    return all.used;
}
