// What an architecture is to us: its names, which parts its layers have, and the settings of its own.
//
// All models here are the same transformer block with parts that are there or not; an architecture says which. Adding one is
// a file in this folder that defines a bt_arch, and a line in registry.c. Tensors have the usual names of their container
// (common/model/names.c), so most files are a table and a function of a few lines.
#pragma once

#include "common/model/keys.h"
#include "common/model/model.h"

typedef enum {
    BT_QK_NORM_NONE,
    BT_QK_NORM_HEAD,  // one weight per dimension of a head, each head by itself
    BT_QK_NORM_WHOLE, // over all heads together
} bt_qk_norm;

typedef struct {
    const char *name;           // GGUF's general.architecture
    const char *hf_types[4];    // config.json's model_type, NULL after the last
    bool pre_norms, post_norms; // before and after attention and FFN
    bt_qk_norm qk_norm;
    bool qkv_bias;         // q, k and v must have one; where an architecture does not ask, a bias that is there is used
    bool fused;            // Q|K|V are rows of one tensor, gate|up of another
    bool gguf_interleaved; // GGUF holds the rows of Q and K with the two halves of a rotary pair side by side
    bool hf_norm_plus_one; // safetensors hold norm weights as w for a factor of 1 + w; GGUF holds the factor
    bt_activation activation;
    // Reads what is this architecture's alone, after the common settings are in `config` with their defaults: scales and
    // softcaps, each layer's window and rope. NULL = nothing.
    bt_err (*configure)(const bt_keys *keys, bt_model_config *config, bt_why *why);
} bt_arch;

// NULL when no architecture has this name in this container.
const bt_arch *bt_arch_find(const char *name, bool gguf);

// Writes the names that this container uses for them into `out`, with commas between them; cut to fit.
const char *bt_arch_list(bool gguf, char *out, size_t bytes);

// For `configure`: every layer's window from "attention.sliding_window" / "sliding_window"; config.json's layer_types say
// which layers have it, else `is_local(layer)` does (NULL = all).
bt_err bt_arch_windows(const bt_keys *keys, bt_model_config *config, bool (*is_local)(uint32_t layer), bt_why *why);

extern const bt_arch bt_arch_llama, bt_arch_qwen2, bt_arch_qwen3, bt_arch_gemma2, bt_arch_gemma3, bt_arch_phi3,
    bt_arch_olmo2, bt_arch_granite;
