#include "tests/model/cluster_world.h"
#include "tests/support/must.h"

#include <stdlib.h>
#include <string.h>

#define END_ID 0
#define BLOCK 4u
#define FIRST_PREFILL 1u
#define FIRST_DECODE (1u + CLUSTER_NODES_MAX)

static uint32_t
draw(cluster *w, uint32_t least, uint32_t most)
{
    return least + (uint32_t)bt_rng_below(&w->rng, most - least + 1);
}

static bool
one_in(cluster *w, uint32_t n)
{
    return n > 0 && bt_rng_below(&w->rng, n) == 0;
}

static bool
is_prefill(uint32_t member)
{
    return member >= FIRST_PREFILL && member < FIRST_DECODE;
}

// --- what clients hear -------------------------------------------------------------------------------------------------------

static void
check_token(cluster *w, cluster_client *client, const bt_token_result *result)
{
    bt_token_result expected =
        fake_engine_draw_of(client->ids, client->prompt, client->prompt + client->answer, w->prefill_limits.weights,
                            w->decode_limits.weights, client->seed, CLUSTER_VOCAB);

    client->odd |= result->id != expected.id || result->logprob != expected.logprob;
    w->found |= client->odd && !w->differs;
    MUST(w->planted || w->differs || !client->odd);
}

static void
take_tokens(cluster *w, const bt_router_action *action)
{
    cluster_client *client = &w->clients[action->tag];

    MUST(client->alive && !client->wished);
    MUST(action->tokens.first == client->answer);
    MUST(action->tokens.scored_count == 0);
    for (uint32_t i = 0; i < action->tokens.count; i++) {
        MUST(client->answer < client->max_tokens);
        check_token(w, client, &action->tokens.results[i]);
        client->ids[client->prompt + client->answer++] = action->tokens.results[i].id;
    }
    w->tokens += action->tokens.count;
}

static void
check_end(const cluster *w, const cluster_client *client, const bt_router_action *action)
{
    bool ended = client->answer > 0 && client->has_end && client->ids[client->prompt + client->answer - 1] == END_ID;
    bt_finish finish = action->finished.finish;

    MUST(!client->odd || action->finished.degraded || w->planted);
    if (client->wished) {
        MUST(finish == client->wish);
        return;
    }
    MUST(finish != BT_FINISH_CANCELLED);
    if (finish == BT_FINISH_STOP)
        MUST(ended);
    if (finish == BT_FINISH_LENGTH)
        MUST(!ended && client->answer == client->max_tokens);
    if (finish == BT_FINISH_ERROR)
        MUST((action->finished.err == BT_ERR_DEVICE && w->failing) ||
             (action->finished.err == BT_ERR_TIMEOUT && client->deadline <= w->now));
}

static void
take_end(cluster *w, const bt_router_action *action)
{
    cluster_client *client = &w->clients[action->tag];

    MUST(client->alive && bt_request_id_equal(client->id, action->request));
    check_end(w, client, action);
    MUST(action->finished.usage.completion_tokens == client->answer);
    w->stopped += action->finished.finish == BT_FINISH_STOP;
    w->full += action->finished.finish == BT_FINISH_LENGTH;
    w->cancelled += action->finished.finish == BT_FINISH_CANCELLED;
    w->failed += action->finished.finish == BT_FINISH_ERROR;
    w->degraded += action->finished.degraded;
    w->moves += action->finished.moves;
    client->alive = false;
    w->alive--;
}

// --- links -------------------------------------------------------------------------------------------------------------------

static void
post(cluster *w, uint32_t from, uint32_t to, const bt_message *message)
{
    cluster_pipe *pipe = &w->pipes[from][to];
    cluster_letter *letter;
    bt_time at = w->now + draw(w, 10, 3000) * BT_MICROSECOND;

    MUST(bt_message_check(message) == BT_OK);
    w->log = bt_mix64(w->log ^ (uint64_t)w->now ^ from << 8 ^ to << 4 ^ message->kind);
    if (!w->linked[from][to])
        return;
    if (message->kind == BT_MESSAGE_TOKENS && one_in(w, w->faults.lose))
        return; // silently: the number tells
    letter = calloc(1, sizeof *letter);
    letter->at = pipe->last_at = at > pipe->last_at ? at : pipe->last_at;
    letter->message = bt_message_copy(aligned_alloc(16, bt_message_size(message)), message);
    if (pipe->last != NULL)
        pipe->last->next = letter;
    else
        pipe->first = letter;
    pipe->last = letter;
}

