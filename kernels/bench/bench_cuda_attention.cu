// bench_cuda: attention, of many sequences and of long ones, with INT8 caches.
#include "kernels/bench/bench_cuda.cuh"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_LEAST 12 // in a graph, so that its start is a small part

struct attention_bench {
    bt_attention_args args;
    uint32_t layers, rounds, rows;
    uint64_t keys;
    uint8_t *pool;
    float *qkv, *out;
    uint32_t *table, *positions;
    bt_attention_span *spans;
    int32_t *ids;
    bt_kv_layout layout;
};

// What is attended to: contexts, or, `ragged`, from a twentieth of `context` to all of it, so that their mean is a half.
static void
fill_sequences(attention_bench *b, const attention_shape *a, uint32_t batch, uint32_t context, uint32_t count,
               bool ragged, uint32_t blocks_each)
{
    for (uint32_t i = 0; i < batch; i++) {
        uint32_t own = ragged ? context * (1 + i * 7 % batch * 19 / batch) / 20 : context;

        b->spans[i].row = i * count, b->spans[i].count = count, b->spans[i].position = own - count;
        b->keys += a->window != 0 && own > a->window ? a->window : own;
        b->spans[i].blocks = b->table + (size_t)i * blocks_each;
        for (uint32_t t = 0; t < count; t++) {
            b->positions[i * count + t] = own - count + t;
        }
    }
    for (uint32_t i = 0; i < batch * blocks_each; i++) {
        b->table[i] = (uint32_t)((uint64_t)i * 7919 % (batch * blocks_each));
    }
}

attention_bench *
attention_bench_open(const attention_shape *a, uint32_t batch, uint32_t context, uint32_t count, bool ragged)
{
    const uint32_t block_tokens = 32, cols = (a->heads + 2 * a->kv_heads) * a->dim;
    const size_t cache = (size_t)batch * context * 2 * a->kv_heads * a->dim;
    uint32_t blocks_each = (context + block_tokens - 1) / block_tokens, rows = batch * count;
    attention_bench *b = (attention_bench *)calloc(1, sizeof *b);
    size_t pool_bytes;
    bool known;

    b->layers = (uint32_t)std::min((size_t)32, ((size_t)160 << 20) / cache + 2); // cold
    b->rounds = (CALLS_LEAST + b->layers - 1) / b->layers;
    b->rows = rows;
    b->spans = (bt_attention_span *)calloc(batch, sizeof *b->spans);
    b->table = (uint32_t *)malloc((size_t)batch * blocks_each * 4), b->positions = (uint32_t *)malloc(rows * 4);
    b->ids = (int32_t *)calloc(rows, 4);
    must(bt_kv_layout_init(&b->layout, BT_KV_INT8, b->layers, a->kv_heads, a->dim, block_tokens, a->dim, NULL) == BT_OK,
         "layout");
    pool_bytes = (size_t)batch * blocks_each * b->layout.block_bytes;
    b->pool = (uint8_t *)bt_device_alloc(device, pool_bytes);
    b->qkv = (float *)bt_device_alloc(device, (size_t)rows * cols * 4);
    b->out = (float *)bt_device_alloc(device, (size_t)rows * a->heads * a->dim * 4);
    must(b->pool != NULL && b->qkv != NULL && b->out != NULL, "memory");
    fill(b->pool, pool_bytes, 5, 0x1f1f1f1fu, 0x20002000u); // small numbers, also where scales lie
    fill(b->qkv, (size_t)rows * cols * 4, 3, 0x807fffffu, 0x3f000000u);
    fill_sequences(b, a, batch, context, count, ragged, blocks_each);
    bt_step_args step = {b->ids, b->positions, rows, b->spans, batch, b->positions, 0};
    must(bt_device_ops(device)->begin(device, &step, &known) == BT_OK, "step");
    b->args.qkv = b->qkv, b->args.qkv_stride = cols, b->args.out = b->out, b->args.out_stride = a->heads * a->dim;
    b->args.heads = a->heads, b->args.kv_heads = a->kv_heads, b->args.head_dim = a->dim;
    b->args.scale = 0.004f; // scores of a few units, as models have
    b->args.layout = &b->layout, b->args.pool = b->pool, b->args.window = a->window;
    cudaStreamSynchronize(cuda->stream);
    return b;
}

void
attention_bench_close(attention_bench *b)
{
    bt_device_free(device, b->pool, 0);
    bt_device_free(device, b->qkv, 0);
    bt_device_free(device, b->out, 0);
    free(b->spans), free(b->table), free(b->positions), free(b->ids), free(b);
}

void
attention_bench_queue(attention_bench *b, uint32_t call, const float *qkv, float *out, const bt_linear_next *next)
{
    b->args.layer = call % b->layers;
    b->args.qkv = qkv != NULL ? qkv : b->qkv, b->args.out = out != NULL ? out : b->out;
    memset(&b->args.next, 0, sizeof b->args.next);
    if (next != NULL) {
        b->args.next = *next;
    }
    must(bt_device_ops(device)->attention(device, &b->args) == BT_OK, "attention");
}

static void
queue_attention(void *arg)
{
    attention_bench *b = (attention_bench *)arg;

    for (uint32_t i = 0; i < b->layers * b->rounds; i++) {
        attention_bench_queue(b, i, NULL, NULL, NULL);
    }
}

static void
bench_attention(attention_shape a, uint32_t batch, uint32_t context, uint32_t count, bool ragged)
{
    attention_bench *b = attention_bench_open(&a, batch, context, count, ragged);
    double s = seconds_of(queue_attention, b, (int)(b->layers * b->rounds)),
           bytes = (double)b->keys * 2 * a.kv_heads * (a.dim + 2);

    printf("{\"test\":\"attention\",\"heads\":\"%u/%u x "
           "%u\",\"window\":%u,\"batch\":%u,\"context\":%u%s,\"queries\":%u,\"us\":%.1f,\"gb_per_s\":%.0f,\"of_"
           "hbm\":%.2f,"
           "\"tops\":%.1f}\n",
           a.heads, a.kv_heads, a.dim, a.window, batch, context, ragged ? ",\"ragged\":true" : "", count, s * 1e6,
           bytes / s * 1e-9, bytes / s * 1e-9 / hbm_gb,
           4.0 * b->rows * a.heads * a.dim * (context - count / 2.0) / s * 1e-12);
    fflush(stdout);
    attention_bench_close(b);
}

void
bench_attentions(void)
{
    const attention_shape llama8 = {32, 8, 128, 0}, llama70 = {64, 8, 128, 0}, smol = {9, 3, 64, 0},
                          gemma = {4, 1, 256, 512};

    bench_attention(llama8, 1, 1, 1, false);
    bench_attention(llama8, 1, 2048, 1, false);
    bench_attention(llama8, 1, 65536, 1, false);
    bench_attention(llama8, 1, 16384, 1, false);
    bench_attention(llama8, 4, 2048, 1, false);
    bench_attention(llama8, 8, 2048, 1, false);
    bench_attention(llama8, 16, 2048, 1, false);
    bench_attention(llama8, 8, 16384, 1, false);
    bench_attention(llama8, 32, 2048, 1, false);
    bench_attention(llama8, 32, 2080, 1, false);
    bench_attention(llama8, 64, 2080, 1, false);
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
