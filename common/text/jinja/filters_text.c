// Filters whose result is a text, a number or the value itself.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// The subject as text, as Jinja's soft_str: what is marked safe stays so.
static bt_jinja_value
soft(bt_jinja_run *run, bt_jinja_value v)
{
    return v.kind == BT_JINJA_TEXT ? v : bt_jinja_text(bt_jinja_to_text(run, v));
}

static bt_jinja_value
with_text(bt_jinja_value v, bt_str text)
{
    v.text = text;
    return v;
}

static bool
no_args(bt_jinja_run *run, const bt_jinja_args *args, const char *what)
{
    return bt_jinja_take_args(run, args, what, "", 0, NULL);
}

static bt_jinja_value
filter_string(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return no_args(run, args, "string") ? soft(run, v) : v;
}

static bt_jinja_value
filter_safe(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    v = filter_string(run, v, args);
    v.markup = v.kind == BT_JINJA_TEXT;
    return v;
}

static bt_jinja_value
filter_escape(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value escaped = bt_jinja_text(bt_jinja_escape(run, v));

    (void)args;
    escaped.markup = true;
    return escaped;
}

static bt_jinja_value
filter_forceescape(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return filter_escape(run, bt_jinja_text(bt_jinja_to_text(run, v)), args);
}

static bt_jinja_value
filter_trim(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value chars;

    if (!bt_jinja_take_args(run, args, "trim", "chars", 0, &chars)) {
        return v;
    }
    v = soft(run, v);
    if (chars.kind != BT_JINJA_UNSET && chars.kind != BT_JINJA_NONE && chars.kind != BT_JINJA_TEXT) {
        return bt_jinja_fail(run, "trim: expected str, got %s", bt_jinja_type_name(chars));
    }
    return with_text(v, bt_jinja_text_strip(run, v.text, chars.kind == BT_JINJA_TEXT ? &chars.text : NULL, true, true));
}

static bt_jinja_value
filter_lower(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    v = soft(run, v);
    return no_args(run, args, "lower") ? with_text(v, bt_jinja_text_case(run, v.text, BT_JINJA_LOWER)) : v;
}

static bt_jinja_value
filter_upper(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    v = soft(run, v);
    return no_args(run, args, "upper") ? with_text(v, bt_jinja_text_case(run, v.text, BT_JINJA_UPPER)) : v;
}

static bt_jinja_value
filter_capitalize(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    v = soft(run, v);
    return no_args(run, args, "capitalize") ? with_text(v, bt_jinja_text_case(run, v.text, BT_JINJA_CAPITALIZE)) : v;
}

// Words begin behind white space and - ( { [ <, and not behind an apostrophe as in str.title.
static bt_jinja_value
filter_title(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bool begins = true;
    size_t bytes;
    bt_buf out;

    if (!no_args(run, args, "title")) {
        return v;
    }
    v = soft(run, v);
    bt_jinja_charge(run, v.text.len / 8);
    bt_jinja_buf_init(run, &out);
    for (size_t at = 0; at < v.text.len && !out.failed; at += bytes) {
        uint32_t c = bt_jinja_char_at(v.text, at, &bytes),
                 turned = begins ? bt_jinja_to_upper(c) : bt_jinja_to_lower(c);
        char encoded[4];

        bt_buf_append(&out, encoded, bt_utf8_encode(turned, encoded));
        begins = bt_jinja_is_space(c) || (c < 128 && c != 0 && strchr("-({[<", (int)c) != NULL);
    }
    return with_text(v, bt_jinja_text_of_buf(run, &out).text);
}

static bt_jinja_value
filter_replace(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[3];
    int64_t count = -1;

    if (!bt_jinja_take_args(run, args, "replace", "old new count", 2, places)) {
        return v;
    }
    if (places[2].kind != BT_JINJA_UNSET && places[2].kind != BT_JINJA_NONE && !bt_jinja_as_int(places[2], &count)) {
        return bt_jinja_fail(run, "replace: count must be an integer");
    }
    v = soft(run, v);
    return with_text(v, bt_jinja_text_replace(run, bt_jinja_to_text(run, v), bt_jinja_to_text(run, places[0]),
                                              bt_jinja_to_text(run, places[1]), count));
}

static bt_jinja_value
filter_indent(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[3], lines;
    bt_str indent = {"    ", 4};
    bool first, blank;
    int64_t width;
    bt_buf out;

    if (!bt_jinja_take_args(run, args, "indent", "width first blank", 0, places)) {
        return v;
    }
    if (places[0].kind == BT_JINJA_TEXT) {
        indent = places[0].text;
    } else if (places[0].kind != BT_JINJA_UNSET) {
        if (!bt_jinja_as_int(places[0], &width)) {
            return bt_jinja_fail(run, "indent: width must be an integer or a string");
        }
        indent = bt_jinja_binary(run, '*', bt_jinja_text(bt_str_of(" ")), bt_jinja_int(width)).text;
    }
    if (v.kind != BT_JINJA_TEXT) {
        return bt_jinja_fail(run, "indent: expected str, got %s", bt_jinja_type_name(v));
    }
    first = bt_jinja_truth(places[1]);
    blank = bt_jinja_truth(places[2]);
    // One newline more, as Jinja adds it, so that an empty text is a line.
    lines = bt_jinja_text_lines(run, bt_jinja_join(run, v.text, bt_str_of("\n")), false);
    bt_jinja_buf_init(run, &out);
    for (size_t i = 0; run->err == BT_OK && i < lines.list->count && !out.failed; i++) {
        bt_str line = lines.list->items[i].text;

        bt_buf_append_text(&out, i != 0 ? "\n" : "");
        if (i == 0 ? first : blank || line.len != 0) {
            bt_buf_append(&out, indent.data, indent.len);
        }
        bt_buf_append(&out, line.data, line.len);
    }
    return with_text(v, bt_jinja_text_of_buf(run, &out).text);
}

