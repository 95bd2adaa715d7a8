// PTX of sm_90a under names: a warpgroup's products of 16-bit floats, summed in f32.
//
// What the manual leaves open is how the sixteen products of one instruction and the number they are added to are rounded. Whatever it is,
// it is the same for every row, column and count of columns of the instruction (tests/gpu/test_cuda_half), and may differ on other
// generations of GPUs.
#pragma once

#include "kernels/cuda/ptx_wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define BT_F8(d, i)                                                                                                    \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define BT_F16(d, i) BT_F8(d, i), BT_F8(d, (i) + 8)
#define BT_F64(d) BT_F16(d, 0), BT_F16(d, 16), BT_F16(d, 32), BT_F16(d, 48)

#define BT_WGMMA_HALF(N, type, places, from, desc, more, d)                                                            \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " more ", 0;"                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" places "}, " from ", " desc      \
                 ", p, 1, 1, 0, 0;}"                                                                                   \
                 : d                                                                                                   \
                 : "l"(a), "l"(b), "r"(1))

// d [N/2] += A (64 × 16) · B (16 × N), both in shared memory as bt_wgmma_rows has them (K inside), in flight until bt_wgmma_wait.
// d[4j + 2h + e] of lane 4g + t of warp w is row 16w + g + 8h, column 8j + 2t + e. BRAIN: bf16, else f16.
template <int N, bool BRAIN>
static __device__ __forceinline__ void
bt_wgmma_half(float *d, uint64_t a, uint64_t b)
{
    if constexpr (N == 32 && BRAIN) {
        BT_WGMMA_HALF(32, "bf16", BT_P16, "%16", "%17", "%18", BT_F16(d, 0));
    } else if constexpr (N == 32) {
        BT_WGMMA_HALF(32, "f16", BT_P16, "%16", "%17", "%18", BT_F16(d, 0));
    } else if constexpr (BRAIN) {
        BT_WGMMA_HALF(128, "bf16", BT_P64, "%64", "%65", "%66", BT_F64(d));
    } else {
        static_assert(N == 128, "32 or 128 columns");
        BT_WGMMA_HALF(128, "f16", BT_P64, "%64", "%65", "%66", BT_F64(d));
    }
}

// After the wait: d is read from here on and no earlier.
template <int COUNT>
static __device__ __forceinline__ void
bt_wgmma_there(float *d)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

#endif
