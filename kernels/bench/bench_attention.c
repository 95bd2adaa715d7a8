// bench_attention: how fast attention runs here, beside what the machine can do at most. One JSON object a line.
//
//     bench_attention [--threads N] [--isa NAME] [--kv int8|f16|f32] [--models smol,gemma,8b] [--depths 0,4096]
//                     [--tokens 1,512] [--batch N] [--ms N] [--clock wall|cpu]
//
// A point is `batch` sequences, each with `depth` tokens in the cache and `tokens` more in the call. The layers of the model
// take turns, so that a decode finds its cache as cold as a server would. `tokens_per_s` is what the model would do if
// attention were all of its work. `--clock cpu` counts this process's own time: for one thread on a crowded machine.
// The best call counts, since neighbours disturb; read rate and ping-pong stand before and
// after.
#include "kernels/bench/probe.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/time.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *name;
    uint32_t heads, kv_heads, head_dim, window, layers;
} model;

static const model models[] = {
    {"smol", 9, 3, 64, 0, 30},     // SmolLM2 135M
    {"gemma", 4, 1, 256, 512, 15}, // Gemma 3 270M's windowed layers
    {"1b", 32, 8, 64, 0, 16},      // Llama 3.2 1B
    {"8b", 32, 8, 128, 0, 8},      // Llama 3.1 8B, a quarter of its layers
};

typedef struct {
    bt_device *device;
    const char *isa, *models, *depths, *tokens;
    bt_kv_format format;
    uint32_t threads, batch;
    double ms; // at least this long a point
    clockid_t clock;
    double read_gb_s, int8_tops, f32_tflops;
} bench;

// One point: its cache and rows.
typedef struct {
    const model *m;
    uint32_t tokens, depth, batch;
    bt_kv_layout layout;
    uint8_t *pool;
    size_t pool_bytes;
    uint32_t *blocks;
    bt_attention_span *spans;
    float *qkv, *out, *cosines, *sines;
} point;

static void
point_close(point *p)
{
    bt_free_pages(p->pool, p->pool_bytes);
    bt_free(p->blocks);
    bt_free(p->spans);
    bt_free(p->qkv);
    bt_free(p->out);
    bt_free(p->cosines);
    bt_free(p->sines);
}

// Any bytes are INT8 codes; every 16-bit word is made an fp16 of 2^-7 … 2^-3, which every format can take for scales or
// numbers (a pair of them makes a float of about that size too).
static void
fill(uint8_t *pool, size_t bytes)
{
    bt_rng rng = {1};

    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word = (bt_rng_next(&rng) & 0x8fff8fff8fff8fffu) | 0x2000200020002000u;

        memcpy(pool + i, &word, 8);
    }
}

static bool
point_open(point *p, const bench *b)
{
    const model *m = p->m;
    uint32_t each, rows = p->tokens * p->batch, cols = (m->heads + 2 * m->kv_heads) * m->head_dim;
    bt_rng rng = {2};

    if (bt_kv_layout_init(&p->layout, b->format, m->layers, m->kv_heads, m->head_dim, 32, m->head_dim, NULL) != BT_OK) {
        return false;
    }
    each = (p->depth + p->tokens + 31) / 32;
    p->pool_bytes = (size_t)each * p->batch * p->layout.block_bytes;
    p->pool = bt_alloc_pages(p->pool_bytes);
    p->blocks = bt_alloc_array((size_t)each * p->batch, sizeof(uint32_t));
    p->spans = bt_alloc_array(p->batch, sizeof *p->spans);
    p->qkv = bt_alloc_array((size_t)rows * cols, sizeof(float));
    p->out = bt_alloc_array((size_t)rows * m->heads * m->head_dim, sizeof(float));
    p->cosines = bt_alloc_array((size_t)rows * m->head_dim / 2, sizeof(float));
    p->sines = bt_alloc_array((size_t)rows * m->head_dim / 2, sizeof(float));
    if (p->pool == NULL || p->blocks == NULL || p->spans == NULL || p->qkv == NULL || p->out == NULL ||
        p->cosines == NULL || p->sines == NULL) {
        return false;
    }
    fill(p->pool, p->pool_bytes);
    for (uint32_t i = 0; i < each * p->batch; i++) {
        p->blocks[i] = i;
    }
    for (uint32_t i = 0; i < p->batch; i++) {
        p->spans[i] = (bt_attention_span){i * p->tokens, p->tokens, p->depth, p->blocks + (size_t)i * each};
    }
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        p->qkv[i] = (bt_rng_float(&rng) - 0.5f) * 4;
    }
    for (size_t i = 0; i < (size_t)rows * m->head_dim / 2; i++) {
        p->cosines[i] = 0.8f;
        p->sines[i] = 0.6f;
    }
    return true;
}

