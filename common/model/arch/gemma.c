// Gemma 2 and 3: four norms a layer, local and global layers in turn, a scaled embedding; Gemma 2 bounds its scores and
// logits softly, Gemma 3 norms its heads and turns local layers by a rope of their own.
#include "common/model/arch/arch.h"

#include <math.h>

// Gemma's scores are divided by the root of a number of its own: the width of a head, except in the largest models
// (27 billion), where it is the width over the heads. GGUF files do not say; config.json does.
static bt_err
read_scales(const bt_keys *keys, bt_model_config *config, uint32_t largest_layers, bt_why *why)
{
    bool largest = keys->source->gguf != NULL && config->layers == largest_layers;
    float divisor = largest ? (float)config->hidden / (float)config->heads : (float)config->head_dim;
    bt_err err = bt_keys_maybe_f32(keys, NULL, "query_pre_attn_scalar", 1e-3f, 1e6f, &divisor, why);

    config->attention_scale = 1 / sqrtf(divisor);
    config->embed_scale = sqrtf((float)config->hidden);
    return err;
}

static bool
is_even(uint32_t layer)
{
    return layer % 2 == 0;
}

static bt_err
read_softcaps(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    bt_err err = bt_keys_maybe_f32(keys, "attn_logit_softcapping", "attn_logit_softcapping", 0, 1e6f,
                                   &config->attention_softcap, why);

    return err != BT_OK ? err
                        : bt_keys_maybe_f32(keys, "final_logit_softcapping", "final_logit_softcapping", 0, 1e6f,
                                            &config->logit_softcap, why);
}

static bt_err
configure_gemma2(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    bt_err err;

    if ((err = read_scales(keys, config, 46, why)) != BT_OK || (err = read_softcaps(keys, config, why)) != BT_OK) {
        return err;
    }
    return bt_arch_windows(keys, config, is_even, why);
}

// Every `pattern`th layer is global. GGUF files have neither the pattern nor the base of the local layers' rope (newer ones
// do): both are facts of the architecture.
static bt_err
configure_gemma3(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    uint32_t pattern = 6;
    bt_err err;

    if ((err = read_scales(keys, config, 62, why)) != BT_OK || (err = read_softcaps(keys, config, why)) != BT_OK ||
        (err = bt_keys_maybe_u32(keys, NULL, "_sliding_window_pattern", 1, 1024, &pattern, why)) != BT_OK ||
        (err = bt_keys_maybe_u32(keys, "attention.sliding_window_pattern", "sliding_window_pattern", 1, 1024, &pattern,
                                 why)) != BT_OK ||
        (err = bt_arch_windows(keys, config, NULL, why)) != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        bool listed = bt_keys_items(keys, "layer_types") == config->layers;
        bool global = listed ? bt_keys_item_is(keys, "layer_types", i, "full_attention") : (i + 1) % pattern == 0;

        config->layer[i].window = global ? 0 : config->layer[i].window;
        config->layer[i].rope = global ? 0 : 1;
    }
    return BT_OK;
}

const bt_arch bt_arch_gemma2 = {
    .name = "gemma2",
    .hf_types = {"gemma2"},
    .pre_norms = true,
    .post_norms = true,
    .hf_norm_plus_one = true,
    .activation = BT_ACT_GELU_TANH,
    .configure = configure_gemma2,
};

const bt_arch bt_arch_gemma3 = {
    .name = "gemma3",
    .hf_types = {"gemma3_text"},
    .pre_norms = true,
    .post_norms = true,
    .qk_norm = BT_QK_NORM_HEAD,
    .hf_norm_plus_one = true,
    .activation = BT_ACT_GELU_TANH,
    .configure = configure_gemma3,
};
