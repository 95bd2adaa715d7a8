// Connections: the listening socket, the daemon inside our loop, deadlines, shutdown.
//
// The daemon runs without a thread of its own: its epoll fd is watched by the loop, and MHD_run does what is ready at the
// end of each turn, after everything else in the turn has written its answers. A connection in trouble is closed by
// shutting its socket: the daemon then sees the end of it in whatever state it is.
#include "common/net/http_impl.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SWEEP_EVERY (100 * BT_MILLISECOND)

static void
log_daemon(void *self, const char *format, va_list args)
{
    char text[256];
    size_t len;

    (void)self;
    vsnprintf(text, sizeof text, format, args);
    for (len = strlen(text); len != 0 && text[len - 1] == '\n'; len--) {
        text[len - 1] = 0;
    }
    bt_log_debug("HTTP-DAEMON", "%s", text);
}

// Splits "HOST:PORT"; "*" and "" mean every address.
static bt_err
parse_listen(const char *listen, char host[256], char port[8], bt_why *why)
{
    const char *colon = strrchr(listen, ':'), *begin = listen, *end = colon;

    if (colon == NULL || strlen(colon + 1) >= 8 || strlen(colon + 1) == 0 || (size_t)(colon - listen) >= 256) {
        return bt_fail(why, BT_ERR_INVALID, "listen: \"%s\" is not HOST:PORT", listen);
    }
    if (*begin == '[' && end > begin && end[-1] == ']') {
        begin++, end--;
    }
    snprintf(host, 256, "%.*s", (int)(end - begin), begin);
    snprintf(port, 8, "%s", colon + 1);
    if (strspn(port, "0123456789") != strlen(port) || atoi(port) > 65535) {
        return bt_fail(why, BT_ERR_INVALID, "listen: \"%s\" is not a port", port);
    }
    return BT_OK;
}

static int
bound_socket(const struct addrinfo *address)
{
    int on = 1, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
        int kept = errno;

        close(fd);
        errno = kept;
        return -1;
    }
    return fd;
}

static bt_err
listen_at(bt_http *server, bt_why *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    char host[256], port[8];
    bt_err err;
    int failed;

    if ((err = parse_listen(server->limits.listen, host, port, why)) != BT_OK) {
        return err;
    }
    failed = getaddrinfo(*host == 0 || strcmp(host, "*") == 0 ? NULL : host, port, &hints, &found);
    if (failed != 0) {
        return bt_fail(why, BT_ERR_INVALID, "listen: %s: %s", server->limits.listen, gai_strerror(failed));
    }
    server->listen_fd = bound_socket(found);
    failed = errno;
    freeaddrinfo(found);
    if (server->listen_fd < 0) {
        return bt_fail(why, BT_ERR_IO, "listen: %s: %s", server->limits.listen, strerror(failed));
    }
    if (getsockname(server->listen_fd, (struct sockaddr *)&bound, &bytes) == 0) {
        server->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                         : ((struct sockaddr_in *)&bound)->sin_port);
    }
    return BT_OK;
}

static void
note_peer(bt_http_request *request)
{
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    char host[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;

    if (getpeername(request->fd, (struct sockaddr *)&peer, &bytes) == 0) {
        const void *address = peer.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&peer)->sin6_addr
                                                         : (void *)&((struct sockaddr_in *)&peer)->sin_addr;

        inet_ntop(peer.ss_family, address, host, sizeof host);
        port = ntohs(peer.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&peer)->sin6_port
                                                : ((struct sockaddr_in *)&peer)->sin_port);
    }
    snprintf(request->peer, sizeof request->peer, "%s:%u", host, port);
}

// A client that vanished without a word is noticed by the kernel: keep-alives while we are silent, a limit on
// unacknowledged bytes while we are not.
static void
watch_for_silence(const bt_http *server, int fd)
{
    int on = 1, idle = 15, every = 5, count = 3;
    unsigned unacknowledged = (unsigned)(server->limits.stall_time_max / BT_MILLISECOND);

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged, sizeof unacknowledged);
}

static bt_http_request *
take_slot(bt_http *server)
{
    for (uint32_t i = 0; i < server->slot_count; i++) {
        if (server->slots[i].phase == BT_HTTP_FREE) {
            return &server->slots[i];
        }
    }
    return NULL;
}

static void
on_connection(void *self, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code)
{
    bt_http *server = self;
    bt_http_request *request = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED && (request = take_slot(server)) != NULL) {
        request->connection = connection;
        request->phase = BT_HTTP_IDLE;
        request->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        request->deadline = bt_loop_now(server->loop) + server->limits.header_time_max;
        note_peer(request);
        watch_for_silence(server, request->fd);
        server->connection_count++;
        *context = request;
    } else if (code == MHD_CONNECTION_NOTIFY_CLOSED && request != NULL) {
        bt_http_forget(request);
        request->phase = BT_HTTP_FREE;
        request->closing = false;
        server->connection_count--;
    }
}

static void
sweep(void *self)
{
    bt_http *server = self;
    bt_time now = bt_loop_now(server->loop);

    for (uint32_t i = 0; i < server->slot_count; i++) {
        bt_http_request *request = &server->slots[i];

        if (request->phase != BT_HTTP_FREE && !request->closing && now >= request->deadline) {
            bt_log_info("HTTP-SLOW", "peer %s phase %d closed", request->peer, (int)request->phase);
            bt_http_lose(request);
        }
    }
    bt_timer_set(server->loop, &server->sweep, now + SWEEP_EVERY);
}

