// {% for %} and its `loop`.
//
// Items are taken one at a time, and the filter (`for x in y if z`) is asked as each is taken, so that it sees what the
// body before it has set. loop.last and loop.nextitem look one ahead; loop.length takes all.
#include "common/text/jinja/run.h"

struct bt_jinja_loop {
    const bt_jinja_node *node;
    bt_jinja_scope *scope;              // outside of the loop
    bt_jinja_scope *inside, *filtering; // of the last turn, and of the last question to the filter
    bt_jinja_iter iter;
    bool filtered;          // the filter is still to be asked of what iter gives
    int64_t index0, length; // length: -1 while unknown
    unsigned depth0;
    bt_jinja_value before, current, after; // after: BT_JINJA_UNSET unless one was taken ahead
    bt_jinja_value changed;
};

static bool
passes_filter(bt_jinja_run *run, bt_jinja_loop *loop, bt_jinja_value item)
{
    bt_jinja_scope *inner = run->scope;
    bool passes;

    loop->filtering = bt_jinja_scope_again(run, loop->filtering, loop->scope);
    if (loop->filtering == NULL) {
        return false;
    }
    run->scope = loop->filtering;
    bt_jinja_assign(run, loop->node->items[0], item);
    passes = run->err == BT_OK && bt_jinja_truth(bt_jinja_eval(run, loop->node->items[1]));
    run->scope = inner;
    return passes;
}

static bool
take(bt_jinja_run *run, bt_jinja_loop *loop, bt_jinja_value *out)
{
    while (bt_jinja_iter_next(run, &loop->iter, out)) {
        if (!loop->filtered || passes_filter(run, loop, *out)) {
            return run->err == BT_OK;
        }
    }
    return false;
}

static bool
advance(bt_jinja_run *run, bt_jinja_loop *loop)
{
    bt_jinja_value item = loop->after;

    if (item.kind == BT_JINJA_UNSET && !take(run, loop, &item)) {
        return false;
    }
    loop->after = (bt_jinja_value){0};
    loop->before = loop->current;
    loop->current = item;
    loop->index0++;
    return true;
}

static bt_jinja_value
peek(bt_jinja_run *run, bt_jinja_loop *loop)
{
    if (loop->after.kind == BT_JINJA_UNSET && !take(run, loop, &loop->after)) {
        loop->after = (bt_jinja_value){0};
    }
    return loop->after;
}

static int64_t
length_of(bt_jinja_run *run, bt_jinja_loop *loop)
{
    bt_jinja_value rest, item;
    size_t count;

    if (loop->length >= 0) {
        return loop->length;
    }
    if (!loop->filtered && !bt_jinja_is_shape(loop->iter.source, BT_JINJA_SHAPE_GENERATOR)) {
        loop->length = bt_jinja_length(run, loop->iter.source, &count) ? (int64_t)count : 0;
        return loop->length;
    }
    count = loop->iter.source.kind == BT_JINJA_TEXT ? loop->iter.source.text.len : 0;
    if (loop->iter.source.kind != BT_JINJA_TEXT && !bt_jinja_is_shape(loop->iter.source, BT_JINJA_SHAPE_GENERATOR)) {
        bt_jinja_length(run, loop->iter.source, &count);
    } else if (loop->iter.source.kind == BT_JINJA_LIST) {
        count = loop->iter.source.list->count;
    }
    rest = bt_jinja_list_new(run, BT_JINJA_SHAPE_LIST, count);
    while (take(run, loop, &item)) {
        bt_jinja_list_put(rest, item);
    }
    loop->filtered = false;
    loop->iter = (bt_jinja_iter){.source = rest};
    loop->length = (int64_t)rest.list->count + loop->index0 + 1 + (loop->after.kind != BT_JINJA_UNSET);
    return loop->length;
}

static bt_jinja_value
loop_cycle(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    if (args->count == 0 || args->named_count != 0) {
        return bt_jinja_fail(run, "no items for cycling given");
    }
    return args->items[(size_t)self.loop->index0 % args->count];
}

static bt_jinja_value
loop_changed(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args)
{
    bt_jinja_value now = bt_jinja_list_new(run, BT_JINJA_SHAPE_TUPLE, args->count);
    bt_jinja_loop *loop = self.loop;

    for (size_t i = 0; i < args->count; i++) {
        bt_jinja_list_put(now, args->items[i]);
    }
    if (loop->changed.kind != BT_JINJA_UNSET && bt_jinja_equal(run, loop->changed, now)) {
        return bt_jinja_bool(false);
    }
    loop->changed = now;
    return bt_jinja_bool(true);
}

static bt_jinja_value
or_undefined(bt_jinja_value v, const char *words)
{
    return v.kind != BT_JINJA_UNSET ? v : bt_jinja_undefined(bt_str_of(words));
}

