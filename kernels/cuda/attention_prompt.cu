// Attention of the step's prompts (attention_prompt.cuh), and of their tokens what comes before it (prompt_prepare.cuh).
#include "kernels/cuda/attention_prompt.cuh"
#include "kernels/cuda/prompt_prepare.cuh"

bool
bt_cuda_prompt_takes(const attention_call &c)
{
    return c.l.format == BT_KV_INT8 && c.scale_groups == 1 && c.group <= PROMPT_ROWS &&
           (c.a.head_dim == 64 || c.a.head_dim == 128 || c.a.head_dim == 256);
}

// Splits apart where blocks are too few for the GPU otherwise, and where there is room for what they leave.
static uint32_t
splits_apart(const bt_cuda *cuda, const attention_call &c)
{
    size_t blocks = (size_t)cuda->step.tile_count * c.a.kv_heads;
    size_t floats = (size_t)cuda->tokens * c.a.heads * cuda->splits * bt_attention_partial_floats(c.a.head_dim);

    return cuda->splits == 1 || blocks >= 3 * (size_t)cuda->sms / 2 || floats > cuda->partial_floats ? 0 : cuda->splits;
}

template <int DIM>
static bt_err
attend(bt_cuda *cuda, attention_call c)
{
    uint32_t count = cuda->step.tile_count, rows = cuda->step.tile_tokens * c.a.heads;
    uint32_t blocks;
    cudaError_t error;

    static_assert(sizeof(prompt_shared<DIM>) <= BT_CUDA_SHARED_LEAST, "it runs on every GPU");
    c.splits = splits_apart(cuda, c);
    blocks = count * c.a.kv_heads * (c.splits != 0 ? c.splits : 1);
    if (bt_cuda_wants_squad(cuda, c)) {
        error = bt_cuda_squad(cuda, c);
    } else {
        error = bt_cuda_go(cuda, prompt_kernel<DIM>, dim3(blocks), dim3(PROMPT_THREADS), sizeof(prompt_shared<DIM>), c,
                           cuda->step.at.tiles);
    }
    if (error == cudaSuccess && c.splits != 0) {
        error = bt_cuda_go(cuda, prompt_merge_kernel<DIM>, dim3(count, (rows + 7) / 8), dim3(32, 8), 0, c,
                           cuda->step.at.tiles);
    }
    return bt_cuda_check(cuda, error, "attention of prompts");
}

bt_err
bt_cuda_attend_prompt(bt_cuda *cuda, const attention_call &c)
{
    return c.a.head_dim == 64 ? attend<64>(cuda, c) : c.a.head_dim == 128 ? attend<128>(cuda, c) : attend<256>(cuda, c);
}

// ---- prepare ----

template <int DIM, bool ROPE>
static bt_err
prepare(bt_cuda *cuda, const attention_call &c, const bt_cuda_tile *tiles, uint32_t count, uint32_t tile_tokens)
{
    uint32_t heads = c.a.heads + 2 * c.a.kv_heads, windows = (tile_tokens + 14) / 8, blocks = count * windows;
    // Some heads a warp, which share the angles, where there are warps enough.
    uint32_t each = blocks * heads >= 128 * (uint32_t)cuda->sms ? PREPARE_EACH : 1;
    uint32_t shares = (heads + PREPARE_WARPS * each - 1) / (PREPARE_WARPS * each);

    return bt_cuda_check(cuda,
                         bt_cuda_go(cuda, prompt_prepare_kernel<DIM, ROPE>, dim3(blocks, shares),
                                    dim3(PREPARE_WARPS * 32), 0, c, tiles, windows, each),
                         "attention's preparation");
}

template <int DIM>
static bt_err
prepare_all(bt_cuda *cuda, const attention_call &c, bool singles)
{
    const bt_cuda_step *s = &cuda->step;
    bool rope = c.a.rope_cos != NULL && c.a.rope_dims != 0;
    bt_err err = BT_OK;

    if (s->tile_count != 0) {
        err = rope ? prepare<DIM, true>(cuda, c, s->at.tiles, s->tile_count, s->tile_tokens)
                   : prepare<DIM, false>(cuda, c, s->at.tiles, s->tile_count, s->tile_tokens);
    }
    if (err == BT_OK && singles && s->single_count != 0) {
        err = rope ? prepare<DIM, true>(cuda, c, s->at.singles, s->single_count, 1)
                   : prepare<DIM, false>(cuda, c, s->at.singles, s->single_count, 1);
    }
    return err;
}

bool
bt_cuda_prepares_prompt(const attention_call &c)
{
    bool rope = c.a.rope_cos != NULL && c.a.rope_dims != 0;

    return bt_cuda_prompt_takes(c) &&
           (!rope || (c.a.rope_dims == c.a.head_dim && ((size_t)c.a.rope_cos | (size_t)c.a.rope_sin) % 16 == 0));
}

bt_err
bt_cuda_prepare_prompt(bt_cuda *cuda, const attention_call &c, bool singles)
{
    return c.a.head_dim == 64    ? prepare_all<64>(cuda, c, singles)
           : c.a.head_dim == 128 ? prepare_all<128>(cuda, c, singles)
                                 : prepare_all<256>(cuda, c, singles);
}
