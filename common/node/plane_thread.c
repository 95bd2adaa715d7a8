// The thread that owns the transfer: takes requests, polls, tells. It sleeps on the transfer's descriptor and its mailbox.
#include "common/base/log.h"
#include "common/node/plane_impl.h"

#include <assert.h>
#include <time.h>

#define EVENTS_A_POLL 64
#define PROOF_USER (1ull << 32) // beside the fetches, whose users are their slots
#define SLEEP_MAX BT_SECOND
#define BLIND_SLEEP (2 * BT_MILLISECOND) // of a transport without a descriptor
#define PUBLISH_EVERY (100 * BT_MILLISECOND)
#define STAGE_TIME_MAX (30 * BT_SECOND)

// ---- telling ----

static void
tell(bt_plane *plane, const bt_plane_told *told)
{
    bt_err err = bt_mailbox_post(plane->told, told);

    assert(err == BT_OK); // there is room for all events of all slots
    (void)err;
    plane->news = true;
}

static void
tell_of_connection(bt_plane *plane, uint32_t slot, bt_plane_event_kind kind, bt_err err)
{
    const bt_plane_connection *c = &plane->connections[slot];

    tell(plane,
         &(bt_plane_told){.event = {.kind = kind, .peer = c->peer, .epoch = c->epoch, .err = err}, .slot = slot});
}

static void
tell_fetched(bt_plane *plane, uint32_t slot, bt_err err, bt_transfer_cause cause, uint32_t good)
{
    const bt_plane_fetch_slot *f = &plane->fetches[slot];
    bt_plane_event event = {.kind = BT_PLANE_FETCHED,
                            .peer = f->peer,
                            .epoch = f->epoch,
                            .user = f->user,
                            .err = err,
                            .cause = cause,
                            .good = good,
                            .took = bt_time_now() - f->asked};

    tell(plane, &(bt_plane_told){.event = event, .slot = slot});
}

static void
add_stats(bt_transfer_stats *sum, const bt_transfer *transfer)
{
    bt_transfer_stats s;

    bt_transfer_get_stats(transfer, &s);
    sum->peers += s.peers;
    sum->fetches += s.fetches;
    sum->operations += s.operations;
    sum->fetched_blocks += s.fetched_blocks;
    sum->fetched_bytes += s.fetched_bytes;
    sum->fetches_done += s.fetches_done;
    sum->fetches_failed += s.fetches_failed;
    sum->operations_done += s.operations_done;
    for (int cause = 0; cause < BT_TRANSFER_CAUSES; cause++)
        sum->failures[cause] += s.failures[cause];
    sum->moving += s.moving;
    sum->served_bytes += s.served_bytes;
    sum->served += s.served;
    sum->serving_failed += s.serving_failed;
    sum->refused += s.refused;
}

static bool
get_info(const bt_plane *plane, const bt_plane_connection *c, bt_transfer_peer_info *out)
{
    return bt_transfer_peer(plane->lanes[c->via].transfer, c->transfer_peer[c->via], out) == BT_OK;
}

static void
publish(bt_plane *plane, bt_time now)
{
    struct timespec cpu;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    plane->stats.cpu_time = cpu.tv_sec * BT_SECOND + cpu.tv_nsec;
    plane->stats.transfer = (bt_transfer_stats){0};
    for (uint32_t i = 0; i < plane->lane_count; i++)
        add_stats(&plane->stats.transfer, plane->lanes[i].transfer);
    pthread_mutex_lock(&plane->lock);
    plane->published = plane->stats;
    for (uint32_t slot = 0; slot < plane->connection_count; slot++) {
        const bt_plane_connection *c = &plane->connections[slot];
        bt_plane_peer *peer = &plane->peers[slot];

        peer->epoch = 0;
        if (c->state == BT_PLANE_OPEN && get_info(plane, c, &peer->transfer))
            peer->epoch = c->epoch;
    }
    pthread_mutex_unlock(&plane->lock);
    plane->published_at = now;
}

// ---- connections ----

static void
end_connection(bt_plane *plane, uint32_t slot)
{
    bt_plane_connection *c = &plane->connections[slot];

    c->state = c->proving ? BT_PLANE_PROOF_ENDS : BT_PLANE_CLOSED;
    if (c->state == BT_PLANE_CLOSED)
        tell(plane, &(bt_plane_told){.slot = slot, .gone = true});
}

