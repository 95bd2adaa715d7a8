#include "router/breaker.h"
#include "tests/support/test.h"

static bt_breaker breaker;
static bt_breaker_limits limits;
static bt_time now;

static void
setup(void)
{
    breaker = (bt_breaker){0};
    limits = (bt_breaker_limits){0};
    bt_breaker_fill_defaults(&limits);
    now = 1000 * BT_SECOND;
}

static bool
note(bool good)
{
    return bt_breaker_note(&breaker, &limits, now, good, false);
}

static void
trip(void)
{
    for (int i = 0; i < 5; i++)
        note(false);
    ck_assert_int_eq(bt_breaker_look(&breaker, now), BT_BREAKER_OPEN);
}

START_TEST(few_errors_or_a_small_share_of_them_open_nothing)
{
    for (int i = 0; i < 4; i++)
        ck_assert(!note(false));
    for (int i = 0; i < 6; i++)
        note(true);
    ck_assert(!note(false)); // five of eleven
    setup();
    for (int i = 0; i < 30; i++)
        note(true);
    for (int i = 0; i < 29; i++)
        ck_assert(!note(false));
    ck_assert(note(false));
    ck_assert(!bt_breaker_allows(&breaker, now));
}
END_TEST

START_TEST(what_left_the_window_counts_no_more)
{
    for (int i = 0; i < 4; i++)
        note(false);
    now += limits.window + limits.window / BT_BREAKER_SLICES;
    for (int i = 0; i < 4; i++)
        ck_assert(!note(false));
    now += limits.window / 2;
    ck_assert(note(false)); // those four are still within it
}
END_TEST

START_TEST(half_open_lets_one_through_and_its_success_closes)
{
    trip();
    now += limits.open;
    ck_assert_int_eq(bt_breaker_look(&breaker, now), BT_BREAKER_HALF_OPEN);
    ck_assert(bt_breaker_allows(&breaker, now) && bt_breaker_begin(&breaker, now));
    ck_assert(!bt_breaker_allows(&breaker, now));
    ck_assert(!note(true) && !note(false)); // of requests from before: they say nothing
    ck_assert(bt_breaker_note(&breaker, &limits, now, true, true));
    ck_assert_int_eq(bt_breaker_look(&breaker, now), BT_BREAKER_CLOSED);
    for (int i = 0; i < 4; i++)
        ck_assert(!note(false)); // and the window is empty
}
END_TEST

START_TEST(each_probe_that_fails_doubles_the_wait_up_to_a_bound)
{
    bt_time waits[7];

    trip();
    for (int i = 0; i < 7; i++) {
        waits[i] = breaker.until - now;
        now = breaker.until;
        ck_assert(bt_breaker_begin(&breaker, now));
        ck_assert(bt_breaker_note(&breaker, &limits, now, false, true));
    }
    ck_assert(waits[0] == limits.open && waits[1] == 2 * limits.open && waits[2] == 4 * limits.open);
    ck_assert(waits[5] == 12 * limits.open && waits[6] == 12 * limits.open);
}
END_TEST

START_TEST(a_probe_without_an_outcome_makes_way_for_another)
{
    trip();
    now += limits.open;
    ck_assert(bt_breaker_begin(&breaker, now));
    bt_breaker_end_probe(&breaker);
    ck_assert(bt_breaker_allows(&breaker, now));
    ck_assert_int_eq(bt_breaker_look(&breaker, now), BT_BREAKER_HALF_OPEN);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("breaker");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, setup, NULL);
    tcase_add_test(all, few_errors_or_a_small_share_of_them_open_nothing);
    tcase_add_test(all, what_left_the_window_counts_no_more);
    tcase_add_test(all, half_open_lets_one_through_and_its_success_closes);
    tcase_add_test(all, each_probe_that_fails_doubles_the_wait_up_to_a_bound);
    tcase_add_test(all, a_probe_without_an_outcome_makes_way_for_another);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
