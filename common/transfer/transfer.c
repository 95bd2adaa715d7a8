#include "common/transfer/transfer.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/trailer.h"
#include "common/transfer/state.h"

#include <string.h>

const char *
bt_transfer_path_name(bt_transfer_path path)
{
    static const char *const names[] = {"auto", "direct", "stream", "get", "am"};

    return path <= BT_TRANSFER_PATH_AM ? names[path] : "?";
}

const char *
bt_transfer_cause_name(bt_transfer_cause cause)
{
    static const char *const names[] = {"none",    "epoch", "generation", "checksum",
                                        "timeout", "peer",  "refused",    "ended"};

    return cause < BT_TRANSFER_CAUSES ? names[cause] : "?";
}

// Open and close.

static uint32_t
either(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static void
set_defaults(bt_transfer_options *o)
{
    o->peers_max = either(o->peers_max, 64);
    o->fetches_max = either(o->fetches_max, 64);
    o->fetch_blocks_max = either(o->fetch_blocks_max, 1024);
    o->window = either(o->window, o->memory == BT_TRANSFER_CUDA ? 16 : 4);
    if (o->piece_bytes == 0) {
        o->piece_bytes = (size_t)(o->memory == BT_TRANSFER_CUDA ? 64 : 16) << 20;
    }
    o->turn_bytes = o->turn_bytes != 0 ? o->turn_bytes : (size_t)8 << 20;
}

static bt_err
check_options(const bt_transfer_options *o, bt_why *why)
{
    if (o->memory == BT_TRANSFER_CUDA && (o->device == NULL || bt_device_is_host(o->device))) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: a pool in a GPU's memory, and %s",
                       o->device == NULL ? "no device" : "the device is this processor");
    }
    if (o->epoch == 0 || o->blocks == 0 || o->blocks > 1u << 30 || o->layout.block_bytes == 0 ||
        o->layout.block_bytes > SIZE_MAX / 4 / ((size_t)o->blocks + 2)) {
        return bt_fail(why, BT_ERR_INVALID, "transfer: epoch %llu, %u blocks of %zu bytes",
                       (unsigned long long)o->epoch, o->blocks, o->layout.block_bytes);
    }
    if (o->peers_max > BT_TRANSFER_PEERS_MAX || o->fetches_max > 1u << 16 || o->fetch_blocks_max > 1u << 20 ||
        o->window > 64) {
        return bt_fail(
            why, BT_ERR_INVALID,
            "transfer: peers %u, fetches %u, blocks of a fetch %u, window %u; at most %d, 65536, 1048576, 64",
            o->peers_max, o->fetches_max, o->fetch_blocks_max, o->window, BT_TRANSFER_PEERS_MAX);
    }
    return BT_OK;
}

static const char *
memory_name(int memory)
{
    return memory == BT_TRANSFER_HOST ? "the host's" : memory == BT_TRANSFER_CUDA ? "a GPU's" : "unknown";
}

static const bt_transport_ops *const transports[] = {
    &bt_transport_host,
    &bt_transport_cuda,
    &bt_transport_loopback,
#ifdef BT_HAVE_UCX
    &bt_transport_ucx,
#endif
};

static bt_err
pick_transport(const bt_transport_ops **out, const bt_transfer_options *o, bt_why *why)
{
    const char *name = o->transport != NULL ? o->transport : o->memory == BT_TRANSFER_CUDA ? "cuda" : "host";
    const bt_transport_ops *found = NULL;

    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        found = strcmp(transports[i]->name, name) == 0 ? transports[i] : found;
    }
    if (found == NULL && strcmp(name, "ucx") == 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "transfer: this build has no UCX (install libucx-dev and configure with -DBT_UCX=ON, or give "
                       "-DUCX_ROOT=); 'host', 'cuda' and 'loopback' are there");
    }
    if (found == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: '%s' is no transport, expected host, cuda, ucx or loopback",
                       name);
    }
    if ((found->memories & 1u << o->memory) == 0) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: '%s' serves no pool in %s memory", name,
                       memory_name((int)o->memory));
    }
    *out = found;
    return BT_OK;
}

