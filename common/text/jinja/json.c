// JSON in, as a conversation brings it, and out, as tojson writes it: Python's json.dumps, with ", " and ": ".
#include "common/json/json.h"
#include "common/json/write.h"
#include "common/text/jinja/chars.h"
#include "common/text/jinja/run.h"

#include <inttypes.h>
#include <math.h>

static bt_jinja_value value_of(bt_jinja_run *run, const bt_json_at *at);

static bt_jinja_value
array_of(bt_jinja_run *run, const bt_json_at *at)
{
    size_t count = bt_json_count(at);
    bt_jinja_value list = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, count);

    for (size_t i = 0; i < count && run->err == BT_OK; i++) {
        bt_json_at item = bt_json_item(at, i);

        bt_jinja_list_put(list, value_of(run, &item));
    }
    return list;
}

static bt_jinja_value
object_of(bt_jinja_run *run, const bt_json_at *at)
{
    bt_jinja_value dict = bt_jinja_dict_new(run, bt_json_count(at));
    bt_json_at member;
    void *step = NULL;

    // The keys of a parsed object differ, so that none needs to be looked for.
    while (run->err == BT_OK && bt_json_next(at, &step, &member)) {
        bt_jinja_value key = bt_jinja_text_copy(run, member.key), value = value_of(run, &member);

        if (dict.dict->count < dict.dict->cap) {
            dict.dict->entries[dict.dict->count++] = (bt_jinja_entry){key, value};
        }
    }
    return dict;
}

// As deep as the parser's limit.
static bt_jinja_value
value_of(bt_jinja_run *run, const bt_json_at *at)
{
    int64_t whole;
    double real;
    bt_str text;
    bool flag;

    switch (bt_json_type_of(at)) {
    case BT_JSON_ARRAY:
        return array_of(run, at);
    case BT_JSON_OBJECT:
        return object_of(run, at);
    case BT_JSON_TEXT:
        return bt_json_as_text(at, &text, NULL) == BT_OK ? bt_jinja_text_copy(run, text) : bt_jinja_none();
    case BT_JSON_INT:
        return bt_json_as_int(at, INT64_MIN, INT64_MAX, &whole, NULL) == BT_OK ? bt_jinja_int(whole) : bt_jinja_none();
    case BT_JSON_REAL:
        return bt_json_as_real(at, -INFINITY, INFINITY, &real, NULL) == BT_OK ? bt_jinja_real(real) : bt_jinja_none();
    case BT_JSON_BOOL:
        return bt_json_as_bool(at, &flag, NULL) == BT_OK ? bt_jinja_bool(flag) : bt_jinja_none();
    default:
        return bt_jinja_none();
    }
}

static bt_json *
parse(bt_jinja_run *run, bt_str json, const char *what)
{
    bt_json *document = NULL;
    bt_why why = {""};

    if (run->err == BT_OK) {
        bt_err err = bt_json_parse(&document, json, NULL, &why);

        if (err != BT_OK) {
            run->err = bt_fail(run->why, err, "%s: %.400s", what, why.text);
        }
    }
    return document;
}

bt_jinja_value
bt_jinja_from_json(bt_jinja_run *run, bt_str json, const char *what, bt_jinja_kind expected)
{
    bt_json *document = parse(run, json, what);
    bt_jinja_value value = {.kind = BT_JINJA_UNDEFINED};
    bt_json_at root;

    if (document == NULL) {
        return value;
    }
    root = bt_json_root(document);
    value = value_of(run, &root);
    bt_json_close(document);
    if (run->err == BT_OK && expected != BT_JINJA_UNSET && value.kind != expected) {
        run->err = bt_fail(run->why, BT_ERR_INVALID, "%s: expected %s", what,
                           expected == BT_JINJA_LIST ? "an array" : "an object");
    }
    return value;
}

void
bt_jinja_define_json(bt_jinja_run *run, bt_jinja_scope *scope, bt_str json, const char *what)
{
    bt_jinja_value object = bt_jinja_from_json(run, json, what, BT_JINJA_DICT);

    for (size_t i = 0; run->err == BT_OK && i < object.dict->count; i++) {
        bt_jinja_scope_set(run, scope, bt_jinja_tree_name(run->tree, object.dict->entries[i].key.text),
                           object.dict->entries[i].value);
    }
}

