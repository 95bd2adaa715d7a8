// A model that was loaded in host memory, moved into the memory of another device and its layout. Loading, calibration and
// requantising run on the CPU whatever serves later.
#pragma once

#include "common/model/plan.h"

// Repacks every weight on `host`'s threads (the CPU device that the model was opened on) and copies it, norms, biases and RoPE
// frequencies to `device`; the host's copy is freed. weight_bytes becomes what the device holds. BT_ERR_NO_MEMORY with figures when there
// is no room; the model is then still the host's. After any other error it is whole nowhere and can only be closed.
bt_err bt_model_move(bt_model *model, bt_device *host, bt_device *device, bt_why *why);

// What bt_model_move will take of a device, told of a model that was outlined (common/model/outline.h): exact, but for the outliers of
// `made` q4 weights, which are as many as there can be.
typedef struct {
    size_t weights, outliers, vectors;
} bt_move_sizes;
bt_move_sizes bt_model_move_sizes(const bt_plan *plan, const bt_model *model, const bt_model_options *options,
                                  const bt_ops *ops);
