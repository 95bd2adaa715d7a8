// Operators, from the inline if down to **.
#include "common/text/jinja/parse.h"

bt_jinja_node *
bt_jinja_parse_constant(bt_jinja_parser *p, bt_jinja_value value)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_CONST);

    if (node != NULL) {
        node->constant = value;
    }
    return node;
}

bt_jinja_node *
bt_jinja_parse_pair(bt_jinja_parser *p, bt_jinja_node_kind kind, int op, bt_jinja_node *left, bt_jinja_node *right)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, kind);

    if (node != NULL) {
        node->op = op;
        node->a = left;
        node->b = right;
        node->line = left != NULL ? left->line : node->line;
    }
    return node;
}

bt_jinja_node *
bt_jinja_parse_with_items(bt_jinja_node *node, bt_jinja_nodes nodes)
{
    if (node != NULL) {
        node->items = nodes.items;
        node->count = nodes.count;
    }
    return node;
}

static bt_jinja_node *parse_or(bt_jinja_parser *p);

bt_jinja_node *
bt_jinja_parse_expression(bt_jinja_parser *p, bool with_if)
{
    bt_jinja_node *node;

    if (!bt_jinja_parse_enter(p)) {
        return NULL;
    }
    node = parse_or(p);
    while (with_if && bt_jinja_parse_skip_name(p, "if")) {
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_IF_ELSE, 0, node, parse_or(p));
        if (bt_jinja_parse_skip_name(p, "else") && node != NULL) {
            node->c = bt_jinja_parse_expression(p, true);
        }
    }
    bt_jinja_parse_leave(p);
    return node;
}

// The precedences from + to **, each level with its operators; all bind to the left.
static const int sums[] = {'+', '-', 0}, products[] = {'*', '/', BT_JINJA_OP('/', '/'), '%', 0},
                 powers[] = {BT_JINJA_OP('*', '*'), 0};

int
bt_jinja_parse_skip_one_of(bt_jinja_parser *p, const int *ops)
{
    for (; *ops != 0; ops++) {
        if (bt_jinja_parse_skip_op(p, *ops)) {
            return *ops;
        }
    }
    return 0;
}

static bt_jinja_node *
parse_power(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_unary(p, true);
    int op;

    while ((op = bt_jinja_parse_skip_one_of(p, powers)) != 0) {
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_BINARY, op, node, bt_jinja_parse_unary(p, true));
    }
    return node;
}

static bt_jinja_node *
parse_product(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_power(p);
    int op;

    while ((op = bt_jinja_parse_skip_one_of(p, products)) != 0) {
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_BINARY, op, node, parse_power(p));
    }
    return node;
}

static bt_jinja_node *
parse_concat(bt_jinja_parser *p)
{
    bt_jinja_node *first = parse_product(p), *node;
    bt_jinja_nodes operands = {0};

    if (!bt_jinja_parse_at_op(p, '~')) {
        return first;
    }
    node = bt_jinja_parse_node(p, BT_JINJA_NODE_CONCAT);
    bt_jinja_nodes_add(p, &operands, first);
    while (bt_jinja_parse_skip_op(p, '~')) {
        bt_jinja_nodes_add(p, &operands, parse_product(p));
    }
    return bt_jinja_parse_with_items(node, operands);
}

static bt_jinja_node *
parse_sum(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_concat(p);
    int op;

    while ((op = bt_jinja_parse_skip_one_of(p, sums)) != 0) {
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_BINARY, op, node, parse_concat(p));
    }
    return node;
}

static int
skip_comparison(bt_jinja_parser *p)
{
    static const int ops[] = {
        BT_JINJA_OP('=', '='), BT_JINJA_OP('!', '='), BT_JINJA_OP('<', '='), BT_JINJA_OP('>', '='), '<', '>', 0};
    int op = bt_jinja_parse_skip_one_of(p, ops);

    if (op != 0 || bt_jinja_parse_skip_name(p, "in")) {
        return op != 0 ? op : BT_JINJA_OP_IN;
    }
    if (bt_jinja_parse_at_name(p, "not") && p->token[1].kind == BT_JINJA_TOKEN_NAME &&
        bt_str_is(p->token[1].text, "in")) {
        p->token += 2;
        return BT_JINJA_OP_NOT_IN;
    }
    return 0;
}

static bt_jinja_node *
parse_compare(bt_jinja_parser *p)
{
    bt_jinja_node *first = parse_sum(p), *node;
    bt_jinja_nodes operands = {0};
    int op;

    while ((op = skip_comparison(p)) != 0) {
        bt_jinja_nodes_add(p, &operands, bt_jinja_parse_pair(p, BT_JINJA_NODE_OPERAND, op, parse_sum(p), NULL));
    }
    if (operands.count == 0) {
        return first;
    }
    node = bt_jinja_parse_pair(p, BT_JINJA_NODE_COMPARE, 0, first, NULL);
    return bt_jinja_parse_with_items(node, operands);
}

static bt_jinja_node *
parse_not(bt_jinja_parser *p)
{
    bt_jinja_node *node;

    if (!bt_jinja_parse_skip_name(p, "not")) {
        return parse_compare(p);
    }
    if (!bt_jinja_parse_enter(p)) {
        return NULL;
    }
    node = bt_jinja_parse_node(p, BT_JINJA_NODE_NOT);
    if (node != NULL) {
        node->a = parse_not(p);
    }
    bt_jinja_parse_leave(p);
    return node;
}

static bt_jinja_node *
parse_and(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_not(p);

    while (bt_jinja_parse_skip_name(p, "and")) {
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_AND, 0, node, parse_not(p));
    }
    return node;
}

static bt_jinja_node *
parse_or(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_and(p);

    while (bt_jinja_parse_skip_name(p, "or")) {
        node = bt_jinja_parse_pair(p, BT_JINJA_NODE_OR, 0, node, parse_and(p));
    }
    return node;
}
