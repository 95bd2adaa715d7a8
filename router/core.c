#include "router/core.h"
#include "common/base/mem.h"
#include "router/admit.h"
#include "router/inside.h"
#include "router/place.h"

#include <assert.h>
#include <string.h>

const char *
bt_move_cause_name(bt_move_cause cause)
{
    static const char *const names[] = {"node_lost", "source_lost", "ended", "error"};

    return (unsigned)cause < BT_MOVE_CAUSES ? names[cause] : "?";
}

static void
fill_defaults(bt_router_limits *limits)
{
    if (limits->nodes_max == 0)
        limits->nodes_max = 64;
    if (limits->requests_max == 0)
        limits->requests_max = 256;
    if (limits->queue_max == 0)
        limits->queue_max = limits->requests_max;
    if (limits->heartbeat == 0)
        limits->heartbeat = BT_SECOND;
    if (limits->node_silence == 0)
        limits->node_silence = 10 * BT_SECOND;
    if (limits->affinity_tokens == 0)
        limits->affinity_tokens = 256;
    if (limits->affinity_entries == 0)
        limits->affinity_entries = 4096 * limits->nodes_max;
    if (limits->remote_tokens_min == 0)
        limits->remote_tokens_min = 512;
    bt_breaker_fill_defaults(&limits->breaker);
    if (limits->degrade_after == 0)
        limits->degrade_after = 2 * BT_SECOND;
}

bt_err
bt_router_open(bt_router **out, const bt_router_limits *limits, bt_why *why)
{
    bt_router *router;

    if (limits->context == 0 || limits->context > BT_MESSAGE_IDS_MAX)
        return bt_fail(why, BT_ERR_INVALID, "router: a context of %u tokens, expected 1 to %u", limits->context,
                       BT_MESSAGE_IDS_MAX);
    if (limits->epoch == 0)
        return bt_fail(why, BT_ERR_INVALID, "router: epoch 0");
    if (limits->nodes_max > BT_ROUTER_NODES_MAX)
        return bt_fail(why, BT_ERR_INVALID, "router: %u nodes, expected up to %u", limits->nodes_max,
                       BT_ROUTER_NODES_MAX);
    router = bt_alloc(sizeof *router);
    if (router == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "router: out of memory");
    router->limits = *limits;
    fill_defaults(&router->limits);
    router->next_expiry = router->unpaired_since = BT_TIME_NEVER;
    router->between_ends = BT_SECOND;
    bt_retry_init(router);
    router->stuck = BT_REQUEST_NONE;
    router->attempts = bt_alloc_array(2 * (size_t)router->limits.requests_max, sizeof *router->attempts);
    if (router->attempts == NULL ||
        bt_affinity_init(&router->affinity, router->limits.affinity_entries, router->limits.affinity_tokens,
                         router->limits.nodes_max) != BT_OK ||
        bt_requests_init(&router->requests, router->limits.requests_max, limits->context,
                         limits->context / router->affinity.step + 1) != BT_OK ||
        bt_registry_init(&router->registry, router->limits.nodes_max) != BT_OK) {
        bt_fail(why, BT_ERR_NO_MEMORY, "router: no memory for %u nodes and %u requests of %u tokens",
                router->limits.nodes_max, router->limits.requests_max, limits->context);
        bt_router_close(router);
        return BT_ERR_NO_MEMORY;
    }
    *out = router;
    return BT_OK;
}

void
bt_router_close(bt_router *router)
{
    if (router == NULL)
        return;
    bt_requests_fini(&router->requests);
    bt_registry_fini(&router->registry);
    bt_affinity_fini(&router->affinity);
    bt_free(router->attempts);
    bt_free(router);
}

bt_router_action *
bt_router_act(bt_router_actions *out, bt_router_action_kind kind)
{
    bt_router_action *action = &out->action[out->count++];

    assert(out->count <= BT_ROUTER_ACTIONS_MAX);
    *action = (bt_router_action){.kind = kind};
    return action;
}

