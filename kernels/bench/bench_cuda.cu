// bench_cuda [index [decode|wide|others|prompt|chain [tokens]|attention]]: what the CUDA operations reach, beside what the device gives in the same run. One JSON line a point; times are
// medians of replays of a graph in which the weights (or caches) rotate, so that none is still in the L2 cache.
#include "kernels/cuda/cuda.cuh"

#include "kernels/bench/probe.h"

#include "common/base/rng.h"

#include <algorithm>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLAYS 15
#define COPIES_MAX 16

static bt_device *device;
static bt_cuda *cuda;
static double hbm_gb, int8_tops;

static void
must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_cuda: %s\n", what);
        exit(1);
    }
}

// Seconds of one of `count` calls that `queue` makes, recorded once.
static double
seconds_of(void (*queue)(void *arg), void *arg, int count)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float times[REPLAYS];

    must(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "capture");
    queue(arg);
    must(cudaStreamEndCapture(cuda->stream, &graph) == cudaSuccess, "end of capture");
    must(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (int i = -3; i < REPLAYS; i++) {
        cudaEventRecord(begin, cuda->stream);
        cudaGraphLaunch(exec, cuda->stream);
        cudaEventRecord(end, cuda->stream);
        must(cudaEventSynchronize(end) == cudaSuccess, cudaGetErrorString(cudaGetLastError()));
        cudaEventElapsedTime(&times[i < 0 ? 0 : i], begin, end);
    }
    std::sort(times, times + REPLAYS);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return times[REPLAYS / 2] * 1e-3 / count;
}

// Numbers of no kind in particular, so that nothing is zero.
static __global__ void
fill_kernel(uint32_t *to, size_t count, uint32_t seed, uint32_t mask, uint32_t base)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;

        x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
        to[i] = (x & mask) | base;
    }
}

static void
fill(void *to, size_t bytes, uint32_t seed, uint32_t mask, uint32_t base)
{
    fill_kernel<<<1024, 256, 0, cuda->stream>>>((uint32_t *)to, bytes / 4, seed, mask, base);
}

static void
measure_device(const bt_device_options *options)
{
    bt_probe_gpu_limits limits;
    bt_why why;

    must(bt_probe_gpu(&limits, options, &why) == BT_OK, why.text);
    hbm_gb = limits.read_gb_s, int8_tops = limits.int8_tops;
    printf("{\"device\":\"%s\"}\n", limits.name);
    printf("{\"test\":\"hbm_read\",\"gb_per_s\":%.0f}\n", hbm_gb);
    printf("{\"test\":\"int8_product_8192\",\"tops\":%.0f}\n", int8_tops);
}

// ---- linear ----

// A linear call of a model: its matrices lie side by side.
typedef struct {
    const char *name;
    bt_format format;
    uint32_t parts, rows[3], cols;
    bt_linear_epilogue epilogue;
    bool norm;
    uint32_t every; // one weight in so many is an outlier; 0 = none
} linear_shape;

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

