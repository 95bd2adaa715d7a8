// What must hold. After an event, of the core that had it: its own accounts, only moves that the tables below allow, landing blocks that
// stay lent, leases that end. After a turn, between members: whatever one holds for another is wanted there, and the first of a queue
// goes when all that it needs is free.
#include "decode-node/inside.h"
#include "prefill-node/inside.h"
#include "router/inside.h"
#include "router/place.h"
#include "tests/sim/inside.h"

#define ALONE_MAX                                                                                                      \
    (2500 * BT_MILLISECOND) // for what is over elsewhere, by a link that works: a heartbeat shows what was lost
#define HEAD_MAX (500 * BT_MILLISECOND) // for the first of a queue, while all that it needs is free

#define TO(state) (1u << (state))

// From which state may a slot be found in which after one event? A new tenant comes from FREE.
static const unsigned request_moves[BT_REQUEST_STATES] = {
    [BT_REQUEST_FREE] = TO(BT_REQUEST_FREE) | TO(BT_REQUEST_QUEUED) | TO(BT_REQUEST_RESERVING),
    [BT_REQUEST_QUEUED] = TO(BT_REQUEST_FREE) | TO(BT_REQUEST_QUEUED) | TO(BT_REQUEST_RESERVING),
    [BT_REQUEST_RESERVING] =
        TO(BT_REQUEST_FREE) | TO(BT_REQUEST_QUEUED) | TO(BT_REQUEST_RESERVING) | TO(BT_REQUEST_PREFILLING),
    [BT_REQUEST_PREFILLING] = TO(BT_REQUEST_FREE) | TO(BT_REQUEST_QUEUED) | TO(BT_REQUEST_RESERVING) |
                              TO(BT_REQUEST_PREFILLING) | TO(BT_REQUEST_FETCHING) | TO(BT_REQUEST_DECODING),
    [BT_REQUEST_FETCHING] = TO(BT_REQUEST_FREE) | TO(BT_REQUEST_QUEUED) | TO(BT_REQUEST_RESERVING) |
                            TO(BT_REQUEST_FETCHING) | TO(BT_REQUEST_DECODING),
    [BT_REQUEST_DECODING] =
        TO(BT_REQUEST_FREE) | TO(BT_REQUEST_QUEUED) | TO(BT_REQUEST_RESERVING) | TO(BT_REQUEST_DECODING),
};

static const unsigned sequence_moves[] = {
    [BT_SEQUENCE_FREE] = TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_WAITING) | TO(BT_SEQUENCE_GRANTED),
    [BT_SEQUENCE_WAITING] = TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_WAITING) | TO(BT_SEQUENCE_GRANTED),
    [BT_SEQUENCE_GRANTED] = TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_GRANTED) | TO(BT_SEQUENCE_FETCHING) |
                            TO(BT_SEQUENCE_PREFILLING) | TO(BT_SEQUENCE_ENDING), // an OFFER at the end of its lease
    [BT_SEQUENCE_FETCHING] = TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_FETCHING) | TO(BT_SEQUENCE_PREFILLING) |
                             TO(BT_SEQUENCE_DECODING) | TO(BT_SEQUENCE_ENDING),
    [BT_SEQUENCE_PREFILLING] =
        TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_PREFILLING) | TO(BT_SEQUENCE_DECODING) | TO(BT_SEQUENCE_ENDING),
    [BT_SEQUENCE_DECODING] = TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_DECODING) | TO(BT_SEQUENCE_ENDING),
    [BT_SEQUENCE_ENDING] = TO(BT_SEQUENCE_FREE) | TO(BT_SEQUENCE_ENDING),
};

