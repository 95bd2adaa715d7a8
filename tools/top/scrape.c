#include "tools/top/scrape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *labels; // after the {, or NULL
    size_t labels_len;
    double value;
} sample;

// The next line of this name from *at on.
static bool
next_sample(const char **at, const char *name, sample *out)
{
    size_t len = strlen(name);

    while (**at != 0) {
        const char *line = *at, *end = strchrnul(line, '\n'), *value;

        *at = *end != 0 ? end + 1 : end;
        if (strncmp(line, name, len) != 0 || (line[len] != ' ' && line[len] != '{')) {
            continue;
        }
        value = memrchr(line, ' ', (size_t)(end - line));
        out->labels = line[len] == '{' ? line + len + 1 : NULL;
        out->labels_len = out->labels != NULL && value > out->labels ? (size_t)(value - out->labels) : 0;
        out->value = value != NULL ? strtod(value, NULL) : 0;
        return true;
    }
    return false;
}

double
bt_scrape_sum(const char *text, const char *name, const char *label)
{
    double sum = 0;
    sample s;

    while (next_sample(&text, name, &s)) {
        if (label == NULL || (s.labels != NULL && memmem(s.labels, s.labels_len, label, strlen(label)) != NULL)) {
            sum += s.value;
        }
    }
    return sum;
}

void
bt_scrape_label(const char *text, const char *name, const char *label, char *out, size_t bytes)
{
    char wanted[64];
    const char *found;
    sample s;

    out[0] = 0;
    snprintf(wanted, sizeof wanted, "%s=\"", label);
    if (!next_sample(&text, name, &s) || s.labels == NULL ||
        (found = memmem(s.labels, s.labels_len, wanted, strlen(wanted))) == NULL) {
        return;
    }
    found += strlen(wanted);
    snprintf(out, bytes, "%.*s", (int)strcspn(found, "\"\n"), found);
}

// ---- histograms ----

static uint32_t
bucket_of(bt_scrape_histogram *h, double bound)
{
    for (uint32_t i = 0; i < h->count; i++) {
        if (h->bounds[i] == bound) {
            return i;
        }
    }
    if (h->count > BT_HISTOGRAM_BUCKETS_MAX) {
        return BT_HISTOGRAM_BUCKETS_MAX;
    }
    h->bounds[h->count] = bound;
    return h->count++;
}

void
bt_scrape_read(const char *text, const char *name, bt_scrape_histogram *out)
{
    char bucket[128];
    sample s;

    *out = (bt_scrape_histogram){0};
    snprintf(bucket, sizeof bucket, "%s_bucket", name);
    while (next_sample(&text, bucket, &s)) {
        const char *le = s.labels != NULL ? memmem(s.labels, s.labels_len, "le=\"", 4) : NULL;

        if (le != NULL) {
            double bound = strncmp(le + 4, "+Inf", 4) == 0 ? INFINITY : strtod(le + 4, NULL);

            out->below[bucket_of(out, bound)] += s.value;
        }
    }
}

static double
below(const bt_scrape_histogram *now, const bt_scrape_histogram *before, uint32_t i)
{
    return now->below[i] - (before != NULL && i < before->count ? before->below[i] : 0);
}

double
bt_scrape_count(const bt_scrape_histogram *now, const bt_scrape_histogram *before)
{
    return now->count != 0 ? below(now, before, now->count - 1) : 0;
}

double
bt_scrape_quantile(const bt_scrape_histogram *now, const bt_scrape_histogram *before, double q)
{
    double all = bt_scrape_count(now, before), rank = q * all, from = 0, lower = 0;

    for (uint32_t i = 0; i < now->count && all > 0; i++) {
        double until = below(now, before, i);

        if (until >= rank && until > from) {
            if (isinf(now->bounds[i])) {
                return lower;
            }
            return lower + (now->bounds[i] - lower) * (rank - from) / (until - from);
        }
        from = until;
        lower = isinf(now->bounds[i]) ? lower : now->bounds[i];
    }
    return lower * (all > 0);
}
