// The owner's end of a stream: lets in who was described, and sends what it asks for straight out of the pool.
#include "common/base/log.h"
#include "common/transfer/host.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

void
bt_host_caller_end(bt_host *h, uint32_t index)
{
    bt_host_caller *c = &h->callers[index];

    h->serving_failed += c->count;
    close(c->fd);
    c->fd = -1;
    c->count = 0;
}

// A free place, or that of the oldest caller that has not said who it is.
static uint32_t
place(bt_host *h)
{
    uint32_t oldest = BT_TRANSFER_PEER_NONE;

    for (uint32_t i = 0; i < h->callers_max; i++) {
        if (h->callers[i].fd < 0) {
            return i;
        }
        if (h->callers[i].peer == BT_TRANSFER_PEER_NONE &&
            (oldest == BT_TRANSFER_PEER_NONE || h->callers[i].order < h->callers[oldest].order)) {
            oldest = i;
        }
    }
    if (oldest != BT_TRANSFER_PEER_NONE) {
        bt_host_caller_end(h, oldest);
    }
    return oldest;
}

void
bt_host_accept(bt_host *h)
{
    int fd, on = 1, timeout_ms = 5000;

    while ((fd = accept4(h->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        uint32_t index = place(h);
        bt_host_caller *c;

        if (index == BT_TRANSFER_PEER_NONE ||
            bt_host_watch(h, EPOLL_CTL_ADD, fd, BT_HOST_ON_CALLER, index, false) != BT_OK) {
            h->refused++;
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
        c = &h->callers[index];
        *c = (bt_host_caller){.fd = fd, .peer = BT_TRANSFER_PEER_NONE, .order = h->callers_seen++};
    }
}

static void
greet(bt_host *h, bt_host_caller *c, uint32_t slot)
{
    bt_host_hello hello = {BT_HOST_MAGIC, BT_DESCRIPTION_VERSION, h->identity, h->peers[slot].identity, 0};

    c->peer = slot;
    c->waiting = 0;
    memcpy(c->out, &hello, sizeof hello);
    c->out_at = 0;
    c->out_bytes = sizeof hello;
}

// Who knows our identity has our description. If we have not yet got theirs, it is on its way: they wait for `greet`.
static bool
take_hello(bt_host *h, bt_host_caller *c)
{
    bt_host_hello hello;
    uint32_t i = 0;

    memcpy(&hello, c->in, sizeof hello);
    if (hello.magic != BT_HOST_MAGIC || hello.version != BT_DESCRIPTION_VERSION || hello.to != h->identity ||
        hello.epoch != h->o.epoch || hello.from == 0 || c->waiting != 0) {
        h->refused++;
        return false;
    }
    while (i < h->o.peers_max && !(h->peers[i].used && h->peers[i].identity == hello.from)) {
        i++;
    }
    if (i < h->o.peers_max) {
        greet(h, c, i);
    } else {
        c->waiting = hello.from;
    }
    return true;
}

void
bt_host_greet(bt_host *h, uint32_t slot)
{
    for (uint32_t i = 0; i < h->callers_max; i++) {
        if (h->callers[i].fd >= 0 && h->callers[i].waiting == h->peers[slot].identity) {
            greet(h, &h->callers[i], slot);
            bt_host_caller_turn(h, i);
        }
    }
}

static bool
take_request(bt_host *h, bt_host_caller *c)
{
    bt_host_request *request = &c->requests[(c->first + c->count) % BT_HOST_ASKED_MAX];

    if (c->count == BT_HOST_ASKED_MAX) {
        h->refused++;
        return false;
    }
    memcpy(request, c->in, sizeof *request);
    c->count++;
    return request->magic == BT_HOST_MAGIC;
}

// False: to be closed. What a caller asks beyond what we answer stays in its socket.
static bool
read_caller(bt_host *h, bt_host_caller *c)
{
    while (c->count < BT_HOST_ASKED_MAX) {
        ssize_t got = recv(c->fd, c->in + c->in_bytes, BT_HOST_MESSAGE_BYTES - c->in_bytes, 0);

        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return true;
        }
        if (got <= 0) {
            return false;
        }
        c->in_bytes += (size_t)got;
        if (c->in_bytes == BT_HOST_MESSAGE_BYTES) {
            c->in_bytes = 0;
            if (!(c->peer == BT_TRANSFER_PEER_NONE ? take_hello(h, c) : take_request(h, c))) {
                return false;
            }
        }
    }
    return true;
}

// The proof block is the one behind the pool.
static bt_err
check_request(const bt_host *h, const bt_host_request *asked)
{
    if (asked->epoch != h->o.epoch) {
        return BT_ERR_CLOSED;
    }
    return asked->count == 0 || asked->from > h->o.blocks || asked->count > h->o.blocks + 1 - asked->from
               ? BT_ERR_INVALID
               : BT_OK;
}

static void
begin_answer(bt_host *h, bt_host_caller *c)
{
    const bt_host_request *asked = &c->requests[c->first];
    bt_err err = check_request(h, asked);
    bt_host_answer answer = {BT_HOST_MAGIC, asked->tag, err, asked->count, 0, 0};

    c->body_left = 0;
    if (err == BT_OK) {
        answer.bytes = c->body_left = asked->count * h->o.layout.block_bytes;
        c->body = h->pool.memory + asked->from * h->o.layout.block_bytes;
        h->served++;
        h->served_bytes += answer.bytes;
    } else {
        h->refused++;
    }
    memcpy(c->out, &answer, sizeof answer);
    c->out_at = 0;
    c->out_bytes = sizeof answer;
    c->first = (c->first + 1) % BT_HOST_ASKED_MAX;
    c->count--;
}

// False: to be closed.
static bool
write_caller(bt_host *h, bt_host_caller *c, uint32_t index)
{
    size_t turn = 0;
    bool wants;

    while (turn < BT_HOST_TURN_BYTES) {
        bool header = c->out_at < c->out_bytes;
        ssize_t sent;

        if (!header && c->body_left == 0) {
            if (c->count == 0) {
                break;
            }
            begin_answer(h, c);
            continue;
        }
        sent = header ? send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at,
                             MSG_NOSIGNAL | (c->body_left ? MSG_MORE : 0))
                      : send(c->fd, c->body, c->body_left, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        }
        if (sent < 0) {
            return false;
        }
        turn += (size_t)sent;
        if (header) {
            c->out_at += (size_t)sent;
        } else {
            c->body += sent;
            c->body_left -= (size_t)sent;
        }
    }
    wants = c->out_at < c->out_bytes || c->body_left != 0 || c->count != 0;
    if (wants != c->wants_write) {
        c->wants_write = wants;
        bt_host_watch(h, EPOLL_CTL_MOD, c->fd, BT_HOST_ON_CALLER, index, wants);
    }
    return true;
}

void
bt_host_caller_turn(bt_host *h, uint32_t index)
{
    bt_host_caller *c = &h->callers[index];

    if (c->fd >= 0 && (!read_caller(h, c) || !write_caller(h, c, index))) {
        bt_host_caller_end(h, index);
    }
}
