#include "tests/support/test.h"

#include "common/metrics/metrics.h"
#include "common/metrics/request_id.h"

#include <stddef.h>
#include <string.h>

typedef struct {
    uint64_t done[2];
    double running;
    bt_time busy;
    bt_histogram ttft;
} values_type;

static const bt_buckets buckets = {2, {0.001, 1}};

static const bt_metric table[] = {
    {BT_METRIC_COUNTER, offsetof(values_type, done), "a:done_total", "Ended.", "by=\"stop\"", NULL},
    {BT_METRIC_COUNTER, offsetof(values_type, done) + 8, "a:done_total", "Ended.", "by=\"length\"", NULL},
    {BT_METRIC_GAUGE, offsetof(values_type, running), "a:running", "Now.", NULL, NULL},
    {BT_METRIC_SECONDS_TOTAL, offsetof(values_type, busy), "a:busy_seconds_total", "Busy.", NULL, NULL},
    {BT_METRIC_HISTOGRAM, offsetof(values_type, ttft), "a:ttft_seconds", "First.", NULL, &buckets},
    {0},
};

START_TEST(table_is_written_as_prometheus_text)
{
    values_type values = {.done = {3, 4}, .running = 2.5, .busy = BT_SECOND / 4};
    bt_buf out;

    bt_histogram_add(&values.ttft, &buckets, 0.001); // a bound belongs to its bucket
    bt_histogram_add_time(&values.ttft, &buckets, BT_SECOND / 2);
    bt_histogram_add(&values.ttft, &buckets, 7);
    bt_buf_init(&out, 1 << 16);
    bt_metrics_write(&out, table, &values, "m=\"x\"");
    ck_assert_str_eq(out.data, "# HELP a:done_total Ended.\n# TYPE a:done_total counter\n"
                               "a:done_total{m=\"x\",by=\"stop\"} 3\na:done_total{m=\"x\",by=\"length\"} 4\n"
                               "# HELP a:running Now.\n# TYPE a:running gauge\na:running{m=\"x\"} 2.5\n"
                               "# HELP a:busy_seconds_total Busy.\n# TYPE a:busy_seconds_total counter\n"
                               "a:busy_seconds_total{m=\"x\"} 0.25\n"
                               "# HELP a:ttft_seconds First.\n# TYPE a:ttft_seconds histogram\n"
                               "a:ttft_seconds_bucket{m=\"x\",le=\"0.001\"} 1\n"
                               "a:ttft_seconds_bucket{m=\"x\",le=\"1\"} 2\n"
                               "a:ttft_seconds_bucket{m=\"x\",le=\"+Inf\"} 3\n"
                               "a:ttft_seconds_sum{m=\"x\"} 7.501\na:ttft_seconds_count{m=\"x\"} 3\n");
    bt_buf_clear(&out);
    bt_metrics_write(&out, table + 2, &values, NULL);
    ck_assert_ptr_nonnull(strstr(out.data, "a:running 2.5\n"));
    bt_buf_fini(&out);
}
END_TEST

START_TEST(labels_are_escaped)
{
    bt_buf out;

    bt_buf_init(&out, 1 << 16);
    bt_metrics_label(&out, "m", "a\"b\\c\nd");
    ck_assert_str_eq(out.data, "m=\"a\\\"b\\\\c\\nd\"");
    bt_buf_fini(&out);
}
END_TEST

START_TEST(bucket_tables_rise)
{
    for (uint32_t i = 1; i < bt_latency_buckets.count; i++) {
        ck_assert(bt_latency_buckets.bounds[i] > bt_latency_buckets.bounds[i - 1]);
    }
    for (uint32_t i = 1; i < bt_token_buckets.count; i++) {
        ck_assert(bt_token_buckets.bounds[i] > bt_token_buckets.bounds[i - 1]);
    }
}
END_TEST

START_TEST(request_names_that_could_break_a_log_line_are_not_taken)
{
    static const char *const bad[] = {
        "", "a b", "a\nb", "\"", "a\x80", "0123456789012345678901234567890123456789012345678901234567890123x"};
    char name[BT_REQUEST_NAME_MAX + 1], other[BT_REQUEST_NAME_MAX + 1];
    bt_rng rng = {1};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert(!bt_request_name_take(name, bad[i]));
    }
    ck_assert(bt_request_name_take(name, "req-1.a"));
    ck_assert_str_eq(name, "req-1.a");
    bt_request_name_draw(name, &rng);
    bt_request_name_draw(other, &rng);
    ck_assert_uint_eq(strlen(name), 32);
    ck_assert_str_ne(name, other);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("metrics");
    TCase *tests = tcase_create("metrics");

    tcase_add_test(tests, table_is_written_as_prometheus_text);
    tcase_add_test(tests, labels_are_escaped);
    tcase_add_test(tests, bucket_tables_rise);
    tcase_add_test(tests, request_names_that_could_break_a_log_line_are_not_taken);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
