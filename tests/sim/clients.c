// Clients: what they ask, what they hear, and how they leave. Each knows the one answer that it may get.
#include "tests/sim/inside.h"
#include "router/inside.h"

// --- what they hear ----------------------------------------------------------------------------------------------------------

static void
check_token(world *w, world_client *client, const bt_token_result *result)
{
    uint64_t prompt_weights = world_engine_weights(w, w->prefill_limits.weights);
    uint64_t weights = world_engine_weights(w, w->decode_limits.weights);
    bt_token_result expected = fake_engine_draw_of(client->ids, client->prompt, client->prompt + client->answer,
                                                   prompt_weights, weights, client->seed, WORLD_VOCAB);

    client->odd |= result->id != expected.id || result->logprob != expected.logprob;
    MUST(w, w->options.differs || !client->odd); // the token is another than one engine's
}

static void
check_score(world *w, const world_client *client, const bt_token_result *result)
{
    int32_t id = client->ids[client->scored_next];
    bt_token_result expected = fake_engine_score(client->ids, client->scored_next, id);

    MUST(w, result->id == expected.id && result->logprob == expected.logprob);
}

static void
take_scores(world *w, world_client *client, const bt_router_action *action)
{
    MUST(w, action->tokens.scored_count == 0 || action->tokens.scored_first == client->scored_next);
    for (uint32_t i = 0; i < action->tokens.scored_count; i++) {
        MUST(w, client->scores && client->scored_next < client->prompt);
        check_score(w, client, &action->tokens.scored[i]);
        client->scored_next++;
    }
    w->totals.scored += action->tokens.scored_count;
}

// A slow client's edge holds a few tokens for it, then drops it.
static void
read_slowly(world *w, world_client *client, uint32_t count)
{
    if (client->read_gap == 0)
        return;
    while (client->unread > 0 && client->read_at <= w->now) {
        client->unread--;
        client->read_at += client->read_gap;
    }
    if (client->unread == 0)
        client->read_at = w->now + client->read_gap;
    client->unread += count;
    if (client->unread > 4)
        client->cancel_at = w->now;
}

void
world_hear_tokens(world *w, uint32_t router, const bt_router_action *action)
{
    world_client *client = &w->clients[action->tag];

    MUST(w, client->alive && !client->wished && client->router == router);
    MUST(w, action->tokens.count == 0 || action->tokens.first == client->answer);
    take_scores(w, client, action);
    for (uint32_t i = 0; i < action->tokens.count; i++) {
        MUST(w, client->answer < client->max_tokens);
        check_token(w, client, &action->tokens.results[i]);
        client->ids[client->prompt + client->answer++] = action->tokens.results[i].id;
    }
    world_say(w, "tokens", router, WORLD_MEMBERS, BT_MESSAGE_NONE, action->tag, action->tokens.first,
              action->tokens.count > 0 ? (uint64_t)action->tokens.results[0].id : 0);
    w->totals.tokens += action->tokens.count;
    read_slowly(w, client, action->tokens.count);
    if (client->stop_at > 0 && client->answer >= client->stop_at) {
        client->wish = BT_FINISH_STOP;
        client->cancel_at = w->now;
    }
}

static void
check_end(const world *w, const world_client *client, const bt_router_action *action)
{
    bool ended =
        client->answer > 0 && client->has_end && client->ids[client->prompt + client->answer - 1] == WORLD_END_ID;
    bt_finish finish = action->finished.finish;

    MUST(w, !client->odd || action->finished.degraded);
    MUST(w, !action->finished.degraded || w->options.differs);
    if (client->wished) {
        MUST(w, finish == client->wish);
        return;
    }
    MUST(w, finish != BT_FINISH_CANCELLED && finish != BT_FINISH_NONE);
    if (finish == BT_FINISH_STOP)
        MUST(w, ended);
    if (finish == BT_FINISH_LENGTH)
        MUST(w, !ended && client->answer == client->max_tokens);
    if (finish == BT_FINISH_ERROR)
        MUST(w, (action->finished.err == BT_ERR_DEVICE && w->failing) ||
                    (action->finished.err == BT_ERR_TIMEOUT && client->deadline <= w->now));
    else if (client->scores)
        MUST(w, client->scored_next == client->prompt);
}

static bt_time
sum_of(const bt_phases *phases)
{
    return phases->route + phases->queue_prefill + phases->prefill + phases->transfer_wait + phases->transfer +
           phases->queue_decode + phases->first_token;
}

