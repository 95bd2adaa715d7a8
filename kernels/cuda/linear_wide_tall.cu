// linear_wide.cuh for symmetric nibbles in blocks of 128 and up to 64 tokens, with 256 rows a block of threads: gate|up of an 8B model is 224
// blocks of 128 rows, two rounds of 132 multiprocessors, but one round of 112 blocks of 256. Up to 16 tokens always: two warps a scheduler wait too
// often, four keep it busy (down at 16 tokens: 21.9 µs with N = 32, 19.7 with N = 16 and 128 rows, 18.1 with 256).
#define WIDE_FOURS 4u
#include "kernels/cuda/linear_wide_launch.cuh"

cudaError_t
bt_cuda_wide_tall(bt_cuda *cuda, wide_call *w)
{
    return w->c.tokens > 48   ? go<4, 128, false, 64>(cuda, w)
           : w->c.tokens > 32 ? go<4, 128, false, 48>(cuda, w)
           : w->c.tokens > 24 ? go<4, 128, false, 32>(cuda, w)
           : w->c.tokens > 16 ? go<4, 128, false, 24>(cuda, w)
                              : go<4, 128, false, 16>(cuda, w);
}