static void
ignore_ready(void *self, uint32_t events)
{
    (void)self, (void)events; // the turn runs the daemon
}

static bt_time
run_daemon(void *self, bt_time now)
{
    bt_http *server = self;
    MHD_UNSIGNED_LONG_LONG wait_ms;

    MHD_run(server->daemon);
    return MHD_get_timeout(server->daemon, &wait_ms) == MHD_YES ? now + (bt_time)wait_ms * BT_MILLISECOND
                                                                : BT_TIME_NEVER;
}

static bt_err
start_daemon(bt_http *server, bt_why *why)
{
    const bt_http_limits *limits = &server->limits;
    const union MHD_DaemonInfo *info;

    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, bt_http_on_call, server,
        MHD_OPTION_EXTERNAL_LOGGER, log_daemon, NULL, MHD_OPTION_LISTEN_SOCKET, server->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, limits->connections_max, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        limits->connections_each_max, MHD_OPTION_CONNECTION_MEMORY_LIMIT, limits->header_bytes_max,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,
        MHD_OPTION_NOTIFY_COMPLETED, bt_http_on_completed, server, MHD_OPTION_END);
    if (server->daemon == NULL) {
        return bt_fail(why, BT_ERR_IO, "listen: %s: the HTTP daemon does not start", limits->listen);
    }
    server->listen_fd = -1; // the daemon's now
    info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    return info == NULL ? BT_ERR_BUG : bt_loop_watch(server->loop, &server->ready, info->epoll_fd, EPOLLIN);
}

bt_err
bt_http_open(bt_http **out, bt_loop *loop, const bt_http_limits *limits, const bt_http_handler *handler, bt_why *why)
{
    bt_http *server = bt_alloc(sizeof *server);
    bt_err err = BT_ERR_NO_MEMORY;

    if (server == NULL) {
        return bt_fail(why, err, "no memory for the HTTP server");
    }
    server->loop = loop;
    server->limits = *limits;
    server->handler = *handler;
    server->listen_fd = -1;
    server->ready = (bt_watch){.ready = ignore_ready, .self = server};
    server->turn = (bt_turn){.turn = run_daemon, .self = server};
    server->sweep = (bt_timer){.due = sweep, .self = server};
    server->slot_count = limits->connections_max + 1;
    server->slots = bt_alloc_array(server->slot_count, sizeof *server->slots);
    if (server->slots == NULL) {
        bt_fail(why, err, "no memory for %u connections", limits->connections_max);
    }
    if (server->slots == NULL || (err = listen_at(server, why)) != BT_OK ||
        (err = start_daemon(server, why)) != BT_OK) {
        bt_http_close(server);
        return err;
    }
    for (uint32_t i = 0; i < server->slot_count; i++) {
        server->slots[i].server = server;
        bt_buf_init(&server->slots[i].body, limits->body_bytes_max);
        bt_buf_init(&server->slots[i].out, limits->out_bytes_max);
    }
    server->open = true;
    bt_loop_add_turn(loop, &server->turn);
    bt_timer_set(loop, &server->sweep, bt_loop_now(loop) + SWEEP_EVERY);
    *out = server;
    return BT_OK;
}

void
bt_http_quiesce(bt_http *server)
{
    int fd;

    if (server->quiet) {
        return;
    }
    server->quiet = true;
    if ((fd = MHD_quiesce_daemon(server->daemon)) >= 0) {
        close(fd);
    }
    for (uint32_t i = 0; i < server->slot_count; i++) {
        if (server->slots[i].phase == BT_HTTP_IDLE) {
            bt_http_lose(&server->slots[i]);
        }
    }
}

void
bt_http_close(bt_http *server)
{
    if (server == NULL) {
        return;
    }
    if (server->open) {
        bt_http_quiesce(server);
        bt_loop_remove_turn(server->loop, &server->turn);
        bt_timer_unset(server->loop, &server->sweep);
    }
    bt_loop_unwatch(server->loop, &server->ready);
    if (server->daemon != NULL) {
        // The daemon must not be stopped while a connection is suspended: lose resumes each.
        for (uint32_t i = 0; i < server->slot_count; i++) {
            if (server->slots[i].phase != BT_HTTP_FREE) {
                bt_http_lose(&server->slots[i]);
            }
        }
        MHD_run(server->daemon);
        MHD_stop_daemon(server->daemon);
    }
    if (server->listen_fd >= 0) {
        close(server->listen_fd);
    }
    for (uint32_t i = 0; server->slots != NULL && i < server->slot_count; i++) {
        bt_buf_fini(&server->slots[i].body);
        bt_buf_fini(&server->slots[i].out);
    }
    bt_free(server->slots);
    bt_free(server);
}

uint16_t
bt_http_port(const bt_http *server)
{
    return server->port;
}

uint32_t
bt_http_connections(const bt_http *server)
{
    return server->connection_count;
}

uint32_t
bt_http_requests(const bt_http *server)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < server->slot_count; i++) {
        count += server->slots[i].phase >= BT_HTTP_ASKED;
    }
    return count;
}
