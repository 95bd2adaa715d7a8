// The members: cores, and around them what their edges do with actions, in the order that their headers ask for. A send that a link
// refuses resets the core's view of it, as the edges do; a RESERVE stays with the router.
#include "tests/sim/inside.h"

static void
tell_proof(world *w, uint32_t self, uint32_t peer, world_news news, const bt_message *message)
{
    if (peer < BT_DECODE_ROUTERS_MAX)
        return;
    if (news == WORLD_DOWN)
        world_proof_down(w, self, peer - BT_DECODE_ROUTERS_MAX + WORLD_PREFILL_0);
    else if (news == WORLD_MESSAGE && message->kind == BT_MESSAGE_HELLO)
        world_proof_hear(w, self, peer - BT_DECODE_ROUTERS_MAX + WORLD_PREFILL_0, message->hello.epoch);
}

void
world_tell(world *w, uint32_t self, uint32_t peer, world_news news, const bt_message *message)
{
    static const bt_router_event_kind router[] = {BT_ROUTER_NODE_UP, BT_ROUTER_NODE_DOWN, BT_ROUTER_NODE_MESSAGE};
    static const bt_prefill_event_kind prefill[] = {BT_PREFILL_LINK_UP, BT_PREFILL_LINK_DOWN, BT_PREFILL_MESSAGE};
    static const bt_decode_event_kind decode[] = {BT_DECODE_LINK_UP, BT_DECODE_LINK_DOWN, BT_DECODE_MESSAGE};

    if (w->members[self].role == BT_NODE_ROUTER)
        world_feed_router(w, self, &(bt_router_event){.kind = router[news], .node = peer, .message = message});
    else if (w->members[self].role == BT_NODE_PREFILL)
        world_feed_prefill(w, self, &(bt_prefill_event){.kind = prefill[news], .peer = peer, .message = message});
    else
        world_feed_decode(w, self, &(bt_decode_event){.kind = decode[news], .peer = peer, .message = message});
    if (w->members[self].role == BT_NODE_DECODE)
        tell_proof(w, self, peer, news, message);
}

// A send that was refused: the link closes, for its peer does not read. A PREFILL is only too many: the router begins anew with that
// node.
static void
send(world *w, uint32_t self, uint32_t peer, const bt_message *message)
{
    world_member *member = &w->members[self];

    if (world_post(w, self, peer, message) == WORLD_SENT)
        return;
    member->any_failed = true;
    if (message->kind != BT_MESSAGE_PREFILL)
        member->link_failed[peer] = WORLD_LINK_CLOSES;
    else if (member->link_failed[peer] == WORLD_LINK_GOOD)
        member->link_failed[peer] = WORLD_LINK_ANEW;
}

static void
reset_failed_links(world *w, uint32_t self)
{
    world_member *member = &w->members[self];

    if (!member->any_failed)
        return;
    member->any_failed = false;
    for (uint32_t peer = 0; peer < WORLD_PEERS_MAX; peer++) {
        world_link_state state = member->link_failed[peer];

        member->link_failed[peer] = WORLD_LINK_GOOD;
        if (state == WORLD_LINK_GOOD || w->conn_of[self][peer] == NULL)
            continue;
        if (state == WORLD_LINK_CLOSES) {
            world_lose_link(w, self, peer, "gives up");
        } else {
            world_say(w, "resets", self, w->member_of[self][peer], BT_MESSAGE_NONE, peer, 0, 0);
            world_tell(w, self, peer, WORLD_DOWN, NULL);
            world_tell(w, self, peer, WORLD_UP, NULL);
        }
    }
}

// --- routers -----------------------------------------------------------------------------------------------------------------

typedef struct {
    bt_request_id request;
    uint32_t node;
} refusal;

static void
act_for_router(world *w, uint32_t self, const bt_router_action *action, refusal *refused, uint32_t *refused_count)
{
    const bt_message *message = &action->to_node.message;

    switch (action->kind) {
    case BT_ROUTER_TO_NODE:
        if (message->kind == BT_MESSAGE_RESERVE) {
            if (world_post(w, self, action->to_node.node, message) == WORLD_BUSY)
                refused[(*refused_count)++] = (refusal){action->request, action->to_node.node};
        } else {
            send(w, self, action->to_node.node, message);
        }
        break;
    case BT_ROUTER_TOKENS:
        world_hear_tokens(w, self, action);
        break;
    case BT_ROUTER_FINISHED:
        world_hear_end(w, self, action);
        break;
    case BT_ROUTER_ACCEPTED:
        w->clients[action->tag].id = action->request;
        w->clients[action->tag].accepted = true;
        break;
    case BT_ROUTER_REJECTED:
        w->clients[action->tag].refusal = action->rejected.err;
        MUST(w, action->rejected.retry_after > 0);
        break;
    }
}

