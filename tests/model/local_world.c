#include "tests/model/local_world.h"
#include "tests/support/must.h"

#include <stdlib.h>
#include <string.h>

#define END_ID 0

static uint32_t
draw(world *w, uint32_t least, uint32_t most)
{
    return least + (uint32_t)bt_rng_below(&w->rng, most - least + 1);
}

static bool
one_in(world *w, uint32_t n)
{
    return n > 0 && bt_rng_below(&w->rng, n) == 0;
}

static world_client *
client_of(world *w, uint64_t tag)
{
    MUST(tag < w->client_count);
    MUST(w->clients[tag].alive);
    return &w->clients[tag];
}

static void
wish(world *w, world_client *client, bt_finish reason)
{
    client->wished = true;
    client->wish = reason;
    bt_router_edge_cancel(w->router, w->now, client->id, reason);
}

static void
check_token(const world_client *client, const bt_token_result *result)
{
    bt_token_result expected =
        fake_engine_draw(client->ids, client->prompt + client->answer, client->seed, WORLD_VOCAB);

    MUST(result->id == expected.id);
    MUST(result->logprob == expected.logprob);
}

static void
check_score(const world_client *client, const bt_token_result *result)
{
    bt_token_result expected = fake_engine_score(client->ids, client->scored_next, client->ids[client->scored_next]);

    MUST(result->id == expected.id);
    MUST(result->logprob == expected.logprob);
}

static void
on_tokens(void *arg, const bt_router_tokens *tokens)
{
    world *w = arg;
    world_client *client = client_of(w, tokens->tag);

    MUST(!client->wished);
    MUST(tokens->count == 0 || tokens->first == client->answer);
    MUST(tokens->scored_count == 0 || tokens->scored_first == client->scored_next);
    for (uint32_t i = 0; i < tokens->scored_count; i++) {
        MUST(client->scores && client->scored_next < client->prompt);
        check_score(client, &tokens->scored[i]);
        client->scored_next++;
    }
    for (uint32_t i = 0; i < tokens->count; i++) {
        MUST(client->answer < client->max_tokens);
        check_token(client, &tokens->results[i]);
        client->ids[client->prompt + client->answer++] = tokens->results[i].id;
    }
    w->tokens += tokens->count;
    if (client->stop_at > 0 && client->answer >= client->stop_at)
        wish(w, client, BT_FINISH_STOP); // a stop string, found within on_tokens
}

static void
check_end(const world *w, const world_client *client, const bt_router_finished *finished)
{
    int32_t last = client->ids[client->prompt + client->answer - 1];
    bool ended = client->answer > 0 && client->has_end && last == END_ID;

    if (client->wished) {
        MUST(finished->finish == client->wish);
        return;
    }
    MUST(finished->finish != BT_FINISH_CANCELLED);
    if (finished->finish == BT_FINISH_STOP)
        MUST(ended);
    if (finished->finish == BT_FINISH_LENGTH)
        MUST(!ended && client->answer == client->max_tokens);
    if (finished->finish == BT_FINISH_ERROR)
        MUST((finished->err == BT_ERR_DEVICE && w->failing) ||
             (finished->err == BT_ERR_TIMEOUT && client->deadline <= w->now));
    else if (client->scores)
        MUST(client->scored_next == client->prompt);
}

static void
on_finished(void *arg, const bt_router_finished *finished)
{
    world *w = arg;
    world_client *client = client_of(w, finished->tag);

    MUST(bt_request_id_equal(client->id, finished->request));
    check_end(w, client, finished);
    MUST(finished->usage.prompt_tokens == client->prompt);
    MUST(finished->usage.completion_tokens == client->answer);
    MUST(finished->usage.cached_tokens < client->prompt + 1);
    MUST(finished->total >= finished->ttft);
    if (finished->ttft > 0 && finished->moves == 0)
        MUST(finished->ttft == finished->phases.route + finished->phases.queue_decode + finished->phases.queue_prefill +
                                   finished->phases.prefill + finished->phases.first_token);
    w->stopped += finished->finish == BT_FINISH_STOP;
    w->full += finished->finish == BT_FINISH_LENGTH;
    w->cancelled += finished->finish == BT_FINISH_CANCELLED;
    w->failed += finished->finish == BT_FINISH_ERROR;
    w->moves += finished->moves;
    w->cached += finished->usage.cached_tokens;
    client->alive = false;
    w->alive--;
}

