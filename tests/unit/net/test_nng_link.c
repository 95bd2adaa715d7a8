#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/frame.h"
#include "common/net/nng_link.h"
#include "tests/support/draw_message.h"
#include "tests/support/test.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE                                                                                                       \
    (60 *                                                                                                              \
     BT_SECOND) // of a busy machine (1,000 messages under faults took over 20 s at a load of ten); no test needs it

static bt_loop *loop;
static char url[64];

static void
set_up(void)
{
    url[0] = 0;
    bt_log_set_level(getenv("BATON_TEST_LOG") != NULL ? BT_LOG_INFO : BT_LOG_NONE);
    ck_assert_int_eq(bt_loop_open(&loop), BT_OK);
}

static void
tear_down(void)
{
    bt_loop_close(loop);
}

static bt_nng_link_options
defaults(void)
{
    bt_nng_link_options options = bt_nng_link_defaults();

    options.secret = "open sesame";
    options.accepted_max = 4;
    options.frame_bytes_max = 1u << 20;
    options.pause_min = BT_MILLISECOND;
    options.pause_max = 20 * BT_MILLISECOND;
    return options;
}

// Listens on any port at first, on that one again later.
static bt_link *
open_listener(const bt_nng_link_options *base)
{
    const char *any = url[0] != 0 ? url : "tcp://127.0.0.1:0";
    bt_nng_link_options options = *base;
    bt_link *link;
    bt_why why;

    options.listen = &any;
    options.listen_count = 1;
    ck_assert_msg(bt_nng_link_open(&link, loop, &options, &why) == BT_OK, "%s", why.text);
    if (url[0] == 0)
        snprintf(url, sizeof url, "tcp://127.0.0.1:%u", bt_nng_link_port(link, 0));
    return link;
}

static bt_link *
open_dialer(const bt_nng_link_options *base)
{
    bt_nng_peer peer = {url, NULL};
    bt_nng_link_options options = *base;
    bt_link *link;
    bt_why why;

    options.dial = &peer;
    options.dial_count = 1;
    options.accepted_max = 0;
    ck_assert_msg(bt_nng_link_open(&link, loop, &options, &why) == BT_OK, "%s", why.text);
    return link;
}

static bool
wait_event(bt_link *link, bt_link *other, bt_time patience, bt_link_event *out)
{
    bt_time end = bt_time_now() + patience;
    bt_link_event dropped;

    while (!bt_link_receive(link, out)) {
        if (bt_time_now() >= end)
            return false;
        while (other != NULL && bt_link_receive(other, &dropped))
            ;
        bt_loop_once(loop, 5 * BT_MILLISECOND);
    }
    return true;
}

static uint32_t
expect(bt_link *link, bt_link_event_kind kind)
{
    bt_link_event event;

    ck_assert_msg(wait_event(link, NULL, PATIENCE, &event), "event %d did not come", kind);
    ck_assert_int_eq(event.kind, kind);
    return event.peer;
}

static void
run_for(bt_time length)
{
    bt_time end = bt_time_now() + length;

    while (bt_time_now() < end)
        bt_loop_once(loop, BT_MILLISECOND);
}

static bt_nng_link_stats
stats_of(const bt_link *link)
{
    bt_nng_link_stats stats;

    bt_nng_link_read_stats(link, &stats);
    return stats;
}

static bt_message
a_heartbeat(uint64_t number)
{
    return (bt_message){.kind = BT_MESSAGE_HEARTBEAT, .heartbeat.number = number};
}

static bt_message
a_tokens(uint64_t number)
{
    return (bt_message){.kind = BT_MESSAGE_TOKENS, .tokens.number = number};
}

static bt_message
a_reserve(uint32_t slot)
{
    static const bt_sampling sampling = {.repetition_penalty = 1};
    static const int32_t ids[1] = {5};
    bt_message message = {.kind = BT_MESSAGE_RESERVE};

    message.reserve = (bt_job){.request = {.slot = slot},
                               .ids = ids,
                               .prompt_count = 1,
                               .max_tokens = 1,
                               .sampling = &sampling,
                               .time_left = 1};
    return message;
}

