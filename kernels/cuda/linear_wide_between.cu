// linear_wide.cuh for symmetric nibbles in blocks of 128, as models that are made here have them, and tiles between those of 32, 64 and 128
// tokens: a layer of 65 tokens takes three quarters of one of 128, where it took all of it (kernels/README.md).
#include "kernels/cuda/linear_wide_launch.cuh"

cudaError_t
bt_cuda_wide_between(bt_cuda *cuda, wide_call *w, uint32_t n)
{
    switch (n) {
    case 24:
        return go<4, 128, false, 24>(cuda, w);
    case 48:
        return go<4, 128, false, 48>(cuda, w);
    case 80:
        return go<4, 128, false, 80>(cuda, w);
    case 96:
        return go<4, 128, false, 96>(cuda, w);
    default:
        assert(n == 112);
        return go<4, 128, false, 112>(cuda, w);
    }
}
