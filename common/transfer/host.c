// Blocks over what every host has: mapped memory where both ends run on one, sockets elsewhere. No library, so nothing that aborts
// with its peer: UCX 1.13 over tcp does (README.md).
#include "common/transfer/host.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 64

bt_err
bt_host_watch(bt_host *h, int op, int fd, int kind, uint32_t index, bool write)
{
    struct epoll_event event = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.u64 = (uint64_t)kind << 32 | index};

    return epoll_ctl(h->epoll, op, fd, &event) == 0 ? BT_OK : BT_ERR_IO;
}

void
bt_host_end_piece(bt_piece *piece, bt_err err)
{
    piece->took = bt_time_now() - piece->began;
    piece->err = err;
    piece->state = BT_PIECE_DONE;
}

// Where we are reached.

static void
add_address(bt_host *h, const struct in6_addr *address)
{
    if (h->address_bytes + sizeof *address <= sizeof h->address) {
        memcpy(h->address + h->address_bytes, address, sizeof *address);
        h->address_bytes += sizeof *address;
    }
}

static struct in6_addr
mapped(const struct sockaddr *address)
{
    struct in6_addr out = {0};

    if (address->sa_family == AF_INET6) {
        return ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    }
    out.s6_addr[10] = out.s6_addr[11] = 0xff;
    memcpy(out.s6_addr + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    return out;
}

// Every address of this host that others may reach, loopback last.
static void
find_addresses(bt_host *h)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0) {
        return;
    }
    for (int loopback = 0; loopback < 2; loopback++) {
        for (struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
            struct in6_addr address;

            if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 ||
                ((i->ifa_flags & IFF_LOOPBACK) != 0) != (loopback == 1) ||
                (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) {
                continue;
            }
            address = mapped(i->ifa_addr);
            if (!IN6_IS_ADDR_LINKLOCAL(&address)) {
                add_address(h, &address);
            }
        }
    }
    freeifaddrs(all);
}

// "HOST:PORT"; both may be missing.
static bt_err
resolve(const char *text, struct sockaddr_storage *out, socklen_t *bytes, bt_why *why)
{
    char host[128] = "", *port;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;

    snprintf(host, sizeof host, "%s", text);
    port = strrchr(host, ':');
    if (port != NULL) {
        *port++ = 0;
    }
    if (getaddrinfo(host[0] != 0 ? host : NULL, port != NULL && *port != 0 ? port : "0", &hints, &found) != 0) {
        return bt_fail(why, BT_ERR_INVALID, "transfer: '%s' is no address to listen on, expected HOST:PORT", text);
    }
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return BT_OK;
}

