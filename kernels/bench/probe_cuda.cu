// What a GPU gives by itself: reading its memory, and the largest products of INT8 and bf16.
#include "kernels/cuda/cuda.cuh"

#include "kernels/bench/probe.h"

#include <algorithm>
#include <stdio.h>

#define REPLAYS 9
#define READ_BYTES ((size_t)4 << 30)
#define SIDE ((uint32_t)8192)

static __global__ void
read_kernel(const uint4 *from, size_t count, uint32_t *out)
{
    uint32_t sum = 0;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = from[i];

        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 12345) {
        *out = sum;
    }
}

// Numbers of no kind in particular: zeros would be faster than any data. As bf16 they are 0.5 … 2 and their negatives.
static __global__ void
fill_kernel(uint32_t *to, size_t count, uint32_t mask, uint32_t base)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + 1;

        x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
        to[i] = (x & mask) | base;
    }
}

typedef bt_err (*queue)(bt_cuda *cuda, uint8_t *memory);

static bt_err
queue_read(bt_cuda *cuda, uint8_t *memory)
{
    read_kernel<<<(unsigned)cuda->sms * 16, 512, 0, cuda->stream>>>((const uint4 *)memory, READ_BYTES / 16,
                                                                    (uint32_t *)memory);
    return bt_cuda_launched(cuda, "read");
}

static bt_err
queue_product(bt_cuda *cuda, uint8_t *memory)
{
    const uint8_t *w = memory, *x = w + (size_t)SIDE * SIDE;
    bt_cublas_shape shape = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, 0};

    return bt_cublas_product(cuda->cublas, &shape, w, x, memory + READ_BYTES / 4);
}

static bt_err
queue_bf16_product(bt_cuda *cuda, uint8_t *memory)
{
    const uint8_t *w = memory, *x = w + (size_t)SIDE * SIDE * 2;
    bt_cublas_shape shape = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, 1};

    return bt_cublas_product(cuda->cublas, &shape, w, x, memory + READ_BYTES / 4);
}

// Seconds of what is queued, the median of replays; 0 when it failed.
static double
seconds_of(bt_cuda *cuda, queue queue, uint8_t *memory)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float times[REPLAYS] = {0};

    if (cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess ||
        queue(cuda, memory) != BT_OK || cudaStreamEndCapture(cuda->stream, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        return 0;
    }
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = -3; i < REPLAYS; i++) {
        cudaEventRecord(begin, cuda->stream);
        cudaGraphLaunch(exec, cuda->stream);
        cudaEventRecord(end, cuda->stream);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&times[i < 0 ? 0 : i], begin, end);
    }
    std::sort(times, times + REPLAYS);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return times[REPLAYS / 2] * 1e-3;
}

static bt_err
measure(bt_probe_gpu_limits *out, bt_device *device, bt_why *why)
{
    bt_device_limits least = {64, 1, 1, 128, 128, 1, 1, 64, 64, 32, 1};
    bt_cuda *cuda = bt_cuda_of(device);
    double read, product = 1, halves = 1;
    uint8_t *memory;
    bt_err err;

    if ((err = bt_device_reserve(device, &least, why)) != BT_OK) {
        return err;
    }
    if ((memory = (uint8_t *)bt_device_alloc(device, READ_BYTES)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: 4 GiB are not free to measure with", bt_device_isa(device));
    }
    fill_kernel<<<1024, 256, 0, cuda->stream>>>((uint32_t *)memory, READ_BYTES / 4, ~0u, 0);
    snprintf(out->name, sizeof out->name, "%s", bt_device_isa(device));
    read = seconds_of(cuda, queue_read, memory);
    if (cuda->cublas != NULL) {
        product = seconds_of(cuda, queue_product, memory);
        fill_kernel<<<1024, 256, 0, cuda->stream>>>((uint32_t *)memory, READ_BYTES / 4, 0x80ff80ffu, 0x3f003f00u);
        halves = seconds_of(cuda, queue_bf16_product, memory);
    }
    out->read_gb_s = (double)READ_BYTES / read * 1e-9;
    out->int8_tops = cuda->cublas != NULL ? 2.0 * SIDE * SIDE * SIDE / product * 1e-12 : 0;
    out->bf16_tflops = cuda->cublas != NULL ? 2.0 * SIDE * SIDE * SIDE / halves * 1e-12 : 0;
    bt_device_free(device, memory, READ_BYTES);
    return cudaDeviceSynchronize() == cudaSuccess && read > 0 && product > 0 && halves > 0
               ? BT_OK
               : bt_fail(why, BT_ERR_DEVICE, "%s: the measurement failed", bt_device_isa(device));
}

bt_err
bt_probe_gpu(bt_probe_gpu_limits *out, const bt_device_options *options, bt_why *why)
{
    bt_device *device;
    bt_err err = bt_device_open(&device, options, why);

    if (err == BT_OK) {
        err = measure(out, device, why);
        bt_device_close(device);
    }
    return err;
}