bt_message *
bt_router_say(bt_router_actions *out, uint32_t node, bt_message_kind kind)
{
    bt_router_action *action = bt_router_act(out, BT_ROUTER_TO_NODE);

    action->to_node.node = node;
    action->to_node.message.kind = kind;
    return &action->to_node.message;
}

void
bt_router_abort(bt_router *router, bt_request *request, bt_router_actions *out)
{
    if (!bt_request_at_node(request))
        return;
    bt_router_say(out, request->node, BT_MESSAGE_ABORT)->abort.request =
        bt_requests_attempt(&router->requests, request);
    bt_remote_abort(router, request, out);
}

static void
leave(bt_router *router, bt_request *request)
{
    if (request->state == BT_REQUEST_RESERVING)
        bt_registry_ticketed(&router->registry, request);
    bt_remote_done(router, request);
    bt_registry_uncount(&router->registry, request);
}

void
bt_router_requeue(bt_router *router, bt_request *request)
{
    leave(router, request);
    bt_requests_enqueue(&router->requests, request);
}

void
bt_router_move_on(bt_router *router, bt_request *request, bt_move_cause cause)
{
    bt_attempt_end(router, request, true, cause, BT_FINISH_NONE, cause == BT_MOVE_ERROR ? request->failed : BT_OK);
    bt_router_requeue(router, request);
    request->moves++;
    router->stats.moves++;
    router->stats.moves_by[cause]++;
}

static void
count_end(bt_router *router, bt_time now, const bt_request *request, bt_finish finish, bt_err err)
{
    bt_router_stats *stats = &router->stats;

    stats->done_stop += finish == BT_FINISH_STOP;
    stats->done_length += finish == BT_FINISH_LENGTH;
    stats->cancelled += finish == BT_FINISH_CANCELLED;
    stats->failed += finish == BT_FINISH_ERROR;
    stats->deadlines_missed += finish == BT_FINISH_ERROR && err == BT_ERR_TIMEOUT;
    stats->prompt_tokens += request->prompt_count;
    stats->cached_tokens += request->found_tokens;
    if (finish != BT_FINISH_STOP && finish != BT_FINISH_LENGTH)
        return;
    // A running mean over some eight ends is all that Retry-After needs; pauses say nothing about the rate.
    if (router->last_end != 0 && now - router->last_end < 10 * BT_SECOND)
        router->between_ends += (now - router->last_end - router->between_ends) / 8;
    router->last_end = now;
}

void
bt_router_finish(bt_router *router, bt_time now, bt_request *request, bt_finish finish, bt_err err,
                 bt_router_actions *out)
{
    bt_router_action *action = bt_router_act(out, BT_ROUTER_FINISHED);
    bt_request_state to = finish == BT_FINISH_ERROR       ? BT_REQUEST_FAILED
                          : finish == BT_FINISH_CANCELLED ? BT_REQUEST_CANCELLED
                                                          : BT_REQUEST_DONE;

    action->request = bt_requests_id(&router->requests, request);
    action->tag = request->tag;
    action->finished.finish = finish;
    action->finished.err = err;
    action->finished.usage = (bt_usage){request->prompt_count, request->answer_count, request->found_tokens};
    action->finished.moves = request->moves;
    action->finished.degraded = request->degraded;
    action->finished.total = now - request->arrived;
    action->finished.ttft = request->first_token != 0 ? request->first_token - request->arrived : 0;
    action->finished.phases = request->phases;
    bt_attempt_end(router, request, false, BT_MOVE_LOST, finish, err);
    if (to == BT_REQUEST_DONE)
        bt_known_answered(router, request);
    count_end(router, now, request, finish, err);
    if (request->state == BT_REQUEST_QUEUED) {
        bt_requests_dequeue(&router->requests, request, to);
    } else {
        leave(router, request);
        bt_request_move(request, to);
    }
    bt_requests_release(&router->requests, request);
}

