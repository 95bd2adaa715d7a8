// The parts of a layer and what the containers call them.
#pragma once

#include "common/model/arch/arch.h"

typedef enum {
    BT_PART_Q,
    BT_PART_K,
    BT_PART_V,
    BT_PART_O,
    BT_PART_GATE,
    BT_PART_UP,
    BT_PART_DOWN,
    BT_PART_QKV,     // fused rows
    BT_PART_GATE_UP, // fused rows
    BT_PART_ATTENTION_NORM,
    BT_PART_ATTENTION_POST_NORM,
    BT_PART_FFN_NORM,
    BT_PART_FFN_POST_NORM,
    BT_PART_Q_NORM,
    BT_PART_K_NORM,
    BT_PART_COUNT
} bt_part;

typedef char bt_tensor_name[96];

// The name of a part's weight (`suffix` "weight") or bias ("bias"), in `out`.
const char *bt_part_name(const bt_arch *arch, bool gguf, bt_part part, uint32_t layer, const char *suffix,
                         bt_tensor_name out);
const char *bt_embedding_name(bool gguf);
const char *bt_output_norm_name(bool gguf);
const char *bt_head_name(bool gguf);
// Tensors that say nothing we do not know: derived tables that some exporters write along.
bool bt_name_is_ignored(bt_str name);
