// Group A of reference/peers.md 7: hangs, aborts, leaked KV. A case a row, named by it; each ends in case_close, which asks that every
// client had its one right answer and that all blocks are home within a second.
#include "tests/sim/peer_case.h"
#include "tests/support/test.h"

#define LATE                                                                                                           \
    {                                                                                                                  \
        [WORLD_FETCH_LATE] = 1                                                                                         \
    } // every fetch reads long after it was asked to
#define NEVER                                                                                                          \
    {                                                                                                                  \
        [WORLD_FETCH_NEVER] = 1                                                                                        \
    } // no fetch ends by itself

static void
cancel_in(bt_request_state state, const case_sizes *sizes)
{
    uint32_t client;

    case_open(sizes);
    client = case_ask(60, 20, 0);
    if (state != BT_REQUEST_QUEUED) // which it has left at once
        case_until_state(client, state);
    world_cancel(at, client);
    world_advance(at, 100 * BT_MILLISECOND);
    if (sizes->prefills > 0)
        ck_assert_uint_eq(case_prefill(0).holding, 0);
    ck_assert_uint_eq(case_decode(0).blocks_promised, 0);
    case_close();
}

START_TEST(a1_an_abort_in_each_state_leaves_nothing_lent)
{
    for (bt_request_state state = BT_REQUEST_QUEUED; state <= BT_REQUEST_DECODING; state++)
        cancel_in(state, &(case_sizes){.prefills = 1});
    cancel_in(BT_REQUEST_PREFILLING, &(case_sizes){.prefills = 0});
    cancel_in(BT_REQUEST_DECODING, &(case_sizes){.prefills = 0});
}
END_TEST

static bool
prefill_holds(void)
{
    return case_prefill(0).holding > 0;
}

// The decode node gives the room up (its router is gone) while the prefill node holds what it read for it.
START_TEST(a2_what_the_decode_node_rejects_is_free_at_the_prefill_node_within_a_second)
{
    case_open(&(case_sizes){.prefills = 1, .one_in = NEVER});
    case_ask(60, 8, 0);
    case_until(prefill_holds);
    world_kill(at, ROUTER, 0);
    world_advance(at, 900 * BT_MILLISECOND);
    ck_assert_uint_eq(case_prefill(0).holding + case_prefill(0).reading, 0);
    ck_assert_uint_eq(case_prefill(0).blocks_free + case_prefill(0).blocks_cached, case_prefill(0).blocks);
    case_close();
}
END_TEST

START_TEST(a3_half_of_400_in_flight_are_aborted_and_the_others_never_know)
{
    uint64_t full;

    case_open(&(case_sizes){
        .prefills = 2, .decodes = 2, .requests = 400, .queue = 400, .sequences = 8, .blocks = 200, .prompts = 12});
    for (uint32_t i = 0; i < 400; i++) {
        world_client client = {.prompt = 10 + i % 60, .max_tokens = 12};

        if (i % 2 == 0)
            client.cancel_at = at->now + bt_mix64(i) % 400 * BT_MILLISECOND;
        case_ask_as(client, i % 5);
    }
    case_settle();
    full = at->totals.full;
    ck_assert_uint_eq(at->totals.accepted, 400);
    ck_assert_uint_eq(full + at->totals.cancelled, 400);
    ck_assert_uint_gt(at->totals.cancelled, 100);
    ck_assert_uint_ge(full, 200);
    case_close();
}
END_TEST

static bool
fetch_flies(void)
{
    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
        if (at->members[DECODE(0)].fetches[f].active)
            return true;
    }
    return false;
}

// Its landing blocks come home when its fetch is over, and not before.
static void
cancel_in_transfer(void)
{
    uint32_t client = case_ask(60, 8, 0);

    case_until(fetch_flies);
    world_cancel(at, client);
    world_advance(at, 5 * BT_MILLISECOND);
    ck_assert(!fetch_flies() || case_decode(0).ending == 1);
    world_advance(at, 200 * BT_MILLISECOND);
    ck_assert_uint_eq(case_decode(0).ending, 0);
    ck_assert_uint_eq(case_prefill(0).holding + case_prefill(0).reading, 0);
}

START_TEST(a4_an_abort_in_the_transfer_queue_leaves_nothing)
{
    case_open(&(case_sizes){.prefills = 1, .one_in = LATE});
    for (uint32_t i = 0; i < 10; i++)
        cancel_in_transfer();
    case_close();
}
END_TEST