START_TEST(messages_of_every_kind_arrive_both_ways_in_order)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *dialer = open_dialer(&options);
    uint32_t peer = (expect(dialer, BT_LINK_UP), expect(listener, BT_LINK_UP));
    bt_rng send_rng[2] = {{1}, {2}}, receive_rng[2] = {{1}, {2}};
    bt_link *ends[2] = {dialer, listener};
    int sent[2] = {0}, received[2] = {0};
    bt_time end = bt_time_now() + PATIENCE;
    bt_link_event event;
    bt_message message;

    while (received[0] + received[1] < 1200 && bt_time_now() < end) {
        for (int side = 0; side < 2; side++) {
            bt_rng before = send_rng[side];

            // Kinds that keep their order; the two that may overtake have a test of their own.
            if (sent[side] < 600) {
                bt_draw_message(&send_rng[side], BT_MESSAGE_NONE, &message);
                if (message.kind == BT_MESSAGE_ABORT || message.kind == BT_MESSAGE_HEARTBEAT)
                    bt_draw_message(&send_rng[side], BT_MESSAGE_OFFER, &message);
                if (sent[side] - received[!side] >= 100)
                    send_rng[side] = before;
                else if (bt_link_send(ends[side], side == 0 ? 0 : peer, &message) == BT_OK)
                    sent[side]++;
                else
                    ck_abort_msg("a send was refused");
            }
            while (bt_link_receive(ends[side], &event)) {
                ck_assert_int_eq(event.kind, BT_LINK_MESSAGE);
                bt_draw_message(&receive_rng[!side], BT_MESSAGE_NONE, &message);
                if (message.kind == BT_MESSAGE_ABORT || message.kind == BT_MESSAGE_HEARTBEAT)
                    bt_draw_message(&receive_rng[!side], BT_MESSAGE_OFFER, &message);
                ck_assert(bt_same_message(event.message, &message));
                received[side]++;
            }
        }
        bt_loop_once(loop, BT_MILLISECOND);
    }
    ck_assert_int_eq(received[0], 600);
    ck_assert_int_eq(received[1], 600);
    ck_assert_uint_eq(stats_of(dialer).gaps + stats_of(listener).gaps, 0);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

START_TEST(a_wrong_secret_is_refused_and_the_right_one_comes_in_beside_it)
{
    bt_nng_link_options options = defaults(), wrong = defaults();
    bt_link *listener = open_listener(&options), *stranger, *friend;
    bt_link_event event;

    wrong.secret = "open barley";
    stranger = open_dialer(&wrong);
    ck_assert(!wait_event(listener, stranger, 400 * BT_MILLISECOND, &event));
    ck_assert_uint_ge(stats_of(listener).refused, 2); // it tried more than once
    ck_assert(!bt_link_receive(stranger, &event));
    friend = open_dialer(&options);
    expect(friend, BT_LINK_UP);
    expect(listener, BT_LINK_UP);
    ck_assert_uint_eq(stats_of(stranger).ups, 0);
    bt_link_close(stranger);
    bt_link_close(friend);
    bt_link_close(listener);
}
END_TEST

static int
knock(const void *bytes, size_t length)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
    return fd;
}

static int
knock_with_frame(bt_frame_kind kind, uint32_t length)
{
    bt_frame_head head = {.kind = kind, .sequence = 1, .length = length};
    uint8_t bytes[BT_FRAME_HEAD_BYTES];

    bt_frame_write(&head, bytes);
    return knock(bytes, sizeof bytes);
}

