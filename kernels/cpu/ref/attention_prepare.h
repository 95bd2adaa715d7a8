// The first phase of attention (ref/attention.h), written once: ref and every instruction set compile these same lines, and
// compilers vectorise them without changing a bit, since each element is a thing of its own. What they do not vectorise is
// given by the includer: DOT16 (bt_ref_dot16) and ENCODE8 (codes[i] = bt_ref_int8_code(x[i], inverse)).
#pragma once

#include "kernels/cpu/ref/attention.h"

#include "common/tensor/dtype.h"
#include "kernels/cpu/ref/math.h"

#define HEAD_DIM_MAX 512

// Where head `head` of Q (0 … heads − 1), K (heads …) or V (heads + kv_heads …) begins in a row.
static inline const float *
head_of(const bt_attention_job *job, uint32_t row, uint32_t head)
{
    return job->args->qkv + row * job->args->qkv_stride + (size_t)head * job->args->head_dim;
}

// Norm, RoPE and shift of one head of Q or K. `head` counts within Q or K.
static inline void
turn(const bt_attention_job *job, uint32_t row, uint32_t head, bool is_k, float *x)
{
    const bt_attention_args *a = job->args;
    const float *from = head_of(job, row, is_k ? a->heads + head : head), *norm = is_k ? a->k_norm : a->q_norm;
    uint32_t dims = a->head_dim, half = a->rope_dims / 2, kv_head = is_k ? head : head / job->group;

    memcpy(x, from, dims * sizeof *x);
    if (norm != NULL) {
        float factor =
            a->norm_whole ? job->whole[2 * row + is_k] : bt_ref_rms_factor(DOT16(x, x, dims), dims, a->norm_eps);

        norm += a->norm_whole ? head * dims : 0;
        for (uint32_t i = 0; i < dims; i++) {
            x[i] = x[i] * factor * norm[i];
        }
    }
    for (uint32_t i = 0; a->rope_cos != NULL && i < half; i++) {
        float c = a->rope_cos[(size_t)row * half + i], s = a->rope_sin[(size_t)row * half + i], low = x[i],
              high = x[i + half];

        x[i] = fmaf(low, c, -(high * s));
        x[i + half] = fmaf(high, c, low * s);
    }
    if (a->k_shift != NULL) {
        const int8_t *shift = a->k_shift + (size_t)kv_head * (dims / 2);

        for (uint32_t i = 0; i < dims / 2; i++) {
            float power = bt_ref_exp2i(is_k ? -shift[i] : shift[i]);

            x[i] *= power;
            x[i + dims / 2] *= power;
        }
    }
}

static inline void
write_floats(const float *x, uint8_t *to, uint32_t dims, bt_kv_format format)
{
    for (uint32_t i = 0; i < dims; i++) {
        uint16_t half = bt_f32_to_f16(x[i]);

        if (format == BT_KV_F16) {
            memcpy(to + 2 * i, &half, 2);
        } else {
            memcpy(to + 4 * i, &x[i], 4);
        }
    }
}

static inline void
write_k(const bt_attention_job *job, const float *x, uint8_t *block, uint32_t slot, uint32_t kv_head)
{
    const bt_kv_layout *l = job->args->layout;
    uint8_t *to = bt_kv_k(l, block, job->args->layer, kv_head) + (size_t)slot * l->k_head_bytes / l->block_tokens;
    uint16_t *scales = bt_kv_k_scales(l, block, job->args->layer, kv_head) + (size_t)slot * job->scale_groups;

    if (l->format != BT_KV_INT8) {
        write_floats(x, to, l->head_dim, l->format);
        return;
    }
    for (uint32_t g = 0; g < job->scale_groups; g++) {
        uint32_t first = g * l->k_scale_group;
        float inverse;

        scales[g] = bt_ref_kv_scale(bt_ref_amax_bits(x + first, l->k_scale_group), &inverse);
        ENCODE8(x + first, l->k_scale_group, inverse, (int8_t *)to + first);
    }
}

