#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/net/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bt_loop *loop;
static bt_http *server;
static bt_http_request *asked; // the last request that was given to us and not answered
static int asked_count, gone_count;

static const bt_http_limits limits = {
    .listen = "127.0.0.1:0",
    .connections_max = 8,
    .header_bytes_max = 8192,
    .body_bytes_max = 1000,
    .body_bytes_total_max = 1500,
    .out_bytes_max = 1 << 20,
    .header_time_max = 300 * BT_MILLISECOND,
    .body_time_max = 300 * BT_MILLISECOND,
    .idle_time_max = 300 * BT_MILLISECOND,
    .stall_time_max = 300 * BT_MILLISECOND,
};

static void
on_later(void *self, bt_http_request *request)
{
    (void)self;
    asked = request;
    asked_count++;
}

static void
on_echo(void *self, bt_http_request *request)
{
    bt_buf body = {0};

    (void)self;
    asked_count++;
    bt_http_take_body(request, &body);
    bt_buf_append(bt_http_out(request), body.data, body.len);
    bt_buf_fini(&body);
    bt_http_add_header(request, "X-Seen", bt_http_header(request, "X-Sent") != NULL ? "yes" : "no");
    bt_http_answer(request, 200, "text/plain");
}

static void
on_admit(void *self, bt_http_request *request)
{
    (void)self;
    if (bt_http_header(request, "X-Bad-Key") != NULL) {
        bt_buf_append_text(bt_http_out(request), "wrong key");
        bt_http_answer(request, 401, "text/plain");
    }
}

static void
on_refuse(void *self, bt_http_request *request, unsigned status, const char *message)
{
    (void)self;
    bt_buf_printf(bt_http_out(request), "refused: %s", message);
    bt_http_answer(request, status, "text/plain");
}

static void
on_gone(void *self, bt_http_request *request)
{
    (void)self;
    asked = request == asked ? NULL : asked;
    gone_count++;
}

static const bt_http_route routes[] = {
    {"POST", "/later", on_later}, {"POST", "/echo", on_echo}, {"GET", "/get", on_echo}};

static void
open_server(void)
{
    bt_http_handler handler = {NULL, routes, 3, on_admit, on_refuse, on_gone};
    bt_why why = {""};

    asked = NULL;
    asked_count = gone_count = 0;
    ck_assert_int_eq(bt_loop_open(&loop), BT_OK);
    ck_assert_msg(bt_http_open(&server, loop, &limits, &handler, &why) == BT_OK, "%s", why.text);
}

static void
close_server(void)
{
    bt_http_close(server);
    bt_loop_close(loop);
}