START_TEST(strangers_who_speak_otherwise_disturb_nobody)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *friend = open_dialer(&options);
    bt_message message = a_tokens(1);
    bt_link_event event;
    int fds[4];

    expect(friend, BT_LINK_UP);
    expect(listener, BT_LINK_UP);
    fds[0] = knock("GET / HTTP/1.1\r\n\r\n", 18);
    fds[1] = knock_with_frame(BT_FRAME_DATA, BT_FRAME_HEAD_BYTES);  // before the greeting
    fds[2] = knock_with_frame(BT_FRAME_PROOF, BT_FRAME_HEAD_BYTES); // of nothing
    fds[3] = knock_with_frame(BT_FRAME_GREET, 100000);              // wants us to wait for its bytes
    for (bt_time end = bt_time_now() + PATIENCE; stats_of(listener).refused < 4 && bt_time_now() < end;)
        bt_loop_once(loop, BT_MILLISECOND);
    ck_assert_uint_eq(stats_of(listener).refused, 4);
    ck_assert_uint_eq(stats_of(listener).foreign, 2);
    ck_assert_int_eq(bt_link_send(friend, 0, &message), BT_OK);
    ck_assert(wait_event(listener, friend, PATIENCE, &event));
    ck_assert_int_eq(event.kind, BT_LINK_MESSAGE);
    for (int i = 0; i < 4; i++) {
        char byte;

        ck_assert_int_le(read(fds[i], &byte, 1), 0); // closed, and nothing was said
        close(fds[i]);
    }
    bt_link_close(friend);
    bt_link_close(listener);
}
END_TEST

START_TEST(a_listener_that_comes_back_is_found_again)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *dialer = open_dialer(&options);
    bt_message message = a_tokens(3);
    bt_link_event event;

    for (int round = 0; round < 3; round++) {
        expect(dialer, BT_LINK_UP);
        expect(listener, BT_LINK_UP);
        bt_link_close(listener);
        expect(dialer, BT_LINK_DOWN);
        ck_assert_int_eq(bt_link_send(dialer, 0, &message), BT_ERR_PEER);
        listener = open_listener(&options);
    }
    expect(dialer, BT_LINK_UP);
    ck_assert_int_eq(bt_link_send(dialer, 0, &message), BT_OK);
    expect(listener, BT_LINK_UP);
    ck_assert(wait_event(listener, dialer, PATIENCE, &event));
    ck_assert_int_eq(event.kind, BT_LINK_MESSAGE);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

START_TEST(a_peer_that_does_not_read_meets_a_full_queue_and_loses_nothing)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *dialer;
    bt_link_event event;
    uint32_t sent = 0, aborted = 0, next = 0;
    bool overtook = false;
    bt_message abort_old, heartbeat = a_heartbeat(1);

    options.queue_max = 16;
    dialer = open_dialer(&options);
    expect(dialer, BT_LINK_UP);
    expect(listener, BT_LINK_UP);
    for (bt_err err = BT_OK; err == BT_OK;) {
        bt_message message = a_reserve(sent);

        err = bt_link_send(dialer, 0, &message);
        sent += err == BT_OK;
        ck_assert(err == BT_OK || err == BT_ERR_BUSY);
    }
    ck_assert_uint_eq(sent, 32 + 12); // all credits, and three quarters of the queue
    run_for(20 * BT_MILLISECOND);
    // An abort of what is under way overtakes what waits, one of what waits stays behind it; a heartbeat waits for no job.
    abort_old = (bt_message){.kind = BT_MESSAGE_ABORT, .abort.request.slot = 43};
    ck_assert_int_eq(bt_link_send(dialer, 0, &abort_old), BT_OK);
    abort_old.abort.request.slot = 2;
    ck_assert_int_eq(bt_link_send(dialer, 0, &abort_old), BT_OK);
    ck_assert_int_eq(bt_link_send(dialer, 0, &heartbeat), BT_OK);
    while (next < sent || aborted < 2) {
        ck_assert(wait_event(listener, NULL, PATIENCE, &event));
        ck_assert_int_eq(event.kind, BT_LINK_MESSAGE);
        if (event.message->kind == BT_MESSAGE_RESERVE) {
            ck_assert_uint_eq(event.message->reserve.request.slot, next++);
        } else if (event.message->kind == BT_MESSAGE_HEARTBEAT) {
            overtook = next < sent;
        } else {
            ck_assert(event.message->abort.request.slot < next); // its job was here before it
            aborted++;
        }
    }
    ck_assert(overtook);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

