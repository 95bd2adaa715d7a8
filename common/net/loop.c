#include "common/net/loop.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_A_TURN 64

struct bt_loop {
    int epoll_fd, wake_fd;
    bt_watch wake;
    atomic_bool stopped;
    bt_time now;
    bt_timer *timers; // by `at`, the earliest first
    bt_turn *turns;
    // The events of the turn that runs, so that unwatch can take its own back out of it.
    struct epoll_event events[EVENTS_A_TURN];
    int event_count, event_next;
};

static void
drain_wake(void *self, uint32_t events)
{
    bt_loop *loop = self;
    uint64_t count;
    ssize_t got = read(loop->wake_fd, &count, sizeof count);

    (void)events, (void)got;
}

bt_err
bt_loop_open(bt_loop **out)
{
    bt_loop *loop = bt_alloc(sizeof *loop);

    if (loop == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->wake = (bt_watch){.ready = drain_wake, .self = loop};
    loop->now = bt_time_now();
    if (loop->epoll_fd < 0 || loop->wake_fd < 0 || bt_loop_watch(loop, &loop->wake, loop->wake_fd, EPOLLIN) != BT_OK) {
        bt_log_error("LOOP-OPEN", "no epoll or eventfd: %s", strerror(errno));
        bt_loop_close(loop);
        return BT_ERR_IO;
    }
    *out = loop;
    return BT_OK;
}

void
bt_loop_close(bt_loop *loop)
{
    if (loop == NULL) {
        return;
    }
    if (loop->epoll_fd >= 0) {
        close(loop->epoll_fd);
    }
    if (loop->wake_fd >= 0) {
        close(loop->wake_fd);
    }
    bt_free(loop);
}

bt_err
bt_loop_watch(bt_loop *loop, bt_watch *watch, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        bt_log_error("LOOP-WATCH", "fd %d: %s", fd, strerror(errno));
        return BT_ERR_IO;
    }
    watch->fd = fd;
    watch->set = true;
    return BT_OK;
}

bt_err
bt_loop_rewatch(bt_loop *loop, bt_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event) == 0 ? BT_OK : BT_ERR_IO;
}

void
bt_loop_unwatch(bt_loop *loop, bt_watch *watch)
{
    if (!watch->set) {
        return;
    }
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->set = false;
    for (int i = loop->event_next; i < loop->event_count; i++) {
        if (loop->events[i].data.ptr == watch) {
            loop->events[i].data.ptr = NULL;
        }
    }
}

void
bt_timer_unset(bt_loop *loop, bt_timer *timer)
{
    for (bt_timer **at = &loop->timers; timer->set && *at != NULL; at = &(*at)->next) {
        if (*at == timer) {
            *at = timer->next;
            break;
        }
    }
    timer->set = false;
}

void
bt_timer_set(bt_loop *loop, bt_timer *timer, bt_time when)
{
    bt_timer **at = &loop->timers;

    bt_timer_unset(loop, timer);
    while (*at != NULL && (*at)->at <= when) {
        at = &(*at)->next;
    }
    timer->at = when;
    timer->next = *at;
    timer->set = true;
    *at = timer;
}

void
bt_loop_add_turn(bt_loop *loop, bt_turn *turn)
{
    bt_turn **at = &loop->turns;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    turn->next = NULL;
    turn->again = 0; // the next turn does not wait, so that a new one runs once soon
    *at = turn;
}

void
bt_loop_remove_turn(bt_loop *loop, bt_turn *turn)
{
    for (bt_turn **at = &loop->turns; *at != NULL; at = &(*at)->next) {
        if (*at == turn) {
            *at = turn->next;
            return;
        }
    }
}

bt_time
bt_loop_now(const bt_loop *loop)
{
    return loop->now;
}

// Milliseconds for epoll_wait, rounded up, so that a timer is due when the wait ends.
static int
wait_ms(const bt_loop *loop, bt_time wait_max)
{
    bt_time now = bt_time_now(), wait = wait_max, at = loop->timers != NULL ? loop->timers->at : BT_TIME_NEVER;

    for (const bt_turn *turn = loop->turns; turn != NULL; turn = turn->next) {
        at = turn->again < at ? turn->again : at;
    }
    if (at != BT_TIME_NEVER && (at <= now || at - now < wait)) {
        wait = at <= now ? 0 : at - now;
    }
    if (wait == BT_TIME_NEVER) {
        return -1;
    }
    return wait > 3600 * BT_SECOND ? 3600 * 1000 : (int)((wait + BT_MILLISECOND - 1) / BT_MILLISECOND);
}

static void
run_timers(bt_loop *loop)
{
    // At most so many a turn: a timer that sets itself for now does not keep the loop here.
    for (size_t count = 0; loop->timers != NULL && loop->timers->at <= loop->now && count < EVENTS_A_TURN; count++) {
        bt_timer *timer = loop->timers;

        loop->timers = timer->next;
        timer->set = false;
        timer->due(timer->self);
    }
}

void
bt_loop_once(bt_loop *loop, bt_time wait_max)
{
    int got = epoll_wait(loop->epoll_fd, loop->events, EVENTS_A_TURN, wait_ms(loop, wait_max));

    loop->now = bt_time_now();
    loop->event_count = got > 0 ? got : 0; // EINTR is a turn without events
    for (loop->event_next = 0; loop->event_next < loop->event_count;) {
        struct epoll_event event = loop->events[loop->event_next++];
        bt_watch *watch = event.data.ptr;

        if (watch != NULL) {
            watch->ready(watch->self, event.events);
        }
    }
    loop->event_count = 0;
    run_timers(loop);
    for (bt_turn *turn = loop->turns, *next; turn != NULL; turn = next) {
        next = turn->next;
        turn->again = turn->turn(turn->self, loop->now);
    }
}

void
bt_loop_run(bt_loop *loop)
{
    while (!atomic_load(&loop->stopped)) {
        bt_loop_once(loop, BT_TIME_NEVER);
    }
    atomic_store(&loop->stopped, false);
}

void
bt_loop_stop(bt_loop *loop)
{
    atomic_store(&loop->stopped, true);
    bt_loop_wake(loop);
}

void
bt_loop_wake(bt_loop *loop)
{
    int kept = errno;
    uint64_t one = 1;
    ssize_t put = write(loop->wake_fd, &one, sizeof one);

    (void)put; // full means that a wake is on its way
    errno = kept;
}
