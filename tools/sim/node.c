// Prefill and decode nodes: their cores, what an edge does for them, and how they reach each other.
#include "common/base/mem.h"
#include "tools/sim/inside.h"

#include <assert.h>
#include <stdio.h>

// --- who is who --------------------------------------------------------------------------------------------------------------

static bool
are_neighbours(const sim_world *w, uint32_t a, uint32_t b)
{
    return w->nodes[a].prefill != w->nodes[b].prefill && w->nodes[a].island == w->nodes[b].island;
}

// Peers as the cores number them: on prefill nodes 0 is the router, on decode nodes prefill nodes come after the routers.
static uint32_t
peer_of(const sim_world *w, uint32_t self, uint32_t other)
{
    if (other == SIM_ROUTER)
        return 0;
    return w->nodes[other].place + (w->nodes[self].prefill ? 1 : BT_DECODE_ROUTERS_MAX);
}

// Nodes are dealt out to islands in turn, of each kind for itself.
static uint32_t
member_of(const sim_world *w, uint32_t self, uint32_t peer)
{
    const sim_node *node = &w->nodes[self];

    if (peer < (node->prefill ? 1 : BT_DECODE_ROUTERS_MAX))
        return SIM_ROUTER;
    if (node->prefill)
        return w->setup->prefills + (peer - 1) * w->islands + node->island;
    return (peer - BT_DECODE_ROUTERS_MAX) * w->islands + node->island;
}

static uint32_t
largest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void
set_limits(sim_world *w)
{
    const sim_setup *setup = w->setup;
    const sim_profile *profile = setup->profile;
    uint64_t prefill_kv = setup->kv_tokens > 0 ? setup->kv_tokens : profile->prefill_kv;
    uint64_t decode_kv = setup->kv_tokens > 0 ? setup->kv_tokens : profile->decode_kv;
    // A step with answers is `unit` steps, and so many times as much of prompts goes into it.
    uint32_t decode_chunk = largest(profile->decode_chunk / setup->unit, profile->decode_prompt + profile->sequences);
    bt_time heartbeat = setup->prefills + setup->decodes > 64 ? 5 * BT_SECOND : BT_SECOND;

    w->decode_limits = (bt_decode_limits){.model = 1,
                                          .weights = setup->two_weights ? 4 : 3,
                                          .prompt_weights = 3,
                                          .layout = 2,
                                          .sequences = profile->sequences,
                                          .queue_max = profile->sequences / 4 + 1,
                                          .chunk_tokens = decode_chunk,
                                          .prefill_tokens = profile->decode_prompt,
                                          .block_tokens = SIM_BLOCK_TOKENS,
                                          .blocks = (uint32_t)(decode_kv / setup->unit / SIM_BLOCK_TOKENS),
                                          .context = w->context,
                                          .vocab = SIM_VOCAB,
                                          .heartbeat = heartbeat,
                                          .source_silence = 10 * heartbeat,
                                          .fetches = setup->prefills > 0};
    w->prefill_limits = (bt_prefill_limits){.model = 1,
                                            .weights = 3,
                                            .layout = 2,
                                            .sequences = 16,
                                            .prompts = 64,
                                            .chunk_tokens = profile->prefill_chunk / setup->unit,
                                            .block_tokens = SIM_BLOCK_TOKENS,
                                            .blocks = (uint32_t)(prefill_kv / setup->unit / SIM_BLOCK_TOKENS),
                                            .context = w->context,
                                            .vocab = SIM_VOCAB,
                                            .heartbeat = heartbeat,
                                            .description = (const uint8_t *)"pool",
                                            .description_bytes = 4};
}

bt_err
sim_nodes_open(sim_world *w)
{
    uint32_t count = w->setup->prefills + w->setup->decodes;

    set_limits(w);
    w->nodes = bt_alloc_array(count, sizeof *w->nodes);
    if (w->nodes == NULL)
        return BT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        sim_node *node = &w->nodes[i];
        uint32_t number = i < w->setup->prefills ? i : i - w->setup->prefills;

        node->prefill = i < w->setup->prefills;
        node->island = number % w->islands;
        node->place = number / w->islands;
        node->tick_at = BT_TIME_NEVER;
        if (node->prefill)
            node->trailers = bt_alloc_array(w->prefill_limits.blocks, sizeof *node->trailers);
        else
            node->fetches = bt_alloc_array(w->decode_limits.sequences, sizeof(sim_fetch *));
        if (node->trailers == NULL && node->fetches == NULL)
            return BT_ERR_NO_MEMORY;
    }
    return BT_OK;
}

