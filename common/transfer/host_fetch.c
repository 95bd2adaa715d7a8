// The receiver's end of a stream: asks, and reads what comes straight into the landing blocks.
#include "common/base/log.h"
#include "common/transfer/host.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static bt_host_asked *
asked_at(bt_host_peer *p, uint32_t i)
{
    return &p->asked[(p->first + i) % BT_HOST_ASKED_MAX];
}

static void
close_socket(bt_host_peer *p)
{
    if (p->fd >= 0) {
        close(p->fd); // leaves the epoll set by itself
        p->fd = -1;
    }
}

void
bt_host_peer_end(bt_host *h, uint32_t slot, bt_err err)
{
    bt_host_peer *p = &h->peers[slot];

    close_socket(p);
    p->state = BT_HOST_DOWN;
    for (uint32_t i = 0; i < p->count; i++) {
        if (asked_at(p, i)->piece != NULL) {
            bt_host_end_piece(asked_at(p, i)->piece, err);
        }
    }
    p->count = p->sent = 0;
}

static void
lose(bt_host *h, uint32_t slot, const char *what)
{
    bt_log_warn("TRANSFER-LOST", "peer %u, epoch %016llx: %s", slot, (unsigned long long)h->peers[slot].epoch, what);
    bt_host_peer_end(h, slot, BT_ERR_PEER);
}

// A dead host is noticed after some seconds; a dead process at once, by the end of its socket.
static void
set_options(int fd)
{
    int on = 1, idle = 2, interval = 1, probes = 3, timeout_ms = 5000;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

static int
connect_to(const struct sockaddr_in6 *to)
{
    const void *at = to;
    socklen_t bytes = sizeof *to;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = to->sin6_port};
    int fd;

    if (IN6_IS_ADDR_V4MAPPED(&to->sin6_addr)) {
        memcpy(&v4.sin_addr, to->sin6_addr.s6_addr + 12, 4);
        at = &v4;
        bytes = sizeof v4;
    }
    fd = socket(at == &v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, at, bytes) != 0 && errno != EINPROGRESS) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void
bt_host_peer_begin(bt_host *h, uint32_t slot)
{
    bt_host_peer *p = &h->peers[slot];

    close_socket(p);
    p->state = BT_HOST_CONNECTING;
    p->sent_bytes = p->in_bytes = 0;
    while (p->fd < 0 && p->address < p->address_count) {
        p->fd = connect_to(&p->addresses[p->address++]);
        if (p->fd >= 0) {
            set_options(p->fd);
            p->wants_write = true;
            if (bt_host_watch(h, EPOLL_CTL_ADD, p->fd, BT_HOST_ON_PEER, slot, true) != BT_OK) {
                close_socket(p);
            }
        }
    }
    if (p->fd < 0) {
        lose(h, slot, "none of its addresses can be reached");
    }
}

// Asking.

void
bt_host_ask(bt_host *h, bt_piece *piece)
{
    bt_host_peer *p = &h->peers[piece->peer];
    uint32_t at = (p->first + p->count) % BT_HOST_ASKED_MAX;

    if (p->state == BT_HOST_DOWN) {
        bt_host_end_piece(piece, BT_ERR_PEER);
        return;
    }
    if (p->count == BT_HOST_ASKED_MAX) {
        bt_host_end_piece(piece, BT_ERR_PEER);
        lose(h, piece->peer, "it does not answer");
        return;
    }
    p->asked[at] = (bt_host_asked){piece, ++h->tags};
    p->requests[at] = (bt_host_request){BT_HOST_MAGIC, h->tags, p->epoch, piece->from, piece->count, 0};
    p->count++;
    bt_host_peer_turn(h, piece->peer, false);
}

void
bt_host_forget(bt_host *h, const bt_piece *piece)
{
    bt_host_peer *p = &h->peers[piece->peer];

    for (uint32_t i = 0; i < p->count; i++) {
        if (asked_at(p, i)->piece == piece) {
            asked_at(p, i)->piece = NULL;
        }
    }
}

// Sends the message as far as it goes; true when all of it has gone.
static bool
send_message(bt_host *h, uint32_t slot, const void *message)
{
    bt_host_peer *p = &h->peers[slot];
    ssize_t sent =
        send(p->fd, (const uint8_t *)message + p->sent_bytes, BT_HOST_MESSAGE_BYTES - p->sent_bytes, MSG_NOSIGNAL);

    if (sent > 0) {
        p->sent_bytes += (size_t)sent;
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        lose(h, slot, strerror(errno));
    }
    if (p->sent_bytes < BT_HOST_MESSAGE_BYTES) {
        return false;
    }
    p->sent_bytes = 0;
    return true;
}

