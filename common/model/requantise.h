// Weights made while a model loads (DESIGN 6): `w8`, INT8 a row with activations smoothed, and `q4`, INT4 in blocks of 128
// with searched scales and a few fp16 outliers; embedding and head become `w8` in both. Whatever the source's formats are,
// rows start from its own numbers in f32.
#pragma once

#include "common/model/calibration.h"
#include "common/model/plan.h"

typedef struct bt_requantise bt_requantise;

// Takes over a plan whose formats were set for `options->weights` (W8 or Q4): each job gets its way of making rows. The
// plan, the calibration and the result live until requantise_close, which comes after packing.
bt_err bt_requantise_open(bt_requantise **out, bt_plan *plan, bt_model *model, const bt_model_options *options,
                          bt_device *device, bt_why *why);
// After packing: gives the weights their outliers (memory from `arena`) and folds smoothing into norms and V's bias.
bt_err bt_requantise_finish(bt_requantise *requantise, bt_arena *arena, bt_why *why);
void bt_requantise_close(bt_requantise *requantise); // NULL is fine

// How many outliers a weight of `model` is given at most: 0 but for q4.
size_t bt_requantise_outliers_max(const bt_model *model, const bt_weight *weight);