static void
drop(cluster_pipe *pipe)
{
    while (pipe->first != NULL) {
        cluster_letter *letter = pipe->first;

        pipe->first = letter->next;
        free(letter->message);
        free(letter);
    }
    *pipe = (cluster_pipe){.last_at = pipe->last_at};
}

// Peers as the cores number them.
static uint32_t
peer_of(uint32_t self, uint32_t other)
{
    if (self == 0)
        return other;
    if (is_prefill(self))
        return other; // 0 is the router, the others decode nodes
    return other == 0 ? 0 : BT_DECODE_ROUTERS_MAX + other;
}

static uint32_t
member_of(uint32_t self, uint32_t peer)
{
    return self >= FIRST_DECODE && peer >= BT_DECODE_ROUTERS_MAX ? peer - BT_DECODE_ROUTERS_MAX : peer;
}

// --- nodes -------------------------------------------------------------------------------------------------------------------

static uint64_t
block_hash(const fake_engine *engine, bt_block block)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < BLOCK; i++)
        hash = bt_mix64(hash ^ engine->cells[block * BLOCK + i]);
    return hash;
}

static void
feed_router(cluster *w, const bt_router_event *event)
{
    bt_router_step(w->router, w->now, event, w->router_out);
    for (uint32_t i = 0; i < w->router_out->count; i++) {
        const bt_router_action *action = &w->router_out->action[i];

        if (action->kind == BT_ROUTER_TO_NODE)
            post(w, 0, action->to_node.node, &action->to_node.message);
        else if (action->kind == BT_ROUTER_TOKENS)
            take_tokens(w, action);
        else if (action->kind == BT_ROUTER_FINISHED)
            take_end(w, action);
        else if (action->kind == BT_ROUTER_ACCEPTED)
            w->clients[action->tag].id = action->request;
    }
}

static void
feed_prefill(cluster *w, uint32_t self, const bt_prefill_event *event)
{
    cluster_node *node = &w->nodes[self];
    bt_prefill_actions *out = node->prefill_out;

    bt_prefill_core_step(node->prefill, w->now, event, out);
    for (uint32_t i = 0; i < out->stamp_count; i++) {
        bt_block block = out->stamps[i].block;

        node->trailers[block] =
            (cluster_trailer){node->epoch, out->stamps[i].generation, block_hash(&node->engine, block)};
    }
    for (uint32_t i = 0; i < out->send_count; i++)
        post(w, self, member_of(self, out->send[i].peer), &out->send[i].message);
    for (uint32_t i = 0; i < out->clear_count; i++)
        node->trailers[out->clears[i]] = (cluster_trailer){0};
    if (out->step == NULL)
        return;
    MUST(node->reading == NULL);
    node->reading = out->step;
    node->step_ends = w->now + draw(w, 100, 4000) * BT_MICROSECOND;
}

static void
begin_fetch(cluster *w, cluster_node *node, const bt_decode_fetch *wanted)
{
    uint32_t source = member_of(FIRST_DECODE, wanted->peer);
    cluster_fetch *fetch = node->fetches;

    while (fetch->active)
        fetch++;
    MUST(fetch < node->fetches + 16 && wanted->count <= CLUSTER_BLOCKS_MAX && wanted->count > 0);
    *fetch = (cluster_fetch){.active = true,
                             .count = wanted->count,
                             .source = source,
                             .source_epoch = wanted->epoch,
                             .user = wanted->user,
                             .deadline = wanted->deadline,
                             .ends = w->now + draw(w, 10, 2000) * BT_MICROSECOND};
    memcpy(fetch->blocks, wanted->blocks, wanted->count * sizeof *wanted->blocks);
    fetch->breaks = one_in(w, w->faults.fetch_break);
    fetch->flips = one_in(w, w->faults.fetch_flip);
    if (one_in(w, w->faults.fetch_late))
        fetch->ends += draw(w, 1, 1900) * BT_MILLISECOND;
    if (one_in(w, w->faults.fetch_never))
        fetch->ends = BT_TIME_NEVER;
}

