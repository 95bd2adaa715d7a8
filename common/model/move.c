#include "common/model/move.h"

#include "common/base/mem.h"
#include "common/model/memory.h"
#include "common/model/requantise.h"

#include <stdatomic.h>
#include <string.h>

#define TILE 64u

static size_t
aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

// ---- everything that a model points to, by one walk ----

typedef struct {
    void (*weight)(void *arg, bt_weight *weight);
    void (*vector)(void *arg, void **vector, size_t bytes);
    void *arg;
} visitor;

static void
visit_layer(const visitor *v, const bt_model_config *c, bt_layer *l)
{
    bt_weight *weights[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    size_t q_norm = c->qk_norm_whole ? (size_t)c->heads * c->head_dim : c->head_dim;
    size_t k_norm = c->qk_norm_whole ? (size_t)c->kv_heads * c->head_dim : c->head_dim;
    struct {
        void **at;
        size_t bytes;
    } vectors[] = {
        {(void **)&l->q_bias, l->q.rows * sizeof(float)},
        {(void **)&l->k_bias, l->k.rows * sizeof(float)},
        {(void **)&l->v_bias, l->v.rows * sizeof(float)},
        {(void **)&l->o_bias, l->o.rows * sizeof(float)},
        {(void **)&l->attention_norm, c->hidden * sizeof(float)},
        {(void **)&l->attention_post_norm, c->hidden * sizeof(float)},
        {(void **)&l->ffn_norm, c->hidden * sizeof(float)},
        {(void **)&l->ffn_post_norm, c->hidden * sizeof(float)},
        {(void **)&l->q_norm, q_norm * sizeof(float)},
        {(void **)&l->k_norm, k_norm * sizeof(float)},
        {(void **)&l->k_shift, (size_t)c->kv_heads * c->head_dim / 2},
    };

    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        v->weight(v->arg, weights[i]);
    }
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        if (*vectors[i].at != NULL) {
            v->vector(v->arg, vectors[i].at, vectors[i].bytes);
        }
    }
}

static void
visit(const visitor *v, bt_model *model)
{
    bt_model_config *c = &model->config;

    v->weight(v->arg, &model->embed);
    if (model->head == &model->head_own) {
        v->weight(v->arg, &model->head_own);
    }
    v->vector(v->arg, (void **)&model->output_norm, c->hidden * sizeof(float));
    for (int i = 0; i < 2; i++) {
        if (c->ropes[i].inv_freq != NULL) {
            v->vector(v->arg, (void **)&c->ropes[i].inv_freq, c->rope_dims / 2 * sizeof(float));
        }
    }
    for (uint32_t i = 0; i < c->layers; i++) {
        visit_layer(v, c, &model->layers[i]);
    }
}

static uint32_t
outlier_count(const bt_weight *w)
{
    return w->outliers.row_start != NULL ? w->outliers.row_start[w->rows] : 0;
}

static size_t
bytes_of_outliers(uint32_t rows, size_t n)
{
    return aligned(((size_t)rows + 1) * 4) + aligned(n * 4) + aligned(n * sizeof(uint16_t));
}

static size_t
outlier_bytes(const bt_weight *w)
{
    return w->outliers.row_start == NULL ? 0 : bytes_of_outliers(w->rows, outlier_count(w));
}

// ---- counting ----

typedef struct {
    const bt_ops *ops;
    size_t bytes, largest;
} count;

static void
count_weight(void *arg, bt_weight *w)
{
    count *c = arg;
    size_t bytes = c->ops->weight_bytes(w->format, w->rows, w->cols);

    c->bytes += aligned(bytes) + outlier_bytes(w);
    c->largest = bytes > c->largest ? bytes : c->largest;
}

static void
count_vector(void *arg, void **vector, size_t bytes)
{
    count *c = arg;

    (void)vector;
    c->bytes += aligned(bytes);
}

