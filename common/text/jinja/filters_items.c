// Filters that take, count, join and cut sequences; and the way from an item to what an attribute names.
#include "common/text/jinja/filters.h"
#include "common/text/jinja/chars.h"

static bt_jinja_value
step_into(bt_jinja_run *run, bt_jinja_value v, bt_str part)
{
    int64_t index = 0;

    for (size_t i = 0; i < part.len; i++) {
        if (!bt_jinja_is_digit(part.data[i]) || i > 8) {
            return bt_jinja_get_item(run, v, bt_jinja_text(part));
        }
        index = index * 10 + (part.data[i] - '0');
    }
    return part.len != 0 ? bt_jinja_get_item(run, v, bt_jinja_int(index))
                         : bt_jinja_get_item(run, v, bt_jinja_text(part));
}

bt_jinja_value
bt_jinja_follow(bt_jinja_run *run, bt_jinja_value v, bt_jinja_value path, bt_jinja_value fallback)
{
    bt_str rest = path.text;

    if (path.kind != BT_JINJA_TEXT) {
        v = path.kind == BT_JINJA_UNSET || path.kind == BT_JINJA_NONE ? v : bt_jinja_get_item(run, v, path);
    } else {
        for (bool more = true; more && run->err == BT_OK;) {
            const char *dot = rest.len != 0 ? memchr(rest.data, '.', rest.len) : NULL;
            bt_str part = {rest.data, dot != NULL ? (size_t)(dot - rest.data) : rest.len};

            v = step_into(run, v, part);
            more = dot != NULL;
            rest = (bt_str){rest.data + part.len + more, rest.len - part.len - more};
        }
    }
    return v.kind == BT_JINJA_UNDEFINED && fallback.kind != BT_JINJA_UNSET ? fallback : v;
}

// A list to be sorted or changed, made anew.
static bt_jinja_value
fresh(bt_jinja_run *run, bt_jinja_value v, bt_jinja_shape shape)
{
    bt_jinja_value list = bt_jinja_to_list(run, v), copy;

    if (run->err != BT_OK) {
        return list;
    }
    copy = bt_jinja_list_new(run, shape, list.list->count);
    for (size_t i = 0; i < list.list->count && run->err == BT_OK; i++) {
        bt_jinja_list_put(copy, list.list->items[i]);
    }
    return copy;
}

static bt_jinja_value
filter_length(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    size_t length = 0;

    if (v.kind == BT_JINJA_LOOP) {
        return bt_jinja_loop_attribute(run, v.loop, bt_str_of("length"));
    }
    return bt_jinja_take_args(run, args, "length", "", 0, NULL) && bt_jinja_length(run, v, &length)
               ? bt_jinja_int((int64_t)length)
               : v;
}

static bt_jinja_value
filter_list(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return bt_jinja_take_args(run, args, "list", "", 0, NULL) ? fresh(run, v, BT_JINJA_SHAPE_LIST) : v;
}

static bt_jinja_value
filter_first(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value item;
    bt_jinja_iter iter;

    if (!bt_jinja_take_args(run, args, "first", "", 0, NULL) || !bt_jinja_iter_begin(run, &iter, v)) {
        return v;
    }
    return bt_jinja_iter_next(run, &iter, &item) ? item
                                                 : bt_jinja_undefined(bt_str_of("No first item, sequence was empty."));
}

static bt_jinja_value
filter_last(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value list;

    if (!bt_jinja_take_args(run, args, "last", "", 0, NULL)) {
        return v;
    }
    if (bt_jinja_is_shape(v, BT_JINJA_SHAPE_GENERATOR)) {
        return bt_jinja_fail(run, "'generator' object is not reversible");
    }
    list = bt_jinja_to_list(run, v);
    if (run->err != BT_OK) {
        return list;
    }
    return list.list->count != 0 ? list.list->items[list.list->count - 1]
                                 : bt_jinja_undefined(bt_str_of("No last item, sequence was empty."));
}

static bt_jinja_value
filter_reverse(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value list, result;

    if (!bt_jinja_take_args(run, args, "reverse", "", 0, NULL)) {
        return v;
    }
    if (v.kind == BT_JINJA_TEXT) {
        return bt_jinja_slice(run, v, bt_jinja_none(), bt_jinja_none(), bt_jinja_int(-1));
    }
    list = bt_jinja_to_list(run, v);
    if (run->err != BT_OK) {
        return list;
    }
    result = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, list.list->count);
    for (size_t i = list.list->count; i > 0; i--) {
        bt_jinja_list_put(result, list.list->items[i - 1]);
    }
    return result;
}

