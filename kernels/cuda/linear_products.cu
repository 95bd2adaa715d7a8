// What becomes of cuBLASLt's products, and which calls come by here at all.
#include "kernels/cuda/linear_products.cuh"

#include "kernels/cuda/ready.cuh"

// ---- products, finished alone ----

// A thread takes four columns of y of one token (a part has a multiple of 16).
template <bt_finish WHAT>
static __global__ void __launch_bounds__(256)
    finish_kernel(const __grid_constant__ linear_call c, const __grid_constant__ bt_products s)
{
    uint32_t k = (blockIdx.x * blockDim.x + threadIdx.x) * 4, token = s.first_token + blockIdx.y, part, start;
    float *y = c.y + token * c.y_stride + k, old[4] = {}, v[4];
    bool together = c.y_stride % 4 == 0 && (uintptr_t)c.y % 16 == 0;

    bt_let_next();
    bt_wait_before();
    if (!find_part(c, k, &part, &start)) {
        return;
    }
    if (WHAT == BT_FINISH_ADD || (WHAT == BT_FINISH_ANY && c.epilogue == BT_LINEAR_ADD)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            old[i] = y[i];
        }
    }
    bt_finish4<WHAT>(c, s, part, start, k, token, old, v);
    if (together) {
        *(float4 *)y = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y[i] = v[i];
    }
}

static size_t
outputs_of(const linear_call *c)
{
    return c->paired ? c->part[0].rows : rows_of_all(c);
}

static bt_err
finish_alone(bt_cuda *cuda, const linear_call *c, const bt_products *s, uint32_t tokens)
{
    dim3 grid((unsigned)(outputs_of(c) + 1023) / 1024, tokens);
    cudaError_t error;

    switch (bt_finish_of(c)) {
    case BT_FINISH_STORE:
        error = bt_cuda_go(cuda, finish_kernel<BT_FINISH_STORE>, grid, 256, 0, *c, *s);
        break;
    case BT_FINISH_ADD:
        error = bt_cuda_go(cuda, finish_kernel<BT_FINISH_ADD>, grid, 256, 0, *c, *s);
        break;
    case BT_FINISH_SILU:
        error = bt_cuda_go(cuda, finish_kernel<BT_FINISH_SILU>, grid, 256, 0, *c, *s);
        break;
    default:
        error = bt_cuda_go(cuda, finish_kernel<BT_FINISH_ANY>, grid, 256, 0, *c, *s);
    }
    return bt_cuda_check(cuda, error, "linear, cuBLASLt");
}

// ---- the products ----

static bt_cublas_shape
shape_of(const bt_weight *w, size_t rows_all, uint32_t tokens)
{
    bt_cublas_shape s;

    s.rows = w->rows, s.cols = bt_cols_padded(w->cols), s.tokens = (tokens + 63) / 64 * 64;
    s.codes_stride = bt_cuda_layout_of(w->format, w->rows, w->cols).padded;
    s.a8_stride = bt_cuda_a8_columns(w->cols), s.out_stride = rows_all, s.floats = 0;
    return s;
}

static size_t
rows_together(const bt_weight *const *weights, uint32_t count)
{
    size_t rows = 0;

    for (uint32_t i = 0; i < count; i++) {
        rows += weights[i]->rows;
    }
    return rows;
}

static bool
has_product(const bt_cuda *cuda, const bt_weight *w, size_t rows_all, uint32_t tokens)
{
    bt_cublas_shape shape = shape_of(w, rows_all, tokens);

    return bt_cublas_has(cuda->cublas, &shape, w->data + bt_cuda_layout_of(w->format, w->rows, w->cols).codes_offset);
}

static bool
whole_rows(const bt_weight *const *weights, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const bt_weight *w = weights[i];

        if (w->format.kind != BT_WEIGHT_INT || w->format.block != BT_BLOCK_ROW || w->format.act_block != BT_BLOCK_ROW ||
            w->rows % 16 != 0) {
            return false;
        }
    }
    return true;
}

static bool
cublas_can(const bt_cuda *cuda, const bt_weight *const *weights, uint32_t count, uint32_t tokens)
{
    size_t rows_all = rows_together(weights, count);

    if (cuda->cublas == NULL || tokens < 128 || rows_all > 4 * (size_t)cuda->limits.cols) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if ((tokens >= cuda->s32_tokens && !has_product(cuda, weights[i], rows_all, cuda->s32_tokens)) ||
            (tokens % cuda->s32_tokens != 0 && !has_product(cuda, weights[i], rows_all, tokens % cuda->s32_tokens))) {
            return false;
        }
    }
    return true;
}

