// Attention through the KV cache: the specification, which every other path equals to the last bit.
//
// A call has two phases with a barrier between them: first all of its tokens are prepared (K and V written to the cache,
// Q kept aside), then every query attends. A query sees positions up to its own and, with a window, no more than the
// `window` last of them. Whatever is masked is skipped, never multiplied: what lies there may be garbage.
//
// **Prepare**, a token and head at a time:
//   norm   x[i] = (x[i] · factor) · weight[i], factor = 1 / √(sumsq16(x) / n + eps): over a head, or over all heads (whole)
//   rope   x[i], x[i + h] = fma(x[i], cos, −(x[i + h] · sin)), fma(x[i + h], cos, x[i] · sin), each inner product rounded
//   shift  K times 2^-shift, Q times 2^shift, exact
//   INT8   K and V: scale = fp16(min(amax / 127, 65504)), to nearest even; code = round(x · (1 / scale)), half to even,
//          within ±127: against the rounded scale, since that is what the reader has. Q: bt_ref_int8_scale, in f32, kept as
//          scale_q · softmax scale. A vector with a NaN or an infinity has scale NaN and codes 0.
//   F16    K and V rounded to nearest even. Q stays f32.
//
// **Attend**, a query and head at a time. Keys from absolute position 0 are cut into splits of 512 and these into tiles of
// 64; a tile or split of which nothing is visible does not exist. A split starts with m = −inf, l[16] = 0, acc = 0:
//   score  INT8  u = (float)(q · k) · scale_k, w = scale_q · softmax scale; with several K scales a head u is a sum over groups
//                in rising order, u = fma((float)(q · k of the group), scale_k of the group, u) from u = 0
//          else  u = dot16(q, k), w = softmax scale
//          softcap: u becomes softcap · tanh((u · w) / softcap), w = 1.  Then w = w · log2(e).
//   max    n = max(m, w · largest u of the tile), NaNs passed over;  corr = exp2(m − n);  m = n
//   sum    p[key] = exp2(min(0, fma(u[key], w, −m))), 0 where masked;
//          l[i] = fma(l[i], corr, ((p[i] + p[16 + i]) + p[32 + i]) + p[48 + i])
//   value  INT8  w[key] = p[key] · scale_v[key], scale = largest w / 255, code = round(w · (1 / scale)), half to even;
//                acc = fma(scale, (float)(codes · v), acc · corr)
//          else  acc = acc · corr, then for each visible key in order acc = fma(p, v, acc)
// and ends with l = tree16(l). Splits are merged from the left, beginning with the first:
//   n = max(m, m'), a = exp2(m − n), b = exp2(m' − n);  l = fma(l, a, l' · b);  acc = fma(acc, a, acc' · b);  m = n
// and out = acc · (1 / l).
//
// Integer dots are exact and below 2^24, so their order and their conversion to float do not matter. A V scale that is NaN
// makes `scale` NaN; NaN codes are 0.
#pragma once

#include "kernels/ops.h"

#define BT_ATTENTION_TILE 64u
#define BT_ATTENTION_SPLIT 512u

// One call, as its phases see it. Rows are those of qkv and out.
typedef struct {
    const bt_attention_args *args;
    uint32_t group;        // query heads a KV head
    uint32_t scale_groups; // K scales a token and KV head
    int8_t *q8;            // [rows, heads, head_dim], INT8
    float *q_scale;        // [rows, heads]: scale_q · softmax scale
    float *q32;            // [rows, heads, head_dim], F16 and F32
    float *whole;          // [rows, 2] factors of Q and K with norm_whole, made by bt_ref_attention_whole
} bt_attention_job;

// What is known of one (query, head) after some keys: BT_PARTIAL_HEAD floats, then acc [head_dim padded to 16].
enum { BT_PARTIAL_MAX, BT_PARTIAL_SUM, BT_PARTIAL_SEEN, BT_PARTIAL_HEAD = 16 }; // seen: 1, or 0 = no visible key

static inline uint32_t
bt_attention_partial_floats(uint32_t head_dim)
{
    return BT_PARTIAL_HEAD + (head_dim + 15) / 16 * 16;
}

// The visible keys of the query at `position` are *first … position.
static inline uint32_t
bt_attention_first_key(const bt_attention_args *args, uint32_t position)
{
    return args->window == 0 || position + 1 <= args->window ? 0 : position + 1 - args->window;
}

static inline uint8_t *
bt_attention_block(const bt_attention_args *args, const bt_attention_span *span, uint32_t position)
{
    return args->pool + (size_t)span->blocks[position / args->layout->block_tokens] * args->layout->block_bytes;
}

// fp16 scale of a cached vector and what its values are multiplied by to give codes.
uint16_t bt_ref_kv_scale(uint32_t amax_bits, float *inverse);

// Both factors of row `row` when the norm is over all heads together.
void bt_ref_attention_whole(const bt_attention_job *job, uint32_t row);
// Tokens first … first + count − 1 of the span: K and V of one KV head into the cache, Q of its heads into the job.
void bt_ref_attention_prepare(const bt_attention_job *job, const bt_attention_span *span, uint32_t first,
                              uint32_t count, uint32_t kv_head);
// Keys of one split for one query (the span's token `token`) and head.
void bt_ref_attention_split(const bt_attention_job *job, const bt_attention_span *span, uint32_t token, uint32_t head,
                            uint32_t split, float *partial);
// total ∪= partial, which comes right after it; either may have seen nothing.
void bt_ref_attention_merge(float *total, const float *partial, uint32_t head_dim);
void bt_ref_attention_out(const float *total, uint32_t head_dim, float *out);
