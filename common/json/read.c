// Reading a parsed document: steps into it, and getters that say what they wanted and where.
#include "common/json/json.h"

#include <jansson.h>

#include <stdarg.h>
#include <stdio.h>

// A bt_json is a json_t under another name, so that no user sees jansson.
static const json_t *
json_of(const bt_json_at *at)
{
    return (const json_t *)(const void *)at->value;
}

static const bt_json *
wrapped(const json_t *json)
{
    return (const bt_json *)(const void *)json;
}

bt_json_at
bt_json_root(const bt_json *document)
{
    return (bt_json_at){.value = document};
}

bt_json_type
bt_json_type_of(const bt_json_at *at)
{
    static const bt_json_type types[] = {
        [JSON_NULL] = BT_JSON_NULL,   [JSON_TRUE] = BT_JSON_BOOL,     [JSON_FALSE] = BT_JSON_BOOL,
        [JSON_INTEGER] = BT_JSON_INT, [JSON_REAL] = BT_JSON_REAL,     [JSON_STRING] = BT_JSON_TEXT,
        [JSON_ARRAY] = BT_JSON_ARRAY, [JSON_OBJECT] = BT_JSON_OBJECT,
    };
    return at->value == NULL ? BT_JSON_ABSENT : types[json_typeof(json_of(at))];
}

bool
bt_json_given(const bt_json_at *at)
{
    return bt_json_type_of(at) > BT_JSON_NULL;
}

bt_json_at
bt_json_get(const bt_json_at *object, const char *key)
{
    return (bt_json_at){
        .value = object->value != NULL ? wrapped(json_object_get(json_of(object), key)) : NULL,
        .parent = object,
        .key = bt_str_of(key),
    };
}

bt_json_at
bt_json_item(const bt_json_at *array, size_t index)
{
    return (bt_json_at){
        .value = array->value != NULL ? wrapped(json_array_get(json_of(array), index)) : NULL,
        .parent = array,
        .index = index,
    };
}

bool
bt_json_next(const bt_json_at *object, void **step, bt_json_at *member)
{
    // jansson's walk takes the object as if to change it; it does not.
    json_t *json = (json_t *)(uintptr_t)json_of(object);
    const char *key;

    *step = *step == NULL ? json_object_iter(json) : json_object_iter_next(json, *step);
    if (*step == NULL) {
        return false;
    }
    key = json_object_iter_key(*step);
    *member = (bt_json_at){
        .value = wrapped(json_object_iter_value(*step)),
        .parent = object,
        .key = {key, strlen(key)},
    };
    return true;
}

size_t
bt_json_count(const bt_json_at *at)
{
    bt_json_type type = bt_json_type_of(at);

    return type == BT_JSON_ARRAY    ? json_array_size(json_of(at))
           : type == BT_JSON_OBJECT ? json_object_size(json_of(at))
                                    : 0;
}

// The names of the steps from the root, written from the last to the first into the end of `out`.
void
bt_json_path(const bt_json_at *at, char *out, size_t bytes)
{
    size_t from = bytes - 1;

    out[from] = 0;
    for (; at->parent != NULL; at = at->parent) {
        char index[32];
        bt_str part = at->key;

        if (part.data == NULL) {
            part = (bt_str){index, (size_t)snprintf(index, sizeof index, "[%zu]", at->index)};
        }
        if (part.len + 1 > from) {
            break;
        }
        from -= part.len;
        memcpy(out + from, part.data, part.len);
        if (at->key.data != NULL && at->parent->parent != NULL) {
            out[--from] = '.';
        }
    }
    memmove(out, out + from, bytes - from);
    if (out[0] == 0) {
        snprintf(out, bytes, "the document");
    }
}

bt_err
bt_json_wrong(const bt_json_at *at, bt_why *why, const char *format, ...)
{
    char path[256], words[256];
    va_list args;

    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    bt_json_path(at, path, sizeof path);
    return bt_fail(why, BT_ERR_INVALID, "%s: %s", path, words);
}

static bt_err
expected(const bt_json_at *at, const char *what, bt_why *why)
{
    static const char *const names[] = {
        [BT_JSON_NULL] = "null",        [BT_JSON_BOOL] = "a boolean", [BT_JSON_INT] = "a number",
        [BT_JSON_REAL] = "a number",    [BT_JSON_TEXT] = "a string",  [BT_JSON_ARRAY] = "an array",
        [BT_JSON_OBJECT] = "an object",
    };
    bt_json_type type = bt_json_type_of(at);

    return type == BT_JSON_ABSENT ? bt_json_wrong(at, why, "missing, expected %s", what)
                                  : bt_json_wrong(at, why, "expected %s, got %s", what, names[type]);
}

bt_err
bt_json_as_text(const bt_json_at *at, bt_str *out, bt_why *why)
{
    if (bt_json_type_of(at) != BT_JSON_TEXT) {
        return expected(at, "a string", why);
    }
    *out = (bt_str){json_string_value(json_of(at)), json_string_length(json_of(at))};
    return BT_OK;
}

bt_err
bt_json_as_bool(const bt_json_at *at, bool *out, bt_why *why)
{
    if (bt_json_type_of(at) != BT_JSON_BOOL) {
        return expected(at, "true or false", why);
    }
    *out = json_is_true(json_of(at));
    return BT_OK;
}

bt_err
bt_json_as_int(const bt_json_at *at, int64_t min, int64_t max, int64_t *out, bt_why *why)
{
    int64_t value;

    if (bt_json_type_of(at) != BT_JSON_INT) {
        return expected(at, "an integer", why);
    }
    value = json_integer_value(json_of(at));
    if (value < min || value > max) {
        return bt_json_wrong(at, why, "%lld is not within %lld and %lld", (long long)value, (long long)min,
                             (long long)max);
    }
    *out = value;
    return BT_OK;
}

bt_err
bt_json_as_real(const bt_json_at *at, double min, double max, double *out, bt_why *why)
{
    bt_json_type type = bt_json_type_of(at);
    double value;

    if (type != BT_JSON_INT && type != BT_JSON_REAL) {
        return expected(at, "a number", why);
    }
    value = json_number_value(json_of(at));
    if (value < min || value > max) {
        return bt_json_wrong(at, why, "%g is not within %g and %g", value, min, max);
    }
    *out = value;
    return BT_OK;
}

bt_err
bt_json_as_array(const bt_json_at *at, size_t *count, bt_why *why)
{
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return expected(at, "an array", why);
    }
    *count = json_array_size(json_of(at));
    return BT_OK;
}

bt_err
bt_json_as_object(const bt_json_at *at, bt_why *why)
{
    return bt_json_type_of(at) != BT_JSON_OBJECT ? expected(at, "an object", why) : BT_OK;
}

bt_err
bt_json_maybe_text(const bt_json_at *object, const char *key, bt_str *out, bt_why *why)
{
    bt_json_at at = bt_json_get(object, key);

    return bt_json_given(&at) ? bt_json_as_text(&at, out, why) : BT_OK;
}

bt_err
bt_json_maybe_bool(const bt_json_at *object, const char *key, bool *out, bt_why *why)
{
    bt_json_at at = bt_json_get(object, key);

    return bt_json_given(&at) ? bt_json_as_bool(&at, out, why) : BT_OK;
}

bt_err
bt_json_maybe_int(const bt_json_at *object, const char *key, int64_t min, int64_t max, int64_t *out, bt_why *why)
{
    bt_json_at at = bt_json_get(object, key);

    return bt_json_given(&at) ? bt_json_as_int(&at, min, max, out, why) : BT_OK;
}