static bt_time
now(const bench *b)
{
    struct timespec t;

    clock_gettime(b->clock, &t);
    return t.tv_sec * BT_SECOND + t.tv_nsec;
}

static double
time_point(const bench *b, const point *p)
{
    const model *m = p->m;
    bt_attention_args args = {.qkv = p->qkv,
                              .qkv_stride = (m->heads + 2 * m->kv_heads) * m->head_dim,
                              .out = p->out,
                              .out_stride = m->heads * m->head_dim,
                              .heads = m->heads,
                              .kv_heads = m->kv_heads,
                              .head_dim = m->head_dim,
                              .scale = 0.1f,
                              .window = m->window,
                              .rope_cos = p->cosines,
                              .rope_sin = p->sines,
                              .rope_dims = m->head_dim,
                              .layout = &p->layout,
                              .pool = p->pool,
                              .spans = p->spans,
                              .span_count = p->batch};
    double best = 1e9;

    for (bt_time begin = now(b), start = begin; start - begin < (bt_time)(b->ms * 1e6); start = now(b)) {
        double seconds;

        (void)bt_device_ops(b->device)->attention(b->device, &args);
        seconds = (double)(now(b) - start) * 1e-9;
        best = seconds < best ? seconds : best;
        args.layer = (args.layer + 1) % m->layers;
    }
    return best;
}

static void
report(const bench *b, const point *p, double seconds)
{
    const model *m = p->m;
    double keys = 0, bytes_key = (double)(p->layout.layer_bytes) / 32, read, ops;

    for (uint32_t t = 0; t < p->tokens; t++) {
        uint32_t seen = p->depth + t + 1;

        keys += m->window > 0 && seen > m->window ? m->window : seen;
    }
    read = p->batch * bytes_key * (m->window > 0 && p->depth > m->window ? m->window : p->depth + p->tokens);
    ops = 4.0 * m->heads * m->head_dim * keys * p->batch;
    printf("{\"bench\":\"attention\",\"isa\":\"%s\",\"threads\":%u,\"model\":\"%s\",\"kv\":\"%s\",\"batch\":%u,"
           "\"depth\":%u,"
           "\"tokens\":%u,\"us\":%.1f,\"tokens_per_s\":%.0f,\"gb_per_s\":%.1f,\"of_read\":%.2f,\"tops\":%.3f,\"of_"
           "peak\":%.2f}\n",
           bt_device_isa(b->device), bt_device_threads(b->device), m->name,
           b->format == BT_KV_INT8  ? "int8"
           : b->format == BT_KV_F16 ? "f16"
                                    : "f32",
           p->batch, p->depth, p->tokens, seconds * 1e6, p->tokens * p->batch / (seconds * m->layers),
           read * 1e-9 / seconds, read * 1e-9 / seconds / b->read_gb_s, ops * 1e-12 / seconds,
           ops * 1e-12 / seconds / (b->format == BT_KV_INT8 ? b->int8_tops : b->f32_tflops));
    fflush(stdout);
}

