// Linear layers: which kernel takes a call, and the plain one.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_deep_call.cuh"
#include "kernels/cuda/linear_mma.cuh"
#include "kernels/cuda/linear_products.cuh"
#include "kernels/cuda/linear_wide_call.cuh"
#include "kernels/cuda/ready.cuh"

// ---- any format, one thread an output: the specification once more ----

static __device__ float
plain_dot(const linear_call &c, const bt_cuda_matrix &m, uint32_t row, uint32_t token)
{
    uint32_t block = m.block != BT_BLOCK_ROW ? m.block : m.act_block != BT_BLOCK_ROW ? m.act_block : c.padded;
    uint32_t segment = m.block == BT_BLOCK_ROW && m.act_block == BT_BLOCK_ROW ? c.padded : SEGMENT;
    float stack[2][24];
    uint32_t depth = 0, count = 0;

    for (uint32_t first = 0; first < c.padded; first += segment) {
        float acc = 0.0f, accm = 0.0f;

        for (uint32_t k = first; k < c.padded && k < first + segment; k += block) {
            uint32_t b = m.block == BT_BLOCK_ROW ? 0 : k / m.block;
            float sa = c.sa[(m.act_block == BT_BLOCK_ROW ? 0 : k / m.act_block) * c.sa_stride + token];
            int32_t dot = 0, sum = 0;

            for (uint32_t i = k; i < c.padded && i < k + block; i++) {
                int a = c.a8[a8_at(c, token, i)];

                dot += bt_cuda_code(&m, row, i) * a;
                sum += a;
            }
            acc = fmaf(bt_cuda_scale(&m, m.scales, row, b) * sa, (float)dot, acc);
            if (m.asymmetric) {
                accm = fmaf(bt_cuda_scale(&m, m.minima, row, b), sa * (float)sum, accm);
            }
        }
        count++;
        for (uint32_t n = count; n % 2 == 0; n /= 2) {
            depth--;
            acc = stack[0][depth] + acc;
            accm = stack[1][depth] + accm;
        }
        stack[0][depth] = acc;
        stack[1][depth++] = accm;
    }
    while (--depth > 0) {
        stack[0][depth - 1] += stack[0][depth];
        stack[1][depth - 1] += stack[1][depth];
    }
    return m.asymmetric ? stack[0][0] + stack[1][0] : stack[0][0];
}

// Sixteen lanes and their tree, as ref has it, one after the other.
static __device__ float
plain_float_dot(const bt_cuda_matrix &m, uint32_t row, const float *x)
{
    float lanes[16] = {};

    for (uint32_t k = 0; k < m.padded; k++) {
        lanes[k % 16] = fmaf(bt_cuda_float(&m, row, k), x[k], lanes[k % 16]);
    }
    return bt_ref_tree16(lanes);
}

static __global__ void
plain_kernel(const __grid_constant__ linear_call c, const float *normed)
{
    uint32_t row = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y, part, start;
    bool ints = c.part[0].kind == BT_WEIGHT_INT;
    const float *x = normed + token * c.a8_stride;
    float r[2];

    bt_let_next();
    bt_wait_before();
    if (!find_part(c, row, &part, &start)) {
        return;
    }
    for (uint32_t i = 0; i < (c.paired ? 2u : 1u); i++) {
        const bt_cuda_matrix &m = c.part[part + i];

        r[i] = finish(c, part + i, row - start, token,
                      ints ? plain_dot(c, m, row - start, token) : plain_float_dot(m, row - start, x));
    }
    if (c.paired) {
        store_pair(c, row, token, r[0], r[1]);
    } else {
        store(c, row, token, r[0]);
    }
}

// ---- launch ----

static linear_call
call_of(const bt_cuda *cuda, const bt_linear_args *a)
{
    linear_call c;

    memset(&c, 0, sizeof c);
    for (uint32_t i = 0; i < a->weight_count; i++) {
        c.part[i] = bt_cuda_matrix_of(a->weights[i]);
        c.bias[i] = a->biases[i];
        c.tiles_all += c.part[i].tiles;
    }
    c.part_count = a->weight_count;
    c.paired = a->epilogue == BT_LINEAR_SILU_MUL || a->epilogue == BT_LINEAR_GELU_MUL;
    c.tokens = a->tokens;
    c.padded = bt_cols_padded(a->weights[0]->cols);
    c.a8 = cuda->a8, c.sa = cuda->sa, c.sums = cuda->sums;
    c.a8_stride = bt_cuda_a8_columns(a->weights[0]->cols), c.sa_stride = bt_cuda_sa_stride(cuda, a->tokens);
    c.act_shift = 31, c.act_rows = 1; // one scale a token
    for (uint32_t shift = 5; shift <= 7; shift++) {
        if (c.part[0].act_block == 1u << shift) {
            c.act_shift = shift, c.act_rows = 128 >> shift;
        }
    }
    c.y = a->y, c.y_stride = a->y_stride, c.epilogue = a->epilogue, c.scale = a->scale, c.softcap = a->softcap;
    return c;
}