static void
send_waiting(bt_host *h, uint32_t slot)
{
    bt_host_peer *p = &h->peers[slot];
    bool wants;

    if (p->state == BT_HOST_CONNECTING) {
        const bt_host_hello hello = {BT_HOST_MAGIC, BT_DESCRIPTION_VERSION, h->identity, p->identity, p->epoch};

        if (send_message(h, slot, &hello)) {
            p->state = BT_HOST_HELLO;
        }
    }
    while (p->state == BT_HOST_READY && p->sent < p->count) {
        if (!send_message(h, slot, &p->requests[(p->first + p->sent) % BT_HOST_ASKED_MAX])) {
            break;
        }
        p->sent++;
    }
    wants = p->state == BT_HOST_CONNECTING || (p->state == BT_HOST_READY && p->sent < p->count);
    if (p->fd >= 0 && wants != p->wants_write) {
        p->wants_write = wants;
        bt_host_watch(h, EPOLL_CTL_MOD, p->fd, BT_HOST_ON_PEER, slot, wants);
    }
}

// Reading.

static void
next_answer(bt_host_peer *p)
{
    p->first = (p->first + 1) % BT_HOST_ASKED_MAX;
    p->count--;
    p->sent--;
}

static bool
take_hello(bt_host *h, uint32_t slot)
{
    bt_host_peer *p = &h->peers[slot];
    bt_host_hello hello;

    memcpy(&hello, p->in, sizeof hello);
    if (hello.magic != BT_HOST_MAGIC || hello.from != p->identity || hello.to != h->identity) {
        bt_host_peer_begin(h, slot); // someone else has this address: the next one
        return false;
    }
    p->state = BT_HOST_READY;
    return true;
}

static bool
take_answer(bt_host *h, uint32_t slot)
{
    bt_host_peer *p = &h->peers[slot];
    bt_host_asked *asked = asked_at(p, 0);
    size_t bytes = p->requests[p->first].count * h->o.layout.block_bytes;
    bt_host_answer answer;

    memcpy(&answer, p->in, sizeof answer);
    if (answer.magic != BT_HOST_MAGIC || p->sent == 0 || answer.tag != asked->tag ||
        answer.bytes != (answer.err == BT_OK ? bytes : 0)) {
        lose(h, slot, "it answers what was not asked");
        return false;
    }
    p->body_left = bytes;
    p->body_at = 0;
    if (answer.err != BT_OK) {
        if (asked->piece != NULL) {
            asked->piece->refused = true;
            bt_host_end_piece(asked->piece, BT_ERR_PEER);
        }
        p->body_left = 0;
        next_answer(p);
    }
    return true;
}

static void
body_done(bt_host_peer *p)
{
    if (asked_at(p, 0)->piece != NULL) {
        bt_host_end_piece(asked_at(p, 0)->piece, BT_OK);
    }
    next_answer(p);
}

// Where the next bytes belong.
static uint8_t *
target(bt_host *h, bt_host_peer *p, size_t *room)
{
    const bt_piece *piece = p->body_left != 0 ? asked_at(p, 0)->piece : NULL;

    if (p->body_left == 0) {
        *room = BT_HOST_MESSAGE_BYTES - p->in_bytes;
        return p->in + p->in_bytes;
    }
    *room = p->body_left;
    if (piece == NULL) {
        *room = *room < BT_HOST_SINK_BYTES ? *room : BT_HOST_SINK_BYTES;
        return h->sink;
    }
    return h->pool.memory + (size_t)piece->to * h->o.layout.block_bytes + p->body_at;
}

// False: the connection has ended, or is another one.
static bool
took(bt_host *h, uint32_t slot, size_t bytes)
{
    bt_host_peer *p = &h->peers[slot];

    if (p->body_left != 0) {
        p->body_left -= bytes;
        p->body_at += bytes;
        if (p->body_left == 0) {
            body_done(p);
        }
        return true;
    }
    p->in_bytes += bytes;
    if (p->in_bytes < BT_HOST_MESSAGE_BYTES) {
        return true;
    }
    p->in_bytes = 0;
    return p->state == BT_HOST_READY ? take_answer(h, slot) : take_hello(h, slot);
}

static void
read_ready(bt_host *h, uint32_t slot)
{
    bt_host_peer *p = &h->peers[slot];
    size_t turn = 0, room;

    while (p->fd >= 0 && turn < BT_HOST_TURN_BYTES) {
        uint8_t *to = target(h, p, &room);
        ssize_t got = recv(p->fd, to, room, 0);

        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            // Before the hello: whoever is there does not know us, or nobody is; the next address may be right.
            if (p->state == BT_HOST_READY) {
                lose(h, slot, got == 0 ? "it has closed" : strerror(errno));
            } else {
                bt_host_peer_begin(h, slot);
            }
            return;
        }
        turn += (size_t)got;
        if (!took(h, slot, (size_t)got)) {
            return;
        }
    }
}

void
bt_host_peer_turn(bt_host *h, uint32_t slot, bool readable)
{
    bt_host_peer *p = &h->peers[slot];

    if (p->fd >= 0 && readable) {
        read_ready(h, slot);
    }
    if (p->fd >= 0 && (p->state == BT_HOST_READY || !readable)) {
        send_waiting(h, slot);
    }
}
