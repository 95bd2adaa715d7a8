#include "kernels/cpu/pool.h"

#include "common/base/mem.h"
#include "common/base/time.h"
#include "kernels/cpu/work.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

// Within a step the owner's own work between two operations takes a few microseconds, between two steps some tens.
#define SPIN_TIME (60 * BT_MICROSECOND)
#define SPINS_A_LOOK 64 // pauses between two looks at the clock

typedef struct {
    bt_pool *pool;
    pthread_t handle;
    uint32_t index;
} worker;

struct bt_pool {
    uint32_t threads;
    void (*run)(void *arg, uint32_t thread, uint32_t threads);
    void *arg;
    bool closing;
    _Alignas(64) atomic_uint job;      // counts runs; workers wait for it to move
    _Alignas(64) atomic_uint sleepers; // workers inside, or about to be inside, the futex
    _Alignas(64) atomic_uint finished; // workers done with this run
    _Alignas(64) atomic_uint arrived;  // threads at the barrier
    _Alignas(64) atomic_uint passed;   // counts barriers
    worker workers[BT_THREADS_MAX];
    uint32_t started;
};

static inline void
pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

// Denormals are part of the numbers (DESIGN 7): 1e-40 halved must not be zero.
static void
assert_no_flush_to_zero(void)
{
    volatile float small = 1e-40f;

    assert(small * 0.5f > 0.0f);
}

// True when `value` has left `old` within the spin time.
static bool
spin_while(atomic_uint *value, unsigned old)
{
    bt_time until = 0;

    for (;;) {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (atomic_load_explicit(value, memory_order_acquire) != old) {
                return true;
            }
            pause_cpu();
        }
        if (until == 0) {
            until = bt_time_now() + SPIN_TIME;
        } else if (bt_time_now() > until) {
            return false;
        }
    }
}

static void
wait_for_job(bt_pool *pool, unsigned old)
{
    if (spin_while(&pool->job, old)) {
        return;
    }
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->job) == old) {
        syscall(SYS_futex, (void *)&pool->job, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
}

// Others are still at work, so this wait is short unless one of them has lost its core: then give ours away.
static void
wait_busy(atomic_uint *value, unsigned old)
{
    while (!spin_while(value, old)) {
        sched_yield();
    }
}

static void *
work(void *arg)
{
    worker *me = arg;
    bt_pool *pool = me->pool;

    assert_no_flush_to_zero();
    for (unsigned job = 0;; job++) {
        wait_for_job(pool, job);
        if (pool->closing) {
            return NULL;
        }
        pool->run(pool->arg, me->index, pool->threads);
        atomic_fetch_add_explicit(&pool->finished, 1, memory_order_release);
    }
}

static void
publish(bt_pool *pool)
{
    atomic_fetch_add(&pool->job, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        syscall(SYS_futex, (void *)&pool->job, FUTEX_WAKE_PRIVATE, BT_THREADS_MAX, NULL, NULL, 0);
    }
}

bt_err
bt_pool_open(bt_pool **out, uint32_t threads)
{
    bt_pool *pool = bt_alloc_pages(sizeof *pool);

    assert(threads >= 1 && threads <= BT_THREADS_MAX);
    assert_no_flush_to_zero();
    if (pool == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    pool->threads = threads;
    for (uint32_t i = 1; i < threads; i++) {
        worker *w = &pool->workers[i];

        *w = (worker){.pool = pool, .index = i};
        if (pthread_create(&w->handle, NULL, work, w) != 0) {
            bt_pool_close(pool);
            return BT_ERR_DEVICE;
        }
        pool->started = i;
    }
    *out = pool;
    return BT_OK;
}

void
bt_pool_close(bt_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pool->closing = true;
    publish(pool);
    for (uint32_t i = 1; i <= pool->started; i++) {
        pthread_join(pool->workers[i].handle, NULL);
    }
    bt_free_pages(pool, sizeof *pool);
}

void
bt_pool_run(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    unsigned done;

    if (pool->threads == 1) {
        run(arg, 0, 1);
        return;
    }
    pool->run = run;
    pool->arg = arg;
    atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
    publish(pool);
    run(arg, 0, pool->threads);
    while ((done = atomic_load_explicit(&pool->finished, memory_order_acquire)) < pool->threads - 1) {
        wait_busy(&pool->finished, done);
    }
}

void
bt_pool_barrier(bt_pool *pool)
{
    unsigned passed;

    if (pool->threads == 1) {
        return;
    }
    passed = atomic_load_explicit(&pool->passed, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->passed, passed + 1, memory_order_release);
        return;
    }
    wait_busy(&pool->passed, passed);
}
