// The first phase of attention for many tokens, INT8: norm, RoPE and shift, K and V into the cache, Q kept aside.
//
// A warp takes a window of eight positions (8 w … 8 w + 7 of the sequence, of which the tile may have fewer) and some heads, one after the
// other. Lane (token, j) holds of its vector the dims 16 k + 4j … + 3, so
//   - loads are sixteen bytes, and a warp's are whole sectors;
//   - the sixteen lanes of a sum of squares are 4 here and 12 in the three lanes beside it, each in rising order;
//   - both dims of a RoPE or shift pair are in one lane, and the angles serve all heads.
// Codes change places on the way out so that stores are sixteen bytes, too: of Q and K among the four lanes of a token, of V ([token / 4]
// [dim][4]) among four tokens. Four tokens that are not all here store V byte by byte: what lies between belongs to another call.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_softmax.cuh"

#define PREPARE_WARPS 8u
#define PREPARE_EACH 3u // heads a warp, where there are many tokens: 1 and 2 took 27 and 25 us where 3 took 24

// Which vector the lane works on.
typedef struct {
    uint32_t row, position, j;
    bool here, wide; // wide: rows of qkv lie at sixteen bytes
} prepare_lane;

// Word i of lane a against word a of lane i, for four lanes `step` apart.
static __device__ __forceinline__ void
prepare_exchange(uint32_t w[4], uint32_t lane, uint32_t step)
{
#pragma unroll
    for (uint32_t bit = 2; bit != 0; bit /= 2) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if ((i & bit) == 0) {
                bool upper = (lane / step & bit) != 0;
                uint32_t come = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i | bit], bit * step);

                w[i] = upper ? come : w[i];
                w[i | bit] = upper ? w[i | bit] : come;
            }
        }
    }
}

// Byte i of word a against byte a of word i.
static __device__ __forceinline__ uint4
prepare_turn_bytes(const uint32_t w[4])
{
    uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140); // bytes 0, 0, 1, 1
    uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);

    return make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
                      __byte_perm(c, d, 0x7632));
}

// Lane i of the sixteen that a sum has is 4j + e of lane j: the tree of sixteen.
static __device__ __forceinline__ float
prepare_tree(float l[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        l[e] = l[e] + __shfl_xor_sync(0xffffffffu, l[e], 2);
        l[e] = l[e] + __shfl_xor_sync(0xffffffffu, l[e], 1);
    }
    return (l[0] + l[2]) + (l[1] + l[3]);
}

template <int DIM>
static __device__ __forceinline__ void
prepare_read(const attention_call &c, const prepare_lane &v, uint32_t head, float x[DIM / 16][4])
{
    const float *from = c.a.qkv + v.row * c.a.qkv_stride + (size_t)head * DIM + v.j * 4;

#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        if (v.here && v.wide) {
            four = *(const float4 *)(from + k * 16);
        } else if (v.here) {
            four = make_float4(from[k * 16], from[k * 16 + 1], from[k * 16 + 2], from[k * 16 + 3]);
        }
        x[k][0] = four.x, x[k][1] = four.y, x[k][2] = four.z, x[k][3] = four.w;
    }
}

template <int DIM>
static __device__ __forceinline__ void
prepare_norm(const attention_call &c, const prepare_lane &v, bool is_k, uint32_t head, float x[DIM / 16][4])
{
    const float *norm = (is_k ? c.a.k_norm : c.a.q_norm) + (c.a.norm_whole ? head * DIM : 0);
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}, factor;

#pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        sums[i % 4] = fmaf(x[i / 4][i % 4], x[i / 4][i % 4], sums[i % 4]);
    }
    factor = prepare_tree(sums);
    factor = c.a.norm_whole ? c.whole[2 * v.row + is_k] : bt_ref_rms_factor(factor, DIM, c.a.norm_eps);
#pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        x[i / 4][i % 4] = x[i / 4][i % 4] * factor * norm[i / 4 * 16 + v.j * 4 + i % 4];
    }
}

