// Statements.
#include "common/text/jinja/parse.h"

#define TREE_BYTES_MAX ((size_t)64 << 20)

static bt_jinja_node *parse_statement(bt_jinja_parser *p);

static void
expect_block_end(bt_jinja_parser *p)
{
    if (p->token->kind != BT_JINJA_TOKEN_BLOCK_END) {
        bt_jinja_parse_fail(p, "the end of the tag was expected");
        return;
    }
    p->token++;
}

static bool
at_end_tag(const bt_jinja_parser *p, const char *const *ends)
{
    if (p->token->kind != BT_JINJA_TOKEN_BLOCK || p->token[1].kind != BT_JINJA_TOKEN_NAME || ends == NULL) {
        return false;
    }
    for (; *ends != NULL; ends++) {
        if (bt_str_is(p->token[1].text, *ends)) {
            return true;
        }
    }
    return false;
}

static bt_jinja_node *
parse_print(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_PRINT);

    p->token++;
    if (node != NULL) {
        node->a = bt_jinja_parse_tuple(p, true, NULL);
    }
    if (p->token->kind != BT_JINJA_TOKEN_PRINT_END) {
        return bt_jinja_parse_fail(p, "'}}' was expected");
    }
    p->token++;
    return node;
}

static bt_jinja_node *
parse_data(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_DATA);

    if (node != NULL) {
        node->text = p->token->text;
        p->token++;
    }
    return node;
}

// Statements up to one of the end tags, whose "{%" and name it leaves behind it; `ends` is NULL for the whole template.
static bt_jinja_node *
parse_body(bt_jinja_parser *p, const char *const *ends)
{
    bt_jinja_node *body = bt_jinja_parse_node(p, BT_JINJA_NODE_BODY);
    bt_jinja_nodes nodes = {0};

    if (!bt_jinja_parse_enter(p)) {
        return NULL;
    }
    while (p->token != p->last && !at_end_tag(p, ends)) {
        bt_jinja_node *node = p->token->kind == BT_JINJA_TOKEN_DATA    ? parse_data(p)
                              : p->token->kind == BT_JINJA_TOKEN_PRINT ? parse_print(p)
                                                                       : parse_statement(p);

        bt_jinja_nodes_add(p, &nodes, node);
    }
    bt_jinja_parse_leave(p);
    if (p->token == p->last && ends != NULL) {
        return bt_jinja_parse_fail(p, "the template ends where '%s' was expected", ends[0]);
    }
    if (ends != NULL) {
        p->token += 2;
    }
    if (body != NULL) {
        body->items = nodes.items;
        body->count = nodes.count;
    }
    return body;
}

bt_jinja_node *
bt_jinja_parse_block(bt_jinja_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    bt_jinja_node *body;

    expect_block_end(p);
    body = parse_body(p, ends);
    expect_block_end(p);
    return body;
}

// The name of the end tag that parse_body stopped at.
static bool
ended_by(const bt_jinja_parser *p, const char *name)
{
    return p->err == BT_OK && bt_str_is(p->token[-1].text, name);
}

static bt_jinja_node *
parse_if(bt_jinja_parser *p)
{
    static const char *const ends[] = {"endif", "else", "elif", NULL}, *const last[] = {"endif", NULL};
    bt_jinja_node *first = NULL, **place = &first;

    do {
        bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_IF);

        if (node == NULL) {
            return NULL;
        }
        *place = node;
        node->a = bt_jinja_parse_tuple(p, false, NULL);
        expect_block_end(p);
        node->b = parse_body(p, ends);
        place = &node->c;
    } while (ended_by(p, "elif"));
    if (ended_by(p, "else")) {
        expect_block_end(p);
        *place = parse_body(p, last);
    }
    expect_block_end(p);
    return first;
}

static bt_jinja_node *
parse_for(bt_jinja_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_FOR);
    bt_jinja_nodes nodes = {0};

    if (node == NULL) {
        return NULL;
    }
    bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_target(p, "in", false));
    if (!bt_jinja_parse_skip_name(p, "in")) {
        return bt_jinja_parse_fail(p, "'in' was expected");
    }
    node->a = bt_jinja_parse_tuple(p, false, "recursive");
    bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_skip_name(p, "if") ? bt_jinja_parse_expression(p, true) : NULL);
    node->flag = bt_jinja_parse_skip_name(p, "recursive");
    node->items = nodes.items;
    node->count = nodes.count;
    expect_block_end(p);
    p->loops++;
    node->b = parse_body(p, ends);
    p->loops--;
    if (ended_by(p, "else")) {
        expect_block_end(p);
        node->c = parse_body(p, last);
    }
    expect_block_end(p);
    return node;
}

static bt_jinja_node *
parse_set(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_SET), *target;
    bt_jinja_nodes nodes = {0};

    if (node == NULL) {
        return NULL;
    }
    target = bt_jinja_parse_target(p, NULL, true);
    bt_jinja_nodes_add(p, &nodes, target);
    node->items = nodes.items;
    node->count = nodes.count;
    if (bt_jinja_parse_skip_op(p, '=')) {
        node->a = bt_jinja_parse_tuple(p, true, NULL);
        expect_block_end(p);
        return node;
    }
    node->kind = BT_JINJA_NODE_SET_BLOCK;
    node->b = bt_jinja_parse_filters(p, NULL, true);
    node->a = bt_jinja_parse_block(p, "endset");
    return node;
}

