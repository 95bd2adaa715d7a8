#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/json/json.h"
#include "common/json/write.h"

#include <dirent.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bt_json *
parsed(const char *text)
{
    bt_json *document = NULL;
    bt_why why = {""};

    ck_assert_msg(bt_json_parse(&document, bt_str_of(text), NULL, &why) == BT_OK, "%s: %s", text, why.text);
    return document;
}

START_TEST(an_error_names_line_column_and_byte)
{
    bt_json *document = NULL;
    bt_why why;

    ck_assert_int_eq(bt_json_parse(&document, bt_str_of("{\"a\": 1,\n \"b\": tru}"), NULL, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "line 2, column 9 (byte 18)"));
    ck_assert_ptr_null(document);
    ck_assert_int_eq(bt_json_parse(&document, (bt_str){NULL, 0}, NULL, &why), BT_ERR_INVALID);
}
END_TEST

START_TEST(getters_name_the_field)
{
    bt_json *document = parsed("{\"messages\":[{},{},{\"role\":7}],\"n\":3,\"t\":2.5}");
    bt_json_at root = bt_json_root(document), messages = bt_json_get(&root, "messages");
    bt_json_at message = bt_json_item(&messages, 2), role = bt_json_get(&message, "role");
    bt_json_at first = bt_json_item(&messages, 0), missing = bt_json_get(&first, "role"), n = bt_json_get(&root, "n");
    bt_str text = {"kept", 4};
    int64_t whole = -1;
    double real = 0;
    bt_why why;

    ck_assert_int_eq(bt_json_as_text(&role, &text, &why), BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "messages[2].role: expected a string, got a number");
    ck_assert_str_eq(text.data, "kept");
    ck_assert_int_eq(bt_json_as_text(&missing, &text, &why), BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "messages[0].role: missing, expected a string");
    ck_assert_int_eq(bt_json_as_int(&n, 4, 9, &whole, &why), BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "n: 3 is not within 4 and 9");
    ck_assert_int_eq(bt_json_as_int(&n, 0, 9, &whole, &why), BT_OK);
    ck_assert_int_eq(whole, 3);
    ck_assert_int_eq(bt_json_as_real(&n, 0, 9, &real, &why), BT_OK);
    ck_assert_double_eq(real, 3);
    ck_assert_int_eq(bt_json_maybe_int(&root, "t", 0, 9, &whole, &why), BT_ERR_INVALID);
    ck_assert_int_eq(bt_json_maybe_int(&root, "absent", 0, 9, &whole, &why), BT_OK);
    ck_assert_int_eq(bt_json_as_object(&messages, &why), BT_ERR_INVALID);
    bt_json_path(&root, why.text, sizeof why.text);
    ck_assert_str_eq(why.text, "the document");
    bt_json_close(document);
}
END_TEST

START_TEST(a_path_too_long_for_its_place_is_cut_at_a_step)
{
    bt_json *document = parsed("{\"aaaaaaaaaa\":{\"bbbbbbbbbb\":[1]}}");
    bt_json_at root = bt_json_root(document), a = bt_json_get(&root, "aaaaaaaaaa"), b = bt_json_get(&a, "bbbbbbbbbb");
    bt_json_at item = bt_json_item(&b, 0);
    char path[16];

    bt_json_path(&item, path, sizeof path);
    ck_assert_str_eq(path, ".bbbbbbbbbb[0]");
    bt_json_close(document);
}
END_TEST

START_TEST(objects_keep_their_order_and_the_last_duplicate_wins)
{
    bt_json *document = parsed("{\"z\":1,\"a\":2,\"z\":3,\"m\\u0000\":4}");
    bt_json_at root = bt_json_root(document);
    bt_json_limits strict = {.refuse_duplicates = true};
    bt_json *refused = NULL;
    bt_why why;
    bt_buf out;

    bt_buf_init(&out, 1000);
    bt_json_append_value(&out, &root);
    ck_assert_str_eq(out.data, "{\"z\":3,\"a\":2,\"m\xef\xb7\x90\":4}");
    bt_buf_fini(&out);
    bt_json_close(document);
    ck_assert_int_eq(bt_json_parse(&refused, bt_str_of("{\"z\":1,\"z\":3}"), &strict, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "duplicate"));
}
END_TEST

