// One attention call as its kernels see it.
#pragma once

#include "kernels/cpu/ref/attention.h"
#include "kernels/cpu/ref/math.h"
#include "kernels/cuda/cuda.cuh"

typedef struct {
    bt_attention_args a;
    bt_kv_layout l;
    const uint32_t *positions, *tables, *blocks;
    int8_t *q8;
    float *q32, *q_scale, *whole, *partials;
    uint32_t group, scale_groups, splits; // splits: 0 = a block of threads takes all
} attention_call;

static __device__ __forceinline__ uint8_t *
block_of(const attention_call &c, uint32_t row, uint32_t position)
{
    return c.a.pool + (size_t)c.blocks[c.tables[row] + position / c.l.block_tokens] * c.l.block_bytes +
           c.a.layer * c.l.layer_bytes;
}
