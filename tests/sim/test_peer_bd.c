// Groups B (death, restart, membership) and D (routing) of reference/peers.md 7: a case a row, named by it. And the table of all rows of
// A, B and D: which case holds a row, or which test elsewhere, or why it is not for us.
#include "tests/sim/peer_case.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

// --- B -----------------------------------------------------------------------------------------------------------------------

START_TEST(b1_a_prefill_node_killed_in_a_loop_under_load_takes_nothing_with_it)
{
    case_open(&(case_sizes){.prefills = 2, .decodes = 2, .requests = 200, .queue = 200});
    for (uint32_t i = 0; i < 500; i++) {
        if (i % 10 == 0)
            world_kill(at, PREFILL(i / 10 % 2), 20 * BT_MILLISECOND);
        case_ask(60, 6, 0);
        world_advance(at, 10 * BT_MILLISECOND);
    }
    case_settle();
    ck_assert_uint_eq(at->totals.full, 500);
    ck_assert_uint_gt(at->totals.moves, 10);
    case_close();
}
END_TEST

static bool
prefill_holds(void)
{
    return case_prefill(0).holding > 0;
}

// Without a word: power is gone. The lease of the dead ends what was held for it.
START_TEST(b2_after_a_decode_node_has_left_memory_is_back_where_it_was)
{
    case_open(&(case_sizes){.prefills = 1, .decodes = 2, .one_in = {[WORLD_FETCH_NEVER] = 1}});
    for (uint32_t i = 0; i < 4; i++)
        case_ask(60, 8, 0);
    case_until(prefill_holds);
    for (uint32_t d = 0; d < 2; d++)
        world_kill(at, DECODE(d), 30 * BT_SECOND);
    world_advance(at, 200 * BT_MILLISECOND);
    for (uint32_t client = 0; client < 4; client++)
        world_cancel(at, client);
    world_advance(at, WORLD_LEASE + 1200 * BT_MILLISECOND);
    ck_assert_uint_eq(case_prefill(0).holding + case_prefill(0).reading + case_prefill(0).waiting, 0);
    ck_assert_uint_eq(case_prefill(0).blocks_free + case_prefill(0).blocks_cached, case_prefill(0).blocks);
    world_advance(at, 35 * BT_SECOND);
    case_close();
}
END_TEST

// world_hear_end refuses an end without the content it claims; here each prefill restart meets running requests.
START_TEST(b3_a_restart_of_a_prefill_node_is_never_an_answer_without_content)
{
    case_open(&(case_sizes){.prefills = 1});
    for (uint32_t i = 0; i < 30; i++) {
        uint32_t client = case_ask(60, 6, 0);

        world_advance(at, i * 400 * BT_MICROSECOND);
        world_kill(at, PREFILL(0), 0);
        case_settle();
        ck_assert_uint_eq(case_heard(client), 6);
    }
    ck_assert_uint_eq(at->totals.full, 30);
    case_close();
}
END_TEST

static uint64_t
remote_after(uint32_t clients)
{
    uint64_t before = case_router(ROUTER).remote;

    for (uint32_t i = 0; i < clients; i++) {
        case_ask(60, 4, 0);
        case_settle();
    }
    return case_router(ROUTER).remote - before;
}

START_TEST(b4_a_peer_that_returns_is_used_again_however_often)
{
    case_open(&(case_sizes){.prefills = 1, .differs = true, .degrade_after = BT_MILLISECOND});
    for (uint32_t round = 0; round < 6; round++) {
        ck_assert_uint_eq(remote_after(3), 3);
        world_kill(at, PREFILL(0), 2 * BT_SECOND);
        world_advance(at, 100 * BT_MILLISECOND);
        ck_assert_uint_eq(remote_after(1), 0);
        world_advance(at, 12 * BT_SECOND);
    }
    case_close();
}
END_TEST

START_TEST(b5_after_a_session_failed_the_next_one_works)
{
    case_open(&(case_sizes){.prefills = 1, .differs = true});
    for (uint32_t round = 0; round < 4; round++) {
        at->one_in[WORLD_FETCH_BREAK] = 1;
        case_ask(60, 4, 0);
        world_advance(at, 20 * BT_MILLISECOND);
        at->one_in[WORLD_FETCH_BREAK] = 0;
        case_settle();
        world_advance(at, 12 * BT_SECOND);
        ck_assert_uint_eq(remote_after(2), 2);
    }
    case_close();
}
END_TEST

