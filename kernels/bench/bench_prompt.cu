// bench_prompt [replays [index [sequences prefix tokens]…]]: attention of prompts on a CUDA device, the shape of an 8B model (32 heads of 128, 8 KV heads), INT8 cache.
// One JSON line a point: medians of replays of a graph of four layers, so that no cache is still in the L2 cache. What lies in the cache was
// written there by the operation itself. replays = 0: each point once and not timed, for a profiler, which is told where that begins and ends.
#include "kernels/cuda/cuda.cuh"

#include <algorithm>
#include <cuda_profiler_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define HEADS 32u
#define KV_HEADS 8u
#define DIM 128u
#define LAYERS 4u
#define BLOCK 32u
#define COLS ((HEADS + 2 * KV_HEADS) * DIM)
#define CHUNK 2048u // tokens of a step that writes a prefix
#define STEP_MAX 8192u

static bt_device *device;
static bt_cuda *cuda;
static int replays = 15;

static void
must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_prompt: %s\n", what);
        exit(1);
    }
}

// About normal, variance 1; every thirteenth dim three times as large.
static __global__ void
draw_kernel(float *to, size_t count, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        float sum = 0;

        for (int k = 0; k < 4; k++) {
            x ^= x >> 15, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u, x ^= x >> 16;
            sum += (float)(x >> 8) * 0x1p-24f - 0.5f;
        }
        to[i] = sum * 1.732f * (i % 13 == 5 ? 3.0f : 1.0f);
    }
}

typedef struct {
    bt_kv_layout layout;
    std::vector<uint32_t> table, positions;
    std::vector<bt_attention_span> spans;
    std::vector<int32_t> ids;
    bt_attention_args args;
} prompt_bench;

// A step of `count` tokens of each sequence from `position` on.
static void
begin_step(prompt_bench *b, uint32_t sequences, uint32_t blocks_each, uint32_t position, uint32_t count)
{
    bool known;

    b->spans.clear(), b->positions.clear();
    for (uint32_t s = 0; s < sequences; s++) {
        b->spans.push_back({s * count, count, position, b->table.data() + (size_t)s * blocks_each});
        for (uint32_t t = 0; t < count; t++) {
            b->positions.push_back(position + t);
        }
    }
    b->ids.assign(b->positions.size(), 0);
    bt_step_args step = {b->ids.data(),
                         b->positions.data(),
                         (uint32_t)b->positions.size(),
                         b->spans.data(),
                         sequences,
                         b->positions.data(),
                         0};
    must(bt_device_ops(device)->begin(device, &step, &known) == BT_OK && !known, "step");
    b->args.spans = b->spans.data(), b->args.span_count = sequences;
}

static void
all_layers(prompt_bench *b)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        b->args.layer = i;
        must(bt_device_ops(device)->attention(device, &b->args) == BT_OK, "attention");
    }
}

