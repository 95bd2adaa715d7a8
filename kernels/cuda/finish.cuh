// What follows an exact INT8 dot of a matrix with one scale a row: four neighbouring outputs of a token at a time.
#pragma once

#include "kernels/cuda/linear_call.cuh"
#include "kernels/cuda/ptx.cuh"

// Dots of some tokens of a call: [tokens, stride] from `first_token` on, the up rows of a pair `up_at` columns behind the gate's.
typedef struct {
    const int32_t *s32;
    size_t stride;
    uint32_t first_token, up_at;
} bt_products;

// What is done with them. The plain three have no outliers, bias or softcap.
typedef enum {
    BT_FINISH_STORE,
    BT_FINISH_ADD,
    BT_FINISH_SILU,
    BT_FINISH_ANY,
} bt_finish;

static inline bt_finish
bt_finish_of(const linear_call *c)
{
    for (uint32_t i = 0; i < c->part_count; i++) {
        if (c->part[i].row_start != NULL || c->bias[i] != NULL || c->softcap > 0.0f) {
            return BT_FINISH_ANY;
        }
    }
    return c->epilogue == BT_LINEAR_STORE      ? BT_FINISH_STORE
           : c->epilogue == BT_LINEAR_ADD      ? BT_FINISH_ADD
           : c->epilogue == BT_LINEAR_SILU_MUL ? BT_FINISH_SILU
                                               : BT_FINISH_ANY;
}

// bt_ref_silu where 2^-60 ≤ |x| ≤ 80: nothing is cut off, no power of two leaves the normal numbers (so that its product with p is an
// addition to the exponent), and the quotient needs no care at the ends: one Newton step for 1 / d and one for the quotient, as the
// compiler's own division takes them, round it right. tests/gpu/test_cuda_chain (silu) compares all such x.
#define BT_SILU_LEAST 0x21800000u // bits of 2^-60
#define BT_SILU_MOST 0x42a00000u  // bits of 80

static __device__ __forceinline__ float
bt_silu_within(float x)
{
    float y = -x, shifted = fmaf(y, BT_LOG2_E, BT_ROUND_MAGIC), count = shifted - BT_ROUND_MAGIC;
    float r = fmaf(count, -BT_LN2_LOW, fmaf(count, -BT_LN2_HIGH, y));
    float p = fmaf(r, BT_EXP_C6, BT_EXP_C5), d, reciprocal, q;

    p = fmaf(r, p, BT_EXP_C4);
    p = fmaf(r, p, BT_EXP_C3);
    p = fmaf(r, p, BT_EXP_C2);
    p = fmaf(r * r, p, r) + 1.0f;
    d = 1.0f + bt_float_of_bits(bt_bits_of_float(p) + (bt_bits_of_float(shifted) << 23));
    reciprocal = bt_reciprocal(d);
    reciprocal = fmaf(reciprocal, fmaf(-d, reciprocal, 1.0f), reciprocal);
    q = x * reciprocal;
    return fmaf(fmaf(-d, q, x), reciprocal, q);
}

static __device__ __forceinline__ void
bt_silu4(float x[4])
{
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        most = max(most, (bt_bits_of_float(x[i]) & 0x7fffffffu) - BT_SILU_LEAST);
    }
    if (most <= BT_SILU_MOST - BT_SILU_LEAST) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = bt_silu_within(x[i]);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < 4; i++) { // by turns, so that the four stay in registers
            float y = bt_ref_silu(x[0]);

            x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = y;
        }
    }
}

// r of rows row … row + 3 (a multiple of 4) of a part.
template <bt_finish WHAT>
static __device__ __forceinline__ void
bt_finish_dots(const linear_call &c, uint32_t part, uint32_t row, uint32_t token, const int32_t *dots, float r[4])
{
    int4 dot = *(const int4 *)dots;
    uint2 scales = *(const uint2 *)(c.part[part].scales + row); // one a row: they lie in the order of rows
    float2 low = __half22float2(*(const __half2 *)&scales.x), high = __half22float2(*(const __half2 *)&scales.y);
    float sa = c.sa[token];

    r[0] = fmaf(low.x * sa, (float)dot.x, 0.0f), r[1] = fmaf(low.y * sa, (float)dot.y, 0.0f);
    r[2] = fmaf(high.x * sa, (float)dot.z, 0.0f), r[3] = fmaf(high.y * sa, (float)dot.w, 0.0f);
    if constexpr (WHAT == BT_FINISH_ANY) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            r[i] = finish(c, part, row + i, token, r[i]);
        }
    }
}

// y of columns k … k + 3, which are rows k − start … of `part` (of both, where gate and up are a pair). `old`: what y was, for BT_LINEAR_ADD.
template <bt_finish WHAT>
static __device__ __forceinline__ void
bt_finish4(const linear_call &c, const bt_products &s, uint32_t part, uint32_t start, uint32_t k, uint32_t token,
           const float old[4], float v[4])
{
    const int32_t *dots = s.s32 + (token - s.first_token) * s.stride + k;
    float up[4];

    bt_finish_dots<WHAT>(c, part, k - start, token, dots, v);
    if (WHAT == BT_FINISH_SILU || (WHAT == BT_FINISH_ANY && c.paired)) {
        bt_finish_dots<WHAT>(c, 1, k, token, dots + s.up_at, up);
    }
    if constexpr (WHAT == BT_FINISH_SILU) {
        bt_silu4(v);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (WHAT == BT_FINISH_SILU) {
            v[i] *= up[i];
        } else if (WHAT == BT_FINISH_ANY && c.paired) {
            v[i] = pair_value(c, v[i], up[i]);
        } else if (WHAT == BT_FINISH_ADD || (WHAT == BT_FINISH_ANY && c.epilogue == BT_LINEAR_ADD)) {
            v[i] = fmaf(c.scale, v[i], old[i]);
        } else {
            v[i] = c.scale * v[i];
        }
    }
}
