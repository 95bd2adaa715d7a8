// Which kind of device a call is for.
#include "kernels/device_impl.h"

#include <stdlib.h>
#include <string.h>

static const bt_device_head *
head_of(const bt_device *device)
{
    return (const bt_device_head *)(const void *)device;
}

bt_err
bt_device_parse(bt_device_options *options, const char *text, bt_why *why)
{
    char *end;
    unsigned long index = 0;

    if (strcmp(text, "cpu") == 0) {
        options->kind = BT_DEVICE_CPU;
        return BT_OK;
    }
    if (strncmp(text, "cuda", 4) == 0) {
        index = text[4] == ':' && text[5] >= '0' && text[5] <= '9' ? strtoul(text + 5, &end, 10) : 0;
        if (text[4] == 0 || (text[4] == ':' && text[5] >= '0' && text[5] <= '9' && *end == 0 && index < 1024)) {
            options->kind = BT_DEVICE_CUDA;
            options->index = (uint32_t)index;
            return BT_OK;
        }
    }
    return bt_fail(why, BT_ERR_INVALID, "device: expected cpu or cuda:N, not '%s'", text);
}

#ifndef BT_CUDA
static bt_err
without_cuda(const bt_device_options *options, bt_why *why)
{
    return bt_fail(why, BT_ERR_UNSUPPORTED, "device cuda:%u: this program was built without CUDA (cmake -DBT_CUDA=ON)",
                   options->index);
}
#endif

bt_err
bt_device_open(bt_device **out, const bt_device_options *options, bt_why *why)
{
    if (options->kind == BT_DEVICE_CPU) {
        return bt_cpu_open(out, options, why);
    }
#ifdef BT_CUDA
    return bt_cuda_open(out, options, why);
#else
    return without_cuda(options, why);
#endif
}

bt_err
bt_device_foresee(bt_device_needs *out, const bt_device_options *options, const bt_device_limits *limits, bt_why *why)
{
    if (options->kind == BT_DEVICE_CPU) {
        bt_cpu_foresee(out, options, limits);
        return BT_OK;
    }
#ifdef BT_CUDA
    return bt_cuda_foresee(out, limits, why);
#else
    return without_cuda(options, why);
#endif
}

void
bt_device_close(bt_device *device)
{
    if (device != NULL) {
        head_of(device)->kind->close(device);
    }
}

bool
bt_device_rounds(const bt_device *device)
{
    return head_of(device)->rounds;
}

const bt_ops *
bt_device_ops(const bt_device *device)
{
    return head_of(device)->ops;
}

uint32_t
bt_device_threads(const bt_device *device)
{
    return head_of(device)->kind->threads(device);
}

const char *
bt_device_isa(const bt_device *device)
{
    return head_of(device)->kind->isa(device);
}

bt_err
bt_device_reserve(bt_device *device, const bt_device_limits *limits, bt_why *why)
{
    return head_of(device)->kind->reserve(device, limits, why);
}

size_t
bt_device_scratch_bytes(const bt_device *device)
{
    return head_of(device)->kind->scratch_bytes(device);
}

void
bt_device_parallel(bt_device *device, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    head_of(device)->kind->parallel(device, run, arg);
}

bool
bt_device_is_host(const bt_device *device)
{
    return head_of(device)->kind->host;
}

void *
bt_device_alloc(bt_device *device, size_t bytes)
{
    return head_of(device)->kind->alloc(device, bytes);
}

void
bt_device_free(bt_device *device, void *memory, size_t bytes)
{
    if (memory != NULL) {
        head_of(device)->kind->free(device, memory, bytes);
    }
}

bt_err
bt_device_write(bt_device *device, void *to, const void *from, size_t bytes)
{
    return head_of(device)->kind->write(device, to, from, bytes);
}

bt_err
bt_device_read(bt_device *device, void *to, const void *from, size_t bytes)
{
    return head_of(device)->kind->read(device, to, from, bytes);
}

bt_err
bt_device_read_beside(bt_device *device, uint8_t *to, const uint8_t *from, const bt_device_rows *runs,
                      uint32_t run_count, size_t bytes, size_t stride)
{
    return head_of(device)->kind->read_beside(device, to, from, runs, run_count, bytes, stride);
}

bool
bt_device_is_broken(const bt_device *device)
{
    return head_of(device)->kind->is_broken(device);
}

size_t
bt_device_available(const bt_device *device)
{
    return head_of(device)->kind->available(device);
}

bt_err
bt_device_pin(bt_device *device, void *memory, size_t bytes, bt_why *why)
{
    return head_of(device)->kind->pin(device, memory, bytes, why);
}

void
bt_device_unpin(bt_device *device, void *memory, size_t bytes)
{
    if (memory != NULL) {
        head_of(device)->kind->unpin(device, memory, bytes);
    }
}

bt_err
bt_device_share(bt_device *device, void *memory, bt_device_shared *out, bt_why *why)
{
    return head_of(device)->kind->share(device, memory, out, why);
}

bt_err
bt_device_open_shared(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same, bt_why *why)
{
    return head_of(device)->kind->open_shared(device, shared, memory, same, why);
}

void
bt_device_close_shared(bt_device *device, const void *memory)
{
    if (memory != NULL) {
        head_of(device)->kind->close_shared(device, memory);
    }
}

bt_err
bt_device_reach(bt_device *device, bt_device *other, bt_why *why)
{
    const bt_device_class *kind = head_of(device)->kind;

    return kind == head_of(other)->kind ? kind->reach(device, other, why)
                                        : bt_fail(why, BT_ERR_UNSUPPORTED, "devices of two kinds");
}
