#include "router/main.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/notes.h"

#include <assert.h>

#define EVENTS_PER_TURN 256

typedef struct {
    bt_request_id request;
    bt_finish reason;
} wish;

typedef struct {
    bt_request_id request;
    uint32_t node;
} refusal;

struct bt_router_edge {
    bt_router *core;
    bt_link *link;
    bt_router_callbacks callbacks;
    bt_router_actions *actions;
    bool acting; // callbacks run; what they wish is done afterwards
    wish *wishes;
    uint32_t wish_count, wish_max;
    refusal refusals[BT_ROUTER_ACTIONS_MAX]; // RESERVEs that the link did not take
    uint32_t refusal_count;
    uint32_t nodes_max;
    bt_router_note *notes; // [nodes_max]
    bool *link_failed;     // [nodes_max] another message was not taken: the core has to hear of it
};

static bt_err
open_memory(bt_router_edge *edge, bt_why *why)
{
    const bt_router_limits *limits = bt_router_get_limits(edge->core);

    edge->nodes_max = limits->nodes_max;
    edge->wish_max = limits->requests_max;
    edge->wishes = bt_alloc_array(edge->wish_max, sizeof *edge->wishes);
    edge->actions = bt_alloc(sizeof *edge->actions);
    edge->link_failed = bt_alloc_array(edge->nodes_max, sizeof *edge->link_failed);
    edge->notes = bt_alloc_array(edge->nodes_max, sizeof *edge->notes);
    if (edge->wishes == NULL || edge->actions == NULL || edge->link_failed == NULL || edge->notes == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "router: no memory for the edge of %u nodes and %u requests",
                       edge->nodes_max, edge->wish_max);
    return BT_OK;
}

bt_err
bt_router_edge_open(bt_router_edge **out, const bt_router_limits *limits, bt_link *link,
                    const bt_router_callbacks *callbacks, bt_why *why)
{
    bt_router_edge *edge = bt_alloc(sizeof *edge);
    bt_err err;

    if (edge == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "router: no memory for its edge");
    edge->link = link;
    edge->callbacks = *callbacks;
    if ((err = bt_router_open(&edge->core, limits, why)) != BT_OK || (err = open_memory(edge, why)) != BT_OK) {
        bt_router_edge_close(edge);
        return err;
    }
    *out = edge;
    return BT_OK;
}

void
bt_router_edge_close(bt_router_edge *edge)
{
    if (edge == NULL)
        return;
    bt_router_close(edge->core);
    bt_free(edge->actions);
    bt_free(edge->wishes);
    bt_free(edge->link_failed);
    bt_free(edge->notes);
    bt_free(edge);
}

static void
send(bt_router_edge *edge, const bt_router_action *action)
{
    uint32_t node = action->to_node.node;
    const bt_message *message = &action->to_node.message;
    bt_err err = bt_link_send(edge->link, node, message);

    if (err == BT_OK || message->kind == BT_MESSAGE_HEARTBEAT || message->kind == BT_MESSAGE_HELLO)
        return; // those are repeated
    if (message->kind == BT_MESSAGE_RESERVE) {
        edge->refusals[edge->refusal_count++] = (refusal){action->request, node};
        return;
    }
    bt_log_warn("LINK-LOST", "%s (node %u) did not take a %s: %s", edge->notes[node].name, node,
                bt_message_kind_name(message->kind), bt_err_name(err));
    edge->link_failed[node] = true;
}

static wish *
find_wish(bt_router_edge *edge, bt_request_id request)
{
    for (uint32_t i = 0; i < edge->wish_count; i++) {
        if (bt_request_id_equal(edge->wishes[i].request, request))
            return &edge->wishes[i];
    }
    return NULL;
}