void
world_feed_router(world *w, uint32_t self, const bt_router_event *event)
{
    world_member *member = &w->members[self];
    refusal refused[WORLD_SLOTS_MAX];
    uint32_t count = 0;

    bt_router_step(member->router, world_local(w, self), event, member->router_out);
    for (uint32_t i = 0; i < member->router_out->count; i++)
        act_for_router(w, self, &member->router_out->action[i], refused, &count);
    world_check_member(w, self);
    for (uint32_t i = 0; i < count; i++) {
        bt_router_event busy = {.kind = BT_ROUTER_NODE_BUSY, .request = refused[i].request, .node = refused[i].node};

        world_feed_router(w, self, &busy);
    }
}

// --- prefill nodes -----------------------------------------------------------------------------------------------------------

void
world_feed_prefill(world *w, uint32_t self, const bt_prefill_event *event)
{
    world_member *member = &w->members[self];
    bt_prefill_actions *out = member->prefill_out;

    bt_prefill_core_step(member->prefill, world_local(w, self), event, out);
    for (uint32_t i = 0; i < out->stamp_count; i++) {
        bt_block block = out->stamps[i].block;

        member->trailers[block] = (world_trailer){member->epoch, out->stamps[i].generation,
                                                  world_block_hash(&member->engine.cells[block * WORLD_BLOCK])};
    }
    for (uint32_t i = 0; i < out->send_count; i++)
        send(w, self, out->send[i].peer, &out->send[i].message);
    for (uint32_t i = 0; i < out->clear_count; i++)
        member->trailers[out->clears[i]] = (world_trailer){0};
    if (out->step != NULL) {
        MUST(w, member->reading == NULL);
        member->reading = out->step;
        member->step_ends = w->now + draw(w, 100, 4000) * BT_MICROSECOND;
        world_say(w, "reads", self, WORLD_MEMBERS, BT_MESSAGE_NONE, out->step->count, 0, 0);
    }
    world_check_member(w, self);
}

// --- decode nodes ------------------------------------------------------------------------------------------------------------

void
world_feed_decode(world *w, uint32_t self, const bt_decode_event *event)
{
    world_member *member = &w->members[self];
    bt_decode_actions *out = member->decode_out;

    bt_decode_core_step(member->decode, world_local(w, self), event, out);
    for (uint32_t i = 0; i < out->send_count; i++)
        send(w, self, out->send[i].peer, &out->send[i].message);
    for (uint32_t i = 0; i < out->cancel_count; i++)
        world_fetch_cancel(w, self, out->cancel[i]);
    if (out->has_fetch)
        world_fetch_begin(w, self, &out->fetch);
    if (out->step != NULL) {
        MUST(w, member->writing == NULL);
        member->writing = out->step;
        member->step_ends = w->now + draw(w, 100, 4000) * BT_MICROSECOND;
        world_say(w, "writes", self, WORLD_MEMBERS, BT_MESSAGE_NONE, out->step->count, 0, 0);
    }
    world_check_member(w, self);
}

// --- steps -------------------------------------------------------------------------------------------------------------------

// A step that failed: whatever it read or wrote may be spoilt.
static void
spoil(world *w, world_member *member, const bt_batch_item *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t p = 0; p < items[i].position + items[i].count; p++)
            member->engine.cells[items[i].blocks[p / WORLD_BLOCK] * WORLD_BLOCK + p % WORLD_BLOCK] =
                bt_rng_next(&w->rng);
    }
}