START_TEST(a_link_is_quiet_when_all_was_read)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *dialer = open_dialer(&options);
    uint32_t peer = (expect(dialer, BT_LINK_UP), expect(listener, BT_LINK_UP));
    bt_message beat = a_heartbeat(1);
    bt_time end = bt_time_now() + PATIENCE;
    bt_link_event event;

    ck_assert(bt_nng_link_quiet(listener));
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(bt_link_send(listener, peer, &beat), BT_OK);
    ck_assert(!bt_nng_link_quiet(listener));
    run_for(20 * BT_MILLISECOND);
    ck_assert(!bt_nng_link_quiet(listener)); // more than there is credit for, and nobody reads
    while (!bt_nng_link_quiet(listener) && bt_time_now() < end) {
        while (bt_link_receive(dialer, &event))
            ;
        bt_loop_once(loop, BT_MILLISECOND);
    }
    ck_assert(bt_nng_link_quiet(listener));
    bt_link_close(dialer);
    bt_link_close(listener);
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

// Else a small message may wait 40 ms, until the one before has been acknowledged (Nagle's algorithm).
START_TEST(no_end_holds_a_message_back_until_the_one_before_is_acknowledged)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *dialer = open_dialer(&options);
    int at_once;

    expect(dialer, BT_LINK_UP);
    expect(listener, BT_LINK_UP);
    ck_assert_int_eq(count_connections(&at_once), 2);
    ck_assert_int_eq(at_once, 2);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