static void
give_tokens(bt_router_edge *edge, const bt_router_action *action)
{
    bt_router_tokens tokens = {
        .request = action->request,
        .tag = action->tag,
        .first = action->tokens.first,
        .count = action->tokens.count,
        .results = action->tokens.results,
        .scored_first = action->tokens.scored_first,
        .scored_count = action->tokens.scored_count,
        .scored = action->tokens.scored,
        .degraded = action->tokens.degraded,
        .ttft = action->tokens.ttft,
        .phases = action->tokens.phases,
    };

    edge->callbacks.on_tokens(edge->callbacks.arg, &tokens);
}

static void
give_finished(bt_router_edge *edge, const bt_router_action *action)
{
    const wish *wished = find_wish(edge, action->request);
    bt_router_finished finished = {
        .request = action->request,
        .tag = action->tag,
        // The callback before this one asked for an end that came by itself in the same message.
        .finish = wished != NULL ? wished->reason : action->finished.finish,
        .err = wished != NULL ? BT_OK : action->finished.err,
        .usage = action->finished.usage,
        .phases = action->finished.phases,
        .ttft = action->finished.ttft,
        .total = action->finished.total,
        .moves = action->finished.moves,
        .degraded = action->finished.degraded,
    };

    edge->callbacks.on_finished(edge->callbacks.arg, &finished);
}

static void
carry_out(bt_router_edge *edge, const bt_router_actions *actions)
{
    edge->acting = true;
    for (uint32_t i = 0; i < actions->count; i++) {
        const bt_router_action *action = &actions->action[i];

        if (action->kind == BT_ROUTER_TO_NODE)
            send(edge, action);
        else if (action->kind == BT_ROUTER_TOKENS)
            give_tokens(edge, action);
        else if (action->kind == BT_ROUTER_FINISHED)
            give_finished(edge, action);
    }
    edge->acting = false;
}

static const char *
name_of(const bt_router_edge *edge, uint32_t node)
{
    return node < edge->nodes_max ? edge->notes[node].name : NULL;
}

static void
log_move(const bt_router_attempted *a)
{
    const bt_router_attempt *what = a->what;
    bool error = what->cause == BT_MOVE_ERROR;

    bt_log_info("REQ-MOVED", "req %s leaves %s%s%s: %s%s%s, with %u tokens of its answer", what->name, a->decode,
                a->prefill != NULL ? ", read at " : "", a->prefill != NULL ? a->prefill : "",
                bt_move_cause_name(what->cause), error ? " " : "", error ? bt_err_name(what->err) : "",
                what->answer_tokens);
}

// Before the actions, which may end the calls that these speak of.
static void
tell_attempts(bt_router_edge *edge)
{
    uint32_t count;
    const bt_router_attempt *attempts = bt_router_attempts(edge->core, &count);

    for (uint32_t i = 0; i < count; i++) {
        bt_router_attempted attempted = {&attempts[i], name_of(edge, attempts[i].decode),
                                         name_of(edge, attempts[i].prefill)};

        if (attempts[i].moved)
            log_move(&attempted);
        if (edge->callbacks.on_attempt != NULL)
            edge->callbacks.on_attempt(edge->callbacks.arg, &attempted);
    }
}

static void
step(bt_router_edge *edge, bt_time now, const bt_router_event *event)
{
    bt_router_step(edge->core, now, event, edge->actions);
    tell_attempts(edge);
    carry_out(edge, edge->actions);
}

// What callbacks and the link left to do. A callback of a cancelled request may wish again: those join the queue.
static void
follow_up(bt_router_edge *edge, bt_time now)
{
    while (edge->wish_count > 0 || edge->refusal_count > 0) {
        if (edge->wish_count > 0) {
            wish first = edge->wishes[--edge->wish_count];

            step(edge, now,
                 &(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = first.request, .reason = first.reason});
        } else {
            refusal first = edge->refusals[--edge->refusal_count];

            step(edge, now,
                 &(bt_router_event){.kind = BT_ROUTER_NODE_BUSY, .request = first.request, .node = first.node});
        }
    }
}

static void
feed(bt_router_edge *edge, bt_time now, const bt_router_event *event)
{
    assert(!edge->acting);
    step(edge, now, event);
    follow_up(edge, now);
}