static bt_err
open_listener(bt_host *h, bt_why *why)
{
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof(struct sockaddr_in6);
    int off = 0, on = 1;
    bt_err err;

    at.ss_family = AF_INET6;
    if (h->o.listen != NULL && (err = resolve(h->o.listen, &at, &bytes, why)) != BT_OK) {
        return err;
    }
    h->listener = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->listener < 0 && h->o.listen == NULL) { // a host without IPv6
        memset(&at, 0, sizeof at);
        at.ss_family = AF_INET;
        bytes = sizeof(struct sockaddr_in);
        h->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    setsockopt(h->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (h->listener < 0 || bind(h->listener, (struct sockaddr *)&at, bytes) != 0 || listen(h->listener, 64) != 0 ||
        getsockname(h->listener, (struct sockaddr *)&at, &bytes) != 0) {
        return bt_fail(why, BT_ERR_IO, "transfer: listening on %s: %s",
                       h->o.listen != NULL ? h->o.listen : "any address", strerror(errno));
    }
    h->port =
        at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port;
    memcpy(h->address, &h->port, 2);
    h->address_bytes = 2;
    if (h->o.listen != NULL && h->o.listen[0] != ':' && h->o.listen[0] != 0) {
        struct in6_addr own = mapped((struct sockaddr *)&at);

        if (!IN6_IS_ADDR_UNSPECIFIED(&own) && memcmp(own.s6_addr + 12, "\0\0\0\0", 4) != 0) {
            add_address(h, &own);
        }
    }
    if (h->address_bytes == 2) {
        find_addresses(h);
    }
    return bt_host_watch(h, EPOLL_CTL_ADD, h->listener, BT_HOST_ON_LISTENER, 0, false);
}

static bt_err
open_tables(bt_host *h, bt_why *why)
{
    h->callers_max = h->o.peers_max + 16;
    h->peers = bt_alloc_array(h->o.peers_max, sizeof *h->peers);
    h->callers = bt_alloc_array(h->callers_max, sizeof *h->callers);
    h->sink = bt_alloc(BT_HOST_SINK_BYTES);
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (h->peers == NULL || h->callers == NULL || h->sink == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory for %u peers", h->o.peers_max);
    }
    for (uint32_t i = 0; i < h->callers_max; i++) {
        h->callers[i].fd = -1;
    }
    for (uint32_t i = 0; i < h->o.peers_max; i++) {
        h->peers[i].fd = -1;
    }
    return h->epoll >= 0 ? BT_OK : bt_fail(why, BT_ERR_IO, "transfer: epoll: %s", strerror(errno));
}

static void
host_close(bt_transport *transport)
{
    bt_host *h = (bt_host *)transport;

    for (uint32_t i = 0; h->peers != NULL && i < h->o.peers_max; i++) {
        if (h->peers[i].fd >= 0) {
            close(h->peers[i].fd);
        }
        bt_shared_unmap(h->peers[i].direct, &h->peers[i].direct_key);
    }
    for (uint32_t i = 0; h->callers != NULL && i < h->callers_max; i++) {
        if (h->callers[i].fd >= 0) {
            close(h->callers[i].fd);
        }
    }
    if (h->listener >= 0) {
        close(h->listener);
    }
    if (h->epoll >= 0) {
        close(h->epoll);
    }
    bt_shared_close(&h->pool);
    bt_free(h->peers);
    bt_free(h->callers);
    bt_free(h->sink);
    bt_free(h);
}

static bt_err
host_open(bt_transport **out, const bt_transfer_options *options, size_t bytes, uint8_t **memory, bt_why *why)
{
    bt_host *h = bt_alloc(sizeof *h);
    bt_err err;

    if (h == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    h->base.ops = &bt_transport_host;
    h->o = *options;
    h->epoll = h->listener = -1;
    if (getrandom(&h->identity, sizeof h->identity, 0) != sizeof h->identity) {
        err = bt_fail(why, BT_ERR_IO, "transfer: no random number for an identity");
    } else if ((err = open_tables(h, why)) == BT_OK && (err = open_listener(h, why)) == BT_OK) {
        err = bt_shared_open(&h->pool, bytes, h->identity, why);
    }
    if (err != BT_OK) {
        host_close(&h->base);
        return err;
    }
    *out = &h->base;
    *memory = h->pool.memory;
    return BT_OK;
}

static bt_err
host_describe(bt_transport *transport, bt_description *out)
{
    bt_host *h = (bt_host *)transport;

    out->identity = h->identity;
    out->base = (uintptr_t)h->pool.memory;
    out->address = h->address;
    out->address_bytes = h->address_bytes;
    out->key = (const uint8_t *)&h->pool.key;
    out->key_bytes = sizeof h->pool.key;
    return BT_OK;
}

// Peers.

static void
map_directly(bt_host *h, bt_host_peer *p, const bt_description *d)
{
    memcpy(&p->direct_key, d->key, sizeof p->direct_key);
    if (h->o.path != BT_TRANSFER_PATH_STREAM && p->direct_key.bytes == (d->blocks + 2ull) * d->block_bytes) {
        (void)bt_shared_map(&p->direct, &p->direct_key, d->identity);
    }
}

// On the same host loopback is tried first: it works whatever the interfaces do.
static void
take_addresses(bt_host_peer *p, const bt_description *d)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6};

    memcpy(&at.sin6_port, d->address, 2);
    if (p->direct != NULL) {
        inet_pton(AF_INET6, "::ffff:127.0.0.1", &at.sin6_addr);
        p->addresses[p->address_count++] = at;
    }
    for (size_t i = 2; i + 16 <= d->address_bytes && p->address_count < BT_HOST_ADDRESSES_MAX; i += 16) {
        memcpy(&at.sin6_addr, d->address + i, 16);
        p->addresses[p->address_count++] = at;
    }
}

static bt_err
host_connect(bt_transport *transport, uint32_t slot, const bt_description *d, bt_why *why)
{
    bt_host *h = (bt_host *)transport;
    bt_host_peer *p = &h->peers[slot];

    if (d->address_bytes < 18 || d->key_bytes != sizeof(bt_shared_key)) {
        return bt_fail(why, BT_ERR_INVALID, "transfer: a description without address or key");
    }
    if (h->o.path == BT_TRANSFER_PATH_GET || h->o.path == BT_TRANSFER_PATH_AM) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: path '%s' needs the transport 'ucx'",
                       bt_transfer_path_name(h->o.path));
    }
    memset(p, 0, sizeof *p);
    p->fd = -1;
    p->identity = d->identity;
    p->epoch = d->epoch;
    map_directly(h, p, d);
    if (p->direct == NULL && h->o.path == BT_TRANSFER_PATH_DIRECT) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: this peer's memory cannot be mapped here");
    }
    take_addresses(p, d);
    p->used = true;
    bt_host_peer_begin(h, slot);
    bt_host_greet(h, slot);
    return BT_OK;
}

