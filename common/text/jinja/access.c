// x.name, x[index] and x[from:to:step], as Jinja's sandbox has them: x.name prefers a method to a key, x[name] a key to
// a method, and what is not there is undefined and no fault until it is used.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/run.h"

static bt_jinja_value
absent(bt_jinja_run *run, bt_jinja_value object, bt_str name)
{
    const char *type = object.kind == BT_JINJA_NONE ? "None" : bt_jinja_type_name(object);

    return bt_jinja_undefined(bt_jinja_text_format(run, "'%s%s' has no attribute '%.*s'", type,
                                                   object.kind == BT_JINJA_NONE ? "" : " object",
                                                   (int)(name.len < 200 ? name.len : 200), name.data)
                                  .text);
}

static bt_jinja_value
fail_undefined(bt_jinja_run *run, bt_jinja_value undefined)
{
    return bt_jinja_fail(run, "%.*s", (int)undefined.text.len, undefined.text.data);
}

// What the object itself calls by that name; BT_JINJA_UNSET when nothing.
static bt_jinja_value
own_attribute(bt_jinja_run *run, bt_jinja_value object, bt_str name)
{
    switch (object.kind) {
    case BT_JINJA_TEXT:
        return bt_jinja_text_method(run, object, name);
    case BT_JINJA_LOOP:
        return bt_jinja_loop_attribute(run, object.loop, name);
    case BT_JINJA_MACRO:
        return bt_str_is(name, "name") ? bt_jinja_text(object.macro->node->text) : (bt_jinja_value){0};
    case BT_JINJA_NAMESPACE: {
        const bt_jinja_value *found = bt_jinja_dict_find_text(run, object.dict, name);

        return found != NULL ? *found : (bt_jinja_value){0};
    }
    default:
        return bt_jinja_other_method(run, object, name);
    }
}

static bt_jinja_value
find_key(bt_jinja_run *run, bt_jinja_value object, bt_jinja_value key)
{
    const bt_jinja_value *found = object.kind == BT_JINJA_DICT ? bt_jinja_dict_find(run, object.dict, key) : NULL;

    return found != NULL ? *found : (bt_jinja_value){0};
}

bt_jinja_value
bt_jinja_attribute(bt_jinja_run *run, bt_jinja_value object, bt_str name)
{
    bt_jinja_value value;

    if (object.kind == BT_JINJA_UNDEFINED) {
        return fail_undefined(run, object);
    }
    value = own_attribute(run, object, name);
    if (value.kind == BT_JINJA_UNSET) {
        value = find_key(run, object, bt_jinja_text(name));
    }
    return value.kind != BT_JINJA_UNSET ? value : absent(run, object, name);
}

// A Python index: from the end when negative. False when it is outside.
static bool
index_within(int64_t index, size_t count, size_t *out)
{
    index += index < 0 ? (int64_t)count : 0;
    if (index < 0 || (uint64_t)index >= count) {
        return false;
    }
    *out = (size_t)index;
    return true;
}

static bt_jinja_value
character(bt_jinja_run *run, bt_str text, int64_t index)
{
    size_t count, at, from, bytes;

    if (!bt_jinja_charge(run, text.len / 64)) {
        return (bt_jinja_value){0};
    }
    count = bt_jinja_char_count(text);
    if (!index_within(index, count, &at)) {
        return (bt_jinja_value){0};
    }
    from = count == text.len ? at : bt_jinja_char_offset(text, at);
    bt_jinja_char_at(text, from, &bytes);
    return bt_jinja_text((bt_str){text.data + from, bytes});
}

static bt_jinja_value
at_index(bt_jinja_run *run, bt_jinja_value object, int64_t index)
{
    size_t at;

    if (object.kind == BT_JINJA_TEXT) {
        return character(run, object.text, index);
    }
    if (object.kind == BT_JINJA_LIST && object.list->shape <= BT_JINJA_SHAPE_RANGE &&
        index_within(index, object.list->count, &at)) {
        return bt_jinja_item(object.list, at);
    }
    return (bt_jinja_value){0};
}

bt_jinja_value
bt_jinja_get_item(bt_jinja_run *run, bt_jinja_value object, bt_jinja_value index)
{
    bt_jinja_value value = {0};
    int64_t whole;

    if (object.kind == BT_JINJA_UNDEFINED) {
        return fail_undefined(run, object);
    }
    if (object.kind == BT_JINJA_DICT) {
        value = find_key(run, object, index);
    } else if (bt_jinja_as_int(index, &whole)) {
        value = at_index(run, object, whole);
    }
    if (value.kind == BT_JINJA_UNSET && index.kind == BT_JINJA_TEXT) {
        value = own_attribute(run, object, index.text);
    }
    return value.kind != BT_JINJA_UNSET ? value : absent(run, object, bt_jinja_to_text(run, index));
}

