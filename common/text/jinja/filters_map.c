// Filters that apply a filter or a test to each item.
//
// map, select and their like give generators in Jinja. Here the items are made at once, but the result is read once
// and has no length, so that a template sees the difference where Jinja shows it.
#include "common/text/jinja/filters.h"
#include "common/text/jinja/tests.h"

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

const bt_jinja_filter bt_jinja_filters_map[] = {
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {0},
};