static void
tell_proved(bt_plane *plane, uint32_t slot, bt_err err, bt_transfer_cause cause)
{
    const bt_plane_connection *c = &plane->connections[slot];
    bt_plane_event event = {.kind = BT_PLANE_PROVED,
                            .peer = c->peer,
                            .epoch = c->epoch,
                            .err = err,
                            .cause = cause,
                            .took = bt_time_now() - c->asked};
    bt_transfer_peer_info info;

    if (get_info(plane, c, &info)) {
        event.path = info.path;
        event.gb_per_s = info.gb_per_s;
        for (size_t i = 0; i + 1 < sizeof event.transport && info.transport[i] != 0; i++)
            event.transport[i] = info.transport[i];
    }
    plane->stats.proved += err == BT_OK;
    plane->stats.proofs_failed += err != BT_OK;
    tell(plane, &(bt_plane_told){.event = event, .slot = slot});
}

// One lane, with whichever part of the description is for it. Where none is, the last says why.
static bt_err
connect_lane(const bt_plane *plane, bt_plane_connection *c, uint32_t lane, bt_why *why)
{
    bt_err err = bt_fail(why, BT_ERR_INVALID, "the description is damaged");

    for (uint32_t at = 0, bytes; at + BT_PLANE_PART_HEAD <= c->bytes; at += bytes) {
        bytes = c->description[at] | (uint32_t)c->description[at + 1] << 8;
        at += BT_PLANE_PART_HEAD;
        if (bytes > c->bytes - at)
            return bt_fail(why, BT_ERR_INVALID, "the description is damaged");
        err =
            bt_transfer_connect(plane->lanes[lane].transfer, c->description + at, bytes, &c->transfer_peer[lane], why);
        if (err != BT_ERR_UNSUPPORTED)
            return err;
    }
    return err;
}

// Who is fetched from is so by the first lane that connects; who fetches may choose.
static bt_err
connect_lanes(const bt_plane *plane, bt_plane_connection *c, bt_why *why)
{
    bt_err worst = BT_OK;

    c->via = BT_PLANE_NONE;
    for (uint32_t lane = 0; lane < BT_PLANE_LANES; lane++)
        c->transfer_peer[lane] = BT_TRANSFER_PEER_NONE;
    for (uint32_t lane = 0; lane < plane->lane_count; lane++) {
        bt_err err = connect_lane(plane, c, lane, why);

        if (err == BT_OK && c->via == BT_PLANE_NONE)
            c->via = lane;
        if (err == BT_OK && c->prove_deadline != 0)
            break;
        worst = worst == BT_OK || worst == BT_ERR_UNSUPPORTED ? err : worst;
    }
    if (c->via != BT_PLANE_NONE)
        return BT_OK;
    c->via = 0;
    return worst;
}

static void
disconnect_lanes(const bt_plane *plane, const bt_plane_connection *c)
{
    for (uint32_t lane = 0; lane < plane->lane_count; lane++) {
        if (c->transfer_peer[lane] != BT_TRANSFER_PEER_NONE)
            bt_transfer_disconnect(plane->lanes[lane].transfer, c->transfer_peer[lane]);
    }
}

static void
connect_peer(bt_plane *plane, uint32_t slot)
{
    bt_plane_connection *c = &plane->connections[slot];
    bt_why why = {0};
    bt_err err = connect_lanes(plane, c, &why);

    plane->stats.connects++;
    c->proving = false;
    c->state = err == BT_OK ? BT_PLANE_OPEN : BT_PLANE_CLOSED;
    tell_of_connection(plane, slot, BT_PLANE_CONNECTED, err);
    if (err != BT_OK) {
        bt_log_warn("PLANE-REFUSED", "peer %u, epoch %016llx: %s", c->peer, (unsigned long long)c->epoch, why.text);
        plane->stats.refused++;
        end_connection(plane, slot);
    } else if (c->prove_deadline != 0) {
        err = bt_transfer_prove(plane->lanes[c->via].transfer, c->transfer_peer[c->via], c->prove_deadline,
                                PROOF_USER | slot);
        c->proving = err == BT_OK;
        if (err != BT_OK)
            tell_proved(plane, slot, err, BT_TRANSFER_CAUSE_PEER);
    }
}

static void
disconnect_peer(bt_plane *plane, uint32_t slot)
{
    bt_plane_connection *c = &plane->connections[slot];

    if (c->state != BT_PLANE_OPEN) // refused or lost while this was under way
        return;
    disconnect_lanes(plane, c);
    end_connection(plane, slot);
}

