// The loop's side: fills in slots, posts their numbers, and hands events out that still mean something.
#include "common/node/plane_impl.h"

#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

void
bt_plane_size_transfer(const bt_plane_options *options, bt_transfer_options *transfer)
{
    transfer->peers_max = 2 * options->peers_max;
    transfer->fetches_max = options->fetches_max + transfer->peers_max;
    transfer->fetch_blocks_max = options->fetch_blocks_max;
}

// ---- open and close ----

static bt_err
open_slots(bt_plane *plane)
{
    const bt_plane_options *o = &plane->options;

    plane->connection_count = 2 * o->peers_max;
    plane->connections = bt_alloc_array(plane->connection_count, sizeof *plane->connections);
    plane->peers = bt_alloc_array(plane->connection_count, sizeof *plane->peers);
    plane->current = bt_alloc_array(o->peers_max, sizeof *plane->current);
    plane->fetches = bt_alloc_array(o->fetches_max, sizeof *plane->fetches);
    plane->blocks = bt_alloc_array(o->fetches_max, o->fetch_blocks_max * sizeof *plane->blocks);
    plane->landings = bt_alloc_array(o->fetches_max, sizeof *plane->landings);
    if (plane->connections == NULL || plane->peers == NULL || plane->current == NULL || plane->fetches == NULL ||
        plane->blocks == NULL || plane->landings == NULL)
        return BT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < o->peers_max; i++)
        plane->current[i] = BT_PLANE_NONE;
    for (uint32_t i = 0; i < o->fetches_max; i++)
        plane->fetches[i].blocks = plane->blocks + (size_t)i * o->fetch_blocks_max;
    return BT_OK;
}

static bt_err
open_queues(bt_plane *plane)
{
    uint32_t connections = plane->connection_count, fetches = plane->options.fetches_max;
    bt_err err;

    if ((err = bt_mailbox_open(&plane->asks, BT_PLANE_ASKS_A_SLOT * (connections + fetches), sizeof(bt_plane_ask))) !=
        BT_OK)
        return err;
    return bt_mailbox_open(&plane->told, BT_PLANE_EVENTS_A_CONNECTION * connections + fetches, sizeof(bt_plane_told));
}

// All but the transfer.
static void
free_plane(bt_plane *plane)
{
    bt_mailbox_close(plane->asks);
    bt_mailbox_close(plane->told);
    pthread_mutex_destroy(&plane->lock);
    bt_free(plane->connections);
    bt_free(plane->peers);
    bt_free(plane->current);
    bt_free(plane->fetches);
    bt_free(plane->blocks);
    bt_free(plane->landings);
    bt_free(plane);
}

// One after the other, each behind its length.
static bt_err
describe(bt_plane *plane)
{
    for (uint32_t i = 0; i < plane->lane_count; i++) {
        uint8_t *part = plane->description + plane->description_bytes;
        size_t room = sizeof plane->description - plane->description_bytes, bytes;
        bt_err err = room < BT_PLANE_PART_HEAD
                         ? BT_ERR_TOO_LONG
                         : bt_transfer_describe(plane->lanes[i].transfer, part + BT_PLANE_PART_HEAD,
                                                room - BT_PLANE_PART_HEAD, &bytes);

        if (err != BT_OK)
            return err;
        part[0] = (uint8_t)bytes;
        part[1] = (uint8_t)(bytes >> 8);
        plane->description_bytes += BT_PLANE_PART_HEAD + bytes;
    }
    return BT_OK;
}