// Seconds a layer.
static double
time_layers(prompt_bench *b)
{
    std::vector<float> times;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;

    must(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "capture");
    all_layers(b);
    must(cudaStreamEndCapture(cuda->stream, &graph) == cudaSuccess, "end of capture");
    must(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (int i = -3; i < replays; i++) {
        float ms;

        cudaEventRecord(begin, cuda->stream);
        cudaGraphLaunch(exec, cuda->stream);
        cudaEventRecord(end, cuda->stream);
        must(cudaEventSynchronize(end) == cudaSuccess, cudaGetErrorString(cudaGetLastError()));
        cudaEventElapsedTime(&ms, begin, end);
        if (i >= 0) {
            times.push_back(ms);
        }
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e-3 / LAYERS;
}

static void
bench(uint32_t sequences, uint32_t prefix, uint32_t count)
{
    uint32_t blocks_each = (prefix + count + BLOCK - 1) / BLOCK, rows = std::max(sequences * count, CHUNK);
    prompt_bench b = {};
    float *qkv, *out, *angles;
    uint8_t *pool;
    double s;

    must(bt_kv_layout_init(&b.layout, BT_KV_INT8, LAYERS, KV_HEADS, DIM, BLOCK, DIM, NULL) == BT_OK, "layout");
    for (uint32_t i = 0; i < sequences * blocks_each; i++) {
        b.table.push_back((uint32_t)((uint64_t)i * 7919 % (sequences * blocks_each)));
    }
    pool = (uint8_t *)bt_device_alloc(device, (size_t)sequences * blocks_each * b.layout.block_bytes);
    qkv = (float *)bt_device_alloc(device, (size_t)rows * COLS * 4);
    out = (float *)bt_device_alloc(device, (size_t)rows * HEADS * DIM * 4);
    angles = (float *)bt_device_alloc(device, (size_t)rows * DIM * 4);
    must(pool != NULL && qkv != NULL && out != NULL && angles != NULL, "memory");
    draw_kernel<<<1024, 256, 0, cuda->stream>>>(qkv, (size_t)rows * COLS, 3 + prefix);
    draw_kernel<<<1024, 256, 0, cuda->stream>>>(angles, (size_t)rows * DIM, 5);
    b.args.qkv = qkv, b.args.qkv_stride = COLS, b.args.out = out, b.args.out_stride = HEADS * DIM;
    b.args.heads = HEADS, b.args.kv_heads = KV_HEADS, b.args.head_dim = DIM, b.args.scale = 0.088f;
    b.args.rope_cos = angles, b.args.rope_sin = angles + (size_t)rows * DIM / 2, b.args.rope_dims = DIM;
    b.args.layout = &b.layout, b.args.pool = pool;
    for (uint32_t at = 0; at < prefix; at += CHUNK / sequences) { // as prompts come
        begin_step(&b, sequences, blocks_each, at, std::min(CHUNK / sequences, prefix - at));
        all_layers(&b);
        must(cudaStreamSynchronize(cuda->stream) == cudaSuccess, "prefix");
    }
    begin_step(&b, sequences, blocks_each, prefix, count);
    must(cudaStreamSynchronize(cuda->stream) == cudaSuccess, "step");
    if (replays == 0) {
        b.args.layer = 0;
        cudaProfilerStart();
        must(bt_device_ops(device)->attention(device, &b.args) == BT_OK, "attention");
        must(cudaStreamSynchronize(cuda->stream) == cudaSuccess, "attention");
        cudaProfilerStop();
    } else {
        s = time_layers(&b);
        printf("{\"test\":\"prompt\",\"sequences\":%u,\"prefix\":%u,\"tokens\":%u,\"us\":%.1f,\"tops\":%.1f}\n",
               sequences, prefix, count, s * 1e6,
               4.0 * sequences * count * HEADS * DIM * (prefix + (count + 1) / 2.0) / s * 1e-12);
        fflush(stdout);
    }
    bt_device_free(device, pool, 0), bt_device_free(device, qkv, 0), bt_device_free(device, out, 0);
    bt_device_free(device, angles, 0);
}

static void
bench_all(void)
{
    bench(1, 0, 2048);
    bench(8, 0, 256);
    bench(1, 8192 - 512, 512);
    bench(1, 32768 - 512, 512);
    bench(1, 32768 - 128, 128);
    bench(1, 32768 - 32, 32);
    bench(4, 0, 2048);
    bench(1, 0, 8192);
    bench(1, 32768 - 8192, 8192);
}

int
main(int argc, char **argv)
{
    bt_device_options options = {};
    bt_device_limits limits = {};
    bt_why why;

    replays = argc > 1 ? atoi(argv[1]) : replays;
    options.kind = BT_DEVICE_CUDA;
    options.index = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    limits.tokens = STEP_MAX, limits.cols = HEADS * DIM, limits.rows = COLS, limits.heads = HEADS;
    limits.kv_heads = KV_HEADS, limits.head_dim = DIM, limits.context = 32768 + CHUNK, limits.block_tokens = BLOCK;
    limits.sequences = 8;
    must(bt_device_open(&device, &options, &why) == BT_OK, why.text);
    cuda = bt_cuda_of(device);
    must(bt_device_reserve(device, &limits, &why) == BT_OK, why.text);
    for (int i = 3; i + 2 < argc; i += 3) {
        bench((uint32_t)atoi(argv[i]), (uint32_t)atoi(argv[i + 1]), (uint32_t)atoi(argv[i + 2]));
    }
    if (argc <= 3) {
        bench_all();
    }
    bt_device_close(device);
    return 0;
}
