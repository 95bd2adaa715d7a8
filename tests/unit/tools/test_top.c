// What `baton top` makes of what it reads: addresses, scrapes, pictures. Against real programs: tests/e2e/test_top.py.
#include "common/json/json.h"
#include "tests/support/test.h"
#include "tools/top/get.h"
#include "tools/top/scrape.h"
#include "tools/top/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bt_buf out;

static void
setup(void)
{
    bt_buf_init(&out, 1 << 20);
}

static void
teardown(void)
{
    bt_buf_fini(&out);
}

START_TEST(addresses_are_taken_as_people_write_them)
{
    static const struct {
        const char *url, *host, *port;
    } cases[] = {{"http://127.0.0.1:8080", "127.0.0.1", "8080"},
                 {"r1:9100/v1", "r1", "9100"},
                 {"r1", "r1", "80"},
                 {"http://r1/", "r1", "80"},
                 {"[::1]:7", "::1", "7"},
                 {"[fe80::2]", "fe80::2", "80"}};
    static const char *const wrong[] = {"", "http://", "https://r1", ":80", "r1:", "r1:port", "[::1", "r1:123456"};
    bt_get_server server;
    bt_why why;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(bt_get_parse(&server, cases[i].url, "80", &why), BT_OK);
        ck_assert_str_eq(server.host, cases[i].host);
        ck_assert_str_eq(server.port, cases[i].port);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(bt_get_parse(&server, wrong[i], "80", &why) == BT_ERR_INVALID, "%s", wrong[i]);
}
END_TEST

static const char text[] = "# HELP b:x_total Things.\n# TYPE b:x_total counter\n"
                           "b:x_total{a=\"1\",cause=\"io\"} 3\nb:x_total{a=\"1\",cause=\"bug\"} 4.5\n"
                           "b:x_total_more 100\nb:plain 7\n"
                           "b:peer{peer=\"p1\",transport=\"shm, posix\"} 12.5\n";

START_TEST(values_are_found_by_name_and_label)
{
    char label[8];

    ck_assert_double_eq(bt_scrape_sum(text, "b:x_total", NULL), 7.5);
    ck_assert_double_eq(bt_scrape_sum(text, "b:x_total", "cause=\"bug\""), 4.5);
    ck_assert_double_eq(bt_scrape_sum(text, "b:plain", NULL), 7);
    ck_assert_double_eq(bt_scrape_sum(text, "b:plain", "cause=\"bug\""), 0);
    ck_assert_double_eq(bt_scrape_sum(text, "b:absent", NULL), 0);
    bt_scrape_label(text, "b:peer", "transport", label, sizeof label);
    ck_assert_str_eq(label, "shm, po"); // cut
    bt_scrape_label(text, "b:peer", "nothing", label, sizeof label);
    ck_assert_str_eq(label, "");
}
END_TEST

START_TEST(texts_that_end_anywhere_are_read_without_harm)
{
    char cut[sizeof text];
    bt_scrape_histogram h;

    for (size_t len = 0; len < sizeof text; len++) {
        memcpy(cut, text, len);
        cut[len] = 0;
        bt_scrape_sum(cut, "b:x_total", "cause=\"bug\"");
        bt_scrape_read(cut, "b:x", &h);
    }
    bt_scrape_read("b:x_bucket{le=\"oops\n", "b:x", &h);
    bt_scrape_sum("b:x{", "b:x", NULL);
}
END_TEST

// Two label sets; between the scrapes ten observations up to 1 and thirty up to 3.
START_TEST(quantiles_are_of_what_came_between_two_scrapes)
{
    static const char before[] =
        "t_bucket{m=\"a\",le=\"1\"} 5\nt_bucket{m=\"a\",le=\"3\"} 5\nt_bucket{m=\"a\",le=\"+Inf\"} 6\n"
        "t_bucket{m=\"b\",le=\"1\"} 0\nt_bucket{m=\"b\",le=\"3\"} 0\nt_bucket{m=\"b\",le=\"+Inf\"} 0\n";
    static const char after[] =
        "t_bucket{m=\"a\",le=\"1\"} 15\nt_bucket{m=\"a\",le=\"3\"} 30\nt_bucket{m=\"a\",le=\"+Inf\"} 31\n"
        "t_bucket{m=\"b\",le=\"1\"} 0\nt_bucket{m=\"b\",le=\"3\"} 15\nt_bucket{m=\"b\",le=\"+Inf\"} 15\n";
    bt_scrape_histogram a, b;

    bt_scrape_read(before, "t", &a);
    bt_scrape_read(after, "t", &b);
    ck_assert_uint_eq(b.count, 3);
    ck_assert_double_eq(bt_scrape_count(&b, &a), 40);
    ck_assert_double_eq(bt_scrape_count(&b, NULL), 46);
    ck_assert_double_eq_tol(bt_scrape_quantile(&b, &a, 0.25), 1, 1e-9);
    ck_assert_double_eq_tol(bt_scrape_quantile(&b, &a, 0.5), 1 + 2 * (20 - 10) / 30.0, 1e-9);
    ck_assert_double_eq_tol(bt_scrape_quantile(&b, &a, 1), 3, 1e-9);
    ck_assert_double_eq_tol(bt_scrape_quantile(&b, NULL, 1), 3, 1e-9); // beyond: the highest bound there is
    ck_assert_double_eq(bt_scrape_quantile(&a, &a, 0.5), 0);           // nothing came
}
END_TEST