// Memory runs out in the middle of a stream: at the decode node a failed step is all that can mean. Nobody hangs, and what comes next works.
START_TEST(a6_a_decode_node_out_of_memory_fails_or_moves_its_requests_and_goes_on)
{
    uint32_t clients[4], next;

    case_open(&(case_sizes){.prefills = 1, .decodes = 1});
    at->failing = true;
    for (uint32_t i = 0; i < 4; i++)
        clients[i] = case_ask(40, 30, 0);
    case_until_state(clients[3], BT_REQUEST_DECODING);
    at->one_in[WORLD_DEVICE] = 1;
    world_advance(at, 50 * BT_MILLISECOND);
    at->one_in[WORLD_DEVICE] = 0;
    case_settle();
    ck_assert_uint_gt(case_decode(0).failed_steps, 0);
    next = case_ask(40, 10, 0);
    case_settle();
    ck_assert_uint_eq(case_heard(next), 10);
    case_close();
}
END_TEST

static bt_message
orphan(uint32_t number)
{
    static const bt_sampling sampling = {.repetition_penalty = 1};
    static int32_t ids[40];
    bt_message message = {.kind = BT_MESSAGE_PREFILL};

    for (int i = 0; i < 40; i++)
        ids[i] = i % WORLD_VOCAB;
    message.prefill = (bt_prefill){
        .job = {.request = {900 + number, 7, 1},
                .ids = ids,
                .prompt_count = 40,
                .max_tokens = 4,
                .sampling = &sampling,
                .time_left = BT_TIME_NEVER},
        .ticket = {.epoch = at->members[DECODE(0)].epoch, .slot = number % 3, .generation = 5000 + number, .layout = 2},
        .decode = "d0"};
    return message;
}

START_TEST(a7_prefill_legs_without_a_decode_leg_are_few_and_end)
{
    case_open(&(case_sizes){.prefills = 1, .prompts = 4});
    for (uint32_t i = 0; i < 200; i++) {
        bt_message message = orphan(i);

        world_inject(at, ROUTER, PREFILL(0), &message);
        ck_assert_uint_le(case_prefill(0).waiting + case_prefill(0).reading + case_prefill(0).holding, 4);
    }
    ck_assert_uint_eq(case_prefill(0).refused_busy, 196);
    world_advance(at, BT_SECOND); // the decode node says that it knows no such tickets
    ck_assert_uint_eq(case_prefill(0).waiting + case_prefill(0).reading + case_prefill(0).holding, 0);
    case_close();
}
END_TEST

START_TEST(a8_clients_that_hang_up_anywhere_crash_nothing)
{
    for (uint32_t round = 0; round < 5; round++) {
        case_open(&(case_sizes){.prefills = 2, .decodes = 2});
        for (uint32_t i = 0; i < 100; i++) {
            world_client client = {.prompt = 1 + (uint32_t)(bt_mix64(i) % 80), .max_tokens = 10};
            uint64_t chance = bt_mix64(round * 1000 + i);

            if (chance % 2 == 0)
                client.gone_state = BT_REQUEST_QUEUED + (uint32_t)(chance >> 8) % 5;
            else
                client.cancel_at = at->now + (bt_time)(chance >> 8) % (40 * BT_MILLISECOND);
            if (at->alive < 60)
                case_ask_as(client, i % 4);
            world_advance(at, BT_MILLISECOND);
        }
        case_close();
    }
}
END_TEST

START_TEST(a9_a_tiny_pool_and_a_slow_link_come_to_no_deadlock)
{
    case_open(&(case_sizes){
        .prefills = 1, .prefill_blocks = WORLD_FETCH_BLOCKS, .blocks = 48, .differs = true, .one_in = LATE});
    for (uint32_t i = 0; i < 30; i++)
        case_ask(80, 8, 0);
    case_settle();
    ck_assert_uint_eq(at->totals.full, 30);
    ck_assert_uint_eq(case_decode(0).fetched_sequences, 30);
    case_close();
}
END_TEST

