// Durations of a measurement, kept one by one in milliseconds, and what is said of them.
#pragma once

#include "common/base/time.h"
#include "common/json/write.h"

#include <stddef.h>

typedef struct {
    double *values; // in the order they came, until something was said of them
    size_t count, cap;
} bt_samples;

// Without memory for one more it is not counted.
void bt_samples_add(bt_samples *samples, bt_time duration);
// "KEY":{"mean","p50","p90","p99","max"}.
void bt_samples_put(bt_samples *samples, bt_json_writer *writer, const char *key);
// A line on stdout.
void bt_samples_print(bt_samples *samples, const char *name);
void bt_samples_free(bt_samples *samples);
