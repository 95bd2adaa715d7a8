#include "common/json/write.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void
append_escaped(bt_buf *out, uint8_t c)
{
    static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt";

    for (size_t i = 0; i + 1 < sizeof letters; i += 2) {
        if (c == (uint8_t)letters[i]) {
            bt_buf_append_char(out, '\\');
            bt_buf_append_char(out, letters[i + 1]);
            return;
        }
    }
    bt_buf_printf(out, "\\u%04x", c);
}

void
bt_json_append_text(bt_buf *out, bt_str text)
{
    size_t from = 0, at = 0;

    bt_buf_append_char(out, '"');
    while (at < text.len) {
        uint8_t c = (uint8_t)text.data[at];
        uint32_t code_point;
        size_t count = bt_utf8_decode(text.data + at, text.len - at, &code_point);

        if (count != 0 && c >= 0x20 && c != '"' && c != '\\') {
            at += count;
            continue;
        }
        bt_buf_append(out, text.data + from, at - from);
        if (count == 0) {
            bt_buf_append_text(out, "\xef\xbf\xbd");
        } else {
            append_escaped(out, c);
        }
        from = ++at;
    }
    bt_buf_append(out, bt_str_from(text, from).data, text.len - from);
    bt_buf_append_char(out, '"');
}

// 15 digits hold every number a person writes, without a trail of nines; 17 are always enough. Denormals hold fewer.
static int
shortest(double value, char *out, size_t bytes)
{
    int len = 0;

    for (int digits = value < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        len = snprintf(out, bytes, "%.*e", digits - 1, value);
        if (strtod(out, NULL) == value) {
            break;
        }
    }
    return len;
}

// Splits "-1.2500e+03" (with whatever decimal point) into its digits without trailing zeros and its exponent.
static int
split(const char *text, char *digits, int *exponent)
{
    int count = 0;

    for (; *text != 0 && *text != 'e'; text++) {
        if (*text >= '0' && *text <= '9') {
            digits[count++] = *text;
        }
    }
    while (count > 1 && digits[count - 1] == '0') {
        count--;
    }
    *exponent = *text == 'e' ? atoi(text + 1) : 0;
    digits[count] = 0;
    return count;
}

