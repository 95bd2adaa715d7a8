// What the parts of bench_cuda share: the device, what it gives, and how a call is timed. A failure ends the program.
#pragma once

#include "kernels/cuda/cuda.cuh"

extern bt_device *device;
extern bt_cuda *cuda;
extern double hbm_gb, int8_tops, bf16_tflops; // of this device in this run

void must(bool good, const char *what);
// Seconds of one of `count` calls that `queue` makes, recorded once: the median of replays.
double seconds_of(void (*queue)(void *arg), void *arg, int count);
// Device memory with numbers of no kind in particular, so that nothing is zero: (some & mask) | base.
void fill(void *to, size_t bytes, uint32_t seed, uint32_t mask, uint32_t base);

// ---- bench_cuda_linear.cu ----

// A linear call of a model: its matrices lie side by side.
typedef struct {
    const char *name;
    bt_format format;
    uint32_t parts, rows[3], cols;
    bt_linear_epilogue epilogue;
    bool norm;
    uint32_t every; // one weight in so many is an outlier; 0 = none
    bool crowded;   // all in a few rows, each with as many as one can have, instead of the same in all
} linear_shape;

#define TOKENS_NAMED_MAX 32

// Numbers of tokens, one or more.
typedef struct {
    uint32_t tokens[TOKENS_NAMED_MAX];
    int count;
} token_list;

uint32_t most_of(token_list l);
// A line for each number of tokens.
void bench_linear(const linear_shape *shape, token_list tokens);
// The same of the four linear calls of a layer in a row.
void bench_layer(const char *name, const linear_shape shapes[4], token_list tokens);
// They, one after the other as a step queues them, of up to `most` tokens.
typedef struct layer_bench layer_bench;
typedef struct attention_bench attention_bench;
layer_bench *layer_bench_open(const linear_shape shapes[4], uint32_t most);
void layer_bench_close(layer_bench *b);
// A line. With `attention`, of as many sequences as tokens, also what is between the first two; NULL: without.
void layer_bench_run(layer_bench *b, const char *name, uint32_t tokens, attention_bench *attention);
// Seconds of what goes before a call, of `count` such calls.
double prologue_seconds(const bt_linear_args *args, int count);

// ---- bench_cuda_half.cu, bench_cuda_chain.cu, bench_cuda_attention.cu ----

// 16-bit weights in an 8B shape, few tokens and many, and beside them cuBLASLt's product alone: of half-layer, half-few and half-many those
// that have `only` in their names.
void bench_halves(const char *only);

// The linear layers of a prompt, as an engine calls them: with our own kernel, if the GPU has it, and with cuBLASLt. `only` so many tokens,
// unless that is 0.
void bench_chains(bt_format w8, uint32_t only);
void bench_attentions(void);

typedef struct {
    uint32_t heads, kv_heads, dim, window;
} attention_shape;

// Sequences with their INT8 caches, which the step that is begun here names, until the next.
attention_bench *attention_bench_open(const attention_shape *shape, uint32_t batch, uint32_t context, uint32_t count,
                                      bool ragged);
void attention_bench_close(attention_bench *b);
// The `call`-th call of a step. NULL: of its own rows, to its own; nobody known reads those.
void attention_bench_queue(attention_bench *b, uint32_t call, const float *qkv, float *out, const bt_linear_next *next);
