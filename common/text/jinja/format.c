// Python's two ways of formatting: "%s" % x, and "{}".format(x).
#include "common/json/write.h"
#include "common/text/jinja/chars.h"
#include "common/text/jinja/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define WIDTH_MAX 10000

typedef struct {
    bt_str fill;
    char align; // '<' '>' '^' '=' or 0
    char sign;  // '+', ' ' or 0
    char comma; // ',' '_' or 0
    bool alternate;
    int64_t width, precision; // precision: -1 when none
    char type;                // 0 when none
} spec;

static void
pad(bt_buf *out, const spec *s, int64_t count)
{
    for (; count > 0; count--) {
        bt_buf_append(out, s->fill.data, s->fill.len);
    }
}

// The text padded to its width; `sign` bytes at its front stay in front with '='.
static void
put_padded(bt_buf *out, const spec *s, bt_str text, size_t sign)
{
    int64_t missing = s->width - (int64_t)bt_jinja_char_count(text), left;

    missing = missing > 0 ? missing : 0;
    if (s->align == '=') {
        bt_buf_append(out, text.data, sign);
        pad(out, s, missing);
        bt_buf_append(out, text.data + sign, text.len - sign);
        return;
    }
    left = s->align == '<' ? 0 : s->align == '^' ? missing / 2 : missing;
    pad(out, s, left);
    bt_buf_append(out, text.data, text.len);
    pad(out, s, missing - left);
}

static void
put_text(bt_buf *out, const spec *s, bt_str text)
{
    spec copy = *s;

    if (s->precision >= 0) {
        text.len = bt_jinja_char_offset(text, (size_t)s->precision);
    }
    copy.align = copy.align != 0 ? copy.align : '<';
    put_padded(out, &copy, text, 0);
}

// Digits with a comma at every third before the point.
static size_t
group(const char *digits, char comma, char *out)
{
    size_t whole = strspn(digits, "0123456789"), used = 0;

    for (size_t i = 0; digits[i] != 0; i++) {
        if (comma != 0 && i != 0 && i < whole && (whole - i) % 3 == 0) {
            out[used++] = comma;
        }
        out[used++] = digits[i];
    }
    out[used] = 0;
    return used;
}

static void
put_number(bt_buf *out, const spec *s, bool negative, const char *digits)
{
    char text[1600];
    size_t used = 0;
    spec copy = *s;

    if (negative || s->sign != 0) {
        text[used++] = negative ? '-' : s->sign;
    }
    if (s->alternate && (s->type == 'x' || s->type == 'X' || s->type == 'o' || s->type == 'b')) {
        text[used++] = '0';
        text[used++] = s->type;
    }
    copy.align = copy.align != 0 ? copy.align : '>';
    put_padded(out, &copy, (bt_str){text, used + group(digits, s->comma, text + used)}, used);
}

static void
put_int(bt_buf *out, const spec *s, int64_t value)
{
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char digits[80];
    size_t used = 0;

    if (s->type == 'b') {
        for (int bit = 63; bit >= 0; bit--) {
            if (used != 0 || bit == 0 || (size >> bit & 1) != 0) {
                digits[used++] = (char)('0' + (size >> bit & 1));
            }
        }
        digits[used] = 0;
    } else {
        snprintf(digits, sizeof digits,
                 s->type == 'x'   ? "%" PRIx64
                 : s->type == 'X' ? "%" PRIX64
                 : s->type == 'o' ? "%" PRIo64
                                  : "%" PRIu64,
                 size);
    }
    put_number(out, s, value < 0, digits);
}

static void
put_real(bt_buf *out, const spec *s, double value)
{
    int precision = (int)(s->precision < 0 ? 6 : s->precision < 100 ? s->precision : 100);
    double size = fabs(value);
    char digits[500];

    if (!isfinite(value)) {
        snprintf(digits, sizeof digits, "%s", isnan(value) ? "nan" : "inf");
    } else if (s->type == 'e' || s->type == 'E') {
        snprintf(digits, sizeof digits, s->type == 'e' ? "%.*e" : "%.*E", precision, size);
    } else if (s->type == 'g' || s->type == 'G') {
        snprintf(digits, sizeof digits, s->type == 'g' ? "%.*g" : "%.*G", precision, size);
    } else if (s->type == '%') {
        snprintf(digits, sizeof digits, "%.*f%%", precision, size * 100);
    } else if (s->type != 0) {
        snprintf(digits, sizeof digits, "%.*f", precision, size);
    } else if (s->precision >= 0) {
        snprintf(digits, sizeof digits, "%.*g", precision != 0 ? precision : 1, size);
    } else {
        bt_real_text(size, digits);
    }
    put_number(out, s, signbit(value) && !isnan(value), digits);
}

