#include "common/model/arch/arch.h"

#include <stdio.h>

static const bt_arch *const all[] = {
    &bt_arch_llama,  &bt_arch_qwen2, &bt_arch_qwen3, &bt_arch_gemma2,
    &bt_arch_gemma3, &bt_arch_phi3,  &bt_arch_olmo2, &bt_arch_granite,
};

static bool
has_name(const bt_arch *arch, const char *name, bool gguf)
{
    if (gguf) {
        return strcmp(arch->name, name) == 0;
    }
    for (size_t i = 0; i < 4 && arch->hf_types[i] != NULL; i++) {
        if (strcmp(arch->hf_types[i], name) == 0) {
            return true;
        }
    }
    return false;
}

const bt_arch *
bt_arch_find(const char *name, bool gguf)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (has_name(all[i], name, gguf)) {
            return all[i];
        }
    }
    return NULL;
}

static void
add_name(char *out, size_t bytes, const char *name)
{
    size_t used = strlen(out);

    snprintf(out + used, bytes - used, "%s%s", used != 0 ? ", " : "", name);
}

const char *
bt_arch_list(bool gguf, char *out, size_t bytes)
{
    *out = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (gguf) {
            add_name(out, bytes, all[i]->name);
        }
        for (size_t k = 0; !gguf && k < 4 && all[i]->hf_types[k] != NULL; k++) {
            add_name(out, bytes, all[i]->hf_types[k]);
        }
    }
    return out;
}

bt_err
bt_arch_windows(const bt_keys *keys, bt_model_config *config, bool (*is_local)(uint32_t layer), bt_why *why)
{
    bool listed = bt_keys_items(keys, "layer_types") == config->layers;
    uint32_t window = 0;
    bt_err err = bt_keys_maybe_u32(keys, "attention.sliding_window", "sliding_window", 1, UINT32_MAX, &window, why);

    for (uint32_t i = 0; err == BT_OK && window != 0 && i < config->layers; i++) {
        bool local = listed             ? bt_keys_item_is(keys, "layer_types", i, "sliding_attention")
                     : is_local != NULL ? is_local(i)
                                        : true;

        config->layer[i].window = local ? window : 0;
    }
    return err;
}
