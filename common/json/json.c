#include "common/json/json.h"

#include "common/base/buf.h"
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

// jansson refuses two things that JSON allows and files hold: NUL in a key, and integers beyond int64 (the
// "model_max_length" of many a tokenizer). In a copy of the text NUL in keys becomes U+FDD0 and such an integer a real.
static bool
is_key(bt_str text, size_t end)
{
    for (end++; end < text.len && is_space(text.data[end]); end++) {
    }
    return end < text.len && text.data[end] == ':';
}

static size_t
repair_string(bt_buf *out, bt_str text, size_t at)
{
    size_t end = string_end(text, at + 1);
    bool key = is_key(text, end);

    bt_buf_append_char(out, '"');
    for (at++; at < end;) {
        size_t bytes = text.data[at] == '\\' && at + 1 < end ? 2 : 1;

        if (key && bytes == 2 && at + 6 <= end && memcmp(text.data + at, "\\u0000", 6) == 0) {
            bt_buf_append_text(out, "\\ufdd0");
            bytes = 6;
        } else {
            bt_buf_append(out, text.data + at, bytes);
        }
        at += bytes;
    }
    return at;
}

// From the first digit to behind the last.
static size_t
repair_digits(bt_buf *out, bt_str text, size_t at)
{
    size_t end = at;
    int64_t value = 0;
    bool over = false, part_of_real = at > 0 && strchr(".eE+", text.data[at - 1]) != NULL;

    for (; end < text.len && text.data[end] >= '0' && text.data[end] <= '9'; end++) {
        over = over || __builtin_mul_overflow(value, 10, &value) ||
               __builtin_add_overflow(value, text.data[end] - '0', &value);
    }
    bt_buf_append(out, text.data + at, end - at);
    part_of_real = part_of_real || (end < text.len && strchr(".eE", text.data[end]) != NULL);
    bt_buf_append_text(out, over && !part_of_real ? ".0" : "");
    return end;
}

static void
repair(bt_buf *out, bt_str text)
{
    for (size_t at = 0; at < text.len;) {
        if (text.data[at] == '"') {
            at = repair_string(out, text, at);
            bt_buf_append(out, text.data + at, at < text.len);
            at++;
        } else if (text.data[at] >= '0' && text.data[at] <= '9') {
            at = repair_digits(out, text, at);
        } else {
            bt_buf_append_char(out, text.data[at++]);
        }
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
parse_repaired(bt_str text, size_t flags, json_error_t *error)
{
    json_t *json = NULL;
    bt_buf copy;

    bt_buf_init(&copy, 2 * text.len + 16);
    repair(&copy, text);
    if (!copy.failed) {
        json = json_loadb(copy.data, copy.len, flags, error);
    }
    bt_buf_fini(&copy);
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
    if (json == NULL && (json_error_code(&error) == json_error_null_byte_in_key ||
                         json_error_code(&error) == json_error_numeric_overflow)) {
        json = parse_repaired(text, flags, &error);
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
