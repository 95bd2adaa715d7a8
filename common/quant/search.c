#include "common/quant/search.h"

#include "common/base/mem.h"
#include "common/tensor/dtype.h"

#include <math.h>
#include <string.h>

// Compiled for wide vectors too: sums are kept in 16 lanes by hand, so every clone gives the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&               \
    !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif

#define LANES 16
#define CANDIDATES 20

// Rounds half to even for |x| < 2^22, in a form that every compiler vectorises.
static inline float
nearest(float x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

static float
sum_lanes(const float lanes[LANES])
{
    float sum = 0;

    for (int i = 0; i < LANES; i++) {
        sum += lanes[i];
    }
    return sum;
}

// With codes q = round(x · inverse) in low … high: Σ w x q and Σ w q², from which the best scale for these codes and its
// error follow. n is a multiple of 16.
WIDE static void
moments(const float *x, const float *w, uint32_t n, float inverse, float low, float high, float *xq, float *qq)
{
    float xq_lanes[LANES] = {0}, qq_lanes[LANES] = {0};

    for (uint32_t j = 0; j < n; j += LANES) {
        for (int i = 0; i < LANES; i++) {
            float scaled = x[j + i] * inverse;
            float clipped = scaled < low ? low : scaled > high ? high : scaled;
            float q = nearest(clipped), wq = w[j + i] * q;

            xq_lanes[i] += wq * x[j + i];
            qq_lanes[i] += wq * q;
        }
    }
    *xq = sum_lanes(xq_lanes);
    *qq = sum_lanes(qq_lanes);
}

// What the error falls by: Σ w x² − error = (Σ w x q)² / Σ w q².
static float
gain_of(float xq, float qq)
{
    return qq > 0 ? xq * xq / qq : 0;
}

// The scale with the least weighted error: a grid around what maps the largest value to the end of the range, each
// refitted to its codes by least squares, the best refitted once more.
static float
search_scale(const float *x, const float *w, uint32_t n, unsigned bits, bool hasty)
{
    float high = (float)((1 << (bits - 1)) - 1), low = -high - 1;
    float largest = 0, best_gain = 0, best = 0, xq, qq;
    // Few bits gain from clipping the largest value; eight bits hardly do.
    float from = bits >= 8 ? 0.96f : 0.62f, to = bits >= 8 ? 1.02f : 1.16f;

    for (uint32_t j = 0; j < n; j++) {
        if (fabsf(x[j]) > fabsf(largest)) {
            largest = x[j];
        }
    }
    if (largest == 0) {
        return 0;
    }
    if (hasty) {
        return largest / low;
    }
    for (int i = 0; i < CANDIDATES; i++) {
        float part = from + (to - from) * (float)i / (CANDIDATES - 1);
        float scale = largest / (low * part), gain;

        moments(x, w, n, 1 / scale, low, high, &xq, &qq);
        gain = gain_of(xq, qq);
        if (gain > best_gain) {
            best_gain = gain;
            best = xq / qq;
        }
    }
    if (best == 0) { // all weighted columns are zero: any scale that reaches the largest value
        return largest / low;
    }
    moments(x, w, n, 1 / best, low, high, &xq, &qq);
    return gain_of(xq, qq) >= best_gain ? xq / qq : best;
}

static void
encode(const float *x, uint32_t n, float scale, unsigned bits, uint8_t *codes)
{
    int high = (1 << (bits - 1)) - 1, low = -high - 1;
    float inverse = scale != 0 ? 1 / scale : 0;

    for (uint32_t j = 0; j < n; j++) {
        float scaled = x[j] * inverse;
        float clipped = scaled < (float)low ? (float)low : scaled > (float)high ? (float)high : scaled;

        codes[j] = (uint8_t)((int)nearest(clipped) - low);
    }
}

// fp16 of the scale, kept away from infinity; a scale too small for fp16 becomes zero, and so do its weights.
static uint16_t
scale_bits(float scale)
{
    float limited = scale > 65504.0f ? 65504.0f : scale < -65504.0f ? -65504.0f : scale;

    return bt_f32_to_f16(limited);
}

static void
quantise_row(const bt_search *s, const float *x, const float *w, uint8_t *codes, uint16_t *scales)
{
    uint32_t padded = bt_cols_padded(s->cols), width = s->format.block != BT_BLOCK_ROW ? s->format.block : padded;

    for (uint32_t at = 0, block = 0; at < padded; at += width, block++) {
        uint32_t n = padded - at < width ? padded - at : width;

        scales[block] = scale_bits(search_scale(x + at, w + at, n, s->format.bits, s->hasty));
        encode(x + at, n, bt_f16_to_f32(scales[block]), s->format.bits, codes + at);
    }
}

static float
value_of(const bt_search *s, const uint8_t *codes, const uint16_t *scales, uint32_t col)
{
    uint32_t block = s->format.block != BT_BLOCK_ROW ? col / s->format.block : 0;

    return bt_f16_to_f32(scales[block]) * (float)((int)codes[col] - (1 << (s->format.bits - 1)));
}

static uint32_t
float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    return bits;
}

