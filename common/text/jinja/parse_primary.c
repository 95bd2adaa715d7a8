// Operands: names, literals, lists and dicts; and tuples and what can be assigned to, which are made of them.
#include "common/text/jinja/parse.h"

bt_jinja_node *
bt_jinja_parse_name(bt_jinja_parser *p)
{
    bt_str name = p->token->text;
    bt_jinja_node *node;

    p->token++;
    if (bt_str_is(name, "true") || bt_str_is(name, "True")) {
        return bt_jinja_parse_constant(p, bt_jinja_bool(true));
    }
    if (bt_str_is(name, "false") || bt_str_is(name, "False")) {
        return bt_jinja_parse_constant(p, bt_jinja_bool(false));
    }
    if (bt_str_is(name, "none") || bt_str_is(name, "None")) {
        return bt_jinja_parse_constant(p, bt_jinja_none());
    }
    if ((node = bt_jinja_parse_node(p, BT_JINJA_NODE_NAME)) == NULL) {
        return NULL;
    }
    node->text = name;
    node->name = bt_jinja_parse_intern(p, name);
    if (p->uses != NULL) {
        *p->uses |= bt_str_is(name, "varargs")  ? BT_JINJA_USES_VARARGS
                    : bt_str_is(name, "kwargs") ? BT_JINJA_USES_KWARGS
                    : bt_str_is(name, "caller") ? BT_JINJA_USES_CALLER
                                                : 0;
    }
    return node;
}

// Strings that follow one another are one.
static bt_jinja_node *
parse_texts(bt_jinja_parser *p)
{
    bt_str text = p->token->text;

    for (p->token++; p->token->kind == BT_JINJA_TOKEN_TEXT; p->token++) {
        bt_str more = p->token->text;
        char *joined = bt_jinja_parse_alloc(p, text.len + more.len + 1);

        if (joined == NULL) {
            return NULL;
        }
        memcpy(joined, text.data, text.len);
        memcpy(joined + text.len, more.data, more.len);
        text = (bt_str){joined, text.len + more.len};
    }
    return bt_jinja_parse_constant(p, bt_jinja_text(text));
}

// Behind the opening bracket of a list or a dict.
static bt_jinja_node *
parse_display(bt_jinja_parser *p, bt_jinja_node_kind kind, int closer)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, kind);
    bt_jinja_nodes nodes = {0};

    while (!bt_jinja_parse_at_op(p, closer) && p->token != p->last) {
        if (nodes.count != 0) {
            bt_jinja_parse_expect_op(p, ',');
            if (bt_jinja_parse_at_op(p, closer)) {
                break;
            }
        }
        bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_expression(p, true));
        if (kind == BT_JINJA_NODE_DICT) {
            bt_jinja_parse_expect_op(p, ':');
            bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_expression(p, true));
        }
    }
    bt_jinja_parse_expect_op(p, closer);
    return bt_jinja_parse_with_items(node, nodes);
}

bt_jinja_node *
bt_jinja_parse_primary(bt_jinja_parser *p)
{
    const bt_jinja_token *token = p->token;
    bt_jinja_node *node;

    switch (token->kind) {
    case BT_JINJA_TOKEN_NAME:
        return bt_jinja_parse_name(p);
    case BT_JINJA_TOKEN_TEXT:
        return parse_texts(p);
    case BT_JINJA_TOKEN_INT:
        p->token++;
        return bt_jinja_parse_constant(p, bt_jinja_int(token->whole));
    case BT_JINJA_TOKEN_REAL:
        p->token++;
        return bt_jinja_parse_constant(p, bt_jinja_real(token->real));
    default:
        break;
    }
    if (bt_jinja_parse_skip_op(p, '(')) {
        node = bt_jinja_parse_at_op(p, ')') ? bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE)
                                            : bt_jinja_parse_tuple(p, true, NULL);
        bt_jinja_parse_expect_op(p, ')');
        return node;
    }
    if (bt_jinja_parse_skip_op(p, '[')) {
        return parse_display(p, BT_JINJA_NODE_LIST, ']');
    }
    if (bt_jinja_parse_skip_op(p, '{')) {
        return parse_display(p, BT_JINJA_NODE_DICT, '}');
    }
    return bt_jinja_parse_fail(p, "an expression was expected");
}

static bool
at_tuple_end(const bt_jinja_parser *p, const char *end)
{
    return p->token->kind == BT_JINJA_TOKEN_PRINT_END || p->token->kind == BT_JINJA_TOKEN_BLOCK_END ||
           p->token->kind == BT_JINJA_TOKEN_END || bt_jinja_parse_at_op(p, ')') ||
           (end != NULL && bt_jinja_parse_at_name(p, end));
}

bt_jinja_node *
bt_jinja_parse_tuple(bt_jinja_parser *p, bool with_if, const char *end)
{
    bt_jinja_node *first = bt_jinja_parse_expression(p, with_if);
    bt_jinja_nodes nodes = {0};

    if (!bt_jinja_parse_at_op(p, ',')) {
        return first;
    }
    bt_jinja_nodes_add(p, &nodes, first);
    while (bt_jinja_parse_skip_op(p, ',') && !at_tuple_end(p, end)) {
        bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_expression(p, with_if));
    }
    return bt_jinja_parse_with_items(bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE), nodes);
}

static bt_jinja_node *
parse_one_target(bt_jinja_parser *p, bool with_namespace)
{
    bt_jinja_node *node = NULL;

    if (bt_jinja_parse_skip_op(p, '(')) {
        node = bt_jinja_parse_enter(p) ? bt_jinja_parse_target(p, NULL, with_namespace) : NULL;
        bt_jinja_parse_leave(p);
        bt_jinja_parse_expect_op(p, ')');
        return node;
    }
    if (p->token->kind == BT_JINJA_TOKEN_NAME) {
        node = bt_jinja_parse_name(p);
    }
    if (node == NULL || node->kind != BT_JINJA_NODE_NAME) {
        return bt_jinja_parse_fail(p, "a name to assign to was expected");
    }
    return with_namespace && bt_jinja_parse_skip_op(p, '.') ? bt_jinja_parse_dot(p, node) : node;
}

bt_jinja_node *
bt_jinja_parse_target(bt_jinja_parser *p, const char *end, bool with_namespace)
{
    bt_jinja_node *first = parse_one_target(p, with_namespace);
    bt_jinja_nodes nodes = {0};

    if (!bt_jinja_parse_at_op(p, ',')) {
        return first;
    }
    bt_jinja_nodes_add(p, &nodes, first);
    while (bt_jinja_parse_skip_op(p, ',') && !at_tuple_end(p, end) && !bt_jinja_parse_at_op(p, '=')) {
        bt_jinja_nodes_add(p, &nodes, parse_one_target(p, with_namespace));
    }
    return bt_jinja_parse_with_items(bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE), nodes);
}
