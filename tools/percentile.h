// Percentiles of measurements, by nearest rank: each is a value that was measured.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static inline int
bt_compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline void
bt_sort_values(double *values, size_t count)
{
    if (count > 1) {
        qsort(values, count, sizeof *values, bt_compare_values);
    }
}

// The value that `share` (0 to 1) of the sorted ones do not exceed; 0 of none.
static inline double
bt_percentile(const double *sorted, size_t count, double share)
{
    size_t rank = (size_t)ceil(share * (double)count);

    return count == 0 ? 0 : sorted[rank != 0 ? rank - 1 : 0];
}
