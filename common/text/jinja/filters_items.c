// Filters over sequences and dicts.
//
// map, select and their like give generators in Jinja. Here the items are made at once, but the result is read once
// and has no length, so that a template sees the difference where Jinja shows it.
#include "common/text/jinja/filters.h"
#include "common/text/jinja/chars.h"
#include "common/text/jinja/tests.h"
#include "common/text/jinja/text.h"

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

// The arguments behind the first `from`, for the filter or test that map or select names.
static bt_jinja_args
args_from(const bt_jinja_args *args, size_t from)
{
    bt_jinja_args rest = *args;

    rest.items += from;
    rest.count -= from;
    return rest;
}

static bt_jinja_value
named_argument(const bt_jinja_args *args, const char *name)
{
    for (size_t i = 0; i < args->named_count; i++) {
        if (bt_str_is(args->named[i].name, name)) {
            return args->named[i].value;
        }
    }
    return (bt_jinja_value){0};
}

static bt_jinja_value
filter_map(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    bt_jinja_value attribute = named_argument(args, "attribute"), fallback = named_argument(args, "default"), list,
                   result;
    const bt_jinja_filter *filter = NULL;
    bt_jinja_args rest;

    if (args->count == 0 && attribute.kind == BT_JINJA_UNSET) {
        return bt_jinja_fail(run, "map requires a filter argument");
    }
    if (args->count != 0) {
        filter = args->items[0].kind == BT_JINJA_TEXT ? bt_jinja_filter_find(args->items[0].text) : NULL;
        if (filter == NULL) {
            return bt_jinja_fail(run, "map: no filter of that name");
        }
        rest = args_from(args, 1);
    }
    list = bt_jinja_to_list(run, v);
    if (run->err != BT_OK || !bt_jinja_enter(run)) {
        return list;
    }
    result = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, list.list->count);
    for (size_t i = 0; i < list.list->count && bt_jinja_charge(run, 1); i++) {
        bt_jinja_value item = list.list->items[i];

        bt_jinja_list_put(result, filter != NULL ? filter->apply(run, item, &rest)
                                                 : bt_jinja_follow(run, item, attribute, fallback));
    }
    bt_jinja_leave(run);
    return result;
}

static bt_jinja_value
choose(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args, bool by_attribute, bool wanted)
{
    const bt_jinja_test *test = NULL;
    size_t off = by_attribute;
    bt_jinja_value list, result;
    bt_jinja_args rest = {0};

    if (args->count < off) {
        return bt_jinja_fail(run, "the name of an attribute is missing");
    }
    if (args->count > off) {
        test = args->items[off].kind == BT_JINJA_TEXT ? bt_jinja_test_find(args->items[off].text) : NULL;
        if (test == NULL) {
            return bt_jinja_fail(run, "select or reject: no test of that name");
        }
        rest = args_from(args, off + 1);
    }
    list = bt_jinja_truth(v) ? bt_jinja_to_list(run, v) : bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, 0);
    if (run->err != BT_OK) {
        return list;
    }
    result = bt_jinja_list_new(run, BT_JINJA_SHAPE_GENERATOR, list.list->count);
    for (size_t i = 0; i < list.list->count && bt_jinja_charge(run, 1); i++) {
        bt_jinja_value item = list.list->items[i], seen_as = item;

        seen_as = by_attribute ? bt_jinja_follow(run, item, args->items[0], (bt_jinja_value){0}) : item;
        if ((test != NULL ? test->holds(run, seen_as, &rest) : bt_jinja_truth(seen_as)) == wanted) {
            bt_jinja_list_put(result, item);
        }
    }
    return result;
}

static bt_jinja_value
filter_select(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return choose(run, v, args, false, true);
}

static bt_jinja_value
filter_reject(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return choose(run, v, args, false, false);
}

static bt_jinja_value
filter_selectattr(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return choose(run, v, args, true, true);
}

static bt_jinja_value
filter_rejectattr(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args)
{
    return choose(run, v, args, true, false);
}

const bt_jinja_filter bt_jinja_filters_items[] = {
    {"length", filter_length},
    {"count", filter_length},
    {"list", filter_list},
    {"first", filter_first},
    {"last", filter_last},
    {"reverse", filter_reverse},
    {"join", filter_join},
    {"items", filter_items},
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"min", filter_min},
    {"max", filter_max},
    {"unique", filter_unique},
    {"groupby", filter_groupby},
    {"sum", filter_sum},
    {"batch", filter_batch},
    {"slice", filter_slice},
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {0},
};
