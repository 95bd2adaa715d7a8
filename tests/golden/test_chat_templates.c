// Every chat template of the data folder, rendered over eleven conversations, against what Python's Jinja2 gave.
#include "tests/support/test.h"

#include "common/json/json.h"
#include "common/json/write.h"
#include "common/text/template.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    bt_json *cases;
    bt_template *compiled;
    bt_str name; // of the compiled one
    bt_json *row;
    int rows, wrong;
} golden;

static bt_json *
parse(bt_str text)
{
    bt_json *document = NULL;
    bt_why why;

    ck_assert_msg(bt_json_parse(&document, text, NULL, &why) == BT_OK, "%s", why.text);
    return document;
}

static bt_str
text_of(const bt_json_at *object, const char *key)
{
    bt_json_at at = bt_json_get(object, key);
    bt_str text = {NULL, 0};
    bt_why why;

    ck_assert_msg(bt_json_as_text(&at, &text, &why) == BT_OK, "%s", why.text);
    return text;
}

static bt_str
json_of(bt_buf *buf, const bt_json_at *object, const char *key)
{
    bt_json_at at = bt_json_get(object, key);

    bt_buf_init(buf, 1 << 20);
    if (bt_json_given(&at)) {
        bt_json_append_value(buf, &at);
    }
    return (bt_str){buf->data, buf->len};
}

// "x.jinja" is a file, "x.json#key" a member, "x.jsonl#3:name" a member of a line.
static void
compile_json(bt_template **out, bt_str text, const char *key, bt_why *why)
{
    bt_json *document = parse(text);
    bt_json_at root = bt_json_root(document);

    ck_assert_msg(bt_template_open(out, text_of(&root, key).data, why) == BT_OK, "%s: %s", key, why->text);
    bt_json_close(document);
}

static void
compile(golden *g, bt_str name)
{
    const char *hash = memchr(name.data, '#', name.len);
    size_t bytes, path = hash != NULL ? (size_t)(hash - name.data) : name.len;
    char *file = bt_test_read(bt_test_path("chat_templates/%.*s", (int)path, name.data), &bytes);
    bt_why why = {""};

    bt_template_close(g->compiled);
    g->compiled = NULL;
    if (hash == NULL) {
        ck_assert_msg(bt_template_open(&g->compiled, file, &why) == BT_OK, "%s: %s", name.data, why.text);
    } else if (strchr(hash, ':') == NULL) {
        compile_json(&g->compiled, (bt_str){file, bytes}, hash + 1, &why);
    } else {
        char *line = file;

        for (int i = atoi(hash + 1); i > 0; i--) {
            line = strchr(line, '\n') + 1;
        }
        compile_json(&g->compiled, (bt_str){line, strcspn(line, "\n")}, strchr(hash, ':') + 1, &why);
    }
    free(file);
}

static bt_json_at
find_case(const bt_json_at *cases, bt_str name)
{
    for (size_t i = 0; i < bt_json_count(cases); i++) {
        bt_json_at one = bt_json_item(cases, i);

        if (bt_str_equal(text_of(&one, "case"), name)) {
            return one;
        }
    }
    ck_abort_msg("no case %s", name.data);
}

// The members of a case beside its name, its messages and its tools are variables.
static bt_str
extra_of(bt_buf *buf, const bt_json_at *one)
{
    bt_json_writer w;
    bt_json_at member;
    void *step = NULL;

    bt_buf_init(buf, 1 << 20);
    bt_json_write(&w, buf);
    bt_json_begin_object(&w, NULL);
    while (bt_json_next(one, &step, &member)) {
        if (!bt_str_is(member.key, "case") && !bt_str_is(member.key, "messages") && !bt_str_is(member.key, "tools")) {
            bt_json_put_value(&w, member.key.data, &member);
        }
    }
    bt_json_end(&w);
    return (bt_str){buf->data, buf->len};
}