size_t
bt_real_text(double value, char out[BT_REAL_TEXT_BYTES])
{
    char text[64], digits[64];
    const char *sign = signbit(value) ? "-" : "";
    int exponent, count, len;

    if (!isfinite(value)) {
        return (size_t)snprintf(out, BT_REAL_TEXT_BYTES, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    }
    shortest(fabs(value), text, sizeof text);
    count = split(text, digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        len = snprintf(out, BT_REAL_TEXT_BYTES, "%s%c%s%se%c%02d", sign, digits[0], count > 1 ? "." : "", digits + 1,
                       exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        len = snprintf(out, BT_REAL_TEXT_BYTES, "%s0.%.*s%s", sign, -exponent - 1, "000", digits);
    } else if (count <= exponent + 1) {
        len = snprintf(out, BT_REAL_TEXT_BYTES, "%s%s%.*s.0", sign, digits, exponent + 1 - count, "0000000000000000");
    } else {
        len = snprintf(out, BT_REAL_TEXT_BYTES, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
    }
    return (size_t)len;
}

static void
append_real(bt_buf *out, double value)
{
    char text[BT_REAL_TEXT_BYTES];

    bt_buf_append(out, isfinite(value) ? text : "null", isfinite(value) ? bt_real_text(value, text) : 4);
}

static void
append_members(bt_buf *out, const bt_json_at *value, bt_json_type type)
{
    bt_json_at child;
    void *step = NULL;

    bt_buf_append_char(out, type == BT_JSON_ARRAY ? '[' : '{');
    for (size_t i = 0; i < bt_json_count(value); i++) {
        bt_buf_append_text(out, i != 0 ? "," : "");
        if (type == BT_JSON_ARRAY) {
            child = bt_json_item(value, i);
        } else {
            bt_json_next(value, &step, &child);
            bt_json_append_text(out, child.key);
            bt_buf_append_char(out, ':');
        }
        bt_json_append_value(out, &child);
    }
    bt_buf_append_char(out, type == BT_JSON_ARRAY ? ']' : '}');
}

// Recurses as deep as the document nests, which its parser bounded.
void
bt_json_append_value(bt_buf *out, const bt_json_at *value)
{
    bt_json_type type = bt_json_type_of(value);
    bt_str text;
    int64_t whole;
    double real;
    bool flag;

    if (type == BT_JSON_ARRAY || type == BT_JSON_OBJECT) {
        append_members(out, value, type);
    } else if (bt_json_as_text(value, &text, NULL) == BT_OK) {
        bt_json_append_text(out, text);
    } else if (bt_json_as_int(value, INT64_MIN, INT64_MAX, &whole, NULL) == BT_OK) {
        bt_buf_printf(out, "%" PRId64, whole);
    } else if (bt_json_as_real(value, -INFINITY, INFINITY, &real, NULL) == BT_OK) {
        append_real(out, real);
    } else if (bt_json_as_bool(value, &flag, NULL) == BT_OK) {
        bt_buf_append_text(out, flag ? "true" : "false");
    } else {
        bt_buf_append_text(out, "null");
    }
}

void
bt_json_write(bt_json_writer *w, bt_buf *out)
{
    *w = (bt_json_writer){.out = out};
}

static void
put_key(bt_json_writer *w, const char *key)
{
    if (w->depth == 0) {
        assert(key == NULL && "a document has no key");
        return;
    }
    assert((key != NULL) == w->object[w->depth - 1] && "members have keys, items have none");
    if (w->filled[w->depth - 1]) {
        bt_buf_append_char(w->out, ',');
    }
    w->filled[w->depth - 1] = true;
    if (key != NULL) {
        bt_json_append_text(w->out, bt_str_of(key));
        bt_buf_append_char(w->out, ':');
    }
}

static void
begin(bt_json_writer *w, const char *key, bool object)
{
    assert(w->depth < BT_JSON_WRITER_DEPTH);
    put_key(w, key);
    bt_buf_append_char(w->out, object ? '{' : '[');
    w->object[w->depth] = object;
    w->filled[w->depth++] = false;
}

void
bt_json_begin_object(bt_json_writer *w, const char *key)
{
    begin(w, key, true);
}

void
bt_json_begin_array(bt_json_writer *w, const char *key)
{
    begin(w, key, false);
}

void
bt_json_end(bt_json_writer *w)
{
    assert(w->depth > 0);
    bt_buf_append_char(w->out, w->object[--w->depth] ? '}' : ']');
}

void
bt_json_put_text(bt_json_writer *w, const char *key, bt_str text)
{
    put_key(w, key);
    bt_json_append_text(w->out, text);
}

void
bt_json_put_int(bt_json_writer *w, const char *key, int64_t value)
{
    put_key(w, key);
    bt_buf_printf(w->out, "%" PRId64, value);
}

void
bt_json_put_real(bt_json_writer *w, const char *key, double value)
{
    put_key(w, key);
    append_real(w->out, value);
}

void
bt_json_put_bool(bt_json_writer *w, const char *key, bool value)
{
    put_key(w, key);
    bt_buf_append_text(w->out, value ? "true" : "false");
}

void
bt_json_put_null(bt_json_writer *w, const char *key)
{
    put_key(w, key);
    bt_buf_append_text(w->out, "null");
}

void
bt_json_put_raw(bt_json_writer *w, const char *key, bt_str json)
{
    put_key(w, key);
    bt_buf_append(w->out, json.data, json.len);
}

void
bt_json_put_value(bt_json_writer *w, const char *key, const bt_json_at *value)
{
    put_key(w, key);
    bt_json_append_value(w->out, value);
}