static void
close_cores(sim_node *node)
{
    node->computed = sim_node_computed(node);
    bt_prefill_core_close(node->reader);
    bt_decode_core_close(node->writer);
    node->reader = NULL;
    node->writer = NULL;
}

void
sim_nodes_close(sim_world *w)
{
    for (uint32_t i = 0; w->nodes != NULL && i < w->setup->prefills + w->setup->decodes; i++) {
        close_cores(&w->nodes[i]);
        bt_free(w->nodes[i].trailers);
        bt_free(w->nodes[i].fetches);
    }
    bt_free(w->nodes);
}

uint64_t
sim_node_computed(const sim_node *node)
{
    bt_prefill_stats p = {0};
    bt_decode_stats d = {0};

    if (node->reader != NULL)
        bt_prefill_core_get_stats(node->reader, &p);
    if (node->writer != NULL)
        bt_decode_core_get_stats(node->writer, &d);
    return node->computed + p.prompt_tokens + d.prompt_tokens;
}

// --- what an edge does -------------------------------------------------------------------------------------------------------

static void
schedule_tick(sim_world *w, uint32_t self)
{
    sim_node *node = &w->nodes[self];
    bt_time at =
        node->prefill ? bt_prefill_core_next_deadline(node->reader) : bt_decode_core_next_deadline(node->writer);

    if (at >= node->tick_at)
        return;
    node->tick_at = at > w->now ? at : w->now;
    sim_later(w, node->tick_at, SIM_TICK, self, NULL);
}

static void
begin_step(sim_world *w, uint32_t self, const bt_batch_item *items, uint32_t count)
{
    sim_node *node = &w->nodes[self];
    const sim_cost *cost = node->prefill ? &w->setup->profile->prefill : &w->setup->profile->decode;

    node->step_began = w->now;
    sim_later(w, w->now + sim_cost_step(cost, items, count, w->setup->unit), SIM_STEPPED, self, NULL);
}

static void
feed_prefill(sim_world *w, uint32_t self, const bt_prefill_event *event)
{
    sim_node *node = &w->nodes[self];
    bt_prefill_actions *out = w->prefill_out;

    bt_prefill_core_step(node->reader, w->now, event, out);
    for (uint32_t i = 0; i < out->stamp_count; i++)
        node->trailers[out->stamps[i].block] = (sim_trailer){node->epoch, out->stamps[i].generation};
    for (uint32_t i = 0; i < out->send_count; i++)
        sim_post(w, self, member_of(w, self, out->send[i].peer), &out->send[i].message);
    for (uint32_t i = 0; i < out->clear_count; i++)
        node->trailers[out->clears[i]] = (sim_trailer){0};
    if (out->step != NULL) {
        node->reading = out->step;
        begin_step(w, self, out->step->items, out->step->count);
    }
    schedule_tick(w, self);
}

static bt_time
later_of(bt_time a, bt_time b)
{
    return a > b ? a : b;
}

// Both ends give their bandwidth to one transfer after the other.
static bt_time
transfer_ends(sim_world *w, sim_node *from, sim_node *to, uint32_t blocks)
{
    double bytes = (double)blocks * SIM_BLOCK_TOKENS * w->setup->unit * w->setup->profile->kv_bytes;
    bt_time time = (bt_time)(bytes / w->setup->profile->gb_s);

    w->result->fetched_bytes += (uint64_t)bytes;
    from->sends_until = later_of(from->sends_until, w->now) + time;
    to->receives_until = later_of(to->receives_until, w->now) + time;
    return later_of(from->sends_until, to->receives_until) + w->setup->link;
}

static void
begin_fetch(sim_world *w, uint32_t self, const bt_decode_fetch *wanted)
{
    sim_node *node = &w->nodes[self];
    size_t bytes = wanted->count * sizeof *wanted->blocks;
    sim_fetch *fetch = bt_alloc(sizeof *fetch + bytes), **slot = node->fetches;
    bt_time ends;

    if (fetch == NULL) {
        sim_fail(w, BT_ERR_NO_MEMORY, "out of memory");
        return;
    }
    while (*slot != NULL)
        slot++;
    assert(slot < node->fetches + w->decode_limits.sequences);
    *slot = fetch;
    fetch->source = member_of(w, self, wanted->peer);
    fetch->count = wanted->count;
    fetch->epoch = wanted->epoch;
    fetch->user = wanted->user;
    for (uint32_t i = 0; i < wanted->count; i++)
        fetch->blocks[i] = wanted->blocks[i];
    ends = transfer_ends(w, &w->nodes[fetch->source], node, wanted->count);
    fetch->late = ends > wanted->deadline;
    sim_later(w, fetch->late ? wanted->deadline : ends, SIM_FETCHED, self, fetch);
}