// Prompts of a few families begin alike, some to their last token.
static void
draw_prompt(world *w, world_client *client)
{
    uint32_t family = draw(w, 0, 3), shared = draw(w, 0, client->prompt);

    for (uint32_t i = 0; i < client->prompt; i++)
        client->ids[i] = i < shared ? (int32_t)(bt_mix64(family * 1000u + i) % WORLD_VOCAB)
                                    : (int32_t)bt_rng_below(&w->rng, WORLD_VOCAB);
}

static void
draw_client(world *w, world_client *client)
{
    *client = (world_client){.scored_next = 1, .cancel_at = BT_TIME_NEVER, .deadline = BT_TIME_NEVER};
    client->prompt = draw(w, 1, one_in(w, 4) ? WORLD_CONTEXT - 1 : 24);
    client->max_tokens = draw(w, 1, one_in(w, 4) ? WORLD_CONTEXT - client->prompt : 12);
    if (client->prompt + client->max_tokens > WORLD_CONTEXT)
        client->max_tokens = WORLD_CONTEXT - client->prompt;
    client->scores = one_in(w, 8);
    if (client->scores && one_in(w, 2))
        client->max_tokens = 0;
    client->has_end = !one_in(w, 4);
    client->seed = bt_rng_next(&w->rng);
    if (one_in(w, 6))
        client->stop_at = draw(w, 1, 6);
    if (one_in(w, 3))
        client->cancel_at = w->now + draw(w, 0, 60) * BT_MILLISECOND;
    if (one_in(w, 10))
        client->deadline = w->now + draw(w, 1, 200) * BT_MILLISECOND;
    draw_prompt(w, client);
}

static void
arrive(world *w)
{
    static const int32_t end_id = END_ID;
    uint64_t tag = w->client_count++;
    world_client *client = &w->clients[tag];
    bt_router_answer answer;
    bt_sampling sampling = {.repetition_penalty = 1, .logprobs = true};
    bt_router_arrival arrival;
    bt_err err;

    draw_client(w, client);
    sampling.seed = client->seed;
    arrival = (bt_router_arrival){.tag = tag,
                                  .ids = client->ids,
                                  .count = client->prompt,
                                  .sampling = &sampling,
                                  .max_tokens = client->max_tokens,
                                  .prompt_logprobs = client->scores,
                                  .end_ids = &end_id,
                                  .end_count = client->has_end,
                                  .session = draw(w, 0, 3),
                                  .deadline = client->deadline,
                                  .priority = (uint8_t)draw(w, 0, 2)};
    client->alive = true;
    w->alive++;
    err = bt_router_edge_submit(w->router, w->now, &arrival, &answer);
    if (err == BT_OK) {
        client->id = answer.request;
        w->accepted++;
        return;
    }
    client->alive = false;
    w->alive--;
    w->refused++;
    MUST(err == BT_ERR_BUSY || err == BT_ERR_TOO_LONG || err == BT_ERR_PEER);
    if (err == BT_ERR_TOO_LONG)
        MUST(answer.tokens == client->prompt + client->max_tokens && answer.tokens > answer.tokens_max);
    else
        MUST(answer.retry_after >= BT_SECOND);
}

static uint64_t
hash_batch(const bt_batch *batch)
{
    uint64_t hash = batch->count;

    for (uint32_t i = 0; i < batch->count; i++) {
        const bt_batch_item *item = &batch->items[i];

        hash = bt_mix64(hash ^ item->position) + item->count + item->want;
        for (uint32_t j = 0; j < item->count; j++)
            hash = bt_mix64(hash ^ (uint64_t)item->ids[j]);
    }
    return hash;
}

static void
feed_node(world *w, const bt_decode_event *event)
{
    bt_link *link = cut_link_end(w->link, 1);

    bt_decode_core_step(w->node, w->now, event, w->actions);
    for (uint32_t i = 0; i < w->actions->send_count; i++)
        MUST(bt_link_send(link, w->actions->send[i].peer, &w->actions->send[i].message) == BT_OK);
    if (w->actions->step == NULL)
        return;
    MUST(w->running == NULL);
    w->running = w->actions->step;
    w->running_hash = hash_batch(w->running);
    w->step_ends = w->now + draw(w, 100, 4000) * BT_MICROSECOND;
}