static const unsigned prompt_moves[] = {
    [BT_PROMPT_FREE] = TO(BT_PROMPT_FREE) | TO(BT_PROMPT_WAITING) | TO(BT_PROMPT_READING),
    [BT_PROMPT_WAITING] = TO(BT_PROMPT_FREE) | TO(BT_PROMPT_WAITING) | TO(BT_PROMPT_READING),
    [BT_PROMPT_READING] = TO(BT_PROMPT_FREE) | TO(BT_PROMPT_READING) | TO(BT_PROMPT_HOLDING) | TO(BT_PROMPT_ENDING),
    [BT_PROMPT_HOLDING] = TO(BT_PROMPT_FREE) | TO(BT_PROMPT_HOLDING),
    [BT_PROMPT_ENDING] = TO(BT_PROMPT_FREE) | TO(BT_PROMPT_ENDING),
};

// `life` names the tenant of the slot.
static void
check_move(world *w, const char *of, uint32_t self, uint32_t slot, const unsigned *moves, uint32_t state, uint32_t life)
{
    world_shadow *shadow = &w->members[self].shadows[slot];
    uint32_t from = shadow->generation == life ? shadow->state : 0;

    MUST(w, slot < WORLD_SLOTS_MAX);
    if ((moves[from] >> state & 1) == 0)
        world_fail(w, __FILE__, __LINE__, "%s %u: from state %u to %u in one event", of, slot, from, state);
    if (shadow->generation != life)
        *shadow = (world_shadow){0};
    shadow->state = state;
    shadow->generation = life;
}

// --- one router --------------------------------------------------------------------------------------------------------------

static uint32_t
clients_of(const world *w, uint32_t router)
{
    uint32_t count = 0;

    for (uint32_t i = w->first_alive; i < w->client_count; i++)
        count += w->clients[i].alive && w->clients[i].accepted && w->clients[i].router == router;
    return count;
}

static void
check_attempt(world *w, const world_shadow *before, const bt_request *request)
{
    if (before->generation != request->generation) {
        MUST(w, request->attempt == (request->state == BT_REQUEST_RESERVING));
        return;
    }
    if (request->state == BT_REQUEST_RESERVING && before->state != BT_REQUEST_RESERVING)
        MUST(w, request->attempt == before->attempt + 1);
    else if (request->state == BT_REQUEST_RESERVING)
        MUST(w, request->attempt == before->attempt || request->attempt == before->attempt + 1);
    else
        MUST(w, request->attempt == before->attempt);
}

static void
check_router(world *w, uint32_t self)
{
    const bt_router *router = w->members[self].router;
    bt_router_stats stats;

    bt_router_get_stats(router, &stats);
    MUST(w, stats.leak == 0);
    MUST(w, stats.queued <= router->limits.requests_max);
    MUST(w, stats.queued + stats.running == clients_of(w, self));
    if (!w->lossy)
        MUST(w, stats.bad_messages == 0);
    for (uint32_t i = 0; i < router->requests.capacity; i++) {
        const bt_request *request = &router->requests.slots[i];
        world_shadow before = w->members[self].shadows[i];

        if (request->state != BT_REQUEST_FREE)
            check_attempt(w, &before, request);
        check_move(w, "request", self, i, request_moves, request->state, request->generation);
        w->members[self].shadows[i].attempt = request->attempt;
        MUST(w, request->deadline > world_local(w, self) || request->state == BT_REQUEST_FREE);
    }
}

// --- one prefill node --------------------------------------------------------------------------------------------------------

static void
check_prompt_lease(world *w, uint32_t self, const bt_prefill_core *core, const bt_prompt *prompt)
{
    bt_time now = world_local(w, self);
    bt_time late = core->limits.heartbeat + 100 * BT_MILLISECOND;

    if (prompt->state == BT_PROMPT_FREE || prompt->state == BT_PROMPT_ENDING)
        return;
    MUST(w, prompt->hold_end > now && prompt->deadline > now);
    if (prompt->state == BT_PROMPT_HOLDING && prompt->decode == BT_PROMPT_NONE)
        MUST(w, prompt->hold_end <= now + core->limits.lease);
    if (prompt->decode != BT_PROMPT_NONE)
        MUST(w, later(core->peers[prompt->decode].lease_end, prompt->received) + late > now);
    if (prompt->router != BT_PROMPT_NONE && prompt->state != BT_PROMPT_HOLDING)
        MUST(w, later(core->peers[prompt->router].lease_end, prompt->received) + late > now);
}

