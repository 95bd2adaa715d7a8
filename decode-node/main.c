#include "decode-node/main.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/worker.h"

#include <assert.h>
#include <string.h>

#define EVENTS_PER_TURN 256

struct bt_decode_node {
    bt_engine *engine;
    bt_link *link;
    bt_decode_core *core;
    bt_worker *worker;
    bt_decode_actions *actions;
    bool link_failed[BT_DECODE_ROUTERS_MAX]; // a send did not get through: the core has to hear of it
};

static bt_err
run_step(void *arg, const void *step)
{
    const bt_decode_batch *batch = step;
    bt_step_result result = batch->result;

    return bt_engine_step(arg, batch->items, batch->count, &result);
}

static bt_decode_limits
limits_of(const bt_decode_node_options *options, const bt_engine *engine)
{
    const bt_model *model = bt_engine_model(engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(engine);
    bt_decode_limits limits = {
        .epoch = options->epoch,
        .model = model->family,
        .weights = model->digest,
        .layout = bt_kv_layout_fingerprint(layout),
        .sequences = options->max_sequences,
        .queue_max = options->queue_max != 0 ? options->queue_max : 2 * options->max_sequences,
        .chunk_tokens = options->chunk_tokens,
        .logit_rows = options->logit_rows,
        .blocks = bt_engine_kv_blocks(engine),
        .block_tokens = layout->block_tokens,
        .context = bt_engine_context(engine),
        .vocab = model->config.vocab,
        .lease = options->lease,
    };
    float share = options->prefill_share > 0 && options->prefill_share <= 1 ? options->prefill_share : 0.5f;

    limits.prefill_tokens = (uint32_t)((float)options->chunk_tokens * share);
    if (limits.prefill_tokens == 0)
        limits.prefill_tokens = 1;
    memcpy(limits.name, options->name, sizeof limits.name - 1);
    return limits;
}

bt_err
bt_decode_node_open(bt_decode_node **out, const bt_decode_node_options *options, bt_engine *engine, bt_link *link,
                    bt_why *why)
{
    bt_decode_limits limits = limits_of(options, engine);
    bt_worker_calls calls = {run_step, options->wake, engine, options->wake_arg};
    bt_decode_node *node = bt_alloc(sizeof *node);
    bt_err err = BT_ERR_NO_MEMORY;

    if (node == NULL)
        return bt_fail(why, err, "decode node: out of memory");
    node->engine = engine;
    node->link = link;
    node->actions = bt_alloc(sizeof *node->actions);
    if (node->actions == NULL) {
        err = bt_fail(why, err, "decode node: out of memory");
    } else if ((err = bt_decode_core_open(&node->core, &limits, why)) == BT_OK &&
               (err = bt_worker_open(&node->worker, &calls)) != BT_OK) {
        bt_fail(why, err, "decode node: the engine thread did not start");
    }
    if (err != BT_OK) {
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
    bt_free(node->actions);
    bt_free(node);
}

static void
send(bt_decode_node *node, const bt_decode_send *what)
{
    bt_err err = bt_link_send(node->link, what->peer, &what->message);

    // A heartbeat is soon followed by another; anything else that is lost voids the relation.
    if (err == BT_OK || what->message.kind == BT_MESSAGE_HEARTBEAT)
        return;
    bt_log_warn("LINK-LOST", "router %u did not take a %s: %s", what->peer, bt_message_kind_name(what->message.kind),
                bt_err_name(err));
    node->link_failed[what->peer] = true;
}

static void
feed(bt_decode_node *node, bt_time now, const bt_decode_event *event)
{
    bt_decode_core_step(node->core, now, event, node->actions);
    for (uint32_t i = 0; i < node->actions->send_count; i++)
        send(node, &node->actions->send[i]);
    if (node->actions->step != NULL)
        bt_worker_begin(node->worker, node->actions->step);
}

static void
reset_failed_links(bt_decode_node *node, bt_time now)
{
    for (uint32_t peer = 0; peer < BT_DECODE_ROUTERS_MAX; peer++) {
        if (!node->link_failed[peer])
            continue;
        node->link_failed[peer] = false;
        feed(node, now, &(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = peer});
        feed(node, now, &(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = peer});
    }
}

static void
take_step(bt_decode_node *node, bt_time now)
{
    bt_decode_event event = {.kind = BT_DECODE_STEPPED};

    if (!bt_worker_take(node->worker, &event.err, &event.duration))
        return;
    if (event.err != BT_OK)
        bt_log_error("STEP-FAILED", "the engine says %s", bt_err_name(event.err));
    feed(node, now, &event);
}

static void
take_link(bt_decode_node *node, bt_time now)
{
    bt_link_event event;

    for (int i = 0; i < EVENTS_PER_TURN && bt_link_receive(node->link, &event); i++) {
        bt_decode_event_kind kind = event.kind == BT_LINK_UP     ? BT_DECODE_LINK_UP
                                    : event.kind == BT_LINK_DOWN ? BT_DECODE_LINK_DOWN
                                                                 : BT_DECODE_MESSAGE;

        if (event.peer < BT_DECODE_ROUTERS_MAX) // prefill nodes have a link of their own
            feed(node, now, &(bt_decode_event){.kind = kind, .peer = event.peer, .message = event.message});
    }
}

// Messages before the step's outcome: an ABORT that is already here keeps its sequence out of the step that follows.
bt_time
bt_decode_node_turn(bt_decode_node *node, bt_time now)
{
    take_link(node, now);
    take_step(node, now);
    if (bt_decode_core_next_deadline(node->core) <= now)
        feed(node, now, &(bt_decode_event){.kind = BT_DECODE_TICK});
    reset_failed_links(node, now);
    return bt_link_pending(node->link) ? now : bt_decode_core_next_deadline(node->core);
}

void
bt_decode_node_drain(bt_decode_node *node, bt_time now)
{
    feed(node, now, &(bt_decode_event){.kind = BT_DECODE_DRAIN});
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