// As common/quant makes them: by row, columns rising, here at gaps of 1 … 2 · every − 1.
static void
make_outliers(bt_weight *w, uint32_t every, bt_rng *rng)
{
    size_t most = (size_t)w->rows * w->cols / (every / 2) + w->rows;
    uint32_t *start = (uint32_t *)malloc((w->rows + 1) * 4), *cols = (uint32_t *)malloc(most * 4), count = 0;
    uint16_t *deltas = (uint16_t *)malloc(most * 2);

    for (uint32_t row = 0; row < w->rows; row++) {
        start[row] = count;
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
    fill(w->data, l.codes_offset, 7 + seed, 0x03ff03ffu, 0x20002000u); // scales of about 0.01
    fill(w->data + l.codes_offset, l.bytes - l.codes_offset, 9 + seed, ~0u, 0);
    if (shape->every != 0) {
        make_outliers(w, shape->every, &rng);
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

static void
queue_prologue(void *arg)
{
    linear_bench *b = (linear_bench *)arg;

    for (int i = 0; i < b->copies; i++) {
        must(bt_cuda_prologue(cuda, &b->args, b->args.tokens < 1024 ? BT_A8_FRAGMENTS : BT_A8_ROWS) == BT_OK,
             "prologue");
    }
}

static void
bench_linear(const linear_shape *shape, const uint32_t *tokens, int count)
{
    linear_bench b;

    linear_bench_init(&b, shape, tokens[count - 1]);
    for (int i = 0; i < count; i++) {
        double all, before, operations = 0;

        b.args.tokens = tokens[i];
        all = seconds_of(queue_linear, &b, b.copies);
        before = seconds_of(queue_prologue, &b, b.copies);
        for (uint32_t p = 0; p < shape->parts; p++) {
            operations += 2.0 * shape->rows[p] * shape->cols * tokens[i];
        }
        printf("{\"test\":\"linear\",\"shape\":\"%s\",\"rows\":%.0f,\"cols\":%u,\"tokens\":%u,\"us\":%.1f,"
               "\"a_prologue_alone_us\":%.1f,\"gb_per_s\":%.0f,\"of_hbm\":%.2f,\"tops\":%.0f,\"of_int8\":%.2f}\n",
               shape->name, operations / 2 / shape->cols / tokens[i], shape->cols, tokens[i], all * 1e6, before * 1e6,
               (double)b.bytes / all * 1e-9, (double)b.bytes / all * 1e-9 / hbm_gb, operations / all * 1e-12,
               int8_tops > 0 ? operations / all * 1e-12 / int8_tops : 0);
        fflush(stdout);
    }
    linear_bench_fini(&b);
}

// The linear calls of a layer one after the other, as a step queues them (the attention between the first two is left out).
typedef struct {
    linear_bench calls[4];
    int layers;
} layer_bench;

static void
queue_layers(void *arg)
{
    layer_bench *b = (layer_bench *)arg;

    for (int i = 0; i < b->layers; i++) {
        for (int call = 0; call < 4; call++) {
            queue_copy(&b->calls[call], i);
        }
    }
}

static void
bench_layer(const char *name, const linear_shape shapes[4], const uint32_t *tokens, int count)
{
    static layer_bench b;
    double bytes = 0;

    b.layers = COPIES_MAX;
    for (int call = 0; call < 4; call++) {
        linear_bench_init(&b.calls[call], &shapes[call], tokens[count - 1]);
        b.layers = std::min(b.layers, b.calls[call].copies);
        bytes += (double)b.calls[call].bytes;
    }
    b.calls[1].args.y = b.calls[3].args.y = b.calls[0].x; // the residual stream
    b.calls[2].args.x = b.calls[0].x, b.calls[3].args.x = b.calls[2].y;
    for (int i = 0; i < count; i++) {
        double s;

        for (int call = 0; call < 4; call++) {
            b.calls[call].args.tokens = tokens[i];
        }
        s = seconds_of(queue_layers, &b, b.layers);
        printf("{\"test\":\"layer\",\"shape\":\"%s\",\"tokens\":%u,\"us\":%.1f,\"gb_per_s\":%.0f,\"of_hbm\":%.2f}\n",
               name, tokens[i], s * 1e6, bytes / s * 1e-9, bytes / s * 1e-9 / hbm_gb);
        fflush(stdout);
    }
    for (int call = 0; call < 4; call++) {
        linear_bench_fini(&b.calls[call]);
    }
}

// ---- the linear layers of a prompt, as an engine calls them ----

#define CHAIN_LAYERS 3
#define CHAIN_CALLS 4 // qkv, o, gate|up, down
#define CHAIN_ROUNDS 12

typedef struct {
    bt_weight weights[CHAIN_LAYERS][7]; // q, k, v, o, gate, up, down
    float *x, *qkv, *attended, *inner, *norm;
    bt_linear_args calls[CHAIN_LAYERS][CHAIN_CALLS];
} chain_bench;

static const uint32_t chain_rows[7] = {4096, 1024, 1024, 4096, 14336, 14336, 4096};
static const uint32_t chain_cols[7] = {4096, 4096, 4096, 4096, 4096, 4096, 14336};

static float *
floats(size_t count, uint32_t seed)
{
    float *v = (float *)bt_device_alloc(device, count * 4);

    must(v != NULL, "memory");
    fill(v, count * 4, seed, 0x807fffffu, 0x3f000000u); // ± 0.5 … 1
    return v;
}

static void
chain_call(chain_bench *b, int layer, int call, uint32_t first, uint32_t count, float *x, float *y, bool norm)
{
    bt_linear_args *a = &b->calls[layer][call];
    uint32_t rows = 0;

    a->weight_count = count;
    for (uint32_t i = 0; i < count; i++) {
        a->weights[i] = &b->weights[layer][first + i];
        rows += chain_rows[first + i];
    }
    a->x = x, a->x_stride = chain_cols[first];
    a->norm = norm ? b->norm : NULL, a->norm_eps = 1e-5f;
    a->epilogue = call == 0 ? BT_LINEAR_STORE : call == 2 ? BT_LINEAR_SILU_MUL : BT_LINEAR_ADD;
    a->y = y, a->y_stride = call == 2 ? rows / 2 : rows;
    a->scale = call == 0 || call == 2 ? 1.0f : 1e-3f; // the stream stays a number
}

static void
chain_open(chain_bench *b, bt_format w8, uint32_t tokens)
{
    memset(b, 0, sizeof *b);
    b->x = floats((size_t)tokens * 4096, 1), b->qkv = floats((size_t)tokens * 6144, 2);
    b->attended = floats((size_t)tokens * 4096, 3), b->inner = floats((size_t)tokens * 14336, 4);
    b->norm = floats(4096, 5);
    for (int l = 0; l < CHAIN_LAYERS; l++) {
        for (int i = 0; i < 7; i++) {
            bt_cuda_layout at = bt_cuda_layout_of(w8, chain_rows[i], chain_cols[i]);
            bt_weight *w = &b->weights[l][i];

            w->format = w8, w->rows = chain_rows[i], w->cols = chain_cols[i], w->bytes = at.bytes;
            w->data = (uint8_t *)bt_device_alloc(device, at.bytes);
            must(w->data != NULL, "memory");
            fill(w->data, at.codes_offset, 7 + i, 0x00ff00ffu, 0x10001000u); // scales of about 0.0005
            fill(w->data + at.codes_offset, at.bytes - at.codes_offset, 9 + i, ~0u, 0);
        }
        chain_call(b, l, 0, 0, 3, b->x, b->qkv, true);
        chain_call(b, l, 1, 3, 1, b->attended, b->x, false);
        chain_call(b, l, 2, 4, 2, b->x, b->inner, true);
        chain_call(b, l, 3, 6, 1, b->inner, b->x, false);
    }
}

static void
chain_close(chain_bench *b)
{
    for (int l = 0; l < CHAIN_LAYERS; l++) {
        for (int i = 0; i < 7; i++) {
            bt_device_free(device, b->weights[l][i].data, 0);
        }
    }
    bt_device_free(device, b->x, 0), bt_device_free(device, b->qkv, 0), bt_device_free(device, b->attended, 0);
    bt_device_free(device, b->inner, 0), bt_device_free(device, b->norm, 0);
}

// Each call but the first and the second says who reads what it writes, or none does.
static void
chain_announce(chain_bench *b, uint32_t tokens, bool next)
{
    for (int i = 0; i < CHAIN_LAYERS * CHAIN_CALLS; i++) {
        bt_linear_args *a = &b->calls[i / CHAIN_CALLS][i % CHAIN_CALLS];
        const bt_linear_args *to = &b->calls[(i + 1) / CHAIN_CALLS % CHAIN_LAYERS][(i + 1) % CHAIN_CALLS];

        memset(&a->next, 0, sizeof a->next);
        a->tokens = tokens;
        if (next && i % CHAIN_CALLS != 0) {
            memcpy(a->next.weights, to->weights, sizeof to->weights);
            a->next.weight_count = to->weight_count;
            a->next.norm = to->norm, a->next.norm_eps = to->norm_eps;
            a->next.only = i % CHAIN_CALLS == 2;
        }
    }
}

// Medians of each call where it stands, and of a whole layer.
static void
bench_chain(chain_bench *b, uint32_t tokens, bool next)
{
    const int calls = CHAIN_LAYERS * CHAIN_CALLS;
    const double operations[CHAIN_CALLS] = {6144.0 * 4096, 4096.0 * 4096, 28672.0 * 4096, 4096.0 * 14336};
    cudaEvent_t at[CHAIN_LAYERS * CHAIN_CALLS + 1];
    float each[CHAIN_CALLS][CHAIN_LAYERS * CHAIN_ROUNDS], whole[CHAIN_ROUNDS];
    double all = 0;

    chain_announce(b, tokens, next);
    for (int i = 0; i <= calls; i++) {
        cudaEventCreate(&at[i]);
    }
    for (int round = -2; round < CHAIN_ROUNDS; round++) {
        cudaEventRecord(at[0], cuda->stream);
        for (int i = 0; i < calls; i++) {
            must(bt_device_ops(device)->linear(device, &b->calls[i / CHAIN_CALLS][i % CHAIN_CALLS]) == BT_OK, "linear");
            cudaEventRecord(at[i + 1], cuda->stream);
        }
        must(cudaStreamSynchronize(cuda->stream) == cudaSuccess, cudaGetErrorString(cudaGetLastError()));
        for (int i = 0; i < calls && round >= 0; i++) {
            cudaEventElapsedTime(&each[i % CHAIN_CALLS][round * CHAIN_LAYERS + i / CHAIN_CALLS], at[i], at[i + 1]);
        }
        cudaEventElapsedTime(&whole[round < 0 ? 0 : round], at[0], at[calls]);
    }
    printf("{\"test\":\"chain\",\"by\":\"%s\",\"tokens\":%u,\"next\":%s", cuda->gemm ? "prompt" : "cublas", tokens,
           next ? "true" : "false");
    for (int i = 0; i < CHAIN_CALLS; i++) {
        static const char *const names[CHAIN_CALLS] = {"qkv", "o", "gate_up", "down"};

        std::sort(each[i], each[i] + CHAIN_LAYERS * CHAIN_ROUNDS);
        all += operations[i];
        printf(",\"%s_us\":%.1f,\"%s_tops\":%.0f", names[i], each[i][CHAIN_LAYERS * CHAIN_ROUNDS / 2] * 1e3, names[i],
               2e-9 * operations[i] * tokens / each[i][CHAIN_LAYERS * CHAIN_ROUNDS / 2]);
    }
    std::sort(whole, whole + CHAIN_ROUNDS);
    printf(",\"layer_us\":%.1f,\"tops\":%.0f}\n", whole[CHAIN_ROUNDS / 2] * 1e3 / CHAIN_LAYERS,
           2e-9 * all * tokens * CHAIN_LAYERS / whole[CHAIN_ROUNDS / 2]);
    fflush(stdout);
    for (int i = 0; i <= calls; i++) {
        cudaEventDestroy(at[i]);
    }
}

// What goes before the first call of a chain, and before the second.
static void
bench_prologues(chain_bench *b)
{
    static const uint32_t tokens[] = {1, 16, 128, 2048};
    linear_bench l;

    l.copies = 16;
    for (int i = 0; i < 8; i++) {
        l.args = b->calls[0][i % 2];
        l.args.tokens = tokens[i / 2];
        printf("{\"test\":\"prologue\",\"cols\":4096,\"norm\":%s,\"tokens\":%u,\"us\":%.2f}\n",
               i % 2 ? "false" : "true", tokens[i / 2], seconds_of(queue_prologue, &l, l.copies) * 1e6);
    }
}

// With our own kernel for prompts, if the GPU has it, and with cuBLASLt.
static void
bench_chains(bt_format w8, uint32_t only)
{
    static const uint32_t tokens[] = {2048, 1024, 512, 256, 8192};
    bool has = cuda->gemm;
    chain_bench b;

    chain_open(&b, w8, 8192);
    if (only != 0) {
        bench_chain(&b, only, true);
    } else {
        bench_prologues(&b);
    }
    for (int i = 0; i < 5 && only == 0; i++) {
        cuda->gemm = false;
        bench_chain(&b, tokens[i], true);
        cuda->gemm = has;
        bench_chain(&b, tokens[i], true);
    }
    chain_close(&b);
}

// ---- attention ----

typedef struct {
    bt_attention_args args;
    uint32_t layers;
} attention_bench;

static void
queue_attention(void *arg)
{
    attention_bench *b = (attention_bench *)arg;

    for (uint32_t i = 0; i < b->layers; i++) {
        b->args.layer = i;
        must(bt_device_ops(device)->attention(device, &b->args) == BT_OK, "attention");
    }
}

typedef struct {
    uint32_t heads, kv_heads, dim, window;
} attention_shape;

// `ragged`: contexts from a twentieth of `context` to all of it, so that their mean is a half.
static void
bench_attention(attention_shape a, uint32_t batch, uint32_t context, uint32_t count, bool ragged)
{
    const uint32_t heads = a.heads, kv_heads = a.kv_heads, dim = a.dim, block_tokens = 32;
    const size_t cache = (size_t)batch * context * 2 * kv_heads * dim;
    const uint32_t layers = (uint32_t)std::min((size_t)32, ((size_t)160 << 20) / cache + 2); // cold
    uint32_t blocks_each = (context + block_tokens - 1) / block_tokens, rows = batch * count;
    uint64_t keys = 0;
    bt_kv_layout layout;
    attention_bench b;
    bt_attention_span *spans = (bt_attention_span *)calloc(batch, sizeof *spans);
    uint32_t *table = (uint32_t *)malloc((size_t)batch * blocks_each * 4), *positions = (uint32_t *)malloc(rows * 4);
    int32_t *ids = (int32_t *)calloc(rows, 4);
    size_t pool_bytes;
    uint8_t *pool;
    float *qkv, *out;
    bool known;
    double s, bytes;

    must(bt_kv_layout_init(&layout, BT_KV_INT8, layers, kv_heads, dim, block_tokens, dim, NULL) == BT_OK, "layout");
    pool_bytes = (size_t)batch * blocks_each * layout.block_bytes;
    pool = (uint8_t *)bt_device_alloc(device, pool_bytes);
    qkv = (float *)bt_device_alloc(device, (size_t)rows * (heads + 2 * kv_heads) * dim * 4);
    out = (float *)bt_device_alloc(device, (size_t)rows * heads * dim * 4);
    must(pool != NULL && qkv != NULL && out != NULL, "memory");
    fill(pool, pool_bytes, 5, 0x1f1f1f1fu, 0x20002000u); // small numbers, also where scales lie
    fill(qkv, (size_t)rows * (heads + 2 * kv_heads) * dim * 4, 3, 0x807fffffu, 0x3f000000u);
    for (uint32_t i = 0; i < batch; i++) {
        uint32_t own = ragged ? context * (1 + i * 7 % batch * 19 / batch) / 20 : context;

        spans[i].row = i * count, spans[i].count = count, spans[i].position = own - count;
        keys += a.window != 0 && own > a.window ? a.window : own;
        spans[i].blocks = table + (size_t)i * blocks_each;
        for (uint32_t t = 0; t < count; t++) {
            positions[i * count + t] = own - count + t;
        }
    }
    for (uint32_t i = 0; i < batch * blocks_each; i++) {
        table[i] = (uint32_t)((uint64_t)i * 7919 % (batch * blocks_each));
    }
    bt_step_args step = {ids, positions, rows, spans, batch, positions, 0};
    must(bt_device_ops(device)->begin(device, &step, &known) == BT_OK, "step");
    memset(&b, 0, sizeof b);
    b.layers = layers;
    b.args.qkv = qkv, b.args.qkv_stride = (heads + 2 * kv_heads) * dim, b.args.out = out,
    b.args.out_stride = heads * dim;
    b.args.heads = heads, b.args.kv_heads = kv_heads, b.args.head_dim = dim,
    b.args.scale = 0.004f; // scores of a few units, as models have
    b.args.layout = &layout, b.args.pool = pool, b.args.window = a.window;
    cudaStreamSynchronize(cuda->stream);
    s = seconds_of(queue_attention, &b, (int)layers);
    bytes = (double)keys * 2 * kv_heads * (dim + 2);
    printf("{\"test\":\"attention\",\"heads\":\"%u/%u x "
           "%u\",\"window\":%u,\"batch\":%u,\"context\":%u%s,\"queries\":%u,\"us\":%.1f,\"gb_per_s\":%.0f,\"of_"
           "hbm\":%.2f,"
           "\"tops\":%.1f}\n",
           heads, kv_heads, dim, a.window, batch, context, ragged ? ",\"ragged\":true" : "", count, s * 1e6,
           bytes / s * 1e-9, bytes / s * 1e-9 / hbm_gb, 4.0 * rows * heads * dim * (context - count / 2.0) / s * 1e-12);
    fflush(stdout);
    bt_device_free(device, pool, 0);
    bt_device_free(device, qkv, 0);
    bt_device_free(device, out, 0);
    free(spans), free(table), free(positions), free(ids);
}

static void
bench_attentions(void)
{
    const attention_shape llama8 = {32, 8, 128, 0}, llama70 = {64, 8, 128, 0}, smol = {9, 3, 64, 0},
                          gemma = {4, 1, 256, 512};

    bench_attention(llama8, 1, 1, 1, false);
    bench_attention(llama8, 1, 2048, 1, false);
    bench_attention(llama8, 1, 65536, 1, false);
    bench_attention(llama8, 8, 16384, 1, false);
    bench_attention(llama8, 32, 2048, 1, false);
    bench_attention(llama8, 128, 2048, 1, false);
    bench_attention(llama8, 128, 4096, 1, true);
    bench_attention(llama70, 1, 2048, 1, false);
    bench_attention(llama70, 64, 2048, 1, false);
    bench_attention(smol, 1, 2048, 1, false);
    bench_attention(smol, 128, 2048, 1, false);
    bench_attention(gemma, 1, 2048, 1, false);
    bench_attention(gemma, 128, 2048, 1, false);
    bench_attention(llama8, 1, 2048, 2048, false);
}

int
main(int argc, char **argv)
{
    static const uint32_t few[] = {1, 2, 4, 8, 16}, wide[] = {1, 16, 32, 64, 128, 256}, many[] = {512, 2048, 8192};
    const bt_format q4 = {BT_WEIGHT_INT, 4, false, 128, 128}, q4a = {BT_WEIGHT_INT, 4, true, 32, 32},
                    q8 = {BT_WEIGHT_INT, 8, false, 32, 32}, w8 = {BT_WEIGHT_INT, 8, false, 0, 0};
    const linear_shape square = {"q4", q4, 1, {8192}, 8192, BT_LINEAR_STORE, false, 1000};
    const linear_shape layer[4] = {{"q4 8b qkv", q4, 3, {4096, 1024, 1024}, 4096, BT_LINEAR_STORE, true, 1000},
                                   {"q4 8b o", q4, 1, {4096}, 4096, BT_LINEAR_ADD, false, 1000},
                                   {"q4 8b gate|up", q4, 2, {14336, 14336}, 4096, BT_LINEAR_SILU_MUL, true, 1000},
                                   {"q4 8b down", q4, 1, {4096}, 14336, BT_LINEAR_ADD, false, 1000}};
    const linear_shape head = {"w8 8b head", w8, 1, {128256}, 4096, BT_LINEAR_STORE, true, 0};
    const linear_shape others[] = {{"q4a_32", q4a, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0},
                                   {"q8_32", q8, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0},
                                   {"w8", w8, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0}};
    const linear_shape prompt[] = {{"w8", w8, 1, {14336}, 4096, BT_LINEAR_STORE, false, 0},
                                   {"w8", w8, 1, {4096}, 14336, BT_LINEAR_STORE, false, 0}};
    const char *only = argc > 2 ? argv[2] : "";
    bt_device_options options;
    bt_device_limits limits;
    bt_why why;

    memset(&options, 0, sizeof options);
    memset(&limits, 0, sizeof limits);
    options.kind = BT_DEVICE_CUDA;
    options.index = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    limits.tokens = 8192, limits.cols = 14336, limits.rows = 28672, limits.heads = 64, limits.kv_heads = 8;
    limits.head_dim = 128, limits.context = 65536, limits.block_tokens = 32, limits.sequences = 256;
    measure_device(&options);
    must(bt_device_open(&device, &options, &why) == BT_OK, why.text);
    cuda = bt_cuda_of(device);
    must(bt_device_reserve(device, &limits, &why) == BT_OK, why.text);
    if (strstr("decode", only) != NULL) {
        bench_linear(&square, few, 5);
        for (int i = 0; i < 4; i++) {
            bench_linear(&layer[i], few, 5);
        }
        bench_linear(&head, few, 5);
        bench_layer("q4 8b", layer, few, 5);
    }
    if (strstr("wide", only) != NULL) {
        bench_linear(&square, wide, 6);
        bench_linear(&layer[2], wide, 6);
        bench_linear(&layer[3], wide, 6);
    }
    for (int i = 0; i < 3 && strstr("others", only) != NULL; i++) {
        bench_linear(&others[i], few, 5);
    }
    for (int i = 0; i < 2 && strstr("prompt", only) != NULL; i++) {
        bench_linear(&prompt[i], many, 3);
    }
    if (strstr("chain", only) != NULL) {
        bench_chains(w8, argc > 3 ? (uint32_t)atoi(argv[3]) : 0);
    }
    if (strstr("attention", only) != NULL) {
        bench_attentions();
    }
    bt_device_close(device);
    return 0;
}
