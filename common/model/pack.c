#include "common/model/pack.h"

#include <stdatomic.h>

#define TILE 64u // rows that a packer takes as a unit

// One thread's rows on their way from the file's form to the device's.
typedef struct {
    uint8_t *codes;
    uint16_t *scales, *minima;
    float *floats;
} buffer;

typedef struct {
    const bt_plan *plan;
    bt_device *device;
    const bt_ops *ops;
    buffer *buffers;     // [threads]
    uint32_t *tiles_end; // [weights]: tiles of this and all weights before it
    _Atomic uint32_t next;
    _Atomic size_t bytes_done;
    size_t bytes_total;
    void (*progress)(void *arg, size_t bytes_done, size_t bytes_total);
    void *progress_arg;
} packing;

static size_t
aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

size_t
bt_pack_bytes(const bt_plan *plan, const bt_ops *ops)
{
    size_t total = 0;

    for (uint32_t i = 0; i < plan->weight_count; i++) {
        const bt_weight *weight = plan->weights[i].weight;

        total += aligned(ops->weight_bytes(weight->format, weight->rows, weight->cols));
    }
    for (uint32_t i = 0; i < plan->vector_count; i++) {
        total += aligned(plan->vectors[i].count * sizeof(float));
    }
    return total;
}

static void
place(const bt_plan *plan, const bt_ops *ops, uint8_t *memory)
{
    for (uint32_t i = 0; i < plan->weight_count; i++) {
        bt_weight *weight = plan->weights[i].weight;

        weight->bytes = ops->weight_bytes(weight->format, weight->rows, weight->cols);
        weight->data = memory;
        memory += aligned(weight->bytes);
    }
    for (uint32_t i = 0; i < plan->vector_count; i++) {
        *plan->vectors[i].out = (float *)(void *)memory;
        memory += aligned(plan->vectors[i].count * sizeof(float));
    }
}

static void
fill_vector(const bt_vector_job *job, float *scratch)
{
    uint32_t half = job->rope_dims / 2;

    bt_ggml_dequantise(job->tensor.type, job->tensor.data, job->count, scratch);
    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t within = half != 0 ? i % job->head_dim : 0;
        bool moved = half != 0 && within < job->rope_dims;

        (*job->out)[i] = scratch[moved ? i - within + 2 * (within % half) + within / half : i] + job->add;
    }
}

static void
pack_codes(const packing *p, const bt_weight_job *job, uint32_t first, uint32_t rows, const buffer *b)
{
    const bt_weight *weight = job->weight;
    uint32_t padded = bt_cols_padded(weight->cols), blocks = bt_format_blocks(weight->format, weight->cols);
    bt_code_rows out = {rows, weight->cols, b->codes, b->scales, weight->format.asymmetric ? b->minima : NULL};

    if (job->produce != NULL) {
        job->produce(job, first, rows, b->codes, b->scales, b->minima);
    } else {
        size_t row_bytes = bt_ggml_row_bytes(job->tensor.type, weight->cols);

        for (uint32_t i = 0; i < rows; i++) {
            bt_ggml_codes(job->tensor.type, job->tensor.data + bt_weight_job_row(job, first + i) * row_bytes,
                          weight->cols, b->codes + (size_t)i * padded, b->scales + (size_t)i * blocks,
                          b->minima + (size_t)i * blocks);
        }
    }
    p->ops->weight_pack(weight, first, &out);
}

// Rows go through a buffer, since in the file they may be out of order and at odd addresses.
static void
pack_floats(const packing *p, const bt_weight_job *job, uint32_t first, uint32_t rows, const buffer *b)
{
    const bt_weight *weight = job->weight;
    size_t row_bytes = bt_ggml_row_bytes(job->tensor.type, weight->cols);

    if (weight->format.kind == BT_WEIGHT_F32) {
        bt_weight_job_floats(job, first, rows, b->floats, weight->cols);
    } else {
        for (uint32_t i = 0; i < rows; i++) {
            memcpy((uint8_t *)b->floats + i * row_bytes,
                   job->tensor.data + bt_weight_job_row(job, first + i) * row_bytes, row_bytes);
        }
    }
    p->ops->weight_pack_floats(weight, first, rows, b->floats, weight->cols);
}

