// linear_wide.cuh for codes of a byte each.
#include "kernels/cuda/linear_wide_launch.cuh"

cudaError_t
bt_cuda_wide_bytes(bt_cuda *cuda, wide_call *w)
{
    const bt_cuda_matrix *m = &w->c.part[0];
    uint32_t block = dot_columns(m);

    if (block == BT_BLOCK_ROW) {
        return go_tokens<8, 0, false>(cuda, w);
    }
    return m->asymmetric ? go_block<8, true>(cuda, w, block) : go_block<8, false>(cuda, w, block);
}