static void
feed_decode(cluster *w, uint32_t self, const bt_decode_event *event)
{
    cluster_node *node = &w->nodes[self];
    bt_decode_actions *out = node->decode_out;

    bt_decode_core_step(node->decode, w->now, event, out);
    for (uint32_t i = 0; i < out->send_count; i++)
        post(w, self, member_of(self, out->send[i].peer), &out->send[i].message);
    for (uint32_t i = 0; i < out->cancel_count; i++) {
        for (uint32_t f = 0; f < 16; f++) {
            if (node->fetches[f].active && node->fetches[f].user == out->cancel[i]) {
                node->fetches[f].cancelled = true;
                node->fetches[f].ends = w->now + draw(w, 0, 50) * BT_MILLISECOND;
            }
        }
    }
    if (out->has_fetch)
        begin_fetch(w, node, &out->fetch);
    if (out->step == NULL)
        return;
    MUST(node->writing == NULL);
    node->writing = out->step;
    node->step_ends = w->now + draw(w, 100, 4000) * BT_MICROSECOND;
}

// Copies what lies there now, block by block; what fails its check and what comes after it leaves rubbish. The planted bug checks nothing.
static uint32_t
copy_blocks(cluster *w, cluster_node *node, cluster_fetch *fetch)
{
    cluster_node *source = &w->nodes[fetch->source];
    uint32_t good = fetch->breaks ? fetch->count / 2 : fetch->count, i;
    bool gone = !source->up || source->epoch != fetch->source_epoch;

    for (i = 0; i < good && !gone && !fetch->cancelled; i++) {
        const bt_transfer_block *block = &fetch->blocks[i];
        const cluster_trailer *trailer = &source->trailers[block->from];
        bool right = trailer->epoch == fetch->source_epoch && trailer->generation == block->generation &&
                     trailer->hash == block_hash(&source->engine, block->from) && !fetch->flips;

        w->stale += trailer->epoch != fetch->source_epoch || trailer->generation != block->generation;
        if (!right && !w->planted)
            break;
        memcpy(&node->engine.cells[block->to * BLOCK], &source->engine.cells[block->from * BLOCK],
               BLOCK * sizeof(uint64_t));
        node->engine.cells[block->to * BLOCK] ^= fetch->flips;
    }
    for (uint32_t rest = i; rest < fetch->count; rest++) {
        for (uint32_t c = 0; c < BLOCK; c++)
            node->engine.cells[fetch->blocks[rest].to * BLOCK + c] = bt_rng_next(&w->rng);
    }
    return i;
}

static void
end_fetch(cluster *w, uint32_t self, cluster_fetch *fetch)
{
    cluster_node *node = &w->nodes[self];
    bt_decode_event event = {.kind = BT_DECODE_FETCHED, .user = fetch->user};

    if (fetch->ends > w->now) {
        fetch->breaks = true;
        event.err = BT_ERR_TIMEOUT; // nothing of it was seen to be good
        fetch->cancelled = true;
    }
    event.good = copy_blocks(w, node, fetch);
    if (event.err == BT_OK && fetch->cancelled)
        event.err = BT_ERR_CANCELLED;
    if (event.err == BT_OK && event.good < fetch->count)
        event.err = BT_ERR_PEER;
    fetch->active = false;
    feed_decode(w, self, &event);
}

static void
spoil(cluster *w, cluster_node *node, const bt_batch_item *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t p = 0; p < items[i].position + items[i].count; p++)
            node->engine.cells[items[i].blocks[p / BLOCK] * BLOCK + p % BLOCK] = bt_rng_next(&w->rng);
    }
}

static void
end_step(cluster *w, uint32_t self)
{
    cluster_node *node = &w->nodes[self];
    bt_err err = one_in(w, w->faults.device) ? BT_ERR_DEVICE : BT_OK;

    node->step_ends = BT_TIME_NEVER;
    if (is_prefill(self)) {
        const bt_prefill_batch *batch = node->reading;

        node->reading = NULL;
        fake_engine_step(&node->engine, batch->items, batch->count, &batch->result);
        if (err != BT_OK)
            spoil(w, node, batch->items, batch->count);
        feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_STEPPED, .err = err});
    } else {
        const bt_decode_batch *batch = node->writing;

        node->writing = NULL;
        fake_engine_step(&node->engine, batch->items, batch->count, &batch->result);
        if (err != BT_OK)
            spoil(w, node, batch->items, batch->count);
        feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_STEPPED, .err = err});
    }
}

// What the edge does with a greeting: it connects for transfer, fetches a block, and says so to the core.
static void
prove(cluster *w, uint32_t self, uint32_t source, const bt_hello *hello)
{
    w->nodes[self].proving[source] = hello->epoch;
    w->nodes[self].proved_at[source] = w->now + draw(w, 0, 4000) * BT_MICROSECOND;
}

