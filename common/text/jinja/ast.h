// A template's tree. Built once by the parser, in the arena of the compiled template, and never changed afterwards.
#pragma once

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/text/jinja/value.h"

// Beside each kind, the fields of its node that mean something.
typedef enum {
    // Expressions
    BT_JINJA_NODE_CONST,     // constant
    BT_JINJA_NODE_NAME,      // name, text
    BT_JINJA_NODE_ATTRIBUTE, // a: object; text
    BT_JINJA_NODE_ITEM,      // a: object, b: index
    BT_JINJA_NODE_SLICE,     // a: from, b: to, c: step, each or NULL; only as the index of an item
    BT_JINJA_NODE_CALL,      // a: callee; items: arguments
    BT_JINJA_NODE_FILTER,    // a: subject or NULL; items: arguments; text; filter, NULL when unknown
    BT_JINJA_NODE_TEST,      // a: subject; items: arguments; text; test, NULL when unknown
    BT_JINJA_NODE_NOT,       // a: operand
    BT_JINJA_NODE_SIGN,      // a: operand; op: '-' or '+'
    BT_JINJA_NODE_AND,       // a: left, b: right
    BT_JINJA_NODE_OR,        // a: left, b: right
    BT_JINJA_NODE_BINARY,    // a: left, b: right; op
    BT_JINJA_NODE_COMPARE,   // a: first; items: OPERANDs
    BT_JINJA_NODE_OPERAND,   // a: value; op, or one of the two below
    BT_JINJA_NODE_CONCAT,    // items: operands of ~
    BT_JINJA_NODE_IF_ELSE,   // a: then, b: test, c: else or NULL
    BT_JINJA_NODE_LIST,      // items
    BT_JINJA_NODE_TUPLE,     // items
    BT_JINJA_NODE_DICT,      // items: key, value, key, …
    BT_JINJA_NODE_KEYWORD,   // a: value; text; only among arguments
    BT_JINJA_NODE_SPREAD,    // a: value; op: '*' or OP('*', '*'); only among arguments
    // Statements
    BT_JINJA_NODE_BODY,         // items: statements
    BT_JINJA_NODE_DATA,         // text
    BT_JINJA_NODE_PRINT,        // a: expression
    BT_JINJA_NODE_IF,           // a: test, b: then, c: else (or an IF for elif) or NULL
    BT_JINJA_NODE_FOR,          // a: iterable, b: body, c: else or NULL; items: target, filter or NULL; flag: recursive
    BT_JINJA_NODE_SET,          // a: value; items: target
    BT_JINJA_NODE_SET_BLOCK,    // a: body, b: filter or NULL; items: target
    BT_JINJA_NODE_MACRO,        // a: body; items: PARAMETERs; name, text, uses
    BT_JINJA_NODE_PARAMETER,    // a: default or NULL; name, text
    BT_JINJA_NODE_CALL_BLOCK,   // a: call, b: MACRO, the body
    BT_JINJA_NODE_FILTER_BLOCK, // a: filter, b: body
    BT_JINJA_NODE_WITH,         // a: body; items: target, value, target, …
    BT_JINJA_NODE_BREAK,
    BT_JINJA_NODE_CONTINUE,
} bt_jinja_node_kind;

// An operator is named by its character, or by its two.
#define BT_JINJA_OP(first, second) ((first) << 8 | (second))
#define BT_JINJA_OP_IN 1
#define BT_JINJA_OP_NOT_IN 2

// What a macro's body mentions, which decides what it takes beyond its parameters.
#define BT_JINJA_USES_VARARGS 1
#define BT_JINJA_USES_KWARGS 2
#define BT_JINJA_USES_CALLER 4

struct bt_jinja_filter;
struct bt_jinja_test;

typedef struct bt_jinja_node bt_jinja_node;
struct bt_jinja_node {
    uint8_t kind;
    bool flag;
    uint8_t uses;
    int line, op;
    uint32_t name; // the number of a variable's name, see bt_jinja_tree
    bt_str text;
    bt_jinja_node *a, *b, *c;
    bt_jinja_node **items;
    size_t count;
    union {
        bt_jinja_value constant;
        const struct bt_jinja_filter *filter;
        const struct bt_jinja_test *test;
    };
};

// The whole: names of variables are numbered, so that looking one up compares numbers.
typedef struct {
    bt_arena arena;
    bt_jinja_node *body;
    bt_str *names;
    uint32_t name_count, name_cap;
    uint32_t loop_name; // of "loop", UINT32_MAX where it is not mentioned
} bt_jinja_tree;

// On an error the tree holds nothing that bt_jinja_tree_close would not free.
bt_err bt_jinja_parse(bt_jinja_tree *tree, bt_str source, bt_why *why);
void bt_jinja_tree_close(bt_jinja_tree *tree);
// UINT32_MAX where the template does not mention it.
uint32_t bt_jinja_tree_name(const bt_jinja_tree *tree, bt_str name);