static bt_top_view view;

static void
fill_view(uint32_t nodes)
{
    view = (bt_top_view){
        .cluster = "demo", .router = "r1", .model = "m", .state = "ready", .uptime_s = 3725, .node_count = nodes};
    for (uint32_t i = 0; i < nodes; i++) {
        view.nodes[i] =
            (bt_top_node){.role = "decode", .state = "ready", .breaker = "closed", .hit_rate = -1, .blocks = 4096};
        snprintf(view.nodes[i].name, sizeof view.nodes[i].name, "node-%u", i);
        memset(view.nodes[i].transport, 'x', sizeof view.nodes[i].transport - 1);
    }
}

static uint32_t
lines_of(uint32_t columns)
{
    uint32_t lines = 0;

    for (const char *at = out.data; *at != 0; lines++) {
        const char *end = strchr(at, '\n');

        ck_assert_ptr_nonnull(end);
        ck_assert_uint_le(end - at, columns);
        at = end + 1;
    }
    return lines;
}

START_TEST(a_picture_fits_its_terminal)
{
    fill_view(40);
    for (uint32_t rows = 1; rows < 50; rows++) {
        bt_buf_clear(&out);
        bt_top_write_text(&view, "a note", 61, rows, false, "\n", &out);
        ck_assert_uint_le(lines_of(61), rows);
        if (rows >= 9 && rows < 47)
            ck_assert_ptr_nonnull(strstr(out.data, " more\n"));
    }
    bt_buf_clear(&out);
    bt_top_write_text(&view, NULL, 300, 0, false, "\n", &out);
    ck_assert_uint_eq(lines_of(300), 6 + 40);
    ck_assert_ptr_nonnull(strstr(out.data, "demo  router r1 ready, up 1h 2m  model m\n"));
}
END_TEST

START_TEST(nobodys_name_moves_the_cursor)
{
    fill_view(1);
    strcpy(view.model, "m\033[2J\r\xc3\xa9");
    strcpy(view.nodes[0].transport, "shm\n\033]0;x\a");
    bt_top_write_text(&view, "no\troute", 300, 0, true, "\n", &out);
    ck_assert_ptr_nonnull(strstr(out.data, "model m?[2J???"));
    ck_assert_ptr_nonnull(strstr(out.data, "shm??]0;x?"));
    ck_assert_uint_eq(lines_of(400), 7 + 1);
}
END_TEST

START_TEST(what_is_not_known_is_null_and_a_dash)
{
    bt_json *document;
    bt_json_at root, nodes, node, rate;

    fill_view(1);
    bt_top_write_json(&view, &out);
    ck_assert_int_eq(bt_json_parse(&document, (bt_str){out.data, out.len}, NULL, NULL), BT_OK);
    root = bt_json_root(document);
    nodes = bt_json_get(&root, "nodes");
    node = bt_json_item(&nodes, 0);
    rate = bt_json_get(&node, "tokens_per_s");
    ck_assert_int_eq(bt_json_type_of(&rate), BT_JSON_NULL);
    rate = bt_json_get(&root, "ttft_p50_ms");
    ck_assert_int_eq(bt_json_type_of(&rate), BT_JSON_NULL);
    bt_json_close(document);
    bt_buf_clear(&out);
    bt_top_write_text(&view, NULL, 300, 0, false, "\n", &out);
    ck_assert_ptr_nonnull(strstr(out.data, "p50 -, p99 -"));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("top");
    TCase *cases = tcase_create("cases");

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, addresses_are_taken_as_people_write_them);
    tcase_add_test(cases, values_are_found_by_name_and_label);
    tcase_add_test(cases, texts_that_end_anywhere_are_read_without_harm);
    tcase_add_test(cases, quantiles_are_of_what_came_between_two_scrapes);
    tcase_add_test(cases, a_picture_fits_its_terminal);
    tcase_add_test(cases, nobodys_name_moves_the_cursor);
    tcase_add_test(cases, what_is_not_known_is_null_and_a_dash);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
