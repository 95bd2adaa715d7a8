// What an engine is made of; shared by engine.c (its life) and step.c (its work).
#pragma once

#include "common/engine/forward.h"
#include "common/engine/lend.h"
#include "common/engine/outlook.h"

#define BT_ENDS_MAX BT_DRAW_ENDS_MAX

struct bt_engine {
    bt_time progress_said;     // when the last line about loading was written
    bt_engine_options options; // with the defaults filled in
    bt_device *device;         // what steps run on
    bt_device *host;           // the CPU: loads, repacks, samples; == device where that is one
    bt_model *model;
    bt_kv_layout layout;
    bt_engine_plan plan; // made before anything was loaded (outlook.h)
    uint8_t *kv;         // what operations read and write:
    uint8_t *own_kv;     // the same, or NULL where it is lent,
    uint8_t *kv_device;  // and then this, or the program's memory
    bt_lend lend;
    bt_scratch scratch;
    bt_forward forward;
    uint32_t logit_rows; // of the last step
    bool logits_here;    // and whether they have been copied to the host
    int32_t ends[BT_ENDS_MAX];
    uint32_t end_count;
    bt_engine_times *times;
};