// What a failed step leaves behind in all blocks it had to do with.
static void
spoil_blocks(world *w, const bt_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const bt_batch_item *item = &batch->items[i];

        for (uint32_t p = 0; p < item->position + item->count; p++)
            w->engine.cells[(size_t)item->blocks[p / w->limits.block_tokens] * w->limits.block_tokens +
                            p % w->limits.block_tokens] = bt_rng_next(&w->rng);
    }
}

static void
end_step(world *w)
{
    const bt_batch *batch = w->running;
    bt_decode_event event = {.kind = BT_DECODE_STEPPED};

    // Whatever happened meanwhile, the batch is as it was.
    MUST(hash_batch(batch) == w->running_hash);
    event.err = one_in(w, w->faults.device) ? BT_ERR_DEVICE : BT_OK;
    fake_engine_step(&w->engine, batch->items, batch->count, &batch->result);
    if (event.err != BT_OK)
        spoil_blocks(w, batch);
    w->running = NULL;
    w->step_ends = BT_TIME_NEVER;
    feed_node(w, &event);
}

static void
turn_node(world *w)
{
    bt_link_event event;

    for (uint32_t n = draw(w, 1, 4); n > 0 && bt_link_receive(cut_link_end(w->link, 1), &event); n--) {
        bt_decode_event_kind kind = event.kind == BT_LINK_UP     ? BT_DECODE_LINK_UP
                                    : event.kind == BT_LINK_DOWN ? BT_DECODE_LINK_DOWN
                                                                 : BT_DECODE_MESSAGE;
        feed_node(w, &(bt_decode_event){.kind = kind, .message = event.message});
    }
    if (w->running != NULL && w->step_ends <= w->now)
        end_step(w);
    if (bt_decode_core_next_deadline(w->node) <= w->now)
        feed_node(w, &(bt_decode_event){.kind = BT_DECODE_TICK});
}

static void
cancel_due(world *w)
{
    for (uint32_t i = 0; i < w->client_count; i++) {
        world_client *client = &w->clients[i];

        if (!client->alive || client->cancel_at > w->now)
            continue;
        wish(w, client, BT_FINISH_CANCELLED);
        MUST(!client->alive); // at once, whatever the node does
    }
}

static void
draw_faults(world *w)
{
    if (one_in(w, w->faults.cut))
        cut_link_cut(w->link);
    if (one_in(w, w->faults.lose))
        cut_link_lose_next(w->link, 1, BT_MESSAGE_TOKENS);
    if (one_in(w, w->faults.refuse))
        cut_link_refuse(w->link, 0, BT_MESSAGE_RESERVE);
    else if (one_in(w, 3))
        cut_link_refuse(w->link, 0, BT_MESSAGE_NONE);
}

static void
check(world *w)
{
    bt_router_stats router;
    bt_why why = {0};

    if (!bt_decode_core_sound(w->node, &why))
        ck_abort_msg("%s", why.text);
    bt_router_edge_stats(w->router, &router);
    MUST(router.leak == 0);
    MUST(router.queued + router.running == w->alive);
    if (!w->lossy)
        MUST(router.bad_messages == 0);
}

static void
check_idle(world *w)
{
    bt_decode_stats node;
    bt_router_stats router;

    bt_decode_core_get_stats(w->node, &node);
    bt_router_edge_stats(w->router, &router);
    MUST(node.waiting + node.granted + node.prefilling + node.decoding + node.ending == 0);
    MUST(node.blocks_free + node.blocks_cached == node.blocks);
    MUST(node.blocks_promised == 0);
    MUST(node.leak == 0);
    MUST(router.queued + router.running == 0);
}

static bt_time
earliest(bt_time a, bt_time b)
{
    return a < b ? a : b;
}

static bt_time
next_time(const world *w, uint32_t clients)
{
    bt_time next = earliest(w->router_wants, bt_decode_core_next_deadline(w->node));

    next = earliest(next, w->running != NULL ? w->step_ends : BT_TIME_NEVER);
    next = earliest(next, w->client_count < clients ? w->next_arrival : BT_TIME_NEVER);
    for (uint32_t i = 0; i < w->client_count; i++) {
        if (w->clients[i].alive)
            next = earliest(next, w->clients[i].cancel_at);
    }
    if (bt_link_pending(cut_link_end(w->link, 0)) || bt_link_pending(cut_link_end(w->link, 1)))
        next = w->now;
    return next > w->now ? next : w->now;
}