void
bt_router_leave_node(bt_router *router, uint32_t node, bt_router_actions *out)
{
    for (uint32_t i = 0; i < router->requests.capacity; i++) {
        bt_request *request = &router->requests.slots[i];

        if (!bt_request_at_node(request) || request->node != node)
            continue;
        bt_remote_abort(router, request, out);
        bt_router_move_on(router, request, BT_MOVE_LOST);
    }
    bt_remote_leave_node(router, node, out);
}

static void
reject(bt_router *router, const bt_router_arrival *arrival, const bt_admission *admission, bt_router_actions *out)
{
    bt_router_action *action = bt_router_act(out, BT_ROUTER_REJECTED);

    action->tag = arrival->tag;
    action->rejected.err = admission->err;
    action->rejected.tokens = admission->tokens;
    action->rejected.tokens_max = admission->tokens_max;
    action->rejected.retry_after = admission->retry_after > 0
                                       ? admission->retry_after
                                       : bt_admit_retry_after(&router->requests, router->between_ends);
    router->stats.rejected_invalid += admission->err == BT_ERR_INVALID;
    router->stats.rejected_too_long += admission->err == BT_ERR_TOO_LONG;
    router->stats.rejected_busy += admission->err == BT_ERR_BUSY;
    router->stats.rejected_no_node += admission->err == BT_ERR_PEER || admission->err == BT_ERR_CLOSED;
}

static void
copy_arrival(bt_request *request, bt_time now, const bt_router_arrival *arrival, uint32_t max_tokens)
{
    memcpy(request->ids, arrival->ids, arrival->count * sizeof *request->ids);
    if (arrival->end_count > 0)
        memcpy(request->end_ids, arrival->end_ids, arrival->end_count * sizeof *request->end_ids);
    if (arrival->name != NULL)
        memcpy(request->name, arrival->name, strnlen(arrival->name, BT_JOB_NAME_MAX));
    request->prompt_count = arrival->count;
    request->end_count = arrival->end_count;
    request->sampling = *arrival->sampling;
    request->max_tokens = max_tokens;
    request->prompt_logprobs = arrival->prompt_logprobs;
    request->tag = arrival->tag;
    request->session = arrival->session;
    request->priority = arrival->priority;
    request->deadline = arrival->deadline;
    request->arrived = now;
}

// By how much a first token would be later than promised, as things are: the queue's prompts at the rate that prompts are read at, or
// the queue itself at the rate that requests end at, then this prompt. What was not measured yet counts as nothing.
static bt_time
lateness(bt_router *router, bt_time now, bt_request *request)
{
    bt_placing placing;
    bt_time predicted, room = router->last_end != 0 ? router->between_ends * (bt_time)router->requests.queued : 0;

    if (router->limits.slo_ttft == 0)
        return 0;
    placing = bt_known_look(router, now, request);
    predicted = bt_place_predict(&placing, request, router->requests.queued_tokens);
    return (predicted > room ? predicted : room) - router->limits.slo_ttft;
}

static void
arrive(bt_router *router, bt_time now, const bt_router_arrival *arrival, bt_router_actions *out)
{
    bt_admission admission = bt_admit(&router->limits, &router->registry, &router->requests, arrival);
    bt_router_action *action;
    bt_request *request;
    bt_time late;

    router->stats.arrived++;
    if (router->draining && admission.err != BT_ERR_INVALID && admission.err != BT_ERR_TOO_LONG)
        admission.err = BT_ERR_CLOSED;
    if (admission.err != BT_OK) {
        reject(router, arrival, &admission, out);
        return;
    }
    request = bt_requests_take(&router->requests);
    copy_arrival(request, now, arrival, admission.max_tokens);
    late = lateness(router, now, request);
    if (late > 0) {
        bt_requests_release(&router->requests, request);
        router->stats.rejected_late++;
        reject(router, arrival, &(bt_admission){.err = BT_ERR_BUSY, .retry_after = bt_admit_bounded(late)}, out);
        return;
    }
    bt_requests_enqueue(&router->requests, request);
    if (request->deadline < router->next_expiry)
        router->next_expiry = request->deadline;
    router->stats.accepted++;
    bt_retry_save(router);
    action = bt_router_act(out, BT_ROUTER_ACCEPTED);
    action->request = bt_requests_id(&router->requests, request);
    action->tag = request->tag;
}

