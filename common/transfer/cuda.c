// Blocks between the memories of GPUs of one host: each owner lends its pool (CUDA IPC), each receiver copies out of it with its own GPU,
// which takes the sums as well. CUDA itself is behind kernels/device.h and kernels/copier.h.
#include "common/transfer/cuda.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#define BATCHES 4u                      // two move at any time, and the next are there when they end
#define DROP_WAIT (50 * BT_MILLISECOND) // a batch takes less than one
#define GRANULE ((size_t)2 << 20)       // what is lent is whole ones, so that it begins where the handle does
#define EVENTS 64
#define COPIER_EVENT 0ull // of epoll; else a peer's slot + 1

// ---- open and close ----

static void
cuda_close(bt_transport *transport)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    if (c->mark.memory != NULL) { // before the pool goes: who reads it stops, and lets it go
        atomic_store_explicit(&((bt_cuda_mark *)(void *)c->mark.memory)->closed, 1, memory_order_release);
    }
    bt_copier_close(c->copier); // waits
    for (uint32_t i = 0; c->peers != NULL && i < c->o.peers_max; i++) {
        bt_cuda_peer_close(c, i);
    }
    bt_device_free(c->o.device, c->pool, c->pool_bytes);
    bt_shared_close(&c->mark);
    if (c->epoll >= 0) {
        close(c->epoll);
    }
    bt_free(c->peers);
    bt_free(c->flights);
    bt_free(c->waiting);
    bt_free(c);
}

static bt_err
open_copier(bt_cuda_transport *c, bt_why *why)
{
    uint32_t pieces = bt_piece_count(&c->o);
    bt_copier_options options = {.batches = BATCHES, .blocks = bt_piece_blocks(&c->o), .notify = true};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = COPIER_EVENT};
    bt_err err;

    c->batches = options.batches;
    c->blocks = options.blocks;
    c->peers = bt_alloc_array(c->o.peers_max, sizeof *c->peers);
    c->flights = bt_alloc_array(c->batches, sizeof *c->flights);
    c->waiting = bt_alloc_array(pieces, sizeof *c->waiting);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (c->peers == NULL || c->flights == NULL || c->waiting == NULL || c->epoll < 0) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory for %u peers", c->o.peers_max);
    }
    if ((err = bt_copier_open(&c->copier, c->o.device, &options, why)) != BT_OK) {
        return err;
    }
    if (bt_copier_fd(c->copier) >= 0 && epoll_ctl(c->epoll, EPOLL_CTL_ADD, bt_copier_fd(c->copier), &event) != 0) {
        return bt_fail(why, BT_ERR_IO, "transfer: epoll: %s", strerror(errno));
    }
    return BT_OK;
}

static bt_err
open_pool(bt_cuda_transport *c, size_t bytes, bt_why *why)
{
    bt_err err;

    c->pool_bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    c->pool = bt_device_alloc(c->o.device, c->pool_bytes);
    if (c->pool == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: a pool of %.1f MiB on the GPU, %.1f MiB are free",
                       (double)c->pool_bytes / 0x1p20, (double)bt_device_available(c->o.device) / 0x1p20);
    }
    if ((err = bt_device_share(c->o.device, c->pool, &c->key.pool, why)) != BT_OK ||
        (err = bt_shared_open(&c->mark, sizeof(bt_cuda_mark), c->identity, why)) != BT_OK) {
        return err;
    }
    c->key.mark = c->mark.key;
    return BT_OK;
}

static bt_err
cuda_open(bt_transport **out, const bt_transfer_options *options, size_t bytes, uint8_t **memory, bt_why *why)
{
    bt_cuda_transport *c = bt_alloc(sizeof *c);
    bt_err err;

    if (c == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    c->base.ops = &bt_transport_cuda;
    c->o = *options;
    c->epoll = -1;
    if (getrandom(&c->identity, sizeof c->identity, 0) != sizeof c->identity) {
        c->identity = bt_mix64((uint64_t)bt_time_now() ^ (uintptr_t)c);
    }
    bt_cuda_host_here(&c->host);
    if ((err = open_copier(c, why)) != BT_OK || (err = open_pool(c, bytes, why)) != BT_OK) {
        cuda_close(&c->base);
        return err;
    }
    *out = &c->base;
    *memory = c->pool;
    return BT_OK;
}

static bt_err
cuda_describe(bt_transport *transport, bt_description *out)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    out->identity = c->identity;
    out->base = (uintptr_t)c->pool;
    out->address = (const uint8_t *)&c->host;
    out->address_bytes = sizeof c->host;
    out->key = (const uint8_t *)&c->key;
    out->key_bytes = sizeof c->key;
    return BT_OK;
}