START_TEST(tokens_that_find_no_room_close_the_connection)
{
    bt_nng_link_options options = defaults();
    bt_link *listener = open_listener(&options), *dialer;
    bt_err err = BT_OK;

    options.queue_max = 16;
    dialer = open_dialer(&options);
    expect(dialer, BT_LINK_UP);
    expect(listener, BT_LINK_UP);
    for (int i = 0; i < 32 + 16; i++) {
        bt_message message = a_tokens(i + 1);

        err = bt_link_send(dialer, 0, &message);
        ck_assert_int_eq(err, BT_OK);
    }
    {
        bt_message message = a_tokens(49);

        ck_assert_int_eq(bt_link_send(dialer, 0, &message), BT_ERR_BUSY);
    }
    expect(dialer, BT_LINK_DOWN);
    expect(dialer, BT_LINK_UP);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

START_TEST(a_message_over_the_limit_is_refused_and_the_link_goes_on)
{
    static int32_t ids[2000];
    bt_nng_link_options options = defaults();
    bt_message message = a_reserve(1);
    bt_link *listener, *dialer;

    options.frame_bytes_max = 4096;
    listener = open_listener(&options);
    dialer = open_dialer(&options);
    expect(dialer, BT_LINK_UP);
    for (int i = 0; i < 2000; i++)
        ids[i] = 1 << 20;
    message.reserve.ids = ids;
    message.reserve.prompt_count = 2000;
    ck_assert_int_eq(bt_link_send(dialer, 0, &message), BT_ERR_TOO_LONG);
    message.reserve.prompt_count = 500;
    ck_assert_int_eq(bt_link_send(dialer, 0, &message), BT_OK);
    expect(listener, BT_LINK_UP);
    expect(listener, BT_LINK_MESSAGE);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

// Larger than what the system buffers, from both sides before either reads.
START_TEST(both_ends_may_send_much_at_once)
{
    static int32_t ids[200000];
    bt_nng_link_options options = defaults();
    bt_link *ends[2];
    uint32_t peers[2] = {0, 0}, received[2] = {0};
    bt_message message = a_reserve(0);
    bt_time end = bt_time_now() + PATIENCE;
    bt_link_event event;

    ends[1] = open_listener(&options);
    ends[0] = open_dialer(&options);
    expect(ends[0], BT_LINK_UP);
    peers[1] = expect(ends[1], BT_LINK_UP);
    for (int i = 0; i < 200000; i++)
        ids[i] = (1 << 21) + i; // four bytes each
    message.reserve.ids = ids;
    message.reserve.prompt_count = 200000;
    for (uint32_t i = 0; i < 40; i++) {
        message.reserve.request.slot = i / 2;
        ck_assert_int_eq(bt_link_send(ends[i % 2], peers[i % 2], &message), BT_OK);
    }
    while (received[0] + received[1] < 40 && bt_time_now() < end) {
        for (int side = 0; side < 2; side++) {
            while (bt_link_receive(ends[side], &event)) {
                ck_assert_int_eq(event.kind, BT_LINK_MESSAGE);
                ck_assert_uint_eq(event.message->reserve.request.slot, received[side]++);
                ck_assert(memcmp(event.message->reserve.ids, ids, sizeof ids) == 0);
            }
        }
        bt_loop_once(loop, BT_MILLISECOND);
    }
    ck_assert_uint_eq(received[0], 20);
    ck_assert_uint_eq(received[1], 20);
    bt_link_close(ends[0]);
    bt_link_close(ends[1]);
}
END_TEST

typedef struct {
    bt_rng rng;
    uint32_t one_in;
    bool all;
} network;

static bt_fate
draw_fate(void *self)
{
    network *net = self;

    if (net->all)
        return BT_FATE_DROP;
    return bt_rng_below(&net->rng, net->one_in) != 0 ? BT_FATE_PASS : (bt_fate)(1 + bt_rng_below(&net->rng, 3));
}

// Within one connection the numbers count up by one from where the sender began; every fault ends in a DOWN, or did no harm.
START_TEST(under_faults_messages_arrive_once_and_in_order_or_the_connection_closes)
{
    network net = {{_i}, 40, false};
    bt_nng_link_options options = defaults();
    bt_link *listener, *dialer;
    bt_time end;
    bt_link_event event;
    uint64_t next = 0, sent = 0, received = 0, sessions = 0;
    bool up = false;

    options.silence_max =
        300 * BT_MILLISECOND; // acknowledgements are six times as frequent: a lost last frame shows soon
    listener = open_listener(&options);
    options.fate = draw_fate;
    options.fate_self = &net;
    dialer = open_dialer(&options);
    end = bt_time_now() + PATIENCE;
    while ((received < 1000 || sessions < 4) && bt_time_now() < end) {
        bt_message message = a_tokens(sent);

        while (bt_link_receive(dialer, &event))
            up = event.kind == BT_LINK_UP;
        if (up && sent - received < 64 + 1000 * sessions)
            sent += bt_link_send(dialer, 0, &message) == BT_OK;
        while (bt_link_receive(listener, &event)) {
            if (event.kind == BT_LINK_UP) {
                next = UINT64_MAX;
                sessions++;
            } else if (event.kind == BT_LINK_MESSAGE) {
                uint64_t number = event.message->tokens.number;

                ck_assert_msg(next == UINT64_MAX || number == next, "seed %d", _i);
                next = number + 1;
                received++;
            }
        }
        bt_loop_once(loop, 0);
    }
    ck_assert_uint_ge(received, 1000);
    ck_assert_uint_ge(sessions, 4);
    ck_assert_uint_ge(stats_of(listener).gaps, 3);
    ck_assert_uint_ge(stats_of(listener).duplicates, 1);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

START_TEST(a_peer_that_falls_silent_is_given_up)
{
    network net = {{1}, 1, false};
    bt_nng_link_options options = defaults();
    bt_link *listener, *dialer;

    net.one_in = UINT32_MAX;
    options.silence_max = 300 * BT_MILLISECOND;
    listener = open_listener(&options);
    options.fate = draw_fate;
    options.fate_self = &net;
    dialer = open_dialer(&options);
    expect(dialer, BT_LINK_UP);
    expect(listener, BT_LINK_UP);
    run_for(600 * BT_MILLISECOND);
    ck_assert(!bt_link_pending(listener)); // idle is not silent
    net.all = true;
    expect(listener, BT_LINK_DOWN);
    bt_link_close(dialer);
    bt_link_close(listener);
}
END_TEST

// A port whose queue is full: the system drops what knocks, as a host behind a cut cable would.
static int
listen_deaf(int knockers[8])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    for (int i = 0; i < 8; i++) {
        knockers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(knockers[i], (struct sockaddr *)&address, sizeof address);
    }
    return fd;
}

START_TEST(closing_does_not_wait_for_an_address_that_does_not_answer)
{
    bt_nng_link_options options = defaults();
    int knockers[8], deaf = listen_deaf(knockers);
    bt_link *dialer;
    bt_time begin;

    options.greeting_max = 60 * BT_SECOND;
    dialer = open_dialer(&options);
    run_for(100 * BT_MILLISECOND);
    ck_assert(!bt_link_pending(dialer));
    begin = bt_time_now();
    bt_link_close(dialer);
    ck_assert_int_lt(bt_time_now() - begin, 10 * BT_SECOND);
    for (int i = 0; i < 8; i++)
        close(knockers[i]);
    close(deaf);
}
END_TEST

START_TEST(no_more_connections_are_accepted_than_there_is_room_for)
{
    bt_nng_link_options options = defaults();
    bt_link *listener, *dialers[3];

    options.accepted_max = 2;
    listener = open_listener(&options);
    for (int i = 0; i < 2; i++) {
        dialers[i] = open_dialer(&options);
        expect(dialers[i], BT_LINK_UP);
        expect(listener, BT_LINK_UP);
    }
    dialers[2] = open_dialer(&options);
    run_for(200 * BT_MILLISECOND);
    ck_assert(!bt_link_pending(dialers[2]));
    ck_assert_uint_ge(stats_of(listener).refused, 1);
    bt_link_close(dialers[0]);
    expect(listener, BT_LINK_DOWN);
    expect(dialers[2], BT_LINK_UP);
    bt_link_close(dialers[1]);
    bt_link_close(dialers[2]);
    bt_link_close(listener);
}
END_TEST

START_TEST(bad_settings_are_named)
{
    const char *nowhere = "tcp://no-such-host.invalid:1";
    bt_nng_peer nameless = {"tls+tcp://127.0.0.1:1", NULL};
    bt_nng_link_options options = defaults();
    bt_link *link = NULL, *taken;
    bt_why why;

    options.secret = "";
    ck_assert_int_eq(bt_nng_link_open(&link, loop, &options, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "secret"));
    options = defaults();
    options.dial = &nameless;
    options.dial_count = 1;
    ck_assert_int_eq(bt_nng_link_open(&link, loop, &options, &why), BT_ERR_INVALID);
    nameless.tls_name = "node";
    ck_assert_int_eq(bt_nng_link_open(&link, loop, &options, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "tls.ca_file"));
    options.tls.ca_file = options.tls.cert_key_file = "/nonexistent/ca.pem";
    ck_assert_int_eq(bt_nng_link_open(&link, loop, &options, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "/nonexistent/ca.pem"));
    options = defaults();
    options.listen = &nowhere;
    options.listen_count = 1;
    ck_assert_int_eq(bt_nng_link_open(&link, loop, &options, &why), BT_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, nowhere));
    ck_assert_ptr_null(link);
    taken = open_listener(&options);
    nowhere = url;
    ck_assert_int_eq(bt_nng_link_open(&link, loop, &options, &why), BT_ERR_IO);
    ck_assert_ptr_nonnull(strstr(why.text, "in use"));
    bt_link_close(taken);
}
END_TEST

START_TEST(opening_survives_each_failing_allocation)
{
    const char *any = "tcp://127.0.0.1:0";
    bt_nng_peer peer = {"tcp://127.0.0.1:9", NULL};
    bt_nng_link_options options = defaults();
    long live = bt_mem_live();
    bt_err err = BT_ERR_NO_MEMORY;

    options.listen = &any;
    options.listen_count = 1;
    options.dial = &peer;
    options.dial_count = 1;
    for (long n = 1; err != BT_OK; n++) {
        bt_link *link = NULL;

        bt_mem_fail_nth(n);
        err = bt_nng_link_open(&link, loop, &options, NULL);
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || err == BT_ERR_NO_MEMORY);
        bt_link_close(link);
        ck_assert_int_eq(bt_mem_live(), live);
    }
}
END_TEST