// Nothing arrives, nobody asks: sweeps ride on a timer of their own.
START_TEST(a10_on_an_idle_cluster_leases_still_end)
{
    case_open(&(case_sizes){.prefills = 1, .decodes = 2, .one_in = NEVER});
    case_ask(60, 8, 0);
    case_until(prefill_holds);
    for (uint32_t d = 0; d < 2; d++) // hears and says nothing any more, and nobody is told
        world_cut_pair(at, PREFILL(0), DECODE(d), 30 * BT_SECOND, true);
    for (uint32_t c = 0; c < at->client_count; c++)
        world_cancel(at, c);
    world_cut_pair(at, PREFILL(0), ROUTER, 30 * BT_SECOND, true);
    world_advance(at, WORLD_SILENCE + WORLD_LEASE + 1200 * BT_MILLISECOND);
    ck_assert_uint_eq(case_prefill(0).holding + case_prefill(0).reading, 0);
    ck_assert_uint_eq(case_decode(0).ending + case_decode(1).ending, 0);
    world_advance(at, 40 * BT_SECOND);
    case_close();
}
END_TEST

START_TEST(a11_a_prefill_node_killed_in_mid_transfer_costs_the_deadline_and_no_more)
{
    world_client impatient = {.prompt = 60, .max_tokens = 8};
    uint32_t client;

    case_open(&(case_sizes){.prefills = 1, .one_in = NEVER});
    impatient.deadline = at->now + 700 * BT_MILLISECOND;
    client = case_ask_as(impatient, 0);
    case_until(fetch_flies);
    world_kill(at, PREFILL(0), 20 * BT_SECOND);
    world_advance(at, impatient.deadline - at->now);
    ck_assert(!case_alive(client)); // answered by then, or told so at that very moment
    world_advance(at, 25 * BT_SECOND);
    case_close();
}
END_TEST

static bt_time
time_of_fetch(uint32_t prompt)
{
    bt_time time = 0;

    case_open(&(case_sizes){.prefills = 1, .prefill_chunk = 96, .one_in = NEVER});
    case_ask(prompt, 4, 0);
    case_until(fetch_flies);
    for (uint32_t f = 0; f < WORLD_FETCHES_MAX; f++) {
        if (at->members[DECODE(0)].fetches[f].active)
            time = at->members[DECODE(0)].fetches[f].deadline - at->now;
    }
    world_cancel(at, 0);
    case_close();
    return time;
}

START_TEST(a13_the_deadline_of_a_transfer_grows_with_its_bytes)
{
    ck_assert_int_gt(time_of_fetch(88),
                     time_of_fetch(24) + 14 * 20 * BT_MILLISECOND); // 16 blocks more, less what has passed
}
END_TEST

START_TEST(a14_a_cancel_during_the_transfer_leaks_nothing_at_either_end)
{
    cancel_in(BT_REQUEST_FETCHING, &(case_sizes){.prefills = 1, .one_in = LATE});
    cancel_in(BT_REQUEST_FETCHING,
              &(case_sizes){.prefills = 1, .one_in = {[WORLD_FETCH_TORN] = 1, [WORLD_FETCH_LATE] = 1}});
    case_open(&(case_sizes){.prefills = 1, .fetch_blocks = 1, .one_in = LATE});
    cancel_in_transfer();
    case_close();
}
END_TEST

static uint32_t long_one;

static bool
reads_long_one(void)
{
    const bt_prefill_core *core = at->members[PREFILL(0)].prefill;

    return core->prompts.slots[0].state == BT_PROMPT_READING && core->prompts.slots[0].computed >= 16;
}

static bool
next_waits(void)
{
    return at->members[PREFILL(0)].prefill->prompts.queued == 1;
}

START_TEST(a15_after_a_disconnect_the_next_request_starts_within_one_chunk)
{
    const bt_prefill_core *core;
    uint64_t steps;
    uint32_t next;

    case_open(&(case_sizes){
        .prefills = 1, .prompts = 2, .prefill_chunk = 2, .prefill_blocks = WORLD_FETCH_BLOCKS, .differs = true});
    core = at->members[PREFILL(0)].prefill;
    long_one = case_ask(90, 4, 0); // its pool holds no other prompt
    case_until(reads_long_one);
    next = case_ask(80, 4, 0);
    case_until(next_waits);
    world_cancel(at, long_one);
    while (core->stats.aborted == 0)
        world_advance(at, 10 * BT_MICROSECOND);
    steps = core->stats.steps;
    while (core->prompts.queued > 0)
        world_advance(at, 10 * BT_MICROSECOND);
    ck_assert_uint_le(core->stats.steps - steps, 1); // that one is already of the next request
    case_settle();
    ck_assert_uint_eq(case_heard(next), 4);
    case_close();
}
END_TEST

