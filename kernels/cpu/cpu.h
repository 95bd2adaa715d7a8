// What the operations of the CPU device share: the device itself, its scratch, and which instruction set is in use.
//
// Inside kernels/cpu only. Every operation dispatches on device->isa; `ref` is plain C and the specification.
#pragma once

#include "kernels/cpu/pool.h"
#include "kernels/cpu/work.h"
#include "kernels/device_impl.h"

// In rising order: a machine that has one has all before it.
typedef enum { BT_CPU_REF, BT_CPU_AVX2, BT_CPU_AVX512, BT_CPU_AMX } bt_cpu_isa;

struct bt_device {
    bt_device_head head;
    uint32_t steps, break_after;
    bt_cpu_isa isa;
    uint32_t threads;
    bt_pool *pool;
    bt_device_limits limits;
    // How the work of the operation in progress is shared out, a set for each of its phases. Here and not in the
    // operation's frame, since clearing so much memory takes longer than a small operation.
    bt_work work[4];
    // Scratch of the operation in progress; nothing lives in it between two operations. Both at 64-byte boundaries.
    uint8_t *shared;
    size_t shared_bytes;
    uint8_t *private_scratch; // thread t's begins at t · private_bytes
    size_t private_bytes;
};

// What an operation needs at most, given the limits: `shared` once, `private_bytes` a thread. reserve takes the maxima.
typedef struct {
    size_t shared, private_bytes;
} bt_cpu_scratch;

bt_cpu_scratch bt_cpu_linear_scratch(const bt_device_limits *limits, uint32_t threads);
bt_cpu_scratch bt_cpu_attention_scratch(const bt_device_limits *limits, uint32_t threads);

static inline uint8_t *
bt_cpu_private(const bt_device *device, uint32_t thread)
{
    return device->private_scratch + thread * device->private_bytes;
}

// A region of scratch cut into arrays, each at a 64-byte boundary: counts bytes when `base` is NULL.
typedef struct {
    uint8_t *base;
    size_t used;
} bt_carve;

static inline void *
bt_carve_take(bt_carve *carve, size_t bytes)
{
    size_t at = carve->used;

    carve->used = at + (bytes + 63) / 64 * 64;
    return carve->base == NULL ? NULL : carve->base + at;
}

bt_err bt_cpu_embed(bt_device *device, const bt_embed_args *args);
bt_err bt_cpu_rope(bt_device *device, const bt_rope_args *args);
bt_err bt_cpu_linear(bt_device *device, const bt_linear_args *args);
bt_err bt_cpu_attention(bt_device *device, const bt_attention_args *args);
bt_err bt_cpu_add_norm(bt_device *device, const bt_add_norm_args *args);
