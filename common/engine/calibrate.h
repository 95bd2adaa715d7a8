// Runs a model once over built-in text and notes what its layers read: the figures that weights-at-load and the K
// equaliser are made from (common/model/calibration.h).
#pragma once

#include "common/model/calibration.h"

// `model` is open in its file's own formats. Works on the device with memory of its own, which is freed again; the
// calibration is the caller's to close, after a failure too. The k_shift of each layer is chosen. Without `columns` only
// queries and keys are looked at, which is all that the equaliser needs, and half the text is read.
bt_err bt_calibrate(bt_calibration *calibration, const bt_model *model, bt_device *device, bool columns, bt_why *why);

// The built-in text: a few paragraphs of English, code, other scripts and figures, our own words.
extern const char bt_calibration_text[];

// Mean KL divergence, in nats a token, of `model`'s next-token distributions from those of `reference`, over the end of
// the built-in text. Both are open on the device.
bt_err bt_calibrate_divergence(const bt_model *reference, const bt_model *model, bt_device *device, double *kl,
                               bt_why *why);
