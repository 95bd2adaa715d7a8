#include "tests/support/test.h"

#include "common/config/config.h"

#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char listen[32];
    uint32_t threads, format;
    size_t body;
    bt_time idle;
    double share;
    bool exact;
    bt_text_list keys;
} config_type;

static const char *const formats[] = {"int8", "f16", "f32", NULL};

static const bt_setting table[] = {
    {"listen", BT_SETTING_TEXT, offsetof(config_type, listen), 32, "127.0.0.1:8080", "Where to listen.", 0, 0, NULL},
    {"threads", BT_SETTING_COUNT, offsetof(config_type, threads), 0, "2", "Threads.", 1, 64, NULL},
    {"kv.format", BT_SETTING_WORD, offsetof(config_type, format), 0, "int8", "Format.", 0, 0, formats},
    {"http.body_bytes", BT_SETTING_BYTES, offsetof(config_type, body), 0, "8M", "Largest body.", 0, 0, NULL},
    {"http.idle_time", BT_SETTING_TIME, offsetof(config_type, idle), 0, "60s", "Idle.", 0, 600, NULL},
    {"engine.share", BT_SETTING_REAL, offsetof(config_type, share), 0, "0.5", "Share.", 0, 1, NULL},
    {"engine.exact", BT_SETTING_BOOL, offsetof(config_type, exact), 0, "false", "Exact.", 0, 0, NULL},
    {"auth.keys", BT_SETTING_LIST, offsetof(config_type, keys), 0, "", "Keys.", 0, 0, NULL},
    {0},
};

static config_type config;
static bt_why why;

static void
set_up(void)
{
    memset(&config, 0xff, sizeof config);
    bt_config_init(table, &config);
}

static bt_err
parse(const char *text)
{
    return bt_config_parse(table, &config, "c.yaml", bt_str_of(text), &why);
}

START_TEST(defaults_are_what_the_table_says)
{
    ck_assert_str_eq(config.listen, "127.0.0.1:8080");
    ck_assert_uint_eq(config.threads, 2);
    ck_assert_uint_eq(config.format, 0);
    ck_assert_uint_eq(config.body, 8 << 20);
    ck_assert_int_eq(config.idle, 60 * BT_SECOND);
    ck_assert_double_eq(config.share, 0.5);
    ck_assert(!config.exact);
    ck_assert_uint_eq(config.keys.count, 0);
}
END_TEST

START_TEST(file_fills_in_what_it_names)
{
    ck_assert_msg(parse("# a comment\nlisten: '*:80'\nkv: {format: f16}\nhttp:\n  body_bytes: 64K\n  idle_time: 250ms\n"
                        "engine:\n  share: 0.25\n  exact: true\nauth:\n  keys: [a, \"b c\"]\nthreads: ~\n") == BT_OK,
                  "%s", why.text);
    ck_assert_str_eq(config.listen, "*:80");
    ck_assert_uint_eq(config.threads, 2);
    ck_assert_uint_eq(config.format, 1);
    ck_assert_uint_eq(config.body, 65536);
    ck_assert_int_eq(config.idle, 250 * BT_MILLISECOND);
    ck_assert_double_eq(config.share, 0.25);
    ck_assert(config.exact);
    ck_assert_uint_eq(config.keys.count, 2);
    ck_assert_str_eq(config.keys.items[1], "b c");
    ck_assert_int_eq(parse(""), BT_OK);
    ck_assert_int_eq(parse("---\n...\n"), BT_OK);
}
END_TEST

START_TEST(errors_say_where_and_what)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"threads: 2\nlisten:\n  - x\n", "c.yaml:3:3: listen: expected one value"},
        {"threads: x\n", "c.yaml:1:10: threads: \"x\" is not a number"},
        {"threads: 65\n", "c.yaml:1:10: threads: 65 is not within 1 and 64"},
        {"threads: 1.5\n", "whole number"},
        {"threads: 0x10\n", "is not a number"},
        {"threds: 2\n", "c.yaml:1:1: unknown setting \"threds\"; did you mean \"threads\"?"},
        {"format: f16\n", "did you mean \"kv.format\"?"},
        {"http:\n  idel_time: 3s\n",
         "c.yaml:2:3: unknown setting \"http.idel_time\"; did you mean \"http.idle_time\"?"},
        {"zzzzzzzzzzzzzz: 2\n", "unknown setting \"zzzzzzzzzzzzzz\""},
        {"kv: {format: f64}\n", "is none of int8, f16, f32"},
        {"http: {body_bytes: 8Q}\n", "a size such as"},
        {"http: {body_bytes: -1}\n", "in range"},
        {"http: {idle_time: 700s}\n", "not within 0 and 600"},
        {"engine: {exact: yes}\n", "true or false"},
        {"engine: 3\n", "expected settings of this section"},
        {"engine.exact: true\nengine: {exact: true}\n", "given twice"},
        {"threads: 1\nthreads: 2\n", "c.yaml:2:1: this setting is given twice"},
        {"listen: 0123456789012345678901234567890123456789\n", "longer than 31 bytes"},
        {"auth: {keys: [[a]]}\n", "a list of plain values"},
        {"listen: &a x\nthreads: *a\n", "anchors"},
        {"listen: !!str x\n", "tags"},
        {"threads: 1\n---\nthreads: 2\n", "only one document"},
        {"- a\n", "c.yaml:1:1: expected settings"},
        {"threads: [1\n", "c.yaml:"},
        {"threads: \"a\n", "c.yaml:"},
        {"\xff\xfe\x41", "c.yaml:"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(parse(cases[i].text) != BT_OK, "%s is accepted", cases[i].text);
        ck_assert_msg(strstr(why.text, cases[i].words) != NULL, "%s says %s", cases[i].text, why.text);
    }
}
END_TEST

