#include "kernels/bench/probe.h"

#include "common/base/time.h"
#include "kernels/bench/probe_x86.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define PASSES 8

static _Alignas(64) atomic_uint ball;

static void *
ping(void *arg)
{
    unsigned rounds = *(unsigned *)arg;

    for (unsigned i = 0; i < rounds; i++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + 1) {
        }
        atomic_store_explicit(&ball, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

double
bt_probe_ping_pong_ns(void)
{
    double best = 0;

    for (int pass = 0; pass < 5; pass++) {
        unsigned rounds = 5000;
        pthread_t other;
        bt_time start;
        double ns;

        atomic_store(&ball, 0);
        if (pthread_create(&other, NULL, ping, &rounds) != 0) {
            return 0;
        }
        start = bt_time_now();
        for (unsigned i = 0; i < rounds; i++) {
            atomic_store_explicit(&ball, 2 * i + 1, memory_order_release);
            while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + 2) {
            }
        }
        ns = (double)(bt_time_now() - start) / rounds / 2;
        pthread_join(other, NULL);
        best = pass == 0 || ns < best ? ns : best;
    }
    return best;
}

typedef struct {
    const bt_probe_region *region;
    int what;
    volatile uint64_t sink;
} probe_job;

static void
run_probe(void *arg, uint32_t thread, uint32_t threads)
{
    probe_job *job = arg;
    size_t share = job->region != NULL ? job->region->bytes / threads / 4096 * 4096 : 0;

    switch (job->what) {
    case 0:
        job->sink = bt_probe_read(job->region->memory + thread * share, share);
        break;
    case 1:
        job->sink = bt_probe_int8();
        break;
    default:
        job->sink = bt_probe_f32();
    }
}

// Seconds of the best pass.
static double
best_time(bt_device *device, probe_job *job)
{
    double best = 1e9;

    for (int pass = 0; pass < PASSES; pass++) {
        bt_time start = bt_time_now();
        double seconds;

        bt_device_parallel(device, run_probe, job);
        seconds = (double)(bt_time_now() - start) * 1e-9;
        best = seconds < best ? seconds : best;
    }
    return best;
}

double
bt_probe_read_gb_s(bt_device *device, const bt_probe_region *region)
{
    probe_job job = {.region = region, .what = 0};

    return (double)region->bytes * 1e-9 / best_time(device, &job);
}

double
bt_probe_int8_tops(bt_device *device)
{
    probe_job job = {.what = 1};

    return BT_PROBE_INT8_OPS * 1e-12 * bt_device_threads(device) / best_time(device, &job);
}

double
bt_probe_f32_tflops(bt_device *device)
{
    probe_job job = {.what = 2};

    return BT_PROBE_F32_OPS * 1e-12 * bt_device_threads(device) / best_time(device, &job);
}
