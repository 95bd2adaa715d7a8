// One attention call as its kernels see it.
#pragma once

#include "kernels/cpu/ref/attention.h"
#include "kernels/cpu/ref/math.h"
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/ready.cuh"

typedef struct {
    bt_attention_args a;
    bt_kv_layout l;
    const uint32_t *positions, *tables, *blocks;
    int8_t *q8;
    float *q32, *q_scale, *whole, *partials;
    uint32_t group, scale_groups, splits; // splits: 0 = a block of threads takes all
    // Of sequences that bring one token each (attention_decode.cuh):
    const bt_cuda_tile *singles;        // NULL: rows 0 … single_count − 1
    uint32_t single_count, block_shift; // block_tokens = 1 << block_shift
    uint32_t *arrivals;                 // [tokens, kv_heads] splits that are done, 0 between calls
    bool clusters;                      // a (sequence, KV head) is a cluster's, a split a block
    bool merge_apart;                   // partials of all splits are merged by a kernel of their own
    size_t partial_floats;
    bt_cuda_leaves leaves; // of attention_meet.cu, of heads of 128
} attention_call;

// By a kernel that finishes heads of single tokens and can leave INT8 of them: where the call that comes next begins with that, in blocks of which
// each is a head, c->leaves says where to, and it is remembered that it is there (attention.cu).
void bt_cuda_attention_leaves(bt_cuda *cuda, attention_call *c);

// Does bt_cuda_attention_decode know this shape?
bool bt_cuda_decodes(const bt_cuda *cuda, const attention_call *c);
// The step's single tokens, all of attention: K and V into the cache, and out.
bt_err bt_cuda_attention_decode(bt_cuda *cuda, const attention_call *c);

// Of many splits (attention_stream.cu): is this shape for it? All but the merge of what is left in `partials`.
bool bt_cuda_attention_streams(const bt_cuda *cuda, const attention_call *c);
bt_err bt_cuda_attention_stream(bt_cuda *cuda, const attention_call *c, size_t items);
// The same where warps of a block share (sequence, KV head)s (attention_meet.cu), whole; false: it is none of those shapes.
bool bt_cuda_attention_meet(bt_cuda *cuda, const attention_call *c, bt_err *err);
// Of few (attention_single.cu), likewise, but whole.
bool bt_cuda_attention_is_single(const bt_cuda *cuda, const attention_call *c, size_t items);
bt_err bt_cuda_attention_single(bt_cuda *cuda, const attention_call *c);
// Of many, or of attention_decode.cu, where `merge_apart`: what was left in `partials` (attention_merge.cu).
bt_err bt_cuda_merge_apart(bt_cuda *cuda, const attention_call *c);

static __device__ __forceinline__ uint8_t *
block_of(const attention_call &c, uint32_t row, uint32_t position)
{
    return c.a.pool + (size_t)c.blocks[c.tables[row] + position / c.l.block_tokens] * c.l.block_bytes +
           c.a.layer * c.l.layer_bytes;
}

// bt_ref_kv_scale
static __device__ __forceinline__ uint16_t
kv_scale(uint32_t amax_bits, float *inverse)
{
    float scale = bt_float_of_bits(amax_bits) / 127.0f, rounded;
    __half half;

    *inverse = 0.0f;
    if (amax_bits >= 0x7f800000u) {
        return 0x7e00;
    }
    half = __float2half_rn(scale > 65504.0f ? 65504.0f : scale);
    rounded = __half2float(half);
    if (rounded > 0.0f) {
        *inverse = 1.0f / rounded;
    }
    return __half_as_ushort(half);
}

// Prompts (attention_prompt.cu): the step's tiles, whose queries share keys.
bool bt_cuda_prompt_takes(const attention_call &c);
bt_err bt_cuda_attend_prompt(bt_cuda *cuda, const attention_call &c);
// The same by warpgroups (attention_squad.cu), heads of 128 where the step's longest sequence, of whatever kind, has more than a split of keys:
// a block of threads a squad of the step's, KV head and, if they are apart, split.
bool bt_cuda_wants_squad(const bt_cuda *cuda, const attention_call &c);
cudaError_t bt_cuda_squad(bt_cuda *cuda, const attention_call &c);
// And what comes before it: K and V into the cache, Q kept aside. With `singles` the tokens of the other sequences, too.
bool bt_cuda_prepares_prompt(const attention_call &c);
bt_err bt_cuda_prepare_prompt(bt_cuda *cuda, const attention_call &c, bool singles);