// Python's slice.indices(count).
typedef struct {
    int64_t from, to, step;
} span;

static int64_t
bounded(int64_t at, int64_t count, int64_t least, int64_t most)
{
    at += at < 0 ? count : 0;
    return at < least ? least : at > most ? most : at;
}

static bool
part(bt_jinja_run *run, bt_jinja_value v, int64_t *out)
{
    if (v.kind == BT_JINJA_NONE || v.kind == BT_JINJA_UNSET) {
        return true;
    }
    if (!bt_jinja_as_int(v, out)) {
        bt_jinja_fail(run, "slice indices must be integers or None, not %s", bt_jinja_type_name(v));
    }
    return run->err == BT_OK;
}

static bool
span_of(bt_jinja_run *run, size_t length, bt_jinja_value from, bt_jinja_value to, bt_jinja_value step, span *out)
{
    int64_t count = (int64_t)length, most;
    span s = {.step = 1};

    if (!part(run, step, &s.step)) {
        return false;
    }
    if (s.step == 0) {
        bt_jinja_fail(run, "slice step cannot be zero");
        return false;
    }
    s.step = s.step < -count - 1 ? -count - 1 : s.step > count + 1 ? count + 1 : s.step;
    most = s.step > 0 ? count : count - 1;
    // Beyond either end of what a part left out means, which bounded() would read as counted from the end.
    s.from = s.step > 0 ? 0 : INT64_MAX;
    s.to = s.step > 0 ? INT64_MAX : INT64_MIN;
    if (!part(run, from, &s.from) || !part(run, to, &s.to)) {
        return false;
    }
    s.from = bounded(s.from, count, s.step > 0 ? 0 : -1, most);
    s.to = bounded(s.to, count, s.step > 0 ? 0 : -1, most);
    *out = s;
    return true;
}

static bool
span_has(span s, int64_t at)
{
    return s.step > 0 ? at < s.to : at > s.to;
}

static bt_jinja_value
slice_text(bt_jinja_run *run, bt_jinja_value object, span s)
{
    bt_str text = object.text;
    bt_buf buf;
    size_t from, to;

    if (s.step == 1) {
        from = bt_jinja_char_offset(text, (size_t)s.from);
        to = s.to > s.from ? bt_jinja_char_offset(text, (size_t)s.to) : from;
        object.text = (bt_str){text.data + from, to - from};
        return object;
    }
    bt_jinja_buf_init(run, &buf);
    for (int64_t at = s.from; span_has(s, at) && bt_jinja_charge(run, text.len / 64 + 1); at += s.step) {
        bt_jinja_value c = character(run, text, at);

        bt_buf_append(&buf, c.text.data, c.text.len);
    }
    object.text = bt_jinja_text_of_buf(run, &buf).text;
    return object;
}

bt_jinja_value
bt_jinja_slice(bt_jinja_run *run, bt_jinja_value object, bt_jinja_value from, bt_jinja_value to, bt_jinja_value step)
{
    bt_jinja_value result;
    size_t count;
    span s;

    if (object.kind == BT_JINJA_UNDEFINED) {
        return fail_undefined(run, object);
    }
    if (object.kind != BT_JINJA_TEXT && (object.kind != BT_JINJA_LIST || object.list->shape > BT_JINJA_SHAPE_RANGE)) {
        return absent(run, object, bt_str_of("slice"));
    }
    if (!bt_jinja_length(run, object, &count) || !span_of(run, count, from, to, step, &s)) {
        return (bt_jinja_value){.kind = BT_JINJA_UNDEFINED};
    }
    if (object.kind == BT_JINJA_TEXT) {
        return slice_text(run, object, s);
    }
    result = bt_jinja_list_new(
        run, object.list->shape == BT_JINJA_SHAPE_TUPLE ? BT_JINJA_SHAPE_TUPLE : BT_JINJA_SHAPE_LIST, count);
    for (int64_t at = s.from; span_has(s, at) && bt_jinja_charge(run, 1); at += s.step) {
        bt_jinja_list_put(result, bt_jinja_item(object.list, (size_t)at));
    }
    return result;
}