static void
end_step(world *w, uint32_t self)
{
    world_member *member = &w->members[self];
    bool prefills = member->role == BT_NODE_PREFILL;
    const bt_batch_item *items = prefills ? member->reading->items : member->writing->items;
    uint32_t count = prefills ? member->reading->count : member->writing->count;
    const bt_step_result *result = prefills ? &member->reading->result : &member->writing->result;
    bt_err err = strikes(w, WORLD_DEVICE) ? BT_ERR_DEVICE : BT_OK;

    member->step_ends = BT_TIME_NEVER;
    member->reading = NULL;
    member->writing = NULL;
    fake_engine_step(&member->engine, items, count, result);
    if (err != BT_OK)
        spoil(w, member, items, count);
    world_say(w, "stepped", self, WORLD_MEMBERS, BT_MESSAGE_NONE, count, (uint64_t)err, 0);
    if (prefills)
        world_feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_STEPPED, .err = err});
    else
        world_feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_STEPPED, .err = err});
}

// --- programs that start and end ---------------------------------------------------------------------------------------------

static void
name_node(char *name, char role, uint32_t number)
{
    name[0] = role;
    name[1] = (char)('0' + number);
}

uint64_t
world_engine_weights(const world *w, uint64_t digest)
{
    return w->options.differs ? digest : 0;
}

static void
start_router(world *w, uint32_t self)
{
    world_member *member = &w->members[self];
    bt_router_limits limits = w->router_limits;
    bt_why why = {0};

    limits.epoch = member->epoch;
    if (bt_router_open(&member->router, &limits, &why) != BT_OK)
        world_fail(w, __FILE__, __LINE__, "router: %s", why.text);
}

static void
start_prefill(world *w, uint32_t self)
{
    world_member *member = &w->members[self];
    bt_prefill_limits limits = w->prefill_limits;
    bt_why why = {0};

    limits.epoch = member->epoch;
    name_node(limits.name, 'p', self - WORLD_PREFILL_0);
    member->engine = (fake_engine){.blocks = limits.blocks,
                                   .chunk_tokens = limits.chunk_tokens,
                                   .sequences = limits.sequences,
                                   .logit_rows = limits.logit_rows,
                                   .weights = world_engine_weights(w, limits.weights)};
    if (bt_prefill_core_open(&member->prefill, &limits, &why) != BT_OK)
        world_fail(w, __FILE__, __LINE__, "prefill node: %s", why.text);
}

static void
start_decode(world *w, uint32_t self)
{
    world_member *member = &w->members[self];
    bt_decode_limits limits = w->decode_limits;
    bt_why why = {0};

    limits.epoch = member->epoch;
    name_node(limits.name, 'd', self - WORLD_DECODE_0);
    member->engine = (fake_engine){.blocks = limits.blocks,
                                   .chunk_tokens = limits.chunk_tokens,
                                   .sequences = limits.sequences,
                                   .logit_rows = limits.logit_rows,
                                   .weights = world_engine_weights(w, limits.weights)};
    if (bt_decode_core_open(&member->decode, &limits, &why) != BT_OK)
        world_fail(w, __FILE__, __LINE__, "decode node: %s", why.text);
}

void
world_start(world *w, uint32_t self)
{
    world_member *member = &w->members[self];

    member->up = true;
    member->draining = false;
    member->epoch = ++w->epochs + 100;
    member->step_ends = member->back_at = member->leaves_at = BT_TIME_NEVER;
    member->frozen_until = member->head_since = 0;
    memset(member->trailers, 0, sizeof member->trailers);
    memset(member->shadows, 0, sizeof member->shadows);
    world_say(w, "starts", self, WORLD_MEMBERS, BT_MESSAGE_NONE, member->epoch, 0, 0);
    if (member->role == BT_NODE_ROUTER)
        start_router(w, self);
    else if (member->role == BT_NODE_PREFILL)
        start_prefill(w, self);
    else
        start_decode(w, self);
    if (member->role != BT_NODE_ROUTER) {
        member->engine.block_tokens = WORLD_BLOCK;
        member->engine.vocab = WORLD_VOCAB;
        fake_engine_init(&member->engine);
    }
    world_reset_stale(w, self);
}

