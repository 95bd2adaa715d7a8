// Numbers out of a program's /metrics text: sums over the lines of a name, and quantiles of a histogram between two scrapes.
#pragma once

#include "common/metrics/metrics.h"

// Of all lines of this name, or of those whose labels hold `label` as it stands (`phase="route"`); 0 where there is none.
double bt_scrape_sum(const char *text, const char *name, const char *label);
// The value of a label in the first line of this name, cut to fit; "" where there is none.
void bt_scrape_label(const char *text, const char *name, const char *label, char *out, size_t bytes);

typedef struct {
    uint32_t count;
    double bounds[BT_HISTOGRAM_BUCKETS_MAX + 1]; // the last is infinite
    double below[BT_HISTOGRAM_BUCKETS_MAX + 1];  // observations up to each
} bt_scrape_histogram;

// All label sets of the name added up.
void bt_scrape_read(const char *text, const char *name, bt_scrape_histogram *out);
// What was observed since `before` (NULL = since the start) up to `now`: how many, and the value below which the share `q` of it lies, as
// Prometheus draws it: a straight line within a bucket, the highest finite bound for what lies beyond.
double bt_scrape_count(const bt_scrape_histogram *now, const bt_scrape_histogram *before);
double bt_scrape_quantile(const bt_scrape_histogram *now, const bt_scrape_histogram *before, double q);
