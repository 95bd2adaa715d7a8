// Where the time of a request went: the phases of its first token, which sum to it, and its attempts.
#include "router/inside.h"

// So much of what is left. Nodes measure on their own clocks, and may say anything.
static bt_time
take(bt_time *left, bt_time wanted)
{
    bt_time taken = wanted < 0 ? 0 : wanted < *left ? wanted : *left;

    *left -= taken;
    return taken;
}

void
bt_phases_note(bt_request *request, bt_time now, const bt_phases *durations)
{
    bt_phases *phases = &request->phases;
    bool fetched = request->state == BT_REQUEST_DECODING && request->reads_at != BT_REQUEST_NONE;
    bt_time left = now - request->arrived;

    request->first_token = now;
    *phases = (bt_phases){.route = take(&left, request->placed - request->arrived)};
    phases->queue_decode = take(&left, request->ticketed - request->placed);
    phases->queue_prefill = take(&left, durations->queue_prefill);
    phases->prefill = take(&left, durations->prefill);
    if (fetched)
        phases->transfer = take(&left, durations->transfer);
    *(fetched ? &phases->transfer_wait : &phases->first_token) = left;
}

void
bt_attempt_begin(bt_request *request, bt_time now)
{
    request->reads_at = BT_REQUEST_NONE;
    request->answer_before = request->answer_count;
    request->placed = now;
    request->ticketed = request->read = request->joined = 0;
    request->reading = request->answering = (bt_phases){0};
}

void
bt_attempt_end(bt_router *router, bt_request *request, bool moved, bt_move_cause cause, bt_finish finish, bt_err err)
{
    if (request->node == BT_REQUEST_NONE || router->attempt_count == 2 * router->requests.capacity)
        return;
    router->attempts[router->attempt_count++] = (bt_router_attempt){
        .request = bt_requests_id(&router->requests, request),
        .tag = request->tag,
        .name = request->name,
        .decode = request->node,
        .prefill = request->reads_at,
        .moved = moved,
        .cause = cause,
        .finish = finish,
        .err = err,
        .placed = request->placed,
        .ticketed = request->ticketed,
        .read = request->read,
        .joined = request->joined,
        .first_token = request->first_token >= request->placed ? request->first_token : 0,
        .ended = router->last_step,
        .reading = request->reading,
        .answering = request->answering,
        .phases = request->phases,
        .prompt_tokens = request->prompt_count,
        .cached_tokens = request->found_tokens,
        .answer_before = request->answer_before,
        .answer_tokens = request->answer_count,
    };
}

const bt_router_attempt *
bt_router_attempts(const bt_router *router, uint32_t *count)
{
    *count = router->attempt_count;
    return router->attempts;
}
