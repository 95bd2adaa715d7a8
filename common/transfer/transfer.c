#include "common/transfer/transfer.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/trailer.h"
#include "common/transfer/impl.h"

#include <assert.h>
#include <string.h>

#define PROOF_ROUNDS 8
#define PROOF_GENERATION 1
#define END_GRACE BT_SECOND // after a cancel: what cannot be dropped by then costs the peer

typedef struct {
    bool used, proof;
    uint32_t peer, count;
    uint32_t next;   // first block that no piece was cut for
    uint32_t pieces; // in flight
    uint32_t good;   // the first block known to be bad
    bt_err err;      // not BT_OK: no more pieces
    bt_transfer_cause cause;
    bt_time deadline;
    uint64_t user, order;
    bt_time best; // of a proof: fastest round
    bt_transfer_block *blocks;
    uint64_t *sums;
} fetch;

typedef struct {
    bool used, lost, told, closing;
    bool broken; // we gave it up: an operation did not end in time
    uint32_t flying;
    uint32_t window, blocks;
    uint64_t epoch, bytes;
    bt_time proof_took;
} peer_slot;

struct bt_transfer {
    bt_transfer_options o;
    const bt_transport_ops *ops;
    bt_transport *transport;
    uint8_t *memory;
    uint32_t piece_blocks, piece_count;
    fetch *fetches;
    uint32_t *queue; // fetches in use, oldest first
    uint32_t queued;
    peer_slot *peers;
    bt_piece *pieces;
    bt_transfer_block *blocks; // of all fetches
    uint64_t *sums;
    uint64_t identity;
    bt_transfer_stats stats;
};

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
    o->window = either(o->window, 4);
    o->piece_bytes = o->piece_bytes != 0 ? o->piece_bytes : (size_t)16 << 20;
    o->turn_bytes = o->turn_bytes != 0 ? o->turn_bytes : (size_t)8 << 20;
}

static bt_err
check_options(const bt_transfer_options *o, bt_why *why)
{
    if (o->memory != BT_TRANSFER_HOST) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: only host memory can be served yet");
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

static bt_err
pick_transport(const bt_transport_ops **out, const char *name, bt_why *why)
{
    if (name == NULL || strcmp(name, "host") == 0) {
        *out = &bt_transport_host;
        return BT_OK;
    }
    if (strcmp(name, "ucx") == 0) {
#ifdef BT_HAVE_UCX
        *out = &bt_transport_ucx;
        return BT_OK;
#else
        return bt_fail(why, BT_ERR_UNSUPPORTED,
                       "transfer: this build has no UCX (install libucx-dev and configure with -DBT_UCX=ON, or give "
                       "-DUCX_ROOT=); 'host' and 'loopback' are there");
#endif
    }
    if (strcmp(name, "loopback") == 0) {
        *out = &bt_transport_loopback;
        return BT_OK;
    }
    return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: '%s' is no transport, expected host, ucx or loopback", name);
}

static bt_err
open_tables(bt_transfer *t, bt_why *why)
{
    const bt_transfer_options *o = &t->o;
    size_t slots = (size_t)o->fetches_max * o->fetch_blocks_max;

    t->piece_blocks = (uint32_t)(o->piece_bytes / o->layout.block_bytes);
    t->piece_blocks = t->piece_blocks == 0 ? 1 : t->piece_blocks;
    t->piece_count = o->peers_max * o->window < 4096 ? o->peers_max * o->window : 4096;
    t->fetches = bt_alloc_array(o->fetches_max, sizeof *t->fetches);
    t->queue = bt_alloc_array(o->fetches_max, sizeof *t->queue);
    t->peers = bt_alloc_array(o->peers_max, sizeof *t->peers);
    t->pieces = bt_alloc_array(t->piece_count, sizeof *t->pieces);
    t->blocks = bt_alloc_array(slots, sizeof *t->blocks);
    t->sums = bt_alloc_array(slots, sizeof *t->sums);
    if (t->fetches == NULL || t->queue == NULL || t->peers == NULL || t->pieces == NULL || t->blocks == NULL ||
        t->sums == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "transfer: no memory for %u fetches of %u blocks", o->fetches_max,
                       o->fetch_blocks_max);
    }
    for (uint32_t i = 0; i < o->fetches_max; i++) {
        t->fetches[i].blocks = t->blocks + (size_t)i * o->fetch_blocks_max;
        t->fetches[i].sums = t->sums + (size_t)i * o->fetch_blocks_max;
    }
    return BT_OK;
}

