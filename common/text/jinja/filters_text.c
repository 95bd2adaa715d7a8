// Filters whose subject is a text, or becomes one.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/text.h"

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
    {"tojson", bt_jinja_filter_tojson},
    {0},
};

const bt_jinja_filter *
bt_jinja_filter_find(bt_str name)
{
    const bt_jinja_filter *const tables[] = {bt_jinja_filters_text, bt_jinja_filters_value, bt_jinja_filters_items,
                                             bt_jinja_filters_order, bt_jinja_filters_map};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        for (const bt_jinja_filter *filter = tables[i]; filter->name != NULL; filter++) {
            if (bt_str_is(name, filter->name)) {
                return filter;
            }
        }
    }
    return NULL;
}
