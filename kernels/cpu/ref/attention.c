#include "kernels/cpu/ref/attention.h"

#define DOT16 bt_ref_dot16
#define ENCODE8 bt_ref_int8_codes
#include "kernels/cpu/ref/attention_prepare.h"

#define TILE BT_ATTENTION_TILE

uint16_t
bt_ref_kv_scale(uint32_t amax_bits, float *inverse)
{
    float scale = bt_float_of_bits(amax_bits) / 127.0f, rounded;
    uint16_t half;

    *inverse = 0.0f;
    if (amax_bits >= 0x7f800000u) {
        return 0x7e00; // the one NaN that we write
    }
    half = bt_f32_to_f16(scale > 65504.0f ? 65504.0f : scale);
    rounded = bt_f16_to_f32(half);
    if (rounded > 0.0f) {
        *inverse = 1.0f / rounded;
    }
    return half;
}

void
bt_ref_attention_whole(const bt_attention_job *job, uint32_t row)
{
    const bt_attention_args *a = job->args;
    uint32_t q_dims = a->heads * a->head_dim, k_dims = a->kv_heads * a->head_dim;

    job->whole[2 * row] = bt_ref_rms_factor(bt_ref_sumsq16(head_of(job, row, 0), q_dims), q_dims, a->norm_eps);
    job->whole[2 * row + 1] =
        bt_ref_rms_factor(bt_ref_sumsq16(head_of(job, row, a->heads), k_dims), k_dims, a->norm_eps);
}

void
bt_ref_attention_prepare(const bt_attention_job *job, const bt_attention_span *span, uint32_t first, uint32_t count,
                         uint32_t kv_head)
{
    prepare(job, span, first, count, kv_head);
}

static float
element(const uint8_t *from, uint32_t i, bt_kv_format format)
{
    uint16_t half;
    float value;

    if (format == BT_KV_F32) {
        memcpy(&value, from + 4 * i, 4);
        return value;
    }
    memcpy(&half, from + 2 * i, 2);
    return bt_f16_to_f32(half);
}

// One query and head, and one of its keys: everything that a score needs.
typedef struct {
    const bt_attention_job *job;
    const bt_attention_span *span;
    uint32_t row, head, kv_head;
} query;

static float
score_int8(const query *q, uint8_t *block, uint32_t slot)
{
    const bt_kv_layout *l = q->job->args->layout;
    size_t at = (size_t)q->row * q->job->args->heads + q->head;
    const int8_t *k = (const int8_t *)bt_kv_k(l, block, q->job->args->layer, q->kv_head) + (size_t)slot * l->head_dim;
    const uint16_t *scales =
        bt_kv_k_scales(l, block, q->job->args->layer, q->kv_head) + (size_t)slot * q->job->scale_groups;
    float sum = 0.0f;

    for (uint32_t g = 0; g < q->job->scale_groups; g++) {
        int32_t dot = 0;

        for (uint32_t i = g * l->k_scale_group; i < (g + 1) * l->k_scale_group; i++) {
            dot += q->job->q8[at * l->head_dim + i] * k[i];
        }
        sum = fmaf((float)dot, bt_f16_to_f32(scales[g]), sum);
    }
    return sum;
}

static float
score_float(const query *q, uint8_t *block, uint32_t slot)
{
    const bt_kv_layout *l = q->job->args->layout;
    const uint8_t *from =
        bt_kv_k(l, block, q->job->args->layer, q->kv_head) + (size_t)slot * l->k_head_bytes / l->block_tokens;
    float k[HEAD_DIM_MAX];

    for (uint32_t i = 0; i < l->head_dim; i++) {
        k[i] = element(from, i, l->format);
    }
    return bt_ref_dot16(q->job->q32 + ((size_t)q->row * q->job->args->heads + q->head) * l->head_dim, k, l->head_dim);
}

// What a score is multiplied by before its power of two is taken, and (with a softcap) before the cap.
static float
weight_of(const query *q)
{
    const bt_attention_args *a = q->job->args;

    return a->layout->format == BT_KV_INT8 ? q->job->q_scale[(size_t)q->row * a->heads + q->head] : a->scale;
}

static float
score(const query *q, uint32_t key)
{
    const bt_attention_args *a = q->job->args;
    uint8_t *block = bt_attention_block(a, q->span, key);
    uint32_t slot = key % a->layout->block_tokens;
    float u = a->layout->format == BT_KV_INT8 ? score_int8(q, block, slot) : score_float(q, block, slot);

    return a->softcap > 0 ? bt_ref_softcap(u * weight_of(q), a->softcap) : u;
}

