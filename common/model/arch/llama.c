// Llama 2 and 3, Mistral, SmolLM2: the plain block. Mistral's first version has a window on every layer.
#include "common/model/arch/arch.h"

static bt_err
configure(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    return bt_arch_windows(keys, config, NULL, why);
}

const bt_arch bt_arch_llama = {
    .name = "llama",
    .hf_types = {"llama", "mistral"},
    .pre_norms = true,
    .gguf_interleaved = true,
    .configure = configure,
};
