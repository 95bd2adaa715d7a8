// The host transport's sockets against others than ourselves: strangers who call, and an owner who lies.
#include "tests/support/test.h"

#include "common/base/log.h"
#include "common/base/time.h"
#include "common/kv/trailer.h"
#include "common/transfer/host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCKS 16

static bt_kv_layout layout;
static bt_transfer *t;
static uint8_t described[BT_TRANSFER_DESCRIPTION_MAX];
static size_t described_bytes;
static bt_description own;

static void
set_up(void)
{
    bt_transfer_options o = {.transport = "host",
                             .epoch = 5,
                             .blocks = BLOCKS,
                             .peers_max = 2,
                             .fetches_max = 2,
                             .fetch_blocks_max = BLOCKS,
                             .path = BT_TRANSFER_PATH_STREAM,
                             .listen = "127.0.0.1:0"};

    bt_log_set_level(BT_LOG_ERROR);
    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 1, 1, 32, 16, 32, NULL), BT_OK);
    o.layout = layout;
    ck_assert_int_eq(bt_transfer_open(&t, &o, NULL), BT_OK);
    ck_assert_int_eq(bt_transfer_describe(t, described, sizeof described, &described_bytes), BT_OK);
    ck_assert_int_eq(bt_description_decode(&own, described, described_bytes, NULL), BT_OK);
}

static void
tear_down(void)
{
    bt_transfer_close(t);
}