void
world_hear_end(world *w, uint32_t router, const bt_router_action *action)
{
    world_client *client = &w->clients[action->tag];
    bt_finish finish = action->finished.finish;

    MUST(w, client->alive && client->router == router && bt_request_id_equal(client->id, action->request));
    world_say(w, "ends", router, WORLD_MEMBERS, BT_MESSAGE_NONE, action->tag, (uint64_t)finish,
              (uint64_t)action->finished.err);
    check_end(w, client, action);
    MUST(w, action->finished.usage.prompt_tokens == client->prompt);
    MUST(w, action->finished.usage.completion_tokens == client->answer);
    MUST(w, action->finished.usage.cached_tokens <= client->prompt);
    MUST(w, action->finished.total >= action->finished.ttft);
    MUST(w, action->finished.ttft == 0 || action->finished.ttft == sum_of(&action->finished.phases));
    w->totals.stopped += finish == BT_FINISH_STOP;
    w->totals.full += finish == BT_FINISH_LENGTH;
    w->totals.cancelled += finish == BT_FINISH_CANCELLED;
    w->totals.failed += finish == BT_FINISH_ERROR;
    w->totals.degraded += action->finished.degraded;
    w->totals.moves += action->finished.moves;
    client->alive = false;
    w->alive--;
}

// A router that dies takes its clients' connections with it.
void
world_lose_clients(world *w, uint32_t router)
{
    for (uint32_t i = 0; i < w->client_count; i++) {
        if (!w->clients[i].alive || w->clients[i].router != router)
            continue;
        w->clients[i].alive = false;
        w->alive--;
        w->totals.lost_with_router++;
    }
}

// --- what they ask -----------------------------------------------------------------------------------------------------------

// A prompt that goes on from what another client has asked and heard.
static void
draw_next_turn(world *w, world_client *client, const world_client *before)
{
    uint32_t said = before->prompt + before->answer;

    for (uint32_t i = 0; i < client->prompt; i++)
        client->ids[i] = i < said ? before->ids[i] % WORLD_VOCAB : (int32_t)bt_rng_below(&w->rng, WORLD_VOCAB);
}

// Prompts of a few families begin alike, some to their last token.
static void
draw_prompt(world *w, world_client *client)
{
    uint32_t family = draw(w, 0, 3), shared = draw(w, 0, client->prompt);

    if (w->client_count > 1 && one_in(w, 4)) {
        draw_next_turn(w, client, &w->clients[draw(w, 0, w->client_count - 2)]);
        return;
    }
    for (uint32_t i = 0; i < client->prompt; i++)
        client->ids[i] = i < shared ? (int32_t)(bt_mix64(family * 1000u + i) % WORLD_VOCAB)
                                    : (int32_t)bt_rng_below(&w->rng, WORLD_VOCAB);
}

static void
draw_manners(world *w, world_client *client)
{
    if (strikes(w, WORLD_CLIENT_GONE)) {
        if (one_in(w, 2))
            client->cancel_at = w->now + draw(w, 0, 60) * BT_MILLISECOND;
        else
            client->gone_state = draw(w, BT_REQUEST_QUEUED, BT_REQUEST_DECODING);
    }
    if (strikes(w, WORLD_CLIENT_SLOW))
        client->read_gap = draw(w, 1, 50) * BT_MILLISECOND;
    if (one_in(w, 8))
        client->stop_at = draw(w, 1, 6);
    if (one_in(w, 10))
        client->deadline = w->now + draw(w, 1, 200) * BT_MILLISECOND;
}

static void
draw_client(world *w, world_client *client)
{
    *client = (world_client){.cancel_at = BT_TIME_NEVER,
                             .deadline = BT_TIME_NEVER,
                             .wish = BT_FINISH_CANCELLED,
                             .seed = bt_rng_next(&w->rng)};
    client->prompt = draw(w, 1, one_in(w, 2) ? WORLD_CONTEXT - 1 : 24);
    client->max_tokens = draw(w, 1, one_in(w, 8) ? 40 : 12);
    if (client->prompt + client->max_tokens > WORLD_CONTEXT)
        client->max_tokens = WORLD_CONTEXT - client->prompt;
    client->has_end = !one_in(w, 4);
    client->scores = !w->options.differs && one_in(w, 16);
    client->session = draw(w, 0, 3);
    draw_manners(w, client);
    draw_prompt(w, client);
    client->router = draw(w, 0, w->options.routers - 1);
}

static void
check_refusal(world *w, const world_client *client, uint64_t tag, bt_err expected)
{
    bt_err err = client->refusal;

    world_say(w, "refuses", client->router, WORLD_MEMBERS, BT_MESSAGE_NONE, tag, (uint64_t)err, 0);
    if (expected != BT_OK) {
        MUST(w, err == expected);
        w->totals.bad++;
        return;
    }
    MUST(w, err == BT_ERR_BUSY || err == BT_ERR_PEER || err == BT_ERR_CLOSED);
    w->totals.no_node += err == BT_ERR_PEER;
    w->totals.refused++;
}