static void
end_proof(cluster *w, uint32_t self, uint32_t source)
{
    cluster_node *node = &w->nodes[self];
    bool there = w->nodes[source].up && w->nodes[source].epoch == node->proving[source];

    node->proved_at[source] = BT_TIME_NEVER;
    feed_decode(
        w, self,
        &(bt_decode_event){
            .kind = BT_DECODE_SOURCE, .peer = peer_of(self, source), .epoch = node->proving[source], .up = there});
}

static void
tell(cluster *w, uint32_t self, uint32_t other, int what, const bt_message *message) // 0 up, 1 down, 2 message
{
    uint32_t peer = peer_of(self, other);

    if (self == 0) {
        static const bt_router_event_kind kinds[] = {BT_ROUTER_NODE_UP, BT_ROUTER_NODE_DOWN, BT_ROUTER_NODE_MESSAGE};
        feed_router(w, &(bt_router_event){.kind = kinds[what], .node = peer, .message = message});
    } else if (is_prefill(self)) {
        static const bt_prefill_event_kind kinds[] = {BT_PREFILL_LINK_UP, BT_PREFILL_LINK_DOWN, BT_PREFILL_MESSAGE};
        feed_prefill(w, self, &(bt_prefill_event){.kind = kinds[what], .peer = peer, .message = message});
    } else {
        static const bt_decode_event_kind kinds[] = {BT_DECODE_LINK_UP, BT_DECODE_LINK_DOWN, BT_DECODE_MESSAGE};
        feed_decode(w, self, &(bt_decode_event){.kind = kinds[what], .peer = peer, .message = message});
        if (what == 2 && other != 0 && message->kind == BT_MESSAGE_HELLO)
            prove(w, self, other, &message->hello);
    }
}

static bool
is_up(const cluster *w, uint32_t member)
{
    return member == 0 || w->nodes[member].up;
}

static bool
are_neighbours(const cluster *w, uint32_t a, uint32_t b)
{
    if (a == b || (a > 0 && !w->nodes[a].exists) || (b > 0 && !w->nodes[b].exists))
        return false;
    return a == 0 || b == 0 || is_prefill(a) != is_prefill(b);
}

static void
cut(cluster *w, uint32_t a, uint32_t b, bt_time away)
{
    if (!w->linked[a][b])
        return;
    w->linked[a][b] = w->linked[b][a] = false;
    w->link_at[a][b] = w->link_at[b][a] = w->now + away;
    drop(&w->pipes[a][b]);
    drop(&w->pipes[b][a]);
    if (is_up(w, a))
        tell(w, a, b, 1, NULL);
    if (is_up(w, b))
        tell(w, b, a, 1, NULL);
}

static void
link_up(cluster *w, uint32_t a, uint32_t b)
{
    w->linked[a][b] = w->linked[b][a] = true;
    w->link_at[a][b] = w->link_at[b][a] = BT_TIME_NEVER;
    tell(w, a, b, 0, NULL);
    tell(w, b, a, 0, NULL);
}

static void
start_node(cluster *w, uint32_t self)
{
    cluster_node *node = &w->nodes[self];
    bt_why why;

    node->up = true;
    node->epoch = ++w->epochs + 100;
    node->step_ends = node->back_at = BT_TIME_NEVER;
    node->frozen_until = 0;
    memset(node->trailers, 0, sizeof node->trailers);
    for (uint32_t i = 0; i < CLUSTER_MEMBERS; i++)
        node->proved_at[i] = BT_TIME_NEVER;
    if (is_prefill(self)) {
        bt_prefill_limits limits = w->prefill_limits;

        limits.epoch = node->epoch;
        limits.name[0] = 'p';
        limits.name[1] = (char)('0' + self);
        node->engine = (fake_engine){.blocks = limits.blocks,
                                     .chunk_tokens = limits.chunk_tokens,
                                     .sequences = limits.sequences,
                                     .logit_rows = limits.sequences,
                                     .weights = limits.weights};
        MUST(bt_prefill_core_open(&node->prefill, &limits, &why) == BT_OK);
    } else {
        bt_decode_limits limits = w->decode_limits;

        limits.epoch = node->epoch;
        limits.name[0] = 'd';
        limits.name[1] = (char)('0' + self);
        node->engine = (fake_engine){.blocks = limits.blocks,
                                     .chunk_tokens = limits.chunk_tokens,
                                     .sequences = limits.sequences,
                                     .logit_rows = limits.sequences,
                                     .weights = limits.weights};
        MUST(bt_decode_core_open(&node->decode, &limits, &why) == BT_OK);
    }
    node->engine.block_tokens = BLOCK;
    node->engine.vocab = CLUSTER_VOCAB;
    fake_engine_init(&node->engine);
    for (uint32_t other = 0; other < CLUSTER_MEMBERS; other++)
        w->link_at[self][other] = w->link_at[other][self] = are_neighbours(w, self, other) ? w->now : BT_TIME_NEVER;
}

