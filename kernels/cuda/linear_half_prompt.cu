// 16-bit weights and many tokens: the launch of linear_half.cuh's second kernel.
#include "kernels/cuda/linear_half.cuh"

#include "kernels/cuda/linear_half_call.cuh"

static bool
maps_of(const bt_cuda *cuda, const linear_call *c, prompt_maps *maps)
{
    bool good = bt_cuda_half_plane(&maps->a8, c->part[0].kind, cuda->halves, c->part[0].cols,
                                   bt_cuda_box_tokens(c->tokens), c->a8_stride, PROMPT_TOKENS);

    for (uint32_t i = 0; i < c->part_count; i++) {
        const bt_cuda_matrix *m = &c->part[i];

        good = good && bt_cuda_half_plane(&maps->codes[i], m->kind, m->codes, m->padded, m->rows, m->padded,
                                          PROMPT_COLUMNS / 2);
    }
    return good;
}

template <bool BRAIN>
static cudaError_t
launch(bt_cuda *cuda, bt_finish what, const prompt_maps &maps, const linear_call &c, const prompt_cut &p,
       const half_out &out)
{
    unsigned most = (unsigned)cuda->sms / 2, blocks = (p.total < most ? p.total : most) * 2;

    switch (what) {
    case BT_FINISH_STORE:
        return bt_cuda_go(cuda, half_prompt_kernel<BT_FINISH_STORE, BRAIN, false>, blocks, PROMPT_THREADS,
                          PROMPT_SHARED, maps, c, p, out);
    case BT_FINISH_ADD:
        return bt_cuda_go(cuda, half_prompt_kernel<BT_FINISH_ADD, BRAIN, false>, blocks, PROMPT_THREADS, PROMPT_SHARED,
                          maps, c, p, out);
    case BT_FINISH_SILU:
        return bt_cuda_go(cuda, half_prompt_kernel<BT_FINISH_SILU, BRAIN, true>, blocks, PROMPT_THREADS, PROMPT_SHARED,
                          maps, c, p, out);
    default:
        return c.paired ? bt_cuda_go(cuda, half_prompt_kernel<BT_FINISH_ANY, BRAIN, true>, blocks, PROMPT_THREADS,
                                     PROMPT_SHARED, maps, c, p, out)
                        : bt_cuda_go(cuda, half_prompt_kernel<BT_FINISH_ANY, BRAIN, false>, blocks, PROMPT_THREADS,
                                     PROMPT_SHARED, maps, c, p, out);
    }
}

bt_err
bt_cuda_half_prompt(bt_cuda *cuda, bt_finish what, const linear_call *c, const half_out &out)
{
    prompt_cut p = bt_cuda_prompt_cut(c, c->padded / HALF_K);
    prompt_maps maps;

    memset(&maps, 0, sizeof maps);
    if (!maps_of(cuda, c, &maps)) {
        return bt_cuda_check(cuda, cudaErrorInvalidValue, "linear, 16 bits: a map");
    }
    return bt_cuda_check(cuda,
                         c->part[0].kind == BT_WEIGHT_BF16 ? launch<true>(cuda, what, maps, *c, p, out)
                                                           : launch<false>(cuda, what, maps, *c, p, out),
                         "linear, 16 bits, many tokens");
}