bt_err
bt_plane_open(bt_plane **out, bt_transfer *transfer, const bt_plane_options *options, bt_why *why)
{
    bt_plane *plane;
    bt_err err;

    if (options->peers_max == 0 || options->peers_max > BT_TRANSFER_PEERS_MAX / 2 || options->fetches_max == 0 ||
        options->fetches_max > 1u << 15 || options->fetch_blocks_max == 0 || options->fetch_blocks_max > 1u << 20)
        return bt_fail(why, BT_ERR_INVALID,
                       "data plane: %u peers, %u fetches of %u blocks; expected 1 to %d, 32768 and 1048576",
                       options->peers_max, options->fetches_max, options->fetch_blocks_max, BT_TRANSFER_PEERS_MAX / 2);
    plane = bt_alloc(sizeof *plane);
    if (plane == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "data plane: no memory");
    plane->options = *options;
    plane->lanes[0] = (bt_plane_lane){.transfer = transfer, .stage = options->stage};
    plane->lanes[1] = (bt_plane_lane){.transfer = options->second, .stage = options->second_stage};
    plane->lane_count = options->second != NULL ? 2 : 1;
    pthread_mutex_init(&plane->lock, NULL);
    if ((err = open_slots(plane)) != BT_OK || (err = open_queues(plane)) != BT_OK) {
        bt_fail(why, err, "data plane: no memory for %u peers and %u fetches", options->peers_max,
                options->fetches_max);
    } else if ((err = describe(plane)) != BT_OK) {
        bt_fail(why, err, "data plane: the transfer cannot be described");
    } else {
        err = bt_plane_thread_begin(plane, why);
    }
    if (err != BT_OK) {
        free_plane(plane);
        return err;
    }
    *out = plane;
    return BT_OK;
}

void
bt_plane_stop(bt_plane *plane)
{
    if (plane != NULL)
        bt_plane_thread_end(plane);
}

void
bt_plane_close(bt_plane *plane)
{
    if (plane == NULL)
        return;
    bt_plane_thread_end(plane);
    for (uint32_t i = 0; i < plane->lane_count; i++)
        bt_transfer_close(plane->lanes[i].transfer);
    free_plane(plane);
}

const uint8_t *
bt_plane_description(const bt_plane *plane, uint32_t *bytes)
{
    *bytes = (uint32_t)plane->description_bytes;
    return plane->description;
}

// ---- asking ----

static void
post(bt_plane *plane, bt_plane_ask_kind kind, uint32_t slot)
{
    bt_plane_ask ask = {kind, slot, bt_time_now()};
    bt_err err = bt_mailbox_post(plane->asks, &ask);

    assert(err == BT_OK); // there is room for all that the slots can ask
    (void)err;
}

static uint32_t
current_of(const bt_plane *plane, uint32_t peer)
{
    return peer < plane->options.peers_max ? plane->current[peer] : BT_PLANE_NONE;
}

void
bt_plane_disconnect(bt_plane *plane, uint32_t peer)
{
    uint32_t slot = current_of(plane, peer);

    if (slot == BT_PLANE_NONE)
        return;
    plane->current[peer] = BT_PLANE_NONE;
    post(plane, BT_PLANE_ASK_DISCONNECT, slot);
}

bt_err
bt_plane_connect(bt_plane *plane, uint32_t peer, uint64_t epoch, const void *description, uint32_t bytes,
                 bt_time prove_deadline)
{
    uint32_t slot = 0;
    bt_plane_connection *c;

    assert(peer < plane->options.peers_max && epoch != 0);
    if (bytes > sizeof c->description)
        return BT_ERR_INVALID;
    while (slot < plane->connection_count && plane->connections[slot].used)
        slot++;
    if (slot == plane->connection_count)
        return BT_ERR_BUSY;
    bt_plane_disconnect(plane, peer);
    c = &plane->connections[slot];
    c->used = true;
    c->peer = peer;
    c->epoch = epoch;
    c->prove_deadline = prove_deadline;
    c->asked = bt_time_now();
    c->bytes = bytes;
    if (bytes != 0) // else it may be NULL, and is refused as no description
        memcpy(c->description, description, bytes);
    plane->current[peer] = slot;
    post(plane, BT_PLANE_ASK_CONNECT, slot);
    return BT_OK;
}