static void
host_disconnect(bt_transport *transport, uint32_t slot)
{
    bt_host *h = (bt_host *)transport;

    bt_host_peer_end(h, slot, BT_ERR_CLOSED);
    h->peers[slot].used = false; // who comes from now on belongs to another connection of it, or waits for one
    for (uint32_t i = 0; i < h->callers_max; i++) {
        if (h->callers[i].fd >= 0 && h->callers[i].peer == slot) {
            bt_host_caller_end(h, i);
        }
    }
}

static bool
host_idle(bt_transport *transport, uint32_t slot)
{
    bt_host_peer *p = &((bt_host *)transport)->peers[slot];

    bt_shared_unmap(p->direct, &p->direct_key);
    p->direct = NULL;
    return true;
}

static bool
host_up(bt_transport *transport, uint32_t slot)
{
    return ((bt_host *)transport)->peers[slot].state != BT_HOST_DOWN;
}

static bt_transfer_path
host_path(const bt_transport *transport, uint32_t slot, char *name, size_t bytes)
{
    bool direct = ((const bt_host *)transport)->peers[slot].direct != NULL;

    snprintf(name, bytes, "%s", direct ? "shm" : "tcp");
    return direct ? BT_TRANSFER_PATH_DIRECT : BT_TRANSFER_PATH_STREAM;
}

// Moving.

static void
host_move(bt_transport *transport, bt_piece *piece, bt_time now)
{
    bt_host *h = (bt_host *)transport;
    bt_host_peer *p = &h->peers[piece->peer];
    size_t block_bytes = h->o.layout.block_bytes;

    (void)now;
    piece->began = bt_time_now();
    if (p->direct != NULL) {
        if (!p->prepared) {
            bt_shared_prepare(p->direct, &p->direct_key);
            p->prepared = true;
        }
        bt_piece_copy(piece, &h->o.layout, !h->o.no_checksum, h->pool.memory + piece->to * block_bytes,
                      p->direct + piece->from * block_bytes);
        bt_host_end_piece(piece, BT_OK);
    } else {
        bt_host_ask(h, piece);
    }
}

static bool
host_drop(bt_transport *transport, bt_piece *piece)
{
    bt_host_forget((bt_host *)transport, piece);
    bt_host_end_piece(piece, BT_ERR_CANCELLED);
    return true;
}

static void
host_progress(bt_transport *transport, bt_time now)
{
    bt_host *h = (bt_host *)transport;
    struct epoll_event events[EVENTS];
    int count = epoll_wait(h->epoll, events, EVENTS, 0);

    (void)now;
    for (int i = 0; i < count; i++) {
        uint32_t index = (uint32_t)events[i].data.u64;

        switch ((int)(events[i].data.u64 >> 32)) {
        case BT_HOST_ON_LISTENER:
            bt_host_accept(h);
            break;
        case BT_HOST_ON_PEER:
            bt_host_peer_turn(h, index, (events[i].events & ~(uint32_t)EPOLLOUT) != 0);
            break;
        default:
            bt_host_caller_turn(h, index);
        }
    }
}

static int
host_fd(const bt_transport *transport)
{
    return ((const bt_host *)transport)->epoll;
}

static bool
host_arm(bt_transport *transport)
{
    (void)transport; // the descriptor is readable as long as there is something to do
    return true;
}

static void
host_stats(const bt_transport *transport, bt_transfer_stats *out)
{
    const bt_host *h = (const bt_host *)transport;

    out->served = h->served;
    out->served_bytes = h->served_bytes;
    out->serving_failed = h->serving_failed;
    out->refused = h->refused;
}

const bt_transport_ops bt_transport_host = {
    .name = "host",
    .id = 3,
    .memories = 1u << BT_TRANSFER_HOST,
    .open = host_open,
    .close = host_close,
    .describe = host_describe,
    .connect = host_connect,
    .disconnect = host_disconnect,
    .idle = host_idle,
    .up = host_up,
    .move = host_move,
    .drop = host_drop,
    .progress = host_progress,
    .fd = host_fd,
    .arm = host_arm,
    .path = host_path,
    .stats = host_stats,
};
