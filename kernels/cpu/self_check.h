// Whether a path of linear layers gives the bits of ref on this very machine: asked once, when a device with AMX opens.
#pragma once

#include "kernels/cpu/cpu.h"

// Runs a few small layers by the device's isa and by ref. The device's scratch is used and given back empty. BT_ERR_NO_MEMORY: that was not found out.
bt_err bt_cpu_agrees_with_ref(bt_device *device, bool *agrees);