// Tensor parallel pairs are not here; what can differ is compared field by field, and who differs is told apart before a block moves.
START_TEST(b7_nodes_that_do_not_fit_each_other_are_never_paired)
{
    case_open(&(case_sizes){.prefills = 1, .prefill_layout = 3});
    ck_assert_uint_gt(case_decode(0).refused_sources, 0);
    ck_assert_uint_gt(case_prefill(0).refused_peers, 0);
    ck_assert_uint_eq(remote_after(3), 0);
    ck_assert_uint_eq(case_decode(0).fetches, 0);
    case_close();
}
END_TEST

START_TEST(b8_a_restarted_router_finds_all_its_nodes_again)
{
    uint32_t client;

    case_open(&(case_sizes){.prefills = 2, .decodes = 2});
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < 6; i++)
            case_ask(60, 30, 0);
        world_advance(at, round * 5 * BT_MILLISECOND);
        world_kill(at, ROUTER, 10 * BT_MILLISECOND);
        world_advance(at, 300 * BT_MILLISECOND);
        ck_assert_uint_eq(case_router(ROUTER).nodes_up, 4);
        client = case_ask(60, 4, 0);
        case_settle();
        ck_assert_uint_eq(case_heard(client), 4);
    }
    ck_assert_uint_gt(at->totals.lost_with_router, 20);
    case_close();
}
END_TEST

START_TEST(b11_with_every_decode_node_down_requests_are_refused_with_a_time_to_come_back)
{
    uint32_t waiting, refused;

    case_open(&(case_sizes){.prefills = 1, .decodes = 2});
    waiting = case_ask(60, 20, 0);
    case_until_state(waiting, BT_REQUEST_DECODING);
    for (uint32_t d = 0; d < 2; d++)
        world_kill(at, DECODE(d), 2 * BT_SECOND);
    world_advance(at, 100 * BT_MILLISECOND);
    refused = case_ask(60, 4, 0);
    ck_assert(!case_alive(refused) &&
              at->clients[refused].refusal == BT_ERR_PEER); // retry_after > 0 is asked of every refusal
    ck_assert(case_alive(waiting));                         // it had begun: it goes on when a node is back
    case_settle();
    ck_assert_uint_eq(case_heard(waiting), 20);
    case_close();
}
END_TEST

// --- D -----------------------------------------------------------------------------------------------------------------------

typedef struct {
    uint32_t least, most;
} spread;

static spread
spread_of(uint32_t first, uint32_t count, uint32_t (*load)(const bt_node *))
{
    const bt_registry *registry = &at->members[ROUTER].router->registry;
    spread found = {UINT32_MAX, 0};

    for (uint32_t i = 0; i < count; i++) {
        uint32_t now = load(&registry->nodes[case_peer(first + i)]);

        found.least = now < found.least ? now : found.least;
        found.most = now > found.most ? now : found.most;
    }
    return found;
}

static uint32_t
prompts_of(const bt_node *node)
{
    return node->prompts;
}

static uint32_t
requests_of(const bt_node *node)
{
    return node->requests;
}

START_TEST(d1_prefill_queues_stay_even_under_a_hot_prefix)
{
    uint32_t uneven = 0, longest = 0;

    case_open(&(case_sizes){.prefills = 3,
                            .decodes = 2,
                            .requests = 200,
                            .queue = 200,
                            .sequences = 16,
                            .blocks = 250,
                            .prompts = 16,
                            .prefill_blocks = 250,
                            .differs = true});
    for (uint32_t i = 0; i < 150; i++) {
        spread now;

        case_ask(80, 4, 1);
        world_advance(at, BT_MILLISECOND);
        now = spread_of(PREFILL(0), 3, prompts_of);
        uneven = now.most >= 8 && now.least == 0 ? uneven + 1 : 0; // of 16 places; the issue: 83 against 0
        longest = uneven > longest ? uneven : longest;
    }
    ck_assert_uint_lt(longest, 50);
    case_settle();
    for (uint32_t p = 0; p < 3; p++)
        ck_assert_uint_gt(case_prefill(p).read, 15);
    case_close();
}
END_TEST

