#include "common/text/jinja/filters.h"
#include "common/text/jinja/parse.h"
#include "common/text/jinja/tests.h"

static bt_jinja_node *parse_unary(bt_jinja_parser *p, bool with_filter);
static bt_jinja_node *parse_primary(bt_jinja_parser *p);

static bt_jinja_node *
constant(bt_jinja_parser *p, bt_jinja_value value)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_CONST);

    if (node != NULL) {
        node->constant = value;
    }
    return node;
}

static bt_jinja_node *
pair(bt_jinja_parser *p, bt_jinja_node_kind kind, int op, bt_jinja_node *left, bt_jinja_node *right)
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

static bt_jinja_node *
with_items(bt_jinja_node *node, bt_jinja_nodes nodes)
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
        node = pair(p, BT_JINJA_NODE_IF_ELSE, 0, node, parse_or(p));
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

static int
skip_one_of(bt_jinja_parser *p, const int *ops)
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
    bt_jinja_node *node = parse_unary(p, true);
    int op;

    while ((op = skip_one_of(p, powers)) != 0) {
        node = pair(p, BT_JINJA_NODE_BINARY, op, node, parse_unary(p, true));
    }
    return node;
}

static bt_jinja_node *
parse_product(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_power(p);
    int op;

    while ((op = skip_one_of(p, products)) != 0) {
        node = pair(p, BT_JINJA_NODE_BINARY, op, node, parse_power(p));
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
    return with_items(node, operands);
}

static bt_jinja_node *
parse_sum(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_concat(p);
    int op;

    while ((op = skip_one_of(p, sums)) != 0) {
        node = pair(p, BT_JINJA_NODE_BINARY, op, node, parse_concat(p));
    }
    return node;
}

static int
skip_comparison(bt_jinja_parser *p)
{
    static const int ops[] = {
        BT_JINJA_OP('=', '='), BT_JINJA_OP('!', '='), BT_JINJA_OP('<', '='), BT_JINJA_OP('>', '='), '<', '>', 0};
    int op = skip_one_of(p, ops);

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
        bt_jinja_nodes_add(p, &operands, pair(p, BT_JINJA_NODE_OPERAND, op, parse_sum(p), NULL));
    }
    if (operands.count == 0) {
        return first;
    }
    node = pair(p, BT_JINJA_NODE_COMPARE, 0, first, NULL);
    return with_items(node, operands);
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
        node = pair(p, BT_JINJA_NODE_AND, 0, node, parse_not(p));
    }
    return node;
}

static bt_jinja_node *
parse_or(bt_jinja_parser *p)
{
    bt_jinja_node *node = parse_and(p);

    while (bt_jinja_parse_skip_name(p, "or")) {
        node = pair(p, BT_JINJA_NODE_OR, 0, node, parse_and(p));
    }
    return node;
}

static bt_jinja_node *
parse_argument(bt_jinja_parser *p)
{
    static const int stars[] = {BT_JINJA_OP('*', '*'), '*', 0};
    int op = skip_one_of(p, stars);
    bt_jinja_node *node;

    if (op != 0) {
        return pair(p, BT_JINJA_NODE_SPREAD, op, bt_jinja_parse_expression(p, true), NULL);
    }
    if (p->token->kind == BT_JINJA_TOKEN_NAME && p->token[1].kind == BT_JINJA_TOKEN_OP && p->token[1].op == '=') {
        bt_str name = p->token->text;

        p->token += 2;
        node = pair(p, BT_JINJA_NODE_KEYWORD, 0, bt_jinja_parse_expression(p, true), NULL);
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
        return pair(p, BT_JINJA_NODE_ITEM, 0, object, nodes.items[0]);
    }
    if (nodes.count != 0 && nodes.items[0] != NULL && nodes.items[0]->kind == BT_JINJA_NODE_SLICE) {
        bt_jinja_parse_fail(p, "a slice among several indices");
    }
    return pair(p, BT_JINJA_NODE_ITEM, 0, object, with_items(bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE), nodes));
}

static bt_jinja_node *
parse_dot(bt_jinja_parser *p, bt_jinja_node *object)
{
    bt_jinja_node *node;

    if (p->token->kind == BT_JINJA_TOKEN_INT) {
        node = constant(p, bt_jinja_int(p->token->whole));
        p->token++;
        return pair(p, BT_JINJA_NODE_ITEM, 0, object, node);
    }
    node = pair(p, BT_JINJA_NODE_ATTRIBUTE, 0, object, NULL);
    if (node != NULL) {
        node->text = bt_jinja_parse_expect_any_name(p);
    }
    return node;
}

