#include "tools/bench_router_load.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "tools/sse_reader.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define LINGER (5 * BT_SECOND) // that the last answers may take

typedef struct load load;

typedef struct connection {
    load *l;
    int fd;
    bt_watch watch;
    uint32_t request;
    bt_time sent; // on the wall clock, as the kernel's stamps
    bool busy, error_seen;
    bt_sse_reader reader;
    struct connection *next; // idle
} connection;

struct load {
    const bt_load_options *o;
    bt_load_result *results;
    bt_load_summary *summary;
    bt_loop *loop;
    bt_watch alarm; // of a timerfd: the loop's own timers count whole milliseconds, and bursts are not what we want
    int alarm_fd;
    connection *connections, *idle, **idle_last; // first in, first out: each is used, so none is closed as idle
    bt_rng rng;
    bt_time next, over;
    uint32_t started, ended;
};

// The clock of the kernel's stamps. It may be set, but not by us and hardly within the microseconds of one request.
static bt_time
wall_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * BT_SECOND + t.tv_nsec;
}

static void
note_error(load *l, const char *words)
{
    if (l->summary->errors++ == 0)
        snprintf(l->summary->first_error, sizeof l->summary->first_error, "%.190s", words);
}

static void
draw_arrival(load *l)
{
    double wait = -log(1 - (double)bt_rng_float(&l->rng)) / (double)l->o->rate;

    l->next += (bt_time)(wait * (double)BT_SECOND);
}

static void
put_idle(load *l, connection *c)
{
    c->next = NULL;
    *l->idle_last = c;
    l->idle_last = &c->next;
}

static connection *
take_idle(load *l)
{
    connection *c = l->idle;

    if (c != NULL && (l->idle = c->next) == NULL)
        l->idle_last = &l->idle;
    return c;
}

static void start_due(load *l);

static size_t
put_request(const load *l, uint32_t number, char *out, size_t size)
{
    bool streamed = number % 2 != 0, chat = number / 2 % 2 != 0;
    char body[512];
    int len = snprintf(body, sizeof body,
                       chat ? "{\"messages\":[{\"role\":\"user\",\"content\":\"Number %u, say hello to "
                              "everyone\"}],\"max_tokens\":%u,\"temperature\":0,\"seed\":%u%s}"
                            : "{\"prompt\":\"Once upon a time %u people said "
                              "hello\",\"max_tokens\":%u,\"temperature\":0,\"seed\":%u%s}",
                       number, l->o->max_tokens, number, streamed ? ",\"stream\":true" : "");

    return (size_t)snprintf(out, size,
                            "POST /v1/%scompletions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            "Content-Length: %d\r\n\r\n%s",
                            chat ? "chat/" : "", len, body);
}

static void
start(connection *c)
{
    load *l = c->l;
    char bytes[1024];
    size_t len = put_request(l, l->started, bytes, sizeof bytes);

    c->request = l->started++;
    c->busy = true;
    c->error_seen = false;
    bt_sse_reader_init(&c->reader);
    c->sent = wall_now();
    if (send(c->fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len)
        c->error_seen = true; // its answer will not come, and LINGER ends the wait
}

static void
finish(connection *c, bt_time came)
{
    load *l = c->l;
    bt_load_result *r = &l->results[c->request];

    r->took = came - c->sent;
    r->streamed = c->request % 2 != 0;
    r->failed = c->error_seen || c->reader.failed || c->reader.status != 200;
    if (r->failed)
        note_error(l, c->reader.failed ? "an answer that is not HTTP, or a connection that broke" : c->reader.frame);
    c->busy = false;
    put_idle(l, c);
    l->ended++;
    if (l->ended == l->o->count)
        bt_loop_stop(l->loop);
    else if (l->idle == c)
        start_due(l); // some may have waited for a connection
}

static void
on_data(void *self, bt_str data)
{
    connection *c = self;

    if (data.len > 9 && memcmp(data.data, "{\"error\":", 9) == 0)
        c->error_seen = true;
}

// When the kernel had the newest of the bytes.
static bt_time
stamp_of(struct msghdr *m)
{
    for (struct cmsghdr *at = CMSG_FIRSTHDR(m); at != NULL; at = CMSG_NXTHDR(m, at)) {
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SO_TIMESTAMPING) {
            struct scm_timestamping stamps;

            memcpy(&stamps, CMSG_DATA(at), sizeof stamps);
            return stamps.ts[0].tv_sec * BT_SECOND + stamps.ts[0].tv_nsec;
        }
    }
    return wall_now();
}