START_TEST(d2_one_shared_system_prompt_does_not_send_everything_to_one_node)
{
    case_open(&(case_sizes){.decodes = 3, .requests = 200, .queue = 200, .sequences = 8, .blocks = 150});
    for (uint32_t i = 0; i < 150; i++) {
        case_ask(80, 8, 1);
        world_advance(at, 2 * BT_MILLISECOND);
    }
    case_settle();
    for (uint32_t d = 0; d < 3; d++)
        ck_assert_uint_gt(case_decode(d).finished, 15);
    ck_assert_uint_eq(at->totals.full, 150);
    case_close();
}
END_TEST

START_TEST(d3_no_decode_node_starves)
{
    uint64_t least = UINT64_MAX, most = 0;

    case_open(&(case_sizes){.prefills = 1, .decodes = 4, .requests = 400, .queue = 400, .sequences = 8, .blocks = 200});
    for (uint32_t i = 0; i < 400; i++) {
        case_ask(20, 20, 0);
        world_advance(at, 500 * BT_MICROSECOND);
    }
    case_settle();
    for (uint32_t d = 0; d < 4; d++) {
        uint64_t tokens = case_decode(d).answer_tokens;

        least = tokens < least ? tokens : least;
        most = tokens > most ? tokens : most;
    }
    ck_assert_uint_lt(most, least + least / 2);
    case_close();
}
END_TEST

// Every core counts its allocations while it serves as a bug of ours (bt_mem_serving_begin); this asks the same of its tables.
START_TEST(d5_the_routers_memory_has_a_bound_however_many_prefixes_there_were)
{
    const bt_router *router;
    const void *tables[3];

    case_open(&(case_sizes){.prefills = 1, .requests = 16, .queue = 16});
    router = at->members[ROUTER].router;
    tables[0] = router->requests.slots;
    tables[1] = router->requests.ids;
    tables[2] = router->registry.nodes;
    for (uint32_t i = 0; i < 900; i++) {
        case_ask(24, 2, 0);
        world_advance(at, 6 * BT_MILLISECOND);
    }
    ck_assert(tables[0] == router->requests.slots && tables[1] == router->requests.ids &&
              tables[2] == router->registry.nodes);
    ck_assert_uint_eq(router->requests.capacity, 16);
    case_close();
}
END_TEST

START_TEST(d6_lost_messages_cost_one_new_greeting_each_and_no_loop)
{
    case_open(&(case_sizes){
        .prefills = 2, .decodes = 2, .requests = 600, .queue = 600, .one_in = {[WORLD_DROP_FRAME] = 100}});
    for (uint32_t i = 0; i < 600; i++) {
        case_ask(50, 8, 0);
        world_advance(at, 4 * BT_MILLISECOND);
    }
    case_settle();
    ck_assert_uint_gt(at->totals.injected[WORLD_DROP_FRAME], 30);
    ck_assert_uint_eq(at->totals.full, at->totals.accepted);
    ck_assert_uint_gt(at->totals.accepted, 150); // others came while no node was there
    ck_assert_uint_lt(at->totals.moves, 60 * at->totals.injected[WORLD_DROP_FRAME]);
    world_advance(at, 5 * BT_SECOND);
    case_close();
}
END_TEST

// Load is what nodes say and what the router counts, not a stream of events: the same message again changes nothing.
START_TEST(d7_the_same_news_twice_counts_once)
{
    uint32_t client;
    int64_t blocks;
    bt_message heartbeat = {.kind = BT_MESSAGE_HEARTBEAT, .heartbeat = {.number = 5, .blocks_free = 40}};
    const bt_node *node;

    case_open(&(case_sizes){0});
    client = case_ask(30, 30, 0);
    case_until_state(client, BT_REQUEST_DECODING);
    node = &at->members[ROUTER].router->registry.nodes[case_peer(DECODE(0))];
    blocks = (int64_t)node->blocks;
    heartbeat.heartbeat.tokens_number = node->tokens_number;
    for (int i = 0; i < 10; i++)
        world_inject(at, DECODE(0), ROUTER, &heartbeat);
    ck_assert_int_eq((int64_t)node->blocks, blocks);
    ck_assert_uint_eq(node->requests, 1);
    case_settle();
    ck_assert_uint_eq(case_heard(client), 30);
    case_close();
}
END_TEST