static uint8_t *
block_at(const bt_transfer *t, uint32_t block)
{
    return t->memory + (size_t)block * t->o.layout.block_bytes;
}

// Behind the pool lie the proof block, which peers fetch, and the landing for theirs.
static void
write_proof(bt_transfer *t)
{
    uint8_t *block = block_at(t, t->o.blocks);
    uint64_t word;

    for (size_t i = 0; i < t->o.layout.trailer_offset; i += sizeof word) {
        word = bt_mix64(t->o.epoch + i);
        memcpy(block + i, &word, sizeof word);
    }
    bt_kv_trailer_stamp(&t->o.layout, block, t->o.epoch, PROOF_GENERATION);
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
    if ((err = check_options(&t->o, why)) != BT_OK || (err = pick_transport(&t->ops, t->o.transport, why)) != BT_OK ||
        (err = open_tables(t, why)) != BT_OK ||
        (err = t->ops->open(&t->transport, &t->o, ((size_t)t->o.blocks + 2) * t->o.layout.block_bytes, &t->memory,
                            why)) != BT_OK) {
        bt_transfer_close(t);
        return err;
    }
    write_proof(t);
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
    bt_free(t);
}

uint8_t *
bt_transfer_pool(bt_transfer *t)
{
    return t->memory;
}

const char *
bt_transfer_name(const bt_transfer *t)
{
    return t->ops->name;
}

// Peers.

bt_err
bt_transfer_describe(bt_transfer *t, void *out, size_t capacity, size_t *bytes)
{
    bt_description d = {
        .transport = t->ops->id,
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

    if (d->transport != t->ops->id) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer: the peer's transport is number %u, ours '%s' is %u",
                       d->transport, t->ops->name, t->ops->id);
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
    t->peers[slot] = (peer_slot){.used = true, .epoch = d.epoch, .blocks = d.blocks};
    t->peers[slot].window = d.window < t->o.window ? d.window : t->o.window;
    *peer = slot;
    return BT_OK;
}

static peer_slot *
peer_of(const bt_transfer *t, uint32_t peer)
{
    return peer < t->o.peers_max && t->peers[peer].used && !t->peers[peer].closing ? &t->peers[peer] : NULL;
}

static bool
peer_up(const bt_transfer *t, uint32_t peer)
{
    const peer_slot *p = peer_of(t, peer);

    return p != NULL && !p->lost && !p->broken && t->ops->up(t->transport, peer);
}

