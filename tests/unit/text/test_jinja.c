// The Jinja interpreter: what it prints, against Jinja2 on cases of our own, and where it stops.
#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/json/json.h"
#include "common/json/write.h"
#include "common/text/template.h"

#include <stdlib.h>

// Renders `source`; the text, or what went wrong, is in `out`.
static bt_err
render(const char *source, const bt_template_input *input, bt_buf *out)
{
    bt_template *compiled = NULL;
    bt_why why = {"nothing said"};
    bt_err err = bt_template_open(&compiled, source, &why);

    bt_buf_init(out, 1 << 22);
    if (err == BT_OK) {
        err = bt_template_render(compiled, input, out, &why);
    }
    if (err != BT_OK) {
        ck_assert_uint_eq(out->len, 0);
        bt_buf_append_text(out, why.text);
    }
    bt_template_close(compiled);
    return err;
}

static const bt_template_input hello = {
    .messages_json = {"[{\"role\":\"user\",\"content\":\"Hi\"}]", 32},
    .add_generation_prompt = true,
    .bos_token = {"<s>", 3},
    .now = "2026-01-15 12:00:00",
};

static void
expect(const char *source, const char *expected)
{
    bt_buf out;
    bt_err err = render(source, &hello, &out);

    ck_assert_msg(err == BT_OK, "%s: %s", source, out.data);
    ck_assert_str_eq(out.data != NULL ? out.data : "", expected);
    bt_buf_fini(&out);
}

// Under limits below the defaults, so that reaching them is quick.
static void
expect_fault(const char *source, bt_err wanted, const char *words)
{
    static const bt_template_limits limits = {.steps = 2000000, .memory_bytes = 16u << 20, .output_bytes = 4u << 20};
    bt_template_input input = hello;
    bt_err err;
    bt_buf out;

    input.limits = &limits;
    err = render(source, &input, &out);

    ck_assert_msg(err == wanted, "%.300s: %s, %.300s", source, bt_err_name(err), out.data);
    ck_assert_msg(strstr(out.data, words) != NULL, "%.300s: %.300s", source, out.data);
    bt_buf_fini(&out);
}

