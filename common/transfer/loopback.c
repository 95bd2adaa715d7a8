// Blocks within one process: each open memory stands in a list, peers copy out of it. A memory lives until its owner and all
// readers have let go, as shared memory does, so that a closed owner is to its readers what a dead process is.
// With a `draw` it does wrong what the simulator asks for.
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/transfer/impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

typedef struct region {
    uint64_t identity, epoch;
    uint8_t *memory;
    size_t bytes;
    uint32_t blocks;
    int holds; // under the lock, as `next`
    struct region *next;
    atomic_bool closed;
} region;

typedef struct {
    bt_transport base;
    bt_transfer_options o;
    region *own;
    region **peers;  // [peers_max], NULL = not connected
    bt_piece **late; // pieces that are done later, or never
    uint32_t late_count, late_max;
} loopback;

static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static region *regions;
static uint64_t regions_opened;

static void
region_release(region *r)
{
    region **at;
    bool last;

    if (r == NULL) {
        return;
    }
    pthread_mutex_lock(&regions_lock);
    last = --r->holds == 0;
    for (at = &regions; last && *at != r; at = &(*at)->next) {
    }
    if (last) {
        *at = r->next;
    }
    pthread_mutex_unlock(&regions_lock);
    if (last) {
        bt_free_pages(r->memory, r->bytes);
        bt_free(r);
    }
}

static region *
region_find(uint64_t identity)
{
    region *r;

    pthread_mutex_lock(&regions_lock);
    for (r = regions; r != NULL && (r->identity != identity || atomic_load(&r->closed)); r = r->next) {
    }
    if (r != NULL) {
        r->holds++;
    }
    pthread_mutex_unlock(&regions_lock);
    return r;
}

static region *
region_open(const bt_transfer_options *o, size_t bytes)
{
    region *r = bt_alloc(sizeof *r);

    if (r == NULL || (r->memory = bt_alloc_pages(bytes)) == NULL) {
        bt_free(r);
        return NULL;
    }
    r->bytes = bytes;
    r->blocks = o->blocks;
    r->epoch = o->epoch;
    r->holds = 1;
    pthread_mutex_lock(&regions_lock);
    r->identity = bt_mix64(o->epoch ^ ++regions_opened << 32);
    r->next = regions;
    regions = r;
    pthread_mutex_unlock(&regions_lock);
    return r;
}

static void
loopback_close(bt_transport *transport)
{
    loopback *l = (loopback *)transport;

    for (uint32_t i = 0; l->peers != NULL && i < l->o.peers_max; i++) {
        region_release(l->peers[i]);
    }
    if (l->own != NULL) {
        atomic_store(&l->own->closed, true);
    }
    region_release(l->own);
    bt_free(l->peers);
    bt_free(l->late);
    bt_free(l);
}

