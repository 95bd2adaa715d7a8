// The heads of a step's token, made ready for a block of attention_decode.cuh: norm, RoPE, shift, INT8; K and V also into the cache.
#pragma once

#include "kernels/cuda/attention_decode.cuh"

// RMSNorm of a head: x[k] of a lane is dim lane + 32k.
template <int STEPS>
static __device__ __forceinline__ void
norm_head(const attention_call &c, const decode_unit &u, const float *norm, uint32_t head, bool is_k, float x[STEPS])
{
    uint32_t lane = threadIdx.x % 32;
    float sum = 0.0f, factor;

#pragma unroll
    for (int k = 0; k < STEPS; k++) { // lanes 0 … 15 are those of bt_ref_sumsq16
        float other = __shfl_down_sync(0xffffffffu, x[k], 16);

        sum = fmaf(x[k], x[k], sum);
        sum = fmaf(other, other, sum);
    }
#pragma unroll
    for (int i = 8; i > 0; i /= 2) {
        sum = sum + __shfl_xor_sync(0xffffffffu, sum, i);
    }
    sum = __shfl_sync(0xffffffffu, sum, 0);
    factor = c.a.norm_whole ? c.whole[2 * u.row + is_k] : bt_ref_rms_factor(sum, STEPS * 32, c.a.norm_eps);
    norm += c.a.norm_whole ? head * STEPS * 32 : 0;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        x[k] = x[k] * factor * norm[lane + 32 * k];
    }
}

// Sine and cosine of a lane's pairs, where they are dims i and i + head_dim / 2: on their way before the head is needed.
template <int STEPS> struct decode_angles {
    float co[STEPS / 2], si[STEPS / 2];
};

template <int STEPS>
static __device__ __forceinline__ void
load_angles(const attention_call &c, const decode_unit &u, decode_angles<STEPS> &angles)
{
    if (c.a.rope_cos != NULL && c.a.rope_dims == STEPS * 32) {
#pragma unroll
        for (int k = 0; k < STEPS / 2; k++) {
            size_t at = (size_t)u.row * STEPS * 16 + threadIdx.x % 32 + 32 * k;

            angles.co[k] = c.a.rope_cos[at], angles.si[k] = c.a.rope_sin[at];
        }
    }
}

