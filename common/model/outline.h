// A model without its weights: what a file holds and what would be made of it.
#pragma once

#include "common/base/mem.h"
#include "common/model/plan.h"

// Finds the architecture, reads the settings into model->config, and plans every weight in its format for `mode`. The
// model's arrays come from `arena`; the caller closes the plan, after a failure too. BT_ERR_UNSUPPORTED names an
// architecture that we do not have.
bt_err bt_model_outline(bt_plan *plan, bt_model *model, const bt_source *source, bt_load_weights mode,
                        uint32_t w8_act_block, bt_arena *arena, bt_why *why);
