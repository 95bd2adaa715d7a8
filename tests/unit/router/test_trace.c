// The ring of the last requests' spans, and that what nodes say cannot bend a picture. The picture itself: tests/e2e/test_status.py.
#include "common/base/mem.h"
#include "common/json/json.h"
#include "router/trace.h"
#include "tests/support/test.h"

#include <string.h>

static bt_trace *trace;
static bt_buf out;

static void
setup(void)
{
    bt_buf_init(&out, 1 << 20);
    ck_assert_int_eq(bt_trace_open(&trace, 3, "r1", NULL), BT_OK);
}

static void
teardown(void)
{
    bt_trace_close(trace);
    bt_buf_fini(&out);
}

// The document, whose spans all lie within [0, end] of the request's beginning.
static bt_json *
read_back(const char *name, bt_time now, double end)
{
    bt_json *document;
    bt_json_at root, events;
    bt_why why = {""};

    bt_buf_clear(&out);
    ck_assert_int_eq(bt_trace_write(trace, name, now, &out), BT_OK);
    ck_assert_msg(bt_json_parse(&document, (bt_str){out.data, out.len}, NULL, &why) == BT_OK, "%s", why.text);
    root = bt_json_root(document);
    events = bt_json_get(&root, "traceEvents");
    for (size_t i = 0; i < bt_json_count(&events); i++) {
        bt_json_at event = bt_json_item(&events, i), ts = bt_json_get(&event, "ts"), dur = bt_json_get(&event, "dur");
        double begin, length;

        if (!bt_json_given(&dur))
            continue;
        ck_assert_int_eq(bt_json_as_real(&ts, 0, end, &begin, &why), BT_OK);
        ck_assert_msg(bt_json_as_real(&dur, 0, end - begin, &length, &why) == BT_OK, "%s\n%s", why.text, out.data);
    }
    return document;
}

START_TEST(the_oldest_makes_room_for_the_newest)
{
    static const char *const names[] = {"a", "b", "c", "d"};

    for (int i = 0; i < 4; i++)
        bt_trace_begin(trace, names[i], BT_SECOND);
    ck_assert_int_eq(bt_trace_write(trace, "a", BT_SECOND, &out), BT_ERR_NOT_FOUND);
    ck_assert_uint_eq(out.len, 0);
    for (int i = 1; i < 4; i++)
        bt_json_close(read_back(names[i], BT_SECOND, 0));
}
END_TEST

START_TEST(of_one_name_the_newest_is_shown)
{
    bt_trace_begin(trace, "twice", BT_SECOND);
    bt_trace_end(trace, bt_trace_begin(trace, "twice", BT_SECOND), "second", 2 * BT_SECOND);
    bt_json_close(read_back("twice", 3 * BT_SECOND, 1e6));
    ck_assert_ptr_nonnull(strstr(out.data, "second"));
}
END_TEST

START_TEST(a_request_that_was_pushed_out_writes_into_nobody_elses)
{
    uint64_t old = bt_trace_begin(trace, "old", BT_SECOND);

    for (int i = 0; i < 3; i++)
        bt_trace_begin(trace, "new", BT_SECOND);
    bt_trace_text(trace, old, 2 * BT_SECOND);
    bt_trace_end(trace, old, "of the old one", 9 * BT_SECOND);
    bt_json_close(read_back("new", BT_SECOND, 0));
    ck_assert_ptr_null(strstr(out.data, "of the old one"));
}
END_TEST

START_TEST(without_memory_it_is_not_opened_and_nothing_is_left)
{
    long live = bt_mem_live();
    bt_trace *other = NULL;

    for (long n = 1; n <= 2; n++) {
        bt_mem_fail_nth(n);
        ck_assert_int_eq(bt_trace_open(&other, 4, "r1", NULL), BT_ERR_NO_MEMORY);
        bt_mem_fail_nth(0);
        ck_assert_ptr_null(other);
        ck_assert_int_eq(bt_mem_live(), live);
    }
}
END_TEST

START_TEST(without_a_trace_nothing_is_kept_and_nothing_breaks)
{
    ck_assert_uint_eq(bt_trace_begin(NULL, "x", 1), 0);
    bt_trace_text(NULL, 0, 1);
    bt_trace_end(NULL, 0, "x", 1);
    ck_assert_int_eq(bt_trace_write(NULL, "x", 1, &out), BT_ERR_NOT_FOUND);
}
END_TEST

// Durations longer than there was time, negative ones, a node without a name, one attempt too many.
START_TEST(whatever_nodes_measured_spans_lie_within_the_request)
{
    const bt_time wild[] = {INT64_MIN, -5, 0, 7, INT64_MAX};
    bt_time at = 10 * BT_SECOND;

    for (int i = 0; i < 5 * 5 * 2; i++) {
        bt_phases said = {.queue_prefill = wild[i % 5], .prefill = wild[i / 5 % 5], .transfer = wild[(i + i / 5) % 5]};
        bt_router_attempt what = {.placed = at + 1000,
                                  .ticketed = i % 3 != 0 ? at + 2000 : 0,
                                  .read = i >= 25 && i % 3 == 1 ? at + 3000 : 0,
                                  .joined = i % 3 == 1 ? at + 4000 : 0,
                                  .first_token = i % 3 == 1 ? at + 4000 : 0,
                                  .ended = at + 5000,
                                  .reading = said,
                                  .answering = said,
                                  .moved = i % 2 == 0};
        bt_router_attempted attempted = {&what, i % 4 != 0 ? "d1" : NULL, i >= 25 && i % 3 != 0 ? "p\"1" : NULL};
        uint64_t mark = bt_trace_begin(trace, "wild", at);

        bt_trace_text(trace, mark, at + 500);
        for (int n = 0; n < BT_TRACE_ATTEMPTS_MAX + 2; n++)
            bt_trace_attempt(trace, mark, (uint32_t)(n % 3), at + 600, &attempted);
        bt_trace_end(trace, mark, "stop", at + 6000);
        bt_json_close(read_back("wild", at + BT_SECOND, 6));
        ck_assert_ptr_nonnull(strstr(out.data, "\"attempts_not_shown\":2"));
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("trace");
    TCase *cases = tcase_create("cases");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, the_oldest_makes_room_for_the_newest);
    tcase_add_test(cases, of_one_name_the_newest_is_shown);
    tcase_add_test(cases, a_request_that_was_pushed_out_writes_into_nobody_elses);
    tcase_add_test(cases, without_memory_it_is_not_opened_and_nothing_is_left);
    tcase_add_test(cases, without_a_trace_nothing_is_kept_and_nothing_breaks);
    tcase_add_test(cases, whatever_nodes_measured_spans_lie_within_the_request);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