static inline void
write_v(const bt_attention_job *job, const float *x, uint8_t *block, uint32_t slot, uint32_t kv_head)
{
    const bt_kv_layout *l = job->args->layout;
    uint8_t *to = bt_kv_v(l, block, job->args->layer, kv_head);
    int8_t codes[HEAD_DIM_MAX];
    float inverse;

    if (l->format != BT_KV_INT8) {
        write_floats(x, to + (size_t)slot * l->v_head_bytes / l->block_tokens, l->head_dim, l->format);
        return;
    }
    bt_kv_v_scales(l, block, job->args->layer, kv_head)[slot] =
        bt_ref_kv_scale(bt_ref_amax_bits(x, l->head_dim), &inverse);
    ENCODE8(x, l->head_dim, inverse, codes);
    to += (size_t)(slot / 4) * l->head_dim * 4 + slot % 4;
    for (uint32_t i = 0; i < l->head_dim; i++) {
        to[4 * i] = (uint8_t)codes[i];
    }
}

// V of four tokens that lie together, rows `stride` floats apart.
static inline void
write_four_v(const bt_attention_job *job, const float *x, size_t stride, uint8_t *block, uint32_t slot,
             uint32_t kv_head)
{
    const bt_kv_layout *l = job->args->layout;
    uint16_t *scales = bt_kv_v_scales(l, block, job->args->layer, kv_head) + slot;
    uint8_t *to = bt_kv_v(l, block, job->args->layer, kv_head) + (size_t)slot * l->head_dim;
    int8_t codes[4][HEAD_DIM_MAX];

    for (uint32_t t = 0; t < 4; t++) {
        float inverse;

        scales[t] = bt_ref_kv_scale(bt_ref_amax_bits(x + t * stride, l->head_dim), &inverse);
        ENCODE8(x + t * stride, l->head_dim, inverse, codes[t]);
    }
    for (uint32_t i = 0; i < l->head_dim; i++) {
        uint32_t four = (uint8_t)codes[0][i] | (uint32_t)(uint8_t)codes[1][i] << 8 |
                        (uint32_t)(uint8_t)codes[2][i] << 16 | (uint32_t)(uint8_t)codes[3][i] << 24;

        memcpy(to + 4 * i, &four, 4);
    }
}

static inline void
keep_q(const bt_attention_job *job, const float *x, uint32_t row, uint32_t head)
{
    const bt_attention_args *a = job->args;
    size_t at = (size_t)row * a->heads + head;
    bt_int8_scale s;

    if (a->layout->format != BT_KV_INT8) {
        memcpy(job->q32 + at * a->head_dim, x, a->head_dim * sizeof *x);
        return;
    }
    s = bt_ref_int8_scale(bt_ref_amax_bits(x, a->head_dim));
    job->q_scale[at] = s.scale * a->scale;
    ENCODE8(x, a->head_dim, s.inverse, job->q8 + at * a->head_dim);
}

static inline void
prepare(const bt_attention_job *job, const bt_attention_span *span, uint32_t first, uint32_t count, uint32_t kv_head)
{
    const bt_attention_args *a = job->args;
    float x[HEAD_DIM_MAX];
    uint32_t written = first; // V of tokens before this one

    for (uint32_t token = first; token < first + count; token++) {
        uint32_t row = span->row + token, position = span->position + token, slot = position % a->layout->block_tokens;
        uint8_t *block = bt_attention_block(a, span, position);
        const float *v = head_of(job, row, a->heads + a->kv_heads + kv_head);

        turn(job, row, kv_head, true, x);
        write_k(job, x, block, slot, kv_head);
        if (a->layout->format == BT_KV_INT8 && slot % 4 == 0 && first + count - token >= 4) {
            write_four_v(job, v, a->qkv_stride, block, slot, kv_head);
            written = token + 4;
        } else if (token >= written) {
            write_v(job, v, block, slot, kv_head);
        }
        for (uint32_t head = kv_head * job->group; head < (kv_head + 1) * job->group; head++) {
            turn(job, row, head, false, x);
            keep_q(job, x, row, head);
        }
    }
}