static void
put_value(bt_jinja_run *run, bt_buf *out, const spec *s, bt_jinja_value v)
{
    bool wants_real = s->type != 0 && strchr("eEfFgG%", s->type) != NULL;
    int64_t whole;
    double real;

    if (v.kind == BT_JINJA_REAL || (wants_real && bt_jinja_as_real(v, &real))) {
        if (!bt_jinja_as_real(v, &real) || (s->type != 0 && !wants_real)) {
            bt_jinja_fail(run, "unknown format code '%c' for object of type 'float'", s->type);
            return;
        }
        put_real(out, s, real);
    } else if (bt_jinja_as_int(v, &whole) && (v.kind == BT_JINJA_INT || s->type != 0) && s->type != 's') {
        put_int(out, s, whole);
    } else if (s->type != 0 && s->type != 's') {
        bt_jinja_fail(run, "unknown format code '%c' for object of type '%s'", s->type, bt_jinja_type_name(v));
    } else {
        put_text(out, s, bt_jinja_to_text(run, v));
    }
}

// A number in a format; false with a fault when it is beyond all sense.
static bool
read_number(bt_jinja_run *run, bt_str f, size_t *at, int64_t *out)
{
    int64_t value = 0;

    for (; *at < f.len && bt_jinja_is_digit(f.data[*at]); (*at)++) {
        value = value * 10 + (f.data[*at] - '0');
        if (value > WIDTH_MAX) {
            bt_jinja_fail(run, "a format's width or precision is above %d", WIDTH_MAX);
            return false;
        }
    }
    *out = value;
    return true;
}

static bool
skip(bt_str f, size_t *at, char c)
{
    bool there = *at < f.len && f.data[*at] == c;

    *at += there;
    return there;
}

// The next value for a "%" format: a name from a dict, or the next of the arguments.
typedef struct {
    const bt_jinja_args *args;
    size_t next;
} feeder;

static bt_jinja_value
percent_value(bt_jinja_run *run, feeder *feed, bt_str f, size_t *at)
{
    const bt_jinja_value *found;
    size_t from = *at;

    if (!skip(f, at, '(')) {
        return (bt_jinja_value){0};
    }
    while (*at < f.len && f.data[*at] != ')') {
        (*at)++;
    }
    if (!skip(f, at, ')') || feed->args->count != 1 || feed->args->items[0].kind != BT_JINJA_DICT) {
        return bt_jinja_fail(run, "format requires a mapping");
    }
    found = bt_jinja_dict_find_text(run, feed->args->items[0].dict, (bt_str){f.data + from + 1, *at - from - 2});
    feed->next = 1;
    return found != NULL ? *found : bt_jinja_fail(run, "format names a key that is not there");
}

static bt_jinja_value
next_value(bt_jinja_run *run, feeder *feed)
{
    return feed->next < feed->args->count ? feed->args->items[feed->next++]
                                          : bt_jinja_fail(run, "not enough arguments for format string");
}

static bool
percent_flags(bt_jinja_run *run, bt_str f, size_t *at, feeder *feed, spec *s)
{
    for (; *at < f.len && f.data[*at] != 0 && strchr("-+ #0", f.data[*at]) != NULL; (*at)++) {
        char c = f.data[*at];

        s->align = c == '-' ? '<' : c == '0' && s->align == 0 ? '=' : s->align;
        s->fill = s->align == '=' ? bt_str_of("0") : bt_str_of(" ");
        s->sign = c == '+' || (c == ' ' && s->sign == 0) ? c : s->sign;
        s->alternate = s->alternate || c == '#';
    }
    if (skip(f, at, '*')) {
        bt_jinja_value width = next_value(run, feed);

        if (!bt_jinja_as_int(width, &s->width) || s->width < 0 || s->width > WIDTH_MAX) {
            bt_jinja_fail(run, "a format's width must be an integer up to %d", WIDTH_MAX);
        }
    } else if (!read_number(run, f, at, &s->width)) {
        return false;
    }
    return run->err == BT_OK && (!skip(f, at, '.') || read_number(run, f, at, &s->precision));
}

