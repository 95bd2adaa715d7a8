// A synthetic model's tensors in the order of its file, and the head of that file.
#pragma once

#include "common/base/buf.h"
#include "common/model/names.h"
#include "tools/synth/synth.h"

typedef struct {
    bt_tensor_name name;
    uint32_t type, rows, cols; // rows 0: a vector of ones
    uint64_t offset, bytes;    // within the data
} bt_synth_tensor;

typedef struct {
    bt_synth_options options;
    uint32_t layers;
    bt_synth_tensor *tensors; // for bt_free
    uint32_t count;
    uint64_t data_bytes;
} bt_synth_model;

bt_err bt_synth_model_open(bt_synth_model *out, const bt_synth_options *options, bt_why *why);
void bt_synth_model_close(bt_synth_model *model);

// Everything before the data. A container that has its settings elsewhere: bt_synth_config.
void bt_synth_gguf_head(const bt_synth_model *model, bt_buf *out);
void bt_synth_safetensors_head(const bt_synth_model *model, bt_buf *out);
void bt_synth_config(const bt_synth_model *model, bt_buf *out); // config.json
