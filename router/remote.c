// Prompts that are read at one node and answered at another: who reads, and what follows when that does not come about.
#include "router/inside.h"
#include "router/place.h"

#include <string.h>

static void
begin_here(bt_router *router, bt_request *request, const bt_ticket *ticket, uint32_t tokens, bool degraded,
           bt_router_actions *out)
{
    bt_start *start = &bt_router_say(out, request->node, BT_MESSAGE_START)->start;

    *start = (bt_start){.request = bt_requests_attempt(&router->requests, request), .ticket = *ticket};
    bt_registry_count_prefill(&router->registry, request->node, request, tokens);
    router->stats.degraded += degraded && !request->degraded;
    request->degraded |= degraded;
}

static void
begin_there(bt_router *router, bt_time now, bt_request *request, const bt_ticket *ticket, const bt_prefill_place *place,
            bt_router_actions *out)
{
    const bt_node *there = &router->registry.nodes[place->node], *here = &router->registry.nodes[request->node];
    bt_await *await = &bt_router_say(out, request->node, BT_MESSAGE_AWAIT)->await;
    bt_prefill *job = &bt_router_say(out, place->node, BT_MESSAGE_PREFILL)->prefill;

    bt_registry_count_prefill(&router->registry, place->node, request, place->tokens);
    bt_registry_give_prefill(&router->registry, place->node, request, now);
    request->reads_at = place->node;
    *await = (bt_await){.request = bt_requests_attempt(&router->requests, request),
                        .ticket = *ticket,
                        .prefill_epoch = there->hello.epoch};
    memcpy(await->prefill, there->hello.name, sizeof await->prefill);
    *job = (bt_prefill){
        .job = bt_router_job(router, request, now), .ticket = *ticket, .cached_tokens = request->cached_tokens};
    memcpy(job->decode, here->hello.name, sizeof job->decode);
    router->stats.remote++;
}

// Its decode node has lost the way to prefill nodes: is there none from any other either?
static bool
may_degrade(bt_router *router, bt_time now, bt_request *request)
{
    bt_placing placing = bt_known_look(router, now, request);

    return bt_place_decode(&placing, request).unpaired && bt_router_may_degrade(router, now);
}

void
bt_remote_begin(bt_router *router, bt_time now, bt_request *request, const bt_ticket *ticket, bt_router_actions *out)
{
    uint32_t tokens = request->prompt_count - request->cached_tokens;
    bt_placing placing = bt_known_look(router, now, request);
    bt_prefill_place place = bt_place_prefill(&placing, request, request->node, tokens);

    if (tokens == 0) // a prompt that is all there, to be gone on from
        place = (bt_prefill_place){.node = BT_REQUEST_NONE};
    if (place.wait || (place.unpaired && !may_degrade(router, now, request))) {
        bt_router_abort(router, request, out);
        bt_router_requeue(router, request);
    } else if (place.node == BT_REQUEST_NONE) {
        begin_here(router, request, ticket, tokens, place.degraded, out);
    } else {
        begin_there(router, now, request, ticket, &place, out);
    }
    if (request->node != BT_REQUEST_NONE)
        bt_known_placed(router, request);
}

void
bt_remote_abort(bt_router *router, bt_request *request, bt_router_actions *out)
{
    // Without room for it the decode node's TAKEN or the lease ends it there.
    if (request->prefill != BT_REQUEST_NONE && out->count < BT_ROUTER_ACTIONS_MAX &&
        router->registry.nodes[request->prefill].state == BT_NODE_READY)
        bt_router_say(out, request->prefill, BT_MESSAGE_ABORT)->abort.request =
            bt_requests_attempt(&router->requests, request);
}

static void
count_failure(bt_router *router, bt_request *request)
{
    request->prefill_failed = request->prefill;
    request->prefill_failures++;
    router->stats.remote_failed++;
}

// Where the decode node no longer counts the other among its sources, it is their link that failed and not the node.
void
bt_remote_failed(bt_router *router, bt_time now, bt_request *request)
{
    const bt_node *decode = &router->registry.nodes[request->node];

    for (uint32_t n = 0; n < decode->source_count; n++) {
        if (bt_registry_source(&router->registry, decode, n) == request->prefill)
            bt_retry_note(router, now, request, request->prefill, false);
    }
    count_failure(router, request);
}

void
bt_remote_done(bt_router *router, bt_request *request)
{
    bt_registry_uncount_prefill(&router->registry, request);
    bt_registry_leave_prefill(&router->registry, request);
}

void
bt_remote_read(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry)
{
    uint32_t cached = entry->cached_tokens < request->prompt_count ? entry->cached_tokens : request->prompt_count;

    bt_registry_measure_prefill(&router->registry, request->prefill, request->prompt_count - cached,
                                entry->phases.prefill, now);
    bt_registry_uncount_prefill(&router->registry, request);
    if (request->state == BT_REQUEST_PREFILLING)
        bt_request_move(request, BT_REQUEST_FETCHING);
}

// What it had not read goes elsewhere. What was read may still be fetched: the decode node knows.
void
bt_remote_leave_node(bt_router *router, uint32_t node, bt_router_actions *out)
{
    for (uint32_t i = 0; i < router->requests.capacity; i++) {
        bt_request *request = &router->requests.slots[i];

        if (!bt_request_at_node(request) || request->prefill != node)
            continue;
        if (request->state == BT_REQUEST_FETCHING || !bt_router_room(out)) {
            bt_registry_uncount_prefill(&router->registry, request);
            continue;
        }
        count_failure(router, request);
        bt_registry_leave_prefill(&router->registry, request);
        bt_router_abort(router, request, out);
        bt_router_move_on(router, request, BT_MOVE_SOURCE);
    }
}