bool
bt_plane_connected(const bt_plane *plane, uint32_t peer, uint64_t epoch)
{
    uint32_t slot = current_of(plane, peer);

    return slot != BT_PLANE_NONE && plane->connections[slot].epoch == epoch;
}

bt_err
bt_plane_fetch(bt_plane *plane, uint32_t peer, uint64_t epoch, const bt_transfer_block *blocks, uint32_t count,
               bt_time deadline, uint64_t user)
{
    uint32_t slot = 0;
    bt_plane_fetch_slot *f;

    if (count == 0 || count > plane->options.fetch_blocks_max)
        return BT_ERR_INVALID;
    if (plane->fetches_out == plane->options.fetches_max)
        return BT_ERR_BUSY;
    while (plane->fetches[slot].used)
        slot++;
    f = &plane->fetches[slot];
    *f = (bt_plane_fetch_slot){.used = true,
                               .connection = BT_PLANE_NONE,
                               .peer = peer,
                               .count = count,
                               .epoch = epoch,
                               .user = user,
                               .deadline = deadline,
                               .asked = bt_time_now(),
                               .blocks = f->blocks};
    if (bt_plane_connected(plane, peer, epoch))
        f->connection = plane->current[peer];
    memcpy(f->blocks, blocks, count * sizeof *blocks);
    plane->fetches_out++;
    post(plane, BT_PLANE_ASK_FETCH, slot);
    return BT_OK;
}

void
bt_plane_cancel(bt_plane *plane, uint64_t user)
{
    for (uint32_t slot = 0; slot < plane->options.fetches_max; slot++) {
        bt_plane_fetch_slot *f = &plane->fetches[slot];

        if (f->used && f->user == user && !f->cancelled) {
            f->cancelled = true;
            post(plane, BT_PLANE_ASK_CANCEL, slot);
            return;
        }
    }
}

// ---- hearing ----

// Does the caller still know the connection that this is about?
static bool
is_wanted(bt_plane *plane, const bt_plane_told *told)
{
    uint32_t peer = told->event.peer;

    if (told->event.kind == BT_PLANE_FETCHED) {
        plane->fetches[told->slot].used = false;
        plane->fetches_out--;
        return true;
    }
    if (plane->current[peer] != told->slot)
        return false;
    if (told->event.kind == BT_PLANE_LOST || (told->event.kind == BT_PLANE_CONNECTED && told->event.err != BT_OK))
        plane->current[peer] = BT_PLANE_NONE;
    return true;
}

bool
bt_plane_next(bt_plane *plane, bt_plane_event *out)
{
    bt_plane_told told;

    while (bt_mailbox_try(plane->told, &told)) {
        if (told.gone) {
            plane->connections[told.slot].used = false;
        } else if (is_wanted(plane, &told)) {
            *out = told.event;
            return true;
        }
    }
    return false;
}

bool
bt_plane_pending(const bt_plane *plane)
{
    return bt_mailbox_count(plane->told) > 0;
}

void
bt_plane_get_stats(const bt_plane *self, bt_plane_stats *out)
{
    bt_plane *plane = (bt_plane *)self; // for the lock

    pthread_mutex_lock(&plane->lock);
    *out = plane->published;
    pthread_mutex_unlock(&plane->lock);
    out->fetches = plane->fetches_out;
    out->connected = 0;
    for (uint32_t peer = 0; peer < plane->options.peers_max; peer++)
        out->connected += plane->current[peer] != BT_PLANE_NONE;
}

bool
bt_plane_get_peer(const bt_plane *self, uint32_t peer, bt_plane_peer *out)
{
    bt_plane *plane = (bt_plane *)self; // for the lock
    uint32_t slot = current_of(plane, peer);
    bool known;

    if (slot == BT_PLANE_NONE)
        return false;
    pthread_mutex_lock(&plane->lock);
    known = plane->peers[slot].epoch == plane->connections[slot].epoch;
    if (known)
        *out = plane->peers[slot];
    pthread_mutex_unlock(&plane->lock);
    return known;
}
