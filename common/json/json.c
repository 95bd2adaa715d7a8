#include "common/json/json.h"

#include "common/base/mem.h"

#include <jansson.h>

#include <pthread.h>

static void
use_our_memory(void)
{
    json_set_alloc_funcs(bt_alloc, bt_free);
}

// jansson recurses as deep as the text nests, up to a depth fixed when it was built. Counting brackets first gives us our own limit and
// the place where it was passed. Faulty text is left to the parser.
static size_t
too_deep_at(bt_str text, size_t depth_max)
{
    size_t depth = 0;
    bool quoted = false;

    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];

        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > depth_max) {
                return i;
            }
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return SIZE_MAX;
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// From the byte after an opening quote to the closing one.
static size_t
string_end(bt_str text, size_t at)
{
    while (at < text.len && text.data[at] != '"') {
        at += text.data[at] == '\\' ? 2 : 1;
    }
    return at < text.len ? at : text.len;
}

// jansson takes NUL in texts but not in keys, where JSON allows it. In a copy of the text, keys get U+FDD0 instead.
static void
replace_nul_in_keys(char *data, size_t len)
{
    bt_str text = {data, len};

    for (size_t i = 0; i < len; i++) {
        size_t end, after;

        if (data[i] != '"') {
            continue;
        }
        end = string_end(text, i + 1);
        for (after = end + 1; after < len && is_space(data[after]); after++) {
        }
        for (size_t k = i + 1; after < len && data[after] == ':' && k + 6 <= end; k++) {
            if (data[k] == '\\') {
                if (memcmp(data + k, "\\u0000", 6) == 0) {
                    memcpy(data + k, "\\ufdd0", 6);
                }
                k++;
            }
        }
        i = end;
    }
}

static bt_err
parse_fault(const json_error_t *error, bt_str text, bt_why *why)
{
    if (json_error_code(error) == json_error_out_of_memory) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "out of memory while parsing %zu bytes of JSON", text.len);
    }
    return bt_fail(why, BT_ERR_INVALID, "line %d, column %d (byte %d): %s", error->line, error->column, error->position,
                   error->text);
}

static json_t *
parse_again_without_nul(bt_str text, size_t flags, json_error_t *error)
{
    char *copy = bt_alloc(text.len);
    json_t *json;

    if (copy == NULL) {
        return NULL;
    }
    memcpy(copy, text.data, text.len);
    replace_nul_in_keys(copy, text.len);
    json = json_loadb(copy, text.len, flags, error);
    bt_free(copy);
    return json;
}

bt_err
bt_json_parse(bt_json **out, bt_str text, const bt_json_limits *limits, bt_why *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t bytes_max = limits != NULL && limits->bytes_max != 0 ? limits->bytes_max : (size_t)64 << 20;
    size_t depth_max = limits != NULL && limits->depth_max != 0 ? limits->depth_max : 128;
    size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL, deep;
    json_error_t error = {.line = 1, .text = "empty text"};
    json_t *json;

    pthread_once(&once, use_our_memory);
    depth_max = depth_max < 1024 ? depth_max : 1024;
    // A position is an int in jansson.
    if (text.len > bytes_max || text.len > INT32_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "%zu bytes of JSON, at most %zu are read", text.len, bytes_max);
    }
    // jansson takes a NUL outside of a string as the end.
    if (text.len != 0 && memchr(text.data, 0, text.len) != NULL) {
        return bt_fail(why, BT_ERR_INVALID, "byte %zu: a NUL byte",
                       (size_t)((const char *)memchr(text.data, 0, text.len) - text.data));
    }
    if ((deep = too_deep_at(text, depth_max)) != SIZE_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "byte %zu: nested deeper than %zu", deep, depth_max);
    }
    if (limits != NULL && limits->refuse_duplicates) {
        flags |= JSON_REJECT_DUPLICATES;
    }
    if (limits != NULL && limits->integers_as_reals) {
        flags |= JSON_DECODE_INT_AS_REAL;
    }
    json = json_loadb(text.data != NULL ? text.data : "", text.len, flags, &error);
    if (json == NULL && json_error_code(&error) == json_error_null_byte_in_key) {
        json = parse_again_without_nul(text, flags, &error);
    }
    if (json == NULL) {
        return parse_fault(&error, text, why);
    }
    *out = (bt_json *)(void *)json;
    return BT_OK;
}

void
bt_json_close(bt_json *document)
{
    json_decref((json_t *)(void *)document);
}