typedef struct {
    bt_jinja_run *run;
    bt_buf *out;
    bool ascii, sorted, lines;
    bt_str indent, between, colon;
    unsigned depth;
} dumper;

static void dump(dumper *d, bt_jinja_value v);

static void
dump_ascii(bt_buf *out, bt_str text)
{
    size_t bytes;

    bt_buf_append_char(out, '"');
    for (size_t at = 0; at < text.len && !out->failed; at += bytes) {
        uint32_t c = bt_jinja_char_at(text, at, &bytes);

        if (c >= 0x10000) {
            bt_buf_printf(out, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
        } else if (c >= 0x7f) {
            bt_buf_printf(out, "\\u%04x", c);
        } else {
            bt_buf piece;

            bt_buf_init(&piece, 64);
            bt_json_append_text(&piece, (bt_str){text.data + at, 1});
            bt_buf_append(out, piece.data + 1, piece.len - 2);
            bt_buf_fini(&piece);
        }
    }
    bt_buf_append_char(out, '"');
}

static void
dump_text(dumper *d, bt_str text)
{
    bt_jinja_charge(d->run, text.len / 32);
    if (d->ascii) {
        dump_ascii(d->out, text);
    } else {
        bt_json_append_text(d->out, text);
    }
}

static void
dump_real(dumper *d, double real)
{
    char text[BT_REAL_TEXT_BYTES];

    if (isfinite(real)) {
        bt_buf_append(d->out, text, bt_real_text(real, text));
    } else {
        bt_buf_append_text(d->out, isnan(real) ? "NaN" : real > 0 ? "Infinity" : "-Infinity");
    }
}

static void
dump_line(dumper *d)
{
    bt_buf_append_text(d->out, d->lines ? "\n" : "");
    for (unsigned i = 0; d->lines && i < d->depth && bt_jinja_charge(d->run, 1); i++) {
        bt_buf_append(d->out, d->indent.data, d->indent.len);
    }
}

static void
dump_list(dumper *d, const bt_jinja_list *list)
{
    if (list->count == 0) {
        bt_buf_append_text(d->out, "[]");
        return;
    }
    bt_buf_append_char(d->out, '[');
    d->depth++;
    for (size_t i = 0; i < list->count && d->run->err == BT_OK && !d->out->failed; i++) {
        bt_buf_append(d->out, d->between.data, i != 0 ? d->between.len : 0);
        dump_line(d);
        dump(d, list->items[i]);
    }
    d->depth--;
    dump_line(d);
    bt_buf_append_char(d->out, ']');
}

static void
dump_key(dumper *d, bt_jinja_value key)
{
    if (key.kind == BT_JINJA_TEXT) {
        dump_text(d, key.text);
    } else if (key.kind == BT_JINJA_NONE || bt_jinja_is_number(key)) {
        bt_buf_append_char(d->out, '"');
        dump(d, key);
        bt_buf_append_char(d->out, '"');
    } else {
        bt_jinja_fail(d->run, "keys must be str, int, float, bool or None, not %s", bt_jinja_type_name(key));
    }
}

static int
key_order(bt_jinja_run *run, const bt_jinja_value *a, const bt_jinja_value *b, const void *with)
{
    (void)with;
    return bt_jinja_order(run, a->list->items[0], b->list->items[0]);
}

// Pairs of a dict, by key.
static bt_jinja_value
sorted_pairs(bt_jinja_run *run, const bt_jinja_dict *dict)
{
    bt_jinja_value pairs = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, dict->count);

    for (size_t i = 0; i < dict->count && run->err == BT_OK; i++) {
        bt_jinja_list_put(pairs, bt_jinja_pair(run, dict->entries[i].key, dict->entries[i].value));
    }
    if (run->err == BT_OK) {
        bt_jinja_sort(run, pairs.list->items, pairs.list->count, key_order, NULL);
    }
    return pairs;
}