static void
stop_node(cluster *w, uint32_t self)
{
    cluster_node *node = &w->nodes[self];

    node->up = false;
    for (uint32_t other = 0; other < CLUSTER_MEMBERS; other++)
        cut(w, self, other, 0);
    bt_prefill_core_close(node->prefill);
    bt_decode_core_close(node->decode);
    node->prefill = NULL;
    node->decode = NULL;
    node->reading = NULL;
    node->writing = NULL;
    memset(node->fetches, 0, sizeof node->fetches);
    fake_engine_fini(&node->engine);
}

// --- clients -----------------------------------------------------------------------------------------------------------------

static void
draw_client(cluster *w, cluster_client *client)
{
    uint32_t family = draw(w, 0, 3), shared;

    *client = (cluster_client){.cancel_at = BT_TIME_NEVER, .deadline = BT_TIME_NEVER, .seed = bt_rng_next(&w->rng)};
    client->prompt = draw(w, 1, one_in(w, 2) ? CLUSTER_CONTEXT - 1 : 24);
    client->max_tokens = draw(w, 1, 12);
    if (client->prompt + client->max_tokens > CLUSTER_CONTEXT)
        client->max_tokens = CLUSTER_CONTEXT - client->prompt;
    client->has_end = !one_in(w, 4);
    if (one_in(w, 4))
        client->cancel_at = w->now + draw(w, 0, 60) * BT_MILLISECOND;
    if (one_in(w, 10))
        client->deadline = w->now + draw(w, 1, 200) * BT_MILLISECOND;
    shared = draw(w, 0, client->prompt);
    for (uint32_t i = 0; i < client->prompt; i++)
        client->ids[i] = i < shared ? (int32_t)(bt_mix64(family * 1000u + i) % CLUSTER_VOCAB)
                                    : (int32_t)bt_rng_below(&w->rng, CLUSTER_VOCAB);
}

static void
arrive(cluster *w)
{
    static const int32_t end_id = END_ID;
    uint64_t tag = w->client_count++;
    cluster_client *client = &w->clients[tag];
    bt_sampling sampling = {.repetition_penalty = 1, .logprobs = true};
    bt_router_event event = {.kind = BT_ROUTER_ARRIVED};

    draw_client(w, client);
    sampling.seed = client->seed;
    event.arrival = (bt_router_arrival){.tag = tag,
                                        .ids = client->ids,
                                        .count = client->prompt,
                                        .sampling = &sampling,
                                        .max_tokens = client->max_tokens,
                                        .end_ids = &end_id,
                                        .end_count = client->has_end,
                                        .session = draw(w, 0, 3),
                                        .deadline = client->deadline};
    client->alive = true;
    w->alive++;
    feed_router(w, &event);
    if (client->id.generation != 0) {
        w->accepted++;
        return;
    }
    MUST(w->router_out->count >= 1 && w->router_out->action[0].kind == BT_ROUTER_REJECTED);
    MUST(w->router_out->action[0].rejected.err == BT_ERR_BUSY || w->router_out->action[0].rejected.err == BT_ERR_PEER);
    w->no_node += w->router_out->action[0].rejected.err == BT_ERR_PEER;
    client->alive = false;
    w->alive--;
    w->refused++;
}

static void
cancel(cluster *w, cluster_client *client)
{
    client->wished = true;
    client->wish = BT_FINISH_CANCELLED;
    client->cancel_at = BT_TIME_NEVER;
    feed_router(w, &(bt_router_event){.kind = BT_ROUTER_CANCEL, .request = client->id, .reason = client->wish});
    MUST(!client->alive); // at once, whatever nodes do
}

// --- time --------------------------------------------------------------------------------------------------------------------

static void
check(cluster *w)
{
    bt_router_stats router;
    bt_why why = {0};

    for (uint32_t i = 1; i < CLUSTER_MEMBERS; i++) {
        cluster_node *node = &w->nodes[i];

        if (node->up && is_prefill(i) && !bt_prefill_core_sound(node->prefill, &why))
            ck_abort_msg("prefill node: %s", why.text);
        if (node->up && !is_prefill(i) && !bt_decode_core_sound(node->decode, &why))
            ck_abort_msg("decode node: %s", why.text);
    }
    bt_router_get_stats(w->router, &router);
    MUST(router.leak == 0);
    MUST(router.queued + router.running == w->alive);
    if (!w->lossy)
        MUST(router.bad_messages == 0);
    w->events++;
}

