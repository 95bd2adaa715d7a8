// What all of the parser stands on: faults, memory, depth, names, and looking at tokens.
#include "common/text/jinja/parse.h"

#include <stdarg.h>
#include <stdio.h>

#define DEPTH_MAX 200

void *
bt_jinja_parse_fail(bt_jinja_parser *p, const char *format, ...)
{
    char words[256];
    va_list args;

    if (p->err == BT_OK) {
        va_start(args, format);
        vsnprintf(words, sizeof words, format, args);
        va_end(args);
        p->err = bt_fail(p->why, BT_ERR_INVALID, "template line %d: %s", p->token->line, words);
    }
    p->token = p->last;
    return NULL;
}

void *
bt_jinja_parse_alloc(bt_jinja_parser *p, size_t bytes)
{
    void *memory = bt_arena_alloc(&p->tree->arena, bytes);

    if (memory == NULL) {
        if (p->err == BT_OK) {
            p->err = bt_fail(p->why, BT_ERR_TOO_LONG, "the template takes too much memory");
        }
        p->token = p->last;
    }
    return memory;
}

bt_jinja_node *
bt_jinja_parse_node(bt_jinja_parser *p, bt_jinja_node_kind kind)
{
    bt_jinja_node *node = bt_jinja_parse_alloc(p, sizeof *node);

    if (node != NULL) {
        node->kind = (uint8_t)kind;
        node->line = p->token->line;
    }
    return node;
}

bool
bt_jinja_parse_enter(bt_jinja_parser *p)
{
    if (p->depth++ >= DEPTH_MAX && p->err == BT_OK) {
        p->err = bt_fail(p->why, BT_ERR_TOO_LONG, "template line %d: nested deeper than %d", p->token->line, DEPTH_MAX);
        p->token = p->last;
    }
    if (p->err != BT_OK) {
        p->depth--;
        return false;
    }
    return true;
}

void
bt_jinja_parse_leave(bt_jinja_parser *p)
{
    p->depth -= p->depth > 0;
}

uint32_t
bt_jinja_tree_name(const bt_jinja_tree *tree, bt_str name)
{
    for (uint32_t i = 0; i < tree->name_count; i++) {
        if (bt_str_equal(tree->names[i], name)) {
            return i;
        }
    }
    return UINT32_MAX;
}

uint32_t
bt_jinja_parse_intern(bt_jinja_parser *p, bt_str name)
{
    bt_jinja_tree *tree = p->tree;
    uint32_t known = bt_jinja_tree_name(tree, name);

    if (known != UINT32_MAX) {
        return known;
    }
    // Names are looked up from end to end.
    if (tree->name_count == 4096) {
        bt_jinja_parse_fail(p, "more than 4096 variables");
        return 0;
    }
    if (tree->name_count == tree->name_cap) {
        uint32_t cap = tree->name_cap != 0 ? 2 * tree->name_cap : 64;
        bt_str *names = bt_jinja_parse_alloc(p, cap * sizeof *names);

        if (names == NULL) {
            return 0;
        }
        if (tree->name_count != 0) {
            memcpy(names, tree->names, tree->name_count * sizeof *names);
        }
        tree->names = names;
        tree->name_cap = cap;
    }
    tree->names[tree->name_count] = name;
    return tree->name_count++;
}

bool
bt_jinja_parse_at_op(const bt_jinja_parser *p, int op)
{
    return p->token->kind == BT_JINJA_TOKEN_OP && p->token->op == op;
}

bool
bt_jinja_parse_at_name(const bt_jinja_parser *p, const char *name)
{
    return p->token->kind == BT_JINJA_TOKEN_NAME && bt_str_is(p->token->text, name);
}

bool
bt_jinja_parse_skip_op(bt_jinja_parser *p, int op)
{
    bool there = bt_jinja_parse_at_op(p, op);

    p->token += there;
    return there;
}

bool
bt_jinja_parse_skip_name(bt_jinja_parser *p, const char *name)
{
    bool there = bt_jinja_parse_at_name(p, name);

    p->token += there;
    return there;
}

void
bt_jinja_parse_expect_op(bt_jinja_parser *p, int op)
{
    if (!bt_jinja_parse_skip_op(p, op)) {
        bt_jinja_parse_fail(p, "'%c' was expected", op);
    }
}

bt_str
bt_jinja_parse_expect_any_name(bt_jinja_parser *p)
{
    if (p->token->kind != BT_JINJA_TOKEN_NAME) {
        bt_jinja_parse_fail(p, "a name was expected");
        return (bt_str){"", 0};
    }
    return p->token++->text;
}

void
bt_jinja_nodes_add(bt_jinja_parser *p, bt_jinja_nodes *nodes, bt_jinja_node *node)
{
    if (nodes->count == nodes->cap) {
        size_t cap = nodes->cap != 0 ? 2 * nodes->cap : 4;
        bt_jinja_node **items = bt_jinja_parse_alloc(p, cap * sizeof *items);

        if (items == NULL) {
            return;
        }
        if (nodes->count != 0) {
            memcpy(items, nodes->items, nodes->count * sizeof *items);
        }
        nodes->items = items;
        nodes->cap = cap;
    }
    nodes->items[nodes->count++] = node;
}
