#include "common/model/requantise.h"

#include "common/base/mem.h"
#include "common/quant/search.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef enum { SMOOTH_NONE, SMOOTH_QKV, SMOOTH_GATE_UP, SMOOTH_DOWN, SMOOTH_O } smoothing;

// One weight's way: columns times `col_factors`, rows divided by `row_factors`, then the search.
typedef struct {
    bt_search search;
    const float *col_factors, *row_factors; // NULL = 1
    float *importance;                      // [cols] E[x²] after smoothing; NULL = all alike
    bt_outlier *outliers;                   // [tiles, per_tile]
    uint32_t *outlier_counts;               // [tiles]
    size_t per_tile;
    struct bt_requantise *owner;
} way;

struct bt_requantise {
    bt_plan *plan;
    bt_model *model;
    const bt_model_options *options;
    bt_arena arena;
    way *ways;              // [plan->weight_count]
    float **norm_factors;   // [2 · layers]: of attention_norm and ffn_norm, NULL = none
    float **v_factors;      // [layers]: of V's rows, NULL = none
    _Atomic bool no_memory; // a thread of the packer ran out
};

// Where a weight stands: its layer (−1: embedding or head), what it reads, and how its input is smoothed.
typedef struct {
    int layer;
    const bt_column_stats *input;
    smoothing smooth;
    const bt_weight *feeds; // whose input this weight's rows scale: down for up, o for v
} place;

static place
place_of(const bt_requantise *r, const bt_weight *weight)
{
    const bt_calibration *c = r->options->calibration;

    for (uint32_t i = 0; i < r->model->config.layers; i++) {
        const bt_layer *l = &r->model->layers[i];
        const bt_layer_calibration *lc = &c->layers[i];

        if (weight == &l->q || weight == &l->k || weight == &l->v) {
            return (place){(int)i, &lc->qkv, SMOOTH_QKV, weight == &l->v ? &l->o : NULL};
        }
        if (weight == &l->gate || weight == &l->up) {
            return (place){(int)i, &lc->gate_up, SMOOTH_GATE_UP, weight == &l->up ? &l->down : NULL};
        }
        if (weight == &l->down) {
            return (place){(int)i, &lc->down, SMOOTH_DOWN, NULL};
        }
        if (weight == &l->o) {
            return (place){(int)i, &lc->o, SMOOTH_O, NULL};
        }
    }
    return (place){-1, &c->head, SMOOTH_NONE, NULL};
}

static bt_err
out_of_memory(const bt_requantise *r, bt_why *why)
{
    return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory while quantising", r->options->path);
}

// Largest |w| of each column over all parts that read one input, on all threads.
typedef struct {
    const bt_weight_job *const *jobs;
    uint32_t job_count, cols;
    float *amax; // [threads, cols]
    _Atomic bool no_memory;
} column_scan;

static void
scan_thread(void *arg, uint32_t thread, uint32_t threads)
{
    column_scan *scan = arg;
    float *row = bt_alloc_array(scan->cols, sizeof *row), *amax = scan->amax + (size_t)thread * scan->cols;

    if (row == NULL) {
        atomic_store(&scan->no_memory, true);
        return;
    }
    for (uint32_t j = 0; j < scan->job_count; j++) {
        for (uint32_t r = thread; r < scan->jobs[j]->weight->rows; r += threads) {
            bt_weight_job_floats(scan->jobs[j], r, 1, row, scan->cols);
            for (uint32_t i = 0; i < scan->cols; i++) {
                amax[i] = fabsf(row[i]) > amax[i] ? fabsf(row[i]) : amax[i];
            }
        }
    }
    bt_free(row);
}

// All heads of a group read one V: their columns share the largest figure.
static void
share_in_groups(const bt_model_config *config, float *columns)
{
    uint32_t group = config->heads / config->kv_heads, dim = config->head_dim;

    for (uint32_t first = 0; first < config->heads; first += group) {
        for (uint32_t d = 0; d < dim; d++) {
            float most = 0;

            for (uint32_t h = first; h < first + group; h++) {
                most = columns[h * dim + d] > most ? columns[h * dim + d] : most;
            }
            for (uint32_t h = first; h < first + group; h++) {
                columns[h * dim + d] = most;
            }
        }
    }
}

// How large a column is for smoothing: between its largest value and its root mean square, since a few tokens at the
// beginning of a text are many times larger than all others (measured: README).
static float *
column_sizes(bt_requantise *r, const bt_column_stats *input)
{
    float *sizes = bt_arena_alloc(&r->arena, input->cols * sizeof *sizes);

    for (uint32_t i = 0; sizes != NULL && i < input->cols; i++) {
        sizes[i] = sqrtf(sqrtf(input->moment[i]) * input->amax[i]);
    }
    return sizes;
}

