// What owns a model's memory; for common/model alone.
#pragma once

#include "common/base/mem.h"
#include "kernels/device.h"

struct bt_model_memory {
    uint8_t *pages; // all weights and vectors; NULL once they were moved
    size_t bytes;
    bt_arena arena;    // the config's arrays and the layers
    bt_device *device; // where they were moved to; outlives the model
    uint8_t *on_device;
    size_t on_device_bytes;
};