static void
earlier(bt_time *next, bt_time at)
{
    if (at < *next)
        *next = at;
}

static bt_time
next_time(const cluster *w, uint32_t clients)
{
    bt_time next = bt_router_next_deadline(w->router);

    if (w->client_count < clients)
        earlier(&next, w->next_arrival);
    for (uint32_t i = 0; i < w->client_count; i++) {
        if (w->clients[i].alive)
            earlier(&next, w->clients[i].cancel_at);
    }
    for (uint32_t a = 0; a < CLUSTER_MEMBERS; a++) {
        const cluster_node *node = &w->nodes[a];
        bt_time own = node->up ? node->step_ends : node->exists ? node->back_at : BT_TIME_NEVER;

        for (uint32_t b = 0; b < CLUSTER_MEMBERS; b++) {
            if (w->pipes[a][b].first != NULL)
                earlier(&next, w->pipes[a][b].first->at > w->nodes[b].frozen_until ? w->pipes[a][b].first->at
                                                                                   : w->nodes[b].frozen_until);
            if (!w->linked[a][b] && is_up(w, a) && is_up(w, b))
                earlier(&next, w->link_at[a][b]);
        }
        if (node->up && is_prefill(a))
            earlier(&own, bt_prefill_core_next_deadline(node->prefill));
        if (node->up && !is_prefill(a))
            earlier(&own, bt_decode_core_next_deadline(node->decode));
        for (uint32_t f = 0; node->up && f < 16; f++) {
            if (node->fetches[f].active) {
                earlier(&own, node->fetches[f].ends);
                earlier(&own, node->fetches[f].deadline);
            }
        }
        for (uint32_t b = 0; node->up && b < CLUSTER_MEMBERS; b++)
            earlier(&own, node->proved_at[b]);
        if (own != BT_TIME_NEVER)
            earlier(&next, own > node->frozen_until ? own : node->frozen_until);
    }
    return next > w->now ? next : w->now;
}

static void
turn_node(cluster *w, uint32_t self)
{
    cluster_node *node = &w->nodes[self];

    if (!node->up) {
        if (node->exists && node->back_at <= w->now)
            start_node(w, self);
        return;
    }
    if (node->frozen_until > w->now)
        return;
    if (node->step_ends <= w->now)
        end_step(w, self);
    for (uint32_t f = 0; f < 16; f++) {
        if (node->fetches[f].active && (node->fetches[f].ends <= w->now || node->fetches[f].deadline <= w->now))
            end_fetch(w, self, &node->fetches[f]);
    }
    for (uint32_t b = 0; b < CLUSTER_MEMBERS; b++) {
        if (node->proved_at[b] <= w->now)
            end_proof(w, self, b);
    }
    if (is_prefill(self) && bt_prefill_core_next_deadline(node->prefill) <= w->now)
        feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_TICK});
    if (!is_prefill(self) && bt_decode_core_next_deadline(node->decode) <= w->now)
        feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_TICK});
}

static void
deliver(cluster *w, uint32_t from, uint32_t to)
{
    cluster_pipe *pipe = &w->pipes[from][to];

    while (pipe->first != NULL && pipe->first->at <= w->now && w->nodes[to].frozen_until <= w->now) {
        cluster_letter *letter = pipe->first;

        pipe->first = letter->next;
        if (pipe->first == NULL)
            pipe->last = NULL;
        tell(w, to, from, 2, letter->message);
        free(letter->message);
        free(letter);
    }
}

static void
turn_links(cluster *w)
{
    uint32_t shift = draw(w, 0, CLUSTER_MEMBERS - 1);

    for (uint32_t i = 0; i < CLUSTER_MEMBERS; i++) {
        for (uint32_t b = 0; b < CLUSTER_MEMBERS; b++) {
            uint32_t a = (i + shift) % CLUSTER_MEMBERS;

            if (a < b && !w->linked[a][b] && w->link_at[a][b] <= w->now && is_up(w, a) && is_up(w, b))
                link_up(w, a, b);
            deliver(w, a, b);
        }
    }
}

static uint32_t
draw_node(cluster *w)
{
    uint32_t node = draw(w, 0, w->prefills + w->decodes - 1);

    return node < w->prefills ? FIRST_PREFILL + node : FIRST_DECODE + node - w->prefills;
}