bt_jinja_value
bt_jinja_loop_attribute(bt_jinja_run *run, bt_jinja_loop *loop, bt_str name)
{
    bt_jinja_value self = {.kind = BT_JINJA_LOOP, .loop = loop};

    return bt_str_is(name, "index")       ? bt_jinja_int(loop->index0 + 1)
           : bt_str_is(name, "index0")    ? bt_jinja_int(loop->index0)
           : bt_str_is(name, "first")     ? bt_jinja_bool(loop->index0 == 0)
           : bt_str_is(name, "last")      ? bt_jinja_bool(peek(run, loop).kind == BT_JINJA_UNSET)
           : bt_str_is(name, "length")    ? bt_jinja_int(length_of(run, loop))
           : bt_str_is(name, "revindex")  ? bt_jinja_int(length_of(run, loop) - loop->index0)
           : bt_str_is(name, "revindex0") ? bt_jinja_int(length_of(run, loop) - loop->index0 - 1)
           : bt_str_is(name, "previtem")  ? or_undefined(loop->before, "there is no previous item")
           : bt_str_is(name, "nextitem")  ? or_undefined(peek(run, loop), "there is no next item")
           : bt_str_is(name, "depth")     ? bt_jinja_int((int64_t)loop->depth0 + 1)
           : bt_str_is(name, "depth0")    ? bt_jinja_int(loop->depth0)
           : bt_str_is(name, "cycle")     ? bt_jinja_bind_method(run, self, "cycle", loop_cycle)
           : bt_str_is(name, "changed")   ? bt_jinja_bind_method(run, self, "changed", loop_changed)
                                          : (bt_jinja_value){0};
}

static bt_jinja_flow
turn(bt_jinja_run *run, bt_jinja_loop *loop)
{
    loop->inside = bt_jinja_scope_again(run, loop->inside, loop->scope);
    if (loop->inside == NULL) {
        return BT_JINJA_BREAK;
    }
    run->scope = loop->inside;
    bt_jinja_scope_set(run, loop->inside, run->tree->loop_name, (bt_jinja_value){.kind = BT_JINJA_LOOP, .loop = loop});
    bt_jinja_assign(run, loop->node->items[0], loop->current);
    return run->err == BT_OK ? bt_jinja_exec(run, loop->node->b) : BT_JINJA_BREAK;
}

// Says whether the else branch leaves a loop around this one.
static bt_jinja_flow
run_loop(bt_jinja_run *run, const bt_jinja_node *node, bt_jinja_value source, bt_jinja_scope *scope, unsigned depth0)
{
    bt_jinja_loop *loop = bt_jinja_alloc(run, 1, sizeof *loop);
    bt_jinja_scope *outer = run->scope;
    bt_jinja_flow flow = BT_JINJA_GO_ON;

    if (loop == NULL) {
        return BT_JINJA_GO_ON;
    }
    *loop = (bt_jinja_loop){.node = node, .scope = scope, .index0 = -1, .length = -1, .depth0 = depth0};
    loop->filtered = node->items[1] != NULL;
    if (!bt_jinja_iter_begin(run, &loop->iter, source)) {
        return flow;
    }
    while (advance(run, loop) && turn(run, loop) != BT_JINJA_BREAK && run->err == BT_OK) {
    }
    run->scope = scope;
    if (loop->index0 < 0 && node->c != NULL && run->err == BT_OK &&
        (run->scope = bt_jinja_scope_open(run, scope)) != NULL) {
        flow = bt_jinja_exec(run, node->c);
    }
    run->scope = outer;
    return flow;
}

bt_jinja_flow
bt_jinja_exec_for(bt_jinja_run *run, const bt_jinja_node *node)
{
    bt_jinja_value source = bt_jinja_eval(run, node->a);

    return run->err == BT_OK ? run_loop(run, node, source, run->scope, 0) : BT_JINJA_GO_ON;
}

// loop(children) in a recursive loop: the same loop over something else, as text.
bt_jinja_value
bt_jinja_loop_call(bt_jinja_run *run, bt_jinja_loop *loop, const bt_jinja_args *args)
{
    bt_buf capture, *before;
    bt_jinja_value children, text;

    if (!loop->node->flag) {
        return bt_jinja_fail(run, "the loop must have the 'recursive' marker to be called recursively");
    }
    if (!bt_jinja_take_args(run, args, "loop", "iterable", 1, &children) || !bt_jinja_enter(run)) {
        return (bt_jinja_value){.kind = BT_JINJA_UNDEFINED};
    }
    before = bt_jinja_capture_begin(run, &capture);
    run_loop(run, loop->node, children, loop->scope, loop->depth0 + 1);
    text = bt_jinja_capture_end(run, before);
    bt_jinja_leave(run);
    return text;
}
