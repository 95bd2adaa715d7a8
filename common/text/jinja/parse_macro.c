// Macros and call blocks.
#include "common/text/jinja/parse.h"

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
    macro->a = bt_jinja_parse_block(p, end);
    p->uses = uses;
    p->loops = loops;
}

bt_jinja_node *
bt_jinja_parse_macro(bt_jinja_parser *p)
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

bt_jinja_node *
bt_jinja_parse_call_block(bt_jinja_parser *p)
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