static bool
as_expected(const bt_json_at *row, bt_err err, const bt_buf *out, const bt_why *why)
{
    bt_json_at rendered = bt_json_get(row, "rendered"), raised = bt_json_get(row, "error");
    bt_str expected, text = {out->data, out->len};

    if (!bt_json_given(&rendered)) {
        // What a template raises reaches the caller word for word.
        bt_json_as_text(&raised, &expected, NULL);
        return err == BT_ERR_INVALID && (strncmp(expected.data, "TemplateError: ", 15) != 0 ||
                                         strncmp(why->text, expected.data + 15, expected.len - 15) == 0);
    }
    return err == BT_OK && bt_json_as_text(&rendered, &expected, NULL) == BT_OK && bt_str_equal(text, expected);
}

static void
report(golden *g, const bt_json_at *row, const bt_buf *out, const bt_why *why)
{
    bt_json_at rendered = bt_json_get(row, "rendered"), raised = bt_json_get(row, "error");
    bt_str expected = {"", 0};

    bt_json_as_text(bt_json_given(&rendered) ? &rendered : &raised, &expected, NULL);
    if (++g->wrong <= 5 || getenv("BT_TEST_ALL") != NULL) {
        printf("-- %s, case %s, generation prompt %d\n expected: %s\n got: %s%s\n", text_of(row, "template").data,
               text_of(row, "case").data, (int)bt_json_type_of(row), expected.data, out->len != 0 ? out->data : "",
               why->text);
    }
}

static void
check_row(golden *g, bt_str line)
{
    bt_json *document = parse(line);
    bt_json_at row = bt_json_root(document), cases = bt_json_root(g->cases),
               one = find_case(&cases, text_of(&row, "case"));
    bt_json_at generation = bt_json_get(&row, "add_generation_prompt");
    bt_buf messages, tools, extra, out;
    bt_template_input input = {
        .messages_json = json_of(&messages, &one, "messages"),
        .tools_json = json_of(&tools, &one, "tools"),
        .extra_json = extra_of(&extra, &one),
        .bos_token = bt_str_of("<s>"),
        .eos_token = bt_str_of("</s>"),
        .unk_token = bt_str_of("<unk>"),
        .pad_token = bt_str_of("<pad>"),
        .now = "2026-01-15 12:00:00",
    };
    bt_why why = {""};
    bt_err err;

    if (g->compiled == NULL || !bt_str_equal(g->name, text_of(&row, "template"))) {
        compile(g, text_of(&row, "template"));
    }
    ck_assert_int_eq(bt_json_as_bool(&generation, &input.add_generation_prompt, NULL), BT_OK);
    bt_buf_init(&out, 1 << 20);
    err = bt_template_render(g->compiled, &input, &out, &why);
    if (!as_expected(&row, err, &out, &why)) {
        report(g, &row, &out, &why);
    }
    bt_buf_fini(&out);
    bt_buf_fini(&messages);
    bt_buf_fini(&tools);
    bt_buf_fini(&extra);
    // The name that was compiled last belongs to its row.
    bt_json_close(g->row);
    g->row = document;
    g->name = text_of(&row, "template");
    g->rows++;
}

START_TEST(every_template_renders_what_jinja2_renders)
{
    golden g = {0};
    size_t bytes;
    char *cases, *rows;

    if (bt_test_data() == NULL) {
        bt_test_skip("chat templates: no data");
        return;
    }
    cases = bt_test_read(bt_test_path("chat_templates/jinja2_cases.json"), &bytes);
    g.cases = parse((bt_str){cases, bytes});
    rows = bt_test_read(bt_test_path("chat_templates/jinja2_expected.jsonl.gz"), NULL);
    for (char *line = rows; *line != 0;) {
        size_t len = strcspn(line, "\n");

        check_row(&g, (bt_str){line, len});
        line += len + (line[len] == '\n');
    }
    printf("%d of %d rows as expected\n", g.rows - g.wrong, g.rows);
    ck_assert_int_eq(g.rows, 2376);
    ck_assert_int_eq(g.wrong, 0);
    bt_template_close(g.compiled);
    bt_json_close(g.row);
    bt_json_close(g.cases);
    free(cases);
    free(rows);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("chat templates");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 300);
    tcase_add_test(all, every_template_renders_what_jinja2_renders);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
