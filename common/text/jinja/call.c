// Calls: arguments, macros, and the places that arguments go to.
#include "common/text/jinja/run.h"

static size_t
spread_count(bt_jinja_run *run, bt_jinja_value v, int op)
{
    size_t count = 0;

    if (op == '*') {
        bt_jinja_iter iter;

        return bt_jinja_iter_begin(run, &iter, v) && bt_jinja_length(run, v, &count) ? count : 0;
    }
    if (v.kind != BT_JINJA_DICT) {
        bt_jinja_fail(run, "argument after ** must be a mapping, not %s", bt_jinja_type_name(v));
        return 0;
    }
    return v.dict->count;
}

static void
spread(bt_jinja_run *run, bt_jinja_value v, int op, bt_jinja_value *items, bt_jinja_named *named, bt_jinja_args *out)
{
    bt_jinja_value item;
    bt_jinja_iter iter;

    if (op != '*') {
        for (size_t i = 0; i < v.dict->count; i++) {
            named[out->named_count++] =
                (bt_jinja_named){bt_jinja_to_text(run, v.dict->entries[i].key), v.dict->entries[i].value};
        }
        return;
    }
    for (bt_jinja_iter_begin(run, &iter, v); bt_jinja_iter_next(run, &iter, &item);) {
        items[out->count++] = item;
    }
}

// Arguments with * or ** in them: first all values, then room for what they hold, then the places.
static bool
eval_spread_args(bt_jinja_run *run, const bt_jinja_node *node, bt_jinja_args *out)
{
    bt_jinja_value *values = bt_jinja_alloc(run, node->count, sizeof *values), *items;
    size_t total = node->count;
    bt_jinja_named *named;

    for (size_t i = 0; values != NULL && i < node->count; i++) {
        const bt_jinja_node *arg = node->items[i];
        bool plain = arg->kind != BT_JINJA_NODE_KEYWORD && arg->kind != BT_JINJA_NODE_SPREAD;

        values[i] = bt_jinja_eval(run, plain ? arg : arg->a);
        total += arg->kind == BT_JINJA_NODE_SPREAD && run->err == BT_OK ? spread_count(run, values[i], arg->op) : 0;
    }
    items = bt_jinja_alloc(run, total, sizeof *items);
    named = bt_jinja_alloc(run, total, sizeof *named);
    for (size_t i = 0; run->err == BT_OK && i < node->count; i++) {
        const bt_jinja_node *arg = node->items[i];

        if (arg->kind == BT_JINJA_NODE_SPREAD) {
            spread(run, values[i], arg->op, items, named, out);
        } else if (arg->kind == BT_JINJA_NODE_KEYWORD) {
            named[out->named_count++] = (bt_jinja_named){arg->text, values[i]};
        } else {
            items[out->count++] = values[i];
        }
    }
    out->items = items;
    out->named = named;
    return run->err == BT_OK;
}

bool
bt_jinja_eval_args(bt_jinja_run *run, const bt_jinja_node *node, bt_jinja_args *out)
{
    size_t named_count = 0;
    bt_jinja_value *items;
    bt_jinja_named *named;

    *out = (bt_jinja_args){0};
    for (size_t i = 0; i < node->count; i++) {
        if (node->items[i]->kind == BT_JINJA_NODE_SPREAD) {
            return eval_spread_args(run, node, out);
        }
        named_count += node->items[i]->kind == BT_JINJA_NODE_KEYWORD;
    }
    if (node->count == 0) {
        return run->err == BT_OK;
    }
    items = bt_jinja_alloc(run, node->count - named_count + 1, sizeof *items);
    named = bt_jinja_alloc(run, named_count + 1, sizeof *named);
    for (size_t i = 0; run->err == BT_OK && i < node->count; i++) {
        const bt_jinja_node *arg = node->items[i];

        if (arg->kind == BT_JINJA_NODE_KEYWORD) {
            named[out->named_count++] = (bt_jinja_named){arg->text, bt_jinja_eval(run, arg->a)};
        } else {
            items[out->count++] = bt_jinja_eval(run, arg);
        }
    }
    out->items = items;
    out->named = named;
    return run->err == BT_OK;
}