static void
check_idle_prefill(world *w, const bt_prefill_core *core)
{
    const bt_prompt *first = core->prompts.queued > 0 ? &core->prompts.slots[core->prompts.queue_first] : NULL;

    for (uint32_t i = 0; !core->stepping && i < core->prompts.capacity; i++)
        MUST(w, core->prompts.slots[i].state != BT_PROMPT_READING);
    if (first != NULL)
        MUST(w, bt_kv_blocks_for(first->count, WORLD_BLOCK) > bt_kv_pool_available(core->pool));
}

static void
check_prefill(world *w, uint32_t self)
{
    const bt_prefill_core *core = w->members[self].prefill;
    bt_prefill_stats stats;
    bt_why why = {0};

    if (!bt_prefill_core_sound(core, &why))
        world_fail(w, __FILE__, __LINE__, "prefill node: %s", why.text);
    check_idle_prefill(w, core);
    bt_prefill_core_get_stats(core, &stats);
    if (!w->lossy)
        MUST(w, stats.bad_messages == 0);
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        const bt_prompt *prompt = &core->prompts.slots[i];

        check_move(w, "prompt", self, i, prompt_moves, prompt->state, (uint32_t)prompt->serial);
        check_prompt_lease(w, self, core, prompt);
    }
}

// --- one decode node ---------------------------------------------------------------------------------------------------------

uint64_t
world_landing_generation(const world *w, uint32_t self, bt_block block)
{
    return bt_kv_pool_generation(w->members[self].decode->room.pool, block);
}

// What a fetch writes into stays lent to whom it was lent, until the fetch is over.
static void
check_landing(world *w, uint32_t self)
{
    const bt_decode_core *core = w->members[self].decode;

    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
        const world_fetch *fetch = &w->members[self].fetches[f];

        for (uint32_t i = 0; fetch->active && i < fetch->count; i++) {
            MUST(w, bt_kv_pool_holds(core->room.pool, fetch->blocks[i].to) == 1);
            MUST(w, bt_kv_pool_generation(core->room.pool, fetch->blocks[i].to) == fetch->landing[i]);
        }
    }
}

static void
check_sequence(world *w, uint32_t self, const bt_decode_core *core, const bt_sequence *sequence)
{
    if (sequence->state == BT_SEQUENCE_FREE || sequence->state == BT_SEQUENCE_ENDING)
        return;
    MUST(w, core->peers[sequence->peer].known);
    MUST(w, later(core->peers[sequence->peer].lease_end, sequence->received) + core->limits.heartbeat +
                    100 * BT_MILLISECOND >
                world_local(w, self)); // what comes under a lease that is over ends with the next sweep
    MUST(w, sequence->deadline > world_local(w, self));
    if (sequence->state == BT_SEQUENCE_FETCHING && sequence->fetch.flying == 0) // what is offered is fetched
        MUST(w, sequence->fetch.landed == sequence->fetch.offered && !sequence->fetch.last);
}

// Who could be in a step is in one, and the first of the queue has no room.
static void
check_idle_decode(world *w, const bt_decode_core *core)
{
    const bt_sequence *first = core->sequences.queued > 0 ? &core->sequences.slots[core->sequences.queue_first] : NULL;

    for (uint32_t i = 0; !core->stepping && i < core->sequences.capacity; i++)
        MUST(w, core->sequences.slots[i].state != BT_SEQUENCE_PREFILLING &&
                    core->sequences.slots[i].state != BT_SEQUENCE_DECODING);
    if (first != NULL && !core->unfinished && core->sequences.with_room < core->limits.sequences)
        MUST(w, core->room.promised + bt_room_worst(&core->room, first->prompt_count, first->max_tokens) >
                    bt_kv_pool_available(core->room.pool));
}

