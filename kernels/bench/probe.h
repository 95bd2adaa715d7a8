// What this machine can do at most, measured in the same run as the kernels: a figure without these beside it says little,
// since virtual machines change their placement under us (reference/cpu-baseline.md).
#pragma once

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Half a round trip of a cache line between two threads; 0 with one core.
double bt_probe_ping_pong_ns(void);

typedef struct {
    uint8_t *memory; // larger than the caches
    size_t bytes;
} bt_probe_region;

// GB/s that all threads of the device read together, best of a few passes; four streams a thread with prefetch.
double bt_probe_read_gb_s(bt_device *device, const bt_probe_region *region);

// 10^12 multiply and add operations a second of the widest INT8 dot product this machine has; of f32 fused multiply-adds.
double bt_probe_int8_tops(bt_device *device);
double bt_probe_f32_tflops(bt_device *device);

// A GPU by itself, as bench_cuda sees it: 4 GiB read once, and products of 8192 x 8192 x 8192 by cuBLASLt (0 without it), medians of graph
// replays. Takes 5 GiB of the device for the time; BT_ERR_NO_MEMORY where they are not free.
typedef struct {
    char name[160];
    double read_gb_s, int8_tops, bf16_tflops;
} bt_probe_gpu_limits;
bt_err bt_probe_gpu(bt_probe_gpu_limits *out, const bt_device_options *options, bt_why *why);

#ifdef __cplusplus
}
#endif
