// The operations of a transformer, one slot each: what an engine calls, and what a device implements.
//
// `kernels/cpu/ref` is plain C and the specification: for every operation and format it fixes which numbers are rounded
// where and in which order sums are taken (DESIGN 7). Every other CPU path gives the same bits. All activations between
// operations are f32, row-major, one row a token; what is quantised inside an operation is its own business and part of
// its specification. Results never depend on how many tokens share a call, on threads, or on which rows are split where.
//
// A launcher checks its shapes (assert: they are ours), and returns BT_ERR_DEVICE when a device fails. On the CPU a call
// returns when the work is done; on CUDA it is queued.
#pragma once

#include "common/kv/layout.h"
#include "common/quant/format.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A weight matrix in the device's own layout. `data` is allocated and freed by the loader with sizes from
// weight_bytes(); rows of 64 are independent units, so that threads can pack in parallel.
typedef struct {
    bt_format format;
    uint32_t rows, cols;
    uint8_t *data;
    size_t bytes;
    bt_outliers outliers; // row_start NULL = none
} bt_weight;

// y = epilogue(W · quantise(norm(x)) + bias). Up to three matrices of equal cols and act_block share one x (Q|K|V, gate|up):
// their outputs lie side by side in y.
typedef enum {
    BT_LINEAR_STORE,    // y = scale · r
    BT_LINEAR_ADD,      // y = y + scale · r       (the residual stream)
    BT_LINEAR_SILU_MUL, // weights {gate, up}: y [tokens, rows of one] = silu(gate) · up
    BT_LINEAR_GELU_MUL, // the same with tanh-GELU
} bt_linear_epilogue;

// Who reads y (of attention: out): the linear call that comes next on the device, with all of its weights, where that is known. A device may
// do in passing what that call would begin with. If another comes, or y is written in between, the numbers are the same and the passing was
// in vain; only `only` is a promise.
typedef struct {
    const bt_weight *weights[3];
    uint32_t weight_count; // 0 = not known
    const float *norm;
    float norm_eps;
    bool only; // that call reads y, as y is now, and nobody else does: y need not be written
} bt_linear_next;

typedef struct {
    const bt_weight *weights[3];
    const float *biases[3]; // [rows], NULL = none
    uint32_t weight_count;
    uint32_t tokens;
    const float *x;    // [tokens, cols], rows x_stride apart
    size_t x_stride;   // floats
    const float *norm; // [cols] RMSNorm weight applied to x first; NULL = x as it is
    float norm_eps;
    float *y; // [tokens, sum of rows], rows y_stride apart
    size_t y_stride;
    bt_linear_epilogue epilogue;
    float scale;   // 1 unless the architecture multiplies
    float softcap; // > 0: r = softcap · tanh(r / softcap) before storing (Gemma 2's logits)
    bt_linear_next next;
} bt_linear_args;

// One sequence's share of a batch for attention.
typedef struct {
    uint32_t row;      // its first row in qkv/out
    uint32_t count;    // rows = query tokens
    uint32_t position; // absolute position of the first of them; keys 0 … position + count − 1 exist after the call
    const uint32_t *blocks; // KV block indices covering positions 0 … position + count − 1
} bt_attention_span;

// Takes Q|K|V rows, applies head norms, RoPE and the K equaliser, writes K and V to the cache in its format, and attends
// through the cache (DESIGN 1.6: always). out = softmax(scale · q·kᵀ [softcapped], causal, window) · v
typedef struct {
    const float *qkv; // [tokens, (heads + 2 · kv_heads) · head_dim]
    size_t qkv_stride;
    float *out; // [tokens, heads · head_dim]
    size_t out_stride;
    uint32_t heads, kv_heads, head_dim;
    float scale;                  // 1/sqrt(head_dim) in most models
    float softcap;                // > 0: s = softcap · tanh(s / softcap)
    uint32_t window;              // 0 = all; else a position sees itself and the window − 1 before it
    const float *q_norm, *k_norm; // RMSNorm weights, NULL = none
    bool norm_whole; // over all heads together ([heads · head_dim], OLMo 2) instead of per head ([head_dim])
    float norm_eps;
    const float *rope_cos,
        *rope_sin;      // [tokens, rope_dims / 2]: dims i and i + rope_dims/2 turn together; NULL = no RoPE
    uint32_t rope_dims; // ≤ head_dim; the rest passes through
    const int8_t
        *k_shift; // [kv_heads, head_dim / 2] K equaliser: after RoPE, K pair p (dims p, p + head_dim/2) is multiplied
                  // by 2^-shift and Q's by 2^shift. NULL = all 0. Exact.
    const bt_kv_layout *layout;
    uint8_t *pool;  // block b lies at pool + b · layout->block_bytes
    uint32_t layer; // within the layout
    const bt_attention_span *spans;
    uint32_t span_count;
    bt_linear_next next; // who reads all rows of out
} bt_attention_args;