START_TEST(limits_of_bytes_depth_and_integers_hold)
{
    bt_json_limits limits = {.bytes_max = 10, .depth_max = 3};
    bt_json *document = NULL;
    bt_why why;

    ck_assert_int_eq(bt_json_parse(&document, bt_str_of("[[[1]]]"), &limits, &why), BT_OK);
    bt_json_close(document);
    ck_assert_int_eq(bt_json_parse(&document, bt_str_of("[[[[1]]]]"), &limits, &why), BT_ERR_TOO_LONG);
    ck_assert_str_eq(why.text, "byte 3: nested deeper than 3");
    ck_assert_int_eq(bt_json_parse(&document, bt_str_of("[\"[[\\\"[\"]"), &limits, &why), BT_OK);
    bt_json_close(document);
    ck_assert_int_eq(bt_json_parse(&document, bt_str_of("\"123456789\""), &limits, &why), BT_ERR_TOO_LONG);
    ck_assert_int_eq(bt_json_parse(&document, bt_str_of("1e999"), NULL, &why), BT_ERR_INVALID);
}
END_TEST

START_TEST(an_integer_beyond_int64_is_a_real_and_refused_as_an_integer)
{
    bt_json *document =
        parsed("{\"a\":1000000000000000019884624838656,\"b\":[-9223372036854775808,-9223372036854775809],"
               "\"9223372036854775808\":1.99999999999999999999e2}");
    bt_json_at root = bt_json_root(document), a = bt_json_get(&root, "a"), b = bt_json_get(&root, "b");
    bt_json_at least = bt_json_item(&b, 0), less = bt_json_item(&b, 1), c = bt_json_get(&root, "9223372036854775808");
    int64_t whole = 7;
    double real;
    bt_why why;

    ck_assert_int_eq(bt_json_as_int(&a, INT64_MIN, INT64_MAX, &whole, &why), BT_ERR_INVALID);
    ck_assert_str_eq(why.text, "a: expected an integer, got a number");
    ck_assert_int_eq(bt_json_as_real(&a, 0, 1e40, &real, &why), BT_OK);
    ck_assert_double_eq(real, 1e30);
    ck_assert_int_eq(bt_json_type_of(&less), BT_JSON_REAL);
    ck_assert_int_eq(bt_json_as_real(&least, -1e30, 0, &real, &why), BT_OK);
    ck_assert_double_eq(real, -0x1p63);
    ck_assert_int_eq(bt_json_as_real(&c, 0, 1e3, &real, &why), BT_OK);
    ck_assert_double_eq(real, 200);
    bt_json_close(document);
}
END_TEST

