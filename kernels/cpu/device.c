#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/self_check.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

static const bt_ops ops_cpu = {
    .name = "cpu",
    .weight_bytes = bt_panel_bytes,
    .weight_pack = bt_panel_pack,
    .weight_pack_floats = bt_panel_pack_floats,
    .embed = bt_cpu_embed,
    .rope = bt_cpu_rope,
    .linear = bt_cpu_linear,
    .attention = bt_cpu_attention,
    .add_norm = bt_cpu_add_norm,
};

// Cores that this process may use: a container's mask counts, not the machine's.
static uint32_t
affinity_cores(void)
{
    cpu_set_t set;
    int count;

    if (sched_getaffinity(0, sizeof set, &set) != 0 || (count = CPU_COUNT(&set)) < 1) {
        return 1;
    }
    return (uint32_t)count;
}

bt_err
bt_device_open(bt_device **out, const bt_device_options *options, bt_why *why)
{
    uint32_t threads = options->threads > 0 ? options->threads : affinity_cores();
    bt_device *device;
    bt_cpu_isa isa;
    bt_err err;

    if (options->kind != BT_DEVICE_CPU) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "device: this build has no CUDA");
    }
    if ((err = bt_cpu_isa_choose(&isa, options->isa, why)) != BT_OK) {
        return err;
    }
    if ((device = bt_alloc_pages(sizeof *device)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: out of memory");
    }
    device->ops = &ops_cpu;
    device->isa = isa;
    device->threads = threads < BT_THREADS_MAX ? threads : BT_THREADS_MAX;
    if ((err = bt_pool_open(&device->pool, device->threads)) != BT_OK) {
        bt_fail(why, err, "device: cannot start %u threads", device->threads);
        bt_device_close(device);
        return err;
    }
    if (isa == BT_CPU_AMX && !bt_cpu_agrees_with_ref(device)) {
        bt_log_warn("CPU-AMX", "the matrix unit of this machine does not give what it should: AVX-512 is used");
        device->isa = BT_CPU_AVX512;
    }
    *out = device;
    return BT_OK;
}

static void
scratch_free(bt_device *device)
{
    bt_free_pages(device->shared, device->shared_bytes);
    bt_free_pages(device->private_scratch, device->private_bytes * device->threads);
    device->shared = device->private_scratch = NULL;
    device->shared_bytes = device->private_bytes = 0;
}

void
bt_device_close(bt_device *device)
{
    if (device == NULL) {
        return;
    }
    bt_pool_close(device->pool);
    scratch_free(device);
    bt_free_pages(device, sizeof *device);
}

const bt_ops *
bt_device_ops(const bt_device *device)
{
    return device->ops;
}

uint32_t
bt_device_threads(const bt_device *device)
{
    return device->threads;
}

const char *
bt_device_isa(const bt_device *device)
{
    return bt_cpu_isa_name(device->isa);
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

bt_err
bt_device_reserve(bt_device *device, const bt_device_limits *limits, bt_why *why)
{
    bt_cpu_scratch linear = bt_cpu_linear_scratch(limits, device->threads);
    bt_cpu_scratch attention = bt_cpu_attention_scratch(limits, device->threads);

    scratch_free(device);
    device->limits = *limits;
    device->shared_bytes = larger(larger(linear.shared, attention.shared), 64);
    // Neighbouring threads do not share a page, nor the line that a prefetcher takes along.
    device->private_bytes = (larger(linear.private_bytes, attention.private_bytes) + 8191) / 4096 * 4096;
    device->shared = bt_alloc_pages(device->shared_bytes);
    device->private_scratch = bt_alloc_pages(device->private_bytes * device->threads);
    if (device->shared == NULL || device->private_scratch == NULL) {
        size_t bytes = bt_device_scratch_bytes(device);

        scratch_free(device);
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: cannot allocate %zu bytes of scratch", bytes);
    }
    return BT_OK;
}

size_t
bt_device_scratch_bytes(const bt_device *device)
{
    return device->shared_bytes + device->private_bytes * device->threads;
}

void
bt_device_parallel(bt_device *device, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    bt_pool_run(device->pool, run, arg);
}
