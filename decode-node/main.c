#include "decode-node/main.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/worker.h"
#include "decode-node/prove.h"

#include <assert.h>
#include <string.h>

#define EVENTS_PER_TURN 256
#define NOBODY UINT32_MAX

struct bt_decode_node {
    bt_engine *engine;
    bt_link *link;
    bt_decode_core *core;
    bt_worker *worker;
    bt_decode_actions *actions;
    bt_decode_limits limits;
    bool lone, broken;
    bt_plane *plane; // NULL: no fetches
    bt_prove prove;
    uint32_t routers[BT_DECODE_ROUTERS_MAX]; // their link peers; NOBODY = a free slot
    bool link_failed[BT_DECODE_PEERS_MAX];   // a send did not get through: the core has to hear of it
};

static bt_decode_limits
limits_of(const bt_decode_node_options *options, const bt_engine *engine, bool fetches)
{
    const bt_model *model = bt_engine_model(engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(engine);
    bt_decode_limits limits = {
        .epoch = options->epoch,
        .model = model->family,
        .weights = model->digest,
        .layout = bt_kv_layout_fingerprint(layout),
        .kv_format = 1 + (uint32_t)layout->format,
        .sequences = options->max_sequences,
        .queue_max = options->queue_max != 0 ? options->queue_max : 2 * options->max_sequences,
        .chunk_tokens = options->chunk_tokens,
        .logit_rows = options->logit_rows,
        .blocks = bt_engine_kv_blocks(engine),
        .block_tokens = layout->block_tokens,
        .context = bt_engine_context(engine),
        .vocab = model->config.vocab,
        .lease = options->lease,
        .fetches = fetches,
        .prompt_weights = options->prompt_weights != 0 ? options->prompt_weights : model->digest,
        .fetch_blocks = BT_DECODE_FETCH_BLOCKS,
    };
    float share = options->prefill_share > 0 && options->prefill_share <= 1 ? options->prefill_share : 0.5f;

    limits.prefill_tokens = (uint32_t)((float)options->chunk_tokens * share);
    if (limits.prefill_tokens == 0)
        limits.prefill_tokens = 1;
    memcpy(limits.name, options->name, sizeof limits.name - 1);
    return limits;
}

static bt_err
open_parts(bt_decode_node *node, const bt_decode_node_options *options, bt_why *why)
{
    bt_worker_calls calls = {bt_engine_run, options->wake, node->engine, options->wake_arg};
    bt_err err;

    node->actions = bt_alloc(sizeof *node->actions);
    if (node->actions == NULL ||
        bt_prove_init(&node->prove, node->plane, node->link, &node->limits, options->sources) != BT_OK)
        return bt_fail(why, BT_ERR_NO_MEMORY, "decode node: out of memory");
    if ((err = bt_decode_core_open(&node->core, &node->limits, why)) != BT_OK)
        return err;
    if ((err = bt_worker_open(&node->worker, &calls)) != BT_OK)
        bt_fail(why, err, "decode node: the engine thread did not start");
    return err;
}

bt_err
bt_decode_node_open(bt_decode_node **out, const bt_decode_node_options *options, bt_engine *engine, bt_link *link,
                    bt_plane *plane, bt_why *why)
{
    bt_decode_node *node = bt_alloc(sizeof *node);
    bt_err err;

    assert(options->sources <= BT_DECODE_SOURCES_MAX);
    if (node == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "decode node: out of memory");
    node->engine = engine;
    node->link = link;
    node->plane = plane;
    node->lone = options->lone;
    node->limits = limits_of(options, engine, plane != NULL);
    for (uint32_t i = 0; i < BT_DECODE_ROUTERS_MAX; i++)
        node->routers[i] = NOBODY;
    if ((err = open_parts(node, options, why)) != BT_OK) {
        bt_decode_node_close(node);
        return err;
    }
    *out = node;
    return BT_OK;
}

void
bt_decode_node_close(bt_decode_node *node)
{
    if (node == NULL)
        return;
    bt_worker_close(node->worker); // before the core, whose memory a running step reads
    bt_decode_core_close(node->core);
    bt_prove_fini(&node->prove);
    bt_free(node->actions);
    bt_free(node);
}

// ---- peers: the link's numbers and the core's ----

static bool
is_source(const bt_decode_node *node, uint32_t link_peer)
{
    return link_peer < node->prove.count;
}

// The core's number of whoever has this one at the link; with `fresh`, a router that has just come gets a free one. NOBODY = there is none.
static uint32_t
core_peer(bt_decode_node *node, uint32_t link_peer, bool fresh)
{
    uint32_t free = NOBODY;

    if (is_source(node, link_peer))
        return BT_DECODE_ROUTERS_MAX + link_peer;
    for (uint32_t i = BT_DECODE_ROUTERS_MAX; i-- > 0;) {
        if (node->routers[i] == link_peer)
            return i;
        if (node->routers[i] == NOBODY)
            free = i;
    }
    if (!fresh)
        return NOBODY;
    if (free != NOBODY)
        node->routers[free] = link_peer;
    else
        bt_log_warn("ROUTERS-MANY", "more than %d routers are connected: one is not heard", BT_DECODE_ROUTERS_MAX);
    return free;
}

static uint32_t
link_peer(const bt_decode_node *node, uint32_t peer)
{
    return peer < BT_DECODE_ROUTERS_MAX ? node->routers[peer] : peer - BT_DECODE_ROUTERS_MAX;
}

// ---- the core's actions ----

static void
send(bt_decode_node *node, const bt_decode_send *what)
{
    bt_err err = bt_link_send(node->link, link_peer(node, what->peer), &what->message);

    // A heartbeat is soon followed by another; anything else that is lost voids the relation.
    if (err == BT_OK || what->message.kind == BT_MESSAGE_HEARTBEAT)
        return;
    bt_log_warn("LINK-LOST", "%s %u did not take a %s: %s",
                what->peer < BT_DECODE_ROUTERS_MAX ? "router" : "prefill node", link_peer(node, what->peer),
                bt_message_kind_name(what->message.kind), bt_err_name(err));
    node->link_failed[what->peer] = true;
}

static void
fetch(bt_decode_node *node, const bt_decode_fetch *what)
{
    bt_err err = bt_plane_fetch(node->plane, what->peer - BT_DECODE_ROUTERS_MAX, what->epoch, what->blocks, what->count,
                                what->deadline, what->user);

    assert(err == BT_OK); // the plane has room for a fetch of each sequence
    (void)err;
}

static double
ms(bt_time time)
{
    return (double)time / (double)BT_MILLISECOND;
}

static void
log_ended(const bt_decode_ended *end)
{
    const bt_phases *p = &end->phases;
    bool failed = end->finish == BT_FINISH_ERROR;

    bt_log_write(
        failed ? BT_LOG_WARN : BT_LOG_INFO, failed ? "SEQUENCE-FAILED" : "SEQUENCE-DONE",
        "req %s prompt %u cached %u answer %u %s: room after %.1f, queue %.1f, read %.1f, transfer %.1f, in all "
        "%.1f ms%s%s",
        end->name[0] != 0 ? end->name : "-", end->prompt_tokens, end->cached_tokens, end->answer_tokens,
        bt_finish_name(end->finish), ms(p->queue_decode), ms(p->queue_prefill), ms(p->prefill), ms(p->transfer),
        ms(end->total), failed ? ": " : "", failed ? bt_err_name(end->err) : "");
}

static void
log_all_ended(const bt_decode_actions *actions)
{
    for (uint32_t i = 0; i < actions->ended_count && i < BT_DECODE_ENDED_MAX; i++)
        log_ended(&actions->ended[i]);
    if (actions->ended_count > BT_DECODE_ENDED_MAX)
        bt_log_warn("SEQUENCES-ENDED", "and %u more", actions->ended_count - BT_DECODE_ENDED_MAX);
}

static void
feed(bt_decode_node *node, bt_time now, const bt_decode_event *event)
{
    const bt_decode_actions *actions = node->actions;

    bt_decode_core_step(node->core, now, event, node->actions);
    for (uint32_t i = 0; i < actions->send_count; i++)
        send(node, &actions->send[i]);
    for (uint32_t i = 0; i < actions->cancel_count; i++)
        bt_plane_cancel(node->plane, actions->cancel[i]);
    if (actions->has_fetch)
        fetch(node, &actions->fetch);
    if (actions->step != NULL)
        bt_worker_begin(node->worker, actions->step);
    log_all_ended(actions);
}

static void
reset_failed_links(bt_decode_node *node, bt_time now)
{
    for (uint32_t peer = 0; peer < BT_DECODE_PEERS_MAX; peer++) {
        if (!node->link_failed[peer])
            continue;
        node->link_failed[peer] = false;
        if (link_peer(node, peer) == NOBODY)
            continue;
        feed(node, now, &(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = peer});
        bt_prove_down(&node->prove, link_peer(node, peer));
        feed(node, now, &(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = peer});
        bt_prove_up(&node->prove, link_peer(node, peer));
    }
}

// ---- a turn ----

static void
take_step(bt_decode_node *node, bt_time now)
{
    bt_decode_event event = {.kind = BT_DECODE_STEPPED};

    if (!bt_worker_take(node->worker, &event.err, &event.duration))
        return;
    if (event.err != BT_OK)
        bt_log_error("STEP-FAILED", "the engine says %s", bt_err_name(event.err));
    node->broken |= event.err == BT_ERR_DEVICE && bt_device_is_broken(bt_engine_device(node->engine));
    if (node->broken && !node->lone)
        return; // as if it had died: a request that is moved has not failed
    feed(node, now, &event);
}

static void
hear_link(bt_decode_node *node, bt_time now, const bt_link_event *event)
{
    uint32_t peer = core_peer(node, event->peer, event->kind == BT_LINK_UP);
    bt_decode_event_kind kind = event->kind == BT_LINK_UP     ? BT_DECODE_LINK_UP
                                : event->kind == BT_LINK_DOWN ? BT_DECODE_LINK_DOWN
                                                              : BT_DECODE_MESSAGE;

    if (peer == NOBODY)
        return;
    if (kind != BT_DECODE_MESSAGE)
        node->link_failed[peer] = false; // it begins anew by itself
    feed(node, now, &(bt_decode_event){.kind = kind, .peer = peer, .message = event->message});
    if (kind == BT_DECODE_MESSAGE) {
        bt_prove_hear(&node->prove, now, event->peer, event->message);
    } else if (kind == BT_DECODE_LINK_UP) {
        bt_prove_up(&node->prove, event->peer);
    } else {
        bt_prove_down(&node->prove, event->peer);
        if (peer < BT_DECODE_ROUTERS_MAX)
            node->routers[peer] = NOBODY;
    }
}

static void
take_link(bt_decode_node *node, bt_time now)
{
    bt_link_event event;

    for (int i = 0; i < EVENTS_PER_TURN && bt_link_receive(node->link, &event); i++)
        hear_link(node, now, &event);
}

static void
take_plane(bt_decode_node *node, bt_time now)
{
    bt_plane_event event;

    for (int i = 0; i < EVENTS_PER_TURN && node->plane != NULL && bt_plane_next(node->plane, &event); i++) {
        node->broken |= event.kind == BT_PLANE_FETCHED && event.err == BT_ERR_DEVICE; // it did not take what had come
        if (node->broken && !node->lone)
            return;
        if (event.kind == BT_PLANE_FETCHED)
            feed(node, now,
                 &(bt_decode_event){
                     .kind = BT_DECODE_FETCHED, .user = event.user, .err = event.err, .good = event.good});
        else
            bt_prove_plane(&node->prove, now, &event);
    }
}

static bt_time
tell_sources(bt_decode_node *node, bt_time now)
{
    bt_time next = bt_prove_turn(&node->prove, now);
    bt_decode_event event = {.kind = BT_DECODE_SOURCE};

    while (bt_prove_news(&node->prove, &event.peer, &event.epoch, &event.up)) {
        event.peer += BT_DECODE_ROUTERS_MAX;
        feed(node, now, &event);
    }
    return next;
}

static bt_time
sooner(bt_time a, bt_time b)
{
    return a < b ? a : b;
}

// Messages before the step's outcome: an ABORT that is already here keeps its sequence out of the step that follows.
bt_time
bt_decode_node_turn(bt_decode_node *node, bt_time now)
{
    bt_time next;

    if (node->broken && !node->lone)
        return BT_TIME_NEVER;
    take_link(node, now);
    take_plane(node, now);
    take_step(node, now);
    if (bt_decode_core_next_deadline(node->core) <= now)
        feed(node, now, &(bt_decode_event){.kind = BT_DECODE_TICK});
    reset_failed_links(node, now);
    next = tell_sources(node, now);
    if (bt_link_pending(node->link) || (node->plane != NULL && bt_plane_pending(node->plane)))
        return now;
    return sooner(next, bt_decode_core_next_deadline(node->core));
}

void
bt_decode_node_drain(bt_decode_node *node, bt_time now)
{
    feed(node, now, &(bt_decode_event){.kind = BT_DECODE_DRAIN});
}

bool
bt_decode_node_is_broken(const bt_decode_node *node)
{
    return node->broken;
}

bool
bt_decode_node_idle(const bt_decode_node *node)
{
    bt_decode_stats stats;

    bt_decode_core_get_stats(node->core, &stats);
    return stats.waiting + stats.granted + stats.fetching + stats.prefilling + stats.decoding + stats.ending == 0;
}

void
bt_decode_node_stats(const bt_decode_node *node, bt_decode_stats *out)
{
    bt_decode_core_get_stats(node->core, out);
}

void
bt_decode_node_source(const bt_decode_node *node, uint32_t source, bt_decode_source *out)
{
    const bt_prove_node *from = &node->prove.nodes[source];

    assert(source < node->prove.count);
    *out = (bt_decode_source){.epoch = from->epoch, .refused = from->refused, .ready = from->told, .path = ""};
    memcpy(out->name, from->name, sizeof out->name);
    if (from->proved) {
        out->path = bt_transfer_path_name(from->path);
        memcpy(out->transport, from->transport, sizeof out->transport);
        out->gb_per_s = from->gb_per_s;
    }
}
