// One rendering: its memory, its limits, its variables, and what the parts of the interpreter offer one another.
//
// A fault is noted once in the run (bt_jinja_fail, bt_jinja_limit) and everything then returns quickly with any value; whoever loops
// checks run->err. Everything a run makes lies in its arena and goes with it. A run belongs to one thread.
//
// Every piece of work is charged in steps, so that a template has no way to be slow that its limit does not see:
// evaluating a node is a step, and whatever walks over n items or bytes charges for them (bt_jinja_charge).
#pragma once

#include "common/base/buf.h"
#include "common/text/jinja/ast.h"

typedef struct {
    uint32_t name;
    bt_jinja_value value;
} bt_jinja_binding;

// Variables. Each turn of a loop, each call of a macro has its own, and looks outwards for what it lacks.
typedef struct bt_jinja_scope bt_jinja_scope;
struct bt_jinja_scope {
    bt_jinja_scope *parent;
    bt_jinja_binding *bindings;
    uint32_t count, cap;
    bool kept; // a macro that was defined in here, or further in, looks into it; else a loop's next turn takes it over
};

typedef struct {
    const bt_jinja_tree *tree;
    bt_arena arena;
    bt_buf *out;           // where printing goes now
    bt_jinja_scope *scope; // the innermost
    uint64_t steps_left;
    unsigned depth, depth_max;
    size_t captured, captured_max; // bytes printed into captures that are still open, and what may be printed in all
    int line;
    bt_err err;
    bt_why *why;
    const char *now;
    char *tip; // where the last joined text ends, with room behind it (bt_jinja_join)
    size_t tip_room;
} bt_jinja_run;

typedef struct {
    bt_str name;
    bt_jinja_value value;
} bt_jinja_named;

typedef struct {
    const bt_jinja_value *items;
    size_t count;
    const bt_jinja_named *named;
    size_t named_count;
} bt_jinja_args;

struct bt_jinja_macro {
    const bt_jinja_node *node;
    bt_jinja_scope *scope; // where it was defined
};

struct bt_jinja_method {
    bt_jinja_value self;
    const char *name;
    bt_jinja_value (*call)(bt_jinja_run *run, bt_jinja_value self, const bt_jinja_args *args);
};

struct bt_jinja_global {
    const char *name;
    bt_jinja_value (*call)(bt_jinja_run *run, const bt_jinja_args *args);
};