// The factors of one input, from `input` and the weights that read it. They live in the arena.
static float *
smoothing_factors(bt_requantise *r, bt_device *device, const bt_column_stats *input, bool in_groups,
                  const bt_weight_job *const *jobs, uint32_t job_count)
{
    float *sizes = column_sizes(r, input);
    uint32_t threads = bt_device_threads(device), cols = input->cols;
    column_scan scan = {jobs, job_count, cols, bt_alloc_array((size_t)threads * cols, sizeof(float)), false};
    float *factors = bt_arena_alloc(&r->arena, cols * sizeof *factors);

    if (scan.amax != NULL && factors != NULL && sizes != NULL) {
        bt_device_parallel(device, scan_thread, &scan);
        for (uint32_t t = 1; t < threads; t++) {
            for (uint32_t i = 0; i < cols; i++) {
                float other = scan.amax[(size_t)t * cols + i];

                scan.amax[i] = other > scan.amax[i] ? other : scan.amax[i];
            }
        }
        if (in_groups) {
            share_in_groups(&r->model->config, sizes);
            share_in_groups(&r->model->config, scan.amax);
        }
        bt_smoothing_factors(sizes, scan.amax, cols, factors);
    }
    if (scan.amax == NULL || sizes == NULL || scan.no_memory) {
        factors = NULL;
    }
    bt_free(scan.amax);
    return factors;
}

static bool
smooths(const bt_requantise *r, const place *at)
{
    const bt_layer *layer;

    if (r->options->rough || at->layer < 0) {
        return false;
    }
    if (at->smooth ==
        SMOOTH_O) { // in both formats, so that nodes which hold one or the other agree about V in the cache
        return true;
    }
    if (r->options->weights != BT_LOAD_W8) {
        return false;
    }
    layer = &r->model->layers[at->layer];
    return (at->smooth == SMOOTH_QKV && layer->attention_norm != NULL) ||
           (at->smooth == SMOOTH_GATE_UP && layer->ffn_norm != NULL) || at->smooth == SMOOTH_DOWN;
}

// The rows of the weight that feeds `weight` are divided by its column factors: x is act(gate) · up for down, and a mean of
// V rows for o.
static bt_err
divide_rows(bt_requantise *r, const bt_weight *weight, const place *at, float *factors, bt_why *why)
{
    const bt_model_config *config = &r->model->config;
    uint32_t dim = config->head_dim, group = config->heads / config->kv_heads;
    float *rows = factors;

    if (at->smooth == SMOOTH_O) {
        if ((rows = bt_arena_alloc(&r->arena, config->kv_heads * dim * sizeof *rows)) == NULL) {
            return out_of_memory(r, why);
        }
        for (uint32_t i = 0; i < config->kv_heads * dim; i++) {
            rows[i] = factors[i / dim * group * dim + i % dim];
        }
        r->v_factors[at->layer] = rows;
    }
    for (uint32_t i = 0; i < r->plan->weight_count; i++) {
        if (place_of(r, r->plan->weights[i].weight).feeds == weight) {
            r->ways[i].row_factors = rows;
        }
    }
    return BT_OK;
}

// Parts that read one input lie next to each other in the plan, and share its factors.
static bt_err
smooth_input(bt_requantise *r, bt_device *device, uint32_t first, uint32_t count, bt_why *why)
{
    const bt_weight_job *jobs[3];
    place at = place_of(r, r->plan->weights[first].weight);
    float *factors;

    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = &r->plan->weights[first + i];
    }
    if ((factors = smoothing_factors(r, device, at.input, at.smooth == SMOOTH_O, jobs, count)) == NULL) {
        return out_of_memory(r, why);
    }
    for (uint32_t i = 0; i < count; i++) {
        r->ways[first + i].col_factors = factors;
    }
    if (at.smooth == SMOOTH_DOWN || at.smooth == SMOOTH_O) {
        return divide_rows(r, jobs[0]->weight, &at, factors, why);
    }
    r->norm_factors[2 * at.layer + (at.smooth == SMOOTH_GATE_UP)] = factors;
    return BT_OK;
}

static uint32_t
same_input_end(const bt_requantise *r, uint32_t first)
{
    uint32_t end = first + 1;
    const bt_weight_job *jobs = r->plan->weights;

    while (end < r->plan->weight_count && jobs[first].call != 0 && jobs[end].call == jobs[first].call) {
        end++;
    }
    return end;
}

