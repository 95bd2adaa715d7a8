// The server's side of pair0 against its own client and plain sockets. (Against nng's own sockets: tests/e2e/test_gateway.py.)
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/sp.h"
#include "common/net/sp_client.h"
#include "tests/support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE (20 * BT_SECOND) // of a busy machine; no test needs it

static const uint8_t greeting[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0};

// A server on a thread of its own. What a message's first byte says: 'f' floods its sender until that is closed, 'd' drops it, 'k' keeps
// it; anything else is sent back.
static struct {
    bt_sp_options options;
    bt_loop *loop;
    bt_sp *sp;
    pthread_t thread;
    char url[64];
    atomic_uint gone, messages;
    atomic_bool stop;
    _Atomic bool flooding;
    uint32_t flooded;
} server;

static void
on_message(void *self, uint32_t conn, const uint8_t *bytes, size_t length)
{
    uint8_t *memory;

    (void)self;
    atomic_fetch_add(&server.messages, 1);
    if (length > 0 && bytes[0] == 'd') {
        bt_sp_drop(server.sp, conn, "asked for it");
        return;
    }
    if (length > 0 && bytes[0] == 'k')
        bt_sp_keep(server.sp, conn, true);
    if (length > 0 && bytes[0] == 'f') {
        server.flooded = conn;
        server.flooding = true;
        return;
    }
    if ((memory = bt_sp_begin(server.sp, conn, length)) != NULL && length > 0)
        memcpy(memory, bytes, length);
}

static void
on_sent(void *self, uint32_t conn)
{
    (void)self, (void)conn;
}

static void
on_gone(void *self, uint32_t conn)
{
    (void)self;
    atomic_fetch_add(&server.gone, 1);
    if (server.flooding && conn == server.flooded)
        server.flooding = false;
}

static void *
serve(void *self)
{
    while (!atomic_load(&server.stop)) {
        uint8_t *memory;

        bt_loop_once(server.loop, 5 * BT_MILLISECOND);
        for (int i = 0; i < 16 && server.flooding; i++) {
            if ((memory = bt_sp_begin(server.sp, server.flooded, 64u << 10)) != NULL)
                memset(memory, 'x', 64u << 10);
        }
        bt_sp_flush(server.sp);
    }
    return self;
}

static void
set_up(void)
{
    bt_log_set_level(BT_LOG_NONE);
    memset(&server, 0, sizeof server);
    server.options = bt_sp_defaults();
    server.options.listen = "tcp://127.0.0.1:0";
    server.options.connections_max = 8;
    ck_assert_int_eq(bt_loop_open(&server.loop), BT_OK);
}

static void
start(void)
{
    bt_sp_handler handler = {NULL, on_message, on_sent, on_gone};
    bt_why why = {""};

    ck_assert_msg(bt_sp_open(&server.sp, server.loop, &server.options, &handler, &why) == BT_OK, "%s", why.text);
    snprintf(server.url, sizeof server.url, "tcp://127.0.0.1:%u", bt_sp_port(server.sp));
    ck_assert_int_eq(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static bt_sp_stats
stop(void)
{
    bt_sp_stats stats;

    atomic_store(&server.stop, true);
    pthread_join(server.thread, NULL);
    bt_sp_read_stats(server.sp, &stats);
    bt_sp_close(server.sp);
    server.sp = NULL;
    return stats;
}

static void
tear_down(void)
{
    if (server.sp != NULL)
        stop();
    bt_loop_close(server.loop);
    ck_assert_int_eq(bt_mem_live(), 0);
}

static bt_time
soon(void)
{
    return bt_time_now() + PATIENCE;
}

static bt_sp_client *
dial(void)
{
    bt_sp_client_options options = {.url = server.url, .message_bytes_max = 32u << 20};
    bt_sp_client *client;
    bt_why why = {""};

    ck_assert_msg(bt_sp_client_open(&client, &options, soon(), &why) == BT_OK, "%s", why.text);
    return client;
}

static void
expect_back(bt_sp_client *client, const void *bytes, size_t length)
{
    const uint8_t *got;
    size_t got_length;

    ck_assert_int_eq(bt_sp_client_receive(client, &got, &got_length, soon()), BT_OK);
    ck_assert_uint_eq(got_length, length);
    ck_assert(length == 0 || memcmp(got, bytes, length) == 0);
}

// ---- plain sockets ----

static int
connect_raw(const void *bytes, size_t length)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(bt_sp_port(server.sp))};
    struct timeval patience = {PATIENCE / BT_SECOND, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ck_assert_int_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
    return fd;
}

static bool
is_closed(int fd)
{
    char bytes[65536];
    ssize_t got;

    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        ;
    close(fd);
    return got == 0 || errno == ECONNRESET;
}

// ---- tests ----

START_TEST(messages_of_all_sizes_come_whole_and_in_order)
{
    static const size_t sizes[] = {0, 1, 7, 8, 4095, 16384 - 8, 16384, 16385, 300000, 8u << 20};
    static char bytes[8u << 20];
    bt_sp_client *client;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)('A' + i * 7 % 23);
    start();
    client = dial();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_assert_int_eq(
            bt_sp_client_send(client, bytes + i, sizes[i] - (i && sizes[i] == sizeof bytes ? i : 0), soon()), BT_OK);
        expect_back(client, bytes + i, sizes[i] - (i && sizes[i] == sizeof bytes ? i : 0));
    }
    for (size_t i = 0; i < 1000; i++)
        ck_assert_int_eq(bt_sp_client_send(client, bytes + i, i % 50, soon()), BT_OK);
    for (size_t i = 0; i < 1000; i++)
        expect_back(client, bytes + i, i % 50);
    bt_sp_client_close(client);
}
END_TEST

