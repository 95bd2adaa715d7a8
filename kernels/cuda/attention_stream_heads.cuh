// The heads of a step's token, made ready for a warp of attention_stream.cuh: norm, RoPE, shift, INT8; K and V also into the cache.
#pragma once

#include "kernels/cuda/attention_stream.cuh"

template <typename D>
static __device__ __forceinline__ void
stream_load_head(const attention_call &c, const decode_unit &u, uint32_t i, float x[D::steps])
{
    const float *from = raw_head(c, u, i, D::dims) + threadIdx.x % 32;

#pragma unroll
    for (int k = 0; k < D::steps; k++) {
        x[k] = from[32 * k];
    }
}

template <typename D>
static __device__ __forceinline__ void
stream_turn_head(const attention_call &c, const decode_unit &u, const decode_angles<D::steps> &angles, uint32_t head,
                 bool is_k, float *scratch, float x[D::steps])
{
    const float *norm = is_k ? c.a.k_norm : c.a.q_norm;

    if (norm != NULL) {
        norm_head<D::steps>(c, u, norm, head, is_k, x);
    }
    if (c.a.rope_cos != NULL) {
        turn_head<D::steps>(c, u, angles, scratch, x);
    }
    if (c.a.k_shift != NULL) {
        shift_head<D::steps>(c, u, is_k, x);
    }
}

template <typename D>
static __device__ __forceinline__ uint32_t
stream_amax(const float x[D::steps])
{
    uint32_t amax = 0;

#pragma unroll
    for (int k = 0; k < D::steps; k++) {
        uint32_t bits = __float_as_uint(x[k]) & 0x7fffffffu;

        amax = bits > amax ? bits : amax;
    }
    return __reduce_max_sync(0xffffffffu, amax);
}

// bt_ref_kv_scale, as bt_row_int8_scale.
static __device__ __forceinline__ uint16_t
stream_kv_scale(uint32_t amax, float *inverse)
{
    float most = __uint_as_float(amax);

    if (most > 0x1p-7f && most < 0x1p22f) { // the scale is a normal fp16 then, and no more than 65504
        const float part = 1.0f / 127.0f;
        float q = most * part, scale = fmaf(fmaf(-127.0f, q, most), part, q), rounded, r;
        __half half = __float2half_rn(scale);

        rounded = __half2float(half);
        r = bt_reciprocal(rounded);
        *inverse = fmaf(r, fmaf(-rounded, r, 1.0f), r);
        return __half_as_ushort(half);
    }
    return kv_scale(amax, inverse);
}

// The new token's K or V: into the cache, and kept.
template <typename D>
static __device__ __forceinline__ void
stream_keep_new(const attention_call &c, stream_warp<D> &s, const decode_unit &u, uint32_t block, bool is_v,
                const float x[D::steps])
{
    uint32_t lane = threadIdx.x % 32, slot = (u.end - 1) & (c.l.block_tokens - 1);
    uint8_t *layer = (uint8_t *)layer_at(c, block);
    float inverse;
    uint16_t scale = stream_kv_scale(stream_amax<D>(x), &inverse);

    if (lane == 0) {
        s.new_scales[is_v] = __ushort_as_half(scale);
        ((uint16_t *)(layer + (is_v ? c.l.v_scale_offset + u.kv_head * c.l.v_scale_head_bytes
                                    : c.l.k_scale_offset + u.kv_head * c.l.k_scale_head_bytes)))[slot] = scale;
    }
#pragma unroll
    for (int k = 0; k < D::steps; k++) {
        uint32_t d = lane + 32 * k;
        int8_t code = bt_ref_int8_code(x[k], inverse);

        if (is_v) {
            s.new_v[d] = code;
            layer[c.l.v_offset + u.kv_head * c.l.v_head_bytes + (slot / 4 * D::dims + d) * 4 + slot % 4] =
                (uint8_t)code;
        } else {
            s.new_k[d] = code;
            layer[u.kv_head * c.l.k_head_bytes + slot * D::dims + d] = (uint8_t)code;
        }
    }
}

