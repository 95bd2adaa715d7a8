// Expressions.
#include "common/text/jinja/filters.h"
#include "common/text/jinja/run.h"
#include "common/text/jinja/tests.h"

static bt_jinja_value
eval_name(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value value;

    if (bt_jinja_scope_find(run, node->name, &value)) {
        return value;
    }
    return bt_jinja_undefined(bt_jinja_text_format(run, "'%.*s' is undefined",
                                                   (int)(node->text.len < 200 ? node->text.len : 200), node->text.data)
                                  .text);
}

static bt_jinja_value
eval_optional(bt_jinja_run *run, const bt_jinja_node *node)
{
    return node != NULL ? bt_jinja_eval(run, node) : (bt_jinja_value){0};
}

static bt_jinja_value
eval_item(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value object = bt_jinja_eval(run, node->a), from, to, step;

    if (node->b->kind != BT_JINJA_NODE_SLICE) {
        return bt_jinja_get_item(run, object, bt_jinja_eval(run, node->b));
    }
    from = eval_optional(run, node->b->a);
    to = eval_optional(run, node->b->b);
    step = eval_optional(run, node->b->c);
    return run->err == BT_OK ? bt_jinja_slice(run, object, from, to, step) : object;
}

static bt_jinja_value
eval_items(bt_jinja_run *run, const bt_jinja_node *node, bt_jinja_shape shape)
{
    bt_jinja_value list = bt_jinja_list_new(run, shape, node->count);

    for (size_t i = 0; i < node->count && run->err == BT_OK; i++) {
        bt_jinja_list_put(list, bt_jinja_eval(run, node->items[i]));
    }
    return list;
}

static bt_jinja_value
eval_dict(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value dict = bt_jinja_dict_new(run, node->count / 2);

    for (size_t i = 0; i + 1 < node->count && run->err == BT_OK; i += 2) {
        bt_jinja_value key = bt_jinja_eval(run, node->items[i]);

        bt_jinja_dict_set(run, dict.dict, key, bt_jinja_eval(run, node->items[i + 1]));
    }
    return dict;
}

static bt_jinja_value
eval_concat(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_str text = {"", 0};

    for (size_t i = 0; i < node->count && run->err == BT_OK; i++) {
        text = bt_jinja_join(run, text, bt_jinja_to_text(run, bt_jinja_eval(run, node->items[i])));
    }
    return bt_jinja_text(text);
}

static bool
compare(bt_jinja_run *run, int op, bt_jinja_value a, bt_jinja_value b)
{
    switch (op) {
    case BT_JINJA_OP('=', '='):
        return bt_jinja_equal(run, a, b);
    case BT_JINJA_OP('!', '='):
        return !bt_jinja_equal(run, a, b);
    case BT_JINJA_OP_IN:
        return bt_jinja_contains(run, b, a);
    case BT_JINJA_OP_NOT_IN:
        return !bt_jinja_contains(run, b, a);
    case '<':
        return bt_jinja_order(run, a, b) < 0;
    case '>':
        return bt_jinja_order(run, a, b) > 0;
    case BT_JINJA_OP('<', '='):
        return bt_jinja_order(run, a, b) <= 0;
    default:
        return bt_jinja_order(run, a, b) >= 0;
    }
}

// a < b < c holds when both do, and stops at the first that does not.
static bt_jinja_value
eval_compare(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value left = bt_jinja_eval(run, node->a);
    bool holds = true;

    for (size_t i = 0; i < node->count && holds && run->err == BT_OK; i++) {
        bt_jinja_value right = bt_jinja_eval(run, node->items[i]->a);

        holds = run->err == BT_OK && compare(run, node->items[i]->op, left, right);
        left = right;
    }
    return bt_jinja_bool(holds);
}

static bt_jinja_value
eval_call(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value callee = bt_jinja_eval(run, node->a);
    bt_jinja_args args;

    if (!bt_jinja_eval_args(run, node, &args)) {
        return callee;
    }
    run->line = node->line;
    return bt_jinja_call(run, callee, &args);
}

bt_jinja_value
bt_jinja_apply_filter(bt_jinja_run *run, const bt_jinja_node *node, bt_jinja_value subject)
{
    bt_jinja_args args;

    if (!bt_jinja_enter(run)) {
        return subject;
    }
    if (node->a != NULL) {
        subject = bt_jinja_apply_filter(run, node->a, subject);
    }
    bt_jinja_leave(run);
    if (node->filter == NULL) {
        return bt_jinja_fail(run, "no filter named '%.*s'", (int)(node->text.len < 60 ? node->text.len : 60),
                             node->text.data);
    }
    if (!bt_jinja_eval_args(run, node, &args)) {
        return subject;
    }
    return node->filter->apply(run, subject, &args);
}

