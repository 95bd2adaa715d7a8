// What nodes say, and what becomes of it.
#include "router/inside.h"

// A node started anew, or another one took its place: what it knew of our requests is gone.
static void
hear_hello(bt_router *router, bt_time now, uint32_t node, const bt_hello *hello, bt_router_actions *out)
{
    bt_node *self = &router->registry.nodes[node];
    bt_router_refusal refusal = {0};

    if (hello->role == BT_NODE_ROUTER || hello->block_tokens == 0 || hello->sequences == 0) {
        router->stats.bad_messages++;
        return;
    }
    if (router->limits.expected != NULL)
        refusal = bt_router_compare(&router->limits.expected[node], hello);
    if (self->state == BT_NODE_READY && (self->hello.epoch != hello->epoch || refusal.field != NULL))
        bt_router_leave_node(router, node, out);
    if (refusal.field != NULL) {
        bt_registry_lost(&router->registry, node);
        bt_registry_met(&router->registry, node, now);
        bt_registry_refuse(&router->registry, node, hello, &refusal);
        return;
    }
    bt_registry_hello(&router->registry, node, hello, now);
    bt_known_hello(router, node);
}

// The request that a message speaks of, if this node has it and the message is not of an earlier attempt.
static bt_request *
find_at_node(bt_router *router, uint32_t node, bt_request_id id)
{
    bt_request *request = bt_requests_find(&router->requests, id);

    if (request != NULL && bt_request_at_node(request) && request->attempt == id.attempt &&
        (request->node == node || request->prefill == node))
        return request;
    router->stats.late_messages++; // where it still runs, its ABORT or a HELLO is on the way
    return NULL;
}

// What the client hears of it is said by whoever read the prompt that its first token came from.
static void
note_found(bt_request *request, uint32_t cached_tokens)
{
    if (request->first_token == 0)
        request->found_tokens = cached_tokens < request->prompt_count ? cached_tokens : request->prompt_count;
}

// It has no room, or drains: no failure of its, and no fault of the request's.
static bool
is_refusal(bt_err err)
{
    return err == BT_ERR_BUSY || err == BT_ERR_CLOSED;
}

static void
hear_ticket(bt_router *router, bt_time now, uint32_t node, const bt_ticket_reply *reply, bt_router_actions *out)
{
    bt_request *request = find_at_node(router, node, reply->request);

    if (request == NULL)
        return;
    if (request->state != BT_REQUEST_RESERVING || request->node != node) {
        router->stats.bad_messages++;
        return;
    }
    if (reply->err == BT_OK) {
        request->cached_tokens =
            reply->cached_tokens < request->prompt_count ? reply->cached_tokens : request->prompt_count;
        request->ticketed = now;
        note_found(request, request->cached_tokens);
        bt_registry_ticketed(&router->registry, request);
        bt_request_move(request, BT_REQUEST_PREFILLING);
        bt_remote_begin(router, now, request, &reply->ticket, out);
    } else if (is_refusal(reply->err)) {
        bt_registry_busy(&router->registry, node, now + 20 * BT_MILLISECOND);
        bt_router_requeue(router, request);
    } else if (bt_retry_is_fault(reply->err)) {
        bt_retry_note(router, now, request, node, false);
        bt_retry(router, now, request, node, reply->err, out);
    } else {
        bt_router_finish(router, now, request, BT_FINISH_ERROR, reply->err, out);
    }
}

// The part of [first, first + count) from `next` on: what came before is a repeat. False when something between is missing.
static bool
cut_repeats(uint32_t next, uint32_t *first, uint32_t *count, const bt_token_result **results)
{
    uint32_t repeated;

    if (*count == 0)
        return true;
    if (*first > next)
        return false;
    repeated = next - *first < *count ? next - *first : *count;
    *first += repeated;
    *count -= repeated;
    *results += repeated;
    return true;
}

static bool
fits_request(const bt_request *request, const bt_tokens_entry *entry)
{
    return entry->count <= request->max_tokens - request->answer_count &&
           entry->scored_count <= request->prompt_count - request->scored_next;
}

static void
give_tokens(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry, bt_router_actions *out)
{
    bt_router_action *action;
    bt_time ttft = 0;

    if (entry->count + entry->scored_count == 0)
        return;
    if (entry->count > 0 && request->first_token == 0) {
        bt_phases_note(request, now, &entry->phases);
        ttft = now - request->arrived;
    }
    for (uint32_t i = 0; i < entry->count; i++)
        request->ids[request->prompt_count + request->answer_count + i] = entry->results[i].id;
    request->answer_count += entry->count;
    request->scored_next += entry->scored_count;
    router->stats.completion_tokens += entry->count;
    action = bt_router_act(out, BT_ROUTER_TOKENS);
    action->request = bt_requests_id(&router->requests, request);
    action->tag = request->tag;
    action->tokens.first = entry->first;
    action->tokens.count = entry->count;
    action->tokens.results = entry->results;
    action->tokens.scored_first = entry->scored_first;
    action->tokens.scored_count = entry->scored_count;
    action->tokens.scored = entry->scored;
    action->tokens.degraded = request->degraded;
    action->tokens.ttft = ttft;
    action->tokens.phases = request->phases;
}

