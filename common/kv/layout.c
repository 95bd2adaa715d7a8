#include "common/kv/layout.h"

#include "common/base/rng.h"

#define LAYOUT_VERSION 1u // grows whenever equal numbers come to mean other bytes
#define LAYERS_MAX 4096u
#define KV_HEADS_MAX 4096u
#define HEAD_DIM_MAX 512u

static size_t
align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static bt_err
check(bt_kv_format format, uint32_t layers, uint32_t kv_heads, uint32_t head_dim, uint32_t block_tokens, uint32_t group,
      bt_why *why)
{
    if (format != BT_KV_INT8 && format != BT_KV_F16 && format != BT_KV_F32) {
        return bt_fail(why, BT_ERR_INVALID, "kv layout: unknown format %d", (int)format);
    }
    if (layers == 0 || layers > LAYERS_MAX) {
        return bt_fail(why, BT_ERR_INVALID, "kv layout: %u layers, expected 1 to %u", layers, LAYERS_MAX);
    }
    if (kv_heads == 0 || kv_heads > KV_HEADS_MAX) {
        return bt_fail(why, BT_ERR_INVALID, "kv layout: %u KV heads, expected 1 to %u", kv_heads, KV_HEADS_MAX);
    }
    if (head_dim == 0 || head_dim % 4 != 0 || head_dim > HEAD_DIM_MAX) {
        return bt_fail(why, BT_ERR_INVALID, "kv layout: head dimension %u, expected a multiple of 4 up to %u", head_dim,
                       HEAD_DIM_MAX);
    }
    if (block_tokens != 16 && block_tokens != 32 && block_tokens != 64) {
        return bt_fail(why, BT_ERR_INVALID, "kv layout: %u tokens a block, expected 16, 32 or 64", block_tokens);
    }
    if (format == BT_KV_INT8 && group != head_dim && (group != 32 || head_dim % 32 != 0)) {
        return bt_fail(why, BT_ERR_INVALID,
                       "kv layout: K scales for each %u of %u dims, expected %u, or 32 where that divides", group,
                       head_dim, head_dim);
    }
    return BT_OK;
}

const char *
bt_kv_format_name(bt_kv_format format)
{
    static const char *const names[] = {[BT_KV_INT8] = "int8", [BT_KV_F16] = "f16", [BT_KV_F32] = "f32"};

    return (unsigned)format < sizeof names / sizeof *names ? names[format] : "?";
}

bt_err
bt_kv_layout_init(bt_kv_layout *layout, bt_kv_format format, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                  uint32_t block_tokens, uint32_t k_scale_group, bt_why *why)
{
    size_t element = format == BT_KV_INT8 ? 1 : format == BT_KV_F16 ? 2 : 4;
    bt_err err = check(format, layers, kv_heads, head_dim, block_tokens, k_scale_group, why);
    bt_kv_layout l = {.format = format, .layers = layers, .kv_heads = kv_heads, .head_dim = head_dim};

    if (err != BT_OK) {
        return err;
    }
    l.block_tokens = block_tokens;
    l.k_scale_group = format == BT_KV_INT8 ? k_scale_group : head_dim; // no scales, no difference
    l.k_head_bytes = l.v_head_bytes = block_tokens * head_dim * element;
    if (format == BT_KV_INT8) {
        l.k_scale_head_bytes = block_tokens * (head_dim / k_scale_group) * sizeof(uint16_t);
        l.v_scale_head_bytes = block_tokens * sizeof(uint16_t);
    }
    l.k_scale_offset = align64(kv_heads * l.k_head_bytes);
    l.v_offset = l.k_scale_offset + align64(kv_heads * l.k_scale_head_bytes);
    l.v_scale_offset = l.v_offset + align64(kv_heads * l.v_head_bytes);
    l.layer_bytes = l.v_scale_offset + align64(kv_heads * l.v_scale_head_bytes);
    l.trailer_offset = layers * l.layer_bytes;
    l.block_bytes = l.trailer_offset + align64(sizeof(bt_kv_trailer));
    *layout = l;
    return BT_OK;
}

uint64_t
bt_kv_layout_fingerprint(const bt_kv_layout *layout)
{
    const bt_kv_layout *l = layout;
    const uint64_t parts[] = {
        LAYOUT_VERSION,        l->format,         l->layers,       l->kv_heads,           l->head_dim,
        l->block_tokens,       l->k_scale_group,  l->k_head_bytes, l->k_scale_head_bytes, l->v_head_bytes,
        l->v_scale_head_bytes, l->k_scale_offset, l->v_offset,     l->v_scale_offset,     l->layer_bytes,
        l->trailer_offset,     l->block_bytes,
    };
    uint64_t hash = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hash = bt_mix64(hash ^ parts[i]);
    }
    return hash;
}