static void
pack_tile(packing *p, const bt_weight_job *job, uint32_t tile, const buffer *b)
{
    uint32_t first = tile * TILE, rows = job->weight->rows - first < TILE ? job->weight->rows - first : TILE;

    if (job->weight->format.kind == BT_WEIGHT_INT) {
        pack_codes(p, job, first, rows, b);
    } else {
        pack_floats(p, job, first, rows, b);
    }
    atomic_fetch_add_explicit(&p->bytes_done, rows * bt_ggml_row_bytes(job->tensor.type, job->weight->cols),
                              memory_order_relaxed);
}

static void
pack_thread(void *arg, uint32_t thread, uint32_t threads)
{
    packing *p = arg;
    uint32_t weight = 0, tile, count = p->plan->weight_count;

    (void)threads;
    while ((tile = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->tiles_end[count - 1]) {
        while (tile >= p->tiles_end[weight]) {
            weight++;
        }
        pack_tile(p, &p->plan->weights[weight], weight == 0 ? tile : tile - p->tiles_end[weight - 1],
                  &p->buffers[thread]);
        if (thread == 0 && p->progress != NULL) {
            p->progress(p->progress_arg, atomic_load_explicit(&p->bytes_done, memory_order_relaxed), p->bytes_total);
        }
    }
}

static uint32_t
widest(const bt_plan *plan)
{
    uint32_t cols = 0;

    for (uint32_t i = 0; i < plan->weight_count; i++) {
        cols = plan->weights[i].weight->cols > cols ? plan->weights[i].weight->cols : cols;
    }
    for (uint32_t i = 0; i < plan->vector_count; i++) { // vectors share thread 0's floats
        uint32_t share = (plan->vectors[i].count + TILE - 1) / TILE;

        cols = share > cols ? share : cols;
    }
    return bt_cols_padded(cols);
}

// All buffers are one allocation; each thread's begins at a 64-byte boundary. Codes and floats are never needed at once,
// but a producer may want both.
static uint8_t *
open_buffers(packing *p, uint32_t threads, size_t *bytes)
{
    size_t cols = widest(p->plan), codes = aligned(TILE * cols), halves = aligned(TILE * cols / 16 * 2);
    size_t one = codes + 2 * halves + aligned(TILE * cols * sizeof(float));
    uint8_t *memory = bt_alloc_pages(*bytes = threads * one), *at = memory;

    for (uint32_t i = 0; memory != NULL && i < threads; i++, at += one) {
        p->buffers[i] = (buffer){at, (uint16_t *)(void *)(at + codes), (uint16_t *)(void *)(at + codes + halves),
                                 (float *)(void *)(at + codes + 2 * halves)};
    }
    return memory;
}

static void
count_tiles(packing *p)
{
    uint32_t tiles = 0;

    for (uint32_t i = 0; i < p->plan->weight_count; i++) {
        const bt_weight *weight = p->plan->weights[i].weight;

        tiles += (weight->rows + TILE - 1) / TILE;
        p->tiles_end[i] = tiles;
        p->bytes_total += weight->rows * bt_ggml_row_bytes(p->plan->weights[i].tensor.type, weight->cols);
    }
}

bt_err
bt_pack(const bt_plan *plan, bt_device *device, uint8_t *memory,
        void (*progress)(void *arg, size_t bytes_done, size_t bytes_total), void *progress_arg, bt_why *why)
{
    uint32_t threads = bt_device_threads(device);
    packing p = {.plan = plan,
                 .device = device,
                 .ops = bt_device_ops(device),
                 .progress = progress,
                 .progress_arg = progress_arg};
    size_t buffer_bytes = 0;
    uint8_t *buffers = NULL;

    p.buffers = bt_alloc_array(threads, sizeof *p.buffers);
    p.tiles_end = bt_alloc_array(plan->weight_count, sizeof *p.tiles_end);
    if (p.buffers != NULL && p.tiles_end != NULL) {
        buffers = open_buffers(&p, threads, &buffer_bytes);
    }
    if (buffers != NULL) {
        place(plan, p.ops, memory);
        for (uint32_t i = 0; i < plan->vector_count; i++) {
            fill_vector(&plan->vectors[i], p.buffers[0].floats);
        }
        count_tiles(&p);
        bt_device_parallel(device, pack_thread, &p);
        if (progress != NULL) {
            progress(progress_arg, p.bytes_total, p.bytes_total);
        }
        bt_free_pages(buffers, buffer_bytes);
    }
    bt_free(p.buffers);
    bt_free(p.tiles_end);
    return buffers != NULL ? BT_OK : bt_fail(why, BT_ERR_NO_MEMORY, "%s: out of memory", plan->source->path);
}
