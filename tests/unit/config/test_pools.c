// Pools of nodes in one file: which setting wins, what stands where, and files that are wrong.
#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/config/pools.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char name[16], zone[16];
    uint32_t size;
    bt_text_list tags;
} cat;

typedef struct {
    char name[16];
    uint32_t size, legs;
} dog;

static const bt_setting cats[] = {
    {"name", BT_SETTING_TEXT, offsetof(cat, name), 16, "", "Name.", 0, 0, NULL},
    {"zone", BT_SETTING_TEXT, offsetof(cat, zone), 16, "home", "Where.", 0, 0, NULL},
    {"body.size", BT_SETTING_COUNT, offsetof(cat, size), 0, "1", "Size.", 1, 9, NULL},
    {"tags", BT_SETTING_LIST, offsetof(cat, tags), 0, "a", "Tags.", 0, 0, NULL},
    {0},
};
static const bt_setting dogs[] = {
    {"name", BT_SETTING_TEXT, offsetof(dog, name), 16, "", "Name.", 0, 0, NULL},
    {"body.size", BT_SETTING_COUNT, offsetof(dog, size), 0, "5", "Size.", 1, 9, NULL},
    {"body.legs", BT_SETTING_COUNT, offsetof(dog, legs), 0, "4", "Legs.", 0, 4, NULL},
    {0},
};
static const bt_config_pool pools[] = {{"cats", cats, sizeof(cat), 3, .own = 1},
                                       {"dogs", dogs, sizeof(dog), 3, .own = 1}};
enum { CATS, DOGS };

static bt_config_tree *tree;
static bt_why why;

static bt_err
parse(const char *text)
{
    bt_config_tree_close(tree);
    tree = NULL;
    why.text[0] = 0;
    return bt_config_tree_parse(&tree, pools, 2, "f.yaml", bt_str_of(text), &why);
}

static void
must_parse(const char *text)
{
    ck_assert_msg(parse(text) == BT_OK, "%s", why.text);
}

static void
tear_down(void)
{
    bt_config_tree_close(tree);
    tree = NULL;
}

static const char *const zoo = "dogs:\n"
                               "  nodes:\n"
                               "    - {name: rex, body: {legs: 3}}\n"
                               "    - name: bo\n"
                               "  body: {size: 7}\n"
                               "cats:\n"
                               "  tags: [b, c]\n"
                               "  nodes:\n"
                               "    - {name: tom, tags: [], body: {size: ~}}\n"
                               "    - {name: kit, body: {size: 3}}\n"
                               "body: {size: 2}\n";

START_TEST(the_nearest_wins_wherever_it_stands_in_the_file)
{
    cat c;
    dog d;

    must_parse(zoo);
    ck_assert_uint_eq(bt_config_tree_nodes(tree, CATS), 2);
    ck_assert_uint_eq(bt_config_tree_nodes(tree, DOGS), 2);
    bt_config_tree_fill(tree, DOGS, 0, &d);
    ck_assert_str_eq(d.name, "rex");
    ck_assert_uint_eq(d.size, 7); // the pool's, over the file's, which stands after it
    ck_assert_uint_eq(d.legs, 3);
    bt_config_tree_fill(tree, DOGS, 1, &d);
    ck_assert_uint_eq(d.legs, 4);
    bt_config_tree_fill(tree, CATS, 0, &c);
    ck_assert_uint_eq(c.size, 2);       // ~ says nothing
    ck_assert_uint_eq(c.tags.count, 0); // an empty list says something
    bt_config_tree_fill(tree, CATS, 1, &c);
    ck_assert_uint_eq(c.size, 3);
    ck_assert_uint_eq(c.tags.count, 2);
    ck_assert_str_eq(c.tags.items[1], "c");
    ck_assert_str_eq(c.zone, "home");
}
END_TEST

START_TEST(a_set_is_nearest_and_of_one_node_only)
{
    dog d;

    must_parse(zoo);
    ck_assert_int_eq(bt_config_tree_set(tree, DOGS, 0, "body.legs=1", &why), BT_OK);
    ck_assert_int_eq(bt_config_tree_set(tree, DOGS, 0, "body.legs=2", &why), BT_OK);
    bt_config_tree_fill(tree, DOGS, 0, &d);
    ck_assert_uint_eq(d.legs, 2); // the last of them
    bt_config_tree_fill(tree, DOGS, 1, &d);
    ck_assert_uint_eq(d.legs, 4);
    ck_assert_int_eq(bt_config_tree_set(tree, DOGS, 0, "body.legs=5", &why), BT_ERR_INVALID);
    ck_assert_int_eq(bt_config_tree_set(tree, DOGS, 0, "body.leg=1", &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "did you mean \"body.legs\"?"));
    ck_assert_int_eq(bt_config_tree_set(tree, DOGS, 0, "zone=x", &why), BT_ERR_INVALID);
}
END_TEST

START_TEST(a_failure_points_at_where_the_value_came_from)
{
    must_parse(zoo);
    ck_assert_int_eq(bt_config_tree_fail(tree, CATS, 1, "body.size", &why, "too %s", "small"), BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "f.yaml:10:32: too small"); // the node's
    bt_config_tree_fail(tree, CATS, 0, "body.size", &why, "x");
    ck_assert_str_eq(why.text, "f.yaml:11:14: x"); // the file's: the node's says nothing
    bt_config_tree_fail(tree, DOGS, 0, "body.size", &why, "x");
    ck_assert_str_eq(why.text, "f.yaml:5:16: x"); // the pool's
    bt_config_tree_fail(tree, CATS, 1, "zone", &why, "x");
    ck_assert_str_eq(why.text, "f.yaml:10:7: x"); // nobody's: the node
    bt_config_tree_fail(tree, CATS, 2, NULL, &why, "x");
    ck_assert_str_eq(why.text, "f.yaml:1:1: x"); // no such node: the file
    ck_assert_int_eq(bt_config_tree_set(tree, CATS, 1, "zone=y", &why), BT_OK);
    bt_config_tree_fail(tree, CATS, 1, "zone", &why, "x");
    ck_assert_str_eq(why.text, "--set zone: x");
    ck_assert_uint_eq(bt_config_tree_line(tree, DOGS, 1, "name"), 4);
}
END_TEST