template <int STEPS>
static __device__ __forceinline__ void
turn_head(const attention_call &c, const decode_unit &u, const decode_angles<STEPS> &angles, float *scratch,
          float x[STEPS])
{
    uint32_t lane = threadIdx.x % 32, half = c.a.rope_dims / 2;
    const float *cosines = c.a.rope_cos + (size_t)u.row * half, *sines = c.a.rope_sin + (size_t)u.row * half;

    if (half == STEPS * 16) {
#pragma unroll
        for (int k = 0; k < STEPS / 2; k++) {
            float low = x[k], high = x[k + STEPS / 2];

            x[k] = fmaf(low, angles.co[k], -(high * angles.si[k]));
            x[k + STEPS / 2] = fmaf(high, angles.co[k], low * angles.si[k]);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        scratch[lane + 32 * k] = x[k];
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t d = lane + 32 * k, i = d < half ? d : d - half;

        if (d < 2 * half) {
            float co = cosines[i], si = sines[i], low = scratch[i], high = scratch[i + half];

            x[k] = d < half ? fmaf(low, co, -(high * si)) : fmaf(high, co, low * si);
        }
    }
    __syncwarp();
}

template <int STEPS>
static __device__ __forceinline__ void
shift_head(const attention_call &c, const decode_unit &u, bool is_k, float x[STEPS])
{
#pragma unroll
    for (int k = 0; k < STEPS / 2; k++) {
        int shift = c.a.k_shift[(size_t)u.kv_head * STEPS * 16 + threadIdx.x % 32 + 32 * k];
        float power = bt_ref_exp2i(is_k ? -shift : shift);

        x[k] *= power;
        x[k + STEPS / 2] *= power;
    }
}

// The new token's K or V: into the cache, and kept.
template <typename D>
static __device__ __forceinline__ void
keep_new(const attention_call &c, decode_shared<D> &s, const decode_unit &u, int buffer, uint32_t block, bool is_v,
         uint32_t amax, const float x[])
{
    uint32_t lane = threadIdx.x % 32, slot = (u.end - 1) & (c.l.block_tokens - 1);
    uint8_t *layer = (uint8_t *)layer_at(c, block);
    float inverse;
    uint16_t scale = kv_scale(amax, &inverse);

    if (lane == 0) {
        s.new_scales[buffer][is_v] = __ushort_as_half(scale);
        ((uint16_t *)(layer + (is_v ? c.l.v_scale_offset + u.kv_head * c.l.v_scale_head_bytes
                                    : c.l.k_scale_offset + u.kv_head * c.l.k_scale_head_bytes)))[slot] = scale;
    }
#pragma unroll
    for (int k = 0; k < D::steps; k++) {
        uint32_t d = lane + 32 * k;
        int8_t code = bt_ref_int8_code(x[k], inverse);

        if (is_v) {
            s.new_v[buffer][d] = code;
            layer[c.l.v_offset + u.kv_head * c.l.v_head_bytes + (slot / 4 * D::dims + d) * 4 + slot % 4] = code;
        } else {
            s.new_k[buffer][d] = code;
            layer[u.kv_head * c.l.k_head_bytes + slot * D::dims + d] = code;
        }
    }
}

// The i-th vector that a (sequence, KV head) needs, as it comes: the group's queries, then K and V.
static __device__ __forceinline__ const float *
raw_head(const attention_call &c, const decode_unit &u, uint32_t i, uint32_t dims)
{
    uint32_t head = i < c.group ? u.kv_head * c.group + i : c.a.heads + u.kv_head + (i == c.group ? 0 : c.a.kv_heads);

    return c.a.qkv + u.row * c.a.qkv_stride + (size_t)head * dims;
}

// The queries of a (sequence, KV head), and its new K and V if the block has the last split: heads first, first + stride …, by this
// warp, into buffer `buffer`. `with_v`: the unit's V is fetched, too, after them.
template <typename D>
static __device__ __noinline__ void
make_ready(const attention_call &c, decode_shared<D> &s, const decode_unit &u, bool with_new, int buffer,
           uint32_t first, uint32_t stride, bool with_v)
{
    uint32_t lane = threadIdx.x % 32, count = c.group + (with_new ? 2 : 0);
    uint32_t block = with_new ? c.blocks[u.table + ((u.end - 1) >> c.block_shift)] : 0;
    decode_angles<D::steps> angles;

    for (uint32_t i = first; i < count; i += stride) { // all on their way at once
        const float *from = raw_head(c, u, i, D::dims);

#pragma unroll
        for (int k = 0; k < D::steps; k++) {
            bt_copy4(&s.raw[i][lane + 32 * k], from + lane + 32 * k);
        }
    }
    bt_copy_commit();
    load_angles<D::steps>(c, u, angles);
    if (with_v) {
        fetch_v<D>(c, s, u);
    }
    bt_copy_wait<0>();
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = first; i < count; i += stride) {
        bool is_q = i < c.group, is_v = i == c.group + 1;
        const float *norm = is_q ? c.a.q_norm : c.a.k_norm;
        float x[D::steps];
        uint32_t amax = 0;

#pragma unroll
        for (int k = 0; k < D::steps; k++) { // (what this lane has fetched itself)
            x[k] = s.raw[i][lane + 32 * k];
        }
        if (norm != NULL && !is_v) {
            norm_head<D::steps>(c, u, norm, is_q ? u.kv_head * c.group + i : u.kv_head, !is_q, x);
        }
        if (c.a.rope_cos != NULL && !is_v) {
            turn_head<D::steps>(c, u, angles, s.raw[i], x);
        }
        if (c.a.k_shift != NULL && !is_v) {
            shift_head<D::steps>(c, u, !is_q, x);
        }
#pragma unroll
        for (int k = 0; k < D::steps; k++) {
            uint32_t bits = __float_as_uint(x[k]) & 0x7fffffffu;

            amax = bits > amax ? bits : amax;
        }
        amax = __reduce_max_sync(0xffffffffu, amax);
        if (is_q) {
            bt_int8_scale scale = bt_ref_int8_scale(amax);

#pragma unroll
            for (int k = 0; k < D::steps; k++) {
                s.q8[buffer][i][lane + 32 * k] = bt_ref_int8_code(x[k], scale.inverse);
            }
            if (lane == 0) {
                s.q_scale[buffer][i] = scale.scale * c.a.scale;
            }
        } else {
            keep_new<D>(c, s, u, buffer, block, is_v, amax, x);
        }
    }
}
