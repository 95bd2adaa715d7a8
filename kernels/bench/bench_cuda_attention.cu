// bench_cuda: attention, of many sequences and of long ones, with INT8 caches.
#include "kernels/bench/bench_cuda.cuh"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void
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
