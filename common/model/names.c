#include "common/model/names.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const gguf_names[BT_PART_COUNT] = {
    [BT_PART_Q] = "attn_q",
    [BT_PART_K] = "attn_k",
    [BT_PART_V] = "attn_v",
    [BT_PART_O] = "attn_output",
    [BT_PART_GATE] = "ffn_gate",
    [BT_PART_UP] = "ffn_up",
    [BT_PART_DOWN] = "ffn_down",
    [BT_PART_QKV] = "attn_qkv",
    [BT_PART_GATE_UP] = "ffn_up", // so named, with the gate's rows first
    [BT_PART_ATTENTION_NORM] = "attn_norm",
    [BT_PART_ATTENTION_POST_NORM] = "post_attention_norm",
    [BT_PART_FFN_NORM] = "ffn_norm",
    [BT_PART_FFN_POST_NORM] = "post_ffw_norm",
    [BT_PART_Q_NORM] = "attn_q_norm",
    [BT_PART_K_NORM] = "attn_k_norm",
};

static const char *const hf_names[BT_PART_COUNT] = {
    [BT_PART_Q] = "self_attn.q_proj",
    [BT_PART_K] = "self_attn.k_proj",
    [BT_PART_V] = "self_attn.v_proj",
    [BT_PART_O] = "self_attn.o_proj",
    [BT_PART_GATE] = "mlp.gate_proj",
    [BT_PART_UP] = "mlp.up_proj",
    [BT_PART_DOWN] = "mlp.down_proj",
    [BT_PART_QKV] = "self_attn.qkv_proj",
    [BT_PART_GATE_UP] = "mlp.gate_up_proj",
    [BT_PART_ATTENTION_NORM] = "input_layernorm",
    [BT_PART_ATTENTION_POST_NORM] = "post_attention_layernorm",
    [BT_PART_FFN_NORM] = "pre_feedforward_layernorm",
    [BT_PART_FFN_POST_NORM] = "post_feedforward_layernorm",
    [BT_PART_Q_NORM] = "self_attn.q_norm",
    [BT_PART_K_NORM] = "self_attn.k_norm",
};

const char *
bt_part_name(const bt_arch *arch, bool gguf, bt_part part, uint32_t layer, const char *suffix, bt_tensor_name out)
{
    const char *name = gguf ? gguf_names[part] : hf_names[part];

    // Where nothing follows attention, its name for "after attention" is the norm before the FFN.
    if (!gguf && part == BT_PART_FFN_NORM && !arch->post_norms) {
        name = hf_names[BT_PART_ATTENTION_POST_NORM];
    }
    snprintf(out, sizeof(bt_tensor_name), gguf ? "blk.%" PRIu32 ".%s.%s" : "model.layers.%" PRIu32 ".%s.%s", layer,
             name, suffix);
    return out;
}

const char *
bt_embedding_name(bool gguf)
{
    return gguf ? "token_embd.weight" : "model.embed_tokens.weight";
}

const char *
bt_output_norm_name(bool gguf)
{
    return gguf ? "output_norm.weight" : "model.norm.weight";
}

const char *
bt_head_name(bool gguf)
{
    return gguf ? "output.weight" : "lm_head.weight";
}

bool
bt_name_is_ignored(bt_str name)
{
    static const char *const endings[] = {"rope_freqs.weight", "rotary_emb.inv_freq", "attn_rot_embd.weight",
                                          "lm_head.weight"};

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t len = strlen(endings[i]);

        if (name.len >= len && memcmp(name.data + name.len - len, endings[i], len) == 0) {
            return true;
        }
    }
    return false;
}
