// The engine thread: runs one step at a time for the loop and says when it is done. While a step runs, the batch and what it points
// to belong to this thread; the loop touches none of it until it has taken the result.
#pragma once

#include "decode-node/core.h"

typedef struct bt_worker bt_worker;

typedef struct {
    bt_err (*run)(void *arg, const bt_decode_batch *batch); // on the engine thread
    void (*wake)(void *arg);                                // on the engine thread, after each step; may be NULL
    void *run_arg, *wake_arg;
} bt_worker_calls;

bt_err bt_worker_open(bt_worker **out, const bt_worker_calls *calls);
void bt_worker_close(bt_worker *worker); // waits for the step that runs; NULL is fine

// Hands over a step. None may be running or untaken.
void bt_worker_begin(bt_worker *worker, const bt_decode_batch *batch);
// The step that was begun is over? Then its outcome, once.
bool bt_worker_take(bt_worker *worker, bt_err *err, bt_time *duration);
