// Fetches: cut into pieces, moved as far as windows allow, checked as they land, ended by deadline, peer or caller, told as events.
#include "common/base/log.h"
#include "common/kv/trailer.h"
#include "common/transfer/state.h"

#include <string.h>

#define PROOF_ROUNDS 8
#define END_GRACE BT_SECOND // after a cancel: what cannot be dropped by then costs the peer

// All that was begun has ended, and nothing more will be: it waits to be told.
static bool
fetch_over(const bt_fetch *f)
{
    return f->pieces == 0 && (f->err != BT_OK || f->next == f->count);
}

// Ending.

// The first error of a fetch counts. What can be let go is; the rest ends by itself, or with the peer at the deadline.
static void
end_fetch(bt_transfer *t, bt_fetch *f, bt_err err, bt_transfer_cause cause)
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
        bt_fetch *f = &t->fetches[t->queue[i]];

        if (f->peer == peer && (f->err == BT_OK || f->pieces != 0)) {
            end_fetch(t, f, err, cause);
        }
    }
}

void
bt_transfer_disconnect(bt_transfer *t, uint32_t peer)
{
    bt_peer_slot *p = bt_transfer_slot(t, peer);

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
        bt_fetch *f = &t->fetches[t->queue[i]];

        if (f->user == user && f->err == BT_OK && !fetch_over(f)) {
            end_fetch(t, f, BT_ERR_CANCELLED, BT_TRANSFER_CAUSE_ENDED);
        }
    }
}

// Beginning.

static bt_err
begin_fetch(bt_transfer *t, uint32_t peer, uint32_t count, bt_time deadline, uint64_t user, bt_fetch **out)
{
    uint32_t i = 0;
    bt_fetch *f;

    if (!bt_transfer_slot_up(t, peer)) {
        return BT_ERR_PEER;
    }
    if (t->queued == t->o.fetches_max) {
        return BT_ERR_BUSY;
    }
    while (t->fetches[i].used) {
        i++;
    }
    f = &t->fetches[i];
    *f = (bt_fetch){.used = true,
                    .peer = peer,
                    .count = count,
                    .good = count,
                    .deadline = deadline,
                    .user = user,
                    .blocks = f->blocks,
                    .sums = f->sums,
                    .trailers = f->trailers};
    t->queue[t->queued++] = i;
    *out = f;
    return BT_OK;
}

bt_err
bt_transfer_fetch(bt_transfer *t, uint32_t peer, const bt_transfer_block *blocks, uint32_t count, bt_time deadline,
                  uint64_t user)
{
    const bt_peer_slot *p = bt_transfer_slot(t, peer);
    bt_fetch *f;
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
    bt_fetch *f;
    uint32_t rounds = t->o.fetch_blocks_max < PROOF_ROUNDS ? t->o.fetch_blocks_max : PROOF_ROUNDS;
    bt_err err = begin_fetch(t, peer, rounds, deadline, user, &f);

    if (err != BT_OK) {
        return err;
    }
    f->proof = true;
    for (uint32_t i = 0; i < rounds; i++) {
        f->blocks[i] = (bt_transfer_block){t->peers[peer].blocks, t->o.blocks + 1, BT_PROOF_GENERATION};
    }
    return BT_OK;
}

// Moving.

// Blocks from `at` on that are adjacent on both sides.
static uint32_t
run_length(const bt_transfer *t, const bt_fetch *f, uint32_t at)
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
spoil(bt_transfer *t, bt_fetch *f, uint32_t block, bt_err err, bt_transfer_cause cause)
{
    if (block < f->good) {
        f->good = block;
    }
    end_fetch(t, f, err, cause);
}

static bt_kv_verdict
judge_block(const bt_transfer *t, const bt_piece *piece, uint32_t i, uint64_t generation)
{
    const bt_kv_layout *layout = &t->o.layout;
    const uint8_t *block = bt_transfer_block_at(t, piece->to + i);
    uint64_t epoch = t->peers[piece->peer].epoch;

    if (piece->trailers != NULL) {
        return bt_kv_trailer_judge(layout, &piece->trailers[i], epoch, generation,
                                   t->o.no_checksum ? NULL : &piece->sums[i]);
    }
    return t->o.no_checksum
               ? bt_kv_trailer_check_names(layout, block, epoch, generation)
               : bt_kv_trailer_check(layout, block, epoch, generation, piece->summed ? &piece->sums[i] : NULL);
}

static void
check_piece(bt_transfer *t, bt_fetch *f, const bt_piece *piece)
{
    const bt_kv_layout *layout = &t->o.layout;

    for (uint32_t i = 0; i < piece->count; i++) {
        bt_kv_verdict verdict = judge_block(t, piece, i, f->blocks[piece->first + i].generation);

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
    bt_fetch *f = &t->fetches[piece->fetch];
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
    bt_fetch *f = &t->fetches[index];
    bt_peer_slot *p = &t->peers[f->peer];
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
                        .trailers = f->trailers != NULL ? f->trailers + f->next : NULL,
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
        bt_fetch *f = &t->fetches[t->queue[i]];

        if (f->err != BT_OK && f->pieces != 0 && f->deadline > now + END_GRACE) {
            f->deadline = now + END_GRACE;
        }
        if (now < f->deadline || fetch_over(f)) {
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
        bt_peer_slot *p = &t->peers[i];

        if (p->used && !p->closing && !p->lost && (p->broken || !t->ops->up(t->transport, i))) {
            p->lost = true;
            end_fetches_of(t, i, BT_ERR_PEER, BT_TRANSFER_CAUSE_PEER);
        }
    }
}

// Telling.

static bt_transfer_event
finish(bt_transfer *t, bt_fetch *f)
{
    bt_peer_slot *p = &t->peers[f->peer];
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
        bt_fetch *f = &t->fetches[t->queue[i]];

        if (told < max && fetch_over(f)) {
            events[told++] = finish(t, f);
        } else {
            t->queue[kept++] = t->queue[i];
        }
    }
    t->queued = kept;
    for (uint32_t i = 0; i < t->o.peers_max; i++) {
        bt_peer_slot *p = &t->peers[i];

        if (p->used && p->lost && !p->told && !p->closing && told < max) {
            p->told = true;
            events[told++] = (bt_transfer_event){
                .kind = BT_TRANSFER_LOST, .peer = i, .err = BT_ERR_PEER, .cause = BT_TRANSFER_CAUSE_PEER};
        }
        if (p->used && p->closing && !has_fetches(t, i) && t->ops->idle(t->transport, i)) {
            *p = (bt_peer_slot){0};
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
        const bt_fetch *f = &t->fetches[t->queue[i]];

        if (fetch_over(f) || (f->err == BT_OK && f->next < f->count && !(f->proof && proof_flies(t)) &&
                              t->peers[f->peer].flying < t->peers[f->peer].window)) {
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
        const bt_fetch *f = &t->fetches[t->queue[i]];

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