// The word at *names, which moves behind it.
static bt_str
next_word(const char **names)
{
    bt_str word = {*names, strcspn(*names, " ")};

    *names += word.len + ((*names)[word.len] == ' ');
    return word;
}

static size_t
place_of(const char *names, bt_str name)
{
    for (size_t place = 0; *names != 0; place++) {
        if (bt_str_equal(next_word(&names), name)) {
            return place;
        }
    }
    return SIZE_MAX;
}

bool
bt_jinja_take_args(bt_jinja_run *run, const bt_jinja_args *args, const char *what, const char *names, size_t needed,
                   bt_jinja_value *out)
{
    const char *rest = names;
    size_t places = 0;

    while (*rest != 0) {
        next_word(&rest);
        out[places++] = (bt_jinja_value){0};
    }
    if (args->count > places) {
        bt_jinja_fail(run, "%s() takes at most %zu arguments, %zu were given", what, places, args->count);
        return false;
    }
    for (size_t i = 0; i < args->count; i++) {
        out[i] = args->items[i];
    }
    for (size_t i = 0; i < args->named_count; i++) {
        bt_str name = args->named[i].name;
        size_t place = place_of(names, name);

        if (place == SIZE_MAX || out[place].kind != BT_JINJA_UNSET) {
            bt_jinja_fail(run, "%s() got an unexpected argument '%.*s'", what, (int)(name.len < 60 ? name.len : 60),
                          name.data);
            return false;
        }
        out[place] = args->named[i].value;
    }
    for (size_t i = 0; i < needed; i++) {
        if (out[i].kind == BT_JINJA_UNSET) {
            bt_jinja_fail(run, "%s() lacks an argument", what);
            return false;
        }
    }
    return run->err == BT_OK;
}

static bt_jinja_value
rest_as_tuple(bt_jinja_run *run, const bt_jinja_args *args, size_t from)
{
    bt_jinja_value tuple = bt_jinja_list_new(run, BT_JINJA_SHAPE_TUPLE, args->count > from ? args->count - from : 0);

    for (size_t i = from; i < args->count; i++) {
        bt_jinja_list_put(tuple, args->items[i]);
    }
    return tuple;
}

static size_t
parameter_named(const bt_jinja_node *macro, bt_str name)
{
    for (size_t i = 0; i < macro->count; i++) {
        if (bt_str_equal(macro->items[i]->text, name)) {
            return i;
        }
    }
    return SIZE_MAX;
}

// Named arguments: into `values` by parameter, `caller` aside, and the rest into **kwargs where the body mentions it.
static void
bind_named(bt_jinja_run *run, const bt_jinja_node *macro, const bt_jinja_args *args, bt_jinja_value *values,
           bt_jinja_scope *scope)
{
    bt_jinja_value kwargs = bt_jinja_dict_new(run, 0);

    for (size_t i = 0; i < args->named_count && run->err == BT_OK; i++) {
        bt_str name = args->named[i].name;
        size_t place = parameter_named(macro, name);

        if (place != SIZE_MAX && values[place].kind == BT_JINJA_UNSET) {
            values[place] = args->named[i].value;
        } else if (place != SIZE_MAX) {
            bt_jinja_fail(run, "macro '%.*s' got two values for '%.*s'", (int)macro->text.len, macro->text.data,
                          (int)name.len, name.data);
        } else if (bt_str_is(name, "caller") && (macro->uses & BT_JINJA_USES_CALLER) != 0) {
            bt_jinja_scope_set(run, scope, bt_jinja_tree_name(run->tree, name), args->named[i].value);
        } else if ((macro->uses & BT_JINJA_USES_KWARGS) != 0) {
            bt_jinja_dict_set(run, kwargs.dict, bt_jinja_text(name), args->named[i].value);
        } else {
            bt_jinja_fail(run, "macro '%.*s' takes no keyword argument '%.*s'", (int)macro->text.len, macro->text.data,
                          (int)name.len, name.data);
        }
    }
    if ((macro->uses & BT_JINJA_USES_KWARGS) != 0) {
        bt_jinja_scope_set(run, scope, bt_jinja_tree_name(run->tree, bt_str_of("kwargs")), kwargs);
    }
}