START_TEST(d8_a_node_that_joins_under_load_takes_its_share_and_no_more)
{
    uint64_t at_first[3];

    case_open(&(case_sizes){.decodes = 3, .requests = 300, .queue = 300, .sequences = 6, .blocks = 150});
    world_kill(at, DECODE(2), 300 * BT_MILLISECOND);
    for (uint32_t i = 0; i < 300; i++) {
        case_ask(20, 12, 0);
        world_advance(at, 15 * BT_MILLISECOND); // it is met within two of the four seconds
        if (i == 200) {
            for (uint32_t d = 0; d < 3; d++)
                at_first[d] = at->members[DECODE(d)].up ? case_decode(d).finished : 0;
        }
    }
    case_settle();
    ck_assert_uint_gt(case_decode(2).finished, 20);
    ck_assert_uint_lt(case_decode(2).finished, 200); // of 300
    for (uint32_t d = 0; d < 2; d++)
        ck_assert_uint_gt(case_decode(d).finished - at_first[d], 20);
    case_close();
}
END_TEST

START_TEST(d9_arrivals_of_one_tick_spread_evenly)
{
    spread decodes;

    case_open(
        &(case_sizes){.decodes = 4, .requests = 1000, .queue = 1000, .sequences = 200, .waiting = 64, .blocks = 256});
    for (uint32_t i = 0; i < 1000; i++)
        case_ask(4, 4, 0);
    decodes = spread_of(DECODE(0), 4, requests_of);
    ck_assert_uint_gt(decodes.least, 100); // no message has come back yet
    ck_assert_uint_le(decodes.most - decodes.least, 2);
    case_close();
}
END_TEST

START_TEST(d10_counters_of_load_return_to_zero)
{
    const bt_registry *registry;

    case_open(&(case_sizes){.prefills = 2,
                            .decodes = 2,
                            .requests = 200,
                            .queue = 200,
                            .one_in = {[WORLD_FETCH_BREAK] = 4, [WORLD_DROP_FRAME] = 300}});
    for (uint32_t i = 0; i < 150; i++) {
        world_client client = {.prompt = 50, .max_tokens = 8};

        if (i % 3 == 0)
            client.gone_state = BT_REQUEST_QUEUED + i % 5;
        case_ask_as(client, i % 4);
        if (i % 40 == 20)
            world_kill(at, i % 80 == 20 ? PREFILL(0) : DECODE(1), 30 * BT_MILLISECOND);
        world_advance(at, 3 * BT_MILLISECOND);
    }
    case_settle();
    registry = &at->members[ROUTER].router->registry;
    for (uint32_t i = 0; i < registry->nodes_max; i++) {
        const bt_node *node = &registry->nodes[i];

        ck_assert_uint_eq(node->requests + node->reserving + node->prompts, 0);
        ck_assert_uint_eq(node->blocks + node->prefill_tokens, 0);
    }
    world_advance(at, 10 * BT_SECOND);
    case_close();
}
END_TEST

// Half of all prompts begin as one family's do, the others as seven more; each ends in its own way. Nodes hold few of them at a time.
static uint64_t
cached_under_skew(bt_place_policy place)
{
    uint64_t cached = 0;

    case_open(&(case_sizes){.decodes = 3, .requests = 300, .queue = 300, .sequences = 4, .blocks = 80, .place = place});
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t chance = bt_mix64(i);
        world_client client = {.prompt = 72, .max_tokens = 4, .own_tail = 8};

        case_ask_as(client, chance % 2 == 0 ? 1 : 2 + (uint32_t)(chance >> 8) % 7);
        world_advance(at, 4 * BT_MILLISECOND);
    }
    case_settle();
    ck_assert_uint_eq(at->totals.full, 300);
    for (uint32_t d = 0; d < 3; d++)
        cached += case_decode(d).cached_tokens;
    case_close();
    return cached;
}

START_TEST(d11_beginnings_are_found_again_under_skew)
{
    uint64_t ours = cached_under_skew(BT_PLACE_OURS), load = cached_under_skew(BT_PLACE_LEAST_LOAD);

    ck_assert_uint_gt(ours, 300 * 64 / 4 * 3); // of 64 tokens that each could find
    ck_assert_uint_gt(ours, load);
}
END_TEST

// The prefill node refuses what is beyond its one place; the room at the decode node is given back each time.
START_TEST(d12_no_leg_is_left_alone_when_the_other_is_refused)
{
    uint32_t most = 0;

    case_open(&(case_sizes){.routers = 3, .prefills = 1, .decodes = 2, .prompts = 1, .sequences = 4, .differs = true});
    for (uint32_t i = 0; i < 60; i++)
        case_ask_as((world_client){.router = i % 3, .prompt = 60, .max_tokens = 4}, 0);
    while (at->alive > 0) {
        uint32_t granted = case_decode(0).granted + case_decode(1).granted;

        most = granted > most ? granted : most;
        world_advance(at, BT_MILLISECOND); // check.c: whatever is alone for 2.5 s ends the case
    }
    ck_assert_uint_gt(case_prefill(0).refused_busy, 0);
    ck_assert_uint_eq(at->totals.full, 60);
    case_close();
}
END_TEST