static bt_err
open_tables(bt_transfer *t, bt_why *why)
{
    const bt_transfer_options *o = &t->o;
    size_t slots = (size_t)o->fetches_max * o->fetch_blocks_max;

    t->piece_blocks = bt_piece_blocks(o);
    t->piece_count = bt_piece_count(o);
    t->fetches = bt_alloc_array(o->fetches_max, sizeof *t->fetches);
    t->queue = bt_alloc_array(o->fetches_max, sizeof *t->queue);
    t->peers = bt_alloc_array(o->peers_max, sizeof *t->peers);
    t->pieces = bt_alloc_array(t->piece_count, sizeof *t->pieces);
    t->blocks = bt_alloc_array(slots, sizeof *t->blocks);
    t->sums = bt_alloc_array(slots, sizeof *t->sums);
    t->trailers = o->memory == BT_TRANSFER_CUDA ? bt_alloc_array(slots, sizeof *t->trailers) : NULL;
    if (t->fetches == NULL || t->queue == NULL || t->peers == NULL || t->pieces == NULL || t->blocks == NULL ||
        t->sums == NULL || (o->memory == BT_TRANSFER_CUDA && t->trailers == NULL)) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory for %u fetches of %u blocks", o->fetches_max,
                       o->fetch_blocks_max);
    }
    for (uint32_t i = 0; i < o->fetches_max; i++) {
        t->fetches[i].blocks = t->blocks + (size_t)i * o->fetch_blocks_max;
        t->fetches[i].sums = t->sums + (size_t)i * o->fetch_blocks_max;
        t->fetches[i].trailers = t->trailers != NULL ? t->trailers + (size_t)i * o->fetch_blocks_max : NULL;
    }
    return BT_OK;
}

uint8_t *
bt_transfer_block_at(const bt_transfer *t, uint32_t block)
{
    return t->memory + (size_t)block * t->o.layout.block_bytes;
}

static void
fill_proof(const bt_transfer *t, uint8_t *block)
{
    uint64_t word;

    for (size_t i = 0; i < t->o.layout.trailer_offset; i += sizeof word) {
        word = bt_mix64(t->o.epoch + i);
        memcpy(block + i, &word, sizeof word);
    }
    bt_kv_trailer_stamp(&t->o.layout, block, t->o.epoch, BT_PROOF_GENERATION);
}

// Behind the pool lie the proof block, which peers fetch, and the landing for theirs.
static bt_err
write_proof(bt_transfer *t, bt_why *why)
{
    uint8_t *place = bt_transfer_block_at(t, t->o.blocks), *block;
    bt_err err;

    if (t->o.memory == BT_TRANSFER_HOST) {
        fill_proof(t, place);
        return BT_OK;
    }
    if ((block = bt_alloc(t->o.layout.block_bytes)) == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    fill_proof(t, block);
    err = bt_device_write(t->o.device, place, block, t->o.layout.block_bytes);
    bt_free(block);
    return err == BT_OK ? BT_OK : bt_fail(why, err, "transfer: the proof block cannot be written to the GPU");
}

bt_err
bt_transfer_open(bt_transfer **out, const bt_transfer_options *options, bt_why *why)
{
    bt_transfer *t = bt_alloc(sizeof *t);
    bt_err err;

    if (t == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory");
    }
    t->o = *options;
    set_defaults(&t->o);
    if ((err = check_options(&t->o, why)) != BT_OK || (err = pick_transport(&t->ops, &t->o, why)) != BT_OK ||
        (err = open_tables(t, why)) != BT_OK ||
        (err = t->ops->open(&t->transport, &t->o, bt_transfer_pool_bytes(t->o.layout.block_bytes, t->o.blocks),
                            &t->memory, why)) != BT_OK ||
        (err = write_proof(t, why)) != BT_OK) {
        bt_transfer_close(t);
        return err;
    }
    *out = t;
    return BT_OK;
}

void
bt_transfer_close(bt_transfer *t)
{
    if (t == NULL) {
        return;
    }
    if (t->transport != NULL) {
        t->ops->close(t->transport);
    }
    bt_free(t->fetches);
    bt_free(t->queue);
    bt_free(t->peers);
    bt_free(t->pieces);
    bt_free(t->blocks);
    bt_free(t->sums);
    bt_free(t->trailers);
    bt_free(t);
}

uint8_t *
bt_transfer_pool(bt_transfer *t)
{
    return t->memory;
}

// Peers.

// In descriptions: a transport, and above it the memory.
#define MEMORY_SHIFT 8

bt_err
bt_transfer_describe(bt_transfer *t, void *out, size_t capacity, size_t *bytes)
{
    bt_description d = {
        .transport = (uint16_t)(t->ops->id | (unsigned)t->o.memory << MEMORY_SHIFT),
        .window = (uint16_t)t->o.window,
        .blocks = t->o.blocks,
        .epoch = t->o.epoch,
        .layout = bt_kv_layout_fingerprint(&t->o.layout),
        .block_bytes = t->o.layout.block_bytes,
    };
    bt_err err = t->ops->describe(t->transport, &d);

    return err != BT_OK ? err : bt_description_encode(&d, out, capacity, bytes);
}

static bt_err
check_match(const bt_transfer *t, const bt_description *d, bt_why *why)
{
    uint64_t layout = bt_kv_layout_fingerprint(&t->o.layout);

    if (d->transport >> MEMORY_SHIFT != (int)t->o.memory) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: the peer's pool is in %s memory, ours in %s",
                       memory_name(d->transport >> MEMORY_SHIFT), memory_name((int)t->o.memory));
    }
    if ((d->transport & ((1 << MEMORY_SHIFT) - 1)) != t->ops->id) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: the peer's transport is number %u, ours '%s' is %u",
                       d->transport & ((1u << MEMORY_SHIFT) - 1), t->ops->name, t->ops->id);
    }
    if (d->layout != layout) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: the peer's KV layout is %016llx, ours %016llx",
                       (unsigned long long)d->layout, (unsigned long long)layout);
    }
    if (d->block_bytes != t->o.layout.block_bytes) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: the peer's blocks have %llu bytes, ours %zu",
                       (unsigned long long)d->block_bytes, t->o.layout.block_bytes);
    }
    return BT_OK;
}

