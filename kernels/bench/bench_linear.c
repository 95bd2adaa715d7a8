// bench_linear: how fast linear layers run here, beside what the machine can do at most. One JSON object a line.
//
//     bench_linear [--threads N] [--isa NAME] [--formats q4_32,w8] [--shapes 2048x2048,576x1536] [--tokens 1,4,512] [--passes N]
//                  [--clock wall|cpu]
//
// Weights are cold: copies beyond the last-level cache take turns. Each figure is the best of many short passes, since
// neighbours disturb (--clock cpu, with one thread, counts only our own time, for a crowded machine); ping-pong and read rate are measured before and after, and a run in which they moved is marked.
#include "kernels/bench/probe.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/dtype.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLD_BYTES (160u << 20) // weights in turn: five times the cache of this kind of machine
#define COPIES_MAX 400u
#define TOKENS_MAX 1024u

static const struct {
    const char *name;
    bt_format format;
} formats[] = {
    {"q2_32", {BT_WEIGHT_INT, 2, false, 32, 32}},    {"q3_32", {BT_WEIGHT_INT, 3, false, 32, 32}},
    {"q4_32", {BT_WEIGHT_INT, 4, false, 32, 32}},    {"q4a_32", {BT_WEIGHT_INT, 4, true, 32, 32}},
    {"q4_128", {BT_WEIGHT_INT, 4, false, 128, 128}}, {"q5_32", {BT_WEIGHT_INT, 5, false, 32, 32}},
    {"q5a_32", {BT_WEIGHT_INT, 5, true, 32, 32}},    {"q6_16", {BT_WEIGHT_INT, 6, false, 16, 32}},
    {"q6_32", {BT_WEIGHT_INT, 6, false, 32, 32}},    {"q8_32", {BT_WEIGHT_INT, 8, false, 32, 32}},
    {"w8_g128", {BT_WEIGHT_INT, 8, false, 0, 128}},  {"w8", {BT_WEIGHT_INT, 8, false, 0, 0}},
    {"f16", {BT_WEIGHT_F16, 0, false, 0, 0}},        {"f32", {BT_WEIGHT_F32, 0, false, 0, 0}},
};

typedef struct {
    bt_device *device;
    const char *isa, *formats, *shapes, *tokens;
    uint32_t threads, passes;
    clockid_t clock;
    double read_gb_s, int8_tops, f32_tflops;
} bench;

static bool
listed(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *p = list; p != NULL && (p = strstr(p, name)) != NULL; p += length) {
        if ((p == list || p[-1] == ',') && (p[length] == ',' || p[length] == '\0')) {
            return true;
        }
    }
    return list == NULL;
}

// A weight of random codes and plausible scales, packed by the device's own packer a panel group at a time.
static bool
make_weight(const bench *b, bt_weight *w, bt_format format, uint32_t rows, uint32_t cols, uint64_t seed)
{
    const bt_ops *ops = bt_device_ops(b->device);
    bt_rng rng = {seed};
    size_t floats = (size_t)rows * cols;

    *w = (bt_weight){.format = format, .rows = rows, .cols = cols};
    w->bytes = ops->weight_bytes(format, rows, cols);
    if ((w->data = bt_alloc_pages(w->bytes)) == NULL) {
        return false;
    }
    if (format.kind == BT_WEIGHT_F32) {
        for (size_t i = 0; i < floats; i++) {
            ((float *)(void *)w->data)[i] = bt_rng_float(&rng) - 0.5f;
        }
        return true;
    }
    for (size_t i = 0; i + 8 <= w->bytes; i += 8) { // random codes; scales become fp16 near 1 or −1
        uint64_t word = bt_rng_next(&rng);

        memcpy(w->data + i, &word, 8);
    }
    for (size_t i = 0;
         format.kind != BT_WEIGHT_INT ? i < floats
                                      : i < (size_t)rows * bt_format_blocks(format, cols) * (format.asymmetric ? 2 : 1);
         i++) {
        uint16_t *half = (uint16_t *)(void *)w->data + i;

        *half = (uint16_t)((*half & 0x83ff) | 0x2000);
    }
    return true;
}