static void
turn(world *w, uint32_t clients)
{
    if (w->client_count < clients && w->next_arrival <= w->now) {
        arrive(w);
        w->next_arrival = w->now + draw(w, 0, 2) * w->arrival_gap;
    }
    if (one_in(w, 2)) {
        w->router_wants = bt_router_edge_turn(w->router, w->now);
        turn_node(w);
    } else {
        turn_node(w);
        w->router_wants = bt_router_edge_turn(w->router, w->now);
    }
    cancel_due(w);
    draw_faults(w);
    check(w);
    w->events++;
}

static bool
busy(const world *w)
{
    return w->alive > 0 || w->running != NULL || bt_link_pending(cut_link_end(w->link, 0)) ||
           bt_link_pending(cut_link_end(w->link, 1));
}

void
world_run(world *w, uint32_t clients)
{
    bt_time limit = w->now + 600 * BT_SECOND;

    MUST(clients <= WORLD_CLIENTS_MAX);
    while (w->client_count < clients || busy(w)) {
        if (w->client_count == clients)
            w->faults.cut = w->faults.lose = w->faults.refuse = 0; // once faults stop, all ends
        w->now = next_time(w, clients);
        turn(w, clients);
        if (w->now >= limit || w->events >= 10000000)
            ck_abort_msg("%u alive, nothing moves", w->alive);
    }
    check_idle(w);
}

static void
draw_limits(world *w)
{
    uint32_t sequences = draw(w, 1, 8);

    w->limits = (bt_decode_limits){
        .name = "node",
        .epoch = 7,
        .weights = 5,
        .sequences = sequences,
        .queue_max = draw(w, 0, 4),
        .chunk_tokens = sequences + draw(w, 0, 40),
        .prefill_tokens = draw(w, 1, 24),
        .logit_rows = sequences + draw(w, 0, 4),
        .block_tokens = 4,
        .blocks = draw(w, 8, one_in(w, 2) ? 30 : 200),
        .context = WORLD_CONTEXT,
        .vocab = WORLD_VOCAB,
    };
    w->engine = (fake_engine){.blocks = w->limits.blocks,
                              .block_tokens = w->limits.block_tokens,
                              .vocab = WORLD_VOCAB,
                              .sequences = sequences,
                              .chunk_tokens = w->limits.chunk_tokens,
                              .logit_rows = w->limits.logit_rows};
    fake_engine_init(&w->engine);
}

// A seed first draws which faults there are at all.
static void
draw_fault_kinds(world *w)
{
    w->faults.device = one_in(w, 3) ? draw(w, 20, 200) : 0;
    w->faults.cut = one_in(w, 3) ? draw(w, 50, 1000) : 0;
    w->faults.lose = one_in(w, 3) ? draw(w, 20, 400) : 0;
    w->faults.refuse = one_in(w, 3) ? draw(w, 5, 50) : 0;
    w->lossy = w->faults.cut > 0 || w->faults.lose > 0;
    w->failing = w->faults.device > 0;
}

void
world_open(world *w, uint64_t seed, bool faults)
{
    bt_router_limits limits;
    bt_why why;

    *w = (world){.rng.state = seed, .now = BT_SECOND, .next_arrival = BT_SECOND, .step_ends = BT_TIME_NEVER};
    draw_limits(w);
    if (faults)
        draw_fault_kinds(w);
    w->arrival_gap = draw(w, 1, 20) * BT_MILLISECOND;
    w->link = cut_link_open();
    w->actions = malloc(sizeof *w->actions);
    limits = (bt_router_limits){.requests_max = draw(w, 1, 32),
                                .queue_max = draw(w, 1, 32),
                                .context = WORLD_CONTEXT,
                                .vocab = WORLD_VOCAB,
                                .epoch = 3,
                                .seed = seed};
    ck_assert_msg(bt_decode_core_open(&w->node, &w->limits, &why) == BT_OK, "%s", why.text);
    MUST(bt_router_edge_open(&w->router, &limits, cut_link_end(w->link, 0),
                             &(bt_router_callbacks){.on_tokens = on_tokens, .on_finished = on_finished, .arg = w},
                             &why) == BT_OK);
    for (int i = 0; i < 20; i++) { // the two meet before the first client comes
        w->router_wants = bt_router_edge_turn(w->router, w->now);
        turn_node(w);
    }
    MUST(bt_router_edge_ready(w->router));
}

void
world_close(world *w)
{
    bt_router_edge_close(w->router);
    bt_decode_core_close(w->node);
    cut_link_close(w->link);
    fake_engine_fini(&w->engine);
    free(w->actions);
}
