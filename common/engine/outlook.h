// What an engine would take, told from its model's file and its options alone: no weights are loaded, no memory is taken, and no GPU has
// to be there. bt_engine_open decides by it, and `baton plan` prints it.
#pragma once

#include "common/engine/engine.h"
#include "common/engine/plan.h"
#include "common/engine/scratch.h"

#define BT_OUTLOOK_FORMATS_MAX 16

typedef struct {
    bt_format format;
    uint32_t count; // of weight matrices
    size_t bytes;   // in the device's layout
} bt_outlook_format;

typedef struct {
    bt_engine_plan plan;
    bt_engine_options options; // with the defaults filled in, the context too
    // The model:
    char architecture[32], name[96];
    uint32_t layers, context_trained;
    bt_outlook_format formats[BT_OUTLOOK_FORMATS_MAX];
    uint32_t format_count;
    bool halves;              // bt_plan_has_halves
    size_t vectors, outliers; // plan.weights = formats + vectors + outliers; q4's outliers are as many as there can be
    size_t loading;           // of this machine's memory while weights are made ready, besides the file's own pages
} bt_engine_outlook;

// What the device has free for an engine: a GPU is opened for a moment to be asked. Its errors are those of bt_device_open.
bt_err bt_engine_available(const bt_device_options *device, size_t *out, bt_why *why);

// `available`: bytes that the device has free, as bt_engine_available says. BT_ERR_NO_MEMORY when it does not fit, with all figures;
// `out` is then filled all the same. Other errors are those of the options and of the model's file.
bt_err bt_engine_foresee(bt_engine_outlook *out, const bt_engine_options *options, size_t available, bt_why *why);

// The shapes that an engine's device is reserved for.
bt_device_limits bt_engine_limits(const bt_model_config *config, const bt_engine_options *options);
bt_scratch_limits bt_engine_scratch_limits(const bt_engine_options *options, uint32_t threads, bool host);