#define WARPS_MAX 16u

// How many tiles, groups and segments a group a block of threads has: one wave of them if that can be, and warps enough.
template <int NT>
static bool
cut(const bt_cuda *cuda, linear_call *c, size_t tile_bytes, size_t partial_floats)
{
    uint32_t segments = (c->padded + SEGMENT - 1) / SEGMENT, step = c->paired ? 2 : 1, found = 0;
    linear_call best = *c;

    c->sa_bytes = c->act_rows * NT * 32;
    for (c->run = 1; c->run <= (NT <= 2 ? 4u : 2u); c->run *= 2) {
        uint32_t most, each = (c->tiles_all + cuda->sms - 1) / cuda->sms;

        c->groups = (segments + c->run - 1) / c->run;
        if (c->groups > WARPS_MAX || (c->groups == WARPS_MAX && c->paired)) {
            continue;
        }
        most = WARPS_MAX / c->groups / step * step;
        each = (each + step - 1) / step * step;
        for (c->tiles = most < each ? most : each; c->tiles >= step; c->tiles -= step) {
            size_t stages, partials = (size_t)c->groups * c->tiles * 16 * (NT * 8 + 1) * partial_floats * 4;

            c->stage_bytes = (uint32_t)(NT * 1024 + c->sa_bytes + c->tiles * tile_bytes);
            stages = (size_t)c->groups * c->stage_bytes * depth<NT>::value;
            if (stages <= cuda->shared_max && partials <= cuda->shared_max) {
                break;
            }
        }
        if (c->tiles < step || c->tiles > most) {
            continue;
        }
        if (found == 0 || c->tiles_all > best.tiles * (uint32_t)cuda->sms) {
            best = *c;
            found = 1;
        }
    }
    *c = best;
    return found != 0;
}

// False: it has no cut. What the launch said is in *error.
template <int BITS, int BLOCK, bool ASYM, int NT>
static bool
launch(bt_cuda *cuda, linear_call *c, cudaError_t *error)
{
    size_t stages, partials;

    if (!cut<NT>(cuda, c, shape<BITS, BLOCK, ASYM>::tile_bytes, ASYM ? 2 : 1)) {
        return false;
    }
    stages = (size_t)c->groups * c->stage_bytes * depth<NT>::value;
    partials = (size_t)c->groups * c->tiles * 16 * (NT * 8 + 1) * (ASYM ? 8 : 4);
    stages = stages > partials ? stages : partials;
    *error = bt_cuda_go(cuda, linear_kernel<BITS, BLOCK, ASYM, NT>,
                        dim3((c->tiles_all + c->tiles - 1) / c->tiles, (c->tokens + NT * 8 - 1) / (NT * 8)),
                        dim3(c->tiles * c->groups * 32), stages, *c);
    return true;
}

// As many tokens a block of threads as there are, up to 64, and as shared memory has room for: all of a row's segments are in one block, which
// with 64 tokens and 14,336 columns is 200 KB. Weights are read once for each such share of the tokens.
template <int BITS, int BLOCK, bool ASYM>
static bool
launch_tokens(bt_cuda *cuda, linear_call *c, cudaError_t *error)
{
    return (c->tokens > 32 && launch<BITS, BLOCK, ASYM, 8>(cuda, c, error)) ||
           (c->tokens > 16 && launch<BITS, BLOCK, ASYM, 4>(cuda, c, error)) ||
           (c->tokens > 8 && launch<BITS, BLOCK, ASYM, 2>(cuda, c, error)) ||
           launch<BITS, BLOCK, ASYM, 1>(cuda, c, error);
}

template <int BITS, bool ASYM>
static bool
launch_block(bt_cuda *cuda, linear_call *c, uint32_t block, cudaError_t *error)
{
    switch (block) {
    case 32:
        return launch_tokens<BITS, 32, ASYM>(cuda, c, error);
    case 64:
        return launch_tokens<BITS, 64, ASYM>(cuda, c, error);
    case 128:
        return launch_tokens<BITS, 128, ASYM>(cuda, c, error);
    default:
        return false;
    }
}

