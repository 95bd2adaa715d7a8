// What `baton bench transfer` does with the memory of a pool, the host's or a GPU's: fills its blocks, and copies as much of it plainly.
#pragma once

#include "common/kv/layout.h"
#include "kernels/copier.h"

typedef struct {
    bt_device *device; // NULL: the host's memory
    bt_copier *copier;
    bt_device *other;  // where a plain copy comes from, when that is another GPU
    bt_copier *pusher; // its
    uint8_t *from, *to;
    size_t bytes;    // of a plain copy
    double gb_per_s; // of the fastest plain copy so far; between two GPUs pulled or pushed
} bt_bench_pool;

// `own` and `other` as in --device; NULL, NULL = the host. Closed by close, also when this fails.
bt_err bt_bench_pool_open(bt_bench_pool *pool, const char *own, const char *other, bt_why *why);
void bt_bench_pool_close(bt_bench_pool *pool);

// Random bytes, stamped.
bt_err bt_bench_pool_fill(bt_bench_pool *pool, const bt_kv_layout *layout, uint8_t *memory, uint32_t blocks,
                          uint64_t epoch, uint64_t generation, bt_why *why);

// One plain copy of `bytes` (of a host: 512 MB at most) from memory that no cache holds, measured. A GPU's comes from where fetches come from.
bt_err bt_bench_pool_copy(bt_bench_pool *pool, size_t bytes, bt_why *why);