static bt_jinja_node *
parse_filter_block(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_FILTER_BLOCK);

    if (node != NULL) {
        node->a = bt_jinja_parse_filters(p, NULL, false);
        node->b = bt_jinja_parse_block(p, "endfilter");
    }
    return node;
}

static bt_jinja_node *
parse_with(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_WITH);
    bt_jinja_nodes nodes = {0};

    if (node == NULL) {
        return NULL;
    }
    while (p->token->kind != BT_JINJA_TOKEN_BLOCK_END && p->token != p->last) {
        if (nodes.count != 0) {
            bt_jinja_parse_expect_op(p, ',');
        }
        bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_target(p, NULL, false));
        bt_jinja_parse_expect_op(p, '=');
        bt_jinja_nodes_add(p, &nodes, bt_jinja_parse_expression(p, true));
    }
    node->items = nodes.items;
    node->count = nodes.count;
    node->a = bt_jinja_parse_block(p, "endwith");
    return node;
}

// A scope of its own and nothing else: {% block %}, of which nobody inherits here, and {% generation %}, with which
// trainers mark what to learn.
static bt_jinja_node *
parse_scope(bt_jinja_parser *p, bool named)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_WITH);

    if (node == NULL) {
        return NULL;
    }
    if (named) {
        bt_jinja_parse_expect_any_name(p);
    }
    expect_block_end(p);
    node->a =
        parse_body(p, named ? (const char *const[]){"endblock", NULL} : (const char *const[]){"endgeneration", NULL});
    if (named && p->token->kind == BT_JINJA_TOKEN_NAME) {
        p->token++;
    }
    expect_block_end(p);
    return node;
}

static bt_jinja_node *
parse_jump(bt_jinja_parser *p, bt_jinja_node_kind kind)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, kind);

    if (p->loops == 0) {
        return bt_jinja_parse_fail(p, "break or continue outside of a loop");
    }
    expect_block_end(p);
    return node;
}

// {% print a, b %} prints one after the other.
static bt_jinja_node *
parse_print_tag(bt_jinja_parser *p)
{
    bt_jinja_node *body = bt_jinja_parse_node(p, BT_JINJA_NODE_BODY);
    bt_jinja_nodes nodes = {0};

    do {
        bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_PRINT);

        if (node != NULL) {
            node->a = bt_jinja_parse_expression(p, true);
            bt_jinja_nodes_add(p, &nodes, node);
        }
    } while (bt_jinja_parse_skip_op(p, ','));
    expect_block_end(p);
    if (body != NULL) {
        body->items = nodes.items;
        body->count = nodes.count;
    }
    return body;
}

static bt_jinja_node *
parse_statement(bt_jinja_parser *p)
{
    bt_str name;

    if (p->token->kind != BT_JINJA_TOKEN_BLOCK) {
        return bt_jinja_parse_fail(p, "text, '{{' or '{%%' was expected");
    }
    p->token++;
    name = bt_jinja_parse_expect_any_name(p);
    return bt_str_is(name, "if")           ? parse_if(p)
           : bt_str_is(name, "for")        ? parse_for(p)
           : bt_str_is(name, "set")        ? parse_set(p)
           : bt_str_is(name, "macro")      ? bt_jinja_parse_macro(p)
           : bt_str_is(name, "call")       ? bt_jinja_parse_call_block(p)
           : bt_str_is(name, "filter")     ? parse_filter_block(p)
           : bt_str_is(name, "with")       ? parse_with(p)
           : bt_str_is(name, "block")      ? parse_scope(p, true)
           : bt_str_is(name, "generation") ? parse_scope(p, false)
           : bt_str_is(name, "break")      ? parse_jump(p, BT_JINJA_NODE_BREAK)
           : bt_str_is(name, "continue")   ? parse_jump(p, BT_JINJA_NODE_CONTINUE)
           : bt_str_is(name, "print")
               ? parse_print_tag(p)
               : bt_jinja_parse_fail(p, "unknown tag '%.*s'", (int)(name.len < 60 ? name.len : 60), name.data);
}

bt_err
bt_jinja_parse(bt_jinja_tree *tree, bt_str source, bt_why *why)
{
    bt_jinja_parser p = {.tree = tree, .why = why};
    bt_jinja_token *tokens = NULL;

    bt_arena_init(&tree->arena, TREE_BYTES_MAX);
    p.err = bt_jinja_lex(&tree->arena, source, &tokens, why);
    if (p.err == BT_OK) {
        p.token = p.last = tokens;
        while (p.last->kind != BT_JINJA_TOKEN_END) {
            p.last++;
        }
        tree->body = parse_body(&p, NULL);
        tree->loop_name = bt_jinja_tree_name(tree, bt_str_of("loop"));
    }
    if (p.err != BT_OK) {
        bt_jinja_tree_close(tree);
    }
    return p.err;
}

void
bt_jinja_tree_close(bt_jinja_tree *tree)
{
    bt_arena_fini(&tree->arena);
    *tree = (bt_jinja_tree){0};
}