START_TEST(pairs_set_single_values)
{
    ck_assert_int_eq(bt_config_set_pair(table, &config, "kv.format=f32", &why), BT_OK);
    ck_assert_uint_eq(config.format, 2);
    ck_assert_int_eq(bt_config_set_pair(table, &config, "auth.keys=a,b=c,d", &why), BT_OK);
    ck_assert_uint_eq(config.keys.count, 3);
    ck_assert_str_eq(config.keys.items[1], "b=c");
    ck_assert_int_eq(bt_config_set_pair(table, &config, "listen=", &why), BT_OK);
    ck_assert_str_eq(config.listen, "");
    ck_assert_int_eq(bt_config_set_pair(table, &config, "kv.format", &why), BT_ERR_INVALID);
    ck_assert_int_eq(bt_config_set_pair(table, &config, "kv.formal=f32", &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "did you mean \"kv.format\"?"));
}
END_TEST

START_TEST(printed_config_reads_back_the_same)
{
    config_type again;
    bt_buf out;

    ck_assert_int_eq(parse("listen: \"a\\\"b\\\\ \\x01\xc3\xa9#: '\"\nthreads: 3\nkv: {format: f32}\n"
                           "http: {body_bytes: 1000, idle_time: 1.5ms}\nengine: {share: 0.1, exact: true}\n"
                           "auth: {keys: ['x, y', \"\"]}\n"),
                     BT_OK);
    bt_buf_init(&out, 1 << 16);
    bt_config_print(table, &config, &out);
    memset(&again, 0, sizeof again);
    bt_config_init(table, &again);
    ck_assert_msg(bt_config_parse(table, &again, "printed", (bt_str){out.data, out.len}, &why) == BT_OK, "%s\n%s",
                  why.text, out.data);
    ck_assert_str_eq(again.listen, config.listen);
    ck_assert_uint_eq(again.threads, 3);
    ck_assert_uint_eq(again.format, 2);
    ck_assert_uint_eq(again.body, 1000);
    ck_assert_int_eq(again.idle, 1500 * BT_MICROSECOND);
    ck_assert_double_eq(again.share, 0.1);
    ck_assert(again.exact);
    ck_assert_mem_eq(&again.keys, &config.keys, sizeof again.keys);
    ck_assert_ptr_nonnull(strstr(out.data, "# Format. One of int8, f16, f32.\n"));
    bt_buf_fini(&out);
}
END_TEST

START_TEST(missing_file_is_named)
{
    ck_assert_int_eq(bt_config_read_file(table, &config, "/nowhere/c.yaml", &why), BT_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "/nowhere/c.yaml"));
}
END_TEST

// The cases of yaml-test-suite: none crashes the reader, and those that are no YAML are refused.
START_TEST(yaml_test_suite_is_survived)
{
    char folder[] = "/tmp/bt-yaml-XXXXXX", command[1200], line[512];
    unsigned cases = 0, errors = 0;
    FILE *list;

    if (bt_test_data() == NULL || access(bt_test_path("malformed/yaml/yaml-test-suite-data.tar.gz"), R_OK) != 0) {
        bt_test_skip("yaml-test-suite: no ../shared/data");
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(command, sizeof command, "tar xzf %s -C %s && find %s -name in.yaml",
             bt_test_path("malformed/yaml/yaml-test-suite-data.tar.gz"), folder, folder);
    ck_assert_ptr_nonnull(list = popen(command, "r"));
    while (fgets(line, sizeof line, list) != NULL) {
        size_t bytes;
        char *text, *slash;
        bt_err err;

        line[strcspn(line, "\n")] = 0;
        text = bt_test_read(line, &bytes);
        why.text[0] = 0;
        err = bt_config_parse(table, &config, "case", (bt_str){text, bytes}, &why);
        ck_assert_msg(err == BT_OK || strncmp(why.text, "case:", 5) == 0, "%s: %s", line, why.text);
        slash = strrchr(line, '/');
        snprintf(slash, 8, "/error");
        if (access(line, F_OK) == 0) {
            ck_assert_msg(err != BT_OK, "%s is accepted", line);
            errors++;
        }
        cases++;
        free(text);
    }
    pclose(list);
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    ck_assert_uint_eq(cases, 402);
    ck_assert_uint_eq(errors, 94);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("config");
    TCase *tests = tcase_create("config");

    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_test(tests, defaults_are_what_the_table_says);
    tcase_add_test(tests, file_fills_in_what_it_names);
    tcase_add_test(tests, errors_say_where_and_what);
    tcase_add_test(tests, pairs_set_single_values);
    tcase_add_test(tests, printed_config_reads_back_the_same);
    tcase_add_test(tests, missing_file_is_named);
    tcase_add_test(tests, yaml_test_suite_is_survived);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