static void
draw_faults(cluster *w)
{
    if (one_in(w, w->faults.cut)) {
        uint32_t a = draw_node(w), b = one_in(w, 2) ? 0 : draw_node(w);

        if (are_neighbours(w, a, b))
            cut(w, a, b, draw(w, 0, one_in(w, 3) ? 5000 : 20) * BT_MILLISECOND);
    }
    if (one_in(w, w->faults.kill)) {
        uint32_t victim = draw_node(w);

        if (w->nodes[victim].up) {
            w->nodes[victim].back_at = w->now + draw(w, 0, one_in(w, 3) ? 8000 : 30) * BT_MILLISECOND;
            stop_node(w, victim);
            w->kills++;
        }
    }
    if (one_in(w, w->faults.freeze))
        w->nodes[draw_node(w)].frozen_until = w->now + draw(w, 1, 9000) * BT_MILLISECOND;
}

static void
turn(cluster *w, uint32_t clients)
{
    if (w->client_count < clients && w->next_arrival <= w->now) {
        arrive(w);
        w->next_arrival = w->now + draw(w, 0, 2) * w->arrival_gap;
    }
    turn_links(w);
    for (uint32_t i = 1; i < CLUSTER_MEMBERS; i++)
        turn_node(w, i);
    if (bt_router_next_deadline(w->router) <= w->now)
        feed_router(w, &(bt_router_event){.kind = BT_ROUTER_TICK});
    for (uint32_t i = 0; i < w->client_count; i++) {
        if (w->clients[i].alive && w->clients[i].cancel_at <= w->now)
            cancel(w, &w->clients[i]);
    }
    draw_faults(w);
    check(w);
}

static void
check_idle(cluster *w)
{
    for (uint32_t i = 1; i < CLUSTER_MEMBERS; i++) {
        cluster_node *node = &w->nodes[i];
        bt_prefill_stats p;
        bt_decode_stats d;

        if (!node->exists)
            continue;
        MUST(node->up);
        if (is_prefill(i)) {
            bt_prefill_core_get_stats(node->prefill, &p);
            MUST(p.waiting + p.reading + p.holding + p.ending == 0);
            MUST(p.blocks_free + p.blocks_cached == p.blocks && p.leak == 0);
        } else {
            bt_decode_core_get_stats(node->decode, &d);
            MUST(d.waiting + d.granted + d.fetching + d.prefilling + d.decoding + d.ending == 0);
            MUST(d.blocks_free + d.blocks_cached == d.blocks && d.leak == 0 && d.blocks_promised == 0);
            w->fetched += d.fetched_sequences;
            w->refetched += d.refetches;
        }
    }
}

void
cluster_run(cluster *w, uint32_t clients)
{
    bt_time limit = w->now + 600 * BT_SECOND, quiet = 0;
    bt_router_stats router;

    MUST(clients <= CLUSTER_CLIENTS_MAX);
    while ((w->client_count < clients || w->alive > 0 || w->now < quiet) && !w->found) {
        if (w->client_count == clients)
            w->faults = (cluster_faults){0}; // once faults stop, all ends
        w->now = next_time(w, clients);
        turn(w, clients);
        if (w->client_count < clients || w->alive > 0)
            quiet = w->now + 40 * BT_SECOND; // past every lease
        if (w->now >= limit || w->events >= 4000000)
            ck_abort_msg("%u alive, nothing moves", w->alive);
    }
    if (!w->found)
        check_idle(w);
    bt_router_get_stats(w->router, &router);
    w->remote = router.remote;
    w->remote_failed = router.remote_failed;
}

static void
draw_limits(cluster *w, bool differs)
{
    uint32_t sequences = draw(w, 1, 8);

    w->decode_limits = (bt_decode_limits){.model = 1,
                                          .weights = differs ? 6 : 0,
                                          .layout = 2,
                                          .sequences = sequences,
                                          .queue_max = draw(w, 0, 4),
                                          .chunk_tokens = sequences + draw(w, 0, 40),
                                          .prefill_tokens = draw(w, 1, 24),
                                          .block_tokens = BLOCK,
                                          .blocks = draw(w, 25, one_in(w, 2) ? 40 : 200),
                                          .context = CLUSTER_CONTEXT,
                                          .vocab = CLUSTER_VOCAB,
                                          .lease = 3 * BT_SECOND,
                                          .fetches = true,
                                          .prompt_weights = differs ? 5 : 0,
                                          .fetch_blocks = draw(w, 1, 24)};
    w->prefill_limits = (bt_prefill_limits){.model = 1,
                                            .weights = differs ? 5 : 0,
                                            .layout = 2,
                                            .sequences = draw(w, 1, 8),
                                            .prompts = draw(w, 1, 12),
                                            .chunk_tokens = draw(w, 1, 64),
                                            .block_tokens = BLOCK,
                                            .blocks = draw(w, 25, one_in(w, 2) ? 40 : 200),
                                            .context = CLUSTER_CONTEXT,
                                            .vocab = CLUSTER_VOCAB,
                                            .lease = 3 * BT_SECOND,
                                            .description = (const uint8_t *)"pool",
                                            .description_bytes = 4};
}