static void
check_decode(world *w, uint32_t self)
{
    const bt_decode_core *core = w->members[self].decode;
    bt_decode_stats stats;
    bt_why why = {0};

    if (!bt_decode_core_sound(core, &why))
        world_fail(w, __FILE__, __LINE__, "decode node: %s", why.text);
    bt_decode_core_get_stats(core, &stats);
    if (!w->lossy)
        MUST(w, stats.bad_messages == 0);
    check_landing(w, self);
    check_idle_decode(w, core);
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        const bt_sequence *sequence = &core->sequences.slots[i];

        check_move(w, "sequence", self, i, sequence_moves, sequence->state, sequence->generation);
        check_sequence(w, self, core, sequence);
    }
}

void
world_check_member(world *w, uint32_t self)
{
    w->totals.events++;
    if (w->members[self].role == BT_NODE_ROUTER)
        check_router(w, self);
    else if (w->members[self].role == BT_NODE_PREFILL)
        check_prefill(w, self);
    else
        check_decode(w, self);
}

// --- between members ---------------------------------------------------------------------------------------------------------

// The connection of `self` with its peer when both take it for open and nothing hinders them.
static const world_conn *
good_link(const world *w, uint32_t self, uint32_t peer)
{
    const world_conn *conn = w->conn_of[self][peer];
    uint32_t other = w->member_of[self][peer];

    if (conn == NULL || !conn->up[0] || !conn->up[1] || conn->expires[0] != BT_TIME_NEVER ||
        conn->expires[1] != BT_TIME_NEVER || !is_awake(w, self) || !is_awake(w, other) || is_cut(w, self, other) ||
        is_cut(w, other, self) || w->mute_until[self][other] > w->now || w->mute_until[other][self] > w->now)
        return NULL;
    return conn;
}

static bool
is_good_between(const world *w, uint32_t a, uint32_t b)
{
    for (uint32_t peer = 0; peer < WORLD_PEERS_MAX; peer++) {
        if (w->conn_of[a][peer] != NULL && w->member_of[a][peer] == b && good_link(w, a, peer) != NULL)
            return true;
    }
    return false;
}

// Has it been without its partner, over this good link, for too long?
static void
check_alone(world *w, const char *what, uint32_t self, uint32_t slot, const world_conn *conn, bool alone)
{
    world_shadow *shadow = &w->members[self].shadows[slot];

    if (!alone || conn == NULL) {
        shadow->orphan_since = 0;
        return;
    }
    if (shadow->orphan_since < conn->since)
        shadow->orphan_since = w->now;
    if (w->now - shadow->orphan_since > ALONE_MAX) {
        char name[8];

        world_fail(w, __FILE__, __LINE__, "%s %u of %s is alone since %.3f s", what, slot, world_name(self, name),
                   (double)shadow->orphan_since / (double)BT_SECOND);
    }
}

// Is there the room that the ticket names, and does it wait for this prefill node?
static const bt_sequence *
room_of(const world *w, uint32_t decode, const bt_ticket *ticket, uint32_t prefill)
{
    const bt_sequence *sequence = bt_decode_by_ticket(w->members[decode].decode, ticket);

    if (sequence == NULL || sequence->state == BT_SEQUENCE_GRANTED)
        return sequence;
    return sequence->state == BT_SEQUENCE_FETCHING && w->member_of[decode][sequence->fetch.source] == prefill ? sequence
                                                                                                              : NULL;
}

static void
check_prompts_alone(world *w, uint32_t self)
{
    const bt_prefill_core *core = w->members[self].prefill;

    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        const bt_prompt *prompt = &core->prompts.slots[i];
        const world_conn *conn = NULL;
        bool held = prompt->state == BT_PROMPT_HOLDING || prompt->state == BT_PROMPT_READING;

        if (held && prompt->decode != BT_PROMPT_NONE)
            conn = good_link(w, self, prompt->decode);
        check_alone(w, "prompt", self, i, conn,
                    conn != NULL && room_of(w, w->member_of[self][prompt->decode], &prompt->ticket, self) == NULL);
    }
}