static void
feed_decode(sim_world *w, uint32_t self, const bt_decode_event *event)
{
    sim_node *node = &w->nodes[self];
    bt_decode_actions *out = w->decode_out;

    bt_decode_core_step(node->writer, w->now, event, out);
    for (uint32_t i = 0; i < out->send_count; i++)
        sim_post(w, self, member_of(w, self, out->send[i].peer), &out->send[i].message);
    for (uint32_t i = 0; i < out->cancel_count; i++) {
        for (uint32_t f = 0; f < w->decode_limits.sequences; f++) {
            if (node->fetches[f] != NULL && node->fetches[f]->user == out->cancel[i])
                node->fetches[f]->cancelled = true;
        }
    }
    if (out->has_fetch)
        begin_fetch(w, self, &out->fetch);
    if (out->step != NULL) {
        node->writing = out->step;
        begin_step(w, self, out->step->items, out->step->count);
    }
    schedule_tick(w, self);
}

static void
draw_tokens(const bt_batch_item *items, uint32_t count, const bt_step_result *result)
{
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].want != BT_LOGITS_NONE)
            result->drawn[i] = (bt_token_result){
                .id = sim_answer_id((uint32_t)items[i].sampling->seed, items[i].position + items[i].count)};
    }
}

void
sim_node_stepped(sim_world *w, uint32_t self)
{
    sim_node *node = &w->nodes[self];
    bt_time took = w->now - node->step_began;

    node->busy += took;
    if (node->prefill) {
        draw_tokens(node->reading->items, node->reading->count, &node->reading->result);
        feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_STEPPED, .duration = took});
    } else {
        draw_tokens(node->writing->items, node->writing->count, &node->writing->result);
        feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_STEPPED, .duration = took});
    }
}

void
sim_node_fetched(sim_world *w, uint32_t self, sim_fetch *fetch)
{
    sim_node *node = &w->nodes[self], *source = &w->nodes[fetch->source];
    bt_decode_event event = {.kind = BT_DECODE_FETCHED, .user = fetch->user};

    for (uint32_t i = 0; i < w->decode_limits.sequences; i++) {
        if (node->fetches[i] == fetch)
            node->fetches[i] = NULL;
    }
    while (event.good < fetch->count && source->up && source->epoch == fetch->epoch &&
           source->trailers[fetch->blocks[event.good].from].epoch == fetch->epoch &&
           source->trailers[fetch->blocks[event.good].from].generation == fetch->blocks[event.good].generation)
        event.good++;
    if (fetch->late)
        event = (bt_decode_event){.kind = BT_DECODE_FETCHED, .user = fetch->user, .err = BT_ERR_TIMEOUT};
    else if (fetch->cancelled)
        event.err = BT_ERR_CANCELLED;
    else if (event.good < fetch->count)
        event.err = BT_ERR_PEER;
    feed_decode(w, self, &event);
}

void
sim_node_tick(sim_world *w, uint32_t self)
{
    sim_node *node = &w->nodes[self];

    if (!node->up || node->tick_at != w->now)
        return; // set anew meanwhile
    node->tick_at = BT_TIME_NEVER;
    if (node->prefill)
        feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_TICK});
    else
        feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_TICK});
}

// --- links -------------------------------------------------------------------------------------------------------------------

typedef enum { UP, DOWN, MESSAGE } news;

static void
tell(sim_world *w, uint32_t self, uint32_t other, news what, const bt_message *message)
{
    static const bt_router_event_kind router[] = {BT_ROUTER_NODE_UP, BT_ROUTER_NODE_DOWN, BT_ROUTER_NODE_MESSAGE};
    static const bt_prefill_event_kind prefill[] = {BT_PREFILL_LINK_UP, BT_PREFILL_LINK_DOWN, BT_PREFILL_MESSAGE};
    static const bt_decode_event_kind decode[] = {BT_DECODE_LINK_UP, BT_DECODE_LINK_DOWN, BT_DECODE_MESSAGE};
    uint32_t peer = self == SIM_ROUTER ? other : peer_of(w, self, other);

    if (self == SIM_ROUTER)
        sim_feed_router(w, &(bt_router_event){.kind = router[what], .node = peer, .message = message});
    else if (w->nodes[self].prefill)
        feed_prefill(w, self, &(bt_prefill_event){.kind = prefill[what], .peer = peer, .message = message});
    else
        feed_decode(w, self, &(bt_decode_event){.kind = decode[what], .peer = peer, .message = message});
}