// ---- moving ----

static void
end_piece(bt_piece *piece, bt_err err)
{
    piece->took = bt_time_now() - piece->began;
    piece->err = err;
    piece->state = BT_PIECE_DONE;
}

// What a batch has landed, for fetch.c to judge.
static void
land(bt_cuda_transport *c, uint64_t ticket)
{
    const bt_copier_landed *landed = bt_copier_landed_of(c->copier, ticket);
    bt_piece *next;

    for (bt_piece *piece = c->flights[ticket % c->batches]; piece != NULL; piece = next) {
        next = piece->next;
        for (uint32_t i = 0; i < piece->count; i++, landed++) {
            piece->sums[i] = landed->sum;
            piece->trailers[i] = landed->trailer;
        }
        piece->summed = true;
        c->peers[piece->peer].flying--;
        end_piece(piece, BT_OK);
    }
    c->flights[ticket % c->batches] = NULL;
}

// Of a failed GPU no batch will end, and none writes any more.
static void
fail_all(bt_cuda_transport *c)
{
    bt_piece *next;

    for (uint32_t i = 0; i < c->batches; i++) {
        for (bt_piece *piece = c->flights[i]; piece != NULL; piece = next) {
            next = piece->next;
            c->peers[piece->peer].flying--;
            end_piece(piece, BT_ERR_DEVICE);
        }
        c->flights[i] = NULL;
    }
    for (uint32_t i = 0; i < c->waiting_count; i++) {
        end_piece(c->waiting[i], BT_ERR_DEVICE);
    }
    c->waiting_count = c->waiting_blocks = 0;
    c->broken = true;
}

static void
reap(bt_cuda_transport *c)
{
    uint64_t through;

    if (c->broken) {
        return;
    }
    if (bt_copier_through(c->copier, &through) != BT_OK) {
        fail_all(c);
        return;
    }
    while (c->through < through) {
        land(c, ++c->through);
    }
}

static bt_copier_way
way_to(const bt_cuda_transport *c, const bt_piece *piece)
{
    bool same = c->peers[piece->peer].same;

    return c->o.copies == BT_TRANSFER_COPIES_BY_KERNEL || (c->o.copies == BT_TRANSFER_COPIES_AUTO && same)
               ? BT_COPIER_BY_KERNEL
               : BT_COPIER_BY_ENGINE;
}

// The oldest that wait, as many as fit into a batch and go the same way.
static uint32_t
gather(const bt_cuda_transport *c, bt_copier_blocks runs[BT_COPIER_RUNS_MAX])
{
    size_t block_bytes = c->o.layout.block_bytes;
    uint32_t count = 0, blocks = 0;

    while (count < c->waiting_count && count < BT_COPIER_RUNS_MAX) {
        const bt_piece *piece = c->waiting[count];

        blocks += piece->count;
        if (blocks > c->blocks || way_to(c, piece) != way_to(c, c->waiting[0])) {
            break;
        }
        runs[count++] = (bt_copier_blocks){c->pool + piece->to * block_bytes,
                                           c->peers[piece->peer].pool + piece->from * block_bytes, piece->count};
    }
    return count;
}

static void
forget_first(bt_cuda_transport *c, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        c->waiting_blocks -= c->waiting[i]->count;
    }
    c->waiting_count -= count;
    memmove(c->waiting, c->waiting + count, c->waiting_count * sizeof *c->waiting);
}

// False: none waits, or all batches are in flight. One that has ended is, too, until what it landed has been taken.
static bool
begin_batch(bt_cuda_transport *c)
{
    bt_copier_blocks runs[BT_COPIER_RUNS_MAX];
    uint32_t count = c->begun - c->through < c->batches ? gather(c, runs) : 0;
    uint64_t ticket;
    bt_err err;

    if (count == 0) {
        return false;
    }
    err = bt_copier_fetch(c->copier, &c->o.layout, runs, count, way_to(c, c->waiting[0]), &ticket);
    if (err == BT_ERR_BUSY) {
        return false;
    }
    if (err != BT_OK) {
        fail_all(c);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        c->waiting[i]->next = i + 1 < count ? c->waiting[i + 1] : NULL;
        c->peers[c->waiting[i]->peer].flying++;
    }
    c->begun = ticket;
    c->flights[ticket % c->batches] = c->waiting[0];
    forget_first(c, count);
    return true;
}