// ---- another process ----

// A program of its own that dials and sends numbered TOKENS until it is killed.
// No assertions here: they want a running test.
static _Noreturn void
be_the_other(void)
{
    bt_nng_link_options options = defaults();
    bt_nng_peer peer = {getenv("BATON_TEST_URL"), NULL};
    bt_link_event event;
    bt_link *link;
    uint64_t number = 0;

    alarm(60);
    bt_log_set_level(BT_LOG_NONE);
    options.silence_max = 500 * BT_MILLISECOND;
    options.dial = &peer;
    options.dial_count = 1;
    options.accepted_max = 0;
    if (bt_loop_open(&loop) != BT_OK || bt_nng_link_open(&link, loop, &options, NULL) != BT_OK)
        _exit(1);
    for (;;) {
        bt_message message = a_tokens(number);

        while (bt_link_receive(link, &event))
            number = event.kind == BT_LINK_UP ? 0 : number;
        message.tokens.number = number;
        number += bt_link_send(link, 0, &message) == BT_OK;
        bt_loop_once(loop, BT_MILLISECOND);
    }
}

static pid_t
start_other(void)
{
    pid_t child;

    setenv("BATON_TEST_URL", url, 1);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_nng_link", "other", (char *)NULL);
        _exit(1);
    }
    return child;
}

