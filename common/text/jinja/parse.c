#include "common/text/jinja/parse.h"

#include <stdarg.h>
#include <stdio.h>

#define DEPTH_MAX 200
#define TREE_BYTES_MAX ((size_t)64 << 20)

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

// Behind the opening tag of a block with one end tag: its body, and the rest of the end tag.
static bt_jinja_node *
parse_block(bt_jinja_parser *p, const char *end)
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
    node->a = parse_block(p, "endset");
    return node;
}

static void
parse_parameters(bt_jinja_parser *p, bt_jinja_node *macro)
{
    bt_jinja_nodes nodes = {0};
    bool defaults = false;

    bt_jinja_parse_expect_op(p, '(');
    while (!bt_jinja_parse_at_op(p, ')') && p->token != p->last) {
        bt_jinja_node *node;

        if (nodes.count != 0) {
            bt_jinja_parse_expect_op(p, ',');
        }
        if ((node = bt_jinja_parse_node(p, BT_JINJA_NODE_PARAMETER)) == NULL) {
            return;
        }
        node->text = bt_jinja_parse_expect_any_name(p);
        node->name = bt_jinja_parse_intern(p, node->text);
        if (bt_jinja_parse_skip_op(p, '=')) {
            node->a = bt_jinja_parse_expression(p, true);
            defaults = true;
        } else if (defaults) {
            bt_jinja_parse_fail(p, "a parameter without a default follows one with it");
        }
        bt_jinja_nodes_add(p, &nodes, node);
    }
    bt_jinja_parse_expect_op(p, ')');
    macro->items = nodes.items;
    macro->count = nodes.count;
}

// The body of a macro or of a call block, in which outer loops cannot be left.
static void
parse_macro_body(bt_jinja_parser *p, bt_jinja_node *macro, const char *end)
{
    uint8_t *uses = p->uses;
    unsigned loops = p->loops;

    p->uses = &macro->uses;
    p->loops = 0;
    macro->a = parse_block(p, end);
    p->uses = uses;
    p->loops = loops;
}

static bt_jinja_node *
parse_macro(bt_jinja_parser *p)
{
    bt_jinja_node *macro = bt_jinja_parse_node(p, BT_JINJA_NODE_MACRO);

    if (macro == NULL) {
        return NULL;
    }
    macro->text = bt_jinja_parse_expect_any_name(p);
    macro->name = bt_jinja_parse_intern(p, macro->text);
    parse_parameters(p, macro);
    // The numbers of the names that calling it may bind.
    bt_jinja_parse_intern(p, bt_str_of("caller"));
    bt_jinja_parse_intern(p, bt_str_of("varargs"));
    bt_jinja_parse_intern(p, bt_str_of("kwargs"));
    parse_macro_body(p, macro, "endmacro");
    return macro;
}

static bt_jinja_node *
parse_call_block(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_CALL_BLOCK),
                  *macro = bt_jinja_parse_node(p, BT_JINJA_NODE_MACRO);

    if (node == NULL || macro == NULL) {
        return NULL;
    }
    macro->text = bt_str_of("caller");
    macro->name = bt_jinja_parse_intern(p, macro->text);
    if (bt_jinja_parse_at_op(p, '(')) {
        parse_parameters(p, macro);
    }
    node->a = bt_jinja_parse_expression(p, true);
    node->b = macro;
    if (node->a != NULL && node->a->kind != BT_JINJA_NODE_CALL) {
        return bt_jinja_parse_fail(p, "a call was expected");
    }
    parse_macro_body(p, macro, "endcall");
    return node;
}

static bt_jinja_node *
parse_filter_block(bt_jinja_parser *p)
{
    bt_jinja_node *node = bt_jinja_parse_node(p, BT_JINJA_NODE_FILTER_BLOCK);

    if (node != NULL) {
        node->a = bt_jinja_parse_filters(p, NULL, false);
        node->b = parse_block(p, "endfilter");
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
    node->a = parse_block(p, "endwith");
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
           : bt_str_is(name, "macro")      ? parse_macro(p)
           : bt_str_is(name, "call")       ? parse_call_block(p)
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
