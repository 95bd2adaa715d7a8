// Items 0 … count − 1 shared out among threads: each begins in a contiguous range of its own (one stream of memory) and
// helps the others when that is done, so that a thread with a busy neighbour holds up one chunk and not its whole share.
//
// The owner sets it up before a run; every thread takes until nothing is left.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BT_THREADS_MAX 128u

typedef struct {
    _Alignas(64) atomic_uint next;
    uint32_t end;
} bt_work_range;

typedef struct {
    bt_work_range ranges[BT_THREADS_MAX];
    uint32_t threads, chunk;
} bt_work;

static inline void
bt_work_init(bt_work *work, uint32_t threads, uint32_t count, uint32_t chunk)
{
    work->threads = threads;
    work->chunk = chunk > 0 ? chunk : 1;
    for (uint32_t t = 0; t < threads; t++) {
        atomic_store_explicit(&work->ranges[t].next, (uint32_t)((uint64_t)count * t / threads), memory_order_relaxed);
        work->ranges[t].end = (uint32_t)((uint64_t)count * (t + 1) / threads);
    }
}

// The next chunk of `thread`: items *first … *end − 1. False when all are taken.
static inline bool
bt_work_take(bt_work *work, uint32_t thread, uint32_t *first, uint32_t *end)
{
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
    return false;
}
