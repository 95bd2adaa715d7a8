// What a model is, from its file's settings and an architecture's own.
#pragma once

#include "common/base/mem.h"
#include "common/model/arch/arch.h"

// Fills `out`; its arrays come from `arena`. Everything in it has been checked: counts are in sane ranges, heads share KV
// heads evenly, rope dimensions are even and fit a head.
bt_err bt_model_config_read(const bt_keys *keys, const bt_arch *arch, bt_arena *arena, bt_model_config *out,
                            bt_why *why);
