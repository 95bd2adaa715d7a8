// What follows an operand: attributes, indices, arguments, filters, tests.
#include "common/text/jinja/filters.h"
#include "common/text/jinja/parse.h"
#include "common/text/jinja/tests.h"

static bt_jinja_node *
parse_argument(bt_jinja_parser *p)
{
    static const int stars[] = {BT_JINJA_OP('*', '*'), '*', 0};
    int op = bt_jinja_parse_skip_one_of(p, stars);
    bt_jinja_node *node;

    if (op != 0) {
        return bt_jinja_parse_pair(p, BT_JINJA_NODE_SPREAD, op, bt_jinja_parse_expression(p, true), NULL);
    }
    if (p->token->kind == BT_JINJA_TOKEN_NAME && p->token[1].kind == BT_JINJA_TOKEN_OP && p->token[1].op == '=') {
        bt_str name = p->token->text;

        p->token += 2;
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_KEYWORD, 0, bt_jinja_parse_expression(p, true), NULL);
        if (node != NULL) {
            node->text = name;
        }
        return node;
    }
    return bt_jinja_parse_expression(p, true);
}

// Behind the opening bracket, to behind the closing one.
static bt_jinja_nodes
parse_arguments(bt_jinja_parser *p)
{
    bt_jinja_nodes nodes = {0};
    bool named = false;

    while (!bt_jinja_parse_at_op(p, ')') && p->token != p->last) {
        bt_jinja_node *node;

        if (nodes.count != 0) {
            bt_jinja_parse_expect_op(p, ',');
            if (bt_jinja_parse_at_op(p, ')')) {
                break;
            }
        }
        node = parse_argument(p);
        if (node != NULL && named && node->kind != BT_JINJA_NODE_KEYWORD && node->kind != BT_JINJA_NODE_SPREAD) {
            bt_jinja_parse_fail(p, "a positional argument follows a named one");
        }
        named = named || (node != NULL && node->kind == BT_JINJA_NODE_KEYWORD);
        bt_jinja_nodes_add(p, &nodes, node);
    }
    bt_jinja_parse_expect_op(p, ')');
    return nodes;
}

static bt_jinja_node *
parse_index(bt_jinja_parser *p)
{
    bt_jinja_node *parts[3] = {0}, *slice;
    int part = 0;

    if (!bt_jinja_parse_at_op(p, ':')) {
        parts[0] = bt_jinja_parse_expression(p, true);
        if (!bt_jinja_parse_at_op(p, ':')) {
            return parts[0];
        }
    }
    slice = bt_jinja_parse_node(p, BT_JINJA_NODE_SLICE);
    while (part < 2 && bt_jinja_parse_skip_op(p, ':')) {
        part++;
        if (!bt_jinja_parse_at_op(p, ']') && !bt_jinja_parse_at_op(p, ':') && !bt_jinja_parse_at_op(p, ',')) {
            parts[part] = bt_jinja_parse_expression(p, true);
        }
    }
    if (slice != NULL) {
        slice->a = parts[0];
        slice->b = parts[1];
        slice->c = parts[2];
    }
    return slice;
}

static bt_jinja_node *
parse_brackets(bt_jinja_parser *p, bt_jinja_node *object)
{
    bt_jinja_nodes nodes = {0};
    bt_jinja_node *index;

    while (!bt_jinja_parse_at_op(p, ']') && p->token != p->last) {
        if (nodes.count != 0) {
            bt_jinja_parse_expect_op(p, ',');
        }
        index = parse_index(p);
        if (nodes.count != 0 && index != NULL && index->kind == BT_JINJA_NODE_SLICE) {
            bt_jinja_parse_fail(p, "a slice among several indices");
        }
        bt_jinja_nodes_add(p, &nodes, index);
    }
    bt_jinja_parse_expect_op(p, ']');
    if (nodes.count == 1) {
        return bt_jinja_parse_pair(p, BT_JINJA_NODE_ITEM, 0, object, nodes.items[0]);
    }
    if (nodes.count != 0 && nodes.items[0] != NULL && nodes.items[0]->kind == BT_JINJA_NODE_SLICE) {
        bt_jinja_parse_fail(p, "a slice among several indices");
    }
    return bt_jinja_parse_pair(p, BT_JINJA_NODE_ITEM, 0, object,
                               bt_jinja_parse_with_items(bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE), nodes));
}

bt_jinja_node *
bt_jinja_parse_dot(bt_jinja_parser *p, bt_jinja_node *object)
{
    bt_jinja_node *node;

    if (p->token->kind == BT_JINJA_TOKEN_INT) {
        node = bt_jinja_parse_constant(p, bt_jinja_int(p->token->whole));
        p->token++;
        return bt_jinja_parse_pair(p, BT_JINJA_NODE_ITEM, 0, object, node);
    }
    node = bt_jinja_parse_pair(p, BT_JINJA_NODE_ATTRIBUTE, 0, object, NULL);
    if (node != NULL) {
        node->text = bt_jinja_parse_expect_any_name(p);
    }
    return node;
}