static void
cancel(bt_router *router, bt_time now, const bt_router_event *event, bt_router_actions *out)
{
    bt_request *request = bt_requests_find(&router->requests, event->request);

    if (request == NULL)
        return;
    bt_router_abort(router, request, out);
    bt_router_finish(router, now, request, event->reason == BT_FINISH_STOP ? BT_FINISH_STOP : BT_FINISH_CANCELLED,
                     BT_OK, out);
}

bt_job
bt_router_job(const bt_router *router, const bt_request *request, bt_time now)
{
    bt_job job = {.request = bt_requests_attempt(&router->requests, request),
                  .ids = request->ids,
                  .prompt_count = request->prompt_count,
                  .answer_count = request->answer_count,
                  .max_tokens = request->max_tokens,
                  .sampling = &request->sampling,
                  .prompt_logprobs = request->prompt_logprobs,
                  .end_count = request->end_count,
                  .time_left = BT_TIME_NEVER};

    memcpy(job.end_ids, request->end_ids, sizeof job.end_ids);
    memcpy(job.name, request->name, sizeof job.name);
    if (request->deadline != BT_TIME_NEVER)
        job.time_left = request->deadline > now ? request->deadline - now : 0;
    return job;
}

static void
reserve(bt_router *router, bt_time now, uint32_t node, bt_request *request, bt_router_actions *out)
{
    bt_message *message = bt_router_say(out, node, BT_MESSAGE_RESERVE);

    bt_requests_dequeue(&router->requests, request, BT_REQUEST_RESERVING);
    bt_registry_count(&router->registry, node, request, now);
    bt_attempt_begin(request, now);
    out->action[out->count - 1].request = bt_requests_id(&router->requests, request);
    request->attempt++;
    message->reserve = bt_router_job(router, request, now);
}

bool
bt_router_may_degrade(bt_router *router, bt_time now)
{
    if (bt_registry_paired(&router->registry)) {
        router->unpaired_since = BT_TIME_NEVER;
        return true;
    }
    if (router->unpaired_since == BT_TIME_NEVER)
        router->unpaired_since = now;
    return now - router->unpaired_since >= router->limits.degrade_after;
}

// Nothing has changed since the first of the queue found no place: most events are tokens, and there may be many nodes.
static bool
is_stuck(const bt_router *router, bt_time now, const bt_request *request)
{
    return router->stuck == (uint32_t)(request - router->requests.slots) &&
           router->stuck_generation == request->generation && router->stuck_version == router->registry.version &&
           now < router->stuck_until;
}

static void
be_stuck(bt_router *router, bt_time now, const bt_request *request, bool unpaired)
{
    bt_time until = bt_registry_next_change(&router->registry, now);

    if (unpaired && router->unpaired_since != BT_TIME_NEVER &&
        router->unpaired_since + router->limits.degrade_after > now &&
        router->unpaired_since + router->limits.degrade_after < until)
        until = router->unpaired_since + router->limits.degrade_after;
    router->stuck = (uint32_t)(request - router->requests.slots);
    router->stuck_generation = request->generation;
    router->stuck_version = router->registry.version;
    router->stuck_until = until;
}

// Gives requests to nodes in order, until the first one finds no room: nobody overtakes it then for being smaller.
static void
place_queued(bt_router *router, bt_time now, bt_router_actions *out)
{
    bt_request *request;

    while ((request = bt_requests_first(&router->requests)) != NULL && !is_stuck(router, now, request)) {
        bt_placing placing = bt_known_look(router, now, request);
        bt_decode_place place = bt_place_decode(&placing, request);

        if (place.node == BT_REQUEST_NONE || (place.unpaired && !bt_router_may_degrade(router, now))) {
            be_stuck(router, now, request, place.unpaired);
            return;
        }
        if (!bt_router_room(out)) {
            router->unfinished = true;
            return;
        }
        reserve(router, now, place.node, request, out);
    }
}