static void
dump_dict(dumper *d, const bt_jinja_dict *dict)
{
    bt_jinja_value pairs = d->sorted ? sorted_pairs(d->run, dict) : bt_jinja_none();

    if (dict->count == 0) {
        bt_buf_append_text(d->out, "{}");
        return;
    }
    bt_buf_append_char(d->out, '{');
    d->depth++;
    for (size_t i = 0; i < dict->count && d->run->err == BT_OK && !d->out->failed; i++) {
        const bt_jinja_value *pair = d->sorted ? pairs.list->items[i].list->items : NULL;

        bt_buf_append(d->out, d->between.data, i != 0 ? d->between.len : 0);
        dump_line(d);
        dump_key(d, pair != NULL ? pair[0] : dict->entries[i].key);
        bt_buf_append(d->out, d->colon.data, d->colon.len);
        dump(d, pair != NULL ? pair[1] : dict->entries[i].value);
    }
    d->depth--;
    dump_line(d);
    bt_buf_append_char(d->out, '}');
}

static void
dump_kind(dumper *d, bt_jinja_value v)
{
    switch (v.kind) {
    case BT_JINJA_NONE:
        bt_buf_append_text(d->out, "null");
        return;
    case BT_JINJA_BOOL:
        bt_buf_append_text(d->out, v.flag ? "true" : "false");
        return;
    case BT_JINJA_INT:
        bt_buf_printf(d->out, "%" PRId64, v.whole);
        return;
    case BT_JINJA_REAL:
        dump_real(d, v.real);
        return;
    case BT_JINJA_TEXT:
        dump_text(d, v.text);
        return;
    case BT_JINJA_DICT:
        dump_dict(d, v.dict);
        return;
    case BT_JINJA_LIST:
        if (v.list->shape <= BT_JINJA_SHAPE_TUPLE) {
            dump_list(d, v.list);
            return;
        }
        break;
    default:
        break;
    }
    bt_jinja_fail(d->run, "Object of type %s is not JSON serializable", bt_jinja_type_name(v));
}

static void
dump(dumper *d, bt_jinja_value v)
{
    if (bt_jinja_charge(d->run, 1) && bt_jinja_enter(d->run)) {
        dump_kind(d, v);
        bt_jinja_leave(d->run);
    }
}

static bool
set_layout(dumper *d, bt_jinja_value indent, bt_jinja_value separators)
{
    int64_t width;

    d->between = bt_str_of(", ");
    d->colon = bt_str_of(": ");
    if (indent.kind != BT_JINJA_UNSET && indent.kind != BT_JINJA_NONE) {
        d->lines = true;
        d->between = bt_str_of(",");
        d->indent = indent.kind == BT_JINJA_TEXT ? indent.text
                    : bt_jinja_as_int(indent, &width)
                        ? bt_jinja_binary(d->run, '*', bt_jinja_text(bt_str_of(" ")), bt_jinja_int(width)).text
                        : (bt_str){"", 0};
    }
    if (separators.kind != BT_JINJA_UNSET && separators.kind != BT_JINJA_NONE) {
        bt_jinja_value pair = bt_jinja_to_list(d->run, separators);

        if (d->run->err != BT_OK || pair.list->count != 2) {
            bt_jinja_fail(d->run, "tojson: separators must be two");
            return false;
        }
        d->between = bt_jinja_to_text(d->run, pair.list->items[0]);
        d->colon = bt_jinja_to_text(d->run, pair.list->items[1]);
    }
    return d->run->err == BT_OK;
}

bt_jinja_value
bt_jinja_filter_tojson(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    dumper d = {.run = run};
    bt_jinja_value places[4];
    bt_buf buf;

    if (!bt_jinja_take_args(run, args, "tojson", "ensure_ascii indent separators sort_keys", 0, places) ||
        !set_layout(&d, places[1], places[2])) {
        return v;
    }
    bt_jinja_buf_init(run, &buf);
    d.out = &buf;
    d.ascii = bt_jinja_truth(places[0]);
    d.sorted = bt_jinja_truth(places[3]);
    dump(&d, v);
    return bt_jinja_text_of_buf(run, &buf);
}
