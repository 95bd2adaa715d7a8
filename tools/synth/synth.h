// Random models of real shapes, written quickly: what speed is measured on where no weights can be had.
//
// The same options give the same bytes on every machine, whatever the threads. Weights are uniform with a standard deviation of 1/√K
// and norms are 1, so that activations stay finite and about as large as a real model's; answers are noise. A GGUF file has a
// tokenizer of bytes (a character of ASCII is a token); a folder of safetensors has none: ids in, ids out.
#pragma once

#include "common/quant/ggml.h"
#include "kernels/device.h"

typedef struct {
    const char *name;
    const char *arch; // GGUF's name, which is config.json's model_type too
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    float rope_base;
    bool tied;
} bt_synth_shape;

const bt_synth_shape *bt_synth_shape_find(const char *name); // NULL when there is none
const bt_synth_shape *bt_synth_shape_at(uint32_t index);     // NULL after the last

typedef struct {
    const bt_synth_shape *shape;
    uint32_t layers; // 0 = the shape's
    uint32_t type;   // ggml's number: F32, F16, BF16, Q8_0, Q4_0; the last two in GGUF only
    bool safetensors;
    uint64_t seed;
} bt_synth_options;

// A type by its name in small letters ("q8_0"); BT_ERR_INVALID lists those there are.
bt_err bt_synth_type(const char *name, bool safetensors, uint32_t *type, bt_why *why);

// Writes `path` (a file, or a folder that is made), on the threads of a CPU device. What is unfinished is named .part. BT_ERR_IO with
// the system's words.
bt_err bt_synth_write(const bt_synth_options *options, const char *path, bt_device *device, uint64_t *bytes,
                      bt_why *why);
