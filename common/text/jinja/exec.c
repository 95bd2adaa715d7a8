// Statements.
#include "common/text/jinja/run.h"

static void
assign_attribute(bt_jinja_run *run, const bt_jinja_node *target, bt_jinja_value value)
{
    bt_jinja_value object = bt_jinja_eval(run, target->a);

    if (run->err == BT_OK && object.kind != BT_JINJA_NAMESPACE) {
        bt_jinja_fail(run, "cannot assign attribute on non-namespace object");
    } else if (run->err == BT_OK) {
        bt_jinja_dict_set(run, object.dict, bt_jinja_text(target->text), value);
    }
}

static void
assign_items(bt_jinja_run *run, const bt_jinja_node *target, bt_jinja_value value)
{
    bt_jinja_value list = bt_jinja_to_list(run, value);

    if (run->err == BT_OK && list.list->count != target->count) {
        bt_jinja_fail(run, "%zu values to unpack, %zu were expected", list.list->count, target->count);
    }
    for (size_t i = 0; run->err == BT_OK && i < target->count; i++) {
        bt_jinja_assign(run, target->items[i], list.list->items[i]);
    }
}

void
bt_jinja_assign(bt_jinja_run *run, const bt_jinja_node *target, bt_jinja_value value)
{
    if (run->err != BT_OK || !bt_jinja_enter(run)) {
        return;
    }
    switch (target->kind) {
    case BT_JINJA_NODE_NAME:
        bt_jinja_scope_set(run, run->scope, target->name, value);
        break;
    case BT_JINJA_NODE_ATTRIBUTE:
        assign_attribute(run, target, value);
        break;
    case BT_JINJA_NODE_TUPLE:
        assign_items(run, target, value);
        break;
    default:
        bt_jinja_fail(run, "this cannot be assigned to");
        break;
    }
    bt_jinja_leave(run);
}

static void
exec_print(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value value = bt_jinja_eval(run, node->a);

    if (run->err == BT_OK) {
        bt_jinja_print(run, bt_jinja_to_text(run, value));
    }
}

// Runs a body in a scope of its own and returns what it printed.
static bt_jinja_value
captured(bt_jinja_run *run, const bt_jinja_node *body, bt_jinja_flow *flow)
{
    bt_jinja_scope *outer = run->scope, *scope = bt_jinja_scope_open(run, outer);
    bt_buf capture, *before;
    bt_jinja_value text;

    if (scope == NULL) {
        return bt_jinja_undefined((bt_str){"", 0});
    }
    run->scope = scope;
    before = bt_jinja_capture_begin(run, &capture);
    *flow = bt_jinja_exec(run, body);
    text = bt_jinja_capture_end(run, before);
    run->scope = outer;
    return text;
}

static bt_jinja_flow
exec_set_block(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_flow flow = BT_JINJA_GO_ON;
    bt_jinja_value text = captured(run, node->a, &flow);

    if (node->b != NULL && run->err == BT_OK) {
        text = bt_jinja_apply_filter(run, node->b, text);
    }
    bt_jinja_assign(run, node->items[0], text);
    return flow;
}

static bt_jinja_flow
exec_filter_block(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_flow flow = BT_JINJA_GO_ON;
    bt_jinja_value text = captured(run, node->b, &flow);

    if (run->err == BT_OK) {
        text = bt_jinja_apply_filter(run, node->a, text);
    }
    if (run->err == BT_OK) {
        bt_jinja_print(run, bt_jinja_to_text(run, text));
    }
    return flow;
}

static bt_jinja_value
macro_here(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_macro *macro = bt_jinja_alloc(run, 1, sizeof *macro);

    if (macro == NULL) {
        return bt_jinja_undefined((bt_str){"", 0});
    }
    *macro = (bt_jinja_macro){node, run->scope};
    for (bt_jinja_scope *scope = run->scope; scope != NULL && !scope->kept; scope = scope->parent) {
        scope->kept = true;
    }
    return (bt_jinja_value){.kind = BT_JINJA_MACRO, .macro = macro};
}

