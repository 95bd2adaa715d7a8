// OLMo 2: norms after attention and FFN and none before; Q and K are normed over their whole width.
#include "common/model/arch/arch.h"

const bt_arch bt_arch_olmo2 = {
    .name = "olmo2",
    .hf_types = {"olmo2"},
    .post_norms = true,
    .qk_norm = BT_QK_NORM_WHOLE,
};