static void
put_percent(bt_jinja_run *run, bt_buf *out, spec *s, bt_jinja_value v, bool markup)
{
    double real;
    bt_buf repr;

    switch (s->type) {
    case 's':
        s->align = s->align == '<' ? '<' : '>';
        s->fill = bt_str_of(" ");
        put_text(out, s, markup ? bt_jinja_escape(run, v) : bt_jinja_to_text(run, v));
        return;
    case 'r':
    case 'a':
        bt_jinja_buf_init(run, &repr);
        bt_jinja_repr(run, &repr, v);
        put_text(out, s, bt_jinja_text_of_buf(run, &repr).text);
        return;
    case 'i':
    case 'u':
    case 'd':
        s->type = 'd';
        if (v.kind == BT_JINJA_REAL && fabs(v.real) < 9e18) {
            v = bt_jinja_int((int64_t)v.real);
        }
        break;
    default:
        break;
    }
    if (strchr("dxXoeEfFgG", s->type) == NULL || s->type == 0) {
        bt_jinja_fail(run, "unsupported format character '%c'", s->type);
    } else if (!bt_jinja_as_real(v, &real)) {
        bt_jinja_fail(run, "%%%c format: a real number is required, not %s", s->type, bt_jinja_type_name(v));
    } else {
        put_value(run, out, s, v);
    }
}

bt_jinja_value
bt_jinja_format_percent(bt_jinja_run *run, bt_jinja_value format, const bt_jinja_args *args)
{
    bt_str f = format.text;
    feeder feed = {.args = args};
    bt_buf out;

    bt_jinja_buf_init(run, &out);
    for (size_t at = 0; at < f.len && run->err == BT_OK && !out.failed && bt_jinja_charge(run, 1);) {
        spec s = {.fill = {" ", 1}, .precision = -1};
        bt_jinja_value v;

        if (f.data[at++] != '%') {
            bt_buf_append_char(&out, f.data[at - 1]);
            continue;
        }
        v = percent_value(run, &feed, f, &at);
        if (!percent_flags(run, f, &at, &feed, &s)) {
            break;
        }
        if (at == f.len) {
            bt_jinja_fail(run, "incomplete format");
            break;
        }
        s.type = f.data[at++];
        if (s.type == '%') {
            bt_buf_append_char(&out, '%');
            continue;
        }
        v = v.kind != BT_JINJA_UNSET ? v : next_value(run, &feed);
        if (run->err == BT_OK) {
            put_percent(run, &out, &s, v, format.markup);
        }
    }
    if (run->err == BT_OK && feed.next < args->count && !(args->count == 1 && args->items[0].kind == BT_JINJA_DICT)) {
        bt_jinja_fail(run, "not all arguments converted during string formatting");
    }
    format.text = bt_jinja_text_of_buf(run, &out).text;
    return format;
}

static bool
is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

// [[fill]align][sign][#][0][width][,][.precision][type]
static bool
read_spec(bt_jinja_run *run, bt_str f, spec *s)
{
    size_t at = 0, bytes = 1;

    *s = (spec){.fill = {" ", 1}, .precision = -1};
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
    s->alternate = skip(f, &at, '#');
    if (at < f.len && f.data[at] == '0' && s->align == 0) {
        s->fill = bt_str_of("0");
        s->align = '=';
    }
    if (!read_number(run, f, &at, &s->width)) {
        return false;
    }
    if (at < f.len && (f.data[at] == ',' || f.data[at] == '_')) {
        s->comma = f.data[at++];
    }
    if (skip(f, &at, '.') && !read_number(run, f, &at, &s->precision)) {
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
    } else if (!read_number(run, field, &from, &index)) {
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
                                  key.len != 0 && bt_jinja_is_digit(key.data[0]) && read_number(run, key, &from, &index)
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
    spec s;

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
        put_value(run, out, &s, v);
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
