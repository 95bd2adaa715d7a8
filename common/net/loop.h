// One thread's loop: epoll, timers, and a wake from other threads.
//
//     bt_loop_open(&loop);
//     bt_loop_watch(loop, &watch, fd, EPOLLIN);   // watch.ready(watch.self, events) when the fd is
//     bt_timer_set(loop, &timer, now + BT_SECOND); // timer.due(timer.self) once
//     bt_loop_run(loop);                           // until bt_loop_stop
//     bt_loop_close(loop);
//
// The clock is read once a turn (bt_loop_now): everything in a turn happens at the same time. Watches and timers are
// memory of the caller that must stay where it is while it is set. All calls are of the loop's thread except
// bt_loop_wake and bt_loop_stop, which are of any thread and safe in a signal handler.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

typedef struct bt_loop bt_loop;

typedef struct {
    void (*ready)(void *self, uint32_t events); // EPOLLIN, EPOLLRDHUP …
    void *self;
    int fd; // the loop's, as `set`
    bool set;
} bt_watch;

typedef struct bt_timer {
    void (*due)(void *self);
    void *self;
    bt_time at; // the loop's, as all below
    struct bt_timer *next;
    bool set;
} bt_timer;

// What runs at the end of every turn, after all watches and timers: `turn` does what the turn's events asked for and
// returns when it wants to be run again at the latest (BT_TIME_NEVER: not before the next event).
typedef struct bt_turn {
    bt_time (*turn)(void *self, bt_time now);
    void *self;
    bt_time again; // the loop's
    struct bt_turn *next;
} bt_turn;

bt_err bt_loop_open(bt_loop **out);
void bt_loop_close(bt_loop *loop); // NULL is fine; watches and timers still set are forgotten

// BT_ERR_IO when the system refuses (the fd is watched here already, or is a plain file).
bt_err bt_loop_watch(bt_loop *loop, bt_watch *watch, int fd, uint32_t events);
bt_err bt_loop_rewatch(bt_loop *loop, bt_watch *watch, uint32_t events);
// No call of `ready` follows, not even for an event of this turn. Fine for a watch that is not set. Before the fd closes.
void bt_loop_unwatch(bt_loop *loop, bt_watch *watch);

// Sets or moves a timer. Timers are a sorted list: meant for dozens, not for one a request.
void bt_timer_set(bt_loop *loop, bt_timer *timer, bt_time at);
void bt_timer_unset(bt_loop *loop, bt_timer *timer);

// Turns run in the order in which they were added.
void bt_loop_add_turn(bt_loop *loop, bt_turn *turn);
void bt_loop_remove_turn(bt_loop *loop, bt_turn *turn);

bt_time bt_loop_now(const bt_loop *loop);

// One turn that waits `wait_max` at most (0: only what is ready now).
void bt_loop_once(bt_loop *loop, bt_time wait_max);
// Turns until someone calls bt_loop_stop, from before the call on.
void bt_loop_run(bt_loop *loop);
void bt_loop_stop(bt_loop *loop);
void bt_loop_wake(bt_loop *loop); // the turn that waits, or the next, ends its wait at once