static void
bind_parameters(bt_jinja_run *run, const bt_jinja_node *macro, const bt_jinja_args *args, bt_jinja_scope *scope)
{
    bt_jinja_value *values = bt_jinja_alloc(run, macro->count + 1, sizeof *values);

    if (values == NULL) {
        return;
    }
    if ((macro->uses & BT_JINJA_USES_VARARGS) != 0) {
        bt_jinja_scope_set(run, scope, bt_jinja_tree_name(run->tree, bt_str_of("varargs")),
                           rest_as_tuple(run, args, macro->count));
    } else if (args->count > macro->count) {
        bt_jinja_fail(run, "macro '%.*s' takes not more than %zu argument(s)", (int)macro->text.len, macro->text.data,
                      macro->count);
    }
    for (size_t i = 0; i < args->count && i < macro->count; i++) {
        values[i] = args->items[i];
    }
    bind_named(run, macro, args, values, scope);
    // A default sees the parameters before it.
    for (size_t i = 0; i < macro->count && run->err == BT_OK; i++) {
        const bt_jinja_node *parameter = macro->items[i];

        if (values[i].kind == BT_JINJA_UNSET) {
            values[i] = parameter->a != NULL
                            ? bt_jinja_eval(run, parameter->a)
                            : bt_jinja_undefined(bt_jinja_text_format(run, "parameter '%.*s' was not provided",
                                                                      (int)parameter->text.len, parameter->text.data)
                                                     .text);
        }
        bt_jinja_scope_set(run, scope, parameter->name, values[i]);
    }
}

static bt_jinja_value
call_macro(bt_jinja_run *run, const bt_jinja_macro *macro, const bt_jinja_args *args)
{
    bt_jinja_scope *outer = run->scope, *scope = bt_jinja_scope_open(run, macro->scope);
    bt_buf capture, *before;
    bt_jinja_value text;

    if (scope == NULL || !bt_jinja_enter(run)) {
        return bt_jinja_undefined((bt_str){"", 0});
    }
    run->scope = scope;
    bind_parameters(run, macro->node, args, scope);
    before = bt_jinja_capture_begin(run, &capture);
    if (run->err == BT_OK) {
        bt_jinja_exec(run, macro->node->a);
    }
    text = bt_jinja_capture_end(run, before);
    run->scope = outer;
    bt_jinja_leave(run);
    return text;
}

static bt_jinja_value
call_cycler(bt_jinja_run *run, bt_jinja_value v)
{
    bt_jinja_cycler *cycler = v.cycler;

    (void)run;
    // A joiner gives its separator at every call but the first.
    return bt_jinja_text(cycler->at++ == 0 ? (bt_str){"", 0} : cycler->separator);
}

bt_jinja_value
bt_jinja_call(bt_jinja_run *run, bt_jinja_value callee, const bt_jinja_args *args)
{
    if (run->err != BT_OK) {
        return callee;
    }
    switch (callee.kind) {
    case BT_JINJA_MACRO:
        return call_macro(run, callee.macro, args);
    case BT_JINJA_GLOBAL:
        return callee.global->call(run, args);
    case BT_JINJA_METHOD:
        return callee.method->call(run, callee.method->self, args);
    case BT_JINJA_LOOP:
        return bt_jinja_loop_call(run, callee.loop, args);
    case BT_JINJA_JOINER:
        return call_cycler(run, callee);
    case BT_JINJA_UNDEFINED:
        return bt_jinja_fail(run, "%.*s", (int)callee.text.len, callee.text.data);
    default:
        return bt_jinja_fail(run, "'%s' object is not callable", bt_jinja_type_name(callee));
    }
}
