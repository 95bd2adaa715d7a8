// bench_cuda: single linear calls, and the four of a layer.
#include "kernels/bench/bench_cuda.cuh"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPIES_MAX 16
#define LAYERS_LEAST 16 // in a graph
#define CROWDED 4       // times its even share of outliers is what common/quant/search.h gives a row at most

typedef struct {
    bt_weight weights[COPIES_MAX][3];
    bt_linear_args args;
    int copies;
    size_t bytes; // of one copy
    float *x, *y, *norm;
} linear_bench;

static void *
to_device(const void *from, size_t bytes)
{
    void *memory = bt_device_alloc(device, bytes);

    must(memory != NULL && bt_device_write(device, memory, from, bytes) == BT_OK, "memory");
    return memory;
}

// As common/quant makes them: by row, columns rising, here at gaps of 1 … 2 · every − 1. Crowded, they are as unevenly spread as it lets
// them be, in rows that do not lie beside each other.
static void
make_outliers(bt_weight *w, const linear_shape *shape, bt_rng *rng)
{
    size_t most = (size_t)w->rows * w->cols / (shape->every / 2) + w->rows;
    uint32_t *start = (uint32_t *)malloc((w->rows + 1) * 4), *cols = (uint32_t *)malloc(most * 4), count = 0;
    uint16_t *deltas = (uint16_t *)malloc(most * 2);

    for (uint32_t row = 0; row < w->rows; row++) {
        bool none = shape->crowded && row * 37 % 64 >= 64 / CROWDED;
        uint32_t every = shape->crowded ? shape->every / CROWDED : shape->every;

        start[row] = count;
        if (none) {
            continue;
        }
        for (uint32_t k = (uint32_t)(bt_rng_next(rng) >> 32) % (2 * every); k < w->cols && count < most;
             k += 1 + (uint32_t)(bt_rng_next(rng) >> 32) % (2 * every - 1)) {
            cols[count] = k, deltas[count] = (uint16_t)(0x2400 + (uint32_t)(bt_rng_next(rng) >> 54)), count++;
        }
    }
    start[w->rows] = count;
    w->outliers.row_start = (uint32_t *)to_device(start, (w->rows + 1) * 4);
    w->outliers.cols = (uint32_t *)to_device(cols, (size_t)count * 4 + 4);
    w->outliers.deltas = (uint16_t *)to_device(deltas, (size_t)count * 2 + 2);
    free(start), free(cols), free(deltas);
}

static void
make_weight(bt_weight *w, const linear_shape *shape, uint32_t part, uint32_t seed)
{
    bt_cuda_layout l = bt_cuda_layout_of(shape->format, shape->rows[part], shape->cols);
    bt_rng rng = {seed};

    w->format = shape->format, w->rows = shape->rows[part], w->cols = shape->cols, w->bytes = l.bytes;
    w->data = (uint8_t *)bt_device_alloc(device, l.bytes);
    must(w->data != NULL, "memory");
    if (shape->format.kind != BT_WEIGHT_INT) {
        fill(w->data, l.bytes, 9 + seed, 0x80ff80ffu, 0x3c003c00u); // ± 2^-7 … 2^-5 as bf16, ± 1 … 1.25 as f16
    } else {
        fill(w->data, l.codes_offset, 7 + seed, 0x03ff03ffu, 0x20002000u); // scales of about 0.01
        fill(w->data + l.codes_offset, l.bytes - l.codes_offset, 9 + seed, ~0u, 0);
    }
    if (shape->every != 0) {
        make_outliers(w, shape, &rng);
    }
}

