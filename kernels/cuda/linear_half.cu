// 16-bit weights: which calls, what they leave for the next, and the kernel of few tokens.
#include "kernels/cuda/linear_half.cuh"

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/linear_half_call.cuh"

bool
bt_cuda_wants_half(const bt_cuda *cuda, const linear_call *c)
{
    uint8_t kind = c->part[0].kind;

    for (uint32_t i = 1; i < c->part_count; i++) {
        if (c->part[i].kind != kind) {
            return false;
        }
    }
    return cuda->head.rounds && (kind == BT_WEIGHT_F16 || kind == BT_WEIGHT_BF16);
}

// ---- what the next call reads ----

// Does that call begin with y as it is, in bf16? (F16's rows have to be seen whole first.)
static bool
goes_on(const bt_linear_args *a)
{
    const bt_linear_next *n = &a->next;

    for (uint32_t i = 0; i < n->weight_count; i++) {
        if (n->weights[i]->format.kind != BT_WEIGHT_BF16) {
            return false;
        }
    }
    return n->weight_count != 0 && n->norm == NULL && n->weights[0]->cols == a->weights[0]->rows;
}

static void
remember(bt_cuda *cuda, const bt_linear_args *a)
{
    bt_cuda_ready r = {a->y, BT_WEIGHT_BF16,   a->y_stride,  a->tokens, a->next.weights[0]->cols,
                       NULL, a->next.norm_eps, a->next.only, 0,         BT_A8_ROWS};

    cuda->ready = r;
}

// Is what this call reads bf16 already? Then it is what cuda->halves is from now on.
static bool
take_ready(bt_cuda *cuda, const bt_linear_args *a)
{
    const bt_cuda_ready r = cuda->ready;
    uint16_t *halves = cuda->halves;

    if (r.x == NULL || r.kind != BT_WEIGHT_BF16 || a->weights[0]->format.kind != BT_WEIGHT_BF16 || r.x != a->x ||
        r.x_stride != a->x_stride || r.tokens != a->tokens || r.cols != a->weights[0]->cols || a->norm != NULL) {
        bt_cuda_forget(cuda, a->x);
        return false;
    }
    cuda->ready.x = NULL;
    cuda->halves = cuda->halves_next, cuda->halves_next = halves;
    return true;
}

// ---- few tokens ----

static bool
maps_of(const bt_cuda *cuda, const linear_call *c, uint32_t x_rows, half_maps *maps)
{
    bool good = bt_cuda_half_plane(&maps->x, c->part[0].kind, cuda->halves, c->part[0].cols,
                                   bt_cuda_box_tokens(c->tokens), c->a8_stride, x_rows);

    for (uint32_t i = 0; i < c->part_count; i++) {
        const bt_cuda_matrix *m = &c->part[i];

        good = good && bt_cuda_half_plane(&maps->weights[i], m->kind, m->codes, m->padded, m->rows, m->padded,
                                          c->paired ? HALF_COLUMNS / 2 : HALF_COLUMNS);
    }
    return good;
}

static half_cut
cut_of(const linear_call *c, uint32_t x_rows)
{
    uint32_t each = c->paired ? HALF_COLUMNS / 2 : HALF_COLUMNS;
    half_cut h;

    memset(&h, 0, sizeof h);
    for (uint32_t i = 0; i < (c->paired ? 1 : c->part_count); i++) {
        h.tiles[i] = (c->part[i].rows + each - 1) / each;
        h.total += h.tiles[i];
    }
    h.rows = (c->tokens + HALF_TOKENS - 1) / HALF_TOKENS;
    h.total *= h.rows;
    h.steps = (c->padded / HALF_K + HALF_BOXES - 1) / HALF_BOXES; // what is beyond the last column comes as zeros
    h.x_bytes = x_rows * PROMPT_K;
    h.stage_bytes = HALF_BOXES * (h.x_bytes + HALF_COLUMNS * PROMPT_K);
    h.stages = (HALF_RING - HALF_BEHIND) / h.stage_bytes;
    h.stages = h.stages < HALF_STAGES_MAX ? h.stages : HALF_STAGES_MAX;
    return h;
}

template <bool BRAIN>
static cudaError_t
launch(bt_cuda *cuda, bt_finish what, const half_maps &maps, const linear_call &c, const half_cut &h,
       const half_out &out)
{
    unsigned most = 2 * (unsigned)cuda->sms, blocks = h.total < most ? h.total : most;

    switch (what) {
    case BT_FINISH_STORE:
        return bt_cuda_go(cuda, half_kernel<BT_FINISH_STORE, BRAIN>, blocks, HALF_THREADS, HALF_SHARED, maps, c, h,
                          out);
    case BT_FINISH_ADD:
        return bt_cuda_go(cuda, half_kernel<BT_FINISH_ADD, BRAIN>, blocks, HALF_THREADS, HALF_SHARED, maps, c, h, out);
    case BT_FINISH_SILU:
        return bt_cuda_go(cuda, half_kernel<BT_FINISH_SILU, BRAIN>, blocks, HALF_THREADS, HALF_SHARED, maps, c, h, out);
    default:
        return bt_cuda_go(cuda, half_kernel<BT_FINISH_ANY, BRAIN>, blocks, HALF_THREADS, HALF_SHARED, maps, c, h, out);
    }
}

static bt_err
by_few(bt_cuda *cuda, bt_finish what, const linear_call *c, const half_out &out)
{
    uint32_t x_rows = c->tokens >= HALF_TOKENS ? HALF_TOKENS : (c->tokens + 7) / 8 * 8;
    half_cut h = cut_of(c, x_rows);
    half_maps maps;

    memset(&maps, 0, sizeof maps);
    if (!maps_of(cuda, c, x_rows, &maps)) {
        return bt_cuda_check(cuda, cudaErrorInvalidValue, "linear, 16 bits: a map");
    }
    return bt_cuda_check(cuda,
                         c->part[0].kind == BT_WEIGHT_BF16 ? launch<true>(cuda, what, maps, *c, h, out)
                                                           : launch<false>(cuda, what, maps, *c, h, out),
                         "linear, 16 bits");
}

// ---- a call ----

// What follows the sums: two columns at a time where they lie so.
static bt_finish
finish_of(const linear_call *c)
{
    bool pairs = c->y_stride % 2 == 0 && (uintptr_t)c->y % 8 == 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        pairs = pairs && c->part[i].rows % 2 == 0;
    }
    return pairs ? bt_finish_of(c) : BT_FINISH_ANY;
}

bt_err
bt_cuda_linear_half(bt_cuda *cuda, const bt_linear_args *a, linear_call *c)
{
    bt_finish what = finish_of(c);
    bool on = what == BT_FINISH_SILU && goes_on(a);
    half_out out = {NULL, 0, true};
    bt_err err;

    if (!take_ready(cuda, a) && (err = bt_cuda_half_rows(cuda, a)) != BT_OK) {
        return err;
    }
    c->sa = c->part[0].kind == BT_WEIGHT_F16 ? cuda->sa : NULL;
    if (on) {
        out.next = cuda->halves_next, out.next_stride = bt_cuda_a8_columns(a->next.weights[0]->cols);
        out.write = !a->next.only;
    }
    err = c->tokens <= BT_CUDA_HALF_FEW ? by_few(cuda, what, c, out) : bt_cuda_half_prompt(cuda, what, c, out);
    if (err == BT_OK && on) {
        remember(cuda, a);
    }
    return err;
}
