// Granite: Llama with four constants, on the embedding, on what each block adds, on the scores, and (divided) on the logits.
#include "common/model/arch/arch.h"

static bt_err
configure(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    float divisor = 1;
    bt_err err;

    if ((err = bt_keys_maybe_f32(keys, "embedding_scale", "embedding_multiplier", 1e-6f, 1e6f, &config->embed_scale,
                                 why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "residual_scale", "residual_multiplier", 1e-6f, 1e6f, &config->residual_scale,
                                 why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "attention.scale", "attention_multiplier", 1e-6f, 1e6f, &config->attention_scale,
                                 why)) != BT_OK ||
        (err = bt_keys_maybe_f32(keys, "logit_scale", "logits_scaling", 1e-6f, 1e6f, &divisor, why)) != BT_OK) {
        return err;
    }
    config->logit_scale = 1 / divisor;
    return BT_OK;
}

const bt_arch bt_arch_granite = {
    .name = "granite",
    .hf_types = {"granite"},
    .pre_norms = true,
    .gguf_interleaved = true,
    .configure = configure,
};
