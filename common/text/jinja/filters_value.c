// Filters for numbers, defaults and attributes.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bt_jinja_value
filter_default(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2];

    if (!bt_jinja_take_args(run, args, "default", "default_value boolean", 0, places)) {
        return v;
    }
    if (v.kind != BT_JINJA_UNDEFINED && (!bt_jinja_truth(places[1]) || bt_jinja_truth(v))) {
        return v;
    }
    return places[0].kind != BT_JINJA_UNSET ? places[0] : bt_jinja_text((bt_str){"", 0});
}

static bt_jinja_value
filter_attr(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value name;

    if (!bt_jinja_take_args(run, args, "attr", "name", 1, &name)) {
        return v;
    }
    // Attributes alone, and no keys.
    return v.kind == BT_JINJA_DICT ? bt_jinja_other_method(run, v, bt_jinja_to_text(run, name)).kind != BT_JINJA_UNSET
                                         ? bt_jinja_other_method(run, v, bt_jinja_to_text(run, name))
                                         : bt_jinja_undefined(bt_str_of("no such attribute"))
                                   : bt_jinja_attribute(run, v, bt_jinja_to_text(run, name));
}

// Python's int(text, base): sign, digits, underscores between them.
static bool
read_int(bt_str text, int64_t base, int64_t *out)
{
    bool negative = text.len != 0 && text.data[0] == '-', digit = false;
    size_t at = text.len != 0 && (text.data[0] == '-' || text.data[0] == '+');
    int64_t value = 0;

    if (at + 1 < text.len && text.data[at] == '0' && base != 10) {
        char c = (char)(text.data[at + 1] | 32);

        at += (base == 16 && c == 'x') || (base == 8 && c == 'o') || (base == 2 && c == 'b') ? 2 : 0;
    }
    for (; at < text.len; at++) {
        char c = (char)(text.data[at] | 32);
        int64_t d = bt_jinja_is_digit(text.data[at]) ? text.data[at] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;

        if (text.data[at] == '_' && digit && at + 1 < text.len) {
            digit = false;
            continue;
        }
        if (d >= base || __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, d, &value)) {
            return false;
        }
        digit = true;
    }
    *out = negative ? -value : value;
    return digit;
}

static bool
read_real(bt_str text, double *out)
{
    char copy[400], *end;

    if (text.len == 0 || text.len >= sizeof copy || memchr(text.data, 0, text.len) != NULL ||
        memchr(text.data, 'x', text.len) != NULL || memchr(text.data, 'X', text.len) != NULL) {
        return false;
    }
    memcpy(copy, text.data, text.len);
    copy[text.len] = 0;
    *out = strtod(copy, &end);
    return *end == 0;
}

static bt_jinja_value
filter_int(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2], fallback;
    int64_t base = 10, whole;
    double real;
    bt_str text;

    if (!bt_jinja_take_args(run, args, "int", "default base", 0, places)) {
        return v;
    }
    fallback = places[0].kind != BT_JINJA_UNSET ? places[0] : bt_jinja_int(0);
    if (places[1].kind != BT_JINJA_UNSET && (!bt_jinja_as_int(places[1], &base) || base < 2 || base > 36)) {
        return bt_jinja_fail(run, "int: base must be from 2 to 36");
    }
    if (bt_jinja_as_int(v, &whole)) {
        return bt_jinja_int(whole);
    }
    if (v.kind == BT_JINJA_TEXT) {
        text = bt_jinja_text_strip(run, v.text, NULL, true, true);
        if (read_int(text, base, &whole)) {
            return bt_jinja_int(whole);
        }
        if (!read_real(text, &real)) {
            return fallback;
        }
    } else if (!bt_jinja_as_real(v, &real)) {
        return fallback;
    }
    return fabs(real) < 9e18 ? bt_jinja_int((int64_t)real) : fallback;
}

static bt_jinja_value
filter_float(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value fallback;
    double real;

    if (!bt_jinja_take_args(run, args, "float", "default", 0, &fallback)) {
        return v;
    }
    if (bt_jinja_as_real(v, &real) ||
        (v.kind == BT_JINJA_TEXT && read_real(bt_jinja_text_strip(run, v.text, NULL, true, true), &real))) {
        return bt_jinja_real(real);
    }
    return fallback.kind != BT_JINJA_UNSET ? fallback : bt_jinja_real(0);
}

static bt_jinja_value
filter_abs(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    int64_t whole;

    if (!bt_jinja_take_args(run, args, "abs", "", 0, NULL)) {
        return v;
    }
    if (v.kind == BT_JINJA_REAL) {
        return bt_jinja_real(fabs(v.real));
    }
    return bt_jinja_as_int(v, &whole) && whole >= 0 ? bt_jinja_int(whole) : bt_jinja_sign(run, '-', v);
}

static bt_jinja_value
filter_round(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2];
    int64_t digits = 0;
    double real, scale;

    if (!bt_jinja_take_args(run, args, "round", "precision method", 0, places)) {
        return v;
    }
    if (!bt_jinja_as_real(v, &real) || (places[0].kind != BT_JINJA_UNSET && !bt_jinja_as_int(places[0], &digits)) ||
        llabs(digits) > 300) {
        return bt_jinja_fail(run, "round: expected numbers");
    }
    scale = pow(10, (double)digits);
    if (places[1].kind == BT_JINJA_UNSET || bt_jinja_is_text(places[1], "common")) {
        char text[700];

        // As Python: the decimal number nearest to the exact value, which printing gives.
        if (digits >= 0 && isfinite(real)) {
            snprintf(text, sizeof text, "%.*f", (int)digits, real);
            return v.kind == BT_JINJA_REAL ? bt_jinja_real(strtod(text, NULL)) : v;
        }
        return v.kind == BT_JINJA_REAL ? bt_jinja_real(rint(real * scale) / scale)
                                       : bt_jinja_int((int64_t)(rint(real * scale) / scale));
    }
    if (!bt_jinja_is_text(places[1], "ceil") && !bt_jinja_is_text(places[1], "floor")) {
        return bt_jinja_fail(run, "round: method must be common, ceil or floor");
    }
    return bt_jinja_real((bt_jinja_is_text(places[1], "ceil") ? ceil(real * scale) : floor(real * scale)) / scale);
}

const bt_jinja_filter bt_jinja_filters_value[] = {
    {"default", filter_default}, {"d", filter_default}, {"attr", filter_attr},   {"int", filter_int},
    {"float", filter_float},     {"abs", filter_abs},   {"round", filter_round}, {0},
};
