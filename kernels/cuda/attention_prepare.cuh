// The first phase of attention: norm, RoPE and shift, K and V into the cache, Q kept aside. One warp a (token, head of Q, K or V).
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/weight.cuh"

#define HEAD_DIM_MAX BT_CUDA_HEAD_DIM_MAX

static __global__ void
whole_kernel(const __grid_constant__ attention_call c)
{
    __shared__ float lanes[2][16];
    const float *row = c.a.qkv + blockIdx.x * c.a.qkv_stride;
    uint32_t q_dims = c.a.heads * c.a.head_dim, k_dims = c.a.kv_heads * c.a.head_dim, is_k = threadIdx.x / 16;

    lanes[is_k][threadIdx.x % 16] = bt_cuda_lane16(is_k ? row + q_dims : row, is_k ? k_dims : q_dims, threadIdx.x % 16);
    __syncwarp();
    if (threadIdx.x % 16 == 0) {
        c.whole[2 * blockIdx.x + is_k] =
            bt_ref_rms_factor(bt_ref_tree16(lanes[is_k]), is_k ? k_dims : q_dims, c.a.norm_eps);
    }
}

// Norm, RoPE and shift of one head, in shared memory, by one warp.
static __device__ void
turn(const attention_call &c, uint32_t row, uint32_t head, bool is_k, float *x, float *lanes)
{
    const float *norm = is_k ? c.a.k_norm : c.a.q_norm;
    uint32_t lane = threadIdx.x, dims = c.a.head_dim, half = c.a.rope_dims / 2, kv_head = is_k ? head : head / c.group;

    if (norm != NULL) {
        float factor;

        if (lane < 16) {
            lanes[lane] = bt_cuda_lane16(x, dims, lane);
        }
        __syncwarp();
        factor = c.a.norm_whole ? c.whole[2 * row + is_k] : bt_ref_rms_factor(bt_ref_tree16(lanes), dims, c.a.norm_eps);
        norm += c.a.norm_whole ? head * dims : 0;
        for (uint32_t i = lane; i < dims; i += 32) {
            x[i] = x[i] * factor * norm[i];
        }
        __syncwarp();
    }
    for (uint32_t i = lane; c.a.rope_cos != NULL && i < half; i += 32) {
        float co = c.a.rope_cos[(size_t)row * half + i], si = c.a.rope_sin[(size_t)row * half + i], low = x[i],
              high = x[i + half];

        x[i] = fmaf(low, co, -(high * si));
        x[i + half] = fmaf(high, co, low * si);
    }
    __syncwarp();
    for (uint32_t i = lane; c.a.k_shift != NULL && i < dims / 2; i += 32) {
        int shift = c.a.k_shift[(size_t)kv_head * (dims / 2) + i];
        float power = bt_ref_exp2i(is_k ? -shift : shift);

        x[i] *= power;
        x[i + dims / 2] *= power;
    }
    __syncwarp();
}

static __device__ __forceinline__ uint32_t
amax_of(const float *x, uint32_t count)
{
    uint32_t amax = 0;

    for (uint32_t i = threadIdx.x; i < count; i += 32) {
        uint32_t bits = bt_bits_of_float(x[i]) & 0x7fffffffu;

        amax = bits > amax ? bits : amax;
    }
    return __reduce_max_sync(0xffffffffu, amax);
}

static __device__ void
write_floats(const attention_call &c, const float *x, uint8_t *to)
{
    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        if (c.l.format == BT_KV_F16) {
            ((__half *)to)[i] = __float2half_rn(x[i]);
        } else {
            ((float *)to)[i] = x[i];
        }
    }
}

static __device__ void
write_k(const attention_call &c, const float *x, uint8_t *layer, uint32_t slot, uint32_t head)
{
    uint8_t *to = layer + head * c.l.k_head_bytes + (size_t)slot * c.l.k_head_bytes / c.l.block_tokens;
    uint16_t *scales = (uint16_t *)(layer + c.l.k_scale_offset + head * c.l.k_scale_head_bytes) + slot * c.scale_groups;

    if (c.l.format != BT_KV_INT8) {
        write_floats(c, x, to);
        return;
    }
    for (uint32_t g = 0; g < c.scale_groups; g++) {
        const float *from = x + g * c.l.k_scale_group;
        float inverse;
        uint16_t scale = kv_scale(amax_of(from, c.l.k_scale_group), &inverse);

        if (threadIdx.x == 0) {
            scales[g] = scale;
        }
        for (uint32_t i = threadIdx.x; i < c.l.k_scale_group; i += 32) {
            ((int8_t *)to)[g * c.l.k_scale_group + i] = bt_ref_int8_code(from[i], inverse);
        }
    }
}

static __device__ void
write_v(const attention_call &c, const float *x, uint8_t *layer, uint32_t slot, uint32_t head)
{
    uint8_t *to = layer + c.l.v_offset + head * c.l.v_head_bytes;
    uint16_t scale;
    float inverse;

    if (c.l.format != BT_KV_INT8) {
        write_floats(c, x, to + (size_t)slot * c.l.v_head_bytes / c.l.block_tokens);
        return;
    }
    scale = kv_scale(amax_of(x, c.a.head_dim), &inverse);
    if (threadIdx.x == 0) {
        ((uint16_t *)(layer + c.l.v_scale_offset + head * c.l.v_scale_head_bytes))[slot] = scale;
    }
    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        ((int8_t *)to)[(slot / 4 * c.a.head_dim + i) * 4 + slot % 4] = bt_ref_int8_code(x[i], inverse);
    }
}

static __device__ void
keep_q(const attention_call &c, const float *x, uint32_t row, uint32_t head)
{
    size_t at = (size_t)row * c.a.heads + head;
    bt_int8_scale s;

    if (c.l.format != BT_KV_INT8) {
        for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
            c.q32[at * c.a.head_dim + i] = x[i];
        }
        return;
    }
    s = bt_ref_int8_scale(amax_of(x, c.a.head_dim));
    if (threadIdx.x == 0) {
        c.q_scale[at] = s.scale * c.a.scale;
    }
    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        c.q8[at * c.a.head_dim + i] = bt_ref_int8_code(x[i], s.inverse);
    }
}

static __global__ void
prepare_kernel(const __grid_constant__ attention_call c)
{
    __shared__ float x[HEAD_DIM_MAX], lanes[16];
    uint32_t row = blockIdx.x, head = blockIdx.y, position = c.positions[row], slot = position % c.l.block_tokens;
    const float *from = c.a.qkv + row * c.a.qkv_stride + (size_t)head * c.a.head_dim;

    for (uint32_t i = threadIdx.x; i < c.a.head_dim; i += 32) {
        x[i] = from[i];
    }
    __syncwarp();
    if (head < c.a.heads) {
        turn(c, row, head, false, x, lanes);
        keep_q(c, x, row, head);
    } else if (head < c.a.heads + c.a.kv_heads) {
        turn(c, row, head - c.a.heads, true, x, lanes);
        write_k(c, x, block_of(c, row, position), slot, head - c.a.heads);
    } else {
        write_v(c, x, block_of(c, row, position), slot, head - c.a.heads - c.a.kv_heads);
    }
}
