// linear_wide.cuh for nibbles.
#include "kernels/cuda/linear_wide_launch.cuh"

cudaError_t
bt_cuda_wide_nibbles(bt_cuda *cuda, wide_call *w)
{
    const bt_cuda_matrix *m = &w->c.part[0];

    return m->asymmetric ? go_block<4, true>(cuda, w, m->block) : go_block<4, false>(cuda, w, m->block);
}