// world_hear_end compares usage and tokens heard at the end of each request; here it meets cancels and kills in mid-stream.
START_TEST(a16_usage_after_a_cancel_is_the_tokens_sent)
{
    uint32_t client, cancelled = 0;

    case_open(&(case_sizes){.prefills = 1, .decodes = 2});
    for (uint32_t i = 0; i < 20; i++) {
        client = case_ask(30, 20, 0);
        case_until_state(client, BT_REQUEST_DECODING);
        world_advance(at, i * 500 * BT_MICROSECOND);
        if (i % 4 == 0)
            world_kill(at, DECODE(i / 4 % 2), 5 * BT_MILLISECOND);
        cancelled += case_alive(client);
        if (case_alive(client))
            world_cancel(at, client);
        ck_assert_uint_le(case_heard(client), 20);
    }
    ck_assert_uint_gt(cancelled, 10);
    ck_assert_uint_eq(at->totals.cancelled, cancelled);
    world_advance(at, BT_SECOND);
    case_close();
}
END_TEST

START_TEST(a17_a_cancel_between_the_legs_strands_nothing)
{
    // The room is granted and the prefill node has not heard of the prompt yet; and: all is read and nothing fetched.
    cancel_in(BT_REQUEST_PREFILLING, &(case_sizes){.prefills = 1});
    case_open(&(case_sizes){.prefills = 1, .prefill_chunk = 96});
    for (uint32_t i = 0; i < 10; i++) {
        uint32_t client = case_ask(60, 8, 0);

        case_until(prefill_holds);
        if (case_alive(client))
            world_cancel(at, client);
        world_advance(at, 100 * BT_MILLISECOND);
        ck_assert_uint_eq(case_prefill(0).holding, 0);
    }
    case_close();
}
END_TEST

START_TEST(a18_late_messages_for_what_is_gone_are_counted_and_ignored)
{
    bt_request_id unknown = {3, 99, 1};
    bt_ticket ticket = {.slot = 1, .generation = 77, .layout = 2};
    bt_offer_block block = {1, 1};
    bt_tokens_entry entry = {.request = unknown, .finish = BT_FINISH_LENGTH};
    bt_message to_decode[] = {{.kind = BT_MESSAGE_START, .start = {unknown, ticket}},
                              {.kind = BT_MESSAGE_AWAIT, .await = {unknown, ticket, "p0", 1}},
                              {.kind = BT_MESSAGE_ABORT, .abort = {unknown}}};
    bt_message offer = {.kind = BT_MESSAGE_OFFER,
                        .offer = {.ticket = ticket, .epoch = 1, .token_count = 4, .block_count = 1, .blocks = &block}};
    bt_message taken = {.kind = BT_MESSAGE_TAKEN, .taken = {ticket, 1, BT_OK}};
    bt_message abort = {.kind = BT_MESSAGE_ABORT, .abort = {unknown}};
    bt_message reply = {.kind = BT_MESSAGE_TICKET, .ticket = {.request = unknown, .ticket = ticket}};
    bt_message tokens = {.kind = BT_MESSAGE_TOKENS, .tokens = {1, 1, &entry}};
    uint32_t client;

    case_open(&(case_sizes){.prefills = 1});
    client = case_ask(60, 20, 0);
    case_until_state(client, BT_REQUEST_PREFILLING);
    for (size_t i = 0; i < sizeof to_decode / sizeof *to_decode; i++)
        world_inject(at, ROUTER, DECODE(0), &to_decode[i]);
    world_inject(at, PREFILL(0), DECODE(0), &offer);
    ck_assert_uint_eq(case_decode(0).late_messages, 4);
    world_inject(at, DECODE(0), PREFILL(0), &taken);
    world_inject(at, ROUTER, PREFILL(0), &abort);
    ck_assert_uint_eq(case_prefill(0).late_messages, 2);
    world_inject(at, PREFILL(0), ROUTER, &reply);
    world_inject(at, PREFILL(0), ROUTER, &tokens);
    ck_assert_uint_eq(case_router(ROUTER).late_messages, 2);
    case_settle();
    ck_assert_uint_eq(case_heard(client), 20); // none of it disturbed the one that runs
    case_close();
}
END_TEST