// A seed first draws which faults there are at all.
static void
draw_fault_kinds(cluster *w)
{
    w->faults.device = one_in(w, 4) ? draw(w, 50, 400) : 0;
    w->faults.cut = one_in(w, 2) ? draw(w, 30, 600) : 0;
    w->faults.lose = one_in(w, 3) ? draw(w, 20, 400) : 0;
    w->faults.kill = one_in(w, 2) ? draw(w, 100, 1000) : 0;
    w->faults.freeze = one_in(w, 4) ? draw(w, 200, 2000) : 0;
    w->faults.fetch_break = one_in(w, 2) ? draw(w, 3, 30) : 0;
    w->faults.fetch_flip = one_in(w, 3) ? draw(w, 3, 30) : 0;
    w->faults.fetch_never = one_in(w, 3) ? draw(w, 5, 60) : 0;
    w->faults.fetch_late = one_in(w, 2) ? draw(w, 3, 30) : 0;
    w->lossy = w->faults.cut > 0 || w->faults.lose > 0 || w->faults.kill > 0;
    w->failing = w->faults.device > 0;
}

void
cluster_open(cluster *w, uint64_t seed, uint32_t prefills, uint32_t decodes, bool differs, bool faults)
{
    bt_router_limits limits = {.context = CLUSTER_CONTEXT, .vocab = CLUSTER_VOCAB, .epoch = 3, .seed = seed};
    bt_why why;

    *w = (cluster){.rng.state = seed,
                   .seed = seed,
                   .now = BT_SECOND,
                   .differs = differs,
                   .prefills = prefills,
                   .decodes = decodes};
    draw_limits(w, differs);
    if (faults)
        draw_fault_kinds(w);
    if (w->faults.fetch_late > 0) // holds end while fetches are under way
        w->prefill_limits.hold_max = draw(w, 20, 500) * BT_MILLISECOND;
    w->arrival_gap = draw(w, 1, 20) * BT_MILLISECOND;
    w->next_arrival = w->now + BT_SECOND; // they meet before the first client comes
    limits.requests_max = draw(w, 1, 32);
    limits.queue_max = draw(w, 1, 32);
    limits.two_weights = differs;
    limits.remote_tokens_min = draw(w, 1, 40);
    limits.degrade_after = draw(w, 1, one_in(w, 2) ? 20 : 2000) * BT_MILLISECOND;
    MUST(bt_router_open(&w->router, &limits, &why) == BT_OK);
    w->router_out = malloc(sizeof *w->router_out);
    for (uint32_t i = 0; i < CLUSTER_MEMBERS; i++) {
        for (uint32_t j = 0; j < CLUSTER_MEMBERS; j++)
            w->link_at[i][j] = BT_TIME_NEVER;
    }
    for (uint32_t i = 0; i < prefills + decodes; i++) {
        uint32_t self = i < prefills ? FIRST_PREFILL + i : FIRST_DECODE + i - prefills;

        w->nodes[self].exists = true;
        w->nodes[self].prefill_out = malloc(sizeof(bt_prefill_actions));
        w->nodes[self].decode_out = malloc(sizeof(bt_decode_actions));
        start_node(w, self);
    }
}

void
cluster_close(cluster *w)
{
    for (uint32_t i = 1; i < CLUSTER_MEMBERS; i++) {
        if (w->nodes[i].up) {
            w->nodes[i].up = false;
            bt_prefill_core_close(w->nodes[i].prefill);
            bt_decode_core_close(w->nodes[i].decode);
            fake_engine_fini(&w->nodes[i].engine);
        }
        free(w->nodes[i].prefill_out);
        free(w->nodes[i].decode_out);
        for (uint32_t j = 0; j < CLUSTER_MEMBERS; j++) {
            drop(&w->pipes[i][j]);
            drop(&w->pipes[j][i]);
        }
    }
    bt_router_close(w->router);
    free(w->router_out);
}