bt_err
bt_transfer_connect(bt_transfer *t, const void *description, size_t bytes, uint32_t *peer, bt_why *why)
{
    uint32_t slot = 0;
    bt_description d;
    bt_err err;

    if ((err = bt_description_decode(&d, description, bytes, why)) != BT_OK ||
        (err = check_match(t, &d, why)) != BT_OK) {
        return err;
    }
    while (slot < t->o.peers_max && t->peers[slot].used) {
        slot++;
    }
    if (slot == t->o.peers_max) {
        return bt_fail(why, BT_ERR_BUSY, "transfer: %u peers are connected, the limit", t->o.peers_max);
    }
    if ((err = t->ops->connect(t->transport, slot, &d, why)) != BT_OK) {
        return err;
    }
    t->peers[slot] = (bt_peer_slot){.used = true, .epoch = d.epoch, .blocks = d.blocks};
    t->peers[slot].window = d.window < t->o.window ? d.window : t->o.window;
    *peer = slot;
    return BT_OK;
}

bt_peer_slot *
bt_transfer_slot(const bt_transfer *t, uint32_t peer)
{
    return peer < t->o.peers_max && t->peers[peer].used && !t->peers[peer].closing ? &t->peers[peer] : NULL;
}

bool
bt_transfer_slot_up(const bt_transfer *t, uint32_t peer)
{
    const bt_peer_slot *p = bt_transfer_slot(t, peer);

    return p != NULL && !p->lost && !p->broken && t->ops->up(t->transport, peer);
}

bt_err
bt_transfer_peer(const bt_transfer *t, uint32_t peer, bt_transfer_peer_info *out)
{
    const bt_peer_slot *p = bt_transfer_slot(t, peer);
    bt_transfer_peer_info info = {.up = bt_transfer_slot_up(t, peer)};

    if (p == NULL) {
        return BT_ERR_NOT_FOUND;
    }
    info.epoch = p->epoch;
    info.blocks = p->blocks;
    info.bytes = p->bytes;
    info.proved = p->proof_took != 0;
    info.gb_per_s = p->proof_took != 0 ? (double)t->o.layout.block_bytes / (double)p->proof_took : 0;
    info.path = t->ops->path(t->transport, peer, info.transport, sizeof info.transport);
    *out = info;
    return BT_OK;
}

void
bt_transfer_get_stats(const bt_transfer *t, bt_transfer_stats *out)
{
    bt_transfer_stats stats = t->stats;

    for (uint32_t i = 0; i < t->o.peers_max; i++) {
        stats.peers += t->peers[i].used && !t->peers[i].closing;
    }
    stats.fetches = t->queued;
    t->ops->stats(t->transport, &stats);
    *out = stats;
}
