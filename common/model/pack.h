// Gives a plan's weights their memory and fills it, on all threads of a device.
#pragma once

#include "common/model/plan.h"

// Bytes of all weights and vectors in the device's layout, each at a 64-byte boundary.
size_t bt_pack_bytes(const bt_plan *plan, const bt_ops *ops);
// Points weights and vectors into `memory` (of bt_pack_bytes, zeroed) and fills them. The calling thread owns the device and
// runs `progress`. BT_ERR_NO_MEMORY.
bt_err bt_pack(const bt_plan *plan, bt_device *device, uint8_t *memory,
               void (*progress)(void *arg, size_t bytes_done, size_t bytes_total), void *progress_arg, bt_why *why);
