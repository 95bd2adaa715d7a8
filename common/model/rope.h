// Rotary tables: a model's settings, and the inverse frequencies they come to.
#pragma once

#include "common/model/keys.h"
#include "common/model/model.h"

typedef enum { BT_ROPE_PLAIN, BT_ROPE_LINEAR, BT_ROPE_LLAMA3, BT_ROPE_YARN } bt_rope_kind;

typedef struct {
    bt_rope_kind kind;
    float base;
    float factor;           // how much longer the context is than the trained one
    float original_context; // the trained one
    float low, high;        // llama3: frequency factors; YaRN: slow and fast betas
    bool truncate;          // YaRN: correction dimensions are rounded outwards
    float magnitude;        // YaRN: on cos and sin
} bt_rope_settings;

// `local`: of the layers with a window, where a model turns them differently (Gemma 3). Kinds of scaling that we do not
// know are BT_ERR_UNSUPPORTED by name.
bt_err bt_rope_read(const bt_keys *keys, uint32_t context, bool local, bt_rope_settings *out, bt_why *why);

// Fills table->factor and table->inv_freq [dims / 2]. `divisors` [dims / 2] (a file's rope_freqs) may be NULL.
void bt_rope_build(const bt_rope_settings *settings, uint32_t dims, const float *divisors, bt_rope_table *table);