static bt_jinja_node *
parse_postfix(bt_jinja_parser *p, bt_jinja_node *node)
{
    for (;;) {
        if (bt_jinja_parse_skip_op(p, '.')) {
            node = parse_dot(p, node);
        } else if (bt_jinja_parse_skip_op(p, '[')) {
            node = parse_brackets(p, node);
        } else if (bt_jinja_parse_skip_op(p, '(')) {
            bt_jinja_node *call = pair(p, BT_JINJA_NODE_CALL, 0, node, NULL);

            node = with_items(call, parse_arguments(p));
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
        bt_jinja_node *node = pair(p, BT_JINJA_NODE_FILTER, 0, subject, NULL);
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
        subject = with_items(node, args);
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
    bt_jinja_node *node = pair(p, BT_JINJA_NODE_TEST, 0, subject, NULL), *outer;
    bt_str name = dotted_name(p);
    bt_jinja_nodes args = {0};

    if (bt_jinja_parse_skip_op(p, '(')) {
        args = parse_arguments(p);
    } else if (at_bare_argument(p)) {
        if (bt_jinja_parse_at_name(p, "is")) {
            return bt_jinja_parse_fail(p, "tests cannot be chained with 'is'");
        }
        bt_jinja_nodes_add(p, &args, parse_postfix(p, parse_primary(p)));
    }
    if (node == NULL) {
        return NULL;
    }
    node->text = name;
    node->test = bt_jinja_test_find(name);
    with_items(node, args);
    if (!negated) {
        return node;
    }
    outer = pair(p, BT_JINJA_NODE_NOT, 0, node, NULL);
    return outer;
}

static bt_jinja_node *
parse_unary(bt_jinja_parser *p, bool with_filter)
{
    static const int signs[] = {'-', '+', 0};
    bt_jinja_node *node;
    int op;

    if (!bt_jinja_parse_enter(p)) {
        return NULL;
    }
    op = skip_one_of(p, signs);
    node = op != 0 ? pair(p, BT_JINJA_NODE_SIGN, op, parse_unary(p, false), NULL) : parse_primary(p);
    node = parse_postfix(p, node);
    while (with_filter) {
        if (bt_jinja_parse_at_op(p, '|')) {
            node = bt_jinja_parse_filters(p, node, true);
        } else if (bt_jinja_parse_skip_name(p, "is")) {
            node = parse_test(p, node);
        } else if (bt_jinja_parse_at_op(p, '(')) {
            node = parse_postfix(p, node);
        } else {
            break;
        }
    }
    bt_jinja_parse_leave(p);
    return node;
}

static bt_jinja_node *
parse_name(bt_jinja_parser *p)
{
    bt_str name = p->token->text;
    bt_jinja_node *node;

    p->token++;
    if (bt_str_is(name, "true") || bt_str_is(name, "True")) {
        return constant(p, bt_jinja_bool(true));
    }
    if (bt_str_is(name, "false") || bt_str_is(name, "False")) {
        return constant(p, bt_jinja_bool(false));
    }
    if (bt_str_is(name, "none") || bt_str_is(name, "None")) {
        return constant(p, bt_jinja_none());
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
    return constant(p, bt_jinja_text(text));
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
    return with_items(node, nodes);
}

static bt_jinja_node *
parse_primary(bt_jinja_parser *p)
{
    const bt_jinja_token *token = p->token;
    bt_jinja_node *node;

    switch (token->kind) {
    case BT_JINJA_TOKEN_NAME:
        return parse_name(p);
    case BT_JINJA_TOKEN_TEXT:
        return parse_texts(p);
    case BT_JINJA_TOKEN_INT:
        p->token++;
        return constant(p, bt_jinja_int(token->whole));
    case BT_JINJA_TOKEN_REAL:
        p->token++;
        return constant(p, bt_jinja_real(token->real));
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
    return with_items(bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE), nodes);
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
        node = parse_name(p);
    }
    if (node == NULL || node->kind != BT_JINJA_NODE_NAME) {
        return bt_jinja_parse_fail(p, "a name to assign to was expected");
    }
    return with_namespace && bt_jinja_parse_skip_op(p, '.') ? parse_dot(p, node) : node;
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
    return with_items(bt_jinja_parse_node(p, BT_JINJA_NODE_TUPLE), nodes);
}