// TCP connections of this process, and how many of them send at once what is small.
static int
count_connections(int *at_once)
{
    struct sockaddr_in other;
    int found = 0;

    *at_once = 0;
    for (int fd = 0; fd < 1024; fd++) {
        socklen_t size = sizeof other, on_size = sizeof(int);
        int on = 0;

        if (getpeername(fd, (struct sockaddr *)&other, &size) != 0 || other.sin_family != AF_INET)
            continue;
        found++;
        ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &on_size), 0);
        *at_once += on != 0;
    }
    return found;
}

// Else every second token of a stream may wait 40 ms for the ACK of the one before (Nagle's algorithm).
START_TEST(no_end_holds_a_message_back_until_the_one_before_is_acknowledged)
{
    bt_sp_client *client;
    int at_once;

    start();
    client = dial();
    ck_assert_int_eq(bt_sp_client_send(client, "x", 1, soon()), BT_OK);
    expect_back(client, "x", 1);
    ck_assert_int_eq(count_connections(&at_once), 2);
    ck_assert_int_eq(at_once, 2);
    bt_sp_client_close(client);
}
END_TEST

START_TEST(each_client_has_its_own_messages)
{
    bt_sp_client *clients[8];
    char text[32];

    start();
    for (int i = 0; i < 8; i++)
        clients[i] = dial();
    for (int k = 0; k < 20; k++) {
        for (int i = 0; i < 8; i++) {
            snprintf(text, sizeof text, "client %d, %d", i, k);
            ck_assert_int_eq(bt_sp_client_send(clients[i], text, strlen(text), soon()), BT_OK);
        }
    }
    for (int i = 7; i >= 0; i--) {
        for (int k = 0; k < 20; k++) {
            snprintf(text, sizeof text, "client %d, %d", i, k);
            expect_back(clients[i], text, strlen(text));
        }
        bt_sp_client_close(clients[i]);
    }
}
END_TEST

START_TEST(a_greeting_and_a_message_may_come_byte_by_byte)
{
    static const uint8_t all[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 'a', 'b', 'c'};
    uint8_t got[19];
    int fd;

    start();
    fd = connect_raw(all, 1);
    for (size_t i = 1; i < sizeof all; i++) {
        usleep(1000);
        ck_assert_int_eq(send(fd, all + i, 1, MSG_NOSIGNAL), 1);
    }
    ck_assert_int_eq(recv(fd, got, sizeof got, MSG_WAITALL), sizeof got);
    ck_assert_mem_eq(got, all, sizeof all);
    close(fd);
}
END_TEST

