// "{}".format(x).
#include "common/text/jinja/chars.h"
#include "common/text/jinja/format_spec.h"

#include <inttypes.h>

static bool
is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

// [[fill]align][sign][#][0][width][,][.precision][type]
static bool
read_spec(bt_jinja_run *run, bt_str f, bt_jinja_spec *s)
{
    size_t at = 0, bytes = 1;

    *s = (bt_jinja_spec){.fill = {" ", 1}, .precision = -1};
    if (f.len != 0) {
        bt_jinja_char_at(f, 0, &bytes);
    }
    if (bytes < f.len && is_align(f.data[bytes])) {
        s->fill = (bt_str){f.data, bytes};
        s->align = f.data[bytes];
        at = bytes + 1;
    } else if (f.len != 0 && is_align(f.data[0])) {
        s->align = f.data[at++];
    }
    if (at < f.len && (f.data[at] == '+' || f.data[at] == '-' || f.data[at] == ' ')) {
        s->sign = f.data[at] != '-' ? f.data[at] : 0;
        at++;
    }
    s->alternate = bt_jinja_format_skip(f, &at, '#');
    if (at < f.len && f.data[at] == '0' && s->align == 0) {
        s->fill = bt_str_of("0");
        s->align = '=';
    }
    if (!bt_jinja_format_number(run, f, &at, &s->width)) {
        return false;
    }
    if (at < f.len && (f.data[at] == ',' || f.data[at] == '_')) {
        s->comma = f.data[at++];
    }
    if (bt_jinja_format_skip(f, &at, '.') && !bt_jinja_format_number(run, f, &at, &s->precision)) {
        return false;
    }
    s->type = at < f.len ? f.data[at++] : 0;
    if (at != f.len || (s->type != 0 && strchr("bdoxXeEfFgG%s", s->type) == NULL)) {
        bt_jinja_fail(run, "invalid format specifier");
        return false;
    }
    return true;
}

static bt_jinja_value
named_value(bt_jinja_run *run, const bt_jinja_args *args, bt_str name)
{
    for (size_t i = 0; i < args->named_count; i++) {
        if (bt_str_equal(args->named[i].name, name)) {
            return args->named[i].value;
        }
    }
    return bt_jinja_fail(run, "format names an argument that is not there");
}

// "0.name[key]" of a replacement field.
static bt_jinja_value
field_value(bt_jinja_run *run, const bt_jinja_args *args, bt_str field, size_t *next)
{
    size_t at = 0, from = 0;
    int64_t index = 0;
    bt_jinja_value v;

    while (at < field.len && field.data[at] != '.' && field.data[at] != '[') {
        at++;
    }
    if (at == 0) {
        index = (int64_t)(*next)++;
    } else if (!bt_jinja_is_digit(field.data[0])) {
        index = -1;
    } else if (!bt_jinja_format_number(run, field, &from, &index)) {
        return bt_jinja_none();
    }
    v = index < 0                     ? named_value(run, args, (bt_str){field.data, at})
        : (size_t)index < args->count ? args->items[index]
                                      : bt_jinja_fail(run, "replacement index %" PRId64 " is out of range", index);
    while (at < field.len && run->err == BT_OK) {
        bool dot = field.data[at] == '.';
        const char *end = dot ? NULL : memchr(field.data + at, ']', field.len - at);
        size_t to = at + 1;

        while (dot && to < field.len && field.data[to] != '.' && field.data[to] != '[') {
            to++;
        }
        to = end != NULL ? (size_t)(end - field.data) : to;
        if (field.data[at] == '[' && end == NULL) {
            return bt_jinja_fail(run, "a format's '[' is not closed");
        }
        if (dot) {
            v = bt_jinja_attribute(run, v, (bt_str){field.data + at + 1, to - at - 1});
        } else {
            bt_str key = {field.data + at + 1, to - at - 1};

            from = 0;
            v = bt_jinja_get_item(run, v,
                                  key.len != 0 && bt_jinja_is_digit(key.data[0]) &&
                                          bt_jinja_format_number(run, key, &from, &index)
                                      ? bt_jinja_int(index)
                                      : bt_jinja_text(key));
        }
        at = dot ? to : to + 1;
    }
    return v;
}

// From behind "{" to behind "}".
static size_t
put_field(bt_jinja_run *run, bt_buf *out, bt_str f, size_t at, const bt_jinja_args *args, size_t *next, bool markup)
{
    const char *close = memchr(f.data + at, '}', f.len - at);
    bt_str field = {f.data + at, close != NULL ? (size_t)(close - f.data) - at : 0}, layout = {"", 0};
    const char *colon = memchr(field.data, ':', field.len), *bang;
    bt_jinja_value v;
    bt_jinja_spec s;

    if (close == NULL || memchr(field.data, '{', field.len) != NULL) {
        bt_jinja_fail(run,
                      close == NULL ? "a format's '{' is not closed" : "nested replacement fields are not supported");
        return f.len;
    }
    at += field.len + 1;
    if (colon != NULL) {
        layout = (bt_str){colon + 1, (size_t)(field.data + field.len - colon) - 1};
        field.len = (size_t)(colon - field.data);
    }
    bang = memchr(field.data, '!', field.len);
    v = field_value(run, args, (bt_str){field.data, bang != NULL ? (size_t)(bang - field.data) : field.len}, next);
    if (bang != NULL && bang + 1 < field.data + field.len && bang[1] == 'r') {
        bt_buf repr;

        bt_jinja_buf_init(run, &repr);
        bt_jinja_repr(run, &repr, v);
        v = bt_jinja_text_of_buf(run, &repr);
    } else if (bang != NULL || markup) {
        v = bt_jinja_text(markup ? bt_jinja_escape(run, v) : bt_jinja_to_text(run, v));
    }
    if (run->err == BT_OK && read_spec(run, layout, &s)) {
        bt_jinja_put_value(run, out, &s, v);
    }
    return at;
}

bt_jinja_value
bt_jinja_format_braces(bt_jinja_run *run, bt_jinja_value format, const bt_jinja_args *args)
{
    bt_str f = format.text;
    size_t next = 0;
    bt_buf out;

    bt_jinja_buf_init(run, &out);
    for (size_t at = 0; at < f.len && run->err == BT_OK && !out.failed && bt_jinja_charge(run, 1);) {
        char c = f.data[at++];

        if ((c == '{' || c == '}') && at < f.len && f.data[at] == c) {
            bt_buf_append_char(&out, c);
            at++;
        } else if (c == '{') {
            at = put_field(run, &out, f, at, args, &next, format.markup);
        } else if (c == '}') {
            bt_jinja_fail(run, "Single '}' encountered in format string");
        } else {
            bt_buf_append_char(&out, c);
        }
    }
    format.text = bt_jinja_text_of_buf(run, &out).text;
    return format;
}