START_TEST(every_failing_allocation_is_an_error_and_leaks_nothing)
{
    const char *text = "{\"a\":[1,2.5,\"text\",{\"b\\u0000\":null}],\"c\":true}";
    long live = bt_mem_live();
    bt_err err = BT_ERR_NO_MEMORY;
    int nth = 1;

    for (; err != BT_OK && nth < 1000; nth++) {
        bt_json *document = NULL;

        bt_mem_fail_nth(nth);
        err = bt_json_parse(&document, bt_str_of(text), NULL, NULL);
        bt_mem_fail_nth(0);
        bt_json_close(document);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    ck_assert_int_gt(nth, 5);
    ck_assert_int_eq(err, BT_OK);
}
END_TEST

START_TEST(the_writer_separates_escapes_and_nests)
{
    bt_json_writer w;
    bt_buf out;

    bt_buf_init(&out, 1000);
    bt_json_write(&w, &out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "text", (bt_str){"\"\\\n\x01\xc3\xa9\xff\0/", 9});
    bt_json_begin_array(&w, "list");
    bt_json_put_int(&w, NULL, INT64_MIN);
    bt_json_put_real(&w, NULL, 0.1);
    bt_json_put_real(&w, NULL, NAN);
    bt_json_put_bool(&w, NULL, false);
    bt_json_begin_object(&w, NULL);
    bt_json_end(&w);
    bt_json_end(&w);
    bt_json_put_raw(&w, "raw", bt_str_of("[1]"));
    bt_json_put_null(&w, "none");
    bt_json_put_text(&w, "empty", (bt_str){0});
    bt_json_end(&w);
    ck_assert_str_eq(out.data,
                     "{\"text\":\"\\\"\\\\\\n\\u0001\xc3\xa9\xef\xbf\xbd\\u0000/\",\"list\":[-9223372036854775808,"
                     "0.1,null,false,{}],\"raw\":[1],\"none\":null,\"empty\":\"\"}");
    bt_buf_fini(&out);
}
END_TEST

START_TEST(reals_are_as_short_as_can_be_and_read_back_in_every_locale)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{1, "1.0"},
                 {0.1, "0.1"},
                 {-0.0, "-0.0"},
                 {1e16, "1e+16"},
                 {1e15, "1000000000000000.0"},
                 {123456.75, "123456.75"},
                 {0.0001, "0.0001"},
                 {1e-5, "1e-05"},
                 {1.0 / 3, "0.3333333333333333"},
                 {5e-324, "5e-324"},
                 {1.5e300, "1.5e+300"},
                 {2.0 / 3e5, "6.666666666666667e-06"}};
    char text[BT_REAL_TEXT_BYTES];
    bt_rng rng;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bt_real_text(cases[i].value, text);
        ck_assert_str_eq(text, cases[i].text);
    }
    rng.state = 7;
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = bt_rng_next(&rng);
        double value;

        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) {
            ck_assert_uint_lt(bt_real_text(value, text), BT_REAL_TEXT_BYTES);
            ck_assert_double_eq(strtod(text, NULL), value);
        }
    }
    if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL) {
        bt_real_text(0.5, text);
        ck_assert_str_eq(text, "0.5");
        setlocale(LC_ALL, "C");
    }
}
END_TEST

static void
check_file(const char *folder, const char *name)
{
    size_t bytes;
    char path[1024], *text;
    bt_json *document = NULL;
    bt_why why = {""};
    bt_err err;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    text = bt_test_read(path, &bytes);
    err = bt_json_parse(&document, (bt_str){text, bytes}, NULL, &why);
    if (name[0] == 'y') {
        ck_assert_msg(err == BT_OK, "%s: %s", name, why.text);
    } else if (name[0] == 'n') {
        ck_assert_msg(err != BT_OK, "%s: was accepted", name);
    }
    bt_json_close(document);
    free(text);
}

START_TEST(the_json_test_suite_is_judged_as_it_says)
{
    char folder[64] = "/tmp/baton-json-XXXXXX", command[1200], parsing[512];
    struct dirent *entry;
    int count = 0;
    DIR *dir;

    if (bt_test_data() == NULL) {
        bt_test_skip("JSONTestSuite: no data");
        return;
    }
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(command, sizeof command, "tar -xzf '%s' -C %s && find %s -name '*.json' -exec cp -n {} %s \\;",
             bt_test_path("malformed/json/JSONTestSuite.tar.gz"), folder, folder, folder);
    (void)!system(command);
    snprintf(parsing, sizeof parsing, "%s", folder);
    dir = opendir(parsing);
    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        if (strchr("yni", entry->d_name[0]) != NULL && entry->d_name[1] == '_') {
            check_file(parsing, entry->d_name);
            count++;
        }
    }
    closedir(dir);
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(count, 318);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("json");
    TCase *all = tcase_create("all");

    tcase_add_test(all, an_error_names_line_column_and_byte);
    tcase_add_test(all, getters_name_the_field);
    tcase_add_test(all, a_path_too_long_for_its_place_is_cut_at_a_step);
    tcase_add_test(all, objects_keep_their_order_and_the_last_duplicate_wins);
    tcase_add_test(all, limits_of_bytes_depth_and_integers_hold);
    tcase_add_test(all, an_integer_beyond_int64_is_a_real_and_refused_as_an_integer);
    tcase_add_test(all, every_failing_allocation_is_an_error_and_leaks_nothing);
    tcase_add_test(all, the_writer_separates_escapes_and_nests);
    tcase_add_test(all, reals_are_as_short_as_can_be_and_read_back_in_every_locale);
    tcase_add_test(all, the_json_test_suite_is_judged_as_it_says);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
