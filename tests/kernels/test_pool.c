// The pool and its shared-out work: nothing lost, nothing twice, nobody waited for who has nothing to give.
#include "tests/support/test.h"

#include "kernels/cpu/pool.h"
#include "kernels/cpu/work.h"
#include "kernels/device.h"

#include <string.h>
#include <time.h>

#define ITEMS 1000u

typedef struct {
    bt_work first, second;
    uint32_t squares[ITEMS], sums[ITEMS]; // plain memory: a sanitizer sees every unordered pair
    uint32_t runs[BT_THREADS_MAX];
} job;

// Phase 2 reads what others wrote in phase 1.
static void
two_phases(void *arg, uint32_t thread, uint32_t threads)
{
    job *j = arg;
    uint32_t first = 0, end = 0;

    (void)threads;
    while (bt_work_take(&j->first, thread, &first, &end)) {
        for (uint32_t i = first; i < end; i++) {
            j->squares[i] += i * i;
        }
    }
    bt_work_wait(&j->first);
    while (bt_work_take(&j->second, thread, &first, &end)) {
        for (uint32_t i = first; i < end; i++) {
            j->sums[i] += j->squares[i] + j->squares[ITEMS - 1 - i];
        }
    }
}

START_TEST(phases_see_each_other_and_every_item_is_done_once)
{
    for (uint32_t threads = 1; threads <= 5; threads++) {
        bt_pool *pool;
        static job j;

        ck_assert_int_eq(bt_pool_open(&pool, threads), BT_OK);
        for (uint32_t round = 0; round < 300; round++) {
            memset(&j, 0, sizeof j);
            bt_work_init(&j.first, threads, ITEMS, 1 + round % 7);
            bt_work_init(&j.second, threads, ITEMS, 1 + round % 13);
            bt_pool_help(pool, two_phases, &j);
            for (uint32_t i = 0; i < ITEMS; i++) {
                ck_assert_uint_eq(j.sums[i], i * i + (ITEMS - 1 - i) * (ITEMS - 1 - i));
            }
        }
        bt_pool_close(pool);
    }
}
END_TEST

static void
count_me(void *arg, uint32_t thread, uint32_t threads)
{
    job *j = arg;

    ck_assert_uint_lt(thread, threads);
    j->runs[thread]++;
}

START_TEST(run_runs_on_every_thread_also_between_helps_and_after_sleep)
{
    bt_pool *pool;
    static job j;

    memset(&j, 0, sizeof j);
    ck_assert_int_eq(bt_pool_open(&pool, 4), BT_OK);
    for (uint32_t round = 1; round <= 200; round++) {
        bt_pool_run(pool, count_me, &j);
        for (uint32_t t = 0; t < 4; t++) {
            ck_assert_uint_eq(j.runs[t], round);
        }
        bt_work_init(&j.first, 4, 10, 1);
        bt_work_init(&j.second, 4, 10, 1);
        bt_pool_help(pool, two_phases, &j);
        if (round % 50 == 0) { // workers are asleep by then
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
    }
    bt_pool_close(pool);
}
END_TEST

START_TEST(a_pool_with_no_work_uses_no_time)
{
    struct timespec before, after;
    bt_pool *pool;
    static job j;

    memset(&j, 0, sizeof j);
    ck_assert_int_eq(bt_pool_open(&pool, 4), BT_OK);
    bt_pool_run(pool, count_me, &j);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    ck_assert_int_lt((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec, 20000000);
    bt_pool_close(pool);
}
END_TEST

START_TEST(an_unknown_or_missing_instruction_set_is_refused_by_name)
{
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = 1, .isa = "sse9"};
    bt_device *device = NULL;
    bt_why why = {""};

    ck_assert_int_eq(bt_device_open(&device, &options, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "sse9"));
    ck_assert_ptr_null(device);
    options.isa = "ref";
    ck_assert_int_eq(bt_device_open(&device, &options, &why), BT_OK);
    ck_assert_str_eq(bt_device_isa(device), "ref");
    bt_device_close(device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("pool");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 200);
    tcase_add_test(all, phases_see_each_other_and_every_item_is_done_once);
    tcase_add_test(all, run_runs_on_every_thread_also_between_helps_and_after_sleep);
    tcase_add_test(all, a_pool_with_no_work_uses_no_time);
    tcase_add_test(all, an_unknown_or_missing_instruction_set_is_refused_by_name);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
