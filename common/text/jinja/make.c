// Lists, dicts, and walking them.
#include "common/text/jinja/chars.h"
#include "common/text/jinja/run.h"

bt_jinja_value
bt_jinja_list_new(bt_jinja_run *run, bt_jinja_shape shape, size_t cap)
{
    static bt_jinja_list none = {.shape = BT_JINJA_SHAPE_LIST}; // given after a fault only, and never changed
    bt_jinja_list *list = bt_jinja_alloc(run, 1, sizeof *list);

    if (list == NULL || (list->items = bt_jinja_alloc(run, cap != 0 ? cap : 1, sizeof *list->items)) == NULL) {
        return (bt_jinja_value){.kind = BT_JINJA_LIST, .list = &none};
    }
    list->shape = shape;
    return (bt_jinja_value){.kind = BT_JINJA_LIST, .list = list};
}

void
bt_jinja_list_put(bt_jinja_value list, bt_jinja_value item)
{
    if (list.list->items != NULL) {
        list.list->items[list.list->count++] = item;
    }
}

bt_jinja_value
bt_jinja_pair(bt_jinja_run *run, bt_jinja_value first, bt_jinja_value second)
{
    bt_jinja_value tuple = bt_jinja_list_new(run, BT_JINJA_SHAPE_TUPLE, 2);

    bt_jinja_list_put(tuple, first);
    bt_jinja_list_put(tuple, second);
    return tuple;
}

bt_jinja_value
bt_jinja_dict_new(bt_jinja_run *run, size_t cap)
{
    static bt_jinja_dict none; // as above
    bt_jinja_dict *dict = bt_jinja_alloc(run, 1, sizeof *dict);

    if (dict == NULL) {
        return (bt_jinja_value){.kind = BT_JINJA_DICT, .dict = &none};
    }
    if (cap != 0 && (dict->entries = bt_jinja_alloc(run, cap, sizeof *dict->entries)) != NULL) {
        dict->cap = cap;
    }
    return (bt_jinja_value){.kind = BT_JINJA_DICT, .dict = dict};
}

static bt_jinja_entry *
find_entry(bt_jinja_run *run, const bt_jinja_dict *dict, bt_jinja_value key)
{
    bt_jinja_charge(run, dict->count / 8);
    for (size_t i = 0; i < dict->count; i++) {
        bt_jinja_entry *entry = &dict->entries[i];

        if (key.kind == BT_JINJA_TEXT && entry->key.kind == BT_JINJA_TEXT ? bt_str_equal(key.text, entry->key.text)
                                                                          : bt_jinja_equal(run, key, entry->key)) {
            return entry;
        }
    }
    return NULL;
}

const bt_jinja_value *
bt_jinja_dict_find(bt_jinja_run *run, const bt_jinja_dict *dict, bt_jinja_value key)
{
    bt_jinja_entry *entry = find_entry(run, dict, key);

    return entry != NULL ? &entry->value : NULL;
}

const bt_jinja_value *
bt_jinja_dict_find_text(bt_jinja_run *run, const bt_jinja_dict *dict, bt_str key)
{
    return bt_jinja_dict_find(run, dict, bt_jinja_text(key));
}

static bool
is_hashable(bt_jinja_value v)
{
    if (v.kind == BT_JINJA_LIST && v.list->shape == BT_JINJA_SHAPE_TUPLE) {
        for (size_t i = 0; i < v.list->count; i++) {
            if (v.list->items[i].kind == BT_JINJA_DICT || v.list->items[i].kind == BT_JINJA_LIST) {
                return false;
            }
        }
        return true;
    }
    return v.kind != BT_JINJA_DICT && v.kind != BT_JINJA_LIST;
}

