#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/net/loop.h"

#include <pthread.h>
#include <unistd.h>

static bt_loop *loop;
static int pipe_fds[2];
static int calls;
static char order[16];

static void
open_loop(void)
{
    ck_assert_int_eq(bt_loop_open(&loop), BT_OK);
    ck_assert_int_eq(pipe(pipe_fds), 0);
    calls = 0;
    memset(order, 0, sizeof order);
}

static void
close_loop(void)
{
    bt_loop_close(loop);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void
note(void *self)
{
    order[calls++] = *(const char *)self;
}

static void
note_ready(void *self, uint32_t events)
{
    ck_assert_uint_ne(events, 0);
    note(self);
}

START_TEST(watch_is_called_while_there_is_something_to_read)
{
    bt_watch watch = {.ready = note_ready, .self = "r"};

    ck_assert_int_eq(bt_loop_watch(loop, &watch, pipe_fds[0], EPOLLIN), BT_OK);
    bt_loop_once(loop, 0);
    ck_assert_int_eq(calls, 0);
    ck_assert_int_eq(write(pipe_fds[1], "x", 1), 1);
    bt_loop_once(loop, BT_SECOND);
    bt_loop_once(loop, BT_SECOND);
    ck_assert_int_eq(calls, 2);
    bt_loop_unwatch(loop, &watch);
    bt_loop_once(loop, 0);
    ck_assert_int_eq(calls, 2);
}
END_TEST

static bt_watch pair[2];

static void
unwatch_the_other(void *self, uint32_t events)
{
    (void)events;
    calls++;
    bt_loop_unwatch(loop, self);
}

START_TEST(watch_taken_back_in_the_same_turn_is_not_called)
{
    int second = dup(pipe_fds[0]);

    pair[0] = (bt_watch){.ready = unwatch_the_other, .self = &pair[1]};
    pair[1] = (bt_watch){.ready = unwatch_the_other, .self = &pair[0]};
    ck_assert_int_eq(bt_loop_watch(loop, &pair[0], pipe_fds[0], EPOLLIN), BT_OK);
    ck_assert_int_eq(bt_loop_watch(loop, &pair[1], second, EPOLLIN), BT_OK);
    ck_assert_int_eq(write(pipe_fds[1], "x", 1), 1);
    bt_loop_once(loop, BT_SECOND);
    ck_assert_int_eq(calls, 1);
    close(second);
}
END_TEST

START_TEST(timers_come_in_the_order_of_their_times)
{
    bt_time now = bt_loop_now(loop);
    bt_timer a = {.due = note, .self = "a"}, b = {.due = note, .self = "b"}, c = {.due = note, .self = "c"};

    bt_timer_set(loop, &c, now + 3);
    bt_timer_set(loop, &a, now + 1);
    bt_timer_set(loop, &b, now + 9 * BT_SECOND);
    bt_timer_set(loop, &b, now + 2); // moved
    bt_loop_once(loop, BT_SECOND);
    ck_assert_str_eq(order, "abc");
    bt_loop_once(loop, 0);
    ck_assert_int_eq(calls, 3);
}
END_TEST

START_TEST(timer_that_was_unset_stays_silent)
{
    bt_timer a = {.due = note, .self = "a"}, b = {.due = note, .self = "b"};

    bt_timer_set(loop, &a, bt_loop_now(loop) + 1);
    bt_timer_set(loop, &b, bt_loop_now(loop) + 1);
    bt_timer_unset(loop, &a);
    bt_timer_unset(loop, &a);
    bt_loop_once(loop, BT_SECOND);
    ck_assert_str_eq(order, "b");
}
END_TEST

START_TEST(wait_ends_when_a_timer_is_due)
{
    bt_timer a = {.due = note, .self = "a"};

    bt_timer_set(loop, &a, bt_loop_now(loop) + 3 * BT_MILLISECOND);
    bt_loop_once(loop, BT_TIME_NEVER); // would hang
    ck_assert_int_eq(calls, 1);
}
END_TEST

static bt_time
count_turn(void *self, bt_time now)
{
    note(self);
    return calls < 3 ? now : BT_TIME_NEVER;
}

START_TEST(turn_is_run_again_when_it_wants_to)
{
    bt_turn turn = {.turn = count_turn, .self = "t"};

    bt_loop_add_turn(loop, &turn);
    bt_loop_once(loop, BT_TIME_NEVER);
    bt_loop_once(loop, BT_TIME_NEVER);
    bt_loop_once(loop, BT_TIME_NEVER); // none of them waits
    ck_assert_int_eq(calls, 3);
    bt_loop_remove_turn(loop, &turn);
    bt_loop_once(loop, 0);
    ck_assert_int_eq(calls, 3);
}
END_TEST

static void *
stop_from_here(void *self)
{
    bt_loop_wake(self);
    bt_loop_stop(self);
    return NULL;
}

START_TEST(stop_from_another_thread_ends_run)
{
    pthread_t thread;

    bt_loop_stop(loop);
    bt_loop_run(loop); // a stop from before counts
    ck_assert_int_eq(pthread_create(&thread, NULL, stop_from_here, loop), 0);
    bt_loop_run(loop);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(open_survives_missing_memory)
{
    bt_loop *none = NULL;

    bt_mem_fail_nth(1);
    ck_assert_int_eq(bt_loop_open(&none), BT_ERR_NO_MEMORY);
    bt_mem_fail_nth(0);
    ck_assert_ptr_null(none);
    bt_loop_close(none);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("loop");
    TCase *tests = tcase_create("loop");

    tcase_add_checked_fixture(tests, open_loop, close_loop);
    tcase_add_test(tests, watch_is_called_while_there_is_something_to_read);
    tcase_add_test(tests, watch_taken_back_in_the_same_turn_is_not_called);
    tcase_add_test(tests, timers_come_in_the_order_of_their_times);
    tcase_add_test(tests, timer_that_was_unset_stays_silent);
    tcase_add_test(tests, wait_ends_when_a_timer_is_due);
    tcase_add_test(tests, turn_is_run_again_when_it_wants_to);
    tcase_add_test(tests, stop_from_another_thread_ends_run);
    tcase_add_test(tests, open_survives_missing_memory);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