// DESIGN 6: the first and the last eighth of the layers keep more.
static float
outlier_share(const bt_model *model, int layer)
{
    int layers = (int)model->config.layers, end = layers / 8 > 0 ? layers / 8 : 1;

    return layer < end ? 0.0005f : layer >= layers - end ? 0.002f : 0.001f;
}

static bool
is_of(const bt_layer *l, const bt_weight *w)
{
    return w == &l->q || w == &l->k || w == &l->v || w == &l->o || w == &l->gate || w == &l->up || w == &l->down;
}

size_t
bt_requantise_outliers_max(const bt_model *model, const bt_weight *weight)
{
    bt_search search = {.format = weight->format, .cols = weight->cols};
    uint32_t layer = 0;

    if (weight->format.kind != BT_WEIGHT_INT || weight->format.bits != 4) {
        return 0;
    }
    while (layer < model->config.layers && !is_of(&model->layers[layer], weight)) {
        layer++;
    }
    search.outlier_share = outlier_share(model, (int)layer);
    return (size_t)((weight->rows + BT_SEARCH_ROWS - 1) / BT_SEARCH_ROWS) * bt_search_outliers_max(&search);
}

static void
produce(const bt_weight_job *job, uint32_t first, uint32_t rows, uint8_t *codes, uint16_t *scales, uint16_t *minima)
{
    way *w = job->produce_arg;
    uint32_t cols = job->weight->cols, tile = first / BT_SEARCH_ROWS;
    float *x = bt_alloc_array((size_t)rows * cols, sizeof *x);
    size_t count = 0;

    (void)minima;
    if (x == NULL) {
        atomic_store(&w->owner->no_memory, true);
        return;
    }
    bt_weight_job_floats(job, first, rows, x, cols);
    for (uint32_t r = 0; r < rows; r++) {
        float by = w->row_factors != NULL ? 1 / w->row_factors[first + r] : 1;

        for (uint32_t j = 0; j < cols; j++) {
            x[(size_t)r * cols + j] *= w->col_factors != NULL ? w->col_factors[j] * by : by;
        }
    }
    if (bt_search_rows(&w->search, x, rows, cols, codes, scales,
                       w->outliers != NULL ? w->outliers + tile * w->per_tile : NULL, &count) != BT_OK) {
        atomic_store(&w->owner->no_memory, true);
    }
    if (w->outlier_counts != NULL) {
        w->outlier_counts[tile] = (uint32_t)count;
    }
    bt_free(x);
}

static bt_err
set_way(bt_requantise *r, uint32_t index, bt_why *why)
{
    bt_weight_job *job = &r->plan->weights[index];
    place at = place_of(r, job->weight);
    way *w = &r->ways[index];
    uint32_t tiles = (job->weight->rows + BT_SEARCH_ROWS - 1) / BT_SEARCH_ROWS, cols = job->weight->cols;

    w->owner = r;
    w->search = (bt_search){.format = job->weight->format, .cols = cols, .hasty = r->options->hasty};
    if (at.input->moment != NULL) {
        if ((w->importance = bt_arena_alloc(&r->arena, cols * sizeof(float))) == NULL) {
            return out_of_memory(r, why);
        }
        for (uint32_t j = 0; j < cols; j++) {
            float by = w->col_factors != NULL ? w->col_factors[j] : 1;

            w->importance[j] = at.input->moment[j] / (by * by);
        }
        w->search.importance = w->importance;
    }
    if (job->weight->format.bits == 4) {
        w->search.outlier_share = outlier_share(r->model, at.layer);
        w->per_tile = bt_search_outliers_max(&w->search);
        w->outliers = bt_arena_alloc(&r->arena, (tiles * w->per_tile + 1) * sizeof *w->outliers);
        w->outlier_counts = bt_arena_alloc(&r->arena, tiles * sizeof *w->outlier_counts);
        if (w->outliers == NULL || w->outlier_counts == NULL) {
            return out_of_memory(r, why);
        }
    }
    job->produce = produce;
    job->produce_arg = w;
    return BT_OK;
}