static void
expire_requests(bt_router *router, bt_time now, bt_router_actions *out)
{
    if (router->next_expiry > now)
        return;
    router->next_expiry = BT_TIME_NEVER;
    for (uint32_t i = 0; i < router->requests.capacity; i++) {
        bt_request *request = &router->requests.slots[i];

        if (request->state == BT_REQUEST_FREE)
            continue;
        if (request->deadline <= now && bt_router_room(out)) {
            bt_router_abort(router, request, out);
            bt_router_finish(router, now, request, BT_FINISH_ERROR, BT_ERR_TIMEOUT, out);
        } else if (request->deadline < router->next_expiry) {
            router->next_expiry = request->deadline;
        }
    }
}

// Time that this program slept through (a stopped process, a suspended machine) does not count against its nodes.
static void
forgive_own_stall(bt_router *router, bt_time now)
{
    bt_time gap = now - router->last_step;

    if (router->last_step != 0 && gap > 2 * router->limits.heartbeat) {
        for (uint32_t i = 0; i < router->limits.nodes_max; i++)
            router->registry.nodes[i].heard += gap;
    }
    router->last_step = now;
}

static void
greet(const bt_router *router, uint32_t node, bt_router_actions *out)
{
    bt_hello *hello = &bt_router_say(out, node, BT_MESSAGE_HELLO)->hello;

    *hello = (bt_hello){
        .name = "router", .role = BT_NODE_ROUTER, .version = BT_PROTOCOL_VERSION, .epoch = router->limits.epoch};
}

// One node's part of the heartbeat.
static void
watch_node(bt_router *router, bt_time now, uint32_t i, bt_router_actions *out)
{
    bt_node *node = &router->registry.nodes[i];

    if (node->state == BT_NODE_READY && now - node->heard > router->limits.node_silence) {
        bt_router_leave_node(router, i, out);
        bt_registry_lost(&router->registry, i);
        bt_registry_met(&router->registry, i, now);
    }
    if (!bt_router_room(out))
        return;
    if (node->state == BT_NODE_MET || node->state == BT_NODE_REFUSED)
        greet(router, i, out);
    else if (node->state == BT_NODE_READY)
        bt_router_say(out, i, BT_MESSAGE_HEARTBEAT)->heartbeat.number = router->heartbeats;
}

// More nodes than there is room for are watched in the ticks that follow at once.
static void
watch_nodes(bt_router *router, bt_time now, bt_router_actions *out)
{
    if (router->next_heartbeat <= now) {
        router->next_heartbeat = now + router->limits.heartbeat;
        router->heartbeats++;
        router->watched = 0;
        bt_router_may_degrade(router, now); // its time counts from when it was seen, not from the next request on
    }
    while (router->watched < router->limits.nodes_max && bt_router_room(out))
        watch_node(router, now, router->watched++, out);
    router->unfinished |= router->watched < router->limits.nodes_max;
}

static void
node_up(bt_router *router, bt_time now, uint32_t node, bt_router_actions *out)
{
    if (router->registry.nodes[node].state != BT_NODE_DOWN)
        return;
    bt_registry_met(&router->registry, node, now);
    greet(router, node, out);
}

void
bt_router_greet_again(bt_router *router, bt_time now, uint32_t node, bt_router_actions *out)
{
    bt_router_leave_node(router, node, out);
    bt_registry_lost(&router->registry, node);
    node_up(router, now, node, out);
}

static void
node_down(bt_router *router, uint32_t node, bt_router_actions *out)
{
    if (router->registry.nodes[node].state == BT_NODE_DOWN)
        return;
    bt_router_leave_node(router, node, out);
    bt_registry_lost(&router->registry, node);
}

