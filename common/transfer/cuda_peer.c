// Whose memory on a GPU can be read from here, and does its owner live?
#include "common/transfer/cuda.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

void
bt_cuda_host_here(bt_cuda_host *out)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    char text[64] = "";
    struct stat info;
    size_t digits = 0;

    *out = (bt_cuda_host){0};
    if (file != NULL) {
        if (fgets(text, sizeof text, file) == NULL) {
            text[0] = 0;
        }
        fclose(file);
    }
    for (const char *at = text; *at != 0 && digits < 32; at++) {
        const char *hex = "0123456789abcdef", *digit = strchr(hex, *at);

        if (digit != NULL) {
            out->boot[digits / 2] = (uint8_t)(out->boot[digits / 2] << 4 | (digit - hex));
            digits++;
        }
    }
    out->pid_namespace = stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

static bt_err
check_host(const bt_cuda_transport *c, const bt_description *d, bt_why *why)
{
    bt_cuda_host theirs;

    memcpy(&theirs, d->address, sizeof theirs);
    if (memcmp(theirs.boot, c->host.boot, sizeof theirs.boot) != 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "transfer: the peer's host is another (boot id %02x%02x%02x%02x…, ours "
                       "%02x%02x%02x%02x…): a GPU's memory is read within one host",
                       theirs.boot[0], theirs.boot[1], theirs.boot[2], theirs.boot[3], c->host.boot[0], c->host.boot[1],
                       c->host.boot[2], c->host.boot[3]);
    }
    if (theirs.pid_namespace != c->host.pid_namespace) {
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "transfer: the peer's PID namespace is %llu, ours %llu: containers that read "
                       "each other's GPU memory share it",
                       (unsigned long long)theirs.pid_namespace, (unsigned long long)c->host.pid_namespace);
    }
    return BT_OK;
}

static bt_err
map_mark(bt_cuda_peer *p, const bt_description *d, bt_why *why)
{
    char path[64];
    int fd;

    if (p->mark_key.bytes == sizeof(bt_cuda_mark) && bt_shared_map(&p->mark, &p->mark_key, d->identity) == BT_OK) {
        return BT_OK;
    }
    snprintf(path, sizeof path, "/proc/%u/fd", p->mark_key.pid);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY)) < 0 && errno == EACCES) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: the peer's user is another, process %u may not be looked at",
                       p->mark_key.pid);
    }
    if (fd >= 0) {
        close(fd);
    }
    return bt_fail(why, BT_ERR_PEER, "transfer: the peer's process %u is gone", p->mark_key.pid);
}

static bt_err
watch_process(bt_cuda_transport *c, bt_cuda_peer *p, uint32_t slot, bt_why *why)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = slot + 1ull};

    p->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)p->mark_key.pid, 0);
    if (p->pidfd < 0 && errno == ESRCH) {
        return bt_fail(why, BT_ERR_PEER, "transfer: the peer's process %u is gone", p->mark_key.pid);
    }
    if (p->pidfd >= 0 && epoll_ctl(c->epoll, EPOLL_CTL_ADD, p->pidfd, &event) != 0) {
        return bt_fail(why, BT_ERR_IO, "transfer: watching process %u: %s", p->mark_key.pid, strerror(errno));
    }
    return BT_OK;
}

bt_err
bt_cuda_peer_open(bt_cuda_transport *c, uint32_t slot, const bt_description *d, bt_why *why)
{
    bt_cuda_peer *p = &c->peers[slot];
    const void *pool = NULL;
    bt_cuda_key key;
    bt_err err;

    if (d->address_bytes != sizeof(bt_cuda_host) || d->key_bytes != sizeof key) {
        return bt_fail(why, BT_ERR_INVALID, "transfer: a description with address and key of %u and %u bytes",
                       d->address_bytes, d->key_bytes);
    }
    memcpy(&key, d->key, sizeof key);
    *p = (bt_cuda_peer){.used = true, .epoch = d->epoch, .mark_key = key.mark, .pidfd = -1};
    // The process first: if the mark is found after that, it is this process's.
    if ((err = check_host(c, d, why)) == BT_OK && (err = watch_process(c, p, slot, why)) == BT_OK &&
        (err = map_mark(p, d, why)) == BT_OK) {
        err = bt_device_open_shared(c->o.device, &key.pool, &pool, &p->same, why);
    }
    p->pool = pool;
    if (err != BT_OK) {
        bt_cuda_peer_close(c, slot);
    }
    return err;
}

void
bt_cuda_peer_close(bt_cuda_transport *c, uint32_t slot)
{
    bt_cuda_peer *p = &c->peers[slot];

    if (!p->used) {
        return;
    }
    bt_device_close_shared(c->o.device, p->pool);
    bt_shared_unmap(p->mark, &p->mark_key);
    if (p->pidfd >= 0) {
        close(p->pidfd); // leaves the epoll set by itself
    }
    *p = (bt_cuda_peer){.pidfd = -1};
}

static bool
has_ended(const bt_cuda_peer *p)
{
    struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};

    return p->pidfd >= 0 ? poll(&fd, 1, 0) == 1 : kill((pid_t)p->mark_key.pid, 0) != 0 && errno == ESRCH;
}

void
bt_cuda_peer_look(bt_cuda_transport *c, uint32_t slot)
{
    bt_cuda_peer *p = &c->peers[slot];
    const bt_cuda_mark *mark = (const void *)p->mark;
    const char *what = NULL;

    if (!p->used || p->lost) {
        return;
    }
    if (atomic_load_explicit(&mark->closed, memory_order_acquire) != 0) {
        what = "it has closed its pool";
    } else if (has_ended(p)) {
        what = "its process has ended";
    }
    if (what != NULL) {
        bt_log_warn("TRANSFER-LOST", "peer %u, epoch %016llx: %s", slot, (unsigned long long)p->epoch, what);
        p->lost = true;
        if (p->pidfd >= 0) {
            epoll_ctl(c->epoll, EPOLL_CTL_DEL, p->pidfd, NULL);
        }
    }
}
