// Phi 3 and 4 mini: Llama's block with the rows of Q|K|V and of gate|up in one tensor each. Their long-context variants
// switch rope tables by length ("longrope"), which common/model/rope.c refuses.
#include "common/model/arch/arch.h"

static bt_err
configure(const bt_keys *keys, bt_model_config *config, bt_why *why)
{
    return bt_arch_windows(keys, config, NULL, why);
}

const bt_arch bt_arch_phi3 = {
    .name = "phi3",
    .hf_types = {"phi3"},
    .pre_norms = true,
    .fused = true,
    .configure = configure,
};