static void
take_lost(bt_plane *plane, uint32_t lane, uint32_t transfer_peer)
{
    for (uint32_t slot = 0; slot < plane->connection_count; slot++) {
        bt_plane_connection *c = &plane->connections[slot];

        if (c->state != BT_PLANE_OPEN || c->transfer_peer[lane] != transfer_peer)
            continue;
        plane->stats.lost++;
        disconnect_lanes(plane, c);
        tell_of_connection(plane, slot, BT_PLANE_LOST, BT_ERR_PEER);
        end_connection(plane, slot);
    }
}

static void
take_proof(bt_plane *plane, uint32_t slot, const bt_transfer_event *event)
{
    bt_plane_connection *c = &plane->connections[slot];

    c->proving = false;
    if (c->state == BT_PLANE_OPEN)
        tell_proved(plane, slot, event->err, event->cause);
    else
        end_connection(plane, slot);
}

// ---- fetches ----

static void
begin_fetch(bt_plane *plane, uint32_t slot)
{
    const bt_plane_fetch_slot *f = &plane->fetches[slot];
    const bt_plane_connection *c = f->connection != BT_PLANE_NONE ? &plane->connections[f->connection] : NULL;
    bt_err err = BT_ERR_PEER;

    if (c != NULL && c->state == BT_PLANE_OPEN)
        err = bt_transfer_fetch(plane->lanes[c->via].transfer, c->transfer_peer[c->via], f->blocks, f->count,
                                f->deadline, slot);
    else
        plane->stats.strays++;
    if (err != BT_OK)
        tell_fetched(plane, slot, err, BT_TRANSFER_CAUSE_PEER, 0);
}

// ---- staging ----

static void
end_staging(bt_plane *plane, uint32_t slot, bt_err err)
{
    bt_plane_landing *l = &plane->landings[slot];

    l->staging = false;
    plane->staging--;
    if (err == BT_OK)
        tell_fetched(plane, slot, l->event.err, l->event.cause, l->event.good);
    else
        tell_fetched(plane, slot, err, BT_TRANSFER_CAUSE_NONE, 0);
}

// What is good of it goes on; what is not is told with it.
static void
take_landed(bt_plane *plane, uint32_t lane, const bt_transfer_event *event)
{
    uint32_t slot = (uint32_t)event->user;
    bt_plane_landing *l = &plane->landings[slot];
    const bt_plane_stage *stage = &plane->lanes[lane].stage;
    bt_err err;

    if (stage->begin == NULL || event->good == 0) {
        tell_fetched(plane, slot, event->err, event->cause, event->good);
        return;
    }
    *l = (bt_plane_landing){.staging = true, .lane = lane, .event = *event, .since = bt_time_now()};
    plane->staging++;
    if ((err = stage->begin(stage->arg, plane->fetches[slot].blocks, event->good, &l->ticket)) != BT_OK)
        end_staging(plane, slot, err);
}

// A device that stands still ends it too: the step that uses it will say the same, and this program leave.
static void
go_on_staging(bt_plane *plane, uint32_t lane)
{
    const bt_plane_stage *stage = &plane->lanes[lane].stage;
    uint64_t through = 0;
    bt_time now;
    bt_err err;

    if (plane->staging == 0 || stage->begin == NULL)
        return;
    err = stage->through(stage->arg, &through);
    now = bt_time_now();
    for (uint32_t slot = 0; slot < plane->options.fetches_max; slot++) {
        const bt_plane_landing *l = &plane->landings[slot];

        if (l->staging && l->lane == lane && (err != BT_OK || l->ticket <= through || now - l->since > STAGE_TIME_MAX))
            end_staging(plane, slot, err == BT_OK && l->ticket > through ? BT_ERR_DEVICE : err);
    }
}

// ---- the thread ----

static void
take_ask(void *self, const void *message)
{
    bt_plane *plane = self;
    const bt_plane_ask *ask = message;
    bt_time waited = bt_time_now() - ask->at;

    if (waited > plane->stats.waited_most)
        plane->stats.waited_most = waited;
    switch (ask->kind) {
    case BT_PLANE_ASK_CONNECT:
        connect_peer(plane, ask->slot);
        break;
    case BT_PLANE_ASK_DISCONNECT:
        disconnect_peer(plane, ask->slot);
        break;
    case BT_PLANE_ASK_FETCH:
        begin_fetch(plane, ask->slot);
        break;
    case BT_PLANE_ASK_CANCEL:
        for (uint32_t lane = 0; lane < plane->lane_count; lane++) // it is under way in one of them, or over
            bt_transfer_cancel(plane->lanes[lane].transfer, ask->slot);
        break;
    }
}

