#include "tests/sim/world.h"
#include "tests/sim/inside.h"

#include <inttypes.h>

static void
draw_limits(world *w)
{
    bool differs = w->options.differs, full = w->one_in[WORLD_FULL_POOLS] > 0;
    uint32_t sequences = full ? draw(w, 1, 2) : draw(w, 1, 8), least = WORLD_FETCH_BLOCKS;

    w->decode_limits = (bt_decode_limits){.model = 1,
                                          .weights = differs ? 6 : 7,
                                          .layout = 2,
                                          .sequences = sequences,
                                          .queue_max = draw(w, 0, full ? 1 : 4),
                                          .chunk_tokens = sequences + draw(w, 0, 40),
                                          .prefill_tokens = draw(w, 1, 24),
                                          .block_tokens = WORLD_BLOCK,
                                          .blocks = draw(w, least,
                                                         full           ? least + 4
                                                         : one_in(w, 2) ? 40
                                                                        : 200),
                                          .context = WORLD_CONTEXT,
                                          .vocab = WORLD_VOCAB,
                                          .lease = WORLD_LEASE,
                                          .fetches = true,
                                          .prompt_weights = differs ? 5 : 7,
                                          .fetch_blocks = draw(w, 1, WORLD_FETCH_BLOCKS)};
    w->decode_limits.source_silence = draw(w, 3, 10) * BT_SECOND;
    w->decode_limits.logit_rows = draw(w, sequences, sequences + 8);
    w->prefill_limits.model = 1;
    w->prefill_limits.weights = differs ? 5 : 7;
    w->prefill_limits.layout = 2;
    w->prefill_limits.sequences = draw(w, 1, 8);
    w->prefill_limits.logit_rows = w->prefill_limits.sequences;
    w->prefill_limits.prompts = draw(w, 1, full ? 2 : 12);
    w->prefill_limits.chunk_tokens = draw(w, 1, 64);
    w->prefill_limits.block_tokens = WORLD_BLOCK;
    w->prefill_limits.blocks = draw(w, least, full ? least + 4 : one_in(w, 2) ? 40 : 200);
    w->prefill_limits.context = WORLD_CONTEXT;
    w->prefill_limits.vocab = WORLD_VOCAB;
    w->prefill_limits.lease = WORLD_LEASE;
    w->prefill_limits.description = (const uint8_t *)"pool";
    w->prefill_limits.description_bytes = 4;
    w->router_limits = (bt_router_limits){.context = WORLD_CONTEXT,
                                          .vocab = WORLD_VOCAB,
                                          .seed = w->options.seed,
                                          .node_silence = draw(w, 3, 10) * BT_SECOND,
                                          .requests_max = draw(w, 1, 32),
                                          .queue_max = draw(w, 1, 32),
                                          .two_weights = differs,
                                          .affinity_entries = draw(w, 1, 200),
                                          .remote_tokens_min = draw(w, 1, 40),
                                          .affinity_tokens = draw(w, 2, 24),
                                          .degrade_after = draw(w, 1, one_in(w, 2) ? 20 : 2000) * BT_MILLISECOND};
}

static void
draw_sizes(world *w)
{
    world_options *options = &w->options;

    options->routers = one_in(w, 2) ? 1 : draw(w, 1, options->routers);
    options->prefills = draw(w, 0, options->prefills);
    options->decodes = draw(w, 1, options->decodes);
    options->differs = options->prefills > 0 && one_in(w, 3);
}

static void
open_members(world *w)
{
    const world_options *options = &w->options;

    for (uint32_t i = 0; i < WORLD_MEMBERS; i++) {
        world_member *member = &w->members[i];

        member->role = i < WORLD_PREFILL_0 ? BT_NODE_ROUTER : i < WORLD_DECODE_0 ? BT_NODE_PREFILL : BT_NODE_DECODE;
        member->exists = i < WORLD_PREFILL_0  ? i < options->routers
                         : i < WORLD_DECODE_0 ? i - WORLD_PREFILL_0 < options->prefills
                                              : i - WORLD_DECODE_0 < options->decodes;
        if (!member->exists)
            continue;
        member->clock = draw(w, 0, 1000000) * BT_MILLISECOND;
        member->router_out = malloc(sizeof(bt_router_actions));
        member->prefill_out = malloc(sizeof(bt_prefill_actions));
        member->decode_out = malloc(sizeof(bt_decode_actions));
    }
    world_links_open(w);
    for (uint32_t i = 0; i < WORLD_MEMBERS; i++) {
        if (w->members[i].exists)
            world_start(w, i);
    }
}

void
world_open(world *w, const world_options *options)
{
    memset(w, 0, sizeof *w);
    w->options = *options;
    w->rng.state = options->seed;
    w->now = BT_SECOND;
    w->queue_max = 288; // messages that wait, and those in flight
    world_watch_aborts(w);
    if (w->options.routers == 0)
        w->options.routers = 1;
    if (options->draws_sizes)
        draw_sizes(w);
    if (options->draws_faults)
        world_draw_faults(w);
    if (options->draws_faults && one_in(w, 6)) {
        w->one_in[WORLD_FULL_POOLS] = 1;
        w->totals.injected[WORLD_FULL_POOLS] = 1;
    }
    draw_limits(w);
    if (options->tune != NULL)
        options->tune(w);
    w->arrival_gap = draw(w, 1, 20) * BT_MILLISECOND;
    w->next_arrival = w->now + BT_SECOND; // they meet before the first client comes
    open_members(w);
}

