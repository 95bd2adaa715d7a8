// bench_cuda [index [decode|layers|wide|head|others|prompt|half[-layer|-few|-many]|chain|attention [tokens,tokens…]]]: what the CUDA operations reach, beside what the device gives in the same run. One JSON line a point; times are
// medians of replays of a graph in which the weights (or caches) rotate, so that none is still in the L2 cache. With numbers of tokens decode,
// layers, wide, head, others and prompt take those instead of their own, and chain the first of them.
#include "kernels/bench/bench_cuda.cuh"

#include "kernels/bench/probe.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLAYS 15
#define TOKENS_MAX 8192u

bt_device *device;
bt_cuda *cuda;
double hbm_gb, int8_tops, bf16_tflops;

void
must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_cuda: %s\n", what);
        exit(1);
    }
}

double
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

static __global__ void
fill_kernel(uint32_t *to, size_t count, uint32_t seed, uint32_t mask, uint32_t base)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;

        x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
        to[i] = (x & mask) | base;
    }
}

void
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
    hbm_gb = limits.read_gb_s, int8_tops = limits.int8_tops, bf16_tflops = limits.bf16_tflops;
    printf("{\"device\":\"%s\"}\n", limits.name);
    printf("{\"test\":\"hbm_read\",\"gb_per_s\":%.0f}\n", hbm_gb);
    printf("{\"test\":\"int8_product_8192\",\"tops\":%.0f}\n", int8_tops);
    printf("{\"test\":\"bf16_product_8192\",\"tflops\":%.0f}\n", bf16_tflops);
}

// Numbers with commas between them, in the place of those that a part has of its own.
static token_list
named_tokens(const char *text)
{
    token_list l = {{}, 0};

    for (const char *at = text; *at != 0; at += *at == ',') {
        char *end;

        must(l.count < TOKENS_NAMED_MAX, "so many numbers of tokens?");
        l.tokens[l.count++] = (uint32_t)strtoul(at, &end, 10);
        must(end != at && (*end == ',' || *end == 0) && l.tokens[l.count - 1] - 1 < TOKENS_MAX, "tokens?");
        at = end;
    }
    return l;
}

// Layers of a step of sequences at 2k: what a step takes but the embedding, the head and the draw. First without attention.
static void
bench_layers(const linear_shape layer[4], token_list batches)
{
    const attention_shape llama8 = {32, 8, 128, 0};
    layer_bench *bench = layer_bench_open(layer, most_of(batches));

    for (int i = 0; i < batches.count; i++) {
        // (a little more than whole splits: who writes the 33rd token behind a prompt of 2,048 has five splits a head, of which one is short)
        attention_bench *attention = attention_bench_open(&llama8, batches.tokens[i], 2080, 1, false);

        layer_bench_run(bench, "q4 8b", batches.tokens[i], NULL);
        layer_bench_run(bench, "q4 8b", batches.tokens[i], attention);
        attention_bench_close(attention);
    }
    layer_bench_close(bench);
}

