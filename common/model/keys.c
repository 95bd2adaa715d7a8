#include "common/model/keys.h"

#include "common/model/file.h"

#include <inttypes.h>
#include <stdio.h>

#define DEPTH_MAX 4 // of a path in config.json

bt_err
bt_keys_init(bt_keys *keys, const bt_source *source, bt_why *why)
{
    bt_str name = {0};
    char shown[72];

    *keys = (bt_keys){.source = source};
    if (source->gguf != NULL) {
        if (!bt_gguf_get_str(source->gguf, "general.architecture", &name)) {
            return bt_fail(why, BT_ERR_INVALID, "%s: general.architecture: expected a text, found none", source->path);
        }
    } else {
        bt_why inner;
        bt_json_at type;

        keys->root = bt_json_root(source->config);
        type = bt_json_get(&keys->root, "model_type");
        if (bt_json_as_text(&type, &name, &inner) != BT_OK) {
            return bt_fail(why, BT_ERR_INVALID, "%.200s/config.json: %.290s", source->path, inner.text);
        }
    }
    if (name.len >= sizeof keys->architecture || memchr(name.data, 0, name.len) != NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: unknown architecture '%s'", source->path,
                       bt_printable(name, shown));
    }
    memcpy(keys->architecture, name.data, name.len);
    return BT_OK;
}

static const char *
full_key(const bt_keys *keys, const char *gguf, char out[128])
{
    snprintf(out, 128, "%s.%s", keys->architecture, gguf);
    return out;
}

// A value of either container, or none. `way` keeps the steps that a JSON value's path points to.
typedef struct {
    bool found;
    char key[128];
    const bt_gguf_value *value;
    bt_json_at way[DEPTH_MAX];
    const bt_json_at *at;
} setting;

static void
find_json(const bt_keys *keys, const char *path, setting *out)
{
    const bt_json_at *at = &keys->root;

    for (int depth = 0; depth < DEPTH_MAX && path != NULL; depth++) {
        const char *dot = strchr(path, '.');
        char step[64];

        snprintf(step, sizeof step, "%.*s", dot != NULL ? (int)(dot - path) : 63, path);
        out->way[depth] = bt_json_get(at, step);
        at = &out->way[depth];
        path = dot != NULL ? dot + 1 : NULL;
    }
    out->at = at;
    out->found = bt_json_given(at);
}

static void
find(const bt_keys *keys, const char *gguf, const char *hf, setting *out)
{
    *out = (setting){.found = false};
    if (keys->source->gguf != NULL && gguf != NULL) {
        out->value = bt_gguf_find(keys->source->gguf, full_key(keys, gguf, out->key));
        out->found = out->value != NULL;
    } else if (keys->source->gguf == NULL && hf != NULL) {
        snprintf(out->key, sizeof out->key, "%s", hf);
        find_json(keys, hf, out);
    }
}

static bt_err
wrong(const bt_keys *keys, const setting *what, bt_err err, const bt_why *inner, bt_why *why)
{
    return bt_fail(why, err, "%.200s%s: %.290s", keys->source->path, what->value == NULL ? "/config.json" : "",
                   inner->text);
}

static bt_err
missing(const bt_keys *keys, const char *gguf, const char *hf, bt_why *why)
{
    char key[128];

    if (keys->source->gguf == NULL) {
        return bt_fail(why, BT_ERR_INVALID, "%s/config.json: %s: expected a number, found none", keys->source->path,
                       hf);
    }
    return bt_fail(why, BT_ERR_INVALID, "%s: %s: expected a number, found none", keys->source->path,
                   full_key(keys, gguf, key));
}

static bt_err
read_u32(const bt_keys *keys, const setting *from, uint32_t min, uint32_t max, uint32_t *out, bt_why *why)
{
    int64_t integer = 0;
    uint32_t number;
    bt_why inner;
    bt_err err;

    if (from->value == NULL) {
        if ((err = bt_json_as_int(from->at, min, max, &integer, &inner)) != BT_OK) {
            return wrong(keys, from, err, &inner, why);
        }
        number = (uint32_t)integer;
    } else if (!bt_gguf_get_u32(keys->source->gguf, from->key, &number)) {
        return bt_fail(why, BT_ERR_INVALID, "%s: %s: expected one number from %" PRIu32 " to %" PRIu32,
                       keys->source->path, from->key, min, max);
    } else if (number < min || number > max) {
        return bt_fail(why, BT_ERR_INVALID, "%s: %s: expected %" PRIu32 " to %" PRIu32 ", found %" PRIu32,
                       keys->source->path, from->key, min, max, number);
    }
    *out = number;
    return BT_OK;
}

