// Names the weights that a model computes with: the same for the same file, options and mapping, on every machine, and on every kind of
// device but for one case: linear layers of 16-bit weights, whose activations a GPU rounds to 16 bits (kernels/cuda/linear_half.cuh) and a
// CPU does not. A model that has any is another one where they are rounded: nodes take its blocks and its requests for those of other
// weights.
//
// XXH3 over the architecture, each weight's name, type, shape and format, and samples of its bytes in the file: all of it
// up to 64 KiB, else 16 pieces of 1 KiB spread evenly from first to last. It tells different models and quantisations
// apart; it is no proof against a file made to deceive.
#pragma once

#include "common/model/plan.h"

// Of the file: what takes the time, once for all options.
uint64_t bt_model_source_digest(const bt_plan *plan);

// Of the weights that `plan`, with its formats chosen, and `options` make of it.
uint64_t bt_model_digest(uint64_t source, const bt_plan *plan, const bt_model_options *options);

// Names what the caches of a model hold: without formats, but with what options change about keys and values.
uint64_t bt_model_family(uint64_t source, const bt_model_options *options);
