#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/self_check.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

static bool
cpu_is_broken(const bt_device *device)
{
    return device->break_after != 0 && device->steps > device->break_after;
}

static bt_err
cpu_begin(bt_device *device, const bt_step_args *args, bool *known)
{
    (void)args;
    *known = false;
    device->steps++;
    return cpu_is_broken(device) ? BT_ERR_DEVICE : BT_OK;
}

static bt_err
cpu_end(bt_device *device)
{
    (void)device;
    return BT_OK;
}

static bt_err
cpu_gather(bt_device *device, const bt_gather_args *args)
{
    (void)device;
    for (uint32_t i = 0; i < args->count; i++) {
        if (args->rows[i] != i) {
            memmove(args->x + i * args->x_stride, args->x + args->rows[i] * args->x_stride,
                    args->cols * sizeof *args->x);
        }
    }
    return BT_OK;
}

static const bt_ops ops_cpu = {
    .name = "cpu",
    .weight_bytes = bt_panel_bytes,
    .weight_pack = bt_panel_pack,
    .weight_pack_floats = bt_panel_pack_floats,
    .weight_row = bt_panel_row,
    .weight_row_floats = bt_panel_row_floats,
    .begin = cpu_begin,
    .end = cpu_end,
    .gather = cpu_gather,
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

static void
scratch_free(bt_device *device)
{
    bt_free_pages(device->shared, device->shared_bytes);
    bt_free_pages(device->private_scratch, device->private_bytes * device->threads);
    device->shared = device->private_scratch = NULL;
    device->shared_bytes = device->private_bytes = 0;
}

static void
cpu_close(bt_device *device)
{
    bt_pool_close(device->pool);
    scratch_free(device);
    bt_free_pages(device, sizeof *device);
}

static uint32_t
cpu_threads(const bt_device *device)
{
    return device->threads;
}

static const char *
cpu_isa(const bt_device *device)
{
    return bt_cpu_isa_name(device->isa);
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t
cpu_scratch_bytes(const bt_device *device)
{
    return device->shared_bytes + device->private_bytes * device->threads;
}

static bt_cpu_scratch
scratch_for(const bt_device_limits *limits, uint32_t threads)
{
    bt_cpu_scratch linear = bt_cpu_linear_scratch(limits, threads);
    bt_cpu_scratch attention = bt_cpu_attention_scratch(limits, threads);

    return (bt_cpu_scratch){
        .shared = larger(larger(linear.shared, attention.shared), 64),
        // Neighbouring threads do not share a page, nor the line that a prefetcher takes along.
        .private_bytes = (larger(linear.private_bytes, attention.private_bytes) + 8191) / 4096 * 4096,
    };
}

static bt_err
cpu_reserve(bt_device *device, const bt_device_limits *limits, bt_why *why)
{
    bt_cpu_scratch scratch = scratch_for(limits, device->threads);

    scratch_free(device);
    device->limits = *limits;
    device->shared_bytes = scratch.shared;
    device->private_bytes = scratch.private_bytes;
    device->shared = bt_alloc_pages(device->shared_bytes);
    device->private_scratch = bt_alloc_pages(device->private_bytes * device->threads);
    if (device->shared == NULL || device->private_scratch == NULL) {
        size_t bytes = cpu_scratch_bytes(device);

        scratch_free(device);
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: cannot allocate %zu bytes of scratch", bytes);
    }
    return BT_OK;
}

static void
cpu_parallel(bt_device *device, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    bt_pool_run(device->pool, run, arg);
}

static void *
cpu_alloc(bt_device *device, size_t bytes)
{
    (void)device;
    return bt_alloc_pages(bytes);
}

static void
cpu_free(bt_device *device, void *memory, size_t bytes)
{
    (void)device;
    bt_free_pages(memory, bytes);
}

static bt_err
cpu_copy(bt_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return BT_OK;
}

static bt_err
cpu_read_beside(bt_device *device, uint8_t *to, const uint8_t *from, const bt_device_rows *runs, uint32_t run_count,
                size_t bytes, size_t stride)
{
    (void)device;
    for (uint32_t i = 0; i < run_count; i++) {
        for (uint32_t row = 0; row < runs[i].rows; row++) {
            memcpy(to + runs[i].at + row * stride, from + runs[i].at + row * stride, bytes);
        }
    }
    return BT_OK;
}

static size_t
cpu_available(const bt_device *device)
{
    (void)device;
    return SIZE_MAX;
}

// All memory is the processor's: nothing to pin, and common/transfer shares pools by itself.

static bt_err
cpu_pin(bt_device *device, void *memory, size_t bytes, bt_why *why)
{
    (void)device, (void)memory, (void)bytes, (void)why;
    return BT_OK;
}

static void
cpu_unpin(bt_device *device, void *memory, size_t bytes)
{
    (void)device, (void)memory, (void)bytes;
}

static bt_err
cpu_share(bt_device *device, void *memory, bt_device_shared *out, bt_why *why)
{
    (void)device, (void)memory, (void)out;
    return bt_fail(why, BT_ERR_UNSUPPORTED, "device cpu: has no memory of its own to share");
}

static bt_err
cpu_open_shared(bt_device *device, const bt_device_shared *shared, const void **memory, bool *same, bt_why *why)
{
    (void)device, (void)shared, (void)memory, (void)same;
    return bt_fail(why, BT_ERR_UNSUPPORTED, "device cpu: cannot read a GPU's memory");
}

static void
cpu_close_shared(bt_device *device, const void *memory)
{
    (void)device, (void)memory;
}

static bt_err
cpu_reach(bt_device *device, bt_device *other, bt_why *why)
{
    (void)device, (void)other, (void)why;
    return BT_OK; // it is this program's memory
}

static const bt_device_class cpu_class = {
    .host = true,
    .close = cpu_close,
    .threads = cpu_threads,
    .isa = cpu_isa,
    .reserve = cpu_reserve,
    .scratch_bytes = cpu_scratch_bytes,
    .parallel = cpu_parallel,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .write = cpu_copy,
    .read = cpu_copy,
    .read_beside = cpu_read_beside,
    .is_broken = cpu_is_broken,
    .available = cpu_available,
    .pin = cpu_pin,
    .unpin = cpu_unpin,
    .share = cpu_share,
    .reach = cpu_reach,
    .open_shared = cpu_open_shared,
    .close_shared = cpu_close_shared,
    .copier_open = bt_cpu_copier_open,
};

static uint32_t
threads_of(const bt_device_options *options)
{
    uint32_t threads = options->threads > 0 ? options->threads : affinity_cores();

    return threads < BT_THREADS_MAX ? threads : BT_THREADS_MAX;
}

void
bt_cpu_foresee(bt_device_needs *out, const bt_device_options *options, const bt_device_limits *limits)
{
    uint32_t threads = threads_of(options);
    bt_cpu_scratch scratch = scratch_for(limits, threads);

    *out = (bt_device_needs){.ops = &ops_cpu,
                             .scratch = scratch.shared + scratch.private_bytes * threads,
                             .granule = 1,
                             .threads = threads,
                             .host = true};
}

bt_err
bt_cpu_open(bt_device **out, const bt_device_options *options, bt_why *why)
{
    bt_device *device;
    bt_cpu_isa isa;
    bool agrees = true;
    bt_err err;

    if ((err = bt_cpu_isa_choose(&isa, options->isa, why)) != BT_OK) {
        return err;
    }
    if ((device = bt_alloc_pages(sizeof *device)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "device: out of memory");
    }
    device->head = (bt_device_head){.kind = &cpu_class, .ops = &ops_cpu};
    device->isa = isa;
    device->break_after = options->break_after;
    device->threads = threads_of(options);
    if ((err = bt_pool_open(&device->pool, device->threads)) != BT_OK) {
        bt_fail(why, err, "device: cannot start %u threads", device->threads);
        cpu_close(device);
        return err;
    }
    if (isa == BT_CPU_AMX && (err = bt_cpu_agrees_with_ref(device, &agrees)) != BT_OK) {
        bt_fail(why, err, "device: out of memory");
        cpu_close(device);
        return err;
    }
    if (!agrees) {
        bt_log_warn("CPU-AMX", "the matrix unit of this machine does not give what it should: AVX-512 is used");
        device->isa = BT_CPU_AVX512;
    }
    *out = device;
    return BT_OK;
}