// Turns until `fd` has bytes, its end, or nothing for a while: what recv said.
static ssize_t
turn_and_read(int fd, void *out, size_t bytes)
{
    bt_time until = bt_time_now() + BT_SECOND / 5;
    bt_transfer_event event;
    ssize_t got = -1;

    while (bt_time_now() < until && (got = recv(fd, out, bytes, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
        bt_transfer_poll(t, bt_time_now(), &event, 1);
    }
    return got;
}

static int
call(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(&at.sin_port, own.address, 2);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void
closed_after(const void *bytes, size_t count)
{
    bt_transfer_stats before, after;
    uint8_t got[64];
    int fd = call();

    bt_transfer_get_stats(t, &before);
    ck_assert_int_eq(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    ck_assert_int_le(turn_and_read(fd, got, sizeof got), 0);
    bt_transfer_get_stats(t, &after);
    ck_assert_uint_gt(after.refused, before.refused);
    close(fd);
}

START_TEST(a_stranger_hears_nothing_and_is_counted)
{
    bt_host_hello hello = {BT_HOST_MAGIC, BT_DESCRIPTION_VERSION, 77, own.identity, 5}, wrong;

    closed_after("GET / HTTP/1.1\r\nHost: somebody\r\n\r\n", 35);
    wrong = hello, wrong.version++, closed_after(&wrong, sizeof wrong);
    wrong = hello, wrong.to++, closed_after(&wrong, sizeof wrong);
    wrong = hello, wrong.epoch++, closed_after(&wrong, sizeof wrong);
    wrong = hello, wrong.from = 0, closed_after(&wrong, sizeof wrong);
}
END_TEST

START_TEST(silent_callers_do_not_keep_others_out)
{
    int fds[40];
    bt_transfer_event event;

    for (int i = 0; i < 40; i++) {
        fds[i] = call();
        bt_transfer_poll(t, bt_time_now(), &event, 1);
    }
    ck_assert_int_eq(recv(fds[0], &event, 1, MSG_DONTWAIT), 0);   // the oldest went
    ck_assert_int_eq(recv(fds[39], &event, 1, MSG_DONTWAIT), -1); // the newest is in
    for (int i = 0; i < 40; i++) {
        close(fds[i]);
    }
}
END_TEST

// A description of an owner that listens at `fd` and is us in the test.
static uint32_t
connect_to(int *listener)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    uint8_t address[18] = {0}, bytes[BT_TRANSFER_DESCRIPTION_MAX], key[sizeof(bt_shared_key)] = {0};
    bt_description d = own;
    size_t count;
    uint32_t peer;

    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    ck_assert_int_eq(bind(*listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(*listener, 4), 0);
    ck_assert_int_eq(getsockname(*listener, (struct sockaddr *)&at, &length), 0);
    memcpy(address, &at.sin_port, 2);
    inet_pton(AF_INET6, "::ffff:127.0.0.1", address + 2);
    d.identity = 99;
    d.epoch = 6;
    d.address = address;
    d.address_bytes = sizeof address;
    d.key = key;
    d.key_bytes = sizeof key;
    ck_assert_int_eq(bt_description_encode(&d, bytes, sizeof bytes, &count), BT_OK);
    ck_assert_int_eq(bt_transfer_connect(t, bytes, count, &peer, NULL), BT_OK);
    return peer;
}

// Accepts, greets, and returns the first request of a fetch of two blocks to blocks 3 and 4.
static int
be_asked(int listener, uint32_t peer, bt_host_request *request)
{
    const bt_transfer_block blocks[] = {{0, 3, 1}, {1, 4, 1}};
    bt_host_hello hello;
    int fd = accept(listener, NULL, NULL);

    ck_assert_int_eq(turn_and_read(fd, &hello, sizeof hello), sizeof hello);
    ck_assert(hello.to == 99 && hello.epoch == 6 && hello.from == own.identity);
    hello = (bt_host_hello){BT_HOST_MAGIC, BT_DESCRIPTION_VERSION, 99, own.identity, 0};
    ck_assert_int_eq(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    ck_assert_int_eq(bt_transfer_fetch(t, peer, blocks, 2, bt_time_now() + BT_SECOND / 2, 1), BT_OK);
    ck_assert_int_eq(turn_and_read(fd, request, sizeof *request), sizeof *request);
    ck_assert(request->from == 0 && request->count == 2 && request->epoch == 6);
    return fd;
}

static bt_transfer_event
next_event(void)
{
    bt_time until = bt_time_now() + 5 * BT_SECOND;
    bt_transfer_event event;

    while (bt_transfer_poll(t, bt_time_now(), &event, 1) == 0) {
        ck_assert_msg(bt_time_now() < until, "no event");
    }
    return event;
}

static void
lie(int what)
{
    int listener, fd;
    uint32_t peer = connect_to(&listener);
    bt_host_request request;
    bt_host_answer answer;

    fd = be_asked(listener, peer, &request);
    answer = (bt_host_answer){BT_HOST_MAGIC, request.tag, BT_OK, 2, 2 * layout.block_bytes, 0};
    answer.magic += what == 0;
    answer.tag += what == 1;
    answer.bytes += what == 2;
    answer.bytes = what == 3 ? UINT64_MAX : answer.bytes;
    ck_assert_int_eq(send(fd, &answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
    ck_assert_int_eq(next_event().err, BT_ERR_PEER);
    ck_assert_int_eq(next_event().kind, BT_TRANSFER_LOST);
    bt_transfer_disconnect(t, peer);
    close(fd);
    close(listener);
    for (size_t i = 0; i < BLOCKS * layout.block_bytes; i++) {
        ck_assert_uint_eq(bt_transfer_pool(t)[i], 0);
    }
}

START_TEST(an_owner_that_answers_what_was_not_asked_is_lost_and_writes_nothing)
{
    bt_transfer_event event;

    for (int what = 0; what < 4; what++) {
        lie(what);
        bt_transfer_poll(t, bt_time_now(), &event, 1);
    }
}
END_TEST

START_TEST(an_owner_that_says_no_ends_the_fetch_and_stays)
{
    int listener, fd;
    uint32_t peer = connect_to(&listener);
    bt_host_request request;
    bt_host_answer answer;
    bt_transfer_peer_info info;

    fd = be_asked(listener, peer, &request);
    answer = (bt_host_answer){BT_HOST_MAGIC, request.tag, BT_ERR_INVALID, 2, 0, 0};
    ck_assert_int_eq(send(fd, &answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
    ck_assert_int_eq(next_event().cause, BT_TRANSFER_CAUSE_REFUSED);
    ck_assert_int_eq(bt_transfer_peer(t, peer, &info), BT_OK);
    ck_assert(info.up);
    close(fd);
    close(listener);
}
END_TEST

START_TEST(bytes_that_come_after_the_deadline_go_nowhere)
{
    static uint8_t body[1 << 16];
    int listener, fd;
    uint32_t peer = connect_to(&listener);
    bt_host_request request;
    bt_host_answer answer;
    bt_transfer_event event;
    bt_time until;
    size_t half = layout.block_bytes, all = 2 * layout.block_bytes;

    memset(body, 0x66, sizeof body);
    fd = be_asked(listener, peer, &request);
    answer = (bt_host_answer){BT_HOST_MAGIC, request.tag, BT_OK, 2, all, 0};
    ck_assert_int_eq(send(fd, &answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
    ck_assert_int_eq(send(fd, body, half, MSG_NOSIGNAL), (ssize_t)half);
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_TIMEOUT);
    memset(bt_transfer_pool(t), 0x11, BLOCKS * layout.block_bytes); // all ours again
    ck_assert_int_eq(send(fd, body, all - half, MSG_NOSIGNAL), (ssize_t)(all - half));
    for (until = bt_time_now() + BT_SECOND / 10; bt_time_now() < until;) {
        ck_assert_uint_eq(bt_transfer_poll(t, bt_time_now(), &event, 1), 0); // nor is the peer lost
    }
    for (size_t i = 0; i < BLOCKS * layout.block_bytes; i++) {
        ck_assert_uint_eq(bt_transfer_pool(t)[i], 0x11);
    }
    close(fd);
    close(listener);
}
END_TEST

START_TEST(an_address_to_listen_on_that_is_none_is_named)
{
    bt_transfer_options o = {.transport = "host", .epoch = 5, .layout = layout, .blocks = BLOCKS};
    bt_transfer *none = NULL;
    bt_why why;

    o.listen = "no such host:1:2";
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "no such host"));
    o.listen = "192.0.2.1:0"; // of no interface here
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_IO);
    ck_assert_ptr_null(none);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("host");
    TCase *tcase = tcase_create("host");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_stranger_hears_nothing_and_is_counted);
    tcase_add_test(tcase, silent_callers_do_not_keep_others_out);
    tcase_add_test(tcase, an_owner_that_answers_what_was_not_asked_is_lost_and_writes_nothing);
    tcase_add_test(tcase, an_owner_that_says_no_ends_the_fetch_and_stays);
    tcase_add_test(tcase, bytes_that_come_after_the_deadline_go_nowhere);
    tcase_add_test(tcase, an_address_to_listen_on_that_is_none_is_named);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
