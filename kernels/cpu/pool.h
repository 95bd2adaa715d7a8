// A fork-join pool: the owner and `threads − 1` workers run one function at a time.
//
// The owner calls run; it is thread 0 and returns when every thread has returned. After a run the workers spin for a
// few tens of microseconds, because the next operation of a step follows at once, and then sleep: an idle server burns
// nothing. One owner thread; run does not nest.
#pragma once

#include "common/base/err.h"

#include <stdint.h>

typedef struct bt_pool bt_pool;

// BT_ERR_NO_MEMORY or BT_ERR_DEVICE (a thread could not be started).
bt_err bt_pool_open(bt_pool **out, uint32_t threads);
void bt_pool_close(bt_pool *pool);

void bt_pool_run(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg);

// Inside a run: returns when every thread of the pool has called it. What was written before it is seen after it.
void bt_pool_barrier(bt_pool *pool);