START_TEST(d13_a_thousand_bad_requests_shut_nobody_out)
{
    static const int32_t foreign = WORLD_VOCAB;
    bt_sampling sampling = {.repetition_penalty = 1};
    bt_router_event event = {
        .kind = BT_ROUTER_ARRIVED,
        .arrival = {.ids = &foreign, .count = 1, .sampling = &sampling, .max_tokens = 4, .deadline = BT_TIME_NEVER}};
    bt_router_actions *out;
    uint32_t client;

    case_open(&(case_sizes){.prefills = 1});
    out = at->members[ROUTER].router_out;
    for (uint32_t i = 0; i < 1000; i++) {
        bt_router_step(at->members[ROUTER].router, world_local(at, ROUTER), &event, out);
        ck_assert(out->action[0].kind == BT_ROUTER_REJECTED && out->action[0].rejected.err == BT_ERR_INVALID);
    }
    client = case_ask(60, 4, 0);
    ck_assert(case_alive(client));
    case_settle();
    ck_assert_uint_eq(case_heard(client), 4);
    case_close();
}
END_TEST

// 0, 1 and all of the nodes are down when the router starts.
START_TEST(d14_a_router_starts_with_any_number_of_nodes_down)
{
    for (uint32_t down = 0; down <= 3; down++) {
        uint32_t client;

        case_open(&(case_sizes){.prefills = 1, .decodes = 2});
        for (uint32_t n = 0; n < down; n++)
            world_kill(at, n < 2 ? DECODE(n) : PREFILL(0), 3 * BT_SECOND);
        world_kill(at, ROUTER, 10 * BT_MILLISECOND);
        world_advance(at, 500 * BT_MILLISECOND);
        ck_assert_uint_eq(case_router(ROUTER).nodes_up, 3 - down);
        ck_assert_int_eq(bt_router_ready(at->members[ROUTER].router), down < 2);
        client = case_ask(60, 4, 0);
        ck_assert_int_eq(case_alive(client), down < 2);
        world_advance(at, 6 * BT_SECOND);
        client = case_ask(60, 4, 0);
        case_settle();
        ck_assert_uint_eq(case_heard(client), 4);
        case_close();
    }
}
END_TEST

// The link is there, the data plane is not: no prompt goes that way until a real block has.
START_TEST(d15_a_pair_is_ready_when_a_block_was_fetched_and_not_before)
{
    uint32_t client;

    case_open(&(case_sizes){.prefills = 1, .differs = true, .degrade_after = 30 * BT_SECOND});
    at->plane_cut_until[DECODE(0)][PREFILL(0)] = at->now + 5 * BT_SECOND;
    world_kill(at, PREFILL(0), 0);
    world_advance(at, 3 * BT_SECOND); // all have met it again

    ck_assert_uint_eq(case_router(ROUTER).nodes_up, 2);
    ck_assert_uint_eq(case_decode(0).sources, 0);
    client = case_ask(60, 4, 0);
    world_advance(at, BT_SECOND);
    ck_assert_int_eq(case_state(client), BT_REQUEST_QUEUED);
    case_settle();
    ck_assert_uint_eq(case_heard(client), 4);
    ck_assert_uint_eq(case_router(ROUTER).remote, 1);
    ck_assert_uint_eq(at->totals.degraded, 0);
    case_close();
}
END_TEST

// --- all rows ----------------------------------------------------------------------------------------------------------------

#define HERE_A "tests/sim/test_peer_a.c"
#define HERE "tests/sim/test_peer_bd.c"

// `test` is found in `file`, and with real processes `real_test` in `real`; or `why` the row is not for us.
typedef struct {
    const char *row, *file, *test, *real, *real_test, *why;
} row;

#define CLUSTER "tests/e2e/test_cluster.py"
#define NODES "tests/e2e/test_nodes.py"
#define DIES "tests/fault/test_nodes.py"
#define NETWORK "tests/fault/test_network.py"
#define KILL "tests/fault/test_transfer_kill.c"