// A node that ended a request for its own reasons (its lease ran out, it drains) has not ended it for the client.
static bool
is_nodes_own_end(const bt_tokens_entry *entry)
{
    return entry->finish == BT_FINISH_CANCELLED || (entry->finish == BT_FINISH_ERROR && is_refusal(entry->err));
}

// The decode node's first news of an answer: the prompt is read, wherever that was.
static void
begin_answer(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry)
{
    bt_retry_note(router, now, request, request->node, true);
    if (request->prefill != BT_REQUEST_NONE)
        bt_retry_note(router, now, request, request->prefill, true);
    if (request->prefill != BT_REQUEST_NONE)
        bt_registry_measure_transfer(&router->registry, request->node, request->prompt_count - request->cached_tokens,
                                     entry->phases.transfer);
    else if (request->answer_count == 0)
        bt_registry_measure_prefill(&router->registry, request->node, request->prefill_tokens, entry->phases.prefill,
                                    now);
    if (request->reads_at != BT_REQUEST_NONE)
        note_found(request, entry->cached_tokens);
    request->joined = now;
    request->answering = entry->phases;
    bt_remote_done(router, request);
    bt_request_move(request, BT_REQUEST_DECODING);
}

// Is the answer complete as it stands?
static bt_finish
finish_of(const bt_request *request)
{
    int32_t last;

    if (request->answer_count == 0)
        return BT_FINISH_NONE;
    last = request->ids[request->prompt_count + request->answer_count - 1];
    for (uint32_t i = 0; i < request->end_count; i++) {
        if (request->end_ids[i] == last)
            return BT_FINISH_STOP;
    }
    return request->answer_count == request->max_tokens ? BT_FINISH_LENGTH : BT_FINISH_NONE;
}

// The prompt is not read there. Where that says that the two nodes have lost each other it is as if one of them were lost; an error is
// an error.
static void
fail_prefill(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry, bt_router_actions *out)
{
    uint32_t node = request->prefill;
    bool refused = entry->finish == BT_FINISH_ERROR && is_refusal(entry->err);

    if (refused)
        bt_registry_busy(&router->registry, node, now + 20 * BT_MILLISECOND);
    else
        bt_remote_failed(router, now, request);
    bt_registry_leave_prefill(&router->registry, request); // it is over there
    bt_router_abort(router, request, out);
    if (refused)
        bt_router_requeue(router, request);
    else if (entry->err != BT_ERR_PEER && bt_retry_is_fault(entry->err))
        bt_retry(router, now, request, node, entry->err, out);
    else
        bt_router_move_on(router, request, BT_MOVE_SOURCE);
}

// News of a prefill node: the first token, which the decode node will say again, and that the prompt is read; or that it is not.
static void
hear_prefill(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry, bt_router_actions *out)
{
    bool read = entry->finish == BT_FINISH_LENGTH;

    if (read) {
        request->read = now;
        request->reading = entry->phases;
        note_found(request, entry->cached_tokens);
    }
    give_tokens(router, now, request, entry, out);
    if (finish_of(request) != BT_FINISH_NONE) { // one token was all: nothing to be fetched, nothing to be replayed
        bt_router_abort(router, request, out);
        bt_router_finish(router, now, request, finish_of(request), BT_OK, out);
        return;
    }
    if (read)
        bt_remote_read(router, now, request, entry);
    else if (entry->finish != BT_FINISH_NONE)
        fail_prefill(router, now, request, entry, out);
}

// The decode node's end of a request that is not the answer's: the blocks did not come, it stopped for its own reasons, or it failed.
static void
fail_decode(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry, bt_router_actions *out)
{
    bool unfetched =
        entry->finish == BT_FINISH_ERROR && entry->err == BT_ERR_PEER && request->prefill != BT_REQUEST_NONE;

    bt_remote_abort(router, request, out);
    if (unfetched) {
        bt_remote_failed(router, now, request);
        bt_router_move_on(router, request, BT_MOVE_SOURCE);
    } else if (is_nodes_own_end(entry)) {
        bt_router_move_on(router, request, BT_MOVE_ENDED);
    } else if (bt_retry_is_fault(entry->err)) {
        bt_retry_note(router, now, request, request->node, false);
        bt_retry(router, now, request, request->node, entry->err, out);
    } else {
        bt_router_finish(router, now, request, BT_FINISH_ERROR, entry->err, out);
    }
}

