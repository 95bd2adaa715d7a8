// bench_cuda: 16-bit weights.
#include "kernels/bench/bench_cuda.cuh"

#include <stdio.h>
#include <string.h>

#define COPIES 4

typedef struct {
    bt_cublas_shape shape;
    uint8_t *weights[COPIES], *x, *out;
} product_bench;

static void
queue_products(void *arg)
{
    product_bench *b = (product_bench *)arg;

    for (int i = 0; i < COPIES; i++) {
        must(bt_cublas_product(cuda->cublas, &b->shape, b->weights[i], b->x, b->out) == BT_OK, "cuBLASLt");
    }
}

// bf16 to f32, nothing before and nothing after it.
static void
bench_product(uint64_t rows, uint64_t cols, uint64_t tokens)
{
    product_bench b = {{rows, cols, tokens, cols, cols, rows, 1}, {}, NULL, NULL};
    double s;

    b.x = (uint8_t *)bt_device_alloc(device, tokens * cols * 2);
    b.out = (uint8_t *)bt_device_alloc(device, tokens * rows * 4);
    must(b.x != NULL && b.out != NULL, "memory");
    fill(b.x, tokens * cols * 2, 3, 0x80ff80ffu, 0x3f003f00u);
    for (int i = 0; i < COPIES; i++) {
        b.weights[i] = (uint8_t *)bt_device_alloc(device, rows * cols * 2);
        must(b.weights[i] != NULL, "memory");
        fill(b.weights[i], rows * cols * 2, 9 + (uint32_t)i, 0x80ff80ffu, 0x3c003c00u);
    }
    if (bt_cublas_has(cuda->cublas, &b.shape, NULL)) {
        s = seconds_of(queue_products, &b, COPIES);
        printf("{\"test\":\"cublas_bf16\",\"rows\":%llu,\"cols\":%llu,\"tokens\":%llu,\"us\":%.1f,\"tops\":%.0f}\n",
               (unsigned long long)rows, (unsigned long long)cols, (unsigned long long)tokens, s * 1e6,
               2e-12 * (double)(rows * cols * tokens) / s);
    }
    for (int i = 0; i < COPIES; i++) {
        bt_device_free(device, b.weights[i], 0);
    }
    bt_device_free(device, b.x, 0);
    bt_device_free(device, b.out, 0);
    fflush(stdout);
}

void
bench_halves(const char *only)
{
    static const token_list few = {{1, 2, 8, 16, 32, 64, 128}, 7}, most = {{1, 2, 8, 16, 32, 64}, 6},
                            many = {{129, 256, 512, 2048, 8192}, 5};
    static const uint64_t products[4][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
    const bt_format bf16 = {BT_WEIGHT_BF16, 0, false, 0, 0}, f16 = {BT_WEIGHT_F16, 0, false, 0, 0};
    const linear_shape layer[4] = {{"bf16 8b qkv", bf16, 3, {4096, 1024, 1024}, 4096, BT_LINEAR_STORE, true, 0},
                                   {"bf16 8b o", bf16, 1, {4096}, 4096, BT_LINEAR_ADD, false, 0},
                                   {"bf16 8b gate|up", bf16, 2, {14336, 14336}, 4096, BT_LINEAR_SILU_MUL, true, 0},
                                   {"bf16 8b down", bf16, 1, {4096}, 14336, BT_LINEAR_ADD, false, 0}};
    const linear_shape down = {"f16 8b down", f16, 1, {4096}, 14336, BT_LINEAR_ADD, false, 0};
    const linear_shape head = {"bf16 8b head", bf16, 1, {128256}, 4096, BT_LINEAR_STORE, true, 0};

    if (strstr("half-layer", only) != NULL) {
        bench_layer("bf16 8b", layer, few);
        bench_layer("bf16 8b", layer, many);
    }
    for (int i = 0; i < 4 && strstr("half-few", only) != NULL; i++) {
        bench_linear(&layer[i], few);
    }
    if (strstr("half-few", only) != NULL) {
        bench_linear(&down, few);
        bench_linear(&head, most);
    }
    for (int i = 0; i < 4 && strstr("half-many", only) != NULL; i++) {
        bench_linear(&layer[i], many);
    }
    for (int i = 0; i < 4 && strstr("half-many", only) != NULL && cuda->cublas != NULL; i++) {
        bench_product(products[i][0], products[i][1], 2048);
        bench_product(products[i][0], products[i][1], 8192);
        bench_product(products[i][0], products[i][1], 64);
    }
}
