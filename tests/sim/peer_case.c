#include "tests/sim/peer_case.h"

#include <string.h>

static world the_world;
static case_sizes sizes_now;
static uint32_t unique;

world *const at = &the_world;

static uint32_t or (uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static void
tune(world *w)
{
    const case_sizes *s = &sizes_now;

    w->router_limits.requests_max = or (s->requests, 64);
    w->router_limits.queue_max = or (s->queue, 64);
    w->router_limits.remote_tokens_min = 1;
    w->router_limits.affinity_entries = 4096;
    w->router_limits.affinity_tokens = 8;
    w->router_limits.place = s->place;
    w->router_limits.degrade_after = s->degrade_after != 0 ? s->degrade_after : 50 * BT_MILLISECOND;
    w->prefill_limits.prompts = or (s->prompts, 8);
    w->prefill_limits.hold_max = s->hold_max;
    w->prefill_limits.sequences = w->prefill_limits.logit_rows = 4;
    w->prefill_limits.chunk_tokens = or (s->prefill_chunk, 8);
    w->prefill_limits.blocks = or (s->prefill_blocks, 64);
    w->prefill_limits.layout = s->prefill_layout != 0 ? s->prefill_layout : 2;
    w->decode_limits.sequences = w->decode_limits.logit_rows = or (s->sequences, 4);
    w->decode_limits.queue_max = or (s->waiting, 4);
    w->decode_limits.chunk_tokens = or (s->sequences, 4) + 16;
    w->decode_limits.prefill_tokens = 8;
    w->decode_limits.blocks = or (s->blocks, 64);
    w->decode_limits.fetch_blocks = or (s->fetch_blocks, WORLD_FETCH_BLOCKS);
    memcpy(w->one_in, s->one_in, sizeof w->one_in);
    w->failing = s->one_in[WORLD_DEVICE] > 0;
    w->lossy = true; // cases do what they like
}

void
case_open(const case_sizes *sizes)
{
    world_options options = {.seed = 1,
                             .routers = or (sizes->routers, 1),
                             .prefills = sizes->prefills,
                             .decodes = or (sizes->decodes, 1),
                             .differs = sizes->differs,
                             .tune = tune};

    sizes_now = *sizes;
    world_open(at, &options);
    world_advance(at, 200 * BT_MILLISECOND);
}

void
case_settle(void)
{
    bt_time limit = at->now + 60 * BT_SECOND;

    while (at->alive > 0 && at->now < limit)
        world_advance(at, 10 * BT_MILLISECOND);
    ck_assert_msg(at->alive == 0, "%u clients still wait", at->alive);
}

void
case_close(void)
{
    memset(at->one_in, 0, sizeof at->one_in);
    case_settle();
    world_advance(at, BT_SECOND);
    world_check_home(at);
    world_close(at);
}

uint32_t
case_ask_as(world_client client, uint32_t family)
{
    uint64_t seed = family != 0 ? family : 1000 + ++unique;

    for (uint32_t i = 0; i < client.prompt; i++)
        client.ids[i] = (int32_t)(bt_mix64(seed * 1000 + i) % WORLD_VOCAB);
    unique += client.own_tail > 0;
    for (uint32_t i = client.prompt - client.own_tail; i < client.prompt; i++)
        client.ids[i] = (int32_t)(bt_mix64((1000ull + unique) * 1000 + i) % WORLD_VOCAB);
    return world_ask(at, &client);
}

uint32_t
case_ask(uint32_t prompt, uint32_t max_tokens, uint32_t family)
{
    return case_ask_as((world_client){.prompt = prompt, .max_tokens = max_tokens}, family);
}

bool
case_alive(uint32_t client)
{
    return at->clients[client].alive;
}

uint32_t
case_heard(uint32_t client)
{
    return at->clients[client].answer;
}

bt_request_state
case_state(uint32_t client)
{
    const world_client *self = &at->clients[client];
    const bt_request *request = bt_requests_find(&at->members[self->router].router->requests, self->id);

    return request != NULL ? request->state : BT_REQUEST_FREE;
}

void
case_until_state(uint32_t client, bt_request_state state)
{
    bt_time limit = at->now + 10 * BT_SECOND;

    while (case_state(client) != state && at->now < limit)
        world_advance(at, 50 * BT_MICROSECOND);
    ck_assert_int_eq(case_state(client), state);
}

void
case_until(bool (*holds)(void))
{
    bt_time limit = at->now + 10 * BT_SECOND;

    while (!holds() && at->now < limit)
        world_advance(at, 50 * BT_MICROSECOND);
    ck_assert(holds());
}

bt_router_stats
case_router(uint32_t router)
{
    bt_router_stats stats;

    bt_router_get_stats(at->members[router].router, &stats);
    return stats;
}

bt_prefill_stats
case_prefill(uint32_t n)
{
    bt_prefill_stats stats;

    bt_prefill_core_get_stats(at->members[PREFILL(n)].prefill, &stats);
    return stats;
}

bt_decode_stats
case_decode(uint32_t n)
{
    bt_decode_stats stats;

    bt_decode_core_get_stats(at->members[DECODE(n)].decode, &stats);
    return stats;
}

uint32_t
case_peer(uint32_t member)
{
    return member - WORLD_PREFILL_0;
}
