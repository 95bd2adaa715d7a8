// What the launcher of attention and its paths share: an item of work, and the functions an instruction set provides.
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ref/attention.h"

// Queries `first` … of a span against the keys of one KV head, all of its query heads together, so that each key is read
// once for all of them.
typedef struct {
    const bt_attention_job *job;
    const bt_attention_span *span;
    uint32_t first, count; // tokens of the span
    uint32_t kv_head;
    uint32_t split;  // with partials: only this split
    float *partials; // NULL: all splits, merged, go to out. Else [rows, heads, splits, partial] of the call
    uint32_t splits;
    uint8_t *scratch; // of this thread, 64-byte aligned, bt_attention_item_bytes
} bt_attention_item;

typedef struct {
    void (*prepare)(const bt_attention_job *job, const bt_attention_span *span, uint32_t first, uint32_t count,
                    uint32_t kv_head);
    void (*attend)(const bt_attention_item *item);
    // total [partial] = the splits of one query and head, merged; out = its quotient.
    void (*finish)(float *partials, uint32_t splits, uint32_t head_dim, float *out);
} bt_attention_path;

extern const bt_attention_path bt_attention_path_ref;
#if defined(__x86_64__)
extern const bt_attention_path bt_attention_path_avx2, bt_attention_path_avx512;
#endif

// Query rows (token, head of the group) that an item may have: what keeps its accumulators in the nearest caches, and
// never less than one token.
static inline uint32_t
bt_attention_item_tokens(uint32_t group, uint32_t head_dim)
{
    uint32_t rows = 8192 / head_dim;

    rows = rows < 16 ? 16 : rows > 64 ? 64 : rows;
    return rows < group ? 1 : rows / group;
}

static inline float *
bt_attention_partial(float *partials, uint32_t splits, const bt_attention_job *job, uint32_t row, uint32_t head)
{
    return partials +
           ((size_t)row * job->args->heads + head) * splits * bt_attention_partial_floats(job->args->head_dim);
}

// Where the parts of a thread's scratch lie; base NULL only counts.
typedef struct {
    uint8_t *k;                    // INT8: the tile as [dim / 4][64 keys][4] + 128
    float *k_scales;               // [scale groups][64]
    float *v_scales;               // [64]
    float *k32, *v32;              // F16, F32: the tile as [64][dim padded]
    int8_t *q8;                    // [rows][dim]
    float *q32;                    // [rows][dim padded]
    float *q_scale;                // [rows]: what u is multiplied by before a softcap
    float *w, *m;                  // [rows]: … before exp2; the running maximum
    int32_t *q_sum;                // [rows][scale groups]: −128 · sum of the codes
    uint32_t *key_first, *key_end; // [rows] visible keys
    float *split;                  // [rows][partial]
    float *lanes;                  // [rows][16]
    float *total;                  // [rows][partial]
    uint8_t *codes;                // [4 rows][64]
    size_t bytes;
} bt_attention_scratch;

bt_attention_scratch bt_attention_carve(uint8_t *base, uint32_t rows, uint32_t head_dim, bool floats);