static void
take_event(bt_plane *plane, uint32_t lane, const bt_transfer_event *event)
{
    switch (event->kind) {
    case BT_TRANSFER_FETCHED:
        take_landed(plane, lane, event);
        break;
    case BT_TRANSFER_PROVED:
        take_proof(plane, (uint32_t)event->user, event);
        break;
    case BT_TRANSFER_LOST:
        take_lost(plane, lane, event->peer);
        break;
    }
}

// The earliest time at which there may be something to do without a sign of it on a descriptor. Nothing sleeps longer than SLEEP_MAX,
// and an operation that does not end at its deadline is asked again at a measured pace.
static bt_time
sleep_until(bt_plane *plane, bt_time now)
{
    bt_time wake = now + SLEEP_MAX;

    for (uint32_t lane = 0; lane < plane->lane_count; lane++) {
        bt_transfer *transfer = plane->lanes[lane].transfer;
        bt_time next, most = now + (bt_transfer_fd(transfer) < 0 ? BLIND_SLEEP : SLEEP_MAX);

        if (!bt_transfer_arm(transfer))
            return now;
        next = bt_transfer_next_deadline(transfer);
        if (next <= now)
            next = now + BT_MILLISECOND;
        next = next < most ? next : most;
        wake = next < wake ? next : wake;
    }
    return wake;
}

static void
poll_lane(bt_plane *plane, uint32_t lane, bt_time now)
{
    bt_transfer_event events[EVENTS_A_POLL];
    uint32_t count;

    do {
        count = bt_transfer_poll(plane->lanes[lane].transfer, now, events, EVENTS_A_POLL);
        for (uint32_t i = 0; i < count; i++)
            take_event(plane, lane, &events[i]);
    } while (count == EVENTS_A_POLL);
    go_on_staging(plane, lane);
}

static bt_time
turn(void *self, bt_time now)
{
    bt_plane *plane = self;

    for (uint32_t lane = 0; lane < plane->lane_count; lane++)
        poll_lane(plane, lane, now);
    if (plane->news || now - plane->published_at >= PUBLISH_EVERY)
        publish(plane, now);
    if (plane->news && plane->options.wake != NULL)
        plane->options.wake(plane->options.wake_arg);
    plane->news = false;
    return sleep_until(plane, now);
}

static void
ready(void *self, uint32_t events)
{
    (void)self, (void)events; // the turn polls
}

static void *
run(void *self)
{
    bt_plane *plane = self;

    bt_loop_run(plane->loop);
    return NULL;
}

static bt_err
watch_lane(bt_plane *plane, bt_plane_lane *lane)
{
    int fd = bt_transfer_fd(lane->transfer), stage_fd = lane->stage.begin != NULL ? lane->stage.fd : -1;
    bt_err err = BT_OK;

    lane->watch = lane->stage_watch = (bt_watch){.ready = ready, .self = plane};
    if (fd >= 0)
        err = bt_loop_watch(plane->loop, &lane->watch, fd, EPOLLIN);
    return err == BT_OK && stage_fd >= 0 ? bt_loop_watch(plane->loop, &lane->stage_watch, stage_fd, EPOLLIN) : err;
}

bt_err
bt_plane_thread_begin(bt_plane *plane, bt_why *why)
{
    bt_err err;

    plane->turn = (bt_turn){.turn = turn, .self = plane};
    if ((err = bt_loop_open(&plane->loop)) == BT_OK)
        err = bt_mailbox_attach(plane->asks, plane->loop, take_ask, plane);
    for (uint32_t lane = 0; lane < plane->lane_count && err == BT_OK; lane++)
        err = watch_lane(plane, &plane->lanes[lane]);
    if (err != BT_OK) {
        bt_plane_thread_end(plane);
        return bt_fail(why, err, "data plane: no loop for its thread");
    }
    bt_loop_add_turn(plane->loop, &plane->turn);
    plane->runs = pthread_create(&plane->thread, NULL, run, plane) == 0;
    if (plane->runs)
        return BT_OK;
    bt_plane_thread_end(plane);
    return bt_fail(why, BT_ERR_NO_MEMORY, "data plane: its thread did not start");
}

void
bt_plane_thread_end(bt_plane *plane)
{
    if (plane->runs) {
        bt_loop_stop(plane->loop);
        pthread_join(plane->thread, NULL);
    }
    plane->runs = false;
    bt_mailbox_detach(plane->asks);
    bt_loop_close(plane->loop);
    plane->loop = NULL;
}