// x[t] += scale · rmsnorm(y[t]) · norm   (post-norms of Gemma and OLMo 2); with norm == NULL x += scale · y.
typedef struct {
    uint32_t tokens, cols;
    float *x;
    size_t x_stride;
    const float *y;
    size_t y_stride;
    const float *norm;
    float norm_eps;
    float scale;
} bt_add_norm_args;

// out[t] = scale · row ids[t] of the table, dequantised. (scale · value is one rounded product.)
typedef struct {
    const bt_weight *table;
    const int32_t *ids; // [tokens], all < table->rows
    uint32_t tokens;
    float *out;
    size_t out_stride;
    float scale;
} bt_embed_args;

// cos/sin of position · inv_freq[i], each times `factor`, for one step's positions: once a step, shared by all layers.
typedef struct {
    const uint32_t *positions; // [tokens]
    uint32_t tokens;
    const float *inv_freq; // [pairs]
    uint32_t pairs;
    float factor;
    float *cos, *sin; // [tokens, pairs]
} bt_rope_args;

// How a row's next token is drawn where the device does it: of the row as it is, the ends that the step names left out or not.
typedef struct {
    uint64_t key;    // of the noise
    float inverse_t; // 0 = greedy: the largest, ties to the lower id
    uint32_t no_end; // 1: the step's ends are not drawn
} bt_draw;

#define BT_DRAW_ENDS_MAX 64

// What a step is over. Host memory, the caller's, unchanged until `end`; ids, positions and spans are also what the operations of
// the step are given.
typedef struct {
    const int32_t *ids;        // [tokens]
    const uint32_t *positions; // [tokens]
    uint32_t tokens;
    const bt_attention_span *spans; // [span_count]
    uint32_t span_count;
    const uint32_t *rows; // [row_count] tokens that want logits, rising
    uint32_t row_count;
    const bt_draw *draws; // [row_count] for devices that have `draw`; NULL = nothing is drawn there
    const int32_t *ends;  // [end_count ≤ BT_DRAW_ENDS_MAX]
    uint32_t end_count;
    bool
        plain; // the operations are to be called one by one, whatever is known of such steps: more is asked between them
} bt_step_args;

// Draws one token a row of logits as the step's draws say, with the bits of the host's sampler (kernels/cpu/ref/draw.h).
typedef struct {
    const float *logits; // [rows, vocab]
    size_t stride;
    uint32_t vocab, rows;
} bt_draw_args;

// Row rows[i] of x to row i. Rows rise, so that none lands on one that is still to be read.
typedef struct {
    float *x;
    size_t x_stride;
    uint32_t cols;
    const uint32_t *rows; // [count]
    uint32_t count;
} bt_gather_args;

struct bt_ops {
    const char *name;
    // Bytes of the device layout of a matrix, and packing into it. `first_row` is a multiple of 64 and so is codes->rows
    // unless it reaches the end. Distinct row ranges may be packed from distinct threads.
    size_t (*weight_bytes)(bt_format format, uint32_t rows, uint32_t cols);
    void (*weight_pack)(const bt_weight *weight, uint32_t first_row, const bt_code_rows *codes);
    // The same for float formats: `rows` rows of `cols` elements of the weight's own kind, cols_stride elements apart.
    void (*weight_pack_floats)(const bt_weight *weight, uint32_t first_row, uint32_t rows, const void *elements,
                               size_t stride);
    // The same from f32, for formats that hold the numbers exactly.
    void (*weight_pack_f32)(const bt_weight *weight, uint32_t first_row, uint32_t rows, const float *elements,
                            size_t stride);
    // The way back, where the layout is in host memory (NULL elsewhere): row `row` as codes [padded cols], and its scales and
    // minima [blocks]; of a float format, `cols` floats.
    void (*weight_row)(const bt_weight *weight, uint32_t row, uint8_t *codes, uint16_t *scales, uint16_t *minima);
    void (*weight_row_floats)(const bt_weight *weight, uint32_t row, float *out);

    // Around the operations of a step. After `begin` said `*known`, the device remembers a step of this shape and does all of its
    // operations in `end`: they are not called. `end` waits until results may be read.
    // BT_ERR_BUSY from `end`: what was recorded cannot be kept, and nothing has run: begin it anew, as `plain`.
    bt_err (*begin)(bt_device *device, const bt_step_args *args, bool *known);
    bt_err (*end)(bt_device *device);
    bt_err (*gather)(bt_device *device, const bt_gather_args *args);

    bt_err (*embed)(bt_device *device, const bt_embed_args *args);
    bt_err (*rope)(bt_device *device, const bt_rope_args *args);
    bt_err (*linear)(bt_device *device, const bt_linear_args *args);
    bt_err (*attention)(bt_device *device, const bt_attention_args *args);
    bt_err (*add_norm)(bt_device *device, const bt_add_norm_args *args);
    // Both NULL where the host draws. After `end`: the step's tokens [rows], -1 for a row without a number; until the next `begin`.
    bt_err (*draw)(bt_device *device, const bt_draw_args *args);
    const int32_t *(*drawn)(const bt_device *device);
};

#ifdef __cplusplus
}
#endif
