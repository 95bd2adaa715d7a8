// Attention through the KV cache, every number as kernels/cpu/ref/attention.h has it: prepare, then attend, then merge the splits from the
// left, where they were apart.
#include "kernels/cuda/attend_mma.cuh"
#include "kernels/cuda/attend_plain.cuh"

#define AHEAD 8u // splits that merge_kernel loads at once

static __global__ void
merge_kernel(const __grid_constant__ attention_call c)
{
    uint32_t row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    uint32_t splits = (c.positions[row] + BT_ATTENTION_SPLIT) / BT_ATTENTION_SPLIT;
    size_t floats = BT_PARTIAL_HEAD + (c.a.head_dim + 15) / 16 * 16;
    const float *p = c.partials + ((size_t)row * c.a.heads + head) * c.splits * floats;
    float m = 0.0f, l = 0.0f, acc = 0.0f;
    bool seen = false;

    if (d >= c.a.head_dim) {
        return;
    }
    for (uint32_t first = 0; first < splits; first += AHEAD) {
        float max[AHEAD], sum[AHEAD], there[AHEAD], value[AHEAD];

#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) { // all on their way before the first is needed
            const float *at = p + (first + i < splits ? first + i : first) * floats;

            max[i] = at[BT_PARTIAL_MAX], sum[i] = at[BT_PARTIAL_SUM], there[i] = at[BT_PARTIAL_SEEN];
            value[i] = at[BT_PARTIAL_HEAD + d];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            float n = max[i] > m ? max[i] : m, a, b;

            if (first + i >= splits || there[i] == 0.0f) {
                continue;
            }
            if (!seen) {
                m = max[i], l = sum[i], acc = value[i];
                seen = true;
                continue;
            }
            a = bt_ref_exp2(m - n);
            b = bt_ref_exp2(max[i] - n);
            m = n;
            l = fmaf(l, a, sum[i] * b);
            acc = fmaf(acc, a, value[i] * b);
        }
    }
    c.a.out[row * c.a.out_stride + (size_t)head * c.a.head_dim + d] = acc * (1.0f / l);
}

// ---- launch ----

static attention_call
call_of(bt_cuda *cuda, const bt_attention_args *args)
{
    attention_call c;

    memset(&c, 0, sizeof c);
    c.a = *args;
    c.l = *args->layout;
    c.a.layout = NULL; // the host's
    c.a.spans = NULL;
    c.positions = cuda->step.at.positions, c.tables = cuda->step.at.tables, c.blocks = cuda->step.at.blocks;
    c.q8 = cuda->q8, c.q32 = cuda->q32, c.q_scale = cuda->q_scale, c.whole = cuda->whole, c.partials = cuda->partials;
    c.group = args->heads / args->kv_heads;
    c.scale_groups = args->head_dim / c.l.k_scale_group;
    return c;
}

// Splits apart: where there are too few workers otherwise, and room. 0: a worker goes through all of them.
static uint32_t
splits_apart(const bt_cuda *cuda, const bt_attention_args *args, size_t rows, size_t workers)
{
    size_t floats = bt_attention_partial_floats(args->head_dim);

    return cuda->splits == 1 || rows * args->heads * cuda->splits * floats > cuda->partial_floats ||
                   rows * args->kv_heads > workers
               ? 0
               : cuda->splits;
}

static void
launch_merge(bt_cuda *cuda, const attention_call &c)
{
    if (c.splits != 0) {
        merge_kernel<<<dim3(cuda->tokens, c.a.heads), (c.a.head_dim + 31) / 32 * 32, 0, cuda->stream>>>(c);
    }
}

// Any shape and format.
static void
launch_plain(bt_cuda *cuda, attention_call c)
{
    dim3 grid;

    c.splits = splits_apart(cuda, &c.a, cuda->tokens, 8 * (size_t)cuda->sms);
    grid = dim3(c.splits != 0 ? c.splits : 1, c.a.kv_heads, cuda->tokens);
    if (c.a.head_dim <= THREADS) {
        attend_kernel<1><<<grid, THREADS, 0, cuda->stream>>>(c);
    } else if (c.a.head_dim <= 2 * THREADS) {
        attend_kernel<2><<<grid, THREADS, 0, cuda->stream>>>(c);
    } else {
        attend_kernel<4><<<grid, THREADS, 0, cuda->stream>>>(c);
    }
    launch_merge(cuda, c);
}

