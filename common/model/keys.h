// A model's settings, from GGUF metadata or config.json alike: each is asked for by both of its names.
//
// GGUF names are without the architecture's prefix ("block_count"); config.json's may be paths ("rope_parameters.factor").
// NULL where a container has no such setting. Errors name file, key, what was expected and what was found.
#pragma once

#include "common/model/source.h"

typedef struct {
    const bt_source *source;
    char architecture[32]; // GGUF's prefix; config.json's model_type
    bt_json_at root;       // of config.json; values found point to it, so a bt_keys stays where it is
} bt_keys;

// Finds the architecture's name; fails when there is none.
bt_err bt_keys_init(bt_keys *keys, const bt_source *source, bt_why *why);

// Required and in range; `maybe` leaves *out as it is when the key is absent or null.
bt_err bt_keys_u32(const bt_keys *keys, const char *gguf, const char *hf, uint32_t min, uint32_t max, uint32_t *out,
                   bt_why *why);
bt_err bt_keys_maybe_u32(const bt_keys *keys, const char *gguf, const char *hf, uint32_t min, uint32_t max,
                         uint32_t *out, bt_why *why);
bt_err bt_keys_f32(const bt_keys *keys, const char *gguf, const char *hf, float min, float max, float *out,
                   bt_why *why);
bt_err bt_keys_maybe_f32(const bt_keys *keys, const char *gguf, const char *hf, float min, float max, float *out,
                         bt_why *why);
bt_err bt_keys_maybe_bool(const bt_keys *keys, const char *gguf, const char *hf, bool *out, bt_why *why);
// Borrowed from the source.
bt_err bt_keys_maybe_text(const bt_keys *keys, const char *gguf, const char *hf, bt_str *out, bt_why *why);

// Item `index` of config.json's array `hf` when it is the text `text`; false for anything else.
bool bt_keys_item_is(const bt_keys *keys, const char *hf, size_t index, const char *text);
// Items of config.json's array, 0 when it is none.
size_t bt_keys_items(const bt_keys *keys, const char *hf);