void
sim_node_deliver(sim_world *w, const sim_letter *letter)
{
    const bt_message *message = letter->message;

    tell(w, letter->to, letter->from, MESSAGE, message);
    // A greeting of a prefill node: its memory is connected and a block of it found good at once.
    if (letter->to != SIM_ROUTER && letter->from != SIM_ROUTER && !w->nodes[letter->to].prefill &&
        message->kind == BT_MESSAGE_HELLO)
        feed_decode(w, letter->to,
                    &(bt_decode_event){.kind = BT_DECODE_SOURCE,
                                       .peer = peer_of(w, letter->to, letter->from),
                                       .epoch = message->hello.epoch,
                                       .up = true});
}

static void
tell_others(sim_world *w, uint32_t self, news what)
{
    bool both = what == UP;

    tell(w, SIM_ROUTER, self, what, NULL);
    if (both)
        tell(w, self, SIM_ROUTER, what, NULL);
    for (uint32_t other = 0; other < w->setup->prefills + w->setup->decodes; other++) {
        if (!w->nodes[other].up || other == self || !are_neighbours(w, self, other))
            continue;
        tell(w, other, self, what, NULL);
        if (both)
            tell(w, self, other, what, NULL);
    }
}

static bt_err
open_core(sim_world *w, uint32_t self)
{
    sim_node *node = &w->nodes[self];

    if (node->prefill) {
        bt_prefill_limits limits = w->prefill_limits;

        limits.epoch = node->epoch;
        snprintf(limits.name, sizeof limits.name, "p%u", self + 1);
        return bt_prefill_core_open(&node->reader, &limits, w->why);
    }
    bt_decode_limits limits = w->decode_limits;

    limits.epoch = node->epoch;
    snprintf(limits.name, sizeof limits.name, "d%u", self - w->setup->prefills + 1);
    return bt_decode_core_open(&node->writer, &limits, w->why);
}

void
sim_node_start(sim_world *w, uint32_t self)
{
    sim_node *node = &w->nodes[self];
    bt_err err;

    node->epoch = ++w->epochs;
    node->life++;
    for (uint32_t i = 0; node->prefill && i < w->prefill_limits.blocks; i++)
        node->trailers[i] = (sim_trailer){0};
    if ((err = open_core(w, self)) != BT_OK) {
        w->err = err; // it said why
        return;
    }
    node->up = true;
    node->tick_at = BT_TIME_NEVER;
    tell_others(w, self, UP);
}

// The others hear of it at once, as where a process dies and its machine does not.
void
sim_node_kill(sim_world *w, uint32_t self)
{
    sim_node *node = &w->nodes[self];

    node->up = false;
    node->life++;
    close_cores(node);
    for (uint32_t i = 0; !node->prefill && i < w->decode_limits.sequences; i++)
        node->fetches[i] = NULL; // their events free them
    tell_others(w, self, DOWN);
}

static void
check_prefill(sim_world *w, uint32_t self)
{
    bt_prefill_stats stats;
    bt_why why = {{0}};

    bt_prefill_core_get_stats(w->nodes[self].reader, &stats);
    if (stats.waiting + stats.reading + stats.holding + stats.ending != 0 || stats.leak != 0 ||
        stats.blocks_free + stats.blocks_cached != stats.blocks || !bt_prefill_core_sound(w->nodes[self].reader, &why))
        sim_fail(w, BT_ERR_BUG, "prefill node %u is not idle when all is over: %u prompts, %u of %u blocks, %s", self,
                 stats.waiting + stats.reading + stats.holding + stats.ending,
                 stats.blocks - stats.blocks_free - stats.blocks_cached, stats.blocks, why.text);
}

static void
check_decode(sim_world *w, uint32_t self)
{
    bt_decode_stats stats;
    bt_why why = {{0}};
    uint32_t busy;

    bt_decode_core_get_stats(w->nodes[self].writer, &stats);
    busy = stats.waiting + stats.granted + stats.fetching + stats.prefilling + stats.decoding + stats.ending;
    if (busy != 0 || stats.leak != 0 || stats.blocks_promised != 0 ||
        stats.blocks_free + stats.blocks_cached != stats.blocks || !bt_decode_core_sound(w->nodes[self].writer, &why))
        sim_fail(w, BT_ERR_BUG, "decode node %u is not idle when all is over: %u sequences, %u of %u blocks, %s", self,
                 busy, stats.blocks - stats.blocks_free - stats.blocks_cached, stats.blocks, why.text);
}

void
sim_nodes_check_idle(sim_world *w)
{
    for (uint32_t i = 0; i < w->setup->prefills + w->setup->decodes; i++) {
        if (!w->nodes[i].up)
            continue;
        if (w->nodes[i].prefill)
            check_prefill(w, i);
        else
            check_decode(w, i);
    }
}
