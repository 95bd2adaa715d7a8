// What the parts of the parser share: statements (parse.c, parse_macro.c) and expressions
// (parse_expr.c, parse_postfix.c, parse_primary.c).
//
// A fault is noted once and moves the parser to the end token, where every loop stops by itself; so nothing needs to
// be checked in between, and NULL nodes are only ever passed on.
#pragma once

#include "common/text/jinja/ast.h"
#include "common/text/jinja/lex.h"

typedef struct {
    bt_jinja_tree *tree;
    const bt_jinja_token *token; // the current one
    const bt_jinja_token *last;  // the end token
    bt_why *why;
    bt_err err;
    unsigned depth; // of recursion
    unsigned loops; // open around this place, in this macro
    uint8_t *uses;  // of the macro that is being parsed, or NULL
} bt_jinja_parser;

void *bt_jinja_parse_fail(bt_jinja_parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *bt_jinja_parse_alloc(bt_jinja_parser *p, size_t bytes);
bt_jinja_node *bt_jinja_parse_node(bt_jinja_parser *p, bt_jinja_node_kind kind);
// Both count recursion: false, with the fault noted, when it goes too deep.
bool bt_jinja_parse_enter(bt_jinja_parser *p);
void bt_jinja_parse_leave(bt_jinja_parser *p);

uint32_t bt_jinja_parse_intern(bt_jinja_parser *p, bt_str name);
bool bt_jinja_parse_at_op(const bt_jinja_parser *p, int op);
bool bt_jinja_parse_at_name(const bt_jinja_parser *p, const char *name);
bool bt_jinja_parse_skip_op(bt_jinja_parser *p, int op);
bool bt_jinja_parse_skip_name(bt_jinja_parser *p, const char *name);
void bt_jinja_parse_expect_op(bt_jinja_parser *p, int op);
bt_str bt_jinja_parse_expect_any_name(bt_jinja_parser *p);

// A growing list of nodes.
typedef struct {
    bt_jinja_node **items;
    size_t count, cap;
} bt_jinja_nodes;
void bt_jinja_nodes_add(bt_jinja_parser *p, bt_jinja_nodes *nodes, bt_jinja_node *node);

bt_jinja_node *bt_jinja_parse_expression(bt_jinja_parser *p, bool with_if);
// Several with commas make a tuple. `end` (may be NULL) is a name that ends it besides the end of the tag.
bt_jinja_node *bt_jinja_parse_tuple(bt_jinja_parser *p, bool with_if, const char *end);
// A place to assign to: a name, ns.attribute (if allowed), or a tuple of these.
bt_jinja_node *bt_jinja_parse_target(bt_jinja_parser *p, const char *end, bool with_namespace);
// "name(args)|name…" after the bar or, where `bar` is false, from the first name; the subject of the innermost is NULL.
bt_jinja_node *bt_jinja_parse_filters(bt_jinja_parser *p, bt_jinja_node *subject, bool bar);
// Behind the name of an opening tag with one end tag: the rest of the tag, the body, and all of the end tag.
bt_jinja_node *bt_jinja_parse_block(bt_jinja_parser *p, const char *end);
// Behind their names.
bt_jinja_node *bt_jinja_parse_macro(bt_jinja_parser *p);
bt_jinja_node *bt_jinja_parse_call_block(bt_jinja_parser *p);

// parse_primary.c: what an operator stands between.
bt_jinja_node *bt_jinja_parse_primary(bt_jinja_parser *p);
bt_jinja_node *bt_jinja_parse_name(bt_jinja_parser *p);
// parse_postfix.c: what follows it: .name, [index], (arguments); `bt_jinja_parse_dot` from behind the dot.
bt_jinja_node *bt_jinja_parse_postfix(bt_jinja_parser *p, bt_jinja_node *node);
bt_jinja_node *bt_jinja_parse_dot(bt_jinja_parser *p, bt_jinja_node *object);
// With a sign, postfixes, and, where `with_filter`, filters and tests.
bt_jinja_node *bt_jinja_parse_unary(bt_jinja_parser *p, bool with_filter);

// Nodes of the common shapes; NULL when memory is out.
bt_jinja_node *bt_jinja_parse_constant(bt_jinja_parser *p, bt_jinja_value value);
bt_jinja_node *bt_jinja_parse_pair(bt_jinja_parser *p, bt_jinja_node_kind kind, int op, bt_jinja_node *left,
                                   bt_jinja_node *right);
bt_jinja_node *bt_jinja_parse_with_items(bt_jinja_node *node, bt_jinja_nodes items);
// Skips one of the operators (a list that ends with 0) and returns it, or 0.
int bt_jinja_parse_skip_one_of(bt_jinja_parser *p, const int *ops);
