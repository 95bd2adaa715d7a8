// What this machine can do at most, measured in the same run as the kernels: a figure without these beside it says little,
// since virtual machines change their placement under us (reference/cpu-baseline.md).
#pragma once

#include "kernels/device.h"

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
