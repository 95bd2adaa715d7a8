// One pass of a model over a flattened batch: from ids to logits. Reads like the paper.
#pragma once

#include "common/base/time.h"
#include "common/engine/engine.h"
#include "common/engine/lend.h"
#include "common/engine/scratch.h"

// What a pass is over; the arrays lie in the scratch (ids, positions, spans, logit_rows).
typedef struct {
    uint32_t tokens, spans, rows;
    bool draws; // the scratch's draws say how the device draws the rows' tokens
    const int32_t *ends;
    uint32_t end_count;
} bt_flat_batch;

typedef struct {
    const bt_model *model;
    bt_device *device;
    const bt_ops *ops;
    const bt_kv_layout *layout;
    uint8_t *kv; // the pool's first byte
    const bt_lend *lend;
    bt_scratch *scratch;
    bool ropes[2];          // which RoPE tables some layer uses
    bt_engine_times *times; // NULL = not measured
    // Tests look at the residual stream: after the embedding (layer 0) and after each layer (1 …), [tokens] rows of x. In
    // the last layer only the rows that want logits are left.
    void (*probe)(void *arg, uint32_t layer, const float *x, size_t stride, uint32_t tokens);
    void *probe_arg;
    // Calibration looks at what linear layers and attention are given, before they run.
    void (*watch_linear)(void *arg, const bt_linear_args *args);
    void (*watch_attention)(void *arg, const bt_attention_args *args);
    void *watch_arg;
} bt_forward;

// Checks that the model's parts fit together as the operations need them; the error names the layer.
bt_err bt_forward_check(const bt_model *model, bt_why *why);

// Fills scratch->logits with `rows` rows.
bt_err bt_forward_run(bt_forward *forward, const bt_flat_batch *batch);

// Tests reach the pass inside an engine here, to set `probe`.
bt_forward *bt_engine_forward(bt_engine *engine);