static int
client(const char *text, size_t bytes)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(bt_http_port(server))};
    int fd = socket(AF_INET, SOCK_STREAM, 0), small = 4096;

    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    ck_assert_int_eq(send(fd, text, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    return fd;
}

static int
client_text(const char *text)
{
    return client(text, strlen(text));
}

static char got[1 << 16];
static size_t got_bytes;
static bool got_end;

// Turns the loop until `want` has come from the server, the server has closed, or two seconds have passed.
static bool
receive(int fd, const char *want)
{
    bt_time until = bt_time_now() + 2 * BT_SECOND;

    got_bytes = 0;
    got_end = false;
    while (bt_time_now() < until && !got_end) {
        ssize_t some;

        bt_loop_once(loop, 5 * BT_MILLISECOND);
        some = recv(fd, got + got_bytes, sizeof got - 1 - got_bytes, MSG_DONTWAIT);
        got_end = some == 0 || (some < 0 && errno != EAGAIN);
        got_bytes += some > 0 ? (size_t)some : 0;
        got[got_bytes] = 0;
        if (want != NULL && strstr(got, want) != NULL) {
            return true;
        }
    }
    return false;
}

static void
turn_until(int *count, int want)
{
    bt_time until = bt_time_now() + 2 * BT_SECOND;

    while (*count < want && bt_time_now() < until) {
        bt_loop_once(loop, 5 * BT_MILLISECOND);
    }
    ck_assert_int_eq(*count, want);
}

#define LATER "POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"

START_TEST(whole_answers_come_in_the_order_of_pipelined_requests)
{
    int fd = client_text("POST /echo HTTP/1.1\r\nHost: a\r\nX-Sent: 1\r\nContent-Length: 3\r\n\r\none"
                         "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
                         "GET /get?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");

    receive(fd, NULL);
    ck_assert(got_end);
    ck_assert_int_eq(asked_count, 3);
    ck_assert_ptr_nonnull(strstr(got, "X-Seen: yes"));
    ck_assert_ptr_nonnull(strstr(got, "\r\n\r\none"));
    ck_assert_ptr_nonnull(strstr(strstr(got, "\r\n\r\none"), "\r\n\r\ntwo"));
    close(fd);
}
END_TEST

START_TEST(head_has_the_headers_of_get_alone)
{
    int fd = client_text("HEAD /get HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");

    receive(fd, NULL);
    ck_assert_int_eq(strncmp(got, "HTTP/1.1 200", 12), 0);
    ck_assert_str_eq(got + got_bytes - 4, "\r\n\r\n");
    close(fd);
}
END_TEST

START_TEST(answer_may_come_later)
{
    int fd = client_text(LATER);
    bt_buf body = {0};

    turn_until(&asked_count, 1);
    bt_http_take_body(asked, &body);
    ck_assert(bt_str_is((bt_str){body.data, body.len}, "hi"));
    bt_buf_fini(&body);
    ck_assert_uint_eq(bt_http_requests(server), 1);
    bt_buf_append_text(bt_http_out(asked), "late");
    bt_http_answer(asked, 200, "text/plain");
    ck_assert(receive(fd, "\r\n\r\nlate"));
    ck_assert_int_eq(gone_count, 0);
    close(fd);
}
END_TEST

START_TEST(stream_is_sent_as_it_is_flushed)
{
    int fd = client_text(LATER);

    turn_until(&asked_count, 1);
    bt_http_begin(asked, 200, "text/event-stream");
    ck_assert(receive(fd, "\r\n\r\n"));
    bt_buf_append_text(bt_http_out(asked), "data: 1\n\n");
    ck_assert_int_eq(bt_http_flush(asked), BT_OK);
    ck_assert(receive(fd, "data: 1\n\n"));
    bt_buf_append_text(bt_http_out(asked), "data: 2\n\n");
    bt_http_end(asked);
    ck_assert(receive(fd, "data: 2\n\n\r\n0\r\n"));
    // The connection is free for the next request.
    ck_assert_int_eq(send(fd, LATER, strlen(LATER), 0), (ssize_t)strlen(LATER));
    turn_until(&asked_count, 2);
    close(fd);
    turn_until(&gone_count, 1);
}
END_TEST

START_TEST(hangup_is_noticed_while_the_answer_is_awaited)
{
    int fd = client_text(LATER);

    turn_until(&asked_count, 1);
    close(fd);
    turn_until(&gone_count, 1);
    ck_assert_ptr_null(asked);
}
END_TEST

START_TEST(hangup_is_noticed_while_a_stream_is_silent)
{
    int fd = client_text(LATER);

    turn_until(&asked_count, 1);
    bt_http_begin(asked, 200, "text/event-stream");
    bt_buf_append_text(bt_http_out(asked), "data: 1\n\n");
    bt_http_flush(asked);
    ck_assert(receive(fd, "data: 1"));
    close(fd);
    turn_until(&gone_count, 1);
    for (int i = 0; i < 5; i++) {
        bt_loop_once(loop, BT_MILLISECOND);
    }
    ck_assert_uint_eq(bt_http_connections(server), 0);
}
END_TEST

START_TEST(broken_stream_has_no_proper_end)
{
    int fd = client_text(LATER);

    turn_until(&asked_count, 1);
    bt_http_begin(asked, 200, "text/event-stream");
    bt_buf_append_text(bt_http_out(asked), "data: 1\n\n");
    bt_http_flush(asked);
    ck_assert(receive(fd, "data: 1"));
    bt_http_break(asked);
    ck_assert(!receive(fd, "\r\n0\r\n"));
    ck_assert(got_end);
    ck_assert_int_eq(gone_count, 0);
    close(fd);
}
END_TEST

START_TEST(client_that_does_not_read_is_dropped)
{
    static char block[1 << 14];
    int fd = client_text(LATER);
    bt_time until = bt_time_now() + 4 * BT_SECOND;

    memset(block, 'x', sizeof block);
    turn_until(&asked_count, 1);
    bt_http_begin(asked, 200, "text/event-stream");
    while (asked != NULL && bt_time_now() < until) {
        bt_buf_append(bt_http_out(asked), block, bt_http_out(asked)->len < 900000 ? sizeof block : 0);
        bt_http_flush(asked);
        bt_loop_once(loop, BT_MILLISECOND);
    }
    ck_assert_int_eq(gone_count, 1);
    close(fd);
}
END_TEST

START_TEST(flush_says_when_the_client_is_too_far_behind)
{
    static char block[1 << 16];
    int fd = client_text(LATER);
    bt_err err = BT_OK;

    turn_until(&asked_count, 1);
    bt_http_begin(asked, 200, "text/event-stream");
    for (int i = 0; i < 1000 && err == BT_OK; i++) {
        bt_buf_append(bt_http_out(asked), block, sizeof block);
        err = bt_http_flush(asked);
    }
    ck_assert_int_eq(err, BT_ERR_TIMEOUT);
    bt_http_break(asked);
    close(fd);
}
END_TEST

START_TEST(slow_clients_are_closed_in_every_phase)
{
    static const char *const begun[] = {"", "POST /ec", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
                                        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"};

    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        int fd = client_text(begun[i]);

        receive(fd, NULL);
        ck_assert_msg(got_end, "phase %zu", i);
        close(fd);
    }
    ck_assert_int_eq(asked_count, 1);
}
END_TEST

// Sends the request and returns the status of the answer, 0 for a closed connection.
static int
status_of(const char *text, size_t bytes)
{
    int fd = client(text, bytes), status = 0;

    receive(fd, "\r\n\r\n");
    sscanf(got, "HTTP/1.%*d %d", &status);
    close(fd);
    return status;
}

START_TEST(refusals_have_their_status)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 404},
        {"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 405},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nX-Bad-Key: 1\r\nContent-Length: 2\r\n\r\nhi", 401},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n", 413},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nhi", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\n\r\n", 411},
        {"GET /get HTTP/1.1\r\nHost: a\r\nDummy: x\nContent-Length: 2\r\n\r\nhi", 400},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(status_of(cases[i].text, strlen(cases[i].text)) == cases[i].status, "%s gives %s", cases[i].text,
                      got);
    }
    ck_assert_int_eq(asked_count, 0);
}
END_TEST