bt_move_sizes
bt_model_move_sizes(const bt_plan *plan, const bt_model *model, const bt_model_options *options, const bt_ops *ops)
{
    const bt_model_config *c = &model->config;
    bt_move_sizes s = {0};

    for (uint32_t i = 0; i < plan->weight_count; i++) {
        const bt_weight *w = plan->weights[i].weight;

        s.weights += aligned(ops->weight_bytes(w->format, w->rows, w->cols));
        if (options->weights == BT_LOAD_Q4) {
            size_t n = bt_requantise_outliers_max(model, w);

            s.outliers += n != 0 ? bytes_of_outliers(w->rows, n) : 0;
        }
    }
    for (uint32_t i = 0; i < plan->vector_count; i++) {
        s.vectors += aligned(plan->vectors[i].count * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        s.vectors += c->ropes[i].inv_freq != NULL ? aligned(c->rope_dims / 2 * sizeof(float)) : 0;
    }
    s.vectors += options->equalise ? c->layers * aligned((size_t)c->kv_heads * c->head_dim / 2) : 0;
    return s;
}

// ---- moving ----

typedef struct {
    bt_device *host, *device;
    const bt_ops *from, *to;
    uint8_t *memory, *staging; // the device's; the host's
    bt_err err;
} moving;

typedef struct {
    const moving *m;
    const bt_weight *old;
    bt_weight new; // data = staging
    _Atomic uint32_t next;
    atomic_bool failed;
} repack;

static void
repack_codes(const repack *r, uint32_t first, uint32_t rows, uint8_t *scratch)
{
    const bt_weight *w = r->old;
    uint32_t padded = bt_cols_padded(w->cols), blocks = bt_format_blocks(w->format, w->cols);
    uint8_t *codes = scratch;
    uint16_t *scales = (uint16_t *)(void *)(codes + (size_t)TILE * padded), *minima = scales + (size_t)TILE * blocks;
    bt_code_rows out = {rows, w->cols, codes, scales, w->format.asymmetric ? minima : NULL};

    for (uint32_t i = 0; i < rows; i++) {
        r->m->from->weight_row(w, first + i, codes + (size_t)i * padded, scales + (size_t)i * blocks,
                               minima + (size_t)i * blocks);
    }
    r->m->to->weight_pack(&r->new, first, &out);
}

// Float formats go through f32, which holds all of them exactly.
static void
repack_floats(const repack *r, uint32_t first, uint32_t rows, uint8_t *scratch)
{
    float *floats = (float *)(void *)scratch;

    for (uint32_t i = 0; i < rows; i++) {
        r->m->from->weight_row_floats(r->old, first + i, floats + (size_t)i * r->old->cols);
    }
    r->m->to->weight_pack_f32(&r->new, first, rows, floats, r->old->cols);
}

static void
repack_thread(void *arg, uint32_t thread, uint32_t threads)
{
    repack *r = arg;
    uint32_t padded = bt_cols_padded(r->old->cols), tile;
    uint8_t *scratch = bt_alloc((size_t)TILE * padded * sizeof(float) + TILE * 64);

    (void)thread;
    (void)threads;
    if (scratch == NULL) {
        atomic_store(&r->failed, true);
        return;
    }
    while ((tile = atomic_fetch_add(&r->next, 1)) < (r->old->rows + TILE - 1) / TILE) {
        uint32_t first = tile * TILE, rows = r->old->rows - first < TILE ? r->old->rows - first : TILE;

        (r->old->format.kind == BT_WEIGHT_INT ? repack_codes : repack_floats)(r, first, rows, scratch);
    }
    bt_free(scratch);
}

static void *
put(moving *m, const void *from, size_t bytes)
{
    uint8_t *to = m->memory;

    m->memory += aligned(bytes);
    if (m->err == BT_OK) {
        m->err = bt_device_write(m->device, to, from, bytes);
    }
    return to;
}

static void
move_weight(void *arg, bt_weight *w)
{
    moving *m = arg;
    repack r = {.m = m, .old = w, .new = *w};
    bt_outliers o = w->outliers;

    r.new.data = m->staging;
    r.new.bytes = m->to->weight_bytes(w->format, w->rows, w->cols);
    memset(m->staging, 0, r.new.bytes);
    bt_device_parallel(m->host, repack_thread, &r);
    if (atomic_load(&r.failed) && m->err == BT_OK) {
        m->err = BT_ERR_NO_MEMORY;
    }
    r.new.data = put(m, m->staging, r.new.bytes);
    if (o.row_start != NULL) {
        uint32_t n = outlier_count(w);

        r.new.outliers.row_start = put(m, o.row_start, ((size_t)w->rows + 1) * 4);
        r.new.outliers.cols = put(m, o.cols, (size_t)n * 4);
        r.new.outliers.deltas = put(m, o.deltas, (size_t)n * sizeof(uint16_t));
    }
    *w = r.new;
}

static void
move_vector(void *arg, void **vector, size_t bytes)
{
    *vector = put(arg, *vector, bytes);
}

bt_err
bt_model_move(bt_model *model, bt_device *host, bt_device *device, bt_why *why)
{
    struct bt_model_memory *memory = model->memory;
    count total = {.ops = bt_device_ops(device)};
    moving m = {.host = host, .device = device, .from = bt_device_ops(host), .to = bt_device_ops(device)};
    uint8_t *base;

    visit(&(visitor){count_weight, count_vector, &total}, model);
    base = bt_device_alloc(device, total.bytes);
    m.staging = bt_alloc_pages(total.largest);
    if (base == NULL || m.staging == NULL) {
        bt_device_free(device, base, total.bytes);
        bt_free_pages(m.staging, total.largest);
        return bt_fail(why, BT_ERR_NO_MEMORY,
                       "%s: the weights need %.1f MiB there, where %.1f MiB are free, and %.1f MiB here on their way",
                       bt_device_isa(device), (double)total.bytes / 0x1p20,
                       (double)bt_device_available(device) / 0x1p20, (double)total.largest / 0x1p20);
    }
    m.memory = base;
    visit(&(visitor){move_weight, move_vector, &m}, model);
    bt_free_pages(m.staging, total.largest);
    bt_free_pages(memory->pages, memory->bytes);
    memory->pages = NULL;
    memory->bytes = 0;
    memory->device = device;
    memory->on_device = base;
    memory->on_device_bytes = model->weight_bytes = total.bytes;
    return m.err == BT_OK ? BT_OK
                          : bt_fail(why, m.err, "%s: the weights could not be copied there (%s)", bt_device_isa(device),
                                    bt_err_name(m.err));
}
