#include "common/text/jinja/format_spec.h"

#include "common/json/write.h"
#include "common/text/jinja/chars.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void
pad(bt_buf *out, const bt_jinja_spec *s, int64_t count)
{
    for (; count > 0; count--) {
        bt_buf_append(out, s->fill.data, s->fill.len);
    }
}

// The text padded to its width; `sign` bytes at its front stay in front with '='.
static void
put_padded(bt_buf *out, const bt_jinja_spec *s, bt_str text, size_t sign)
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

void
bt_jinja_put_text(bt_buf *out, const bt_jinja_spec *s, bt_str text)
{
    bt_jinja_spec copy = *s;

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
put_number(bt_buf *out, const bt_jinja_spec *s, bool negative, const char *digits)
{
    char text[1600];
    size_t used = 0;
    bt_jinja_spec copy = *s;

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
put_int(bt_buf *out, const bt_jinja_spec *s, int64_t value)
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
put_real(bt_buf *out, const bt_jinja_spec *s, double value)
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

void
bt_jinja_put_value(bt_jinja_run *run, bt_buf *out, const bt_jinja_spec *s, bt_jinja_value v)
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
        bt_jinja_put_text(out, s, bt_jinja_to_text(run, v));
    }
}

bool
bt_jinja_format_number(bt_jinja_run *run, bt_str f, size_t *at, int64_t *out)
{
    int64_t value = 0;

    for (; *at < f.len && bt_jinja_is_digit(f.data[*at]); (*at)++) {
        value = value * 10 + (f.data[*at] - '0');
        if (value > BT_JINJA_WIDTH_MAX) {
            bt_jinja_fail(run, "a format's width or precision is above %d", BT_JINJA_WIDTH_MAX);
            return false;
        }
    }
    *out = value;
    return true;
}

bool
bt_jinja_format_skip(bt_str f, size_t *at, char c)
{
    bool there = *at < f.len && f.data[*at] == c;

    *at += there;
    return there;
}