// Waits for UP and some messages, which count from 0 in each connection.
static void
expect_messages(bt_link *link)
{
    bt_link_event event;

    expect(link, BT_LINK_UP);
    for (uint64_t i = 0; i < 20; i++) {
        ck_assert(wait_event(link, NULL, PATIENCE, &event));
        ck_assert_int_eq(event.kind, BT_LINK_MESSAGE);
        ck_assert_uint_eq(event.message->tokens.number, i);
    }
}

static void
expect_down(bt_link *link)
{
    bt_link_event event = {0};

    while (event.kind != BT_LINK_DOWN)
        ck_assert(wait_event(link, NULL, PATIENCE, &event));
}

START_TEST(a_process_that_is_killed_or_frozen_goes_down_and_its_successor_comes_up)
{
    bt_nng_link_options options = defaults();
    bt_link *listener;
    pid_t child;

    options.silence_max = 500 * BT_MILLISECOND;
    listener = open_listener(&options);
    child = start_other();
    expect_messages(listener);
    for (int i = 0; i < 3; i++) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        expect_down(listener);
        child = start_other();
        expect_messages(listener);
    }
    kill(child, SIGSTOP);
    expect_down(listener);
    kill(child, SIGCONT); // it finds out by itself that it was given up
    expect_messages(listener);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    expect_down(listener);
    bt_link_close(listener);
}
END_TEST

// ---- TLS ----

static char folder[] = "/tmp/baton-test-XXXXXX";

static void
shell(const char *format, const char *a, const char *b)
{
    char command[1024];

    snprintf(command, sizeof command, format, folder, a, b);
    ck_assert_msg(system(command) == 0, "%s", command);
}

// An authority, and a certificate for `name` that it has signed.
static void
make_authority(const char *authority)
{
    shell("cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=%s "
          "-keyout authority.tmp -out "
          "certificate.tmp "
          "2>/dev/null && mv authority.tmp %s.key",
          authority, authority);
    shell("cd %s && mv certificate.tmp %s%s", authority, ".crt");
}

static void
make_certificate(const char *authority, const char *name)
{
    shell("cd %s && A=%s && N=%s && openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$N "
          "-keyout $N.key -out $N.csr "
          "2>/dev/null && "
          "printf 'subjectAltName=DNS:'$N'\\n' >$N.ext && "
          "openssl x509 -req -in $N.csr -CA $A.crt -CAkey $A.key -CAcreateserial -days 2 -extfile $N.ext -out $N.crt "
          "2>/dev/null && "
          "cat $N.crt $N.key >$N.pem",
          authority, name);
}

static const char *
in_folder(const char *name)
{
    static char paths[4][128];
    static int at;

    at = (at + 1) % 4;
    snprintf(paths[at], sizeof paths[at], "%s/%s", folder, name);
    return paths[at];
}