static void
linear_bench_init(linear_bench *b, const linear_shape *shape, uint32_t tokens)
{
    size_t rows = 0;

    memset(b, 0, sizeof *b);
    for (uint32_t i = 0; i < shape->parts; i++) {
        b->bytes += bt_cuda_layout_of(shape->format, shape->rows[i], shape->cols).bytes;
        rows += shape->rows[i];
    }
    b->copies = (int)std::min((size_t)COPIES_MAX, ((size_t)400 << 20) / b->bytes + 2);
    for (int c = 0; c < b->copies; c++) {
        for (uint32_t i = 0; i < shape->parts; i++) {
            make_weight(&b->weights[c][i], shape, i, (uint32_t)c * 3 + i);
        }
    }
    b->x = (float *)bt_device_alloc(device, (size_t)tokens * shape->cols * 4);
    b->y = (float *)bt_device_alloc(device, tokens * rows * 4);
    b->norm = (float *)bt_device_alloc(device, shape->cols * 4);
    must(b->x != NULL && b->y != NULL && b->norm != NULL, "memory");
    fill(b->x, (size_t)tokens * shape->cols * 4, 3, 0x807fffffu, 0x3f000000u); // ± 0.5 … 1
    fill(b->norm, shape->cols * 4, 4, 0x007fffffu, 0x3f000000u);
    b->args.weight_count = shape->parts, b->args.x = b->x, b->args.x_stride = shape->cols;
    b->args.y = b->y, b->args.y_stride = shape->epilogue == BT_LINEAR_SILU_MUL ? shape->rows[0] : rows;
    b->args.norm = shape->norm ? b->norm : NULL, b->args.norm_eps = 1e-5f;
    b->args.epilogue = shape->epilogue, b->args.scale = 1;
}

static void
linear_bench_fini(linear_bench *b)
{
    for (int c = 0; c < b->copies; c++) {
        for (uint32_t i = 0; i < b->args.weight_count; i++) {
            bt_weight *w = &b->weights[c][i];

            bt_device_free(device, w->data, 0);
            bt_device_free(device, w->outliers.row_start, 0);
            bt_device_free(device, w->outliers.cols, 0);
            bt_device_free(device, w->outliers.deltas, 0);
        }
    }
    bt_device_free(device, b->x, 0);
    bt_device_free(device, b->y, 0);
    bt_device_free(device, b->norm, 0);
}

static void
queue_copy(linear_bench *b, int copy)
{
    for (uint32_t i = 0; i < b->args.weight_count; i++) {
        b->args.weights[i] = &b->weights[copy][i];
    }
    must(bt_device_ops(device)->linear(device, &b->args) == BT_OK, "linear");
}

static void
queue_linear(void *arg)
{
    linear_bench *b = (linear_bench *)arg;

    for (int i = 0; i < b->copies; i++) {
        queue_copy(b, i);
    }
}

typedef struct {
    const bt_linear_args *args;
    int count;
} prologue_calls;

static void
queue_prologues(void *arg)
{
    const prologue_calls *p = (const prologue_calls *)arg;
    bool halves = cuda->head.rounds && p->args->weights[0]->format.kind != BT_WEIGHT_INT;

    for (int i = 0; i < p->count; i++) {
        if (halves) {
            must(bt_cuda_half_rows(cuda, p->args) == BT_OK, "prologue");
            continue;
        }
        must(bt_cuda_prologue(cuda, p->args, p->args->tokens < 1024 ? BT_A8_FRAGMENTS : BT_A8_ROWS) == BT_OK,
             "prologue");
    }
}

double
prologue_seconds(const bt_linear_args *args, int count)
{
    prologue_calls p = {args, count};

    return seconds_of(queue_prologues, &p, count);
}

uint32_t
most_of(token_list l)
{
    return *std::max_element(l.tokens, l.tokens + l.count);
}