static void
node_busy(bt_router *router, bt_time now, const bt_router_event *event)
{
    bt_request *request = bt_requests_find(&router->requests, event->request);

    bt_registry_busy(&router->registry, event->node, now + 5 * BT_MILLISECOND);
    if (request != NULL && request->state == BT_REQUEST_RESERVING && request->node == event->node)
        bt_router_requeue(router, request);
}

void
bt_router_step(bt_router *router, bt_time now, const bt_router_event *event, bt_router_actions *out)
{
    bt_mem_serving_begin();
    out->count = router->attempt_count = 0;
    router->unfinished = false;
    forgive_own_stall(router, now);
    assert(event->node < router->limits.nodes_max);
    switch (event->kind) {
    case BT_ROUTER_ARRIVED:
        arrive(router, now, &event->arrival, out);
        break;
    case BT_ROUTER_CANCEL:
        cancel(router, now, event, out);
        break;
    case BT_ROUTER_NODE_UP:
        node_up(router, now, event->node, out);
        break;
    case BT_ROUTER_NODE_DOWN:
        node_down(router, event->node, out);
        break;
    case BT_ROUTER_NODE_BUSY:
        node_busy(router, now, event);
        break;
    case BT_ROUTER_NODE_MESSAGE:
        bt_router_hear(router, now, event->node, event->message, out);
        break;
    case BT_ROUTER_DRAIN:
        router->draining = true;
        break;
    case BT_ROUTER_TICK:
        break;
    }
    expire_requests(router, now, out);
    watch_nodes(router, now, out);
    place_queued(router, now, out);
    bt_mem_serving_end();
}

bt_time
bt_router_next_deadline(const bt_router *router)
{
    bt_time next = router->next_heartbeat < router->next_expiry ? router->next_heartbeat : router->next_expiry;

    if (router->unfinished)
        return 0;
    return router->requests.queued > 0 && router->stuck_until < next ? router->stuck_until : next;
}

bool
bt_router_ready(const bt_router *router)
{
    return !router->draining && bt_registry_open(&router->registry);
}

void
bt_router_get_stats(const bt_router *router, bt_router_stats *out)
{
    int64_t counted = 0, at_nodes = 0;

    *out = router->stats;
    out->nodes_up = router->registry.decodes.count + router->registry.prefills.count;
    out->queued = router->requests.queued;
    out->running = router->requests.used - router->requests.queued;
    for (uint32_t i = 0; i < router->limits.nodes_max; i++)
        counted += (int64_t)(router->registry.nodes[i].blocks + router->registry.nodes[i].prefill_tokens);
    for (uint32_t i = 0; i < router->requests.capacity; i++)
        at_nodes += router->requests.slots[i].node_blocks + router->requests.slots[i].prefill_tokens;
    out->leak = counted - at_nodes;
}

void
bt_router_get_node(const bt_router *router, uint32_t node, bt_router_node *out)
{
    const bt_node *self = &router->registry.nodes[node];

    *out = (bt_router_node){
        .state = self->state,
        .hello = &self->hello,
        .load = &self->load,
        .refusal = &self->refusal,
        .heard = self->heard,
        .requests = self->requests,
        .prompts = self->prompts,
        .prefill_tokens = self->prefill_tokens,
        .blocks = self->blocks,
        .prefill_rate = self->prefill_rate,
        .breaker = bt_breaker_look(&self->breaker, router->last_step),
    };
}

bool
bt_router_is_pair(const bt_router *router, uint32_t decode, uint32_t prefill)
{
    const bt_node *at = &router->registry.nodes[decode], *from = &router->registry.nodes[prefill];

    for (uint32_t i = 0; i < at->source_count && bt_node_decodes(at) && from->state == BT_NODE_READY; i++) {
        if (at->sources[i] == from->hello.epoch)
            return true;
    }
    return false;
}

const bt_router_limits *
bt_router_get_limits(const bt_router *router)
{
    return &router->limits;
}