template <int STEPS, int NT>
static bt_err
launch_tiles(bt_cuda *cuda, const attention_call &c, const bt_cuda_tile *tiles, uint32_t count)
{
    size_t items = (size_t)count * c.a.kv_heads * (c.splits != 0 ? c.splits : 1);
    const size_t bytes = sizeof(attend_warp<STEPS, NT>) * BT_MMA_WARPS;
    cudaError_t error = cudaSuccess;

    static_assert(bytes <= BT_CUDA_SHARED_LEAST, "it runs on every GPU");
    if (bytes > 48 * 1024) {
        error =
            cudaFuncSetAttribute(attend_mma_kernel<STEPS, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    }
    attend_mma_kernel<STEPS, NT>
        <<<(unsigned)((items + BT_MMA_WARPS - 1) / BT_MMA_WARPS), BT_MMA_WARPS * 32, bytes, cuda->stream>>>(c, tiles,
                                                                                                            count);
    return bt_cuda_check(cuda, error, "attention");
}

template <int STEPS>
static bt_err
launch_mma(bt_cuda *cuda, attention_call c)
{
    const bt_cuda_step *s = &cuda->step;
    bt_err err = BT_OK;

    if (s->single_count != 0 && bt_cuda_decodes(cuda, &c)) {
        err = bt_cuda_attention_decode(cuda, &c);
    } else if (s->single_count != 0) {
        c.splits = s->tile_count == 0 ? splits_apart(cuda, &c.a, cuda->tokens, 64 * (size_t)cuda->sms) : 0;
        err = c.group <= 8 ? launch_tiles<STEPS, 1>(cuda, c, s->at.singles, s->single_count)
                           : launch_tiles<STEPS, 2>(cuda, c, s->at.singles, s->single_count);
        launch_merge(cuda, c);
    }
    if (err == BT_OK && s->tile_count != 0) {
        err = bt_cuda_attend_prompt(cuda, c);
    }
    return err;
}

void
bt_cuda_attention_leaves(bt_cuda *cuda, attention_call *c)
{
    const bt_linear_next *next = &c->a.next;
    bt_cuda_a8_order order;

    c->leaves.write = true;
    if (c->singles != NULL || c->a.head_dim != 128 || next->weight_count == 0 ||
        next->weights[0]->cols != c->a.heads * 128 || !bt_cuda_next_order(cuda, next, cuda->tokens, &order)) {
        return;
    }
    c->leaves.to = bt_cuda_next_target(cuda, next, cuda->tokens, order), c->leaves.write = !next->only;
    bt_cuda_remember(cuda, next, c->a.out, c->a.out_stride, cuda->tokens, order, next->only);
}

bt_err
bt_cuda_attention(bt_device *device, const bt_attention_args *args)
{
    bt_cuda *cuda = bt_cuda_of(device);
    attention_call c = call_of(cuda, args);
    bool mma = bt_cuda_prompt_takes(c) && (cuda->prompts || cuda->step.tile_count == 0);
    bt_err err = BT_OK;

    assert(args->head_dim <= HEAD_DIM_MAX && c.group <= GROUP_MAX); // bt_device_reserve has seen to it
    bt_cuda_forget(cuda, NULL);
    if (args->norm_whole && args->q_norm != NULL) {
        whole_kernel<<<cuda->tokens, 32, 0, cuda->stream>>>(c);
    }
    if (cuda->step.tile_count != 0 && cuda->prompts && bt_cuda_prepares_prompt(c)) {
        err = bt_cuda_prepare_prompt(cuda, c, !bt_cuda_decodes(cuda, &c));
    } else if (cuda->step.tile_count != 0 || !bt_cuda_decodes(cuda, &c)) {
        prepare_kernel<<<dim3(cuda->tokens, args->heads + 2 * args->kv_heads), 32, 0, cuda->stream>>>(c);
    }
    if (err != BT_OK) {
        return err;
    }
    if (mma && args->head_dim == 64) {
        err = launch_mma<2>(cuda, c);
    } else if (mma && args->head_dim == 128) {
        err = launch_mma<4>(cuda, c);
    } else if (mma && args->head_dim == 256) {
        err = launch_mma<8>(cuda, c);
    } else {
        launch_plain(cuda, c);
    }
    bt_cuda_mark(cuda); // once a layer
    return err != BT_OK ? err : bt_cuda_launched(cuda, "attention");
}