int
main(int argc, char **argv)
{
    // Batches of a server are any number: what lies just beyond a tile of 32, 64 or 128 tokens, or leaves four of it uneven, has a point, too.
    token_list few = {{1, 2, 4, 8, 16}, 5}, wide = {{1, 16, 17, 31, 32, 45, 64, 90, 128, 129, 256, 512, 2048}, 13},
               many = {{512, 2048, 8192}, 3}, batches = {{1, 17, 32, 45, 64, 90, 128}, 7};
    const bt_format q4 = {BT_WEIGHT_INT, 4, false, 128, 128}, q4a = {BT_WEIGHT_INT, 4, true, 32, 32},
                    q8 = {BT_WEIGHT_INT, 8, false, 32, 32}, w8 = {BT_WEIGHT_INT, 8, false, 0, 0};
    const linear_shape square = {"q4", q4, 1, {8192}, 8192, BT_LINEAR_STORE, false, 1000};
    const linear_shape plain = {"q4, no outliers", q4, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0};
    const linear_shape long_rows = {"q4 70b down", q4, 1, {8192}, 28672, BT_LINEAR_ADD, false, 1000};
    const linear_shape layer[4] = {{"q4 8b qkv", q4, 3, {4096, 1024, 1024}, 4096, BT_LINEAR_STORE, true, 1000},
                                   {"q4 8b o", q4, 1, {4096}, 4096, BT_LINEAR_ADD, false, 1000},
                                   {"q4 8b gate|up", q4, 2, {14336, 14336}, 4096, BT_LINEAR_SILU_MUL, true, 1000},
                                   {"q4 8b down", q4, 1, {4096}, 14336, BT_LINEAR_ADD, false, 1000}};
    const linear_shape crowded[2] = {
        {"q4 8b qkv, crowded outliers", q4, 3, {4096, 1024, 1024}, 4096, BT_LINEAR_STORE, true, 1000, true},
        {"q4 8b down, crowded outliers", q4, 1, {4096}, 14336, BT_LINEAR_ADD, false, 1000, true}};
    const linear_shape head = {"w8 8b head", w8, 1, {128256}, 4096, BT_LINEAR_STORE, true, 0};
    const linear_shape others[] = {{"q4a_32", q4a, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0},
                                   {"q8_32", q8, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0},
                                   {"w8", w8, 1, {8192}, 8192, BT_LINEAR_STORE, false, 0}};
    const linear_shape prompt[] = {{"w8", w8, 1, {14336}, 4096, BT_LINEAR_STORE, false, 0},
                                   {"w8", w8, 1, {4096}, 14336, BT_LINEAR_STORE, false, 0}};
    const char *only = argc > 2 ? argv[2] : "";
    const token_list named = named_tokens(argc > 3 ? argv[3] : "");
    bt_device_options options;
    bt_device_limits limits;
    bt_why why;

    if (named.count != 0) {
        few = wide = many = batches = named;
    }
    memset(&options, 0, sizeof options);
    memset(&limits, 0, sizeof limits);
    options.kind = BT_DEVICE_CUDA;
    options.index = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    limits.tokens = TOKENS_MAX, limits.cols = 28672, limits.rows = 28672, limits.heads = 64, limits.kv_heads = 8;
    limits.head_dim = 128, limits.context = 65536, limits.block_tokens = 32, limits.sequences = 256;
    measure_device(&options);
    must(bt_device_open(&device, &options, &why) == BT_OK, why.text);
    cuda = bt_cuda_of(device);
    must(bt_device_reserve(device, &limits, &why) == BT_OK, why.text);
    if (strstr("decode", only) != NULL) {
        bench_linear(&square, few);
        for (int i = 0; i < 4; i++) {
            bench_linear(&layer[i], few);
        }
        bench_linear(&plain, few);
        bench_linear(&long_rows, few);
        bench_linear(&crowded[0], few);
        bench_linear(&crowded[1], few);
        bench_linear(&head, few);
        bench_layer("q4 8b", layer, few);
    }
    if (strstr("layers", only) != NULL) {
        bench_layers(layer, batches);
    }
    if (strstr("wide", only) != NULL) {
        bench_linear(&square, wide);
        for (int i = 0; i < 4; i++) {
            bench_linear(&layer[i], wide);
        }
        bench_linear(&crowded[0], wide);
        bench_linear(&crowded[1], wide);
    }
    if (strstr("head", only) != NULL) {
        bench_linear(&head, wide);
    }
    for (int i = 0; i < 3 && strstr("others", only) != NULL; i++) {
        bench_linear(&others[i], few);
    }
    for (int i = 0; i < 2 && strstr("prompt", only) != NULL; i++) {
        bench_linear(&prompt[i], many);
    }
    bench_halves(only);
    if (strstr("chain", only) != NULL) {
        bench_chains(w8, named.count != 0 ? named.tokens[0] : 0);
    }
    if (strstr("attention", only) != NULL) {
        bench_attentions();
    }
    bt_device_close(device);
    return 0;
}