// A piece that fills a batch goes at once. Shorter ones wait for those that are moved in the same turn; the next progress sees to them.
static void
cuda_move(bt_transport *transport, bt_piece *piece, bt_time now)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    (void)now;
    piece->began = bt_time_now();
    if (c->broken) {
        end_piece(piece, BT_ERR_DEVICE);
        return;
    }
    c->waiting[c->waiting_count++] = piece;
    c->waiting_blocks += piece->count;
    if (c->waiting_blocks >= c->blocks) {
        begin_batch(c);
    }
}

static bool
forget_waiting(bt_cuda_transport *c, const bt_piece *piece)
{
    for (uint32_t i = 0; i < c->waiting_count; i++) {
        if (c->waiting[i] == piece) {
            c->waiting_blocks -= piece->count;
            c->waiting_count--;
            memmove(c->waiting + i, c->waiting + i + 1, (c->waiting_count - i) * sizeof *c->waiting);
            return true;
        }
    }
    return false;
}

// Waits for the batch. What landed in time is as good as any.
static bool
cuda_drop(bt_transport *transport, bt_piece *piece)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;
    bt_time until = bt_time_now() + DROP_WAIT;

    if (forget_waiting(c, piece)) {
        end_piece(piece, BT_ERR_CANCELLED);
    }
    while (piece->state == BT_PIECE_MOVING && bt_time_now() < until) {
        reap(c);
    }
    return piece->state != BT_PIECE_MOVING;
}

static void
cuda_progress(bt_transport *transport, bt_time now)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;
    struct epoll_event events[EVENTS]; // say only that there is something: all is looked at
    int count = epoll_wait(c->epoll, events, EVENTS, 0);

    (void)now, (void)count;
    reap(c);
    while (begin_batch(c)) {
    }
    for (uint32_t i = 0; i < c->o.peers_max; i++) {
        bt_cuda_peer_look(c, i);
    }
}

static int
cuda_fd(const bt_transport *transport)
{
    return ((const bt_cuda_transport *)transport)->epoll;
}

static bool
cuda_arm(bt_transport *transport)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    while (begin_batch(c)) { // what was moved since the last progress
    }
    return c->broken || bt_copier_arm(c->copier);
}

// ---- peers ----

static bt_err
cuda_connect(bt_transport *transport, uint32_t slot, const bt_description *d, bt_why *why)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    if (c->o.path != BT_TRANSFER_PATH_AUTO && c->o.path != BT_TRANSFER_PATH_DIRECT) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: a GPU's pool has no path '%s'",
                       bt_transfer_path_name(c->o.path));
    }
    return bt_cuda_peer_open(c, slot, d, why);
}

static void
cuda_disconnect(bt_transport *transport, uint32_t slot)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    for (uint32_t i = c->waiting_count; i-- > 0;) {
        bt_piece *piece = c->waiting[i];

        if (piece->peer == slot) {
            forget_waiting(c, piece);
            end_piece(piece, BT_ERR_CLOSED);
        }
    }
    c->peers[slot].lost = true; // what is in flight ends by itself
}

static bool
cuda_idle(bt_transport *transport, uint32_t slot)
{
    bt_cuda_transport *c = (bt_cuda_transport *)transport;

    if (c->peers[slot].flying != 0) {
        return false;
    }
    bt_cuda_peer_close(c, slot);
    return true;
}

static bool
cuda_up(bt_transport *transport, uint32_t slot)
{
    const bt_cuda_transport *c = (const bt_cuda_transport *)transport;

    return c->peers[slot].used && !c->peers[slot].lost && !c->broken;
}

static bt_transfer_path
cuda_path(const bt_transport *transport, uint32_t slot, char *name, size_t bytes)
{
    const bt_cuda_transport *c = (const bt_cuda_transport *)transport;

    snprintf(name, bytes, "cuda_ipc/%s", c->peers[slot].same ? "same" : "peer");
    return BT_TRANSFER_PATH_DIRECT;
}

static void
cuda_stats(const bt_transport *transport, bt_transfer_stats *out)
{
    (void)transport;
    (void)out; // an owner takes no part
}

const bt_transport_ops bt_transport_cuda = {
    .name = "cuda",
    .id = 4,
    .memories = 1u << BT_TRANSFER_CUDA,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .connect = cuda_connect,
    .disconnect = cuda_disconnect,
    .idle = cuda_idle,
    .up = cuda_up,
    .move = cuda_move,
    .drop = cuda_drop,
    .progress = cuda_progress,
    .fd = cuda_fd,
    .arm = cuda_arm,
    .path = cuda_path,
    .stats = cuda_stats,
};