bt_jinja_node *
bt_jinja_parse_postfix(bt_jinja_parser *p, bt_jinja_node *node)
{
    for (;;) {
        if (bt_jinja_parse_skip_op(p, '.')) {
            node = bt_jinja_parse_dot(p, node);
        } else if (bt_jinja_parse_skip_op(p, '[')) {
            node = parse_brackets(p, node);
        } else if (bt_jinja_parse_skip_op(p, '(')) {
            bt_jinja_node *call = bt_jinja_parse_pair(p, BT_JINJA_NODE_CALL, 0, node, NULL);

            node = bt_jinja_parse_with_items(call, parse_arguments(p));
        } else {
            return node;
        }
    }
}

// A test's or filter's name may have dots, though none of ours has.
static bt_str
dotted_name(bt_jinja_parser *p)
{
    bt_str name = bt_jinja_parse_expect_any_name(p);

    while (bt_jinja_parse_skip_op(p, '.')) {
        bt_str more = bt_jinja_parse_expect_any_name(p);

        if (p->err == BT_OK) {
            name.len = (size_t)(more.data + more.len - name.data);
        }
    }
    return name;
}

bt_jinja_node *
bt_jinja_parse_filters(bt_jinja_parser *p, bt_jinja_node *subject, bool bar)
{
    while (!bar || bt_jinja_parse_skip_op(p, '|')) {
        bt_jinja_node *node = bt_jinja_parse_pair(p, BT_JINJA_NODE_FILTER, 0, subject, NULL);
        bt_str name = dotted_name(p);
        bt_jinja_nodes args = {0};

        if (bt_jinja_parse_skip_op(p, '(')) {
            args = parse_arguments(p);
        }
        if (node == NULL) {
            return NULL;
        }
        node->text = name;
        node->filter = bt_jinja_filter_find(name);
        subject = bt_jinja_parse_with_items(node, args);
        bar = true;
    }
    return subject;
}

// An argument without brackets, as in "x is divisibleby 3".
static bool
at_bare_argument(const bt_jinja_parser *p)
{
    switch (p->token->kind) {
    case BT_JINJA_TOKEN_NAME:
        return !bt_jinja_parse_at_name(p, "else") && !bt_jinja_parse_at_name(p, "or") &&
               !bt_jinja_parse_at_name(p, "and");
    case BT_JINJA_TOKEN_TEXT:
    case BT_JINJA_TOKEN_INT:
    case BT_JINJA_TOKEN_REAL:
        return true;
    default:
        return bt_jinja_parse_at_op(p, '[') || bt_jinja_parse_at_op(p, '{');
    }
}

static bt_jinja_node *
parse_test(bt_jinja_parser *p, bt_jinja_node *subject)
{
    bool negated = bt_jinja_parse_skip_name(p, "not");
    bt_jinja_node *node = bt_jinja_parse_pair(p, BT_JINJA_NODE_TEST, 0, subject, NULL), *outer;
    bt_str name = dotted_name(p);
    bt_jinja_nodes args = {0};

    if (bt_jinja_parse_skip_op(p, '(')) {
        args = parse_arguments(p);
    } else if (at_bare_argument(p)) {
        if (bt_jinja_parse_at_name(p, "is")) {
            return bt_jinja_parse_fail(p, "tests cannot be chained with 'is'");
        }
        bt_jinja_nodes_add(p, &args, bt_jinja_parse_postfix(p, bt_jinja_parse_primary(p)));
    }
    if (node == NULL) {
        return NULL;
    }
    node->text = name;
    node->test = bt_jinja_test_find(name);
    bt_jinja_parse_with_items(node, args);
    if (!negated) {
        return node;
    }
    outer = bt_jinja_parse_pair(p, BT_JINJA_NODE_NOT, 0, node, NULL);
    return outer;
}

bt_jinja_node *
bt_jinja_parse_unary(bt_jinja_parser *p, bool with_filter)
{
    static const int signs[] = {'-', '+', 0};
    bt_jinja_node *node;
    int op;

    if (!bt_jinja_parse_enter(p)) {
        return NULL;
    }
    op = bt_jinja_parse_skip_one_of(p, signs);
    node = op != 0 ? bt_jinja_parse_pair(p, BT_JINJA_NODE_SIGN, op, bt_jinja_parse_unary(p, false), NULL)
                   : bt_jinja_parse_primary(p);
    node = bt_jinja_parse_postfix(p, node);
    while (with_filter) {
        if (bt_jinja_parse_at_op(p, '|')) {
            node = bt_jinja_parse_filters(p, node, true);
        } else if (bt_jinja_parse_skip_name(p, "is")) {
            node = parse_test(p, node);
        } else if (bt_jinja_parse_at_op(p, '(')) {
            node = bt_jinja_parse_postfix(p, node);
        } else {
            break;
        }
    }
    bt_jinja_parse_leave(p);
    return node;
}