START_TEST(a19_queues_of_one_everywhere_come_to_no_deadlock)
{
    case_open(&(case_sizes){.routers = 2,
                            .prefills = 1,
                            .requests = 4,
                            .queue = 4,
                            .prompts = 1,
                            .sequences = 1,
                            .waiting = 1,
                            .prefill_blocks = WORLD_FETCH_BLOCKS,
                            .blocks = WORLD_FETCH_BLOCKS,
                            .prefill_chunk = 1,
                            .differs = true});
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t router = 0; router < 2; router++) {
            for (uint32_t i = 0; i < 4; i++)
                case_ask_as((world_client){.router = router, .prompt = 70, .max_tokens = 8}, 0);
        }
        case_settle();
    }
    ck_assert_uint_eq(at->totals.full, 480);
    ck_assert_uint_eq(case_decode(0).fetched_sequences, 480);
    case_close();
}
END_TEST

START_TEST(a20_what_is_larger_than_any_buffer_is_refused_at_once)
{
    static const int32_t ids[WORLD_CONTEXT];
    bt_sampling sampling = {.repetition_penalty = 1};
    bt_router_event event = {
        .kind = BT_ROUTER_ARRIVED,
        .arrival = {.ids = ids, .count = 80, .sampling = &sampling, .max_tokens = 17, .deadline = BT_TIME_NEVER}};
    const bt_router_action *action;

    case_open(&(case_sizes){.prefills = 1});
    bt_router_step(at->members[ROUTER].router, world_local(at, ROUTER), &event, at->members[ROUTER].router_out);
    action = &at->members[ROUTER].router_out->action[0];
    ck_assert_uint_eq(at->members[ROUTER].router_out->count, 1);
    ck_assert(action->kind == BT_ROUTER_REJECTED && action->rejected.err == BT_ERR_TOO_LONG);
    ck_assert_uint_eq(action->rejected.tokens, 97);
    ck_assert_uint_eq(action->rejected.tokens_max, WORLD_CONTEXT);
    case_close();
}
END_TEST

START_TEST(a21_who_finds_no_memory_waits_until_its_deadline_and_nobody_spins)
{
    world_client impatient = {.prompt = 60, .max_tokens = 8};
    uint64_t events;
    uint32_t client;

    case_open(&(case_sizes){.sequences = 1, .blocks = WORLD_FETCH_BLOCKS});
    case_ask(50, 40, 0);
    world_advance(at, 20 * BT_MILLISECOND);
    world_freeze(at, DECODE(0), 2500 * BT_MILLISECOND); // it keeps all that there is
    impatient.deadline = at->now + 2 * BT_SECOND;
    client = case_ask_as(impatient, 0);
    events = at->totals.events;
    world_advance(at, impatient.deadline - at->now - BT_MILLISECOND);
    ck_assert(case_alive(client));
    world_advance(at, BT_MILLISECOND);
    ck_assert(!case_alive(client));
    ck_assert_uint_lt(at->totals.events - events, 50);
    case_close();
}
END_TEST

START_TEST(a22_with_both_pools_full_everything_still_moves)
{
    case_open(&(case_sizes){.routers = 3,
                            .prefills = 2,
                            .decodes = 2,
                            .prompts = 6,
                            .sequences = 2,
                            .prefill_blocks = WORLD_FETCH_BLOCKS + 2,
                            .blocks = WORLD_FETCH_BLOCKS + 2});
    for (uint32_t i = 0; i < 150; i++)
        case_ask_as((world_client){.router = i % 3, .prompt = 88, .max_tokens = 8}, 0);
    case_settle();
    ck_assert_uint_eq(at->totals.full, 150);
    ck_assert_uint_eq(at->totals.moves, 0);
    case_close();
}
END_TEST

// Room is promised for the worst case: whoever was let in never gives it back for another, and no prompt is read twice.
START_TEST(a23_admission_counts_future_growth_so_nothing_is_preempted)
{
    bt_decode_stats stats;

    case_open(&(case_sizes){.sequences = 8, .blocks = 40});
    for (uint32_t i = 0; i < 60; i++)
        case_ask(10, 40, 0);
    case_settle();
    stats = case_decode(0);
    ck_assert_uint_eq(at->totals.full, 60);
    ck_assert_uint_eq(at->totals.moves, 0);
    ck_assert_uint_eq(stats.prompt_tokens + stats.cached_tokens, 600);
    ck_assert_uint_eq(stats.answer_tokens, 2400);
    ck_assert_uint_eq(stats.aborted + stats.expired, 0);
    case_close();
}
END_TEST