void
world_stop(world *w, uint32_t self, bool silently)
{
    world_member *member = &w->members[self];

    world_say(w, silently ? "vanishes" : "stops", self, WORLD_MEMBERS, BT_MESSAGE_NONE, member->epoch, 0, 0);
    if (member->role == BT_NODE_ROUTER)
        world_lose_clients(w, self);
    if (member->role == BT_NODE_PREFILL)
        world_source_dies(w, self);
    member->up = false;
    world_close_links_of(w, self, silently);
    bt_router_close(member->router);
    bt_prefill_core_close(member->prefill);
    bt_decode_core_close(member->decode);
    member->router = NULL;
    member->prefill = NULL;
    member->decode = NULL;
    member->reading = NULL;
    member->writing = NULL;
    member->any_failed = false;
    memset(member->link_failed, 0, sizeof member->link_failed);
    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++)
        member->fetches[f].active = false;
    memset(member->proofs, 0, sizeof member->proofs);
    if (member->role != BT_NODE_ROUTER)
        fake_engine_fini(&member->engine);
}

void
world_drain(world *w, uint32_t self)
{
    world_member *member = &w->members[self];

    member->draining = true;
    member->leaves_at = w->now + 5 * BT_SECOND; // at the latest
    world_say(w, "drains", self, WORLD_MEMBERS, BT_MESSAGE_NONE, member->epoch, 0, 0);
    if (member->role == BT_NODE_ROUTER)
        world_feed_router(w, self, &(bt_router_event){.kind = BT_ROUTER_DRAIN});
    else if (member->role == BT_NODE_PREFILL)
        world_feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_DRAIN});
    else
        world_feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_DRAIN});
}

static bool
is_idle(const world_member *member)
{
    bt_router_stats r;
    bt_prefill_stats p;
    bt_decode_stats d;

    switch (member->role) {
    case BT_NODE_ROUTER:
        bt_router_get_stats(member->router, &r);
        return r.queued + r.running == 0;
    case BT_NODE_PREFILL:
        bt_prefill_core_get_stats(member->prefill, &p);
        return p.waiting + p.reading + p.holding + p.ending == 0;
    default:
        bt_decode_core_get_stats(member->decode, &d);
        return d.waiting + d.granted + d.fetching + d.prefilling + d.decoding + d.ending == 0;
    }
}

// --- time --------------------------------------------------------------------------------------------------------------------

static bt_time
core_deadline(const world_member *member)
{
    bt_time deadline = member->role == BT_NODE_ROUTER    ? bt_router_next_deadline(member->router)
                       : member->role == BT_NODE_PREFILL ? bt_prefill_core_next_deadline(member->prefill)
                                                         : bt_decode_core_next_deadline(member->decode);

    return deadline == BT_TIME_NEVER ? deadline : deadline - member->clock;
}

static void
tick(world *w, uint32_t self)
{
    if (w->members[self].role == BT_NODE_ROUTER)
        world_feed_router(w, self, &(bt_router_event){.kind = BT_ROUTER_TICK});
    else if (w->members[self].role == BT_NODE_PREFILL)
        world_feed_prefill(w, self, &(bt_prefill_event){.kind = BT_PREFILL_TICK});
    else
        world_feed_decode(w, self, &(bt_decode_event){.kind = BT_DECODE_TICK});
}

static void
leave_if_done(world *w, uint32_t self)
{
    world_member *member = &w->members[self];

    if (!member->draining || (!is_idle(member) && member->leaves_at > w->now))
        return;
    world_stop(w, self, false);
    member->back_at = w->now + draw(w, 0, 500) * BT_MILLISECOND;
}

void
world_member_turn(world *w, uint32_t self)
{
    world_member *member = &w->members[self];

    if (!member->up) {
        if (member->exists && member->back_at <= w->now)
            world_start(w, self);
        return;
    }
    if (member->frozen_until > w->now)
        return;
    if (member->step_ends <= w->now)
        end_step(w, self);
    world_fetches_turn(w, self);
    if (member->role == BT_NODE_DECODE)
        world_proofs_turn(w, self);
    if (core_deadline(member) <= w->now)
        tick(w, self);
    reset_failed_links(w, self);
    leave_if_done(w, self);
}

void
world_member_next(const world *w, uint32_t self, bt_time *next)
{
    const world_member *member = &w->members[self];
    bt_time own = BT_TIME_NEVER;

    if (!member->exists)
        return;
    if (!member->up) {
        earlier(next, member->back_at);
        return;
    }
    own = core_deadline(member);
    earlier(&own, member->step_ends);
    earlier(&own, member->leaves_at);
    world_fetches_next(w, self, &own);
    world_proofs_next(w, self, &own);
    if (own != BT_TIME_NEVER)
        earlier(next, later(own, member->frozen_until));
}