static bt_err
plan_ways(bt_requantise *r, bt_device *device, bt_why *why)
{
    bt_err err = BT_OK;

    r->ways = bt_arena_alloc(&r->arena, r->plan->weight_count * sizeof *r->ways);
    r->norm_factors = bt_arena_alloc(&r->arena, 2 * r->model->config.layers * sizeof *r->norm_factors);
    r->v_factors = bt_arena_alloc(&r->arena, r->model->config.layers * sizeof *r->v_factors);
    if (r->ways == NULL || r->norm_factors == NULL || r->v_factors == NULL) {
        return out_of_memory(r, why);
    }
    for (uint32_t i = 0, end; i < r->plan->weight_count && err == BT_OK; i = end) {
        place at = place_of(r, r->plan->weights[i].weight);

        end = same_input_end(r, i);
        if (smooths(r, &at)) {
            err = smooth_input(r, device, i, end - i, why);
        }
    }
    for (uint32_t i = 0; i < r->plan->weight_count && err == BT_OK; i++) {
        err = set_way(r, i, why);
    }
    return err;
}

bt_err
bt_requantise_open(bt_requantise **out, bt_plan *plan, bt_model *model, const bt_model_options *options,
                   bt_device *device, bt_why *why)
{
    bt_requantise *r;
    bt_err err;

    if (options->calibration == NULL || options->calibration->layer_count != model->config.layers) {
        return bt_fail(why, BT_ERR_INVALID, "%s: weights are made at load from a calibration of this model",
                       options->path);
    }
    if ((r = bt_alloc(sizeof *r)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory while quantising", options->path);
    }
    r->plan = plan;
    r->model = model;
    r->options = options;
    bt_arena_init(&r->arena, SIZE_MAX / 2);
    if ((err = plan_ways(r, device, why)) != BT_OK) {
        bt_requantise_close(r);
        return err;
    }
    *out = r;
    return BT_OK;
}

static bt_err
give_outliers(bt_requantise *r, const bt_weight_job *job, bt_arena *arena, bt_why *why)
{
    const way *w = job->produce_arg;
    uint32_t rows = job->weight->rows, tiles = (rows + BT_SEARCH_ROWS - 1) / BT_SEARCH_ROWS, total = 0, used = 0;
    bt_outliers *out = &job->weight->outliers;

    for (uint32_t t = 0; t < tiles; t++) {
        total += w->outlier_counts[t];
    }
    out->row_start = bt_arena_alloc(arena, (rows + 1) * sizeof *out->row_start);
    out->cols = bt_arena_alloc(arena, (total + 1) * sizeof *out->cols);
    out->deltas = bt_arena_alloc(arena, (total + 1) * sizeof *out->deltas);
    if (out->row_start == NULL || out->cols == NULL || out->deltas == NULL) {
        *out = (bt_outliers){0};
        return out_of_memory(r, why);
    }
    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t rows_here = rows - t * BT_SEARCH_ROWS < BT_SEARCH_ROWS ? rows - t * BT_SEARCH_ROWS : BT_SEARCH_ROWS;
        const bt_outlier *at = w->outliers + t * w->per_tile, *end = at + w->outlier_counts[t];

        for (uint32_t i = 0; i < rows_here; i++) {
            out->row_start[t * BT_SEARCH_ROWS + i] = used;
            for (; at < end && at->row == i; at++, used++) {
                out->cols[used] = at->col;
                out->deltas[used] = at->delta;
            }
        }
    }
    out->row_start[rows] = used;
    return BT_OK;
}

static void
fold(float *norm, const float *factors, uint32_t count)
{
    for (uint32_t i = 0; factors != NULL && i < count; i++) {
        norm[i] /= factors[i];
    }
}

bt_err
bt_requantise_finish(bt_requantise *r, bt_arena *arena, bt_why *why)
{
    bt_err err = BT_OK;

    if (atomic_load(&r->no_memory)) {
        return out_of_memory(r, why);
    }
    for (uint32_t i = 0; i < r->plan->weight_count && err == BT_OK; i++) {
        if (((const way *)r->plan->weights[i].produce_arg)->outliers != NULL) {
            err = give_outliers(r, &r->plan->weights[i], arena, why);
        }
    }
    for (uint32_t i = 0; i < r->model->config.layers && err == BT_OK; i++) {
        fold(r->model->layers[i].attention_norm, r->norm_factors[2 * i], r->model->config.hidden);
        fold(r->model->layers[i].ffn_norm, r->norm_factors[2 * i + 1], r->model->config.hidden);
        if (r->model->layers[i].v_bias != NULL) {
            fold(r->model->layers[i].v_bias, r->v_factors[i], r->model->config.kv_heads * r->model->config.head_dim);
        }
    }
    return err;
}

void
bt_requantise_close(bt_requantise *r)
{
    if (r != NULL) {
        bt_arena_fini(&r->arena);
        bt_free(r);
    }
}