void
bt_jinja_dict_set(bt_jinja_run *run, bt_jinja_dict *dict, bt_jinja_value key, bt_jinja_value value)
{
    bt_jinja_entry *entry;

    if (!is_hashable(key)) {
        bt_jinja_fail(run, "unhashable type: '%s'", bt_jinja_type_name(key));
    }
    if (run->err != BT_OK) {
        return;
    }
    if ((entry = find_entry(run, dict, key)) != NULL) {
        entry->value = value;
        return;
    }
    if (dict->count == dict->cap) {
        size_t cap = dict->cap != 0 ? 2 * dict->cap : 4;
        bt_jinja_entry *entries = bt_jinja_alloc(run, cap, sizeof *entries);

        if (entries == NULL) {
            return;
        }
        if (dict->count != 0) {
            memcpy(entries, dict->entries, dict->count * sizeof *entries);
        }
        dict->entries = entries;
        dict->cap = cap;
    }
    dict->entries[dict->count++] = (bt_jinja_entry){key, value};
}

bool
bt_jinja_is_iterable(bt_jinja_value v)
{
    return v.kind == BT_JINJA_LIST || v.kind == BT_JINJA_DICT || v.kind == BT_JINJA_TEXT ||
           v.kind == BT_JINJA_UNDEFINED;
}

bool
bt_jinja_iter_begin(bt_jinja_run *run, bt_jinja_iter *iter, bt_jinja_value source)
{
    *iter = (bt_jinja_iter){.source = source};
    if (!bt_jinja_is_iterable(source)) {
        bt_jinja_fail(run, "'%s' object is not iterable", bt_jinja_type_name(source));
        return false;
    }
    return run->err == BT_OK;
}

bool
bt_jinja_iter_next(bt_jinja_run *run, bt_jinja_iter *iter, bt_jinja_value *out)
{
    bt_jinja_value source = iter->source;
    size_t *at = bt_jinja_is_shape(source, BT_JINJA_SHAPE_GENERATOR) ? &source.list->cursor : &iter->at;

    if (!bt_jinja_charge(run, 1)) {
        return false;
    }
    switch (source.kind) {
    case BT_JINJA_LIST:
        if (*at < source.list->count) {
            *out = bt_jinja_item(source.list, (*at)++);
            return true;
        }
        return false;
    case BT_JINJA_DICT:
        if (*at < source.dict->count) {
            *out = source.dict->entries[(*at)++].key;
            return true;
        }
        return false;
    case BT_JINJA_TEXT:
        if (*at < source.text.len) {
            size_t bytes;

            bt_jinja_char_at(source.text, *at, &bytes);
            *out = bt_jinja_text((bt_str){source.text.data + *at, bytes});
            *at += bytes;
            return true;
        }
        return false;
    default:
        return false;
    }
}

// How many items are left at most.
static size_t
items_at_most(bt_jinja_value v)
{
    return v.kind == BT_JINJA_LIST   ? v.list->count
           : v.kind == BT_JINJA_DICT ? v.dict->count
           : v.kind == BT_JINJA_TEXT ? v.text.len
                                     : 0;
}

bt_jinja_value
bt_jinja_to_list(bt_jinja_run *run, bt_jinja_value v)
{
    bt_jinja_value list, item;
    bt_jinja_iter iter;

    if (bt_jinja_is_shape(v, BT_JINJA_SHAPE_LIST) || bt_jinja_is_shape(v, BT_JINJA_SHAPE_TUPLE)) {
        return v;
    }
    if (!bt_jinja_iter_begin(run, &iter, v)) {
        return bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, 0);
    }
    list = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, items_at_most(v));
    while (bt_jinja_iter_next(run, &iter, &item)) {
        bt_jinja_list_put(list, item);
    }
    return list;
}

bool
bt_jinja_length(bt_jinja_run *run, bt_jinja_value v, size_t *out)
{
    if (bt_jinja_is_shape(v, BT_JINJA_SHAPE_GENERATOR) || !bt_jinja_is_iterable(v)) {
        bt_jinja_fail(run, "object of type '%s' has no len()", bt_jinja_type_name(v));
        return false;
    }
    *out = v.kind == BT_JINJA_TEXT ? bt_jinja_char_count(v.text) : items_at_most(v);
    return v.kind != BT_JINJA_TEXT || bt_jinja_charge(run, v.text.len / 64);
}