static bool
is_end_of_answer(const bt_tokens_entry *entry)
{
    return entry->finish == BT_FINISH_STOP || entry->finish == BT_FINISH_LENGTH;
}

// Cuts what was heard before from the entry. False when it cannot follow what was.
static bool
follows(const bt_request *request, bt_tokens_entry *entry)
{
    if (!cut_repeats(request->answer_count, &entry->first, &entry->count, &entry->results) ||
        !cut_repeats(request->scored_next, &entry->scored_first, &entry->scored_count, &entry->scored))
        return false;
    if (request->state == BT_REQUEST_RESERVING && (entry->count + entry->scored_count > 0 || is_end_of_answer(entry)))
        return false;
    return fits_request(request, entry);
}

static void
hear_entry(bt_router *router, bt_time now, uint32_t node, const bt_tokens_entry *from, bt_router_actions *out)
{
    bt_tokens_entry entry = *from;
    bt_request *request;

    if (from->finish == BT_FINISH_CANCELLED && bt_requests_find(&router->requests, from->request) == NULL)
        return; // acknowledges our ABORT
    request = find_at_node(router, node, from->request);
    if (request == NULL)
        return;
    if (!follows(request, &entry)) {
        router->stats.bad_messages++;
        bt_router_abort(router, request, out);
        bt_retry_note(router, now, request, node, false);
        bt_retry(router, now, request, node, BT_ERR_PEER, out);
        return;
    }
    if (request->prefill == node) {
        hear_prefill(router, now, request, &entry, out);
        return;
    }
    if ((from->count > 0 || is_end_of_answer(from)) && request->state != BT_REQUEST_DECODING)
        begin_answer(router, now, request, &entry);
    give_tokens(router, now, request, &entry, out);
    if (entry.finish == BT_FINISH_NONE)
        return;
    if (is_end_of_answer(&entry))
        bt_router_finish(router, now, request, entry.finish, entry.err, out);
    else
        fail_decode(router, now, request, &entry, out);
}

// Something was lost, perhaps an end. What the node has of ours begins anew; the answers so far are kept.
static void
hear_gap(bt_router *router, bt_time now, uint32_t node, bt_router_actions *out)
{
    router->stats.bad_messages++;
    bt_router_greet_again(router, now, node, out);
}

static void
hear_tokens(bt_router *router, bt_time now, uint32_t node, const bt_tokens *tokens, bt_router_actions *out)
{
    bt_node *self = &router->registry.nodes[node];

    if (tokens->number <= self->tokens_number) {
        router->stats.bad_messages++; // a repeat of a whole message
        return;
    }
    if (tokens->number > self->tokens_number + 1) {
        hear_gap(router, now, node, out);
        return;
    }
    self->tokens_number = tokens->number;
    for (uint32_t i = 0; i < tokens->entry_count; i++) {
        hear_entry(router, now, node, &tokens->entries[i], out);
        if (tokens->entries[i].finish != BT_FINISH_NONE && bt_node_decodes(self))
            bt_registry_busy(&router->registry, node, 0); // room was given back
    }
}

static void
hear_heartbeat(bt_router *router, bt_time now, uint32_t node, const bt_heartbeat *heartbeat, bt_router_actions *out)
{
    bt_node *self = &router->registry.nodes[node];

    bt_registry_heartbeat(&router->registry, node, heartbeat);
    if (heartbeat->tokens_number > self->tokens_number)
        hear_gap(router, now, node, out);
}

void
bt_router_hear(bt_router *router, bt_time now, uint32_t node, const bt_message *message, bt_router_actions *out)
{
    bt_node *self = &router->registry.nodes[node];

    if (self->state == BT_NODE_DOWN || bt_message_check(message) != BT_OK) {
        router->stats.bad_messages++;
        return;
    }
    self->heard = now;
    if ((self->state == BT_NODE_MET || self->state == BT_NODE_REFUSED) && message->kind != BT_MESSAGE_HELLO) {
        router->stats.late_messages++; // from before we gave it up
        return;
    }
    switch (message->kind) {
    case BT_MESSAGE_HELLO:
        hear_hello(router, now, node, &message->hello, out);
        break;
    case BT_MESSAGE_HEARTBEAT:
        hear_heartbeat(router, now, node, &message->heartbeat, out);
        break;
    case BT_MESSAGE_TICKET:
        hear_ticket(router, now, node, &message->ticket, out);
        break;
    case BT_MESSAGE_TOKENS:
        hear_tokens(router, now, node, &message->tokens, out);
        break;
    default:
        router->stats.bad_messages++;
    }
}
