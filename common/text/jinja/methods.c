// The methods of dict, list, tuple, range and cycler. Those that change a list or dict are out of reach, as in Jinja's
// immutable sandbox: naming one is allowed, calling it is a fault.
#include "common/text/jinja/run.h"

typedef bt_jinja_value method_fn(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args);

static bt_jinja_value
dict_get(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value places[2];
    const bt_jinja_value *found;

    if (!bt_jinja_take_args(run, args, "get", "key default", 1, places)) {
        return self;
    }
    found = bt_jinja_dict_find(run, self.dict, places[0]);
    return found != NULL ? *found : places[1].kind != BT_JINJA_UNSET ? places[1] : bt_jinja_none();
}

typedef enum { KEYS, VALUES, ITEMS } view;

static bt_jinja_value
dict_view(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args, view what)
{
    bt_jinja_value list = bt_jinja_list_new(run, BT_JINJA_SHAPE_VIEW, self.dict->count);

    if (!bt_jinja_take_args(run, args, "items", "", 0, NULL)) {
        return list;
    }
    for (size_t i = 0; i < self.dict->count && bt_jinja_charge(run, 1); i++) {
        const bt_jinja_entry *entry = &self.dict->entries[i];

        bt_jinja_list_put(list, what == KEYS     ? entry->key
                                : what == VALUES ? entry->value
                                                 : bt_jinja_pair(run, entry->key, entry->value));
    }
    return list;
}

static bt_jinja_value
dict_keys(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return dict_view(run, self, args, KEYS);
}

static bt_jinja_value
dict_values(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return dict_view(run, self, args, VALUES);
}

static bt_jinja_value
dict_items(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    return dict_view(run, self, args, ITEMS);
}

// Nothing changes a list or dict, so that it is its own copy.
static bt_jinja_value
copy(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    return self;
}

static bt_jinja_value
list_count(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value what;
    int64_t count = 0;

    if (!bt_jinja_take_args(run, args, "count", "value", 1, &what)) {
        return self;
    }
    for (size_t i = 0; i < self.list->count && bt_jinja_charge(run, 1); i++) {
        count += bt_jinja_equal(run, bt_jinja_item(self.list, i), what);
    }
    return bt_jinja_int(count);
}

static bt_jinja_value
list_index(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value what;

    if (!bt_jinja_take_args(run, args, "index", "value", 1, &what)) {
        return self;
    }
    for (size_t i = 0; i < self.list->count && bt_jinja_charge(run, 1); i++) {
        if (bt_jinja_equal(run, bt_jinja_item(self.list, i), what)) {
            return bt_jinja_int((int64_t)i);
        }
    }
    return bt_jinja_fail(run, "the value is not in the list");
}

static bt_jinja_value
cycler_next(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_cycler *cycler = self.cycler;

    (void)run;
    (void)args;
    return cycler->items[cycler->at++ % cycler->count];
}

static bt_jinja_value
cycler_reset(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    (void)run;
    (void)args;
    self.cycler->at = 0;
    return bt_jinja_none();
}

static const struct {
    const char *name;
    method_fn *call; // NULL: unsafe
} dict_methods[] = {{"get", dict_get},    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
                    {"copy", copy},       {"clear", NULL},       {"pop", NULL},       {"popitem", NULL},
                    {"setdefault", NULL}, {"update", NULL}},
  list_methods[] = {{"index", list_index}, {"count", list_count}, {"copy", copy},   {"append", NULL},
                    {"clear", NULL},       {"extend", NULL},      {"insert", NULL}, {"pop", NULL},
                    {"remove", NULL},      {"reverse", NULL},     {"sort", NULL}};

bt_jinja_value
bt_jinja_bind_method(bt_jinja_run *run, bt_jinja_value self, const char *name, method_fn *call)
{
    bt_jinja_method *method;

    if (call == NULL) {
        return bt_jinja_undefined(bt_jinja_text_format(run, "access to attribute '%s' of '%s' object is unsafe.", name,
                                                       bt_jinja_type_name(self))
                                      .text);
    }
    if ((method = bt_jinja_alloc(run, 1, sizeof *method)) == NULL) {
        return bt_jinja_undefined((bt_str){"", 0});
    }
    *method = (bt_jinja_method){self, name, call};
    return (bt_jinja_value){.kind = BT_JINJA_METHOD, .method = method};
}

static bt_jinja_value
cycler_attribute(bt_jinja_run *run, bt_jinja_value self, bt_str name)
{
    return bt_str_is(name, "next")      ? bt_jinja_bind_method(run, self, "next", cycler_next)
           : bt_str_is(name, "reset")   ? bt_jinja_bind_method(run, self, "reset", cycler_reset)
           : bt_str_is(name, "current") ? self.cycler->items[self.cycler->at % self.cycler->count]
                                        : (bt_jinja_value){0};
}

bt_jinja_value
bt_jinja_other_method(bt_jinja_run *run, bt_jinja_value self, bt_str name)
{
    if (self.kind == BT_JINJA_CYCLER) {
        return cycler_attribute(run, self, name);
    }
    for (size_t i = 0; self.kind == BT_JINJA_DICT && i < sizeof dict_methods / sizeof *dict_methods; i++) {
        if (bt_str_is(name, dict_methods[i].name)) {
            return bt_jinja_bind_method(run, self, dict_methods[i].name, dict_methods[i].call);
        }
    }
    for (size_t i = 0; self.kind == BT_JINJA_LIST && i < sizeof list_methods / sizeof *list_methods; i++) {
        // A tuple and a range have the first two, a view and a generator none.
        if (bt_str_is(name, list_methods[i].name) &&
            (self.list->shape == BT_JINJA_SHAPE_LIST || (self.list->shape <= BT_JINJA_SHAPE_RANGE && i < 2))) {
            return bt_jinja_bind_method(run, self, list_methods[i].name, list_methods[i].call);
        }
    }
    return (bt_jinja_value){0};
}