START_TEST(what_is_not_ours_is_counted_and_closed)
{
    static const char *const strangers[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01 hello", "hello"};
    static const uint8_t other_socket[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0}, // a req
        large[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 1};
    bt_sp_client *client;
    bt_sp_stats stats;

    start();
    client = dial();
    for (int i = 0; i < 3; i++)
        ck_assert(is_closed(connect_raw(strangers[i], strlen(strangers[i]))));
    ck_assert(is_closed(connect_raw(other_socket, sizeof other_socket)));
    ck_assert(is_closed(connect_raw(large, sizeof large))); // 8 MiB and a byte
    ck_assert_int_eq(bt_sp_client_send(client, "ok", 2, soon()), BT_OK);
    expect_back(client, "ok", 2);
    bt_sp_client_close(client);
    stats = stop();
    ck_assert_uint_eq(stats.foreign, 5);
    ck_assert_uint_le(atomic_load(&server.gone), 1); // they had no message
}
END_TEST

START_TEST(more_than_there_may_be_are_closed_at_once)
{
    bt_sp_client *clients[8];
    bt_sp_stats stats;

    start();
    for (int i = 0; i < 8; i++)
        clients[i] = dial();
    ck_assert(is_closed(connect_raw(greeting, sizeof greeting)));
    bt_sp_client_close(clients[3]);
    for (bt_time end = soon(); bt_time_now() < end;) { // its place is free once its end was noticed
        int fd = connect_raw(greeting, sizeof greeting);
        uint8_t got[8];
        ssize_t count = recv(fd, got, sizeof got, 0);

        close(fd);
        if (count == sizeof got)
            break;
    }
    for (int i = 0; i < 8; i++) {
        if (i != 3)
            bt_sp_client_close(clients[i]);
    }
    stats = stop();
    ck_assert_uint_ge(stats.refused, 1);
    ck_assert_uint_ge(stats.opened, 9);
}
END_TEST

START_TEST(one_address_may_have_so_many_and_no_more)
{
    bt_sp_client *clients[3];

    server.options.connections_each_max = 3;
    start();
    for (int i = 0; i < 3; i++)
        clients[i] = dial();
    ck_assert(is_closed(connect_raw(greeting, sizeof greeting)));
    for (int i = 0; i < 3; i++)
        bt_sp_client_close(clients[i]);
    ck_assert_uint_eq(stop().refused, 1);
}
END_TEST

START_TEST(who_reads_nothing_is_closed_when_too_much_waits)
{
    bt_sp_client *slow, *other;
    bt_sp_stats stats;

    start();
    slow = dial();
    other = dial();
    ck_assert_int_eq(bt_sp_client_send(slow, "f", 1, soon()), BT_OK);
    for (bt_time end = soon(); atomic_load(&server.gone) == 0 && bt_time_now() < end;) {
        ck_assert_int_eq(bt_sp_client_send(other, "still here", 10, soon()), BT_OK);
        expect_back(other, "still here", 10);
    }
    ck_assert_uint_eq(atomic_load(&server.gone), 1);
    bt_sp_client_close(slow);
    bt_sp_client_close(other);
    stats = stop();
    ck_assert_uint_eq(stats.stalled, 1);
}
END_TEST

START_TEST(who_reads_nothing_is_not_read_from_either)
{
    static const uint8_t head[16] = {0, 0, 0, 0, 0, 1, 0, 0}; // of 64 KiB
    static char message[65544];
    struct timeval short_patience = {0, 300000};
    size_t sent = 0, received = 0;
    unsigned taken;
    ssize_t count;
    int fd;

    start();
    memcpy(message, head, 8);
    memset(message + 8, 'e', sizeof message - 8);
    fd = connect_raw(greeting, sizeof greeting);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &short_patience, sizeof short_patience);
    while ((count = send(fd, message + sent % sizeof message, sizeof message - sent % sizeof message, MSG_NOSIGNAL)) >
           0)
        sent += (size_t)count;
    taken = atomic_load(&server.messages);
    ck_assert_uint_lt(taken, sent / sizeof message); // the rest lies in sockets
    ck_assert_uint_le((size_t)taken * sizeof message, (32u << 20));
    while (sent % sizeof message != 0 || received < sent + 8) { // now it reads, and all of it comes
        static char bytes[1u << 20];

        if (sent % sizeof message != 0 &&
            (count = send(fd, message + sent % sizeof message, sizeof message - sent % sizeof message,
                          MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
            sent += (size_t)count;
        count = recv(fd, bytes, sizeof bytes, 0);
        ck_assert_int_gt(count, 0);
        received += (size_t)count;
    }
    ck_assert_uint_eq(received, sent + 8);
    close(fd);
}
END_TEST

// The server reads no more while a megabyte waits for its client: one that first sends all and then reads must not wait for ever.
START_TEST(a_client_that_sends_before_it_reads_is_not_stuck)
{
    static char message[256u << 10];
    bt_sp_client *client;

    memset(message, 'm', sizeof message);
    start();
    client = dial();
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(bt_sp_client_send(client, message, sizeof message, soon()), BT_OK);
    for (int i = 0; i < 100; i++)
        expect_back(client, message, sizeof message);
    bt_sp_client_close(client);
}
END_TEST

START_TEST(the_end_of_a_connection_is_seen_without_waiting)
{
    bt_sp_client *client;
    bt_time end = soon();

    server.options.idle_time_max = 50 * BT_MILLISECOND;
    start();
    client = dial();
    ck_assert(bt_sp_client_is_open(client));
    ck_assert_int_eq(bt_sp_client_send(client, "still", 5, soon()), BT_OK);
    expect_back(client, "still", 5);
    while (bt_sp_client_is_open(client))
        ck_assert_int_lt(bt_time_now(), end);
    bt_sp_client_close(client);
}
END_TEST

START_TEST(the_silent_the_slow_and_the_idle_are_closed_in_time)
{
    static const uint8_t part[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 'a'};
    bt_sp_client *kept;
    bt_sp_stats stats;
    int fds[4];

    server.options.greeting_time_max = server.options.message_time_max = 200 * BT_MILLISECOND;
    server.options.idle_time_max = 300 * BT_MILLISECOND;
    start();
    kept = dial();
    ck_assert_int_eq(bt_sp_client_send(kept, "keep me", 7, soon()), BT_OK);
    expect_back(kept, "keep me", 7);
    fds[0] = connect_raw("", 0);
    fds[1] = connect_raw(greeting, 5);
    fds[2] = connect_raw(part, sizeof part);
    fds[3] = connect_raw(greeting, sizeof greeting);
    for (int i = 0; i < 4; i++)
        ck_assert(is_closed(fds[i]));
    ck_assert_int_eq(bt_sp_client_send(kept, "x", 1, soon()), BT_OK);
    expect_back(kept, "x", 1);
    bt_sp_client_close(kept);
    stats = stop();
    ck_assert_uint_eq(stats.stalled, 3); // to be idle is no fault
}
END_TEST

START_TEST(a_dropped_client_hears_nothing_more_and_its_place_is_used_again)
{
    const uint8_t *bytes;
    size_t length;

    start();
    for (unsigned i = 1; i <= 30; i++) {
        bt_sp_client *client = dial();

        ck_assert_int_eq(bt_sp_client_send(client, "drop", 4, soon()), BT_OK);
        ck_assert_int_eq(bt_sp_client_receive(client, &bytes, &length, soon()), BT_ERR_PEER);
        bt_sp_client_close(client);
        ck_assert_uint_ge(atomic_load(&server.gone), i - 1); // it sees the end a moment before the owner hears of it
    }
    stop();
    ck_assert_uint_eq(atomic_load(&server.gone), 30);
}
END_TEST

START_TEST(a_client_waits_no_longer_than_its_deadline)
{
    bt_sp_client *client;
    const uint8_t *bytes;
    size_t length;
    bt_time begin;

    start();
    client = dial();
    begin = bt_time_now();
    ck_assert_int_eq(bt_sp_client_receive(client, &bytes, &length, begin + 50 * BT_MILLISECOND), BT_ERR_TIMEOUT);
    ck_assert_int_ge(bt_time_now() - begin, 50 * BT_MILLISECOND);
    ck_assert_int_eq(bt_sp_client_receive(client, &bytes, &length, begin), BT_ERR_TIMEOUT);
    ck_assert_int_eq(bt_sp_client_send(client, "late", 4, soon()), BT_OK);
    expect_back(client, "late", 4); // a time-out costs nothing
    bt_sp_client_close(client);
}
END_TEST

// nng 1.5 frees what its thread of time-outs still looks at, unless one keeps to an order (sp_client.c).
START_TEST(time_may_run_out_at_any_moment)
{
    bt_rng rng = {5};

    start();
    for (int i = 0; i < 1200; i++) {
        bt_time patience = (bt_time)bt_rng_below(&rng, 3 * BT_MILLISECOND);
        bt_sp_client_options options = {.url = i % 2 ? server.url : "tcp://127.0.0.1:1", .message_bytes_max = 1000};
        bt_sp_client *client;
        const uint8_t *bytes;
        size_t length;
        bt_err err = bt_sp_client_open(&client, &options, bt_time_now() + patience, NULL);

        ck_assert(err == BT_OK || err == BT_ERR_TIMEOUT || err == BT_ERR_PEER);
        if (err == BT_OK) {
            err = bt_sp_client_receive(client, &bytes, &length, bt_time_now() + patience);
            ck_assert(err == BT_ERR_TIMEOUT || err == BT_ERR_PEER); // closed, when too many are here
            bt_sp_client_close(client);
        }
    }
}
END_TEST

START_TEST(nobody_there_and_somebody_else_there_are_told_apart_from_wrong_addresses)
{
    bt_sp_client_options options = {.url = "tcp://127.0.0.1:1", .message_bytes_max = 1000};
    bt_sp_client *client = NULL;
    bt_why why;

    ck_assert_int_eq(bt_sp_client_open(&client, &options, soon(), &why), BT_ERR_PEER);
    options.url = "udp://x";
    ck_assert_int_eq(bt_sp_client_open(&client, &options, soon(), &why), BT_ERR_INVALID);
    options.url = "tls+tcp://127.0.0.1:1";
    ck_assert_int_eq(bt_sp_client_open(&client, &options, soon(), &why), BT_ERR_INVALID);
    ck_assert_ptr_null(client);
}
END_TEST

START_TEST(settings_that_make_no_sense_are_named)
{
    bt_sp_handler handler = {NULL, on_message, on_sent, on_gone};
    bt_why why = {""};

    server.options.listen = "ftp://here";
    ck_assert_int_eq(bt_sp_open(&server.sp, server.loop, &server.options, &handler, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "tcp://HOST:PORT"));
    server.options.listen = "tls+tcp://127.0.0.1:0";
    ck_assert_int_eq(bt_sp_open(&server.sp, server.loop, &server.options, &handler, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "certificate"));
    ck_assert_ptr_null(server.sp);
}
END_TEST

START_TEST(each_allocation_of_open_may_fail)
{
    bt_sp_handler handler = {NULL, on_message, on_sent, on_gone};
    bt_err err = BT_ERR_NO_MEMORY;

    for (long nth = 1; err != BT_OK; nth++) {
        bt_mem_fail_nth(nth);
        err = bt_sp_open(&server.sp, server.loop, &server.options, &handler, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        ck_assert_int_lt(nth, 50);
    }
    bt_sp_close(server.sp);
    server.sp = NULL;
}
END_TEST

START_TEST(closing_with_clients_that_send_never_hangs)
{
    bt_sp_client *clients[8];
    char text[100] = "";

    for (int round = 0; round < 10; round++) {
        atomic_store(&server.stop, false);
        start();
        for (int i = 0; i < 8; i++) {
            clients[i] = dial();
            for (int k = 0; k < 20; k++)
                bt_sp_client_send(clients[i], text, sizeof text, soon());
        }
        stop();
        for (int i = 0; i < 8; i++)
            bt_sp_client_close(clients[i]);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sp");
    TCase *tcase = tcase_create("sp");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, messages_of_all_sizes_come_whole_and_in_order);
    tcase_add_test(tcase, no_end_holds_a_message_back_until_the_one_before_is_acknowledged);
    tcase_add_test(tcase, each_client_has_its_own_messages);
    tcase_add_test(tcase, a_greeting_and_a_message_may_come_byte_by_byte);
    tcase_add_test(tcase, what_is_not_ours_is_counted_and_closed);
    tcase_add_test(tcase, more_than_there_may_be_are_closed_at_once);
    tcase_add_test(tcase, one_address_may_have_so_many_and_no_more);
    tcase_add_test(tcase, who_reads_nothing_is_closed_when_too_much_waits);
    tcase_add_test(tcase, who_reads_nothing_is_not_read_from_either);
    tcase_add_test(tcase, a_client_that_sends_before_it_reads_is_not_stuck);
    tcase_add_test(tcase, the_end_of_a_connection_is_seen_without_waiting);
    tcase_add_test(tcase, the_silent_the_slow_and_the_idle_are_closed_in_time);
    tcase_add_test(tcase, a_dropped_client_hears_nothing_more_and_its_place_is_used_again);
    tcase_add_test(tcase, a_client_waits_no_longer_than_its_deadline);
    tcase_add_test(tcase, time_may_run_out_at_any_moment);
    tcase_add_test(tcase, nobody_there_and_somebody_else_there_are_told_apart_from_wrong_addresses);
    tcase_add_test(tcase, settings_that_make_no_sense_are_named);
    tcase_add_test(tcase, each_allocation_of_open_may_fail);
    tcase_add_test(tcase, closing_with_clients_that_send_never_hangs);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
