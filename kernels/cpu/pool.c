#include "kernels/cpu/pool.h"

#include "common/base/mem.h"
#include "common/base/time.h"

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
#define SPINS_A_LOOK 64   // pauses between two looks at the clock
#define RELAX_SPINS 2000u // pauses before a waiting thread gives its core away, some tens of microseconds

// `state` is the number of the current run (high half), whether it is closed to newcomers, and how many workers are inside.
#define STATE_RUN ((uint64_t)1 << 32)
#define STATE_CLOSED ((uint64_t)1 << 31)
#define STATE_INSIDE (STATE_CLOSED - 1)

typedef struct {
    bt_pool *pool;
    pthread_t handle;
    uint32_t index;
} worker;

// What a run touches is one cache line, so that it starts by one transfer of it and ends by another.
struct bt_pool {
    _Alignas(64) atomic_uint_fast64_t state;
    void (*run)(void *arg, uint32_t thread, uint32_t threads); // changes only while the run is closed and empty
    void *arg;
    atomic_uint bell;     // rings once a run; what sleepers wait on
    atomic_uint sleepers; // workers inside, or about to be inside, the futex
    atomic_uint entered;  // workers that have begun this run
    atomic_bool closing;
    _Alignas(64) uint32_t threads;
    uint32_t started;
    worker workers[BT_THREADS_MAX];
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

void
bt_pool_relax(unsigned round)
{
    if (round < RELAX_SPINS) {
        pause_cpu();
    } else {
        sched_yield();
    }
}

// Denormals are part of the numbers (DESIGN 7): 1e-40 halved must not be zero.
static void
assert_no_flush_to_zero(void)
{
    volatile float small = 1e-40f;

    assert(small * 0.5f > 0.0f);
}

// True when the bell has rung since `heard` within the spin time.
static bool
spin_for_bell(bt_pool *pool, unsigned heard)
{
    bt_time until = 0;

    for (;;) {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (atomic_load_explicit(&pool->bell, memory_order_acquire) != heard) {
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

// Returns what the bell says now.
static unsigned
wait_for_bell(bt_pool *pool, unsigned heard)
{
    if (!spin_for_bell(pool, heard)) {
        atomic_fetch_add(&pool->sleepers, 1);
        while (atomic_load(&pool->bell) == heard) {
            syscall(SYS_futex, (void *)&pool->bell, FUTEX_WAIT_PRIVATE, heard, NULL, NULL, 0);
        }
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return atomic_load_explicit(&pool->bell, memory_order_acquire);
}

// Goes into the current run unless it is closed or `last`, which was run already. *last becomes its number.
static bool
enter(bt_pool *pool, uint64_t *last)
{
    uint64_t state = atomic_load_explicit(&pool->state, memory_order_acquire);

    do {
        if ((state & STATE_CLOSED) != 0 || state / STATE_RUN == *last) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1, memory_order_acq_rel,
                                                    memory_order_acquire));
    *last = state / STATE_RUN;
    return true;
}

static void *
work(void *arg)
{
    worker *me = arg;
    bt_pool *pool = me->pool;
    uint64_t last = 0;
    unsigned heard = 0;

    assert_no_flush_to_zero();
    for (;;) {
        heard = wait_for_bell(pool, heard);
        if (atomic_load(&pool->closing)) {
            return NULL;
        }
        if (enter(pool, &last)) {
            atomic_fetch_add_explicit(&pool->entered, 1, memory_order_relaxed);
            pool->run(pool->arg, me->index, pool->threads);
            atomic_fetch_sub_explicit(&pool->state, 1, memory_order_release);
        }
    }
}

static void
ring(bt_pool *pool)
{
    atomic_fetch_add(&pool->bell, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        syscall(SYS_futex, (void *)&pool->bell, FUTEX_WAKE_PRIVATE, BT_THREADS_MAX, NULL, NULL, 0);
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
    atomic_store(&pool->state, STATE_CLOSED);
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
    atomic_store(&pool->closing, true);
    ring(pool);
    for (uint32_t i = 1; i <= pool->started; i++) {
        pthread_join(pool->workers[i].handle, NULL);
    }
    bt_free_pages(pool, sizeof *pool);
}

static void
begin(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    uint64_t number = atomic_load_explicit(&pool->state, memory_order_relaxed) / STATE_RUN + 1;

    pool->run = run;
    pool->arg = arg;
    atomic_store_explicit(&pool->entered, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->state, number * STATE_RUN, memory_order_release);
    ring(pool);
}

// Nobody enters any more; those inside are waited for.
static void
end(bt_pool *pool)
{
    atomic_fetch_or_explicit(&pool->state, STATE_CLOSED, memory_order_acq_rel);
    for (unsigned i = 0; (atomic_load_explicit(&pool->state, memory_order_acquire) & STATE_INSIDE) != 0; i++) {
        bt_pool_relax(i);
    }
}

void
bt_pool_run(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    if (pool->threads == 1) {
        run(arg, 0, 1);
        return;
    }
    begin(pool, run, arg);
    run(arg, 0, pool->threads);
    for (unsigned i = 0; atomic_load_explicit(&pool->entered, memory_order_relaxed) < pool->threads - 1; i++) {
        bt_pool_relax(i);
    }
    end(pool);
}

void
bt_pool_help(bt_pool *pool, void (*run)(void *arg, uint32_t thread, uint32_t threads), void *arg)
{
    if (pool->threads == 1) {
        run(arg, 0, 1);
        return;
    }
    begin(pool, run, arg);
    run(arg, 0, pool->threads);
    end(pool);
}