static bool
run_point(const bench *b, const model *m, uint32_t depth, uint32_t tokens)
{
    point p = {.m = m, .tokens = tokens, .depth = depth, .batch = b->batch};
    bt_device_limits limits = {.tokens = tokens * b->batch,
                               .cols = 64,
                               .rows = 64,
                               .heads = m->heads,
                               .kv_heads = m->kv_heads,
                               .head_dim = m->head_dim,
                               .context = depth + tokens,
                               .block_tokens = 32};
    bool is_open = point_open(&p, b) && bt_device_reserve(b->device, &limits, NULL) == BT_OK;

    if (is_open) {
        report(b, &p, time_point(b, &p));
    }
    point_close(&p);
    return is_open;
}

static void
measure_machine(bench *b, const char *when)
{
    bt_probe_region region = {.bytes = 256u << 20};
    double ping = bt_probe_ping_pong_ns(), read = 0;

    if ((region.memory = bt_alloc_pages(region.bytes)) != NULL) {
        memset(region.memory, 1, region.bytes);
        read = bt_probe_read_gb_s(b->device, &region);
        bt_free_pages(region.memory, region.bytes);
    }
    if (b->read_gb_s == 0) {
        b->read_gb_s = read;
        b->int8_tops = bt_probe_int8_tops(b->device);
        b->f32_tflops = bt_probe_f32_tflops(b->device);
    }
    printf("{\"bench\":\"machine\",\"when\":\"%s\",\"threads\":%u,\"ping_pong_ns\":%.0f,\"read_gb_per_s\":%.1f,"
           "\"int8_tops\":%.3f,\"f32_tflops\":%.3f}\n",
           when, bt_device_threads(b->device), ping, read, b->int8_tops, b->f32_tflops);
}

static bool
parse(bench *b, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];

        if (strcmp(name, "--threads") == 0) {
            b->threads = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(name, "--isa") == 0) {
            b->isa = value;
        } else if (strcmp(name, "--kv") == 0) {
            b->format = strcmp(value, "f16") == 0 ? BT_KV_F16 : strcmp(value, "f32") == 0 ? BT_KV_F32 : BT_KV_INT8;
        } else if (strcmp(name, "--models") == 0) {
            b->models = value;
        } else if (strcmp(name, "--depths") == 0) {
            b->depths = value;
        } else if (strcmp(name, "--tokens") == 0) {
            b->tokens = value;
        } else if (strcmp(name, "--batch") == 0) {
            b->batch = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(name, "--clock") == 0) {
            b->clock = strcmp(value, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        } else if (strcmp(name, "--ms") == 0) {
            b->ms = strtod(value, NULL);
        } else {
            return false;
        }
    }
    return argc % 2 == 1 && b->batch > 0;
}

static const char *
next_in(const char *list)
{
    const char *comma = strchr(list, ',');

    return comma == NULL ? NULL : comma + 1;
}

static bool
run_model(const bench *b, const model *m)
{
    bool is_ok = true;

    for (const char *d = b->depths; is_ok && d != NULL; d = next_in(d)) {
        for (const char *t = b->tokens; is_ok && t != NULL; t = next_in(t)) {
            uint32_t depth = (uint32_t)strtoul(d, NULL, 10), tokens = (uint32_t)strtoul(t, NULL, 10);

            is_ok = tokens == 0 || run_point(b, m, depth, tokens);
        }
    }
    return is_ok;
}

int
main(int argc, char **argv)
{
    bench b = {.models = "smol,gemma,1b,8b",
               .depths = "0,4096",
               .tokens = "1,512",
               .batch = 1,
               .ms = 400,
               .clock = CLOCK_MONOTONIC};
    bt_device_options options = {.kind = BT_DEVICE_CPU};
    bt_why why = {{0}};
    bool is_ok = true;

    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "bench_attention: see the top of kernels/bench/bench_attention.c\n");
        return 2;
    }
    options.threads = b.threads;
    options.isa = b.isa;
    if (bt_device_open(&b.device, &options, &why) != BT_OK) {
        fprintf(stderr, "bench_attention: %s\n", why.text);
        return 1;
    }
    measure_machine(&b, "before");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strstr(b.models, models[i].name) != NULL) {
            is_ok = run_model(&b, &models[i]) && is_ok;
        }
    }
    measure_machine(&b, "after");
    bt_device_close(b.device);
    return is_ok ? 0 : 1;
}