// The bit pattern of the count-th largest of n non-negative floats: their bits order as they do.
static uint32_t
nth_largest_bits(const float *values, size_t n, size_t count)
{
    uint32_t found = 0;

    for (int bit = 30; bit >= 0; bit--) {
        uint32_t candidate = found | 1u << bit;
        size_t above = 0;

        for (size_t i = 0; i < n; i++) {
            above += float_bits(values[i]) >= candidate;
        }
        if (above >= count) {
            found = candidate;
        }
    }
    return found;
}

size_t
bt_search_outliers_max(const bt_search *search)
{
    return (size_t)((double)search->outlier_share * BT_SEARCH_ROWS * search->cols);
}

size_t
bt_search_outliers_of_row(const bt_search *search)
{
    return (size_t)ceil((double)search->outlier_share * BT_SEARCH_CROWDED * search->cols);
}

typedef struct {
    float *x, *w, *scores; // [64, padded], [padded], [64 · cols]
} buffers;

static void
copy_rows(const bt_search *s, const float *x, uint32_t rows, size_t stride, buffers *work)
{
    uint32_t padded = bt_cols_padded(s->cols);
    float largest = 0;

    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < s->cols; j++) {
            float value = x[r * stride + j];

            work->x[(size_t)r * padded + j] = isfinite(value) ? value : 0;
        }
    }
    for (uint32_t j = 0; j < s->cols; j++) {
        float value = s->importance != NULL ? s->importance[j] : 1;

        work->w[j] = value > 0 && isfinite(value) ? value : 0;
        largest = work->w[j] > largest ? work->w[j] : largest;
    }
    // No column is worth nothing: calibration text is short, and dead columns wake up.
    for (uint32_t j = 0; j < s->cols; j++) {
        work->w[j] = largest > 0 ? work->w[j] / largest + 1e-4f : 1;
    }
}

// Scores of a row beyond the `most` largest become 0; of those that equal the last of these, the later ones.
static void
keep_largest(float *scores, uint32_t cols, size_t most)
{
    uint32_t least = nth_largest_bits(scores, cols, most);
    size_t equal = most;

    for (uint32_t j = 0; j < cols; j++) {
        equal -= float_bits(scores[j]) > least;
    }
    for (uint32_t j = 0; j < cols; j++) {
        uint32_t bits = float_bits(scores[j]);

        if (bits < least || (bits == least && equal == 0)) {
            scores[j] = 0;
        } else if (bits == least) {
            equal--;
        }
    }
}