bt_err
bt_transfer_peer(const bt_transfer *t, uint32_t peer, bt_transfer_peer_info *out)
{
    const peer_slot *p = peer_of(t, peer);
    bt_transfer_peer_info info = {.up = peer_up(t, peer)};

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

// Ending.

// The first error of a fetch counts. What can be let go is; the rest ends by itself, or with the peer at the deadline.
static void
end_fetch(bt_transfer *t, fetch *f, bt_err err, bt_transfer_cause cause)
{
    if (f->err == BT_OK) {
        f->err = err;
        f->cause = cause;
    }
    for (uint32_t i = 0; i < t->piece_count && f->pieces != 0; i++) {
        bt_piece *piece = &t->pieces[i];

        if (piece->state == BT_PIECE_MOVING && &t->fetches[piece->fetch] == f) {
            t->ops->drop(t->transport, piece); // where it succeeds, `reap` finds it done
        }
    }
}

static void
end_fetches_of(bt_transfer *t, uint32_t peer, bt_err err, bt_transfer_cause cause)
{
    for (uint32_t i = 0; i < t->queued; i++) {
        fetch *f = &t->fetches[t->queue[i]];

        if (f->peer == peer && (f->err == BT_OK || f->pieces != 0)) {
            end_fetch(t, f, err, cause);
        }
    }
}

void
bt_transfer_disconnect(bt_transfer *t, uint32_t peer)
{
    peer_slot *p = peer_of(t, peer);

    if (p != NULL) {
        end_fetches_of(t, peer, BT_ERR_CLOSED, BT_TRANSFER_CAUSE_ENDED);
        t->ops->disconnect(t->transport, peer);
        p->closing = true;
    }
}

void
bt_transfer_cancel(bt_transfer *t, uint64_t user)
{
    for (uint32_t i = 0; i < t->queued; i++) {
        fetch *f = &t->fetches[t->queue[i]];

        if (f->user == user && f->err == BT_OK && (f->next < f->count || f->pieces != 0)) {
            end_fetch(t, f, BT_ERR_CANCELLED, BT_TRANSFER_CAUSE_ENDED);
        }
    }
}

// Beginning.

static bt_err
begin_fetch(bt_transfer *t, uint32_t peer, uint32_t count, bt_time deadline, uint64_t user, fetch **out)
{
    uint32_t i = 0;
    fetch *f;

    if (!peer_up(t, peer)) {
        return BT_ERR_PEER;
    }
    if (t->queued == t->o.fetches_max) {
        return BT_ERR_BUSY;
    }
    while (t->fetches[i].used) {
        i++;
    }
    f = &t->fetches[i];
    *f = (fetch){.used = true,
                 .peer = peer,
                 .count = count,
                 .good = count,
                 .deadline = deadline,
                 .user = user,
                 .blocks = f->blocks,
                 .sums = f->sums};
    t->queue[t->queued++] = i;
    *out = f;
    return BT_OK;
}

bt_err
bt_transfer_fetch(bt_transfer *t, uint32_t peer, const bt_transfer_block *blocks, uint32_t count, bt_time deadline,
                  uint64_t user)
{
    const peer_slot *p = peer_of(t, peer);
    fetch *f;
    bt_err err;

    if (p == NULL) {
        return BT_ERR_PEER;
    }
    if (count == 0 || count > t->o.fetch_blocks_max) {
        return BT_ERR_INVALID;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (blocks[i].from >= p->blocks || blocks[i].to >= t->o.blocks) {
            return BT_ERR_INVALID;
        }
    }
    if ((err = begin_fetch(t, peer, count, deadline, user, &f)) == BT_OK) {
        memcpy(f->blocks, blocks, count * sizeof *blocks);
    }
    return err;
}

bt_err
bt_transfer_prove(bt_transfer *t, uint32_t peer, bt_time deadline, uint64_t user)
{
    fetch *f;
    uint32_t rounds = t->o.fetch_blocks_max < PROOF_ROUNDS ? t->o.fetch_blocks_max : PROOF_ROUNDS;
    bt_err err = begin_fetch(t, peer, rounds, deadline, user, &f);

    if (err != BT_OK) {
        return err;
    }
    f->proof = true;
    for (uint32_t i = 0; i < rounds; i++) {
        f->blocks[i] = (bt_transfer_block){t->peers[peer].blocks, t->o.blocks + 1, PROOF_GENERATION};
    }
    return BT_OK;
}

// Moving.

// Blocks from `at` on that are adjacent on both sides.
static uint32_t
run_length(const bt_transfer *t, const fetch *f, uint32_t at)
{
    uint32_t n = 1;

    while (!f->proof && at + n < f->count && n < t->piece_blocks && f->blocks[at + n].from == f->blocks[at].from + n &&
           f->blocks[at + n].to == f->blocks[at].to + n) {
        n++;
    }
    return n;
}

static bt_transfer_cause
cause_of(bt_kv_verdict verdict)
{
    return verdict == BT_KV_BAD_EPOCH        ? BT_TRANSFER_CAUSE_EPOCH
           : verdict == BT_KV_BAD_GENERATION ? BT_TRANSFER_CAUSE_GENERATION
                                             : BT_TRANSFER_CAUSE_CHECKSUM;
}

// The fetch is good up to `block` at most. When several pieces fail, the earliest block gives the cause.
static void
spoil(bt_transfer *t, fetch *f, uint32_t block, bt_err err, bt_transfer_cause cause)
{
    if (block < f->good) {
        f->good = block;
    }
    end_fetch(t, f, err, cause);
}

static void
check_piece(bt_transfer *t, fetch *f, const bt_piece *piece)
{
    const bt_kv_layout *layout = &t->o.layout;
    uint64_t epoch = t->peers[piece->peer].epoch;

    for (uint32_t i = 0; i < piece->count; i++) {
        const uint8_t *block = block_at(t, piece->to + i);
        uint64_t generation = f->blocks[piece->first + i].generation;
        bt_kv_verdict verdict = t->o.no_checksum ? bt_kv_trailer_check_names(layout, block, epoch, generation)
                                                 : bt_kv_trailer_check(layout, block, epoch, generation,
                                                                       piece->summed ? &piece->sums[i] : NULL);

        if (verdict != BT_KV_GOOD) {
            spoil(t, f, piece->first + i, BT_ERR_PEER, cause_of(verdict));
            return;
        }
        t->stats.fetched_blocks++;
        t->stats.fetched_bytes += layout->block_bytes;
        t->peers[piece->peer].bytes += layout->block_bytes;
    }
}

static void
land(bt_transfer *t, bt_piece *piece)
{
    fetch *f = &t->fetches[piece->fetch];
    bt_piece done = *piece;

    piece->state = BT_PIECE_FREE;
    f->pieces--;
    t->peers[done.peer].flying--;
    t->stats.operations--;
    t->stats.operations_done++;
    t->stats.moving += done.took;
    if (done.err != BT_OK) {
        spoil(t, f, done.first, done.err, done.refused ? BT_TRANSFER_CAUSE_REFUSED : BT_TRANSFER_CAUSE_PEER);
        return;
    }
    check_piece(t, f, &done);
    if (f->proof && (f->best == 0 || done.took < f->best)) {
        f->best = done.took != 0 ? done.took : 1;
    }
}

static void
reap(bt_transfer *t)
{
    for (uint32_t i = 0; i < t->piece_count; i++) {
        if (t->pieces[i].state == BT_PIECE_DONE) {
            land(t, &t->pieces[i]);
        }
    }
}

static bt_piece *
free_piece(bt_transfer *t)
{
    for (uint32_t i = 0; i < t->piece_count; i++) {
        if (t->pieces[i].state == BT_PIECE_FREE) {
            return &t->pieces[i];
        }
    }
    return NULL;
}

static bool
proof_flies(const bt_transfer *t)
{
    for (uint32_t i = 0; i < t->queued; i++) {
        if (t->fetches[t->queue[i]].proof && t->fetches[t->queue[i]].pieces != 0) {
            return true;
        }
    }
    return false;
}

// One more piece of this fetch; false when it must wait (or has none). Returns the bytes that were moved before it returned.
static bool
move_piece(bt_transfer *t, uint32_t index, bt_time now, size_t *moved)
{
    fetch *f = &t->fetches[index];
    peer_slot *p = &t->peers[f->peer];
    bt_piece *piece;

    if (f->err != BT_OK || f->next == f->count || p->flying >= p->window || (f->proof && proof_flies(t)) ||
        (piece = free_piece(t)) == NULL) {
        return false;
    }
    *piece = (bt_piece){.state = BT_PIECE_MOVING,
                        .peer = f->peer,
                        .fetch = index,
                        .first = f->next,
                        .proof = f->proof,
                        .from = f->blocks[f->next].from,
                        .to = f->blocks[f->next].to,
                        .count = run_length(t, f, f->next),
                        .sums = f->sums + f->next,
                        .began = now};
    f->next += piece->count;
    f->pieces++;
    p->flying++;
    t->stats.operations++;
    t->ops->move(t->transport, piece, now);
    if (piece->state == BT_PIECE_DONE) {
        *moved += piece->count * t->o.layout.block_bytes;
        land(t, piece);
    }
    return true;
}

static void
move_pieces(bt_transfer *t, bt_time now)
{
    size_t moved = 0;
    bool any = true;

    // A piece of each fetch in turn, so that a long one does not hold up those behind it.
    while (any && moved < t->o.turn_bytes) {
        any = false;
        for (uint32_t i = 0; i < t->queued && moved < t->o.turn_bytes; i++) {
            any = move_piece(t, t->queue[i], now, &moved) || any;
        }
    }
}

// Watching.

static void
break_peer(bt_transfer *t, uint32_t peer)
{
    if (!t->peers[peer].broken && !t->peers[peer].closing) {
        bt_log_warn("TRANSFER-STUCK",
                    "peer %u does not let go of an operation past its deadline: its endpoint is closed", peer);
        t->ops->disconnect(t->transport, peer);
    }
    t->peers[peer].broken = true;
}

static void
watch_deadlines(bt_transfer *t, bt_time now)
{
    for (uint32_t i = 0; i < t->queued; i++) {
        fetch *f = &t->fetches[t->queue[i]];

        if (f->err != BT_OK && f->pieces != 0 && f->deadline > now + END_GRACE) {
            f->deadline = now + END_GRACE;
        }
        if (now < f->deadline || (f->pieces == 0 && (f->err != BT_OK || f->next == f->count))) {
            continue;
        }
        end_fetch(t, f, BT_ERR_TIMEOUT, BT_TRANSFER_CAUSE_TIMEOUT);
        reap(t);
        if (f->pieces != 0) {
            break_peer(t, f->peer);
        }
    }
}

static void
watch_peers(bt_transfer *t)
{
    for (uint32_t i = 0; i < t->o.peers_max; i++) {
        peer_slot *p = &t->peers[i];

        if (p->used && !p->closing && !p->lost && (p->broken || !t->ops->up(t->transport, i))) {
            p->lost = true;
            end_fetches_of(t, i, BT_ERR_PEER, BT_TRANSFER_CAUSE_PEER);
        }
    }
}

// Telling.

static bool
fetch_over(const fetch *f)
{
    return f->pieces == 0 && (f->err != BT_OK || f->next == f->count);
}

static bt_transfer_event
finish(bt_transfer *t, fetch *f)
{
    peer_slot *p = &t->peers[f->peer];
    bt_transfer_event event = {.kind = f->proof ? BT_TRANSFER_PROVED : BT_TRANSFER_FETCHED,
                               .peer = f->peer,
                               .user = f->user,
                               .err = f->err,
                               .cause = f->cause};

    event.good = f->good < f->next ? f->good : f->next;
    if (f->err == BT_OK) {
        t->stats.fetches_done++;
    } else {
        t->stats.fetches_failed++;
        t->stats.failures[f->cause]++;
    }
    if (f->proof) {
        p->proof_took = f->err == BT_OK ? f->best : 0;
    }
    f->used = false;
    return event;
}

static bool
has_fetches(const bt_transfer *t, uint32_t peer)
{
    for (uint32_t i = 0; i < t->queued; i++) {
        if (t->fetches[t->queue[i]].peer == peer) {
            return true;
        }
    }
    return false;
}

static uint32_t
tell(bt_transfer *t, bt_transfer_event *events, uint32_t max)
{
    uint32_t told = 0, kept = 0;

    for (uint32_t i = 0; i < t->queued; i++) {
        fetch *f = &t->fetches[t->queue[i]];

        if (told < max && fetch_over(f)) {
            events[told++] = finish(t, f);
        } else {
            t->queue[kept++] = t->queue[i];
        }
    }
    t->queued = kept;
    for (uint32_t i = 0; i < t->o.peers_max; i++) {
        peer_slot *p = &t->peers[i];

        if (p->used && p->lost && !p->told && !p->closing && told < max) {
            p->told = true;
            events[told++] = (bt_transfer_event){
                .kind = BT_TRANSFER_LOST, .peer = i, .err = BT_ERR_PEER, .cause = BT_TRANSFER_CAUSE_PEER};
        }
        if (p->used && p->closing && !has_fetches(t, i) && t->ops->idle(t->transport, i)) {
            *p = (peer_slot){0};
        }
    }
    return told;
}

uint32_t
bt_transfer_poll(bt_transfer *t, bt_time now, bt_transfer_event *events, uint32_t max)
{
    t->ops->progress(t->transport, now);
    watch_peers(t);
    reap(t);
    watch_deadlines(t, now);
    move_pieces(t, now);
    return tell(t, events, max);
}

int
bt_transfer_fd(const bt_transfer *t)
{
    return t->ops->fd(t->transport);
}

bool
bt_transfer_arm(bt_transfer *t)
{
    for (uint32_t i = 0; i < t->queued; i++) {
        const fetch *f = &t->fetches[t->queue[i]];

        if (fetch_over(f) ||
            (f->err == BT_OK && f->next < f->count && t->peers[f->peer].flying < t->peers[f->peer].window)) {
            return false;
        }
    }
    return t->ops->arm(t->transport);
}

bt_time
bt_transfer_next_deadline(const bt_transfer *t)
{
    bt_time next = BT_TIME_NEVER;

    for (uint32_t i = 0; i < t->queued; i++) {
        const fetch *f = &t->fetches[t->queue[i]];

        next = f->deadline < next ? f->deadline : next;
    }
    for (uint32_t i = 0; i < t->piece_count; i++) {
        const bt_piece *piece = &t->pieces[i];

        if (piece->state == BT_PIECE_MOVING && piece->due != 0 && piece->due < next) {
            next = piece->due;
        }
    }
    return next;
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
