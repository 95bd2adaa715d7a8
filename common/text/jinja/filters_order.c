// Filters that order items, or look for equal ones.
#include "common/text/jinja/filters.h"
#include "common/text/jinja/text.h"

// How sort, min, max, unique, groupby and dictsort look at an item.
typedef struct {
    bool exact_case, backwards;
    bt_jinja_value path, fallback;
} view;

static bt_jinja_value
seen(bt_jinja_run *run, bt_jinja_value item, const view *how)
{
    bt_jinja_value key = bt_jinja_follow(run, item, how->path, how->fallback);

    if (key.kind == BT_JINJA_TEXT && !how->exact_case) {
        key.text = bt_jinja_text_case(run, key.text, BT_JINJA_LOWER);
    }
    return key;
}

static int
seen_order(bt_jinja_run *run, const bt_jinja_value *a, const bt_jinja_value *b, const void *with)
{
    const view *how = with;

    return how->backwards ? bt_jinja_order(run, b->list->items[0], a->list->items[0])
                          : bt_jinja_order(run, a->list->items[0], b->list->items[0]);
}

// (key, item) for each, so that keys are made once.
static bt_jinja_value
keyed(bt_jinja_run *run, bt_jinja_value v, const view *how)
{
    bt_jinja_value list = bt_jinja_to_list(run, v), pairs;

    if (run->err != BT_OK) {
        return list;
    }
    pairs = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, list.list->count);
    for (size_t i = 0; i < list.list->count && bt_jinja_charge(run, 1); i++) {
        bt_jinja_list_put(pairs, bt_jinja_pair(run, seen(run, list.list->items[i], how), list.list->items[i]));
    }
    return pairs;
}

static bt_jinja_value
sorted(bt_jinja_run *run, bt_jinja_value v, const view *how)
{
    bt_jinja_value pairs = keyed(run, v, how);

    if (run->err == BT_OK) {
        bt_jinja_sort(run, pairs.list->items, pairs.list->count, seen_order, how);
    }
    return pairs;
}

static bt_jinja_value
second_of_each(bt_jinja_run *run, bt_jinja_value pairs)
{
    for (size_t i = 0; run->err == BT_OK && i < pairs.list->count; i++) {
        pairs.list->items[i] = pairs.list->items[i].list->items[1];
    }
    return pairs;
}

static bt_jinja_value
filter_sort(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[3], parts;
    view how = {0};

    if (!bt_jinja_take_args(run, args, "sort", "reverse case_sensitive attribute", 0, places)) {
        return v;
    }
    how = (view){.exact_case = bt_jinja_truth(places[1]), .backwards = bt_jinja_truth(places[0]), .path = places[2]};
    if (how.path.kind != BT_JINJA_TEXT || memchr(how.path.text.data, ',', how.path.text.len) == NULL) {
        return second_of_each(run, sorted(run, v, &how));
    }
    // By several, from the last to the first: each sort keeps the order of the ones before.
    parts = bt_jinja_text_split(run, how.path.text, &(bt_str){",", 1}, -1, false);
    for (size_t i = run->err == BT_OK ? parts.list->count : 0; i > 0 && run->err == BT_OK; i--) {
        how.path = parts.list->items[i - 1];
        v = second_of_each(run, sorted(run, v, &how));
    }
    return v;
}

static bt_jinja_value
filter_dictsort(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[3], pairs;
    view how = {0};

    if (!bt_jinja_take_args(run, args, "dictsort", "case_sensitive by reverse", 0, places)) {
        return v;
    }
    if (v.kind != BT_JINJA_DICT) {
        return bt_jinja_fail(run, "dictsort: expected dict, got %s", bt_jinja_type_name(v));
    }
    if (places[1].kind != BT_JINJA_UNSET && !bt_jinja_is_text(places[1], "key") &&
        !bt_jinja_is_text(places[1], "value")) {
        return bt_jinja_fail(run, "You can only sort by either \"key\" or \"value\"");
    }
    how = (view){
        .exact_case = bt_jinja_truth(places[0]), .backwards = bt_jinja_truth(places[2]), .path = bt_jinja_int(0)};
    how.path = bt_jinja_int(bt_jinja_is_text(places[1], "value"));
    pairs = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, v.dict->count);
    for (size_t i = 0; i < v.dict->count && bt_jinja_charge(run, 1); i++) {
        bt_jinja_list_put(pairs, bt_jinja_pair(run, v.dict->entries[i].key, v.dict->entries[i].value));
    }
    return second_of_each(run, sorted(run, pairs, &how));
}

