// Keeps a device's stream busy for a while, and shortens its patience: for test_cuda_hang.c.
#include "kernels/cuda/cuda.cuh"

extern "C" void hang(bt_device *device, bt_time patience, double seconds);

static __global__ void
spin(long long cycles)
{
    long long begun = clock64();

    while (clock64() - begun < cycles) {
    }
}

void
hang(bt_device *device, bt_time patience, double seconds)
{
    bt_cuda *cuda = bt_cuda_of(device);

    cuda->patience = patience;
    spin<<<1, 1, 0, cuda->stream>>>((long long)(seconds * 1.9e9));
}