static bool
is_wanted(const world *w, uint32_t self, const bt_sequence *sequence)
{
    uint32_t router = w->member_of[self][sequence->peer];
    const bt_request *request = bt_requests_find(&w->members[router].router->requests, sequence->request);

    return request != NULL && bt_request_at_node(request) && request->attempt == sequence->request.attempt &&
           request->node == self - WORLD_PREFILL_0;
}

// Is there a prompt at its prefill node that will be offered to it?
static bool
has_source(const world *w, uint32_t self, const bt_sequence *sequence)
{
    const bt_sequence_fetch *fetch = &sequence->fetch;
    bt_ticket ticket = {.slot = (uint32_t)(sequence - w->members[self].decode->sequences.slots),
                        .generation = sequence->generation};
    const bt_prefill_core *core = w->members[w->member_of[self][fetch->source]].prefill;

    if (fetch->flying > 0 || !is_good_between(w, w->member_of[self][sequence->peer], w->member_of[self][fetch->source]))
        return true; // the job may be under way
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        const bt_prompt *prompt = &core->prompts.slots[i];

        if (prompt->state != BT_PROMPT_FREE && prompt->ticket.epoch == w->members[self].epoch &&
            prompt->ticket.slot == ticket.slot && prompt->ticket.generation == ticket.generation)
            return true;
    }
    return false;
}

static void
check_sequences_alone(world *w, uint32_t self)
{
    const bt_decode_core *core = w->members[self].decode;

    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        const bt_sequence *sequence = &core->sequences.slots[i];
        const world_conn *conn = NULL;
        bool alone = false;

        if (sequence->state != BT_SEQUENCE_FREE && sequence->state != BT_SEQUENCE_ENDING) {
            conn = good_link(w, self, sequence->peer);
            // Wanted, and once it has room told at once where its prompt comes from.
            alone = conn != NULL && (!is_wanted(w, self, sequence) || sequence->state == BT_SEQUENCE_GRANTED);
        }
        if (conn != NULL && !alone && sequence->state == BT_SEQUENCE_FETCHING) {
            conn = good_link(w, self, sequence->fetch.source);
            alone = conn != NULL && !has_source(w, self, sequence);
        }
        check_alone(w, "sequence", self, i, conn, alone);
    }
}

// Has the node written more than its router has heard of, for too long?
static bool
is_behind(const world *w, world_shadow *shadow, const bt_request *request, const bt_sequence *sequence)
{
    if (shadow->answer != request->answer_count || shadow->answer_since == 0 ||
        bt_sequence_answer(sequence) <= request->answer_count) {
        shadow->answer = request->answer_count;
        shadow->answer_since = w->now;
    }
    return w->now - shadow->answer_since > ALONE_MAX;
}

static void
check_requests_alone(world *w, uint32_t self)
{
    const bt_router *router = w->members[self].router;

    for (uint32_t i = 0; i < router->requests.capacity; i++) {
        const bt_request *request = &router->requests.slots[i];
        const world_conn *conn = bt_request_at_node(request) ? good_link(w, self, request->node) : NULL;
        world_shadow *shadow = &w->members[self].shadows[i];
        const bt_sequence *sequence = NULL;

        if (conn != NULL)
            sequence = bt_sequences_find(&w->members[w->member_of[self][request->node]].decode->sequences,
                                         conn->peer[1], bt_requests_attempt(&router->requests, request));
        check_alone(w, "request", self, i, conn, conn != NULL && sequence == NULL);
        if (sequence == NULL)
            shadow->answer_since = 0;
        else if (is_behind(w, shadow, request, sequence))
            world_fail(w, __FILE__, __LINE__, "request %u has not heard of what was written for it since %.3f s", i,
                       (double)shadow->answer_since / (double)BT_SECOND);
    }
}