static bt_jinja_value
extreme(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args, int sign)
{
    bt_jinja_value places[2], pairs, best;
    view how = {0};

    if (!bt_jinja_take_args(run, args, sign < 0 ? "min" : "max", "case_sensitive attribute", 0, places)) {
        return v;
    }
    how = (view){.exact_case = bt_jinja_truth(places[0]), .path = places[1]};
    pairs = keyed(run, v, &how);
    if (run->err != BT_OK || pairs.list->count == 0) {
        return bt_jinja_undefined(bt_str_of("No aggregated item, sequence was empty."));
    }
    best = pairs.list->items[0];
    for (size_t i = 1; i < pairs.list->count && run->err == BT_OK; i++) {
        bt_jinja_value item = pairs.list->items[i];

        if (bt_jinja_order(run, item.list->items[0], best.list->items[0]) * sign > 0) {
            best = item;
        }
    }
    return best.list->items[1];
}

static bt_jinja_value
filter_min(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return extreme(run, v, args, -1);
}

static bt_jinja_value
filter_max(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return extreme(run, v, args, 1);
}

static bt_jinja_value
filter_unique(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[2], pairs, known, result;
    view how = {0};

    if (!bt_jinja_take_args(run, args, "unique", "case_sensitive attribute", 0, places)) {
        return v;
    }
    how = (view){.exact_case = bt_jinja_truth(places[0]), .path = places[1]};
    pairs = keyed(run, v, &how);
    if (run->err != BT_OK) {
        return pairs;
    }
    known = bt_jinja_dict_new(run, 0);
    result = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, pairs.list->count);
    for (size_t i = 0; i < pairs.list->count && run->err == BT_OK; i++) {
        const bt_jinja_value *pair = pairs.list->items[i].list->items;
        size_t before = known.dict->count;

        bt_jinja_dict_set(run, known.dict, pair[0], bt_jinja_none());
        if (known.dict->count != before) {
            bt_jinja_list_put(result, pair[1]);
        }
    }
    return result;
}

static bt_jinja_value
filter_groupby(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value places[3], pairs, groups;
    view how = {0};

    if (!bt_jinja_take_args(run, args, "groupby", "attribute default case_sensitive", 1, places)) {
        return v;
    }
    how = (view){.exact_case = bt_jinja_truth(places[2]), .path = places[0], .fallback = places[1]};
    pairs = sorted(run, v, &how);
    if (run->err != BT_OK) {
        return pairs;
    }
    groups = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, pairs.list->count);
    for (size_t i = 0, end; i < pairs.list->count && run->err == BT_OK; i = end) {
        bt_jinja_value key = pairs.list->items[i].list->items[0], group;

        for (end = i + 1; end < pairs.list->count && bt_jinja_equal(run, key, pairs.list->items[end].list->items[0]);
             end++) {
        }
        group = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, end - i);
        for (size_t k = i; k < end; k++) {
            bt_jinja_list_put(group, pairs.list->items[k].list->items[1]);
        }
        // The key as the first of the group has it.
        how.exact_case = true;
        bt_jinja_list_put(groups, bt_jinja_pair(run, seen(run, pairs.list->items[i].list->items[1], &how), group));
    }
    return groups;
}

const bt_jinja_filter bt_jinja_filters_order[] = {
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"min", filter_min},
    {"max", filter_max},
    {"unique", filter_unique},
    {"groupby", filter_groupby},
    {0},
};