bt_err
bt_keys_u32(const bt_keys *keys, const char *gguf, const char *hf, uint32_t min, uint32_t max, uint32_t *out,
            bt_why *why)
{
    setting from;

    find(keys, gguf, hf, &from);
    return from.found ? read_u32(keys, &from, min, max, out, why) : missing(keys, gguf, hf, why);
}

bt_err
bt_keys_maybe_u32(const bt_keys *keys, const char *gguf, const char *hf, uint32_t min, uint32_t max, uint32_t *out,
                  bt_why *why)
{
    setting from;

    find(keys, gguf, hf, &from);
    return from.found ? read_u32(keys, &from, min, max, out, why) : BT_OK;
}

static bt_err
read_f32(const bt_keys *keys, const setting *from, float min, float max, float *out, bt_why *why)
{
    double real = 0;
    float number;
    bt_why inner;
    bt_err err;

    if (from->value == NULL) {
        if ((err = bt_json_as_real(from->at, (double)min, (double)max, &real, &inner)) != BT_OK) {
            return wrong(keys, from, err, &inner, why);
        }
        number = (float)real;
    } else if (!bt_gguf_get_f32(keys->source->gguf, from->key, &number) || !(number >= min && number <= max)) {
        return bt_fail(why, BT_ERR_INVALID, "%s: %s: expected a real number from %g to %g", keys->source->path,
                       from->key, (double)min, (double)max);
    }
    *out = number;
    return BT_OK;
}

bt_err
bt_keys_f32(const bt_keys *keys, const char *gguf, const char *hf, float min, float max, float *out, bt_why *why)
{
    setting from;

    find(keys, gguf, hf, &from);
    return from.found ? read_f32(keys, &from, min, max, out, why) : missing(keys, gguf, hf, why);
}

bt_err
bt_keys_maybe_f32(const bt_keys *keys, const char *gguf, const char *hf, float min, float max, float *out, bt_why *why)
{
    setting from;

    find(keys, gguf, hf, &from);
    return from.found ? read_f32(keys, &from, min, max, out, why) : BT_OK;
}

bt_err
bt_keys_maybe_bool(const bt_keys *keys, const char *gguf, const char *hf, bool *out, bt_why *why)
{
    setting from;
    bt_why inner;
    bt_err err;

    find(keys, gguf, hf, &from);
    if (!from.found) {
        return BT_OK;
    }
    if (from.value != NULL) {
        return bt_gguf_get_bool(keys->source->gguf, from.key, out)
                   ? BT_OK
                   : bt_fail(why, BT_ERR_INVALID, "%s: %s: expected true or false", keys->source->path, from.key);
    }
    return (err = bt_json_as_bool(from.at, out, &inner)) == BT_OK ? BT_OK : wrong(keys, &from, err, &inner, why);
}

bt_err
bt_keys_maybe_text(const bt_keys *keys, const char *gguf, const char *hf, bt_str *out, bt_why *why)
{
    setting from;
    bt_why inner;
    bt_err err;

    find(keys, gguf, hf, &from);
    if (!from.found) {
        return BT_OK;
    }
    if (from.value != NULL) {
        return bt_gguf_get_str(keys->source->gguf, from.key, out)
                   ? BT_OK
                   : bt_fail(why, BT_ERR_INVALID, "%s: %s: expected a text", keys->source->path, from.key);
    }
    return (err = bt_json_as_text(from.at, out, &inner)) == BT_OK ? BT_OK : wrong(keys, &from, err, &inner, why);
}

bool
bt_keys_item_is(const bt_keys *keys, const char *hf, size_t index, const char *text)
{
    bt_json_at item;
    bt_str found;
    setting from;

    find(keys, NULL, hf, &from);
    if (!from.found) {
        return false;
    }
    item = bt_json_item(from.at, index);
    return bt_json_as_text(&item, &found, NULL) == BT_OK && bt_str_is(found, text);
}

size_t
bt_keys_items(const bt_keys *keys, const char *hf)
{
    setting from;

    find(keys, NULL, hf, &from);
    return from.found && bt_json_type_of(from.at) == BT_JSON_ARRAY ? bt_json_count(from.at) : 0;
}