void
world_close(world *w)
{
    for (uint32_t i = 0; i < WORLD_MEMBERS; i++) {
        world_member *member = &w->members[i];

        if (member->up && member->role != BT_NODE_ROUTER)
            fake_engine_fini(&member->engine);
        bt_router_close(member->router);
        bt_prefill_core_close(member->prefill);
        bt_decode_core_close(member->decode);
        free(member->router_out);
        free(member->prefill_out);
        free(member->decode_out);
    }
    world_links_close(w);
}

bt_time
world_local(const world *w, uint32_t member)
{
    return w->now + w->members[member].clock;
}

// --- time --------------------------------------------------------------------------------------------------------------------

static bt_time
next_time(const world *w, uint32_t clients)
{
    bt_time next = BT_TIME_NEVER;

    if (w->client_count < clients)
        earlier(&next, w->next_arrival);
    world_clients_next(w, &next);
    world_links_next(w, &next);
    for (uint32_t i = 0; i < WORLD_MEMBERS; i++)
        world_member_next(w, i, &next);
    return next > w->now ? next : w->now;
}

static void
turn(world *w, uint32_t clients)
{
    if (w->client_count < clients && w->next_arrival <= w->now) {
        world_arrive(w);
        w->next_arrival = w->now + draw(w, 0, 2) * w->arrival_gap;
    }
    world_links_turn(w);
    for (uint32_t i = 0; i < WORLD_MEMBERS; i++)
        world_member_turn(w, i);
    world_clients_turn(w);
    if (w->options.draws_faults)
        world_faults_turn(w);
    world_check_all(w);
}

void
world_run(world *w, uint32_t clients)
{
    bt_time limit = BT_TIME_NEVER, quiet = 0;
    uint64_t turns = 0;

    MUST(w, clients <= WORLD_CLIENTS_MAX);
    while (w->client_count < clients || w->alive > 0 || w->now < quiet) {
        if (w->client_count == clients && limit == BT_TIME_NEVER) {
            world_faults_end(w); // once faults stop, all ends
            limit = w->now + 60 * BT_SECOND;
        }
        w->now = next_time(w, clients);
        turn(w, clients);
        if (w->client_count < clients || w->alive > 0)
            quiet = w->now + 20 * BT_SECOND; // past every lease
        if (w->alive > 0 && (w->now > limit || ++turns > 10000000))
            world_fail(w, __FILE__, __LINE__, "%u clients still wait", w->alive);
    }
    world_check_home(w);
}

void
world_inject(world *w, uint32_t from, uint32_t to, const bt_message *message)
{
    for (uint32_t peer = 0; peer < WORLD_PEERS_MAX; peer++) {
        if (w->conn_of[to][peer] == NULL || w->member_of[to][peer] != from)
            continue;
        world_tell(w, to, peer, WORLD_MESSAGE, message);
        return;
    }
    world_fail(w, __FILE__, __LINE__, "no link from %u to %u", from, to);
}

void
world_advance(world *w, bt_time span)
{
    bt_time until = w->now + span;

    for (bt_time next = next_time(w, 0); next <= until; next = next_time(w, 0)) {
        w->now = next;
        turn(w, 0);
    }
    w->now = until;
}

// --- what became of it -------------------------------------------------------------------------------------------------------

// The counters that all have, by name: a table, so that adding, printing and JSON cannot differ.
static const struct {
    const char *name;
    size_t offset;
} counters[] = {
#define COUNTER(name)                                                                                                  \
    {                                                                                                                  \
#name, offsetof(world_totals, name)                                                                            \
    }
    COUNTER(accepted),      COUNTER(stopped), COUNTER(full),      COUNTER(cancelled),   COUNTER(failed),
    COUNTER(refused),       COUNTER(no_node), COUNTER(bad),       COUNTER(unreachable), COUNTER(lost_with_router),
    COUNTER(degraded),      COUNTER(moves),   COUNTER(tokens),    COUNTER(scored),      COUNTER(remote),
    COUNTER(remote_failed), COUNTER(fetched), COUNTER(refetched), COUNTER(stale),       COUNTER(events),
};

#define COUNTERS (sizeof counters / sizeof *counters)

static uint64_t *
counter_of(const world_totals *totals, size_t i)
{
    return (uint64_t *)((char *)totals + counters[i].offset);
}

void
world_add(world_totals *sum, const world_totals *totals)
{
    for (size_t i = 0; i < COUNTERS; i++)
        *counter_of(sum, i) += *counter_of(totals, i);
    for (uint32_t i = 0; i < WORLD_FAULTS; i++)
        sum->injected[i] += totals->injected[i];
}

void
world_print(FILE *file, const world_totals *totals)
{
    for (size_t i = 0; i < COUNTERS; i++)
        fprintf(file, "%s%" PRIu64 " %s", i > 0 ? ", " : "", *counter_of(totals, i), counters[i].name);
    fprintf(file, "\nfaults:");
    for (uint32_t i = 0; i < WORLD_FAULTS; i++)
        fprintf(file, " %s %" PRIu64, world_fault_names[i], totals->injected[i]);
    fprintf(file, "\n");
}

void
world_print_json(FILE *file, const world_totals *totals)
{
    uint64_t all = 0;

    for (size_t i = 0; i < COUNTERS; i++)
        fprintf(file, "\"%s\":%" PRIu64 ",", counters[i].name, *counter_of(totals, i));
    fprintf(file, "\"faults\":{");
    for (uint32_t i = 0; i < WORLD_FAULTS; i++) {
        fprintf(file, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", world_fault_names[i], totals->injected[i]);
        all += totals->injected[i];
    }
    fprintf(file, "},\"faults_all\":%" PRIu64, all);
}