static void
take_link(bt_router_edge *edge, bt_time now)
{
    bt_link_event event;

    for (int i = 0; i < EVENTS_PER_TURN && bt_link_receive(edge->link, &event); i++) {
        bt_router_event_kind kind = event.kind == BT_LINK_UP     ? BT_ROUTER_NODE_UP
                                    : event.kind == BT_LINK_DOWN ? BT_ROUTER_NODE_DOWN
                                                                 : BT_ROUTER_NODE_MESSAGE;

        if (event.peer >= edge->nodes_max)
            continue;
        feed(edge, now, &(bt_router_event){.kind = kind, .node = event.peer, .message = event.message});
        if (kind != BT_ROUTER_NODE_MESSAGE || event.message->kind == BT_MESSAGE_HELLO)
            bt_router_note_node(&edge->notes[event.peer], edge->core, event.peer);
    }
}

static void
reset_failed_links(bt_router_edge *edge, bt_time now)
{
    for (uint32_t node = 0; node < edge->nodes_max; node++) {
        if (!edge->link_failed[node])
            continue;
        edge->link_failed[node] = false;
        feed(edge, now, &(bt_router_event){.kind = BT_ROUTER_NODE_DOWN, .node = node});
        feed(edge, now, &(bt_router_event){.kind = BT_ROUTER_NODE_UP, .node = node});
    }
}

bt_time
bt_router_edge_turn(bt_router_edge *edge, bt_time now)
{
    take_link(edge, now);
    if (bt_router_next_deadline(edge->core) <= now) {
        feed(edge, now, &(bt_router_event){.kind = BT_ROUTER_TICK});
        for (uint32_t node = 0; node < edge->nodes_max; node++)
            bt_router_note_node(&edge->notes[node], edge->core, node);
    }
    reset_failed_links(edge, now);
    return bt_link_pending(edge->link) ? now : bt_router_next_deadline(edge->core);
}

bt_err
bt_router_edge_submit(bt_router_edge *edge, bt_time now, const bt_router_arrival *arrival, bt_router_answer *out)
{
    bt_err err = BT_ERR_BUG;

    assert(!edge->acting);
    step(edge, now, &(bt_router_event){.kind = BT_ROUTER_ARRIVED, .arrival = *arrival});
    *out = (bt_router_answer){0};
    for (uint32_t i = 0; i < edge->actions->count; i++) {
        const bt_router_action *action = &edge->actions->action[i];

        if (action->kind == BT_ROUTER_ACCEPTED) {
            out->request = action->request;
            err = BT_OK;
        } else if (action->kind == BT_ROUTER_REJECTED) {
            out->tokens = action->rejected.tokens;
            out->tokens_max = action->rejected.tokens_max;
            out->retry_after = action->rejected.retry_after;
            err = action->rejected.err;
        }
    }
    follow_up(edge, now);
    assert(err != BT_ERR_BUG);
    return err;
}

void
bt_router_edge_cancel(bt_router_edge *edge, bt_time now, bt_request_id request, bt_finish reason)
{
    if (!edge->acting) {
        feed(edge, now, &(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = request, .reason = reason});
        return;
    }
    // Each wish is of a request that is alive or just ended: more than there can be is a repeat.
    if (find_wish(edge, request) == NULL && edge->wish_count < edge->wish_max)
        edge->wishes[edge->wish_count++] = (wish){request, reason};
}

void
bt_router_edge_drain(bt_router_edge *edge, bt_time now)
{
    feed(edge, now, &(bt_router_event){.kind = BT_ROUTER_DRAIN});
}

bool
bt_router_edge_ready(const bt_router_edge *edge)
{
    return bt_router_ready(edge->core);
}

void
bt_router_edge_stats(const bt_router_edge *edge, bt_router_stats *out)
{
    bt_router_get_stats(edge->core, out);
}

const bt_router *
bt_router_edge_core(const bt_router_edge *edge)
{
    return edge->core;
}
