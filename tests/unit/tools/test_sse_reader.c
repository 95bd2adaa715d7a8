#include "tests/support/test.h"

#include "common/base/buf.h"
#include "tools/sse_reader.h"

#include <string.h>

static bt_sse_reader reader;
static bt_buf heard;

static void
hear(void *self, bt_str data)
{
    (void)self;
    bt_buf_append(&heard, data.data, data.len);
    bt_buf_append_char(&heard, '|');
}

static void
set_up(void)
{
    bt_sse_reader_init(&reader);
    bt_buf_init(&heard, 1 << 16);
    bt_buf_append_text(&heard, "");
}

static void
tear_down(void)
{
    bt_buf_fini(&heard);
}

// Feeds `text` in pieces of `step` bytes; returns what was read.
static size_t
feed(const char *text, size_t step)
{
    size_t len = strlen(text), used = 0;

    while (used < len && !reader.done) {
        used += bt_sse_read(&reader, text + used, len - used < step ? len - used : step, hear, NULL);
    }
    return used;
}

static const char stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n"
                             "9\r\ndata: on\n\r\n4\r\n\ndat\r\nc;x=y\r\na: two\n\n: no\r\n2\r\n\n\n\r\n0\r\n\r\n";

START_TEST(stream_in_any_pieces_gives_the_same_events)
{
    for (size_t step = 1; step <= sizeof stream; step++) {
        tear_down();
        set_up();
        ck_assert_uint_eq(feed(stream, step), sizeof stream - 1);
        ck_assert(reader.done && !reader.failed && !reader.closes);
        ck_assert_int_eq(reader.status, 200);
        ck_assert_msg(strcmp(heard.data, "on|two|") == 0, "pieces of %zu: %s", step, heard.data);
    }
}
END_TEST

START_TEST(body_of_a_length_ends_there)
{
    const char *text =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n{\"a\":1}HTTP/1.1 200";

    ck_assert_uint_eq(feed(text, 1000), strlen(text) - 12);
    ck_assert(reader.done && !reader.failed);
    ck_assert_int_eq(reader.status, 404);
    ck_assert_str_eq(heard.data, "{\"a\":1}|");
}
END_TEST

START_TEST(end_of_the_connection_ends_a_body_without_length_alone)
{
    feed("HTTP/1.0 200 OK\r\n\r\nbody\n", 5);
    ck_assert(!reader.done && reader.closes);
    bt_sse_read_end(&reader);
    ck_assert(reader.done && !reader.failed);
    bt_sse_reader_init(&reader);
    feed("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody", 5);
    bt_sse_read_end(&reader);
    ck_assert(reader.failed);
    bt_sse_reader_init(&reader);
    feed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n", 5);
    bt_sse_read_end(&reader);
    ck_assert(reader.failed);
}
END_TEST

START_TEST(what_is_not_http_fails)
{
    static char line[BT_SSE_LINE_MAX + 100];

    feed("SSH-2.0-OpenSSH\r\n", 100);
    ck_assert(reader.failed);
    bt_sse_reader_init(&reader);
    feed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 100);
    ck_assert(reader.failed);
    bt_sse_reader_init(&reader);
    memset(line, 'x', sizeof line - 1);
    feed("HTTP/1.1 200 OK\r\n\r\n", 100);
    feed(line, sizeof line);
    ck_assert(reader.failed);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sse_reader");
    TCase *tests = tcase_create("sse_reader");

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, stream_in_any_pieces_gives_the_same_events);
    tcase_add_test(tests, body_of_a_length_ends_there);
    tcase_add_test(tests, end_of_the_connection_ends_a_body_without_length_alone);
    tcase_add_test(tests, what_is_not_http_fails);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