START_TEST(wrong_files_are_told_where)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"cats:\n  zonk: x\n", "f.yaml:2:3: unknown setting \"zonk\"; did you mean \"zone\"?"},
        {"legs: 3\n", "f.yaml:1:1: unknown setting \"legs\"; did you mean \"body.legs\"?"},
        {"cats:\n  body: {legs: 3}\n", "f.yaml:2:10: \"body.legs\" is a setting of dogs, not of cats"},
        {"body: {size: 10}\n", "f.yaml:1:14: body.size: 10 is not within 1 and 9"},
        {"dogs: {nodes: [{body: {legs: x}}]}\n", "f.yaml:1:30: body.legs: \"x\" is not a number"},
        {"cats: {nodes: [{tags: {a: b}}]}\n", "f.yaml:1:23: tags: expected a list"},
        {"cats: {nodes: [{zone: [a]}]}\n", "f.yaml:1:23: zone: expected one value"},
        {"name: x\n", "f.yaml:1:1: \"name\" is each node's own: expected under dogs: nodes:"},
        {"cats: {name: x}\n", "f.yaml:1:8: \"name\" is each node's own: expected under cats: nodes:"},
        {"cats: 3\n", "f.yaml:1:7: expected settings of this pool, and its nodes"},
        {"cats: {nodes: 3}\n", "f.yaml:1:15: nodes: expected a list of nodes"},
        {"cats: {nodes: [[]]}\n", "f.yaml:1:16: expected a node"},
        {"cats: {nodes: [{}, {}, {}, {}]}\n", "f.yaml:1:28: too many nodes"},
        {"cats: {nodes: [], nodes: []}\n", "f.yaml:1:19: these nodes are given twice"},
        {"cats: {}\ncats: {}\n", "f.yaml:2:1: this pool is given twice"},
        {"cats: {zone: a, nodes: [], zone: b}\n", "f.yaml:1:28: this setting is given twice"},
        {"cats: {nodes: [{nodes: []}]}\n", "unknown setting \"nodes\""},
        {"nodes: []\n", "unknown setting \"nodes\""},
        {"cats: {cats: {}}\n", "unknown setting \"cats\""},
        {"cats: {nodes: [{name: &a x}]}\n", "anchors"},
        {"cats: {nodes: [{name: x}\n", "f.yaml:"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(parse(cases[i].text) == BT_ERR_INVALID, "%s is accepted", cases[i].text);
        ck_assert_msg(strstr(why.text, cases[i].words) != NULL, "%s says %s", cases[i].text, why.text);
        ck_assert_ptr_null(tree);
    }
    must_parse("cats:\ndogs: {nodes: }\n");
    must_parse("");
    ck_assert_uint_eq(bt_config_tree_nodes(tree, CATS), 0);
}
END_TEST

START_TEST(what_is_printed_reads_back_the_same_and_says_nothing_twice)
{
    cat c[3] = {0};
    dog d[3] = {0};
    const void *const values[] = {c, d};
    uint32_t counts[] = {2, 2};
    bt_buf first, second;

    must_parse(zoo);
    for (int round = 0; round < 2; round++) {
        bt_buf *out = round == 0 ? &first : &second;

        for (uint32_t i = 0; i < 2; i++) {
            bt_config_tree_fill(tree, CATS, i, &c[i]);
            bt_config_tree_fill(tree, DOGS, i, &d[i]);
        }
        bt_buf_init(out, 1 << 16);
        bt_config_tree_print(pools, 2, values, counts, out);
        bt_buf_append_char(out, 0);
        ck_assert(!out->failed);
        must_parse(out->data);
    }
    ck_assert_str_eq(first.data, second.data);
    ck_assert_msg(strstr(first.data, "zone: \"home\"\n") != NULL, "%s", first.data);
    ck_assert_ptr_null(strstr(strstr(first.data, "zone") + 1, "zone"));
    bt_buf_fini(&first);
    bt_buf_fini(&second);
}
END_TEST

START_TEST(any_failing_allocation_is_reported_and_leaks_nothing)
{
    long live = bt_mem_live(), refused = 0;
    bt_err err = BT_ERR_NO_MEMORY;

    for (long nth = 1; err != BT_OK; nth++) {
        bt_mem_fail_nth(nth);
        err = parse(zoo);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        ck_assert(err == BT_OK || bt_mem_live() == live);
        refused += err != BT_OK;
    }
    ck_assert_int_gt(refused, 5);
    tear_down();
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("pools");
    TCase *tests = tcase_create("pools");

    tcase_add_checked_fixture(tests, NULL, tear_down);
    tcase_add_test(tests, the_nearest_wins_wherever_it_stands_in_the_file);
    tcase_add_test(tests, a_set_is_nearest_and_of_one_node_only);
    tcase_add_test(tests, a_failure_points_at_where_the_value_came_from);
    tcase_add_test(tests, wrong_files_are_told_where);
    tcase_add_test(tests, what_is_printed_reads_back_the_same_and_says_nothing_twice);
    tcase_add_test(tests, any_failing_allocation_is_reported_and_leaks_nothing);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
