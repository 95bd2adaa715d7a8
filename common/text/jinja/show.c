// Values as text: Python's str() and repr(), and HTML's escapes.
#include "common/json/write.h"
#include "common/text/jinja/chars.h"
#include "common/text/jinja/run.h"

#include <inttypes.h>

static void
repr_char(bt_buf *out, bt_str text, size_t at, size_t bytes, uint32_t c, char quote)
{
    if (c == (uint32_t)quote || c == '\\') {
        bt_buf_append_char(out, '\\');
        bt_buf_append_char(out, (char)c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
        bt_buf_append_text(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (bt_jinja_is_printable(c)) {
        bt_buf_append(out, text.data + at, bytes);
    } else {
        bt_buf_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
}

static void
repr_text(bt_jinja_run *run, bt_buf *out, bt_str text)
{
    bool single = text.len != 0 && memchr(text.data, '\'', text.len) != NULL;
    char quote = single && memchr(text.data, '"', text.len) == NULL ? '"' : '\'';
    size_t bytes;

    bt_jinja_charge(run, text.len / 16);
    bt_buf_append_char(out, quote);
    for (size_t at = 0; at < text.len; at += bytes) {
        uint32_t c = bt_jinja_char_at(text, at, &bytes);

        repr_char(out, text, at, bytes, c, quote);
    }
    bt_buf_append_char(out, quote);
}

static void
repr_list(bt_jinja_run *run, bt_buf *out, const bt_jinja_list *list)
{
    bool tuple = list->shape == BT_JINJA_SHAPE_TUPLE;

    if (list->shape == BT_JINJA_SHAPE_RANGE) {
        bt_buf_printf(out, "range(%" PRId64 ", %" PRId64, list->start, list->start + list->step * (int64_t)list->count);
        if (list->step != 1) {
            bt_buf_printf(out, ", %" PRId64, list->step);
        }
        bt_buf_append_char(out, ')');
        return;
    }
    if (list->shape == BT_JINJA_SHAPE_GENERATOR) {
        bt_buf_append_text(out, "<generator object>");
        return;
    }
    bt_buf_append_text(out, tuple ? "(" : list->shape == BT_JINJA_SHAPE_VIEW ? "dict_items([" : "[");
    for (size_t i = 0; i < list->count && run->err == BT_OK && !out->failed; i++) {
        bt_buf_append_text(out, i != 0 ? ", " : "");
        bt_jinja_repr(run, out, list->items[i]);
    }
    bt_buf_append_text(out, !tuple ? "]" : list->count == 1 ? ",)" : ")");
    bt_buf_append_text(out, list->shape == BT_JINJA_SHAPE_VIEW ? ")" : "");
}

static void
repr_dict(bt_jinja_run *run, bt_buf *out, const bt_jinja_dict *dict)
{
    bt_buf_append_char(out, '{');
    for (size_t i = 0; i < dict->count && run->err == BT_OK && !out->failed; i++) {
        bt_buf_append_text(out, i != 0 ? ", " : "");
        bt_jinja_repr(run, out, dict->entries[i].key);
        bt_buf_append_text(out, ": ");
        bt_jinja_repr(run, out, dict->entries[i].value);
    }
    bt_buf_append_char(out, '}');
}

void
bt_jinja_repr(bt_jinja_run *run, bt_buf *out, bt_jinja_value v)
{
    char real[BT_REAL_TEXT_BYTES];

    if (!bt_jinja_charge(run, 1) || !bt_jinja_enter(run)) {
        return;
    }
    switch (v.kind) {
    case BT_JINJA_UNDEFINED:
        bt_buf_append_text(out, "Undefined");
        break;
    case BT_JINJA_NONE:
        bt_buf_append_text(out, "None");
        break;
    case BT_JINJA_BOOL:
        bt_buf_append_text(out, v.flag ? "True" : "False");
        break;
    case BT_JINJA_INT:
        bt_buf_printf(out, "%" PRId64, v.whole);
        break;
    case BT_JINJA_REAL:
        bt_buf_append(out, real, bt_real_text(v.real, real));
        break;
    case BT_JINJA_TEXT:
        bt_buf_append_text(out, v.markup ? "Markup(" : "");
        repr_text(run, out, v.text);
        bt_buf_append_text(out, v.markup ? ")" : "");
        break;
    case BT_JINJA_LIST:
        repr_list(run, out, v.list);
        break;
    case BT_JINJA_DICT:
        repr_dict(run, out, v.dict);
        break;
    case BT_JINJA_NAMESPACE:
        bt_buf_append_text(out, "<Namespace ");
        repr_dict(run, out, v.dict);
        bt_buf_append_char(out, '>');
        break;
    default:
        bt_buf_printf(out, "<%s>", bt_jinja_type_name(v));
        break;
    }
    bt_jinja_leave(run);
}

void
bt_jinja_show(bt_jinja_run *run, bt_buf *out, bt_jinja_value v)
{
    if (v.kind == BT_JINJA_TEXT) {
        bt_buf_append(out, v.text.data, v.text.len);
    } else if (v.kind != BT_JINJA_UNDEFINED && v.kind != BT_JINJA_UNSET) {
        bt_jinja_repr(run, out, v);
    }
}

bt_str
bt_jinja_to_text(bt_jinja_run *run, bt_jinja_value v)
{
    bt_buf buf;

    if (v.kind == BT_JINJA_TEXT) {
        return v.text;
    }
    bt_jinja_buf_init(run, &buf);
    bt_jinja_show(run, &buf, v);
    return bt_jinja_text_of_buf(run, &buf).text;
}

bt_str
bt_jinja_escape(bt_jinja_run *run, bt_jinja_value v)
{
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    bt_str text = bt_jinja_to_text(run, v);
    bt_buf buf;

    if (v.kind == BT_JINJA_TEXT && v.markup) {
        return text;
    }
    bt_jinja_charge(run, text.len / 16);
    bt_jinja_buf_init(run, &buf);
    for (size_t i = 0; i < text.len && !buf.failed; i++) {
        const char *hit = text.data[i] != 0 ? strchr(from, text.data[i]) : NULL;

        if (hit != NULL) {
            bt_buf_append_text(&buf, to[hit - from]);
        } else {
            bt_buf_append_char(&buf, text.data[i]);
        }
    }
    return bt_jinja_text_of_buf(run, &buf).text;
}