static double
seconds_now(const bench *b)
{
    struct timespec t;

    clock_gettime(b->clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double
time_call(const bench *b, bt_weight *copies, uint32_t count, uint32_t tokens, const float *x, float *y, double budget)
{
    bt_linear_args args = {.weight_count = 1,
                           .tokens = tokens,
                           .x = x,
                           .x_stride = copies[0].cols,
                           .y = y,
                           .y_stride = copies[0].rows,
                           .scale = 1.0f};
    double best = 1e9, spent = 0;

    // A pass takes a few milliseconds of calls; the best pass counts.
    for (uint32_t pass = 0, next = 0; pass < b->passes || spent < budget; pass++) {
        uint32_t calls = tokens < 32 ? (count + 3) / 4 : 1;
        double start = seconds_now(b), seconds;

        for (uint32_t i = 0; i < calls; i++, next = (next + 1) % count) {
            args.weights[0] = &copies[next];
            (void)bt_device_ops(b->device)->linear(b->device, &args);
        }
        seconds = seconds_now(b) - start;
        spent += seconds;
        best = seconds / calls < best ? seconds / calls : best;
    }
    return best;
}

static void
report(const bench *b, const char *name, const bt_weight *w, uint32_t tokens, double seconds)
{
    double gb_s = (double)w->bytes * 1e-9 / seconds, tops = 2e-12 * w->rows * w->cols * tokens / seconds;
    double peak = w->format.kind == BT_WEIGHT_INT ? b->int8_tops : b->f32_tflops;

    printf(
        "{\"bench\":\"linear\",\"isa\":\"%s\",\"threads\":%u,\"format\":\"%s\",\"rows\":%u,\"cols\":%u,\"tokens\":%u,"
        "\"us\":%.1f,\"gb_per_s\":%.1f,\"of_read\":%.2f,\"tops\":%.3f,\"of_peak\":%.2f}\n",
        bt_device_isa(b->device), bt_device_threads(b->device), name, w->rows, w->cols, tokens, seconds * 1e6, gb_s,
        gb_s / b->read_gb_s, tops, tops / peak);
    fflush(stdout);
}

static bool
run_shape(const bench *b, const char *name, bt_format format, uint32_t rows, uint32_t cols)
{
    size_t bytes = bt_device_ops(b->device)->weight_bytes(format, rows, cols);
    uint32_t count = (uint32_t)(COLD_BYTES / bytes + 1), made = 0;
    static bt_weight copies[COPIES_MAX];
    float *x = bt_alloc_array((size_t)cols * TOKENS_MAX, 4), *y = bt_alloc_array((size_t)rows * TOKENS_MAX, 4);
    bt_rng rng = {1};
    bool is_made = x != NULL && y != NULL;

    count = count < COPIES_MAX ? count : COPIES_MAX;
    for (; is_made && made < count; made++) {
        is_made = make_weight(b, &copies[made], format, rows, cols, made);
    }
    for (size_t i = 0; is_made && i < (size_t)cols * TOKENS_MAX; i++) {
        x[i] = bt_rng_float(&rng) - 0.5f;
    }
    for (const char *p = b->tokens; is_made && p != NULL; p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL) {
        uint32_t tokens = (uint32_t)strtoul(p, NULL, 10);

        if (tokens >= 1 && tokens <= TOKENS_MAX) {
            report(b, name, &copies[0], tokens, time_call(b, copies, count, tokens, x, y, 0.15));
        }
    }
    for (uint32_t i = 0; i < made; i++) {
        bt_free_pages(copies[i].data, copies[i].bytes);
    }
    bt_free(x);
    bt_free(y);
    return is_made;
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
           "\"int8_tops\":%.3f,\"f32_tflops\":%.3f,\"moved\":%s}\n",
           when, bt_device_threads(b->device), ping, read, b->int8_tops, b->f32_tflops,
           read < 0.9 * b->read_gb_s || read > 1.1 * b->read_gb_s ? "true" : "false");
}

static bool
parse(bench *b, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];

        if (strcmp(argv[i], "--threads") == 0) {
            b->threads = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--isa") == 0) {
            b->isa = value;
        } else if (strcmp(argv[i], "--formats") == 0) {
            b->formats = value;
        } else if (strcmp(argv[i], "--shapes") == 0) {
            b->shapes = value;
        } else if (strcmp(argv[i], "--tokens") == 0) {
            b->tokens = value;
        } else if (strcmp(argv[i], "--clock") == 0) {
            b->clock = strcmp(value, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        } else if (strcmp(argv[i], "--passes") == 0) {
            b->passes = (uint32_t)strtoul(value, NULL, 10);
        } else {
            return false;
        }
    }
    return argc % 2 == 1;
}

int
main(int argc, char **argv)
{
    bench b = {.shapes = "2048x2048", .tokens = "1,8,512", .passes = 8, .clock = CLOCK_MONOTONIC};
    bt_device_limits limits = {.tokens = TOKENS_MAX,
                               .cols = 16384,
                               .rows = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .context = 64,
                               .block_tokens = 32};
    bt_why why;

    if (!parse(&b, argc, argv)) {
        fprintf(stderr,
                "usage: bench_linear [--threads N] [--isa NAME] [--formats A,B] [--shapes ROWSxCOLS,…] [--tokens 1,…] "
                "[--passes N]\n");
        return 2;
    }
    bt_device_options options = {.kind = BT_DEVICE_CPU, .threads = b.threads, .isa = b.isa};

    if (bt_device_open(&b.device, &options, &why) != BT_OK || bt_device_reserve(b.device, &limits, &why) != BT_OK) {
        fprintf(stderr, "bench_linear: %s\n", why.text);
        return 1;
    }
    measure_machine(&b, "before");
    for (const char *p = b.shapes; p != NULL; p = strchr(p, ',') != NULL ? strchr(p, ',') + 1 : NULL) {
        char *x;
        uint32_t rows = (uint32_t)strtoul(p, &x, 10), cols = *x == 'x' ? (uint32_t)strtoul(x + 1, NULL, 10) : 0;

        for (size_t f = 0; f < sizeof formats / sizeof *formats && rows > 0 && cols > 0 && cols <= limits.cols; f++) {
            if (listed(b.formats, formats[f].name) && !run_shape(&b, formats[f].name, formats[f].format, rows, cols)) {
                fprintf(stderr, "bench_linear: out of memory\n");
                return 1;
            }
        }
    }
    measure_machine(&b, "after");
    bt_device_close(b.device);
    return 0;
}