static const row rows[] = {
    {.row = "A1", .file = HERE_A, .test = "a1_", .real = DIES, .real_test = "test_A1_A3_A4_A8_"},
    {.row = "A2", .file = HERE_A, .test = "a2_", .real = DIES, .real_test = "test_A2_"},
    {.row = "A3", .file = HERE_A, .test = "a3_", .real = DIES, .real_test = "test_A1_A3_A4_A8_"},
    {.row = "A4", .file = HERE_A, .test = "a4_", .real = DIES, .real_test = "test_A4_"},
    {.row = "A5", .why = "there is no cold tier: a sequence keeps its room and is never swapped"},
    {.row = "A6", .file = HERE_A, .test = "a6_"},
    {.row = "A7", .file = HERE_A, .test = "a7_"},
    {.row = "A8", .file = HERE_A, .test = "a8_", .real = DIES, .real_test = "test_A1_A3_A4_A8_"},
    {.row = "A9", .file = HERE_A, .test = "a9_", .real = NETWORK, .real_test = "test_A9_"},
    {.row = "A10", .file = HERE_A, .test = "a10_"},
    {.row = "A11",
     .file = HERE_A,
     .test = "a11_",
     .real = KILL,
     .real_test = "whoever_dies_or_stops_the_other_goes_on_and_takes_nothing_wrong"},
    {.row = "A12", .file = "tests/unit/net/test_nng_link.c", .test = "both_ends_may_send_much_at_once"},
    {.row = "A13", .file = HERE_A, .test = "a13_"},
    {.row = "A14", .file = HERE_A, .test = "a14_"},
    {.row = "A15", .file = HERE_A, .test = "a15_", .real = DIES, .real_test = "test_A15_"},
    {.row = "A16", .file = HERE_A, .test = "a16_", .real = DIES, .real_test = "test_A16_"},
    {.row = "A17", .file = HERE_A, .test = "a17_"},
    {.row = "A18", .file = HERE_A, .test = "a18_"},
    {.row = "A19", .file = HERE_A, .test = "a19_"},
    {.row = "A20", .file = HERE_A, .test = "a20_"},
    {.row = "A21", .file = HERE_A, .test = "a21_"},
    {.row = "A22", .file = HERE_A, .test = "a22_"},
    {.row = "A23", .file = HERE_A, .test = "a23_"},
    {.row = "A24", .file = HERE_A, .test = "a24_"},
    {.row = "A25", .file = HERE_A, .test = "a25_"},
    {.row = "B1", .file = HERE, .test = "b1_", .real = DIES, .real_test = "test_B1_B3_B4_"},
    {.row = "B2",
     .file = HERE,
     .test = "b2_",
     .real = KILL,
     .real_test = "whoever_dies_or_stops_the_other_goes_on_and_takes_nothing_wrong"},
    {.row = "B3", .file = HERE, .test = "b3_", .real = DIES, .real_test = "test_B1_B3_B4_"},
    {.row = "B4", .file = HERE, .test = "b4_", .real = DIES, .real_test = "test_B1_B3_B4_"},
    {.row = "B5", .file = HERE, .test = "b5_"},
    {.row = "B6",
     .file = "tests/unit/router/test_expect.c",
     .test = "the_first_field_that_differs_is_named_with_both_values",
     .real = CLUSTER,
     .real_test = "test_a_node_that_does_not_fit_is_refused_by_name_and_disturbs_nobody"},
    {.row = "B7",
     .file = HERE,
     .test = "b7_",
     .real = NODES,
     .real_test = "test_a_node_that_does_not_fit_is_named_and_disturbs_nobody"},
    {.row = "B8", .file = HERE, .test = "b8_", .real = DIES, .real_test = "test_B8_"},
    {.row = "B9",
     .file = "tests/unit/router/test_router_core.c",
     .test = "an_open_breaker_is_passed_over_and_one_probe_closes_it"},
    {.row = "B10",
     .file = "tests/unit/transfer/test_transfer_loopback.c",
     .test = "unknown_transports_and_memories_are_clear_errors"},
    {.row = "B11", .file = HERE, .test = "b11_", .real = DIES, .real_test = "test_B11_"},
    {.row = "D1", .file = HERE, .test = "d1_"},
    {.row = "D2", .file = HERE, .test = "d2_"},
    {.row = "D3", .file = HERE, .test = "d3_"},
    {.row = "D4", .why = "a figure and no behaviour: `baton bench router` measures it (tests assert no speed)"},
    {.row = "D5", .file = HERE, .test = "d5_"},
    {.row = "D6", .file = HERE, .test = "d6_"},
    {.row = "D7", .file = HERE, .test = "d7_"},
    {.row = "D8", .file = HERE, .test = "d8_"},
    {.row = "D9", .file = HERE, .test = "d9_"},
    {.row = "D10", .file = HERE, .test = "d10_"},
    {.row = "D11",
     .file = "tests/unit/router/test_router_placement.c",
     .test = "d11_beginnings_are_found_again_though_a_few_of_them_are_most_of_the_load"},
    {.row = "D12", .file = HERE, .test = "d12_"},
    {.row = "D13", .file = HERE, .test = "d13_"},
    {.row = "D14", .file = HERE, .test = "d14_", .real = DIES, .real_test = "test_D14_"},
    {.row = "D15",
     .file = HERE,
     .test = "d15_",
     .real = NODES,
     .real_test = "test_pairs_come_about_in_any_order_of_starts"},
};

