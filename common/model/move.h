// A model that was loaded in host memory, moved into the memory of another device and its layout. Loading, calibration and
// requantising run on the CPU whatever serves later.
#pragma once

#include "common/model/model.h"

// Repacks every weight on `host`'s threads (the CPU device that the model was opened on) and copies it, norms, biases and RoPE
// frequencies to `device`; the host's copy is freed. weight_bytes becomes what the device holds. BT_ERR_NO_MEMORY with figures; the
// model is then still the host's.
bt_err bt_model_move(bt_model *model, bt_device *host, bt_device *device, bt_why *why);