// {% call(x) f(y) %}: calls f with the body as one more argument, `caller`.
static void
exec_call_block(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value caller = macro_here(run, node->b), callee = bt_jinja_eval(run, node->a->a), result;
    bt_jinja_named *named;
    bt_jinja_args args;

    if (!bt_jinja_eval_args(run, node->a, &args)) {
        return;
    }
    if ((named = bt_jinja_alloc(run, args.named_count + 1, sizeof *named)) == NULL) {
        return;
    }
    for (size_t i = 0; i < args.named_count; i++) {
        named[i] = args.named[i];
    }
    named[args.named_count++] = (bt_jinja_named){bt_str_of("caller"), caller};
    args.named = named;
    result = bt_jinja_call(run, callee, &args);
    if (run->err == BT_OK) {
        bt_jinja_print(run, bt_jinja_to_text(run, result));
    }
}

static bt_jinja_flow
exec_with(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_scope *outer = run->scope, *scope = bt_jinja_scope_open(run, outer);
    bt_jinja_flow flow;

    for (size_t i = 0; scope != NULL && i + 1 < node->count && run->err == BT_OK; i += 2) {
        bt_jinja_value value;

        run->scope = outer;
        value = bt_jinja_eval(run, node->items[i + 1]);
        run->scope = scope;
        bt_jinja_assign(run, node->items[i], value);
    }
    run->scope = scope != NULL ? scope : outer;
    flow = bt_jinja_exec(run, node->a);
    run->scope = outer;
    return flow;
}

static bt_jinja_flow
exec_if(bt_jinja_run *run, const bt_jinja_node *node)
{
    for (; node != NULL && node->kind == BT_JINJA_NODE_IF && run->err == BT_OK; node = node->c) {
        if (bt_jinja_truth(bt_jinja_eval(run, node->a))) {
            return bt_jinja_exec(run, node->b);
        }
    }
    return node != NULL && run->err == BT_OK ? bt_jinja_exec(run, node) : BT_JINJA_GO_ON;
}

static bt_jinja_flow
exec_body(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_flow flow = BT_JINJA_GO_ON;

    for (size_t i = 0; i < node->count && flow == BT_JINJA_GO_ON && run->err == BT_OK; i++) {
        flow = bt_jinja_exec(run, node->items[i]);
    }
    return flow;
}

static bt_jinja_flow
exec_kind(bt_jinja_run *run, const bt_jinja_node *node)
{
    switch (node->kind) {
    case BT_JINJA_NODE_BODY:
        return exec_body(run, node);
    case BT_JINJA_NODE_DATA:
        bt_jinja_print(run, node->text);
        return BT_JINJA_GO_ON;
    case BT_JINJA_NODE_PRINT:
        exec_print(run, node);
        return BT_JINJA_GO_ON;
    case BT_JINJA_NODE_IF:
        return exec_if(run, node);
    case BT_JINJA_NODE_FOR:
        return bt_jinja_exec_for(run, node);
    case BT_JINJA_NODE_SET:
        bt_jinja_assign(run, node->items[0], bt_jinja_eval(run, node->a));
        return BT_JINJA_GO_ON;
    case BT_JINJA_NODE_SET_BLOCK:
        return exec_set_block(run, node);
    case BT_JINJA_NODE_MACRO:
        bt_jinja_scope_set(run, run->scope, node->name, macro_here(run, node));
        return BT_JINJA_GO_ON;
    case BT_JINJA_NODE_CALL_BLOCK:
        exec_call_block(run, node);
        return BT_JINJA_GO_ON;
    case BT_JINJA_NODE_FILTER_BLOCK:
        return exec_filter_block(run, node);
    case BT_JINJA_NODE_WITH:
        return exec_with(run, node);
    case BT_JINJA_NODE_BREAK:
        return BT_JINJA_BREAK;
    default:
        return BT_JINJA_CONTINUE;
    }
}

bt_jinja_flow
bt_jinja_exec(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_flow flow = BT_JINJA_GO_ON;

    if (!bt_jinja_charge(run, 1) || !bt_jinja_enter(run)) {
        return flow;
    }
    run->line = node->line;
    flow = exec_kind(run, node);
    bt_jinja_leave(run);
    return flow;
}
