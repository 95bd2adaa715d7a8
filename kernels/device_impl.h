// What a kind of device implements; its struct begins with a bt_device_head. For kernels/ alone.
#pragma once

#include "kernels/copier.h"
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
    bt_err (*read_beside)(bt_device *device, uint8_t *to, const uint8_t *from, const bt_device_rows *runs,
                          uint32_t run_count, size_t bytes, size_t stride);
    bool (*is_broken)(const bt_device *device);
    size_t (*available)(const bt_device *device);
    bt_err (*pin)(bt_device *device, void *memory, size_t bytes, bt_why *why);
    void (*unpin)(bt_device *device, void *memory, size_t bytes);
    bt_err (*share)(bt_device *device, void *memory, bt_device_shared *out, bt_why *why);
    bt_err (*open_shared)(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same,
                          bt_why *why);
    void (*close_shared)(bt_device *device, const void *memory);
    bt_err (*reach)(bt_device *device, bt_device *other, bt_why *why); // of one kind
    bt_err (*copier_open)(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why);
} bt_device_class;

typedef struct {
    const bt_device_class *kind;
    const bt_ops *ops;
    bool rounds; // bt_device_rounds
} bt_device_head;

// The same for copiers; the struct begins with a bt_copier_head. copier.c has checked counts and limits.
typedef struct {
    void (*close)(bt_copier *copier);
    bt_err (*through)(bt_copier *copier, uint64_t *ticket);
    int (*fd)(const bt_copier *copier);
    bool (*arm)(bt_copier *copier);
    bt_err (*copy)(bt_copier *copier, const bt_copier_run *runs, uint32_t count, uint64_t *ticket);
    bt_err (*clear)(bt_copier *copier, const bt_kv_layout *layout, void *pool, const uint32_t *blocks, uint32_t count,
                    uint64_t *ticket);
    bt_err (*stamp)(bt_copier *copier, const bt_kv_layout *layout, void *pool, uint64_t epoch,
                    const bt_copier_stamping *stampings, uint32_t count, uint64_t *ticket);
    // `to` of a run NULL: only sums, one run
    bt_err (*fetch)(bt_copier *copier, const bt_kv_layout *layout, const bt_copier_blocks *runs, uint32_t run_count,
                    bt_copier_way way, uint64_t *ticket);
} bt_copier_class;

typedef struct {
    const bt_copier_class *kind;
    bt_copier_options options;
    bt_copier_landed *landed; // [batches][blocks]
} bt_copier_head;

// Where a batch's [blocks] lie.
static inline bt_copier_landed *
bt_copier_landing(const bt_copier_head *head, uint64_t ticket)
{
    return head->landed + (size_t)(ticket % head->options.batches) * head->options.blocks;
}

bt_err bt_cpu_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why);

bt_err bt_cpu_open(bt_device **out, const bt_device_options *options, bt_why *why);
bt_err bt_cuda_open(bt_device **out, const bt_device_options *options, bt_why *why);
void bt_cpu_foresee(bt_device_needs *out, const bt_device_options *options, const bt_device_limits *limits);
bt_err bt_cuda_foresee(bt_device_needs *out, const bt_device_limits *limits, bt_why *why);

#ifdef __cplusplus
}
#endif