static bt_jinja_value
filter_center(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value width, bound;

    if (!bt_jinja_take_args(run, args, "center", "width", 0, &width)) {
        return v;
    }
    width = width.kind != BT_JINJA_UNSET ? width : bt_jinja_int(80);
    bound = bt_jinja_text_method(run, soft(run, v), bt_str_of("center"));
    return bt_jinja_call(run, bound, &(bt_jinja_args){.items = &width, .count = 1});
}

static bt_jinja_value
filter_truncate(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[4];
    int64_t length = 255, leeway = 5, room;
    bt_str end, cut;
    size_t space;

    if (!bt_jinja_take_args(run, args, "truncate", "length killwords end leeway", 0, places)) {
        return v;
    }
    v = soft(run, v);
    end = places[2].kind != BT_JINJA_UNSET ? bt_jinja_to_text(run, places[2]) : bt_str_of("...");
    if ((places[0].kind != BT_JINJA_UNSET && !bt_jinja_as_int(places[0], &length)) ||
        (places[3].kind != BT_JINJA_UNSET && places[3].kind != BT_JINJA_NONE && !bt_jinja_as_int(places[3], &leeway)) ||
        leeway < 0 || (room = length - (int64_t)bt_jinja_char_count(end)) < 0 || length > INT32_MAX ||
        leeway > INT32_MAX) {
        return bt_jinja_fail(run, "truncate: lengths are out of range");
    }
    if (!bt_jinja_charge(run, v.text.len / 64) || (int64_t)bt_jinja_char_count(v.text) <= length + leeway) {
        return v;
    }
    cut = (bt_str){v.text.data, bt_jinja_char_offset(v.text, (size_t)room)};
    if (!bt_jinja_truth(places[1]) && (space = bt_jinja_text_find_last(run, cut, bt_str_of(" "))) != SIZE_MAX) {
        cut.len = space;
    }
    return with_text(v, bt_jinja_join(run, cut, end));
}

static bt_jinja_value
filter_wordcount(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bool word = false;
    int64_t count = 0;
    size_t bytes;

    if (!no_args(run, args, "wordcount")) {
        return v;
    }
    v = soft(run, v);
    bt_jinja_charge(run, v.text.len / 16);
    for (size_t at = 0; at < v.text.len; at += bytes) {
        uint32_t c = bt_jinja_char_at(v.text, at, &bytes);
        bool inside = bt_jinja_is_alpha(c) || bt_jinja_is_numeric(c) || c == '_';

        count += inside && !word;
        word = inside;
    }
    return bt_jinja_int(count);
}

static bt_jinja_value
filter_urlencode(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_str text;
    bt_buf out;

    if (!no_args(run, args, "urlencode")) {
        return v;
    }
    if (v.kind == BT_JINJA_DICT || v.kind == BT_JINJA_LIST) {
        return bt_jinja_fail(run, "urlencode: only strings are supported");
    }
    text = bt_jinja_to_text(run, v);
    bt_jinja_charge(run, text.len / 8);
    bt_jinja_buf_init(run, &out);
    for (size_t i = 0; i < text.len && !out.failed; i++) {
        uint8_t c = (uint8_t)text.data[i];

        if (c < 0x80 && c != 0 && (bt_jinja_is_name((char)c) || strchr("-.~/", c) != NULL)) {
            bt_buf_append_char(&out, (char)c);
        } else {
            bt_buf_printf(&out, "%%%02X", c);
        }
    }
    return bt_jinja_text_of_buf(run, &out);
}

static bt_jinja_value
filter_format(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value dict, only = {0};
    bt_jinja_args mapped = {.items = &only, .count = 1};

    if (args->named_count == 0) {
        return bt_jinja_format_percent(run, soft(run, v), args);
    }
    if (args->count != 0) {
        return bt_jinja_fail(run, "format: positional and keyword arguments cannot be mixed");
    }
    dict = bt_jinja_dict_new(run, args->named_count);
    for (size_t i = 0; i < args->named_count; i++) {
        bt_jinja_dict_set(run, dict.dict, bt_jinja_text(args->named[i].name), args->named[i].value);
    }
    only = dict;
    return bt_jinja_format_percent(run, soft(run, v), &mapped);
}

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

    if (!no_args(run, args, "abs")) {
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

const bt_jinja_filter bt_jinja_filters_text[] = {
    {"string", filter_string},
    {"safe", filter_safe},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"forceescape", filter_forceescape},
    {"trim", filter_trim},
    {"lower", filter_lower},
    {"upper", filter_upper},
    {"capitalize", filter_capitalize},
    {"title", filter_title},
    {"replace", filter_replace},
    {"indent", filter_indent},
    {"center", filter_center},
    {"truncate", filter_truncate},
    {"wordcount", filter_wordcount},
    {"urlencode", filter_urlencode},
    {"format", filter_format},
    {"default", filter_default},
    {"d", filter_default},
    {"attr", filter_attr},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"tojson", bt_jinja_filter_tojson},
    {0},
};

const bt_jinja_filter *
bt_jinja_filter_find(bt_str name)
{
    const bt_jinja_filter *const tables[] = {bt_jinja_filters_text, bt_jinja_filters_items};

    for (size_t i = 0; i < 2; i++) {
        for (const bt_jinja_filter *filter = tables[i]; filter->name != NULL; filter++) {
            if (bt_str_is(name, filter->name)) {
                return filter;
            }
        }
    }
    return NULL;
}
