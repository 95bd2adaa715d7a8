// What a short run over text tells about a model's activations: how much each input column of each linear layer matters,
// and how large queries and keys are. The quantisers of weights-at-load (requantise.h) and the K equaliser live on it.
//
// Gathered by common/engine/calibrate from the model in its file's own formats, on built-in text: the same figures on
// every machine, so that nodes that hold different weights of one source agree. Belongs to the thread that opens a model.
#pragma once

#include "common/base/mem.h"
#include "common/model/model.h"

// Of one input: [cols] each.
typedef struct {
    uint32_t cols;
    float *moment; // E[x²]
    float *amax;   // max |x|
} bt_column_stats;

// Of a layer's keys, or of the queries that read them, after head norms: amplitudes sqrt(a² + b²) of the dims (p,
// p + head_dim/2), which RoPE does not change. [kv_heads, head_dim / 2]
typedef struct {
    float *moment; // E[amplitude²]; of queries summed over the heads of a group
    float *amax;
} bt_pair_stats;

typedef struct {
    bt_column_stats qkv, o, gate_up, down; // what these linear layers read
    bt_pair_stats q, k;
    int8_t *k_shift; // [kv_heads, head_dim / 2] the K equaliser's exponents
} bt_layer_calibration;

typedef struct bt_calibration {
    uint32_t layer_count;
    uint32_t pairs; // kv_heads · head_dim / 2
    bt_layer_calibration *layers;
    bt_column_stats head;
    bt_arena arena;
} bt_calibration;

// Zeroed figures for a model. BT_ERR_NO_MEMORY.
bt_err bt_calibration_open(bt_calibration *calibration, const bt_model_config *config);
void bt_calibration_close(bt_calibration *calibration); // accepts a zeroed one

// Chooses every layer's k_shift from its q and k figures. The INT8 error of q · k has two parts: K's step times what Q
// weighs it with, and Q's step times K. A power of two per pair, divided out of K and multiplied into Q, is exact and
// trades one for the other; the shifts are found by descent, one pair at a time. `group` = heads / kv_heads.
void bt_equalise(bt_calibration *calibration, const bt_model_config *config);
// Gives a model its k_shift. BT_ERR_NO_MEMORY.
bt_err bt_model_equalise(bt_model *model, const bt_calibration *calibration);