bool
bt_cuda_wants_products(const bt_cuda *cuda, const bt_linear_args *a, const linear_call *c)
{
    return whole_rows(a->weights, a->weight_count) &&
           (bt_cuda_wants_prompt(cuda, c) || cublas_can(cuda, a->weights, a->weight_count, a->tokens));
}

// ---- what the next call reads ----

// Will a call with these weights come by here? It need not say all for that.
static bool
comes_by_here(const bt_cuda *cuda, const bt_linear_next *n, uint32_t tokens)
{
    bool plain = true;

    for (uint32_t i = 0; i < n->weight_count; i++) {
        plain = plain && n->weights[i]->outliers.row_start == NULL;
    }
    return whole_rows(n->weights, n->weight_count) && ((plain && cuda->gemm && tokens >= BT_CUDA_PROMPT_TOKENS) ||
                                                       cublas_can(cuda, n->weights, n->weight_count, tokens));
}

static bool
can_go_on(const bt_cuda *cuda, const bt_linear_args *a)
{
    const bt_linear_next *n = &a->next;
    bool paired = a->epilogue == BT_LINEAR_SILU_MUL || a->epilogue == BT_LINEAR_GELU_MUL;

    return n->weight_count != 0 && (paired || a->weight_count == 1) && n->weights[0]->cols == a->weights[0]->rows &&
           bt_cuda_rows_fit(cuda, n->weights[0]->cols) && ((uintptr_t)a->y | (uintptr_t)n->norm) % 16 == 0 &&
           a->y_stride % 4 == 0 && comes_by_here(cuda, n, a->tokens);
}

// ---- a call ----

static bt_err
multiply(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, uint32_t first, uint32_t tokens)
{
    size_t rows_all = rows_of_all(c), at = 0;
    bt_err err = BT_OK;

    for (uint32_t i = 0; i < c->part_count && err == BT_OK; i++) {
        bt_cublas_shape shape = shape_of(a->weights[i], rows_all, tokens);

        err = bt_cublas_product(cuda->cublas, &shape, c->part[i].codes, c->a8 + first * c->a8_stride, cuda->s32 + at);
        at += c->part[i].rows;
    }
    return err;
}

// By cuBLASLt, as many tokens at a time as there is room for s32.
static bt_err
by_products(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool on)
{
    bt_products s = {cuda->s32, rows_of_all(c), 0, c->part[0].rows};
    bt_err err = BT_OK;

    for (uint32_t tokens; s.first_token < a->tokens && err == BT_OK; s.first_token += tokens) {
        tokens = a->tokens - s.first_token < cuda->s32_tokens ? a->tokens - s.first_token : cuda->s32_tokens;
        if ((err = multiply(cuda, a, c, s.first_token, tokens)) == BT_OK && on) {
            bt_row_target to = bt_cuda_next_target(cuda, &a->next, a->tokens, BT_A8_ROWS);

            err = bt_cuda_finish_rows(cuda, c, &s, tokens, &to, !a->next.only);
        } else if (err == BT_OK) {
            err = finish_alone(cuda, c, &s, tokens);
        }
    }
    return err;
}

// By our own kernel. Of a pair it finds the rows' largest on its way; after the others the next call begins with y as well as it would here.
static bt_err
by_prompt(bt_cuda *cuda, const bt_linear_args *a, const linear_call *c, bool on)
{
    bt_row_target to;
    bt_err err;

    if (!on) {
        return bt_cuda_prompt(cuda, c, NULL);
    }
    to = bt_cuda_next_target(cuda, &a->next, a->tokens, BT_A8_ROWS);
    if ((err = bt_cuda_prompt(cuda, c, cuda->amax)) != BT_OK) {
        return err;
    }
    return bt_cuda_encode_rows(cuda, c, cuda->amax, &to);
}

bt_err
bt_cuda_products(bt_cuda *cuda, const bt_linear_args *a, linear_call *c)
{
    bool prompt = bt_cuda_wants_prompt(cuda, c);
    bool on = can_go_on(cuda, a) && (!prompt || (c->paired && a->next.norm == NULL));
    bt_err err;

    c->order = BT_A8_ROWS;
    if ((err = bt_cuda_activations(cuda, a, c)) == BT_OK) {
        err = prompt ? by_prompt(cuda, a, c, on) : by_products(cuda, a, c, on);
    }
    if (err == BT_OK && on) {
        bt_cuda_remember(cuda, &a->next, a->y, a->y_stride, a->tokens, BT_A8_ROWS, !prompt && a->next.only);
    }
    return err;
}
