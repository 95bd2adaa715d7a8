#include "common/metrics/metrics.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const bt_buckets bt_latency_buckets = {
    .count = 32,
    .bounds = {0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.15, 0.2,  0.25, 0.3,  0.4,
               0.5,    0.75,  1.0,    1.5,   2.0,    2.5,  5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 120., 160., 320., 600.},
};

const bt_buckets bt_token_buckets = {
    .count = 24,
    .bounds = {1,   2,   4,   8,    16,   32,   48,   64,    96,    128,    192,    256,
               384, 512, 768, 1024, 2048, 4096, 8192, 16384, 32768, 131072, 524288, 1048576},
};

void
bt_histogram_add(bt_histogram *histogram, const bt_buckets *buckets, double value)
{
    uint32_t bucket = 0;

    while (bucket < buckets->count && value > buckets->bounds[bucket]) {
        bucket++;
    }
    histogram->counts[bucket]++;
    histogram->count++;
    histogram->sum += value;
}

void
bt_histogram_add_time(bt_histogram *histogram, const bt_buckets *buckets, bt_time duration)
{
    bt_histogram_add(histogram, buckets, (double)duration / BT_SECOND);
}

static void
put_name(bt_buf *out, const char *name, const char *suffix, const char *labels, const char *own, const char *le)
{
    const char *comma = "";

    bt_buf_printf(out, "%s%s", name, suffix);
    if (labels == NULL && own == NULL && le == NULL) {
        bt_buf_append_char(out, ' ');
        return;
    }
    bt_buf_append_char(out, '{');
    if (labels != NULL) {
        bt_buf_append_text(out, labels);
        comma = ",";
    }
    if (own != NULL) {
        bt_buf_printf(out, "%s%s", comma, own);
        comma = ",";
    }
    if (le != NULL) {
        bt_buf_printf(out, "%sle=\"%s\"", comma, le);
    }
    bt_buf_append_text(out, "} ");
}

static void
put_histogram(bt_buf *out, const bt_metric *row, const bt_histogram *histogram, const char *labels)
{
    uint64_t below = 0;
    char le[32];

    for (uint32_t i = 0; i <= row->buckets->count; i++) {
        below += histogram->counts[i];
        snprintf(le, sizeof le, "%g", i < row->buckets->count ? row->buckets->bounds[i] : 0);
        put_name(out, row->name, "_bucket", labels, row->labels, i < row->buckets->count ? le : "+Inf");
        bt_buf_printf(out, "%llu\n", (unsigned long long)below);
    }
    put_name(out, row->name, "_sum", labels, row->labels, NULL);
    bt_buf_printf(out, "%.9g\n", histogram->sum);
    put_name(out, row->name, "_count", labels, row->labels, NULL);
    bt_buf_printf(out, "%llu\n", (unsigned long long)histogram->count);
}

static void
put_row(bt_buf *out, const bt_metric *row, const void *values, const char *labels)
{
    const void *field = (const char *)values + row->offset;

    if (row->kind == BT_METRIC_HISTOGRAM) {
        put_histogram(out, row, field, labels);
        return;
    }
    put_name(out, row->name, "", labels, row->labels, NULL);
    if (row->kind == BT_METRIC_COUNTER) {
        bt_buf_printf(out, "%llu\n", (unsigned long long)*(const uint64_t *)field);
    } else if (row->kind == BT_METRIC_SECONDS_TOTAL) {
        bt_buf_printf(out, "%.9g\n", (double)*(const bt_time *)field / BT_SECOND);
    } else {
        bt_buf_printf(out, "%.9g\n", *(const double *)field);
    }
}

void
bt_metrics_write(bt_buf *out, const bt_metric *table, const void *values, const char *labels)
{
    static const char *const types[] = {"", "counter", "gauge", "counter", "histogram"};
    const char *before = "";

    for (; table->kind != BT_METRIC_END; table++) {
        if (strcmp(before, table->name) != 0) {
            bt_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", table->name, table->help, table->name,
                          types[table->kind]);
            before = table->name;
        }
        put_row(out, table, values, labels);
    }
}

void
bt_metrics_label(bt_buf *out, const char *name, const char *value)
{
    bt_buf_printf(out, "%s=\"", name);
    for (; *value != 0; value++) {
        if (*value == '\n') {
            bt_buf_append_text(out, "\\n");
            continue;
        }
        if (*value == '"' || *value == '\\') {
            bt_buf_append_char(out, '\\');
        }
        bt_buf_append_char(out, *value);
    }
    bt_buf_append_char(out, '"');
}

double
bt_resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file == NULL) {
        return 0;
    }
    if (fscanf(file, "%*u %llu", &pages) != 1) {
        pages = 0;
    }
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}