// Does a dialler with this certificate, who expects this name, come up with `node.one`?
static bool
comes_up(const char *certificate, const char *expected_name, const char *authority)
{
    const char *any = "tls+tcp://127.0.0.1:0";
    bt_nng_link_options options = defaults();
    bt_nng_peer peer = {url, expected_name};
    bt_link *listener, *dialer;
    bt_link_event event;
    bt_why why;
    bool up;

    options.listen = &any;
    options.listen_count = 1;
    options.tls.ca_file = in_folder("authority.crt");
    options.tls.cert_key_file = in_folder("node.one.pem");
    ck_assert_msg(bt_nng_link_open(&listener, loop, &options, &why) == BT_OK, "%s", why.text);
    snprintf(url, sizeof url, "tls+tcp://127.0.0.1:%u", bt_nng_link_port(listener, 0));
    options = defaults();
    options.accepted_max = 0;
    options.dial = &peer;
    options.dial_count = 1;
    options.tls.ca_file = in_folder(authority);
    options.tls.cert_key_file = in_folder(certificate);
    ck_assert_msg(bt_nng_link_open(&dialer, loop, &options, &why) == BT_OK, "%s", why.text);
    up = wait_event(dialer, listener,
                    strcmp(expected_name, "node.one") == 0 && strncmp(certificate, "node", 4) == 0 ? PATIENCE
                                                                                                   : 2 * BT_SECOND,
                    &event) &&
         event.kind == BT_LINK_UP;
    bt_link_close(dialer);
    bt_link_close(listener);
    return up;
}

START_TEST(certificates_and_their_names_are_checked_on_both_sides)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    make_authority("authority");
    make_authority("stranger");
    make_certificate("authority", "node.one");
    make_certificate("authority", "node.two");
    make_certificate("stranger", "mallory");
    ck_assert(comes_up("node.two.pem", "node.one", "authority.crt"));
    ck_assert(!comes_up("node.two.pem", "node.three", "authority.crt")); // it is node.one that answers
    ck_assert(!comes_up("mallory.pem", "node.one", "authority.crt"));    // signed by somebody else
    bt_test_remove(folder);
}
END_TEST

int
main(int argc, char **argv)
{
    Suite *suite = suite_create("nng_link");
    TCase *all = tcase_create("all");

    if (argc > 1 && strcmp(argv[1], "other") == 0)
        be_the_other();
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, messages_of_every_kind_arrive_both_ways_in_order);
    tcase_add_test(all, a_wrong_secret_is_refused_and_the_right_one_comes_in_beside_it);
    tcase_add_test(all, strangers_who_speak_otherwise_disturb_nobody);
    tcase_add_test(all, a_listener_that_comes_back_is_found_again);
    tcase_add_test(all, a_peer_that_does_not_read_meets_a_full_queue_and_loses_nothing);
    tcase_add_test(all, a_link_is_quiet_when_all_was_read);
    tcase_add_test(all, no_end_holds_a_message_back_until_the_one_before_is_acknowledged);
    tcase_add_test(all, tokens_that_find_no_room_close_the_connection);
    tcase_add_test(all, a_message_over_the_limit_is_refused_and_the_link_goes_on);
    tcase_add_test(all, both_ends_may_send_much_at_once);
    tcase_add_loop_test(all, under_faults_messages_arrive_once_and_in_order_or_the_connection_closes, 1, 5);
    tcase_add_test(all, a_peer_that_falls_silent_is_given_up);
    tcase_add_test(all, a_process_that_is_killed_or_frozen_goes_down_and_its_successor_comes_up);
    tcase_add_test(all, closing_does_not_wait_for_an_address_that_does_not_answer);
    tcase_add_test(all, no_more_connections_are_accepted_than_there_is_room_for);
    tcase_add_test(all, bad_settings_are_named);
    tcase_add_test(all, opening_survives_each_failing_allocation);
    tcase_add_test(all, certificates_and_their_names_are_checked_on_both_sides);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
