// "%s" % x.
#include "common/text/jinja/format_spec.h"

#include <math.h>

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

    if (!bt_jinja_format_skip(f, at, '(')) {
        return (bt_jinja_value){0};
    }
    while (*at < f.len && f.data[*at] != ')') {
        (*at)++;
    }
    if (!bt_jinja_format_skip(f, at, ')') || feed->args->count != 1 || feed->args->items[0].kind != BT_JINJA_DICT) {
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
percent_flags(bt_jinja_run *run, bt_str f, size_t *at, feeder *feed, bt_jinja_spec *s)
{
    for (; *at < f.len && f.data[*at] != 0 && strchr("-+ #0", f.data[*at]) != NULL; (*at)++) {
        char c = f.data[*at];

        s->align = c == '-' ? '<' : c == '0' && s->align == 0 ? '=' : s->align;
        s->fill = s->align == '=' ? bt_str_of("0") : bt_str_of(" ");
        s->sign = c == '+' || (c == ' ' && s->sign == 0) ? c : s->sign;
        s->alternate = s->alternate || c == '#';
    }
    if (bt_jinja_format_skip(f, at, '*')) {
        bt_jinja_value width = next_value(run, feed);

        if (!bt_jinja_as_int(width, &s->width) || s->width < 0 || s->width > BT_JINJA_WIDTH_MAX) {
            bt_jinja_fail(run, "a format's width must be an integer up to %d", BT_JINJA_WIDTH_MAX);
        }
    } else if (!bt_jinja_format_number(run, f, at, &s->width)) {
        return false;
    }
    return run->err == BT_OK &&
           (!bt_jinja_format_skip(f, at, '.') || bt_jinja_format_number(run, f, at, &s->precision));
}

static void
put_percent(bt_jinja_run *run, bt_buf *out, bt_jinja_spec *s, bt_jinja_value v, bool markup)
{
    double real;
    bt_buf repr;

    switch (s->type) {
    case 's':
        s->align = s->align == '<' ? '<' : '>';
        s->fill = bt_str_of(" ");
        bt_jinja_put_text(out, s, markup ? bt_jinja_escape(run, v) : bt_jinja_to_text(run, v));
        return;
    case 'r':
    case 'a':
        bt_jinja_buf_init(run, &repr);
        bt_jinja_repr(run, &repr, v);
        bt_jinja_put_text(out, s, bt_jinja_text_of_buf(run, &repr).text);
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
        bt_jinja_put_value(run, out, s, v);
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
        bt_jinja_spec s = {.fill = {" ", 1}, .precision = -1};
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