// Hands the client's request to its router; `expected` is the refusal that it must meet.
static void
ask(world *w, uint32_t tag, bt_err expected)
{
    static const int32_t end_id = WORLD_END_ID;
    world_client *client = &w->clients[tag];
    bt_sampling sampling = {.repetition_penalty = 1, .logprobs = true, .seed = client->seed};
    bt_router_event event = {.kind = BT_ROUTER_ARRIVED};

    event.arrival = (bt_router_arrival){.tag = tag,
                                        .ids = client->ids,
                                        .count = client->prompt,
                                        .sampling = &sampling,
                                        .max_tokens = client->max_tokens + (expected == BT_ERR_TOO_LONG ? 4096 : 0),
                                        .prompt_logprobs = client->scores,
                                        .end_ids = &end_id,
                                        .end_count = client->has_end,
                                        .session = client->session,
                                        .deadline = client->deadline == BT_TIME_NEVER
                                                        ? BT_TIME_NEVER
                                                        : client->deadline + w->members[client->router].clock};
    client->scored_next = 1;
    client->arrived = w->now;
    client->alive = true;
    w->alive++;
    world_say(w, "arrives", client->router, WORLD_MEMBERS, BT_MESSAGE_NONE, tag, client->prompt, client->max_tokens);
    world_feed_router(w, client->router, &event);
    if (client->accepted) {
        MUST(w, expected == BT_OK);
        w->totals.accepted++;
        return;
    }
    client->alive = false;
    w->alive--;
    check_refusal(w, client, tag, expected);
}

void
world_arrive(world *w)
{
    uint32_t tag = w->client_count++;
    world_client *client = &w->clients[tag];
    bt_err expected = BT_OK;

    draw_client(w, client);
    if (strikes(w, WORLD_BAD_REQUEST)) {
        expected = one_in(w, 2) ? BT_ERR_TOO_LONG : BT_ERR_INVALID;
        if (expected == BT_ERR_INVALID)
            client->ids[draw(w, 0, client->prompt - 1)] = WORLD_VOCAB;
    }
    if (is_awake(w, client->router)) {
        ask(w, tag, expected);
        return;
    }
    w->totals.unreachable++;
    world_say(w, "finds nobody", client->router, WORLD_MEMBERS, BT_MESSAGE_NONE, tag, 0, 0);
}

uint32_t
world_ask(world *w, const world_client *as)
{
    uint32_t tag = w->client_count++;
    world_client *client = &w->clients[tag];

    MUST(w, tag < WORLD_CLIENTS_MAX);
    *client = *as;
    if (client->seed == 0)
        client->seed = bt_mix64(tag);
    if (client->cancel_at == 0)
        client->cancel_at = BT_TIME_NEVER;
    if (client->deadline == 0)
        client->deadline = BT_TIME_NEVER;
    if (client->wish == BT_FINISH_NONE)
        client->wish = BT_FINISH_CANCELLED;
    ask(w, tag, BT_OK);
    return tag;
}

// --- how they leave ----------------------------------------------------------------------------------------------------------

void
world_cancel(world *w, uint32_t tag)
{
    world_client *client = &w->clients[tag];
    bt_router_event event = {.kind = BT_ROUTER_CANCEL, .request = client->id, .reason = client->wish};

    client->wished = true;
    client->cancel_at = BT_TIME_NEVER;
    world_say(w, "goes", client->router, WORLD_MEMBERS, BT_MESSAGE_NONE, tag, (uint64_t)client->wish, 0);
    world_feed_router(w, client->router, &event);
    MUST(w, !client->alive); // at once, whatever nodes do
}

static bool
is_in_its_phase(world *w, const world_client *client)
{
    const bt_request *request = bt_requests_find(&w->members[client->router].router->requests, client->id);

    return client->gone_state != 0 && request != NULL && request->state == (bt_request_state)client->gone_state;
}

void
world_clients_turn(world *w)
{
    while (w->first_alive < w->client_count && !w->clients[w->first_alive].alive)
        w->first_alive++;
    for (uint32_t i = w->first_alive; i < w->client_count; i++) {
        world_client *client = &w->clients[i];

        if (!client->alive || !is_awake(w, client->router))
            continue;
        if (is_in_its_phase(w, client)) {
            client->gone_state = 0;
            client->cancel_at = w->now + (one_in(w, 2) ? 0 : draw(w, 0, 3000)) * BT_MICROSECOND;
        }
        if (client->cancel_at <= w->now)
            world_cancel(w, i);
    }
}

void
world_clients_next(const world *w, bt_time *next)
{
    for (uint32_t i = w->first_alive; i < w->client_count; i++) {
        const world_client *client = &w->clients[i];

        if (client->alive && client->cancel_at != BT_TIME_NEVER && w->members[client->router].up)
            earlier(next, later(client->cancel_at, w->members[client->router].frozen_until));
    }
}