// Could the node grant this room at once, and would the router let it?
static bool
could_take(const world *w, uint32_t self, uint32_t peer, const bt_request *request)
{
    const bt_router *router = w->members[self].router;
    const bt_node *node = &router->registry.nodes[peer];
    const world_conn *conn = good_link(w, self, peer);
    const bt_decode_core *core = conn != NULL ? w->members[w->member_of[self][peer]].decode : NULL;
    bt_placing placing = {&router->registry, &router->affinity, &router->limits, world_local(w, self)};
    bt_decode_place place = bt_place_decode(&placing, request);
    uint32_t worst;

    if (core == NULL || place.unpaired || core->draining || !core->peers[conn->peer[1]].known ||
        !bt_node_decodes(node) || node->hello.draining || node->busy_until > placing.now ||
        !bt_breaker_allows(&node->breaker, placing.now))
        return false;
    worst = bt_registry_worst_blocks(node, request);
    if (core->sequences.queued > 0 || core->sequences.with_room >= core->limits.sequences ||
        core->room.promised + worst > bt_kv_pool_available(core->room.pool))
        return false;
    // The router counts worst cases that the node may find shared: it may hold back, but never without load of its own there.
    if (node->requests >= node->hello.sequences || node->blocks + worst > node->hello.blocks)
        return false;
    return !w->options.differs || place.node == peer;
}

static void
check_head(world *w, uint32_t self)
{
    world_member *member = &w->members[self];
    bt_requests *requests = &member->router->requests;
    const bt_request *first = is_awake(w, self) ? bt_requests_first(requests) : NULL;
    uint64_t head = first != NULL ? (uint64_t)(first - requests->slots) << 32 | first->generation : 0;
    bool could = false;

    for (uint32_t d = 0; first != NULL && !could && d < w->options.decodes; d++)
        could = could_take(w, self, WORLD_DECODE_0 + d - WORLD_PREFILL_0, first);
    if (!could || head != member->head)
        member->head_since = w->now;
    member->head = head;
    if (w->now - member->head_since > HEAD_MAX)
        world_fail(w, __FILE__, __LINE__, "request %u.%u waits since %.3f s, and there is room", (unsigned)(head >> 32),
                   (unsigned)head, (double)member->head_since / (double)BT_SECOND);
}

void
world_check_all(world *w)
{
    for (uint32_t i = 0; i < WORLD_MEMBERS; i++) {
        if (!w->members[i].up)
            continue;
        if (w->members[i].role == BT_NODE_PREFILL) {
            check_prompts_alone(w, i);
        } else if (w->members[i].role == BT_NODE_DECODE) {
            check_sequences_alone(w, i);
        } else {
            check_requests_alone(w, i);
            check_head(w, i);
        }
    }
}

// --- at rest -----------------------------------------------------------------------------------------------------------------

static void
check_node_home(world *w, uint32_t self)
{
    const world_member *member = &w->members[self];
    bt_prefill_stats p;
    bt_decode_stats d;

    if (member->role == BT_NODE_PREFILL) {
        bt_prefill_core_get_stats(member->prefill, &p);
        MUST(w, p.waiting + p.reading + p.holding + p.ending == 0);
        MUST(w, p.blocks_free + p.blocks_cached == p.blocks && p.leak == 0);
    } else {
        bt_decode_core_get_stats(member->decode, &d);
        MUST(w, d.waiting + d.granted + d.fetching + d.prefilling + d.decoding + d.ending == 0);
        MUST(w, d.blocks_free + d.blocks_cached == d.blocks && d.leak == 0 && d.blocks_promised == 0);
        w->totals.fetched += d.fetched_sequences;
        w->totals.refetched += d.refetches;
    }
}

void
world_check_home(world *w)
{
    bt_router_stats r;

    for (uint32_t i = 0; i < WORLD_MEMBERS; i++) {
        if (!w->members[i].exists)
            continue;
        MUST(w, w->members[i].up);
        if (w->members[i].role != BT_NODE_ROUTER) {
            check_node_home(w, i);
            continue;
        }
        bt_router_get_stats(w->members[i].router, &r);
        MUST(w, r.queued + r.running == 0 && r.leak == 0);
        MUST(w, r.nodes_up == w->options.prefills + w->options.decodes);
        w->totals.remote += r.remote;
        w->totals.remote_failed += r.remote_failed;
    }
}
