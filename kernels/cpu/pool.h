// A fork-join pool: the owner and `threads − 1` workers run one function at a time.
//
// The owner is thread 0 and returns when the work is done. After a run the workers spin for a few tens of microseconds,
// because the next operation of a step follows at once, and then sleep: an idle server burns nothing. One owner thread;
// runs do not nest.
#pragma once

#include "common/base/err.h"

#include <stdint.h>

#define BT_THREADS_MAX 128u

typedef struct bt_pool bt_pool;

// BT_ERR_NO_MEMORY or BT_ERR_DEVICE (a thread could not be started).
bt_err bt_pool_open(bt_pool **out, uint32_t threads);
void bt_pool_close(bt_pool *pool);

// Every thread runs it once: for work that is divided by thread.
void bt_pool_run(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg);

// The owner runs it, and each worker that comes before the owner is through: for work that is taken item by item
// (kernels/cpu/work.h). A worker whose core is busy with something else is not waited for.
void bt_pool_help(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg);

// One round of a wait for another thread: a pause, and from some tens of microseconds on the core is given away.
void bt_pool_relax(unsigned round);
