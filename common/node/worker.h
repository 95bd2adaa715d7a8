// The engine thread of a node: runs one step at a time for the loop and says when it is done. While a step runs, the batch and what it
// points to belong to this thread; the loop touches none of it until it has taken the result.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdbool.h>

typedef struct bt_worker bt_worker;

typedef struct {
    bt_err (*run)(void *arg, const void *batch); // on the engine thread; the batch is whatever `begin` was given
    void (*wake)(void *arg);                     // on the engine thread, after each step; may be NULL
    void *run_arg, *wake_arg;
} bt_worker_calls;

bt_err bt_worker_open(bt_worker **out, const bt_worker_calls *calls);
void bt_worker_close(bt_worker *worker); // waits for the step that runs; NULL is fine

// Hands over a step. None may be running or untaken.
void bt_worker_begin(bt_worker *worker, const void *batch);
// The step that was begun is over? Then its outcome, once.
bool bt_worker_take(bt_worker *worker, bt_err *err, bt_time *duration);