static bt_jinja_value
eval_filter(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value subject = bt_jinja_eval(run, node->a);
    bt_jinja_args args;

    if (node->filter == NULL) {
        return bt_jinja_fail(run, "no filter named '%.*s'", (int)(node->text.len < 60 ? node->text.len : 60),
                             node->text.data);
    }
    return bt_jinja_eval_args(run, node, &args) ? node->filter->apply(run, subject, &args) : subject;
}

static bt_jinja_value
eval_test(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value subject = bt_jinja_eval(run, node->a);
    bt_jinja_args args;

    if (node->test == NULL) {
        return bt_jinja_fail(run, "no test named '%.*s'", (int)(node->text.len < 60 ? node->text.len : 60),
                             node->text.data);
    }
    return bt_jinja_bool(bt_jinja_eval_args(run, node, &args) && node->test->holds(run, subject, &args));
}

static bt_jinja_value
eval_if_else(bt_jinja_run *run, const bt_jinja_node *node)
{
    if (bt_jinja_truth(bt_jinja_eval(run, node->b))) {
        return bt_jinja_eval(run, node->a);
    }
    return node->c != NULL
               ? bt_jinja_eval(run, node->c)
               : bt_jinja_undefined(bt_str_of("the inline if-expression evaluated to false and no else was given"));
}

static bt_jinja_value
eval_binary(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value left = bt_jinja_eval(run, node->a), right = bt_jinja_eval(run, node->b);

    return run->err == BT_OK ? bt_jinja_binary(run, node->op, left, right) : left;
}

static bt_jinja_value
eval_logic(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value left = bt_jinja_eval(run, node->a);

    return bt_jinja_truth(left) == (node->kind == BT_JINJA_NODE_AND) ? bt_jinja_eval(run, node->b) : left;
}

static bt_jinja_value
eval_kind(bt_jinja_run *run, const bt_jinja_node *node)
{
    switch (node->kind) {
    case BT_JINJA_NODE_CONST:
        return node->constant;
    case BT_JINJA_NODE_NAME:
        return eval_name(run, node);
    case BT_JINJA_NODE_ATTRIBUTE:
        return bt_jinja_attribute(run, bt_jinja_eval(run, node->a), node->text);
    case BT_JINJA_NODE_ITEM:
        return eval_item(run, node);
    case BT_JINJA_NODE_CALL:
        return eval_call(run, node);
    case BT_JINJA_NODE_FILTER:
        return eval_filter(run, node);
    case BT_JINJA_NODE_TEST:
        return eval_test(run, node);
    case BT_JINJA_NODE_NOT:
        return bt_jinja_bool(!bt_jinja_truth(bt_jinja_eval(run, node->a)));
    case BT_JINJA_NODE_SIGN:
        return bt_jinja_sign(run, node->op, bt_jinja_eval(run, node->a));
    case BT_JINJA_NODE_AND:
    case BT_JINJA_NODE_OR:
        return eval_logic(run, node);
    case BT_JINJA_NODE_BINARY:
        return eval_binary(run, node);
    case BT_JINJA_NODE_COMPARE:
        return eval_compare(run, node);
    case BT_JINJA_NODE_CONCAT:
        return eval_concat(run, node);
    case BT_JINJA_NODE_IF_ELSE:
        return eval_if_else(run, node);
    case BT_JINJA_NODE_LIST:
        return eval_items(run, node, BT_JINJA_SHAPE_LIST);
    case BT_JINJA_NODE_TUPLE:
        return eval_items(run, node, BT_JINJA_SHAPE_TUPLE);
    case BT_JINJA_NODE_DICT:
        return eval_dict(run, node);
    default:
        return bt_jinja_fail(run, "this is no expression");
    }
}

bt_jinja_value
bt_jinja_eval(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value value = {.kind = BT_JINJA_UNDEFINED};

    if (!bt_jinja_charge(run, 1) || !bt_jinja_enter(run)) {
        return value;
    }
    run->line = node->line;
    value = eval_kind(run, node);
    bt_jinja_leave(run);
    return value;
}
