// Qwen 2 and 2.5 (biases on Q, K, V) and Qwen 3 (norms on the heads of Q and K instead).
#include "common/model/arch/arch.h"

// A window is written into every config.json and used by few: only if use_sliding_window says so, and then by the layers
// from max_window_layers up where layer_types does not list them.
static bt_err
configure(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    uint32_t first = 0;
    bool used = false;
    bt_err err;

    if ((err = bt_keys_maybe_bool(keys, NULL, "use_sliding_window", &used, why)) != BT_OK || !used) {
        return err;
    }
    if ((err = bt_keys_maybe_u32(keys, NULL, "max_window_layers", 0, UINT32_MAX, &first, why)) != BT_OK ||
        (err = bt_arch_windows(keys, config, NULL, why)) != BT_OK) {
        return err;
    }
    if (bt_keys_items(keys, "layer_types") != config->layers) {
        for (uint32_t i = 0; i < first && i < config->layers; i++) {
            config->layer[i].window = 0;
        }
    }
    return BT_OK;
}

const bt_arch bt_arch_qwen2 = {
    .name = "qwen2",
    .hf_types = {"qwen2"},
    .pre_norms = true,
    .qkv_bias = true,
    .configure = configure,
};

const bt_arch bt_arch_qwen3 = {
    .name = "qwen3",
    .hf_types = {"qwen3"},
    .pre_norms = true,
    .qk_norm = BT_QK_NORM_HEAD,
    .configure = configure,
};
