#include "tools/top/get.h"

#include "common/base/mem.h"
#include "tools/sse_reader.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

bt_err
bt_get_parse(bt_get_server *out, const char *url, const char *port, bt_why *why)
{
    const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : url, *host = at, *colon;
    size_t len = strcspn(at, "/"), host_len;

    colon = memrchr(at, ':', len);
    if (at[0] == '[') { // an IPv6 address, whose colons are its own
        const char *end = memchr(at, ']', len);

        if (end == NULL) {
            return bt_fail(why, BT_ERR_INVALID, "%s: no ] after [", url);
        }
        colon = end[1] == ':' ? end + 1 : NULL;
        host = at + 1;
        host_len = (size_t)(end - host);
    } else {
        host_len = colon != NULL ? (size_t)(colon - at) : len;
    }
    if (host_len == 0 || host_len >= sizeof out->host || strncmp(url, "https://", 8) == 0) {
        return bt_fail(why, BT_ERR_INVALID, "%s: expected http://HOST:PORT", url);
    }
    snprintf(out->host, sizeof out->host, "%.*s", (int)host_len, host);
    if (colon != NULL) {
        size_t digits = (size_t)(at + len - colon - 1);

        if (digits == 0 || digits > 5 || strspn(colon + 1, "0123456789") < digits) {
            return bt_fail(why, BT_ERR_INVALID, "%s: expected a port after the last colon", url);
        }
        snprintf(out->port, sizeof out->port, "%.*s", (int)digits, colon + 1);
    } else {
        snprintf(out->port, sizeof out->port, "%s", port);
    }
    return BT_OK;
}

// ---- a connection ----

// False when it is too late.
static bool
wait_for(int fd, short events, bt_time deadline)
{
    struct pollfd at = {.fd = fd, .events = events};
    int ready = -1;

    do {
        bt_time left = deadline - bt_time_now();

        ready = left > 0 ? poll(&at, 1, (int)(left / BT_MILLISECOND) + 1) : 0;
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
}

static int
connect_to(const struct addrinfo *a, bt_time deadline, int *error)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof *error;

    if (fd < 0) {
        *error = errno;
        return -1;
    }
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
        return fd;
    }
    *error = errno;
    if (errno == EINPROGRESS) {
        *error = ETIMEDOUT;
        if (wait_for(fd, POLLOUT, deadline) && getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &bytes) == 0 &&
            *error == 0) {
            return fd;
        }
    }
    close(fd);
    return -1;
}

static bt_err
dial(const bt_get_server *server, bt_time deadline, int *out, bt_why *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all;
    int failed = getaddrinfo(server->host, server->port, &hints, &all), error = 0;

    if (failed != 0) {
        return bt_fail(why, BT_ERR_PEER, "%s: %s", server->host, gai_strerror(failed));
    }
    *out = -1;
    for (const struct addrinfo *a = all; a != NULL && *out < 0; a = a->ai_next) {
        *out = connect_to(a, deadline, &error);
    }
    freeaddrinfo(all);
    return *out >= 0 ? BT_OK : bt_fail(why, BT_ERR_PEER, "%s:%s: %s", server->host, server->port, strerror(error));
}

static bool
send_all(int fd, const char *bytes, size_t len, bt_time deadline)
{
    while (len > 0) {
        ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);

        if (sent > 0) {
            bytes += sent;
            len -= (size_t)sent;
        } else if (errno != EAGAIN || !wait_for(fd, POLLOUT, deadline)) {
            return false;
        }
    }
    return true;
}

static void
on_line(void *self, bt_str line)
{
    bt_buf_append(self, line.data, line.len);
    bt_buf_append_char(self, '\n');
}

static bool
read_answer(int fd, bt_sse_reader *reader, bt_time deadline, bt_buf *body)
{
    char bytes[16384];

    bt_sse_reader_init(reader);
    while (!reader->done && !body->failed) { // failed: larger than it may be, and perhaps without end
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);

        if (got > 0) {
            bt_sse_read(reader, bytes, (size_t)got, on_line, body);
        } else if (got == 0) {
            bt_sse_read_end(reader);
        } else if (errno != EAGAIN || !wait_for(fd, POLLIN, deadline)) {
            return false;
        }
    }
    return !reader->failed && !body->failed;
}

static void
write_request(bt_buf *out, const bt_get_server *server, const char *path, const char *key)
{
    bt_buf_printf(out, "GET %s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n", path, server->host, server->port);
    if (key != NULL) {
        bt_buf_printf(out, "Authorization: Bearer %s\r\n", key);
    }
    bt_buf_append_text(out, "\r\n");
}

bt_err
bt_get(const bt_get_server *server, const char *path, const char *key, bt_time deadline, unsigned *status, bt_buf *body,
       bt_why *why)
{
    bt_sse_reader *reader = bt_alloc(sizeof *reader); // 70 KB
    bt_buf request;
    int fd = -1;
    bt_err err = reader == NULL ? bt_fail(why, BT_ERR_NO_MEMORY, "no memory") : dial(server, deadline, &fd, why);

    if (err != BT_OK) {
        bt_free(reader);
        return err;
    }
    bt_buf_init(&request, 4096);
    write_request(&request, server, path, key);
    if (request.failed || !send_all(fd, request.data, request.len, deadline) ||
        !read_answer(fd, reader, deadline, body)) {
        err = bt_fail(why, BT_ERR_TIMEOUT, "%s:%s: no whole answer to GET %s", server->host, server->port, path);
    } else {
        *status = (unsigned)reader->status;
    }
    bt_buf_fini(&request);
    close(fd);
    bt_free(reader);
    return err;
}