static bt_err
loopback_open(bt_transport **out, const bt_transfer_options *options, size_t bytes, uint8_t **memory, bt_why *why)
{
    loopback *l = bt_alloc(sizeof *l);

    if (l == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    l->base.ops = &bt_transport_loopback;
    l->o = *options;
    l->late_max = options->peers_max * options->window;
    l->peers = bt_alloc_array(options->peers_max, sizeof *l->peers);
    l->late = bt_alloc_array(l->late_max, sizeof *l->late);
    l->own = region_open(options, bytes);
    if (l->peers == NULL || l->late == NULL || l->own == NULL) {
        loopback_close(&l->base);
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory for a pool of %zu bytes", bytes);
    }
    *out = &l->base;
    *memory = l->own->memory;
    return BT_OK;
}

static bt_err
loopback_describe(bt_transport *transport, bt_description *out)
{
    out->identity = ((loopback *)transport)->own->identity;
    return BT_OK;
}

static bt_err
loopback_connect(bt_transport *transport, uint32_t peer, const bt_description *d, bt_why *why)
{
    loopback *l = (loopback *)transport;
    region *r = region_find(d->identity);

    if (r == NULL || r->blocks != d->blocks || r->epoch != d->epoch) {
        region_release(r);
        return bt_fail(why, BT_ERR_PEER, "transfer: no such memory in this process");
    }
    l->peers[peer] = r;
    return BT_OK;
}

static void
forget_late(loopback *l, const bt_piece *piece)
{
    for (uint32_t i = 0; i < l->late_count; i++) {
        if (l->late[i] == piece) {
            l->late[i] = l->late[--l->late_count];
            return;
        }
    }
}

static void
end_piece(bt_piece *piece, bt_err err)
{
    piece->err = err;
    piece->state = BT_PIECE_DONE;
}

static void
loopback_disconnect(bt_transport *transport, uint32_t peer)
{
    loopback *l = (loopback *)transport;

    for (uint32_t i = l->late_count; i-- > 0;) {
        if (l->late[i]->peer == peer) {
            end_piece(l->late[i], BT_ERR_CLOSED);
            l->late[i] = l->late[--l->late_count];
        }
    }
    region_release(l->peers[peer]);
    l->peers[peer] = NULL;
}

static bool
loopback_idle(bt_transport *transport, uint32_t peer)
{
    (void)transport;
    (void)peer;
    return true;
}

static bool
loopback_up(bt_transport *transport, uint32_t peer)
{
    const region *r = ((loopback *)transport)->peers[peer];

    return r != NULL && !atomic_load(&r->closed);
}

static void
copy_piece(loopback *l, bt_piece *piece)
{
    const bt_kv_layout *layout = &l->o.layout;
    uint8_t *target = l->own->memory + (size_t)piece->to * layout->block_bytes;
    const uint8_t *source = l->peers[piece->peer]->memory + (size_t)piece->from * layout->block_bytes;

    switch (piece->fault) {
    case BT_TRANSFER_FAULT_EMPTY:
        break;
    case BT_TRANSFER_FAULT_ERROR:
        memcpy(target, source, piece->count * layout->block_bytes / 2);
        end_piece(piece, BT_ERR_PEER);
        return;
    default:
        bt_piece_copy(piece, layout, !l->o.no_checksum, target, source);
    }
    if (piece->fault == BT_TRANSFER_FAULT_FLIP) {
        target[layout->trailer_offset / 2] ^= 1;
        piece->summed = false;
    }
    end_piece(piece, BT_OK);
}

static void
loopback_move(bt_transport *transport, bt_piece *piece, bt_time now)
{
    loopback *l = (loopback *)transport;
    bt_time delay = 0;

    if (l->o.draw != NULL && !piece->proof) {
        piece->fault = l->o.draw(l->o.draw_self, piece->peer, piece->from, piece->count, &delay);
    }
    if (piece->fault == BT_TRANSFER_FAULT_DELAY || piece->fault == BT_TRANSFER_FAULT_NEVER) {
        piece->due = piece->fault == BT_TRANSFER_FAULT_NEVER ? BT_TIME_NEVER : now + delay;
        l->late[l->late_count++] = piece;
    } else {
        copy_piece(l, piece);
    }
}

static bool
loopback_drop(bt_transport *transport, bt_piece *piece)
{
    if (piece->due == BT_TIME_NEVER) {
        return false;
    }
    forget_late((loopback *)transport, piece);
    end_piece(piece, BT_ERR_CANCELLED);
    return true;
}

static void
loopback_progress(bt_transport *transport, bt_time now)
{
    loopback *l = (loopback *)transport;

    for (uint32_t i = l->late_count; i-- > 0;) {
        bt_piece *piece = l->late[i];

        if (piece->due <= now) {
            l->late[i] = l->late[--l->late_count];
            piece->took = now - piece->began;
            copy_piece(l, piece);
        }
    }
}

static int
loopback_fd(const bt_transport *transport)
{
    (void)transport;
    return -1;
}

static bool
loopback_arm(bt_transport *transport)
{
    (void)transport;
    return true;
}

static bt_transfer_path
loopback_path(const bt_transport *transport, uint32_t peer, char *name, size_t bytes)
{
    (void)transport;
    (void)peer;
    strncpy(name, "loopback", bytes - 1);
    return BT_TRANSFER_PATH_DIRECT;
}

static void
loopback_stats(const bt_transport *transport, bt_transfer_stats *out)
{
    (void)transport;
    (void)out; // an owner takes no part
}

const bt_transport_ops bt_transport_loopback = {
    .name = "loopback",
    .id = 1,
    .memories = 1u << BT_TRANSFER_HOST,
    .open = loopback_open,
    .close = loopback_close,
    .describe = loopback_describe,
    .connect = loopback_connect,
    .disconnect = loopback_disconnect,
    .idle = loopback_idle,
    .up = loopback_up,
    .move = loopback_move,
    .drop = loopback_drop,
    .progress = loopback_progress,
    .fd = loopback_fd,
    .arm = loopback_arm,
    .path = loopback_path,
    .stats = loopback_stats,
};