// Rows with their outliers set aside: the others get scales of their own, outliers what is then left of them.
static size_t
pick_outliers(const bt_search *s, uint32_t rows, const buffers *work, uint8_t *codes, uint16_t *scales,
              bt_outlier *outliers)
{
    uint32_t padded = bt_cols_padded(s->cols), blocks = bt_format_blocks(s->format, s->cols);
    size_t n = (size_t)rows * s->cols, want = (size_t)((double)s->outlier_share * (double)n), used = 0;
    size_t most = bt_search_outliers_of_row(s);
    uint32_t least;

    if (want == 0) {
        return 0;
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < s->cols; j++) {
            float error =
                work->x[(size_t)r * padded + j] - value_of(s, codes + (size_t)r * padded, scales + r * blocks, j);

            work->scores[(size_t)r * s->cols + j] = work->w[j] * error * error;
        }
        if (most < s->cols) {
            keep_largest(work->scores + (size_t)r * s->cols, s->cols, most);
        }
    }
    least = nth_largest_bits(work->scores, n, want);
    for (uint32_t r = 0; r < rows && used < want; r++) {
        for (uint32_t j = 0; j < s->cols && used < want; j++) {
            float score = work->scores[(size_t)r * s->cols + j];

            if (float_bits(score) >= least && score > 0) {
                outliers[used++] = (bt_outlier){.row = (uint16_t)r, .col = j};
            }
        }
    }
    return used;
}

static void
requantise_without(const bt_search *s, uint32_t rows, const buffers *work, bt_outlier *outliers, size_t count,
                   uint8_t *codes, uint16_t *scales)
{
    uint32_t padded = bt_cols_padded(s->cols), blocks = bt_format_blocks(s->format, s->cols);

    for (size_t i = 0; i < count; i++) {
        size_t at = (size_t)outliers[i].row * padded + outliers[i].col;

        work->scores[i] = work->x[at];
        work->x[at] = 0;
    }
    for (uint32_t r = 0; r < rows; r++) {
        quantise_row(s, work->x + (size_t)r * padded, work->w, codes + (size_t)r * padded, scales + r * blocks);
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t r = outliers[i].row, col = outliers[i].col;
        uint32_t block = s->format.block != BT_BLOCK_ROW ? col / s->format.block : 0;
        float whole = work->scores[i];

        encode(&whole, 1, bt_f16_to_f32(scales[r * blocks + block]), s->format.bits, codes + (size_t)r * padded + col);
        outliers[i].delta = scale_bits(whole - value_of(s, codes + (size_t)r * padded, scales + r * blocks, col));
    }
}

bt_err
bt_search_rows(const bt_search *s, const float *x, uint32_t rows, size_t stride, uint8_t *codes, uint16_t *scales,
               bt_outlier *outliers, size_t *outlier_count)
{
    uint32_t padded = bt_cols_padded(s->cols), blocks = bt_format_blocks(s->format, s->cols);
    buffers work = {
        .x = bt_alloc_array(BT_SEARCH_ROWS * (size_t)padded, sizeof(float)),
        .w = bt_alloc_array(padded, sizeof(float)),
        .scores = bt_alloc_array(BT_SEARCH_ROWS * (size_t)s->cols + 1, sizeof(float)),
    };
    bt_err err = work.x != NULL && work.w != NULL && work.scores != NULL ? BT_OK : BT_ERR_NO_MEMORY;

    if (err == BT_OK) {
        size_t count;

        copy_rows(s, x, rows, stride, &work);
        for (uint32_t r = 0; r < rows; r++) {
            quantise_row(s, work.x + (size_t)r * padded, work.w, codes + (size_t)r * padded, scales + r * blocks);
        }
        count = pick_outliers(s, rows, &work, codes, scales, outliers);
        if (count != 0) {
            requantise_without(s, rows, &work, outliers, count, codes, scales);
        }
        *outlier_count = count;
    }
    bt_free(work.x);
    bt_free(work.w);
    bt_free(work.scores);
    return err;
}

void
bt_smoothing_factors(const float *amax_x, const float *amax_w, uint32_t cols, float *factors)
{
    double log_sum = 0;
    uint32_t used = 0;
    float mean;

    for (uint32_t j = 0; j < cols; j++) {
        factors[j] = amax_x[j] > 0 && amax_w[j] > 0 && isfinite(amax_x[j]) ? sqrtf(amax_x[j] / amax_w[j]) : 0;
        if (factors[j] > 0) {
            log_sum += log((double)factors[j]);
            used++;
        }
    }
    mean = used != 0 ? (float)exp(log_sum / used) : 1;
    for (uint32_t j = 0; j < cols; j++) {
        float factor = factors[j] > 0 ? factors[j] / mean : 1;

        factors[j] = factor < 0.0625f ? 0.0625f : factor > 16 ? 16 : factor;
    }
}
