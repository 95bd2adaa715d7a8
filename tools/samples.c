#include "tools/samples.h"

#include "common/base/mem.h"
#include "tools/percentile.h"

#include <stdio.h>

void
bt_samples_add(bt_samples *samples, bt_time duration)
{
    if (samples->count == samples->cap) {
        size_t cap = samples->cap != 0 ? 2 * samples->cap : 1024;
        double *values = bt_realloc(samples->values, cap * sizeof *values);

        if (values == NULL) {
            return;
        }
        samples->values = values;
        samples->cap = cap;
    }
    samples->values[samples->count++] = (double)duration / (double)BT_MILLISECOND;
}

static double
mean(const bt_samples *samples)
{
    double sum = 0;

    for (size_t i = 0; i < samples->count; i++) {
        sum += samples->values[i];
    }
    return samples->count != 0 ? sum / (double)samples->count : 0;
}

void
bt_samples_put(bt_samples *samples, bt_json_writer *writer, const char *key)
{
    bt_sort_values(samples->values, samples->count);
    bt_json_begin_object(writer, key);
    bt_json_put_real(writer, "mean", mean(samples));
    bt_json_put_real(writer, "p50", bt_percentile(samples->values, samples->count, 0.5));
    bt_json_put_real(writer, "p90", bt_percentile(samples->values, samples->count, 0.9));
    bt_json_put_real(writer, "p99", bt_percentile(samples->values, samples->count, 0.99));
    bt_json_put_real(writer, "max", bt_percentile(samples->values, samples->count, 1));
    bt_json_end(writer);
}

void
bt_samples_print(bt_samples *samples, const char *name)
{
    bt_sort_values(samples->values, samples->count);
    printf("  %-26s mean %9.2f   p50 %9.2f   p90 %9.2f   p99 %9.2f\n", name, mean(samples),
           bt_percentile(samples->values, samples->count, 0.5), bt_percentile(samples->values, samples->count, 0.9),
           bt_percentile(samples->values, samples->count, 0.99));
}

void
bt_samples_free(bt_samples *samples)
{
    bt_free(samples->values);
}
