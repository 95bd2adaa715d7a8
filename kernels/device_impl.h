// What a kind of device implements; its struct begins with a bt_device_head. For kernels/ alone.
#pragma once

#include "kernels/device.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    bool host;
    void (*close)(bt_device *device);
    uint32_t (*threads)(const bt_device *device);
    const char *(*isa)(const bt_device *device);
    bt_err (*reserve)(bt_device *device, const bt_device_limits *limits, bt_why *why);
    size_t (*scratch_bytes)(const bt_device *device);
    void (*parallel)(bt_device *device, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg);
    void *(*alloc)(bt_device *device, size_t bytes);
    void (*free)(bt_device *device, void *memory, size_t bytes);
    bt_err (*write)(bt_device *device, void *to, const void *from, size_t bytes);
    bt_err (*read)(bt_device *device, void *to, const void *from, size_t bytes);
    size_t (*available)(const bt_device *device);
} bt_device_class;

typedef struct {
    const bt_device_class *kind;
    const bt_ops *ops;
} bt_device_head;

bt_err bt_cpu_open(bt_device **out, const bt_device_options *options, bt_why *why);
bt_err bt_cuda_open(bt_device **out, const bt_device_options *options, bt_why *why);
void bt_cpu_foresee(bt_device_needs *out, const bt_device_options *options, const bt_device_limits *limits);
bt_err bt_cuda_foresee(bt_device_needs *out, const bt_device_limits *limits, bt_why *why);

#ifdef __cplusplus
}
#endif