START_TEST(body_over_the_limit_is_read_and_refused)
{
    static char text[6000];
    int used = snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n"), fd;

    memset(text + used, 'x', 5000);
    fd = client(text, (size_t)used + 5000);
    ck_assert(receive(fd, "refused: the body"));
    ck_assert_int_eq(strncmp(got, "HTTP/1.1 413", 12), 0);
    close(fd);
    used = snprintf(text, sizeof text,
                    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "600\r\n%01536d\r\n0\r\n\r\n",
                    1);
    ck_assert_int_eq(status_of(text, (size_t)used), 413);
}
END_TEST

START_TEST(bodies_together_have_a_limit)
{
    static char text[2000];
    int used = snprintf(text, sizeof text, "POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n%0900d", 1);
    int first = client(text, (size_t)used);

    turn_until(&asked_count, 1);
    ck_assert_int_eq(status_of(text, (size_t)used), 503);
    close(first);
    turn_until(&gone_count, 1);
    first = client(text, (size_t)used);
    turn_until(&asked_count, 2);
    close(first);
    turn_until(&gone_count, 2);
}
END_TEST

START_TEST(headers_over_the_limit_are_refused)
{
    static char text[20000];
    int used = snprintf(text, sizeof text, "GET /get HTTP/1.1\r\nHost: a\r\nX-Bomb: %012000d\r\n\r\n", 1), status;

    status = status_of(text, (size_t)used);
    ck_assert_msg(status == 0 || (status >= 400 && status < 500), "%s", got);
    ck_assert_int_eq(asked_count, 0);
}
END_TEST