// run.c: faults, limits, memory.
// Notes a fault of the template or its input, with the line; the first stays. Returns undefined.
bt_jinja_value bt_jinja_fail(bt_jinja_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
bt_jinja_value bt_jinja_limit(bt_jinja_run *run, const char *what);
// False when the steps are used up or a fault was noted.
bool bt_jinja_charge(bt_jinja_run *run, size_t steps);
// For recursion, in the template or over nested values.
bool bt_jinja_enter(bt_jinja_run *run);
void bt_jinja_leave(bt_jinja_run *run);
void *bt_jinja_alloc(bt_jinja_run *run, size_t count, size_t bytes); // zeroed; NULL with the limit noted
bt_str bt_jinja_copy(bt_jinja_run *run, bt_str text);
bt_jinja_value bt_jinja_text_copy(bt_jinja_run *run, bt_str text);
bt_jinja_value bt_jinja_text_format(bt_jinja_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// left + right. Adding on to what was joined last moves only what is added, so that a text built bit by bit costs no square.
bt_str bt_jinja_join(bt_jinja_run *run, bt_str left, bt_str right);
// A buffer's contents as text, whose failure is the memory limit; ends the buffer.
bt_jinja_value bt_jinja_text_of_buf(bt_jinja_run *run, bt_buf *buf);
void bt_jinja_buf_init(bt_jinja_run *run, bt_buf *buf);

// Printing into a capture instead; returned to is what was printed before.
bt_buf *bt_jinja_capture_begin(bt_jinja_run *run, bt_buf *capture);
bt_jinja_value bt_jinja_capture_end(bt_jinja_run *run, bt_buf *before);
void bt_jinja_print(bt_jinja_run *run, bt_str text);

// run.c: variables.
bt_jinja_scope *bt_jinja_scope_open(bt_jinja_run *run, bt_jinja_scope *parent);
// For the next turn of a loop: `last` emptied, or a new one where it is NULL or kept.
bt_jinja_scope *bt_jinja_scope_again(bt_jinja_run *run, bt_jinja_scope *last, bt_jinja_scope *parent);
void bt_jinja_scope_set(bt_jinja_run *run, bt_jinja_scope *scope, uint32_t name, bt_jinja_value value);
bool bt_jinja_scope_find(bt_jinja_run *run, uint32_t name, bt_jinja_value *out);

// make.c: lists and dicts.
bt_jinja_value bt_jinja_list_new(bt_jinja_run *run, bt_jinja_shape shape, size_t cap);
// Appends to a list that is still being made and was made with room for it.
void bt_jinja_list_put(bt_jinja_value list, bt_jinja_value item);
bt_jinja_value bt_jinja_pair(bt_jinja_run *run, bt_jinja_value first, bt_jinja_value second); // a tuple
bt_jinja_value bt_jinja_dict_new(bt_jinja_run *run, size_t cap);
void bt_jinja_dict_set(bt_jinja_run *run, bt_jinja_dict *dict, bt_jinja_value key, bt_jinja_value value);
const bt_jinja_value *bt_jinja_dict_find(bt_jinja_run *run, const bt_jinja_dict *dict,
                                         bt_jinja_value key); // NULL when absent
const bt_jinja_value *bt_jinja_dict_find_text(bt_jinja_run *run, const bt_jinja_dict *dict, bt_str key);

// Walks whatever Python's iter() takes: items, keys, characters. Begin with .source set and the rest zero.
typedef struct {
    bt_jinja_value source;
    size_t at;
} bt_jinja_iter;
bool bt_jinja_is_iterable(bt_jinja_value v);
bool bt_jinja_iter_begin(bt_jinja_run *run, bt_jinja_iter *iter,
                         bt_jinja_value source); // false with a fault when it is not iterable
bool bt_jinja_iter_next(bt_jinja_run *run, bt_jinja_iter *iter, bt_jinja_value *out);
// All of it as a list; a list or tuple comes back as it is.
bt_jinja_value bt_jinja_to_list(bt_jinja_run *run, bt_jinja_value v);
bool bt_jinja_length(bt_jinja_run *run, bt_jinja_value v,
                     size_t *out); // Python's len(); false with a fault where there is none

// compare.c
bool bt_jinja_equal(bt_jinja_run *run, bt_jinja_value a, bt_jinja_value b);
int bt_jinja_order(bt_jinja_run *run, bt_jinja_value a,
                   bt_jinja_value b); // <0, 0, >0; a fault where Python has no order
bool bt_jinja_contains(bt_jinja_run *run, bt_jinja_value container, bt_jinja_value item);
// Sorts in place and stably. `order` is as bt_jinja_order with what it is given.
typedef int bt_jinja_order_fn(bt_jinja_run *run, const bt_jinja_value *a, const bt_jinja_value *b, const void *with);
void bt_jinja_sort(bt_jinja_run *run, bt_jinja_value *items, size_t count, bt_jinja_order_fn *order, const void *with);

// show.c
void bt_jinja_show(bt_jinja_run *run, bt_buf *out, bt_jinja_value v); // str()
void bt_jinja_repr(bt_jinja_run *run, bt_buf *out, bt_jinja_value v);
bt_str bt_jinja_to_text(bt_jinja_run *run, bt_jinja_value v); // str() in the arena
bt_str bt_jinja_escape(bt_jinja_run *run,
                       bt_jinja_value v); // with & < > ' " as HTML has them, unless it is marked safe

// arith.c
bt_jinja_value bt_jinja_binary(bt_jinja_run *run, int op, bt_jinja_value a, bt_jinja_value b);
bt_jinja_value bt_jinja_sign(bt_jinja_run *run, int op, bt_jinja_value v);

// access.c
bt_jinja_value bt_jinja_attribute(bt_jinja_run *run, bt_jinja_value object, bt_str name);
bt_jinja_value bt_jinja_get_item(bt_jinja_run *run, bt_jinja_value object, bt_jinja_value index);
bt_jinja_value bt_jinja_slice(bt_jinja_run *run, bt_jinja_value object, bt_jinja_value from, bt_jinja_value to,
                              bt_jinja_value step);

// eval.c, exec.c, call.c
bt_jinja_value bt_jinja_eval(bt_jinja_run *run, const bt_jinja_node *node);
typedef enum { BT_JINJA_GO_ON, BT_JINJA_BREAK, BT_JINJA_CONTINUE } bt_jinja_flow;
bt_jinja_flow bt_jinja_exec(bt_jinja_run *run, const bt_jinja_node *node);
void bt_jinja_assign(bt_jinja_run *run, const bt_jinja_node *target, bt_jinja_value value);
bt_jinja_value bt_jinja_call(bt_jinja_run *run, bt_jinja_value callee, const bt_jinja_args *args);
bool bt_jinja_eval_args(bt_jinja_run *run, const bt_jinja_node *node, bt_jinja_args *out);
bt_jinja_value bt_jinja_apply_filter(bt_jinja_run *run, const bt_jinja_node *filter, bt_jinja_value subject);
// Sorts arguments into places by a list of names, "width first blank"; what was not given is BT_JINJA_UNSET. False with a
// fault when there are too many, unknown ones, or fewer than `needed`.
bool bt_jinja_take_args(bt_jinja_run *run, const bt_jinja_args *args, const char *what, const char *names,
                        size_t needed, bt_jinja_value *out);

// loop.c
bt_jinja_flow bt_jinja_exec_for(bt_jinja_run *run, const bt_jinja_node *node);
bt_jinja_value bt_jinja_loop_attribute(bt_jinja_run *run, bt_jinja_loop *loop, bt_str name);
bt_jinja_value bt_jinja_loop_call(bt_jinja_run *run, bt_jinja_loop *loop, const bt_jinja_args *args);

// globals.c
void bt_jinja_define_globals(bt_jinja_run *run, bt_jinja_scope *scope);

// json.c
bt_jinja_value bt_jinja_from_json(bt_jinja_run *run, bt_str json, const char *what,
                                  bt_jinja_kind expected); // BT_JINJA_UNSET: any
void bt_jinja_define_json(bt_jinja_run *run, bt_jinja_scope *scope, bt_str json, const char *what);
bt_jinja_value bt_jinja_filter_tojson(bt_jinja_run *run, bt_jinja_value v, const bt_jinja_args *args);

// format.c
bt_jinja_value bt_jinja_format_percent(bt_jinja_run *run, bt_jinja_value format, const bt_jinja_args *args);
bt_jinja_value bt_jinja_format_braces(bt_jinja_run *run, bt_jinja_value format, const bt_jinja_args *args);

// methods_text.c, methods.c: the function of that name, bound; BT_JINJA_UNSET where the type has none.
bt_jinja_value bt_jinja_text_method(bt_jinja_run *run, bt_jinja_value self, bt_str name);
bt_jinja_value bt_jinja_other_method(bt_jinja_run *run, bt_jinja_value self, bt_str name);
bt_jinja_value bt_jinja_bind_method(bt_jinja_run *run, bt_jinja_value self, const char *name,
                                    bt_jinja_value (*call)(bt_jinja_run *run, bt_jinja_value self,
                                                           const bt_jinja_args *args));