static void
on_ready(void *self, uint32_t events)
{
    connection *c = self;
    char bytes[65536], control[256];
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->fd, &m, MSG_DONTWAIT);

    (void)events;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        bt_loop_unwatch(c->l->loop, &c->watch);
        if (c->busy) {
            bt_sse_read_end(&c->reader);
            c->reader.failed |= !c->reader.done;
            finish(c, wall_now());
        } else {
            note_error(c->l, "the server closed an idle connection");
        }
        return;
    }
    bt_sse_read(&c->reader, bytes, (size_t)got, on_data, c);
    if (c->busy && c->reader.done)
        finish(c, stamp_of(&m));
}

static bt_err
connect_to(connection *c, uint16_t port, bt_why *why)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1, stamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;

    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0)
        return bt_fail(why, BT_ERR_IO, "port %u: %s", port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->fd, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof stamps);
    c->watch = (bt_watch){.ready = on_ready, .self = c};
    return bt_loop_watch(c->l->loop, &c->watch, c->fd, EPOLLIN);
}

// Sends what is due, and wakes for what is next.
static void
start_due(load *l)
{
    bt_time now = bt_time_now(), at;
    struct itimerspec alarm = {0};

    while (l->started < l->o->count && l->next <= now) {
        connection *c = take_idle(l);

        if (c == NULL) {
            l->summary->late++;
            break;
        }
        draw_arrival(l);
        start(c);
        l->over = now + LINGER;
    }
    at = l->started < l->o->count && l->idle != NULL ? l->next : l->over;
    alarm.it_value = (struct timespec){at / BT_SECOND, at % BT_SECOND};
    timerfd_settime(l->alarm_fd, TFD_TIMER_ABSTIME, &alarm, NULL);
}

static void
on_alarm(void *self, uint32_t events)
{
    load *l = self;
    uint64_t times;

    (void)events;
    if (read(l->alarm_fd, &times, sizeof times) != sizeof times)
        return;
    if (bt_time_now() >= l->over) {
        note_error(l, "some answers did not come");
        bt_loop_stop(l->loop);
        return;
    }
    start_due(l);
}

static void
close_load(load *l)
{
    for (uint32_t i = 0; l->connections != NULL && i < l->o->connections; i++) {
        if (l->connections[i].fd >= 0)
            close(l->connections[i].fd);
    }
    bt_free(l->connections);
    if (l->alarm_fd >= 0)
        close(l->alarm_fd);
    bt_loop_close(l->loop);
}

bt_err
bt_load_run(const bt_load_options *o, bt_load_result *results, bt_load_summary *out, bt_why *why)
{
    load l = {.o = o, .results = results, .summary = out, .rng = {o->seed}, .alarm_fd = -1};
    bt_time begun;
    bt_err err;

    l.idle_last = &l.idle;
    *out = (bt_load_summary){0};
    for (uint32_t i = 0; i < o->count; i++)
        results[i] = (bt_load_result){.failed = true};
    l.connections = bt_alloc_array(o->connections, sizeof *l.connections);
    if (l.connections == NULL || (err = bt_loop_open(&l.loop)) != BT_OK) {
        bt_free(l.connections);
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u connections", o->connections);
    }
    for (uint32_t i = 0; i < o->connections; i++) {
        connection *c = &l.connections[i];

        *c = (connection){.l = &l, .fd = -1};
        put_idle(&l, c);
    }
    for (uint32_t i = 0; i < o->connections && err == BT_OK; i++)
        err = connect_to(&l.connections[i], o->port, why);
    l.alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l.alarm = (bt_watch){.ready = on_alarm, .self = &l};
    if (err == BT_OK && (l.alarm_fd < 0 || bt_loop_watch(l.loop, &l.alarm, l.alarm_fd, EPOLLIN) != BT_OK))
        err = bt_fail(why, BT_ERR_IO, "no timer: %s", strerror(errno));
    if (err == BT_OK) {
        begun = l.next = bt_time_now();
        l.over = begun + LINGER;
        start_due(&l);
        bt_loop_run(l.loop);
        out->seconds = (double)(bt_time_now() - begun) / (double)BT_SECOND;
    }
    close_load(&l);
    return err;
}
