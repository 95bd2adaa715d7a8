// The hand-over between loop and engine thread. Run it under TSan too: the counts below are written without a lock on purpose.
#include "common/node/worker.h"
#include "tests/support/test.h"

#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
    int wakes; // eventfd
    uint64_t steps;
    uint32_t last_count;
} seen;

static bt_err
run(void *arg, const void *batch)
{
    seen *s = arg;

    s->steps++;
    s->last_count = *(const uint32_t *)batch;
    return s->last_count % 7 == 0 ? BT_ERR_DEVICE : BT_OK;
}

static void
wake(void *arg)
{
    eventfd_write(((seen *)arg)->wakes, 1);
}

START_TEST(each_step_is_run_and_taken_once)
{
    seen s = {.wakes = eventfd(0, 0)};
    bt_worker *worker;
    bt_worker_calls calls = {run, wake, &s, &s};
    uint32_t batch = 0;

    ck_assert_int_eq(bt_worker_open(&worker, &calls), BT_OK);
    for (uint32_t i = 1; i <= 2000; i++) {
        eventfd_t count;
        bt_err err = BT_ERR_BUG;
        bt_time duration = -1;

        batch = i;
        bt_worker_begin(worker, &batch);
        ck_assert_int_eq(eventfd_read(s.wakes, &count), 0);
        ck_assert(bt_worker_take(worker, &err, &duration));
        ck_assert_int_eq(err, i % 7 == 0 ? BT_ERR_DEVICE : BT_OK);
        ck_assert_int_ge(duration, 0);
        ck_assert(!bt_worker_take(worker, &err, &duration));
        ck_assert_uint_eq(s.steps, i);
        ck_assert_uint_eq(s.last_count, i);
    }
    bt_worker_close(worker);
    close(s.wakes);
}
END_TEST

START_TEST(closing_waits_for_the_step_that_runs)
{
    seen s = {.wakes = eventfd(0, 0)};
    bt_worker *worker;
    bt_worker_calls calls = {run, wake, &s, &s};
    uint32_t batch = 1;

    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(bt_worker_open(&worker, &calls), BT_OK);
        if (i % 2 == 0)
            bt_worker_begin(worker, &batch);
        bt_worker_close(worker);
    }
    ck_assert_uint_le(s.steps, 100); // a step that had not begun may be dropped
    close(s.wakes);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("worker");
    TCase *all = tcase_create("all");

    tcase_add_test(all, each_step_is_run_and_taken_once);
    tcase_add_test(all, closing_waits_for_the_step_that_runs);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
