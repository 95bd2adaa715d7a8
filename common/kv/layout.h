// The KV cache's one layout: where each key, value and scale of a block lies, for host, kernels and transfer alike.
//
// A block holds `block_tokens` tokens of all layers, so that one descriptor moves it:
//
//     layer 0 | layer 1 | … | trailer          each layer: K | K scales | V | V scales, each at a 64-byte boundary
//
//     INT8      K        [kv_head][token][dim]          int8, symmetric, value = scale · code
//               K scales [kv_head][token][dim / k_scale_group]  fp16
//               V        [kv_head][token / 4][dim][4]   int8 (what dot-product units read)
//               V scales [kv_head][token]               fp16
//     F16, F32  K, V     [kv_head][token][dim]          no scales
//
// Pure arithmetic: no memory, no state; any thread.
#pragma once

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { BT_KV_INT8, BT_KV_F16, BT_KV_F32 } bt_kv_format;
const char *bt_kv_format_name(bt_kv_format format); // as in settings: "int8", …; "?" for what is none

// Ends every block. A reader of another's memory checks it after it has copied the block (DESIGN 1.8).
typedef struct {
    uint64_t epoch;      // of the program that wrote the block
    uint64_t generation; // of the block: grows each time the pool lends it
    uint64_t checksum;   // of all bytes before the trailer; 0 = not stamped
    uint64_t reserved;
} bt_kv_trailer;

typedef struct {
    bt_kv_format format;
    uint32_t layers, kv_heads, head_dim;
    uint32_t block_tokens;  // 16, 32 or 64
    uint32_t k_scale_group; // dims that share a K scale: head_dim, or 32
    // Derived by init:
    size_t k_head_bytes, k_scale_head_bytes, v_head_bytes, v_scale_head_bytes; // of one KV head
    size_t k_scale_offset, v_offset, v_scale_offset;                           // within a layer
    size_t layer_bytes, trailer_offset, block_bytes;
} bt_kv_layout;

// BT_ERR_INVALID (named in `why`) for sizes outside: head_dim a multiple of 4 up to 512 (multiple of 16 for speed), block_tokens 16/32/64.
bt_err bt_kv_layout_init(bt_kv_layout *layout, bt_kv_format format, uint32_t layers, uint32_t kv_heads,
                         uint32_t head_dim, uint32_t block_tokens, uint32_t k_scale_group, bt_why *why);

// A hash of everything above: equal on two machines iff blocks may travel between them.
uint64_t bt_kv_layout_fingerprint(const bt_kv_layout *layout);

static inline uint8_t *
bt_kv_k(const bt_kv_layout *l, uint8_t *block, uint32_t layer, uint32_t head)
{
    return block + layer * l->layer_bytes + head * l->k_head_bytes;
}

static inline uint16_t *
bt_kv_k_scales(const bt_kv_layout *l, uint8_t *block, uint32_t layer, uint32_t head)
{
    return (uint16_t *)(void *)(block + layer * l->layer_bytes + l->k_scale_offset + head * l->k_scale_head_bytes);
}

static inline uint8_t *
bt_kv_v(const bt_kv_layout *l, uint8_t *block, uint32_t layer, uint32_t head)
{
    return block + layer * l->layer_bytes + l->v_offset + head * l->v_head_bytes;
}

static inline uint16_t *
bt_kv_v_scales(const bt_kv_layout *l, uint8_t *block, uint32_t layer, uint32_t head)
{
    return (uint16_t *)(void *)(block + layer * l->layer_bytes + l->v_scale_offset + head * l->v_scale_head_bytes);
}
