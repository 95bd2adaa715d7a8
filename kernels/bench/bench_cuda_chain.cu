// bench_cuda: the linear layers of a prompt, as an engine calls them.
#include "kernels/bench/bench_cuda.cuh"

#include <algorithm>
#include <stdio.h>
#include <string.h>

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

// Each call but the first of a layer says who reads what it writes.
static void
chain_announce(chain_bench *b, uint32_t tokens)
{
    for (int i = 0; i < CHAIN_LAYERS * CHAIN_CALLS; i++) {
        bt_linear_args *a = &b->calls[i / CHAIN_CALLS][i % CHAIN_CALLS];
        const bt_linear_args *to = &b->calls[(i + 1) / CHAIN_CALLS % CHAIN_LAYERS][(i + 1) % CHAIN_CALLS];

        memset(&a->next, 0, sizeof a->next);
        a->tokens = tokens;
        if (i % CHAIN_CALLS != 0) {
            memcpy(a->next.weights, to->weights, sizeof to->weights);
            a->next.weight_count = to->weight_count;
            a->next.norm = to->norm, a->next.norm_eps = to->norm_eps;
            a->next.only = i % CHAIN_CALLS == 2;
        }
    }
}

// Medians of each call where it stands, and of a whole layer.
static void
bench_chain(chain_bench *b, uint32_t tokens)
{
    const int calls = CHAIN_LAYERS * CHAIN_CALLS;
    const double operations[CHAIN_CALLS] = {6144.0 * 4096, 4096.0 * 4096, 28672.0 * 4096, 4096.0 * 14336};
    cudaEvent_t at[CHAIN_LAYERS * CHAIN_CALLS + 1];
    float each[CHAIN_CALLS][CHAIN_LAYERS * CHAIN_ROUNDS], whole[CHAIN_ROUNDS];
    double all = 0;

    chain_announce(b, tokens);
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
    printf("{\"test\":\"chain\",\"by\":\"%s\",\"tokens\":%u", cuda->gemm ? "prompt" : "cublas", tokens);
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

    for (int i = 0; i < 8; i++) {
        bt_linear_args args = b->calls[0][i % 2];

        args.tokens = tokens[i / 2];
        printf("{\"test\":\"prologue\",\"cols\":4096,\"norm\":%s,\"tokens\":%u,\"us\":%.2f}\n",
               i % 2 ? "false" : "true", tokens[i / 2], prologue_seconds(&args, 16) * 1e6);
    }
}

void
bench_chains(bt_format w8, uint32_t only)
{
    static const uint32_t tokens[] = {2048, 1024, 512, 256, 8192};
    bool has = cuda->gemm;
    chain_bench b;

    chain_open(&b, w8, 8192);
    if (only != 0) {
        bench_chain(&b, only);
    } else {
        bench_prologues(&b);
    }
    for (int i = 0; i < 5 && only == 0; i++) {
        cuda->gemm = false;
        bench_chain(&b, tokens[i]);
        cuda->gemm = has;
        bench_chain(&b, tokens[i]);
    }
    chain_close(&b);
}