void
bench_linear(const linear_shape *shape, token_list list)
{
    double peak = shape->format.kind == BT_WEIGHT_INT ? int8_tops : bf16_tflops;
    const uint32_t *tokens = list.tokens;
    linear_bench b;

    linear_bench_init(&b, shape, most_of(list));
    for (int i = 0; i < list.count; i++) {
        double all, before, operations = 0;

        b.args.tokens = tokens[i];
        all = seconds_of(queue_linear, &b, b.copies);
        before = prologue_seconds(&b.args, b.copies);
        for (uint32_t p = 0; p < shape->parts; p++) {
            operations += 2.0 * shape->rows[p] * shape->cols * tokens[i];
        }
        printf("{\"test\":\"linear\",\"shape\":\"%s\",\"rows\":%.0f,\"cols\":%u,\"tokens\":%u,\"us\":%.1f,"
               "\"a_prologue_alone_us\":%.1f,\"gb_per_s\":%.0f,\"of_hbm\":%.2f,\"tops\":%.0f,\"of_peak\":%.2f}\n",
               shape->name, operations / 2 / shape->cols / tokens[i], shape->cols, tokens[i], all * 1e6, before * 1e6,
               (double)b.bytes / all * 1e-9, (double)b.bytes / all * 1e-9 / hbm_gb, operations / all * 1e-12,
               peak > 0 ? operations / all * 1e-12 / peak : 0);
        fflush(stdout);
    }
    linear_bench_fini(&b);
}

struct layer_bench {
    linear_bench calls[4];
    attention_bench *attention; // NULL: none
    int layers, rounds;
    double bytes; // of a layer's weights
};

// What a call is told of the one that reads what it writes, as an engine tells it.
static bt_linear_next
next_of(const linear_bench *reader, int layer)
{
    bt_linear_next next;

    memset(&next, 0, sizeof next);
    next.weights[0] = &reader->weights[layer][0], next.weight_count = 1, next.only = true;
    next.norm_eps = reader->args.norm_eps;
    return next;
}

static void
queue_layers(void *arg)
{
    layer_bench *b = (layer_bench *)arg;

    for (int i = 0; i < b->layers * b->rounds; i++) {
        int layer = i % b->layers;
        bt_linear_next o = next_of(&b->calls[1], layer);

        b->calls[2].args.next = next_of(&b->calls[3], layer);
        for (int call = 0; call < 4; call++) {
            queue_copy(&b->calls[call], layer);
            if (call == 0 && b->attention != NULL) {
                attention_bench_queue(b->attention, (uint32_t)i, b->calls[0].y, b->calls[1].x, &o);
            }
        }
    }
}

layer_bench *
layer_bench_open(const linear_shape shapes[4], uint32_t most)
{
    layer_bench *b = (layer_bench *)calloc(1, sizeof *b);

    must(b != NULL, "memory");
    b->layers = COPIES_MAX;
    for (int call = 0; call < 4; call++) {
        linear_bench_init(&b->calls[call], &shapes[call], most);
        b->layers = std::min(b->layers, b->calls[call].copies);
        b->bytes += (double)b->calls[call].bytes;
    }
    b->rounds = (LAYERS_LEAST + b->layers - 1) / b->layers;
    b->calls[1].args.y = b->calls[3].args.y = b->calls[0].x; // the residual stream
    b->calls[2].args.x = b->calls[0].x, b->calls[3].args.x = b->calls[2].y;
    return b;
}

void
layer_bench_close(layer_bench *b)
{
    for (int call = 0; call < 4; call++) {
        linear_bench_fini(&b->calls[call]);
    }
    free(b);
}

void
layer_bench_run(layer_bench *b, const char *name, uint32_t tokens, attention_bench *attention)
{
    double s;

    b->attention = attention;
    for (int call = 0; call < 4; call++) {
        b->calls[call].args.tokens = tokens;
    }
    s = seconds_of(queue_layers, b, b->layers * b->rounds);
    printf("{\"test\":\"layer\",\"shape\":\"%s\",\"attention\":%s,\"tokens\":%u,\"us\":%.1f,\"gb_per_s\":%.0f,\"of_"
           "hbm\":%.2f}\n",
           name, attention != NULL ? "true" : "false", tokens, s * 1e6, b->bytes / s * 1e-9,
           b->bytes / s * 1e-9 / hbm_gb);
    fflush(stdout);
}

void
bench_layer(const char *name, const linear_shape shapes[4], token_list tokens)
{
    layer_bench *b = layer_bench_open(shapes, most_of(tokens));

    for (int i = 0; i < tokens.count; i++) {
        layer_bench_run(b, name, tokens.tokens[i], NULL);
    }
    layer_bench_close(b);
}