template <int DIM>
static __device__ __forceinline__ void
prepare_shift(const attention_call &c, const prepare_lane &v, bool is_k, uint32_t kv_head, float x[DIM / 16][4])
{
    const int8_t *shifts = c.a.k_shift + (size_t)kv_head * (DIM / 2) + v.j * 4;

#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        int shift = shifts[i / 4 * 16 + i % 4];
        float power = bt_ref_exp2i(is_k ? -shift : shift);

        x[i / 4][i % 4] *= power;
        x[i / 4 + DIM / 32][i % 4] *= power;
    }
}

// The vector's codes, four dims a word.
template <int DIM>
static __device__ __forceinline__ void
prepare_codes(const float x[DIM / 16][4], float inverse, uint32_t words[DIM / 16])
{
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t bits[4];

#pragma unroll
        for (int e = 0; e < 4; e++) {
            bits[e] = __float_as_uint(fminf(fmaxf(x[k][e] * inverse, -127.0f), 127.0f) + BT_ROUND_MAGIC);
        }
        words[k] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
        words[k] = inverse == 0.0f ? 0 : words[k]; // whatever x is
    }
}

template <int DIM>
static __device__ __forceinline__ uint32_t
prepare_amax(const float x[DIM / 16][4])
{
    uint32_t amax = 0;

#pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        amax = max(amax, __float_as_uint(x[i / 4][i % 4]) & 0x7fffffffu);
    }
    amax = max(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    return max(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
}

// A vector of Q or K as it lies: [dim].
template <int DIM>
static __device__ __forceinline__ void
prepare_store(const prepare_lane &v, uint8_t *to, uint32_t words[DIM / 16])
{
#pragma unroll
    for (int k = 0; k < DIM / 16; k += 4) {
        prepare_exchange(words + k, v.j, 1);
        if (v.here) {
            *(uint4 *)(to + (k + v.j) * 16) = make_uint4(words[k], words[k + 1], words[k + 2], words[k + 3]);
        }
    }
}

// V of the window's tokens: `to` is dim 0 of the token's four.
template <int DIM>
static __device__ __forceinline__ void
prepare_store_v(const prepare_lane &v, uint8_t *to, uint32_t words[DIM / 16])
{
    uint32_t lane = threadIdx.x % 32, four = __ballot_sync(0xffffffffu, v.here) >> (lane / 16 * 16) & 0xffff;

    if (v.here && four != 0xffff) {
#pragma unroll
        for (int i = 0; i < DIM / 4; i++) {
            to[(i / 4 * 16 + v.j * 4 + i % 4) * 4 + v.position % 4] = (uint8_t)(words[i / 4] >> (i % 4 * 8));
        }
    }
#pragma unroll
    for (int k = 0; k < DIM / 16; k += 4) {
        prepare_exchange(words + k, lane, 4);
        if (four == 0xffff) {
            *(uint4 *)(to + ((k + v.position % 4) * 16 + v.j * 4) * 4) = prepare_turn_bytes(words + k);
        }
    }
}

// cos and sin of the lane's pairs.
template <int DIM> struct prepare_angles {
    float co[DIM / 32][4], si[DIM / 32][4];
};

template <int DIM>
static __device__ __forceinline__ void
prepare_read_angles(const attention_call &c, const prepare_lane &v, prepare_angles<DIM> &angles)
{
#pragma unroll
    for (int k = 0; k < DIM / 32; k++) {
        size_t at = (size_t)v.row * (DIM / 2) + k * 16 + v.j * 4;
        float4 co = *(const float4 *)(c.a.rope_cos + at), si = *(const float4 *)(c.a.rope_sin + at);

        angles.co[k][0] = co.x, angles.co[k][1] = co.y, angles.co[k][2] = co.z, angles.co[k][3] = co.w;
        angles.si[k][0] = si.x, angles.si[k][1] = si.y, angles.si[k][2] = si.z, angles.si[k][3] = si.w;
    }
}

template <int DIM, bool ROPE>
static __device__ __forceinline__ void
prepare_turn(const attention_call &c, const prepare_lane &v, bool is_k, uint32_t head,
             const prepare_angles<DIM> &angles, float x[DIM / 16][4])
{
    if ((is_k ? c.a.k_norm : c.a.q_norm) != NULL) {
        prepare_norm<DIM>(c, v, is_k, head, x);
    }
#pragma unroll
    for (int i = 0; ROPE && i < DIM / 8; i++) {
        float low = x[i / 4][i % 4], high = x[i / 4 + DIM / 32][i % 4], co = angles.co[i / 4][i % 4],
              si = angles.si[i / 4][i % 4];

        x[i / 4][i % 4] = fmaf(low, co, -(high * si));
        x[i / 4 + DIM / 32][i % 4] = fmaf(high, co, low * si);
    }
    if (c.a.k_shift != NULL) {
        prepare_shift<DIM>(c, v, is_k, is_k ? head : head / c.group, x);
    }
}

// One head of the window: of Q, then of K, then of V.
template <int DIM, bool ROPE>
static __device__ __forceinline__ void
prepare_head(const attention_call &c, const prepare_lane &v, uint8_t *layer, uint32_t head,
             const prepare_angles<DIM> &angles)
{
    uint32_t slot = v.position % c.l.block_tokens, words[DIM / 16];
    float x[DIM / 16][4], inverse;

    prepare_read<DIM>(c, v, head, x);
    if (head < c.a.heads) {
        size_t at = (size_t)v.row * c.a.heads + head;

        prepare_turn<DIM, ROPE>(c, v, false, head, angles, x);
        bt_int8_scale scale = bt_ref_int8_scale(prepare_amax<DIM>(x));
        prepare_codes<DIM>(x, scale.inverse, words);
        prepare_store<DIM>(v, (uint8_t *)c.q8 + at * DIM, words);
        if (v.here && v.j == 0) {
            c.q_scale[at] = scale.scale * c.a.scale;
        }
        return;
    }
    head -= c.a.heads;
    bool is_k = head < c.a.kv_heads;
    head -= is_k ? 0 : c.a.kv_heads;
    if (is_k) {
        prepare_turn<DIM, ROPE>(c, v, true, head, angles, x);
    }
    uint16_t scale = kv_scale(prepare_amax<DIM>(x), &inverse);
    prepare_codes<DIM>(x, inverse, words);
    if (is_k) {
        prepare_store<DIM>(v, layer + head * c.l.k_head_bytes + (size_t)slot * DIM, words);
    } else {
        prepare_store_v<DIM>(v, layer + c.l.v_offset + head * c.l.v_head_bytes + (size_t)(slot / 4) * DIM * 4, words);
    }
    if (v.here && v.j == 0) {
        ((uint16_t *)(layer + (is_k ? c.l.k_scale_offset + head * c.l.k_scale_head_bytes
                                    : c.l.v_scale_offset + head * c.l.v_scale_head_bytes)))[slot] = scale;
    }
}

// Blocks: [tile][window], and heads_each · PREPARE_WARPS heads of all.
template <int DIM, bool ROPE>
static __global__ void
__launch_bounds__(PREPARE_WARPS * 32, DIM == 64    ? 3
                                      : DIM == 128 ? 2
                                                   : 1)
    prompt_prepare_kernel(const __grid_constant__ attention_call c, const bt_cuda_tile *tiles, uint32_t windows,
                          uint32_t heads_each)
{
    uint32_t lane = threadIdx.x % 32, head = (blockIdx.y * PREPARE_WARPS + threadIdx.x / 32) * heads_each;
    uint32_t heads = c.a.heads + 2 * c.a.kv_heads, last = head + heads_each < heads ? head + heads_each : heads;
    bt_cuda_tile tile;
    prepare_angles<DIM> angles;
    prepare_lane v;

    bt_wait_before();
    bt_let_next();
    tile = tiles[blockIdx.x / windows];
    uint32_t first = c.positions[tile.row], window = first / 8 * 8 + blockIdx.x % windows * 8;
    if (window >= first + tile.count) {
        return;
    }
    v.position = window + lane / 4, v.j = lane % 4;
    v.here = v.position >= first && v.position < first + tile.count;
    v.row = v.here ? tile.row + (v.position - first) : tile.row;
    v.wide = ((size_t)c.a.qkv / 4 | c.a.qkv_stride) % 4 == 0;
    if (ROPE) {
        prepare_read_angles<DIM>(c, v, angles);
    }
    uint8_t *layer = block_of(c, v.row, v.here ? v.position : first);
    for (; head < last; head++) {
        prepare_head<DIM, ROPE>(c, v, layer, head, angles);
    }
}