START_TEST(a24_a_full_decode_node_reads_no_prompt_again)
{
    case_open(&(case_sizes){.prefills = 1, .sequences = 4, .blocks = 2 * WORLD_FETCH_BLOCKS, .differs = true});
    for (uint32_t i = 0; i < 40; i++)
        case_ask(60, 30, 0);
    case_settle();
    ck_assert_uint_eq(at->totals.full, 40);
    ck_assert_uint_eq(case_decode(0).prompt_tokens, 0);
    ck_assert_uint_eq(case_prefill(0).prompt_tokens + case_prefill(0).cached_tokens, 40 * 60);
    case_close();
}
END_TEST

// Two rooms fill the pool to its last block, and more requests wait: what arrives for the second has its place.
START_TEST(a25_blocks_that_arrive_at_a_full_decode_node_have_their_place)
{
    case_open(&(case_sizes){.prefills = 1,
                            .sequences = 2,
                            .blocks = 2 * WORLD_FETCH_BLOCKS,
                            .waiting = 4,
                            .differs = true,
                            .one_in = {[WORLD_FETCH_LATE] = 2}});
    for (uint32_t i = 0; i < 30; i++)
        case_ask(65, 31, 0); // worst case: 24 blocks
    case_settle();
    ck_assert_uint_eq(at->totals.full, 30);
    ck_assert_uint_eq(at->totals.degraded, 0);
    ck_assert_uint_eq(case_decode(0).fetched_sequences, 30);
    case_close();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("peers.md 7 A");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 300);
    tcase_add_test(all, a1_an_abort_in_each_state_leaves_nothing_lent);
    tcase_add_test(all, a2_what_the_decode_node_rejects_is_free_at_the_prefill_node_within_a_second);
    tcase_add_test(all, a3_half_of_400_in_flight_are_aborted_and_the_others_never_know);
    tcase_add_test(all, a4_an_abort_in_the_transfer_queue_leaves_nothing);
    // A5, sglang#18701: there is no cold tier, and nothing is swapped; test_peer_bd.c's table says so.
    tcase_add_test(all, a6_a_decode_node_out_of_memory_fails_or_moves_its_requests_and_goes_on);
    tcase_add_test(all, a7_prefill_legs_without_a_decode_leg_are_few_and_end);
    tcase_add_test(all, a8_clients_that_hang_up_anywhere_crash_nothing);
    tcase_add_test(all, a9_a_tiny_pool_and_a_slow_link_come_to_no_deadlock);
    tcase_add_test(all, a10_on_an_idle_cluster_leases_still_end);
    tcase_add_test(all, a11_a_prefill_node_killed_in_mid_transfer_costs_the_deadline_and_no_more);
    tcase_add_test(all, a13_the_deadline_of_a_transfer_grows_with_its_bytes);
    tcase_add_test(all, a14_a_cancel_during_the_transfer_leaks_nothing_at_either_end);
    tcase_add_test(all, a15_after_a_disconnect_the_next_request_starts_within_one_chunk);
    tcase_add_test(all, a16_usage_after_a_cancel_is_the_tokens_sent);
    tcase_add_test(all, a17_a_cancel_between_the_legs_strands_nothing);
    tcase_add_test(all, a18_late_messages_for_what_is_gone_are_counted_and_ignored);
    tcase_add_test(all, a19_queues_of_one_everywhere_come_to_no_deadlock);
    tcase_add_test(all, a20_what_is_larger_than_any_buffer_is_refused_at_once);
    tcase_add_test(all, a21_who_finds_no_memory_waits_until_its_deadline_and_nobody_spins);
    tcase_add_test(all, a22_with_both_pools_full_everything_still_moves);
    tcase_add_test(all, a23_admission_counts_future_growth_so_nothing_is_preempted);
    tcase_add_test(all, a24_a_full_decode_node_reads_no_prompt_again);
    tcase_add_test(all, a25_blocks_that_arrive_at_a_full_decode_node_have_their_place);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
