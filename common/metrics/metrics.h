// Counters, gauges and histograms: fields of a program's own struct, described by a table beside it, written as
// Prometheus text.
//
//     typedef struct { uint64_t requests; bt_histogram ttft; } my_metrics;
//     static const bt_metric table[] = {
//         {BT_METRIC_COUNTER, offsetof(my_metrics, requests), "baton:requests_total", "Requests that ended.", NULL, NULL},
//         {BT_METRIC_HISTOGRAM, offsetof(my_metrics, ttft), "baton:ttft_seconds", "…", NULL, &bt_latency_buckets}, {0}};
//
// Units are the base units of Prometheus (seconds, bytes), named at the end of the name. A field belongs to one thread;
// whoever writes the text is that thread.
#pragma once

#include "common/base/buf.h"
#include "common/base/time.h"

#define BT_HISTOGRAM_BUCKETS_MAX 40

typedef struct {
    uint32_t count;
    double bounds[BT_HISTOGRAM_BUCKETS_MAX]; // rising; +Inf follows by itself
} bt_buckets;

// Seconds from 0.5 ms to 10 min: vLLM's, with 1 … 7.5 ms added.
extern const bt_buckets bt_latency_buckets;
// Tokens from 1 to 1 Mi in powers of two, two a step where requests crowd.
extern const bt_buckets bt_token_buckets;

typedef struct {
    uint64_t counts[BT_HISTOGRAM_BUCKETS_MAX + 1]; // of each bucket alone; the last is +Inf
    uint64_t count;
    double sum;
} bt_histogram;

void bt_histogram_add(bt_histogram *histogram, const bt_buckets *buckets, double value);
void bt_histogram_add_time(bt_histogram *histogram, const bt_buckets *buckets, bt_time duration); // as seconds

typedef enum {
    BT_METRIC_END,
    BT_METRIC_COUNTER,       // uint64_t
    BT_METRIC_GAUGE,         // double
    BT_METRIC_SECONDS_TOTAL, // bt_time, a counter
    BT_METRIC_HISTOGRAM,     // bt_histogram
} bt_metric_kind;

typedef struct {
    bt_metric_kind kind;
    size_t offset;
    const char *name, *help;
    const char *labels; // `phase="prefill"`, or NULL. Rows of one name stand together; the first one's help is written
    const bt_buckets *buckets;
} bt_metric;

// Appends all of a table, which ends in a row of zeros. `labels` come with each line, NULL = none.
void bt_metrics_write(bt_buf *out, const bt_metric *table, const void *values, const char *labels);
// `model_name="…"` with the value escaped as Prometheus wants it.
void bt_metrics_label(bt_buf *out, const char *name, const char *value);
// This process's resident memory; 0 where the system does not say.
double bt_resident_bytes(void);