// acc = fma(scale, codes · v, acc · corr) over keys first … end − 1 of the tile at `tile`; p is zero elsewhere.
static void
add_values_int8(const query *q, uint32_t tile, uint32_t first, uint32_t end, const float p[TILE], float corr,
                float *acc)
{
    const bt_attention_args *a = q->job->args;
    const bt_kv_layout *l = a->layout;
    float w[TILE] = {0}, largest = 0.0f, scale, inverse;
    int32_t codes[TILE] = {0};
    bool poison = false;

    for (uint32_t key = first; key < end; key++) {
        uint8_t *block = bt_attention_block(a, q->span, key);
        float scale_v = bt_f16_to_f32(bt_kv_v_scales(l, block, a->layer, q->kv_head)[key % l->block_tokens]);

        poison |= isnan(scale_v);
        w[key - tile] = p[key - tile] * scale_v;
        largest = w[key - tile] > largest ? w[key - tile] : largest;
    }
    scale = poison ? NAN : largest / 255.0f;
    inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f; // (false for NaN)
    for (uint32_t i = 0; i < TILE; i++) {
        float code = w[i] * inverse;

        codes[i] = isnan(code) ? 0 : (int32_t)((code + BT_ROUND_MAGIC) - BT_ROUND_MAGIC);
    }
    for (uint32_t d = 0; d < l->head_dim; d++) {
        int32_t dot = 0;

        for (uint32_t key = first; key < end; key++) {
            const int8_t *v = (const int8_t *)bt_kv_v(l, bt_attention_block(a, q->span, key), a->layer, q->kv_head);
            uint32_t slot = key % l->block_tokens;

            dot += codes[key - tile] * v[(slot / 4 * l->head_dim + d) * 4 + slot % 4];
        }
        acc[d] = fmaf(scale, (float)dot, acc[d] * corr);
    }
}

static void
add_values_float(const query *q, uint32_t tile, uint32_t first, uint32_t end, const float p[TILE], float corr,
                 float *acc)
{
    const bt_attention_args *a = q->job->args;
    const bt_kv_layout *l = a->layout;

    for (uint32_t d = 0; d < l->head_dim; d++) {
        acc[d] *= corr;
    }
    for (uint32_t key = first; key < end; key++) {
        const uint8_t *v = bt_kv_v(l, bt_attention_block(a, q->span, key), a->layer, q->kv_head) +
                           (size_t)(key % l->block_tokens) * l->v_head_bytes / l->block_tokens;

        for (uint32_t d = 0; d < l->head_dim; d++) {
            acc[d] = fmaf(p[key - tile], element(v, d, l->format), acc[d]);
        }
    }
}

// Keys first … end − 1, all within the tile at `tile`.
static void
attend_tile(const query *q, uint32_t tile, uint32_t first, uint32_t end, float *m, float l[16], float *acc)
{
    float p[TILE] = {0}, before = *m, largest, corr;
    float w = (q->job->args->softcap > 0 ? 1.0f : weight_of(q)) * BT_LOG2_E;

    for (uint32_t key = first; key < end; key++) {
        p[key - tile] = score(q, key);
    }
    largest = w * bt_ref_max(p + (first - tile), end - first);
    *m = largest > before ? largest : before;
    corr = bt_ref_exp2(before - *m);
    for (uint32_t key = first; key < end; key++) {
        float x = fmaf(p[key - tile], w, -*m);

        p[key - tile] = bt_ref_exp2(x > 0.0f ? 0.0f : x);
    }
    for (uint32_t i = 0; i < 16; i++) {
        l[i] = fmaf(l[i], corr, ((p[i] + p[16 + i]) + p[32 + i]) + p[48 + i]);
    }
    if (q->job->args->layout->format == BT_KV_INT8) {
        add_values_int8(q, tile, first, end, p, corr, acc);
    } else {
        add_values_float(q, tile, first, end, p, corr, acc);
    }
}

void
bt_ref_attention_split(const bt_attention_job *job, const bt_attention_span *span, uint32_t token, uint32_t head,
                       uint32_t split, float *partial)
{
    query q = {job, span, span->row + token, head, head / job->group};
    uint32_t end = span->position + token + 1, first = bt_attention_first_key(job->args, end - 1);
    float m = -INFINITY, l[16] = {0}, *acc = partial + BT_PARTIAL_HEAD;

    memset(partial, 0, bt_attention_partial_floats(job->args->head_dim) * sizeof *partial);
    for (uint32_t tile = split * BT_ATTENTION_SPLIT; tile < (split + 1) * BT_ATTENTION_SPLIT; tile += TILE) {
        uint32_t from = first > tile ? first : tile, to = end < tile + TILE ? end : tile + TILE;

        if (from < to) {
            attend_tile(&q, tile, from, to, &m, l, acc);
            partial[BT_PARTIAL_SEEN] = 1.0f;
        }
    }
    partial[BT_PARTIAL_MAX] = m;
    partial[BT_PARTIAL_SUM] = bt_ref_tree16(l);
}

void
bt_ref_attention_merge(float *total, const float *partial, uint32_t head_dim)
{
    float m = total[BT_PARTIAL_MAX], other = partial[BT_PARTIAL_MAX], n = other > m ? other : m, a, b;

    if (partial[BT_PARTIAL_SEEN] == 0.0f) {
        return;
    }
    if (total[BT_PARTIAL_SEEN] == 0.0f) {
        memcpy(total, partial, bt_attention_partial_floats(head_dim) * sizeof *total);
        return;
    }
    a = bt_ref_exp2(m - n);
    b = bt_ref_exp2(other - n);
    total[BT_PARTIAL_MAX] = n;
    total[BT_PARTIAL_SUM] = fmaf(total[BT_PARTIAL_SUM], a, partial[BT_PARTIAL_SUM] * b);
    for (uint32_t d = BT_PARTIAL_HEAD; d < BT_PARTIAL_HEAD + head_dim; d++) {
        total[d] = fmaf(total[d], a, partial[d] * b);
    }
}

void
bt_ref_attention_out(const float *total, uint32_t head_dim, float *out)
{
    float inverse = 1.0f / total[BT_PARTIAL_SUM];

    for (uint32_t d = 0; d < head_dim; d++) {
        out[d] = total[BT_PARTIAL_HEAD + d] * inverse;
    }
}