START_TEST(close_breaks_what_is_unanswered)
{
    int fds[3];

    for (int i = 0; i < 2; i++) {
        fds[i] = client_text(LATER);
        turn_until(&asked_count, i + 1);
        if (i == 0) {
            bt_http_begin(asked, 200, "text/plain");
        }
    }
    fds[2] = client_text("POST /ec");
    bt_loop_once(loop, BT_MILLISECOND);
    bt_http_close(server);
    server = NULL;
    ck_assert_int_eq(gone_count, 2);
    close(fds[0]), close(fds[1]), close(fds[2]);
}
END_TEST

START_TEST(quiesced_server_finishes_what_it_has)
{
    int fd = client_text(LATER), idle = client_text("");

    turn_until(&asked_count, 1);
    bt_http_quiesce(server);
    bt_buf_append_text(bt_http_out(asked), "last");
    bt_http_answer(asked, 200, "text/plain");
    receive(fd, NULL);
    ck_assert(got_end);
    ck_assert_ptr_nonnull(strstr(got, "\r\n\r\nlast"));
    ck_assert_ptr_nonnull(strstr(got, "Connection: close"));
    receive(idle, NULL);
    ck_assert(got_end);
    close(fd), close(idle);
}
END_TEST

START_TEST(bad_addresses_are_named)
{
    static const char *const bad[] = {"8080", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
                                      "no.such.host.invalid:80"};
    bt_http_handler handler = {NULL, routes, 3, NULL, on_refuse, on_gone};
    bt_http_limits other = limits;
    bt_http *none = NULL;
    bt_why why;
    char taken[32];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        other.listen = bad[i];
        ck_assert_int_eq(bt_http_open(&none, loop, &other, &handler, &why), BT_ERR_INVALID);
        ck_assert_int_eq(strncmp(why.text, "listen: ", 8), 0);
    }
    snprintf(taken, sizeof taken, "127.0.0.1:%u", bt_http_port(server));
    other.listen = taken;
    ck_assert_int_eq(bt_http_open(&none, loop, &other, &handler, &why), BT_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "in use"));
    ck_assert_ptr_null(none);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("http");
    TCase *tests = tcase_create("http");

    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, open_server, close_server);
    tcase_add_test(tests, whole_answers_come_in_the_order_of_pipelined_requests);
    tcase_add_test(tests, head_has_the_headers_of_get_alone);
    tcase_add_test(tests, answer_may_come_later);
    tcase_add_test(tests, stream_is_sent_as_it_is_flushed);
    tcase_add_test(tests, hangup_is_noticed_while_the_answer_is_awaited);
    tcase_add_test(tests, hangup_is_noticed_while_a_stream_is_silent);
    tcase_add_test(tests, broken_stream_has_no_proper_end);
    tcase_add_test(tests, client_that_does_not_read_is_dropped);
    tcase_add_test(tests, flush_says_when_the_client_is_too_far_behind);
    tcase_add_test(tests, slow_clients_are_closed_in_every_phase);
    tcase_add_test(tests, refusals_have_their_status);
    tcase_add_test(tests, body_over_the_limit_is_read_and_refused);
    tcase_add_test(tests, bodies_together_have_a_limit);
    tcase_add_test(tests, headers_over_the_limit_are_refused);
    tcase_add_test(tests, close_breaks_what_is_unanswered);
    tcase_add_test(tests, quiesced_server_finishes_what_it_has);
    tcase_add_test(tests, bad_addresses_are_named);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