START_TEST(chatml_is_rendered_when_a_model_has_no_template)
{
    expect(bt_template_chatml, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}
END_TEST

static void
check_case(const bt_json_at *row, bt_str variables)
{
    bt_template_input input = {
        .messages_json = {"[]", 2}, .extra_json = variables, .bos_token = {"<s>", 3}, .now = "2026-01-15 12:00:00"};
    bt_json_at source = bt_json_get(row, "source"), rendered = bt_json_get(row, "rendered");
    bt_str text, expected;
    bt_err err;
    bt_buf out;

    ck_assert_int_eq(bt_json_as_text(&source, &text, NULL), BT_OK);
    err = render(text.data, &input, &out);
    if (bt_json_as_text(&rendered, &expected, NULL) == BT_OK) {
        ck_assert_msg(err == BT_OK, "%s: %s", text.data, out.data);
        ck_assert_str_eq(out.data != NULL ? out.data : "", expected.data);
    } else {
        ck_assert_msg(err == BT_ERR_INVALID, "%s: %s %s", text.data, bt_err_name(err),
                      out.data != NULL ? out.data : "");
    }
    bt_buf_fini(&out);
}

START_TEST(small_cases_come_out_as_from_jinja2)
{
    char *lines = bt_test_read("tests/data/jinja/cases.jsonl", NULL);
    bt_buf variables;
    int count = 0;

    bt_buf_init(&variables, 1 << 20);
    for (char *line = lines; *line != 0; line += strcspn(line, "\n") + 1, count++) {
        bt_json *document = NULL;
        bt_json_at root, vars;

        ck_assert_int_eq(bt_json_parse(&document, (bt_str){line, strcspn(line, "\n")}, NULL, NULL), BT_OK);
        root = bt_json_root(document);
        vars = bt_json_get(&root, "vars");
        if (bt_json_given(&vars)) {
            bt_json_append_value(&variables, &vars);
        } else {
            check_case(&root, (bt_str){variables.data, variables.len});
        }
        bt_json_close(document);
    }
    ck_assert_int_gt(count, 200);
    bt_buf_fini(&variables);
    free(lines);
}
END_TEST

START_TEST(a_fault_names_its_line)
{
    expect_fault("a\nb\n{{ 1 / 0 }}", BT_ERR_INVALID, "template line 3: division by zero");
    expect_fault("a\n{% if %}", BT_ERR_INVALID, "template line 2: an expression was expected");
    expect_fault("{# c\n\n #}{% for x in y %}", BT_ERR_INVALID,
                 "template line 3: the template ends where 'endfor' was expected");
    expect_fault("{{ 'a\n\n' }}\n{{ x.y }}", BT_ERR_INVALID, "template line 4: 'x' is undefined");
    expect_fault("\n{{ 'a }}", BT_ERR_INVALID, "template line 2: a string is not closed");
    expect_fault("{% include 'x' %}", BT_ERR_INVALID, "template line 1: unknown tag 'include'");
    expect_fault("a\xff", BT_ERR_INVALID, "not UTF-8 at byte 1");
}
END_TEST

START_TEST(what_a_template_raises_comes_back_in_its_own_words)
{
    expect_fault("\n{{ raise_exception('No system role, please') }}", BT_ERR_INVALID,
                 "No system role, please (template line 2)");
}
END_TEST

START_TEST(the_request_sets_variables_but_not_the_conversation)
{
    bt_template_input input = hello;
    bt_buf out;

    input.extra_json = bt_str_of("{\"messages\":[],\"tools\":[1],\"add_generation_prompt\":false,\"documents\":[2],"
                                 "\"bos_token\":\"B\",\"enable_thinking\":false}");
    ck_assert_int_eq(render("{{ messages|length }}{{ tools }}{{ add_generation_prompt }}{{ documents }}{{ bos_token }}"
                            "{{ enable_thinking }}{{ eos_token is defined }}",
                            &input, &out),
                     BT_OK);
    ck_assert_str_eq(out.data, "1NoneTrue[2]BFalseFalse");
    bt_buf_fini(&out);
}
END_TEST

START_TEST(broken_json_is_refused_by_name)
{
    bt_template_input input = hello;
    bt_buf out;

    input.messages_json = bt_str_of("[{]");
    ck_assert_int_eq(render("x", &input, &out), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(out.data, "messages: line 1, column 3"));
    bt_buf_fini(&out);
    input.messages_json = bt_str_of("{}");
    ck_assert_int_eq(render("x", &input, &out), BT_ERR_INVALID);
    ck_assert_str_eq(out.data, "messages: expected an array");
    bt_buf_fini(&out);
}
END_TEST

START_TEST(steps_end_what_would_take_for_ever)
{
    expect_fault("{% for i in range(10**9) %}{% endfor %}", BT_ERR_INVALID, "range too big");
    expect_fault("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", BT_ERR_TOO_LONG,
                 "steps");
    expect_fault("{% set s = 'ab' * 10**6 %}{% for i in range(99999) %}{{ 'zz' in s }}{% endfor %}", BT_ERR_TOO_LONG,
                 "steps");
    expect_fault("{% set l = range(99999)|list %}{% for i in range(99999) %}{{ -1 in l }}{% endfor %}", BT_ERR_TOO_LONG,
                 "steps");
    expect_fault(
        "{% set l = range(99999)|list %}{% for i in range(99999) %}{% set x = l == range(99999)|list %}{% endfor %}",
        BT_ERR_TOO_LONG, "more ");
    expect_fault("{% set s = ' ' * 10**6 %}{% for i in range(99999) %}{% set x = s.strip() %}{% endfor %}",
                 BT_ERR_TOO_LONG, "steps");
    expect_fault("{% set s = 'a' * 10**6 %}{% for i in range(99999) %}{% set x = s[-1] %}{% endfor %}", BT_ERR_TOO_LONG,
                 "steps");
}
END_TEST

START_TEST(memory_ends_what_would_fill_it)
{
    expect_fault("{{ 'a' * 10**9 }}", BT_ERR_TOO_LONG, "memory");
    expect_fault("{{ [1] * 10**9 }}", BT_ERR_TOO_LONG, "memory");
    expect_fault("{{ 'abc' * 9223372036854775807 }}", BT_ERR_TOO_LONG, "memory");
    expect_fault(
        "{{ '%9999s' % 1 }}{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        BT_ERR_TOO_LONG, "memory");
    expect_fault("{{ 'a'.ljust(10**12) }}", BT_ERR_TOO_LONG, "memory");
    expect_fault("{% set s = 'a' * 10**6 %}{{ s.replace('', s) }}", BT_ERR_TOO_LONG, "memory");
    expect_fault("{% set s = 'a' * 10**6 %}{{ [s] * 200 }}", BT_ERR_TOO_LONG, "memory");
    expect_fault("{{ 'x'|indent(10**10, true) }}", BT_ERR_TOO_LONG, "memory");
    expect_fault("{{ [1]|tojson(indent=10**10) }}", BT_ERR_TOO_LONG, "memory");
}
END_TEST

START_TEST(output_ends_at_its_limit_however_it_is_captured)
{
    expect_fault("{% set s = 'a' * 10**6 %}{% for i in range(99) %}{{ s }}{% endfor %}", BT_ERR_TOO_LONG, "output");
    expect_fault("{% set s = 'a' * 10**6 %}{% macro m(n) %}{{ s }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
                 BT_ERR_TOO_LONG, "output");
    expect_fault("{% set s = 'a' * 1500000 %}{% set t %}{{ s }}{% set u %}{{ s }}{% set v %}{{ s }}{% set w %}{{ s }}"
                 "{% endset %}{% endset %}{% endset %}{% endset %}",
                 BT_ERR_TOO_LONG, "output");
}
END_TEST

START_TEST(depth_ends_what_nests_without_end)
{
    char deep[4096], source[5000];

    expect_fault("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", BT_ERR_TOO_LONG, "depth");
    expect_fault("{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
                 BT_ERR_TOO_LONG, "depth");
    expect_fault("{% set n = namespace() %}{% set n.n = n %}{{ n }}", BT_ERR_TOO_LONG, "depth");
    expect_fault(
        "{% set n = namespace(l=[1], k=[1]) %}{% for i in range(1000) %}{% set n.l = [n.l] %}{% set n.k = [n.k] %}"
        "{% endfor %}{{ n.l == n.k }}",
        BT_ERR_TOO_LONG, "depth");
    expect_fault("{% for x in [[]] recursive %}{{ loop([1]) }}{% endfor %}", BT_ERR_TOO_LONG, "depth");
    memcpy(deep, "{% filter e", 11);
    for (size_t i = 11; i + 8 < sizeof deep; i += 2) {
        memcpy(deep + i, "|e", 3);
    }
    strcat(deep, "%}");
    memcpy(source, deep, sizeof deep);
    strcat(source, "x{% endfilter %}");
    expect_fault(source, BT_ERR_TOO_LONG, "depth");
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{ ", 3);
    deep[sizeof deep - 1] = 0;
    expect_fault(deep, BT_ERR_INVALID, "nested too deep");
    memset(deep, '-', sizeof deep);
    memcpy(deep, "{{ ", 3);
    memcpy(deep + sizeof deep - 6, " 1 }}", 6);
    expect_fault(deep, BT_ERR_TOO_LONG, "nested deeper");
    for (size_t i = 0; i + 4 < sizeof deep; i += 4) {
        memcpy(deep + i, "not ", 5);
    }
    memcpy(deep, "{{ ", 3);
    memcpy(deep + sizeof deep - 8, "1 }}", 5);
    expect_fault(deep, BT_ERR_TOO_LONG, "nested deeper");
}
END_TEST

START_TEST(limits_can_be_set_tighter)
{
    bt_template_limits limits = {.output_bytes = 5};
    bt_template_input input = hello;
    bt_buf out;

    input.limits = &limits;
    ck_assert_int_eq(render("12345", &input, &out), BT_OK);
    bt_buf_fini(&out);
    ck_assert_int_eq(render("123456", &input, &out), BT_ERR_TOO_LONG);
    bt_buf_fini(&out);
    limits = (bt_template_limits){.steps = 100};
    ck_assert_int_eq(render("{% for i in range(200) %}{% endfor %}", &input, &out), BT_ERR_TOO_LONG);
    bt_buf_fini(&out);
    limits = (bt_template_limits){.depth = 3};
    ck_assert_int_eq(render("{{ [[[1]]] }}", &input, &out), BT_ERR_TOO_LONG);
    bt_buf_fini(&out);
    limits = (bt_template_limits){.memory_bytes = 20000};
    ck_assert_int_eq(render("{{ 'a' * 20000 }}", &input, &out), BT_ERR_TOO_LONG);
    bt_buf_fini(&out);
}
END_TEST

START_TEST(a_prompt_that_does_not_fit_leaves_the_buffer_as_it_was)
{
    bt_template *compiled = NULL;
    bt_buf out;

    ck_assert_int_eq(bt_template_open(&compiled, "123456", NULL), BT_OK);
    bt_buf_init(&out, 8);
    bt_buf_append_text(&out, "abc");
    ck_assert_int_eq(bt_template_render(compiled, &hello, &out, NULL), BT_ERR_TOO_LONG);
    ck_assert_str_eq(out.data, "abc");
    ck_assert(!out.failed);
    bt_buf_fini(&out);
    bt_template_close(compiled);
}
END_TEST

START_TEST(every_failing_allocation_is_an_error_and_leaks_nothing)
{
    const char *source =
        "{% macro m(x) %}{{ x|tojson }}{% endmacro %}{% set ns = namespace(a=[1]) %}"
        "{% for m1 in messages|sort(attribute='role') %}{{ m({'k': m1.content}) ~ '%s' % 'x' }}{% endfor %}";
    long live = bt_mem_live();
    bt_err err = BT_ERR_NO_MEMORY;
    int nth = 1;

    for (; err != BT_OK && nth < 10000; nth++) {
        bt_template *compiled = NULL;
        bt_buf out;

        bt_buf_init(&out, 1000);
        bt_mem_fail_nth(nth);
        err = bt_template_open(&compiled, source, NULL);
        err = err != BT_OK ? err : bt_template_render(compiled, &hello, &out, NULL);
        bt_mem_fail_nth(0);
        bt_template_close(compiled);
        bt_buf_fini(&out);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    ck_assert_int_gt(nth, 10);
    ck_assert_int_eq(err, BT_OK);
}
END_TEST

START_TEST(a_text_built_bit_by_bit_costs_no_square)
{
    bt_template_limits limits = {.memory_bytes = 16u << 20};
    bt_template_input input = hello;
    bt_buf out;

    // 20,000 additions to a text that ends at 200 kB: copying it each time would take 2 GB.
    input.limits = &limits;
    ck_assert_int_eq(render("{% set n = namespace(s='') %}{% for i in range(20000) %}{% set n.s = n.s + '0123456789' %}"
                            "{% endfor %}{{ n.s|length }}",
                            &input, &out),
                     BT_OK);
    ck_assert_str_eq(out.data, "200000");
    bt_buf_fini(&out);
}
END_TEST

START_TEST(a_macro_remembers_the_turn_of_the_loop_that_it_was_made_in)
{
    expect("{% set n = namespace() %}{% for i in [1, 2, 3] %}{% macro m() %}{{ i }}{% endmacro %}{% if i == 1 %}{% set "
           "n.m = m %}"
           "{% endif %}{% endfor %}{{ n.m() }}",
           "1");
    expect("{% for i in range(99999) %}{% set x = i %}{% endfor %}{% for i in range(99999) %}{% set y = x %}{% endfor "
           "%}done",
           "done");
}
END_TEST

START_TEST(texts_that_share_bytes_do_not_overwrite_one_another)
{
    expect("{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{% set d = b ~ '3' %}{{ a }} {{ b }} {{ c "
           "}} {{ d }}",
           "xy xy1 xy2 xy13");
    expect("{% set a = 'long enough to have room' ~ '!' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{% set d = b ~ b "
           "%}{{ a }}|{{ b }}|{{ c }}|{{ d }}",
           "long enough to have room!|long enough to have room!1|long enough to have room!2|"
           "long enough to have room!1long enough to have room!1");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("jinja");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, chatml_is_rendered_when_a_model_has_no_template);
    tcase_add_test(all, small_cases_come_out_as_from_jinja2);
    tcase_add_test(all, a_fault_names_its_line);
    tcase_add_test(all, what_a_template_raises_comes_back_in_its_own_words);
    tcase_add_test(all, the_request_sets_variables_but_not_the_conversation);
    tcase_add_test(all, broken_json_is_refused_by_name);
    tcase_add_test(all, steps_end_what_would_take_for_ever);
    tcase_add_test(all, memory_ends_what_would_fill_it);
    tcase_add_test(all, output_ends_at_its_limit_however_it_is_captured);
    tcase_add_test(all, depth_ends_what_nests_without_end);
    tcase_add_test(all, limits_can_be_set_tighter);
    tcase_add_test(all, a_prompt_that_does_not_fit_leaves_the_buffer_as_it_was);
    tcase_add_test(all, every_failing_allocation_is_an_error_and_leaks_nothing);
    tcase_add_test(all, a_text_built_bit_by_bit_costs_no_square);
    tcase_add_test(all, a_macro_remembers_the_turn_of_the_loop_that_it_was_made_in);
    tcase_add_test(all, texts_that_share_bytes_do_not_overwrite_one_another);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
