// What the tests need of the inside of the CUDA device: every float through the two ways of silu that the GPU has, the choice between
// cuBLASLt and our own kernel for prompts, whether a call has left something for the next, and what kernels were chosen.
#include "kernels/cuda/finish.cuh"

extern "C" uint64_t silu_differences(void);
extern "C" bool cuda_use_prompt(bt_device *device, bool on);

// Returns whether it is now; a GPU that does not have it stays without.
bool
cuda_use_prompt(bt_device *device, bool on)
{
    static bool asked, has;
    bt_cuda *cuda = bt_cuda_of(device);

    has = asked ? has : cuda->gemm;
    asked = true;
    cuda->gemm = on && has;
    return cuda->gemm;
}

extern "C" bool
cuda_has_warpgroups(bt_device *device)
{
    return bt_cuda_of(device)->wide;
}

// Something for the call that was announced.
extern "C" bool
cuda_has_left(bt_device *device)
{
    return bt_cuda_of(device)->ready.x != NULL;
}

// None that takes sm_90, launches by which kernels overlap neither, and so much shared memory at most.
extern "C" bool
cuda_is_within(bt_device *device, size_t shared)
{
    const bt_cuda *c = bt_cuda_of(device);

    return !c->early_launch && !c->few && !c->wide && !c->gemm && !c->decode && !c->single && !c->streams &&
           !c->meets && c->shared_max <= shared;
}

static __global__ void
compare(unsigned long long *differences)
{
    unsigned long long count = 0;

    for (uint64_t bits = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; bits < (uint64_t)1 << 32;
         bits += (uint64_t)gridDim.x * blockDim.x) {
        float x = bt_float_of_bits((uint32_t)bits), four[4] = {x, x, x, x}, ref = bt_ref_silu(x);

        bt_silu4(four);
        for (int i = 0; i < 4; i++) {
            count += bt_bits_of_float(four[i]) != bt_bits_of_float(ref) && !(isnan(four[i]) && isnan(ref));
        }
    }
    atomicAdd(differences, count);
}

// UINT64_MAX when the GPU fails.
uint64_t
silu_differences(void)
{
    unsigned long long *on_device, count = 0;
    bool good = cudaMalloc((void **)&on_device, sizeof *on_device) == cudaSuccess &&
                cudaMemset(on_device, 0, sizeof *on_device) == cudaSuccess;

    if (good) {
        compare<<<2048, 256>>>(on_device);
        good = cudaMemcpy(&count, on_device, sizeof count, cudaMemcpyDeviceToHost) == cudaSuccess;
        cudaFree(on_device);
    }
    return good ? count : UINT64_MAX;
}
