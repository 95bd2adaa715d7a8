#include "common/node/worker.h"
#include "common/base/mem.h"

#include <assert.h>
#include <pthread.h>

typedef enum { IDLE, ASKED, RUNNING, DONE } worker_state;

struct bt_worker {
    bt_worker_calls calls;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    // Under the lock:
    worker_state state;
    bool closing;
    const void *batch;
    bt_err err;
    bt_time duration;
};

static bool
wait_for_batch(bt_worker *worker)
{
    bool go;

    pthread_mutex_lock(&worker->lock);
    while (worker->state != ASKED && !worker->closing)
        pthread_cond_wait(&worker->asked, &worker->lock);
    go = !worker->closing;
    if (go)
        worker->state = RUNNING;
    pthread_mutex_unlock(&worker->lock);
    return go;
}

static void
finish_batch(bt_worker *worker, bt_err err, bt_time duration)
{
    pthread_mutex_lock(&worker->lock);
    worker->err = err;
    worker->duration = duration;
    worker->state = DONE;
    pthread_mutex_unlock(&worker->lock);
    if (worker->calls.wake != NULL)
        worker->calls.wake(worker->calls.wake_arg);
}

static void *
work(void *arg)
{
    bt_worker *worker = arg;

    while (wait_for_batch(worker)) {
        bt_time begun = bt_time_now();
        bt_err err = worker->calls.run(worker->calls.run_arg, worker->batch);

        finish_batch(worker, err, bt_time_now() - begun);
    }
    return NULL;
}

bt_err
bt_worker_open(bt_worker **out, const bt_worker_calls *calls)
{
    bt_worker *worker = bt_alloc(sizeof *worker);

    if (worker == NULL)
        return BT_ERR_NO_MEMORY;
    worker->calls = *calls;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->asked, NULL);
    if (pthread_create(&worker->thread, NULL, work, worker) != 0) {
        pthread_cond_destroy(&worker->asked);
        pthread_mutex_destroy(&worker->lock);
        bt_free(worker);
        return BT_ERR_NO_MEMORY;
    }
    *out = worker;
    return BT_OK;
}

void
bt_worker_close(bt_worker *worker)
{
    if (worker == NULL)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->closing = true;
    pthread_cond_signal(&worker->asked);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->asked);
    pthread_mutex_destroy(&worker->lock);
    bt_free(worker);
}

void
bt_worker_begin(bt_worker *worker, const void *batch)
{
    pthread_mutex_lock(&worker->lock);
    assert(worker->state == IDLE);
    worker->batch = batch;
    worker->state = ASKED;
    pthread_cond_signal(&worker->asked);
    pthread_mutex_unlock(&worker->lock);
}

bool
bt_worker_take(bt_worker *worker, bt_err *err, bt_time *duration)
{
    bool done;

    pthread_mutex_lock(&worker->lock);
    done = worker->state == DONE;
    if (done) {
        *err = worker->err;
        *duration = worker->duration;
        worker->state = IDLE;
    }
    pthread_mutex_unlock(&worker->lock);
    return done;
}
