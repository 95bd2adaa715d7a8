// Keeps a device's stream busy until the host says otherwise: for test_cuda_hang.c. How fast the GPU is, and who shares it, does not matter.
#include "kernels/cuda/cuda.cuh"

#include <time.h>

typedef struct {
    uint32_t ends, ended; // pinned: written by the host, and by the GPU
} hanging;

extern "C" {
hanging *hang(bt_device *device, bt_time patience);
void hang_end(hanging *h);
bool hang_has_ended(const hanging *h);
void hang_in_steps(bt_device *device, bt_time patience, uint32_t steps, bt_time each);
}

#define GIVE_UP (120ull * 1000000000) // the host is gone

static __global__ void
spin(volatile hanging *h)
{
    uint64_t begun, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (h->ends == 0 && now - begun < GIVE_UP);
    h->ended = 1;
}

static __global__ void
nothing(void)
{
}

// The device's stream is busy until hang_end. `patience` 0: as it is.
hanging *
hang(bt_device *device, bt_time patience)
{
    bt_cuda *cuda = bt_cuda_of(device);
    hanging *h;

    cuda->patience = patience != 0 ? patience : cuda->patience;
    if (cudaMallocHost((void **)&h, sizeof *h) != cudaSuccess) {
        return NULL;
    }
    *h = {};
    spin<<<1, 1, 0, cuda->stream>>>(h);
    return h;
}

void
hang_end(hanging *h)
{
    ((volatile hanging *)h)->ends = 1;
}

bool
hang_has_ended(const hanging *h)
{
    return ((const volatile hanging *)h)->ended != 0;
}

static void CUDART_CB
sleep_for(void *nanoseconds)
{
    const struct timespec t = {(time_t)((uintptr_t)nanoseconds / 1000000000),
                               (long)((uintptr_t)nanoseconds % 1000000000)};

    nanosleep(&t, NULL);
}

// A step of many tokens whose every layer takes `each`.
void
hang_in_steps(bt_device *device, bt_time patience, uint32_t steps, bt_time each)
{
    bt_cuda *cuda = bt_cuda_of(device);

    cuda->patience = patience;
    cuda->tokens = BT_CUDA_MARK_TOKENS;
    for (uint32_t i = 0; i < steps; i++) {
        cudaLaunchHostFunc(cuda->stream, sleep_for, (void *)(uintptr_t)each);
        nothing<<<1, 1, 0, cuda->stream>>>();
        bt_cuda_mark(cuda);
    }
}