static bool
holds(const char *path, const char *test)
{
    FILE *file = fopen(path, "r");
    char line[512], wanted[2][160];
    bool found = false;

    snprintf(wanted[0], sizeof wanted[0], "START_TEST(%s", test);
    snprintf(wanted[1], sizeof wanted[1], "def %s", test);
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = strstr(line, wanted[0]) != NULL || strstr(line, wanted[1]) != NULL;
    if (file != NULL)
        fclose(file);
    return found;
}

static void
check_row(const row *r)
{
    if (r->why != NULL)
        printf("%s: %s\n", r->row, r->why);
    else
        ck_assert_msg(holds(r->file, r->test), "%s: no %s in %s", r->row, r->test, r->file);
    if (r->real != NULL)
        ck_assert_msg(holds(r->real, r->real_test), "%s: no %s in %s", r->row, r->real_test, r->real);
}

START_TEST(every_row_of_a_b_and_d_has_its_test_or_its_reason)
{
    ck_assert_uint_eq(sizeof rows / sizeof *rows, 25 + 11 + 15);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i]);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("peers.md 7 B, D");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 300);
    tcase_add_test(all, b1_a_prefill_node_killed_in_a_loop_under_load_takes_nothing_with_it);
    tcase_add_test(all, b2_after_a_decode_node_has_left_memory_is_back_where_it_was);
    tcase_add_test(all, b3_a_restart_of_a_prefill_node_is_never_an_answer_without_content);
    tcase_add_test(all, b4_a_peer_that_returns_is_used_again_however_often);
    tcase_add_test(all, b5_after_a_session_failed_the_next_one_works);
    tcase_add_test(all, b7_nodes_that_do_not_fit_each_other_are_never_paired);
    tcase_add_test(all, b8_a_restarted_router_finds_all_its_nodes_again);
    tcase_add_test(all, b11_with_every_decode_node_down_requests_are_refused_with_a_time_to_come_back);
    tcase_add_test(all, d1_prefill_queues_stay_even_under_a_hot_prefix);
    tcase_add_test(all, d2_one_shared_system_prompt_does_not_send_everything_to_one_node);
    tcase_add_test(all, d3_no_decode_node_starves);
    tcase_add_test(all, d5_the_routers_memory_has_a_bound_however_many_prefixes_there_were);
    tcase_add_test(all, d6_lost_messages_cost_one_new_greeting_each_and_no_loop);
    tcase_add_test(all, d7_the_same_news_twice_counts_once);
    tcase_add_test(all, d8_a_node_that_joins_under_load_takes_its_share_and_no_more);
    tcase_add_test(all, d9_arrivals_of_one_tick_spread_evenly);
    tcase_add_test(all, d10_counters_of_load_return_to_zero);
    tcase_add_test(all, d11_beginnings_are_found_again_under_skew);
    tcase_add_test(all, d12_no_leg_is_left_alone_when_the_other_is_refused);
    tcase_add_test(all, d13_a_thousand_bad_requests_shut_nobody_out);
    tcase_add_test(all, d14_a_router_starts_with_any_number_of_nodes_down);
    tcase_add_test(all, d15_a_pair_is_ready_when_a_block_was_fetched_and_not_before);
    tcase_add_test(all, every_row_of_a_b_and_d_has_its_test_or_its_reason);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