// The query in column i of a (sequence, KV head), as it is multiplied, to each of its `warps`.
template <typename D>
static __device__ __forceinline__ void
stream_keep_query(const attention_call &c, stream_warp<D> *s, uint32_t warps, uint32_t i, const float x[D::steps])
{
    bt_int8_scale scale = bt_row_int8_scale(stream_amax<D>(x));
    int8_t q8[D::steps];

#pragma unroll
    for (int k = 0; k < D::steps; k++) {
        q8[k] = bt_ref_int8_code(x[k], scale.inverse);
    }
    for (; warps != 0; warps--, s++) {
#pragma unroll
        for (int k = 0; k < D::steps; k++) {
            ((int8_t *)s->p + i * D::dims + threadIdx.x % 32)[32 * k] = q8[k];
        }
        if (threadIdx.x % 32 == 0) {
            s->q_scale[i] = scale.scale * c.a.scale;
        }
    }
}

// Of what a (sequence, KV head) needs, queries, new K, new V, the vectors first, first + stride … below `count`, no more than ROOM, are
// handed to `keep` (number, x). All are asked for, then `meanwhile`; and then one after the other by the same instructions: those come
// through memory that is busy with K and V, and four times as many took longer.
template <typename D, int ROOM, typename F, typename G>
static __device__ __forceinline__ void
stream_ready(const attention_call &c, stream_warp<D> &s, const decode_unit &u, uint32_t first, uint32_t stride,
             uint32_t count, F meanwhile, G keep)
{
    const uint32_t columns = D::columns;
    float *scratch = (float *)((int8_t *)s.p + columns * D::dims), x[ROOM][D::steps];
    decode_angles<D::steps> angles;

    load_angles<D::steps>(c, u, angles);
#pragma unroll
    for (uint32_t n = 0; n < ROOM; n++) {
        uint32_t i = first + n * stride;

#pragma unroll
        for (int k = 0; k < D::steps; k++) {
            x[n][k] = 0.0f;
        }
        if (i < columns ? i < c.group : i < count) {
            stream_load_head<D>(c, u, i < columns ? i : c.group + i - columns, x[n]);
        }
    }
    meanwhile();
#pragma unroll 1
    for (uint32_t i = first; i < count; i += stride) {
        float now[D::steps];

#pragma unroll
        for (int k = 0; k < D::steps; k++) {
            now[k] = x[0][k];
#pragma unroll
            for (uint32_t n = 0; n + 1 < ROOM; n++) {
                x[n][k] = x[n + 1][k];
            }
        }
        if (i < c.group || i == columns) {
            stream_turn_head<D>(c, u, angles, i == columns ? u.kv_head : u.kv_head * c.group + i, i == columns, scratch,
                                now);
        }
        keep(i, now);
    }
}

// The block of the step's own token.
static __device__ __forceinline__ uint32_t
stream_new_block(const attention_call &c, const decode_unit &u)
{
    return c.blocks[u.table + ((u.end - 1) >> c.block_shift)];
}

// The bytes that came for the step's own token are old.
template <typename D>
static __device__ __forceinline__ void
stream_put_k(stream_warp<D> &s, uint32_t slot, uint32_t key)
{
    uint32_t lane = threadIdx.x % 32;

    for (uint32_t d = lane; d < D::dims; d += 32) {
        s.tile[slot][stream_place<D>(key) + d] = (uint8_t)s.new_k[d];
    }
    if (lane < 2) {
        s.scales[slot][lane][key] = s.new_scales[lane];
    }
    bt_fence_async();
    __syncwarp();
}

template <typename D>
static __device__ __forceinline__ void
stream_put_v(stream_warp<D> &s, uint32_t slot, uint32_t key)
{
    for (uint32_t d = threadIdx.x % 32; d < D::dims; d += 32) {
        s.tile[slot][stream_place<D>(key / 4 * 4) + d * 4 + key % 4] = (uint8_t)s.new_v[d];
    }
    bt_fence_async();
    __syncwarp();
}
