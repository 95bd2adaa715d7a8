#include "prefill-node/main.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/kv/trailer.h"
#include "common/node/worker.h"
#include "kernels/copier.h"
#include "prefill-node/readers.h"

#include <string.h>

#define EVENTS_PER_TURN 256
#define PIECE_BLOCKS 1024 // that a GPU stamps or clears at once
#define PIECE_TIME_MAX (30 * BT_SECOND)

struct bt_prefill_node {
    bt_engine *engine;
    bt_link *link;
    bt_plane *plane;
    const bt_kv_layout *layout;
    uint8_t *pool;        // that others fetch from, in this program's memory: block b at b · block_bytes; NULL = none
    uint8_t *device_pool; // and in the device's; NULL = none
    bt_copier *copier;    // for that
    bt_copier_stamping stampings[PIECE_BLOCKS];
    uint64_t epoch;
    bool lone, broken;
    bt_prefill_core *core;
    bt_worker *worker;
    bt_prefill_actions *actions;
    bt_readers readers;
    bt_prefill_node_stats stats;
    bool link_failed[BT_PREFILL_PEERS_MAX]; // a send did not get through: the core has to hear of it
};

// ---- open and close ----

static bt_prefill_limits
limits_of(const bt_prefill_node_options *options, const bt_engine *engine, const bt_plane *plane)
{
    const bt_model *model = bt_engine_model(engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(engine);
    bt_prefill_limits limits = {
        .epoch = options->epoch,
        .model = model->family,
        .weights = model->digest,
        .layout = bt_kv_layout_fingerprint(layout),
        .kv_format = 1 + (uint32_t)layout->format,
        .sequences = options->max_sequences,
        .prompts = options->prompts != 0 ? options->prompts : 4 * options->max_sequences,
        .chunk_tokens = options->chunk_tokens,
        .logit_rows = options->logit_rows,
        .blocks = bt_engine_kv_blocks(engine),
        .block_tokens = layout->block_tokens,
        .context = bt_engine_context(engine),
        .vocab = model->config.vocab,
        .lease = options->lease != 0 ? options->lease : 30 * BT_SECOND,
        .hold_max = options->hold_max,
    };

    limits.description = bt_plane_description(plane, &limits.description_bytes);
    memcpy(limits.name, options->name, sizeof limits.name - 1);
    return limits;
}

static bt_err
open_parts(bt_prefill_node *node, const bt_prefill_node_options *options, bt_why *why)
{
    bt_prefill_limits limits = limits_of(options, node->engine, node->plane);
    bt_worker_calls calls = {bt_engine_run, options->wake, node->engine, options->wake_arg};
    bt_err err;

    if (node->device_pool != NULL &&
        (err = bt_copier_open(&node->copier, bt_engine_device(node->engine),
                              &(bt_copier_options){.batches = 2, .blocks = PIECE_BLOCKS}, why)) != BT_OK)
        return err;
    bt_readers_init(&node->readers, node->plane, &limits);
    if ((err = bt_prefill_core_open(&node->core, &limits, why)) != BT_OK)
        return err;
    node->actions = bt_alloc(sizeof *node->actions);
    if (node->actions == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "prefill node: out of memory");
    if ((err = bt_worker_open(&node->worker, &calls)) != BT_OK)
        return bt_fail(why, err, "prefill node: the engine thread did not start");
    return BT_OK;
}

bt_err
bt_prefill_node_open(bt_prefill_node **out, const bt_prefill_node_options *options, bt_engine *engine, bt_link *link,
                     bt_plane *plane, bt_why *why)
{
    bt_prefill_node *node = bt_alloc(sizeof *node);
    bt_err err;

    if (node == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "prefill node: out of memory");
    node->engine = engine;
    node->link = link;
    node->plane = plane;
    node->layout = bt_engine_kv_layout(engine);
    node->device_pool = bt_engine_kv_device_pool(engine);
    if (node->device_pool == NULL || bt_engine_kv_is_apart(engine))
        node->pool = bt_engine_kv_pool(engine);
    node->epoch = options->epoch;
    node->lone = options->lone;
    if ((err = open_parts(node, options, why)) != BT_OK) {
        bt_prefill_node_close(node);
        return err;
    }
    *out = node;
    return BT_OK;
}

void
bt_prefill_node_close(bt_prefill_node *node)
{
    if (node == NULL)
        return;
    bt_worker_close(node->worker); // before the core, whose memory a running step reads
    bt_copier_close(node->copier);
    bt_prefill_core_close(node->core);
    bt_free(node->actions);
    bt_free(node);
}

// ---- what the core wants done ----

static uint8_t *
block_at(const bt_prefill_node *node, bt_block block)
{
    return node->pool + (size_t)block * node->layout->block_bytes;
}

// A chunk's blocks are summed in about a five-hundredth of the time that a CPU took to compute them, so the loop does it. A GPU is faster,
// and then the step has summed them already.
static void
stamp_block(const bt_prefill_node *node, const bt_offer_block *block)
{
    uint64_t sum = bt_engine_kv_sum(node->engine, block->block);

    if (sum != 0)
        bt_kv_trailer_put(node->layout, block_at(node, block->block), node->epoch, block->generation, sum);
    else
        bt_kv_trailer_stamp(node->layout, block_at(node, block->block), node->epoch, block->generation);
}

// A GPU's own pool is stamped and cleared there, in less than a tenth of a millisecond, and this thread waits.
static void
settle(bt_prefill_node *node, bt_err err, uint64_t ticket)
{
    if (err == BT_OK)
        err = bt_copier_wait(node->copier, ticket, bt_time_now() + PIECE_TIME_MAX);
    if (err == BT_OK)
        return;
    bt_log_error("STAMP-FAILED", "%s: trailers of blocks could not be written there: %s",
                 bt_device_isa(bt_engine_device(node->engine)), bt_err_name(err));
    node->broken = true;
}

static void
stamp_device(bt_prefill_node *node, const bt_offer_block *blocks, uint32_t count)
{
    uint64_t ticket = 0;

    for (uint32_t first = 0, n; first < count && !node->broken; first += n) {
        bt_err err;

        n = count - first < PIECE_BLOCKS ? count - first : PIECE_BLOCKS;
        for (uint32_t i = 0; i < n; i++)
            node->stampings[i] = (bt_copier_stamping){blocks[first + i].block, blocks[first + i].generation};
        err = bt_copier_stamp(node->copier, node->layout, node->device_pool, node->epoch, node->stampings, n, &ticket);
        settle(node, err, ticket);
    }
}

static void
clear_device(bt_prefill_node *node, const bt_block *blocks, uint32_t count)
{
    uint64_t ticket = 0;

    for (uint32_t first = 0, n; first < count && !node->broken; first += n) {
        bt_err err;

        n = count - first < PIECE_BLOCKS ? count - first : PIECE_BLOCKS;
        err = bt_copier_clear(node->copier, node->layout, node->device_pool, blocks + first, n, &ticket);
        settle(node, err, ticket);
    }
}

static void
clear(bt_prefill_node *node)
{
    const bt_prefill_actions *actions = node->actions;

    for (uint32_t i = 0; i < actions->clear_count && node->pool != NULL; i++)
        bt_kv_trailer_clear(node->layout, block_at(node, actions->clears[i]));
    if (node->device_pool != NULL)
        clear_device(node, actions->clears, actions->clear_count);
}

static void
stamp(bt_prefill_node *node)
{
    const bt_prefill_actions *actions = node->actions;
    bt_time began;

    if (actions->stamp_count == 0)
        return;
    began = bt_time_now();
    for (uint32_t i = 0; i < actions->stamp_count && node->pool != NULL; i++)
        stamp_block(node, &actions->stamps[i]);
    if (node->device_pool != NULL)
        stamp_device(node, actions->stamps, actions->stamp_count);
    node->stats.stamped_blocks += actions->stamp_count;
    node->stats.stamp_time += bt_time_now() - began;
}

static void
send(bt_prefill_node *node, const bt_prefill_send *what)
{
    bt_err err = bt_link_send(node->link, what->peer, &what->message);

    // A heartbeat is soon followed by another; anything else that is lost voids the relation.
    if (err == BT_OK || what->message.kind == BT_MESSAGE_HEARTBEAT)
        return;
    bt_log_warn("LINK-LOST", "peer %u did not take a %s: %s", what->peer, bt_message_kind_name(what->message.kind),
                bt_err_name(err));
    node->link_failed[what->peer] = true;
}

static double
ms(bt_time time)
{
    return (double)time / (double)BT_MILLISECOND;
}

static void
log_ended(const bt_prefill_ended *end)
{
    bool failed = end->finish == BT_FINISH_ERROR;

    bt_log_write(failed ? BT_LOG_WARN : BT_LOG_INFO, failed ? "PROMPT-FAILED" : "PROMPT-DONE",
                 "req %s prompt %u cached %u computed %u %s: queue %.1f, read %.1f, in all %.1f ms%s%s",
                 end->name[0] != 0 ? end->name : "-", end->tokens, end->cached_tokens, end->computed_tokens,
                 failed                            ? "failed"
                 : end->finish == BT_FINISH_LENGTH ? "taken"
                                                   : bt_finish_name(end->finish),
                 ms(end->phases.queue_prefill), ms(end->phases.prefill), ms(end->total), failed ? ": " : "",
                 failed ? bt_err_name(end->err) : "");
}

static void
log_all_ended(const bt_prefill_actions *actions)
{
    for (uint32_t i = 0; i < actions->ended_count && i < BT_PREFILL_ENDED_MAX; i++)
        log_ended(&actions->ended[i]);
    if (actions->ended_count > BT_PREFILL_ENDED_MAX)
        bt_log_warn("PROMPTS-ENDED", "and %u more", actions->ended_count - BT_PREFILL_ENDED_MAX);
}

static void
feed(bt_prefill_node *node, bt_time now, const bt_prefill_event *event)
{
    const bt_prefill_actions *actions = node->actions;

    bt_prefill_core_step(node->core, now, event, node->actions);
    stamp(node);
    if (node->broken && !node->lone)
        return; // what was not stamped is not offered
    for (uint32_t i = 0; i < actions->send_count; i++)
        send(node, &actions->send[i]);
    clear(node);
    if (actions->step != NULL)
        bt_worker_begin(node->worker, actions->step);
    log_all_ended(actions);
}

// ---- what there is to hear ----

static void
reset_failed_links(bt_prefill_node *node, bt_time now)
{
    for (uint32_t peer = 0; peer < BT_PREFILL_PEERS_MAX; peer++) {
        if (!node->link_failed[peer])
            continue;
        node->link_failed[peer] = false;
        node->stats.resets++;
        feed(node, now, &(bt_prefill_event){.kind = BT_PREFILL_LINK_DOWN, .peer = peer});
        feed(node, now, &(bt_prefill_event){.kind = BT_PREFILL_LINK_UP, .peer = peer});
    }
}

static void
take_step(bt_prefill_node *node, bt_time now)
{
    bt_prefill_event event = {.kind = BT_PREFILL_STEPPED};

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
take_link_event(bt_prefill_node *node, bt_time now, const bt_link_event *event)
{
    bt_prefill_event_kind kind = BT_PREFILL_MESSAGE;

    if (event->peer >= BT_PREFILL_PEERS_MAX) // a link with more room than we have; it hears nothing and goes elsewhere
        return;
    if (event->kind == BT_LINK_UP)
        kind = BT_PREFILL_LINK_UP;
    else if (event->kind == BT_LINK_DOWN)
        kind = BT_PREFILL_LINK_DOWN;
    if (kind != BT_PREFILL_MESSAGE)
        node->link_failed[event->peer] = false; // it begins anew by itself
    if (kind == BT_PREFILL_LINK_DOWN)
        bt_readers_lose(&node->readers, now, event->peer);
    else if (kind == BT_PREFILL_MESSAGE)
        bt_readers_hear(&node->readers, now, event->peer, event->message);
    feed(node, now, &(bt_prefill_event){.kind = kind, .peer = event->peer, .message = event->message});
}

static void
take_link(bt_prefill_node *node, bt_time now)
{
    bt_link_event event;

    for (int i = 0; i < EVENTS_PER_TURN && bt_link_receive(node->link, &event); i++)
        take_link_event(node, now, &event);
}

// Messages before the step's outcome: an ABORT that is already here keeps its prompt out of the step that follows.
bt_time
bt_prefill_node_turn(bt_prefill_node *node, bt_time now)
{
    bt_time core, readers;

    if (node->broken && !node->lone)
        return BT_TIME_NEVER;
    take_link(node, now);
    take_step(node, now);
    readers = bt_readers_turn(&node->readers, now);
    if (bt_prefill_core_next_deadline(node->core) <= now)
        feed(node, now, &(bt_prefill_event){.kind = BT_PREFILL_TICK});
    reset_failed_links(node, now);
    if (bt_link_pending(node->link) || bt_plane_pending(node->plane))
        return now;
    core = bt_prefill_core_next_deadline(node->core);
    return core < readers ? core : readers;
}

void
bt_prefill_node_drain(bt_prefill_node *node, bt_time now)
{
    feed(node, now, &(bt_prefill_event){.kind = BT_PREFILL_DRAIN});
}

bool
bt_prefill_node_is_broken(const bt_prefill_node *node)
{
    return node->broken;
}

bool
bt_prefill_node_idle(const bt_prefill_node *node)
{
    bt_prefill_stats stats;

    bt_prefill_core_get_stats(node->core, &stats);
    return stats.waiting + stats.reading + stats.holding + stats.ending == 0;
}

void
bt_prefill_node_get_stats(const bt_prefill_node *node, bt_prefill_node_stats *out)
{
    *out = node->stats;
    bt_prefill_core_get_stats(node->core, &out->core);
    out->readers = bt_readers_count(&node->readers);
    out->refused_descriptions = node->readers.refused;
}