static bool
launch_mma(bt_cuda *cuda, linear_call *c, cudaError_t *error)
{
    const bt_cuda_matrix *m = &c->part[0];
    uint32_t block = dot_columns(m);

    if (m->kind != BT_WEIGHT_INT || !are_alike(c)) {
        return false;
    }
    if (block == BT_BLOCK_ROW) {
        return !m->nibbles && launch_tokens<8, 0, false>(cuda, c, error);
    }
    if (m->nibbles) {
        return m->asymmetric ? launch_block<4, true>(cuda, c, block, error)
                             : launch_block<4, false>(cuda, c, block, error);
    }
    return m->asymmetric ? launch_block<8, true>(cuda, c, block, error) : launch_block<8, false>(cuda, c, block, error);
}

// Does linear_few take a call with these weights, whether it adds or stores, which is not known? false: one of the two, or that hangs on more.
static bool
few_either_way(bt_cuda *cuda, const linear_call *c, const bt_linear_args *a, bool *takes)
{
    linear_call adds = *c;
    bool too;

    adds.epilogue = BT_LINEAR_ADD;
    return bt_cuda_takes_few(cuda, a, c, takes) && bt_cuda_takes_few(cuda, a, &adds, &too) && *takes == too;
}

bool
bt_cuda_next_order(bt_cuda *cuda, const bt_linear_next *next, uint32_t tokens, bt_cuda_a8_order *order)
{
    const bt_weight *w = next->weights[0];
    bt_linear_args args;
    linear_call c;
    bool few;

    if (tokens == 1 || next->weight_count != 1 || next->norm != NULL || w->format.kind != BT_WEIGHT_INT ||
        w->format.asymmetric || w->format.act_block != 128) {
        return false;
    }
    memset(&args, 0, sizeof args);
    args.weights[0] = w, args.weight_count = 1, args.tokens = tokens;
    c = call_of(cuda, &args);
    *order = BT_A8_FRAGMENTS;
    if (!few_either_way(cuda, &c, &args, &few)) {
        return false;
    }
    if (!few && !bt_cuda_wants_deep(cuda, &c, order)) {
        bt_cuda_wants_wide(cuda, &c, order);
    }
    return true;
}

// On warpgroups, which may leave what the next call begins with.
static bt_err
go_wide(bt_cuda *cuda, const bt_linear_args *args, const linear_call *c)
{
    const bt_linear_next *next = &args->next;
    bt_cuda_leaves leaves;
    bt_cuda_a8_order order;
    bt_err err;

    memset(&leaves, 0, sizeof leaves);
    if (c->paired && next->weight_count != 0 && next->weights[0]->cols == c->part[0].rows &&
        bt_cuda_next_order(cuda, next, c->tokens, &order)) {
        leaves.to = bt_cuda_next_target(cuda, next, c->tokens, order), leaves.write = !next->only;
    }
    if ((err = bt_cuda_linear_wide(cuda, c, &leaves)) == BT_OK && leaves.to.a8 != NULL) {
        bt_cuda_remember(cuda, next, c->y, c->y_stride, c->tokens, order, next->only);
    }
    return err;
}

bt_err
bt_cuda_linear(bt_device *device, const bt_linear_args *args)
{
    bt_cuda *cuda = bt_cuda_of(device);
    linear_call c = call_of(cuda, args);
    cudaError_t error = cudaSuccess;
    bool deep, wide, taken;
    bt_err err;

    if (bt_cuda_wants_half(cuda, &c)) {
        return bt_cuda_linear_half(cuda, args, &c);
    }
    if (bt_cuda_wants_products(cuda, args, &c)) {
        return bt_cuda_products(cuda, args, &c);
    }
    c.order = BT_A8_FRAGMENTS;
    if ((err = bt_cuda_linear_few(cuda, args, &c, &taken)) != BT_OK || taken) {
        return err;
    }
    deep = bt_cuda_wants_deep(cuda, &c, &c.order);
    wide = !deep && bt_cuda_wants_wide(cuda, &c, &c.order);
    if ((err = bt_cuda_activations(cuda, args, &c)) != BT_OK) {
        return err;
    }
    if (deep) {
        return bt_cuda_linear_deep(cuda, &c);
    }
    if (wide) {
        return go_wide(cuda, args, &c);
    }
    if (!launch_mma(cuda, &c, &error)) {
        uint32_t rows = c.paired ? c.part[0].rows : (uint32_t)rows_of_all(&c);

        error = bt_cuda_go(cuda, plain_kernel, dim3((rows + 127) / 128, c.tokens), dim3(128), 0, c,
                           (const float *)cuda->normed);
    }
    return bt_cuda_check(cuda, error, "linear");
}