static bt_jinja_value
filter_join(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2], item;
    bt_str text = {"", 0}, between = {"", 0};
    bool first = true;
    bt_jinja_iter iter;

    if (!bt_jinja_take_args(run, args, "join", "d attribute", 0, places) || !bt_jinja_iter_begin(run, &iter, v)) {
        return v;
    }
    if (places[0].kind != BT_JINJA_UNSET) {
        between = bt_jinja_to_text(run, places[0]);
    }
    while (bt_jinja_iter_next(run, &iter, &item)) {
        text = bt_jinja_join(run, text, first ? (bt_str){"", 0} : between);
        text =
            bt_jinja_join(run, text, bt_jinja_to_text(run, bt_jinja_follow(run, item, places[1], (bt_jinja_value){0})));
        first = false;
    }
    return bt_jinja_text(text);
}

static bt_jinja_value
filter_items(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value list = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, v.kind == BT_JINJA_DICT ? v.dict->count : 0);

    if (!bt_jinja_take_args(run, args, "items", "", 0, NULL) || v.kind == BT_JINJA_UNDEFINED) {
        return list;
    }
    if (v.kind != BT_JINJA_DICT) {
        return bt_jinja_fail(run, "Can only get item pairs from a mapping.");
    }
    for (size_t i = 0; i < v.dict->count && bt_jinja_charge(run, 1); i++) {
        bt_jinja_list_put(list, bt_jinja_pair(run, v.dict->entries[i].key, v.dict->entries[i].value));
    }
    return list;
}

static bt_jinja_value
filter_sum(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2], sum, item;
    bt_jinja_iter iter;

    if (!bt_jinja_take_args(run, args, "sum", "attribute start", 0, places) || !bt_jinja_iter_begin(run, &iter, v)) {
        return v;
    }
    sum = places[1].kind != BT_JINJA_UNSET ? places[1] : bt_jinja_int(0);
    if (sum.kind == BT_JINJA_TEXT) {
        return bt_jinja_fail(run, "sum() can't sum strings");
    }
    while (bt_jinja_iter_next(run, &iter, &item)) {
        sum = bt_jinja_binary(run, '+', sum, bt_jinja_follow(run, item, places[0], (bt_jinja_value){0}));
    }
    return sum;
}

static bt_jinja_value
filter_batch(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2], list, result;
    int64_t size;

    if (!bt_jinja_take_args(run, args, "batch", "linecount fill_with", 1, places)) {
        return v;
    }
    list = bt_jinja_to_list(run, v);
    if (run->err != BT_OK || !bt_jinja_as_int(places[0], &size) || size < 1 || size > 1000000) {
        return bt_jinja_fail(run, "batch: linecount must be an integer from 1 to 1000000");
    }
    result = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, list.list->count / (size_t)size + 1);
    for (size_t at = 0; at < list.list->count && run->err == BT_OK; at += (size_t)size) {
        bt_jinja_value row = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, (size_t)size);

        for (size_t i = at; i < at + (size_t)size && bt_jinja_charge(run, 1); i++) {
            if (i < list.list->count) {
                bt_jinja_list_put(row, list.list->items[i]);
            } else if (places[1].kind != BT_JINJA_UNSET && places[1].kind != BT_JINJA_NONE) {
                bt_jinja_list_put(row, places[1]);
            }
        }
        bt_jinja_list_put(result, row);
    }
    return result;
}

static bt_jinja_value
filter_slice(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2], list, result;
    size_t at = 0, count;
    int64_t slices;

    if (!bt_jinja_take_args(run, args, "slice", "slices fill_with", 1, places)) {
        return v;
    }
    list = bt_jinja_to_list(run, v);
    if (run->err != BT_OK || !bt_jinja_as_int(places[0], &slices) || slices < 1 || slices > 1000000) {
        return bt_jinja_fail(run, "slice: slices must be an integer from 1 to 1000000");
    }
    count = list.list->count;
    result = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, (size_t)slices);
    for (size_t s = 0; s < (size_t)slices && run->err == BT_OK; s++) {
        bool longer = s < count % (size_t)slices;
        size_t size = count / (size_t)slices + longer;
        bt_jinja_value column = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, size + 1);

        for (size_t i = 0; i < size && bt_jinja_charge(run, 1); i++) {
            bt_jinja_list_put(column, list.list->items[at++]);
        }
        if (places[1].kind != BT_JINJA_UNSET && places[1].kind != BT_JINJA_NONE && !longer) {
            bt_jinja_list_put(column, places[1]);
        }
        bt_jinja_list_put(result, column);
    }
    return result;
}

const bt_jinja_filter bt_jinja_filters_items[] = {
    {"length", filter_length}, {"count", filter_length},    {"list", filter_list},   {"first", filter_first},
    {"last", filter_last},     {"reverse", filter_reverse}, {"join", filter_join},   {"items", filter_items},
    {"sum", filter_sum},       {"batch", filter_batch},     {"slice", filter_slice}, {0},
};
