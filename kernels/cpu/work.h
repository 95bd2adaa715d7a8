// Items 0 … count − 1 shared out among threads: each begins in a contiguous range of its own (one stream of memory) and
// helps the others when that is done, so that a thread with a busy neighbour holds up one chunk and not its whole share.
//
// The owner sets it up before a run; every thread takes until nothing is left. Phases of a run meet by bt_work_wait, which
// waits for items and not for threads: one that has not got a core yet is not missed.
#pragma once

#include "kernels/cpu/pool.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    _Alignas(64) atomic_uint next;
    uint32_t end;
    atomic_uint done; // items that this thread has finished, of whatever range
} bt_work_range;

typedef struct {
    bt_work_range ranges[BT_THREADS_MAX];
    uint32_t threads, chunk, count;
} bt_work;

static inline void
bt_work_init(bt_work *work, uint32_t threads, uint32_t count, uint32_t chunk)
{
    work->threads = threads;
    work->chunk = chunk > 0 ? chunk : 1;
    work->count = count;
    for (uint32_t t = 0; t < threads; t++) {
        atomic_store_explicit(&work->ranges[t].next, (uint32_t)((uint64_t)count * t / threads), memory_order_relaxed);
        atomic_store_explicit(&work->ranges[t].done, 0, memory_order_relaxed);
        work->ranges[t].end = (uint32_t)((uint64_t)count * (t + 1) / threads);
    }
}

// The next chunk of `thread`: items *first … *end − 1, which both begin as 0 and come back as 0 with false, when all are
// taken. A call says that the chunk of the call before is finished.
static inline bool
bt_work_take(bt_work *work, uint32_t thread, uint32_t *first, uint32_t *end)
{
    atomic_uint *done = &work->ranges[thread].done;

    if (*end > *first) {
        unsigned before = atomic_load_explicit(done, memory_order_relaxed);

        atomic_store_explicit(done, before + (*end - *first), memory_order_release);
    }
    for (uint32_t i = 0; i < work->threads; i++) {
        bt_work_range *range = &work->ranges[(thread + i) % work->threads];
        uint32_t next = atomic_load_explicit(&range->next, memory_order_relaxed);

        if (next >= range->end) {
            continue;
        }
        next = atomic_fetch_add_explicit(&range->next, work->chunk, memory_order_relaxed);
        if (next < range->end) {
            *first = next;
            *end = range->end - next < work->chunk ? range->end : next + work->chunk;
            return true;
        }
    }
    *first = *end = 0;
    return false;
}

// Returns when all items are finished; what was written for them is seen. Call it when take has returned false.
static inline void
bt_work_wait(bt_work *work)
{
    for (unsigned round = 0;; round++) {
        uint32_t done = 0;

        for (uint32_t t = 0; t < work->threads; t++) {
            done += atomic_load_explicit(&work->ranges[t].done, memory_order_acquire);
        }
        if (done == work->count) {
            return;
        }
        bt_pool_relax(round);
    }
}
