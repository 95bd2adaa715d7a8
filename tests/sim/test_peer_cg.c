// Groups C (wrong output) and G (the stream) of reference/peers.md 7, as far as the cores and what they say to each other can get them
// wrong. A case a row, named by it. Every token, its log-probability and every score is compared with the one right answer as it is
// heard (clients.c): a case here is what brings the danger about, and asks that it was there.
#include "tests/sim/peer_case.h"
#include "tests/support/test.h"

// Small pools, so that each block is lent hundreds of times.
START_TEST(c1_nothing_creeps_in_over_ten_thousand_requests)
{
    uint64_t fetched = 0;

    for (uint32_t round = 0; round < 11; round++) {
        case_open(&(case_sizes){.prefills = 2,
                                .decodes = 2,
                                .requests = 64,
                                .blocks = 60,
                                .prefill_blocks = 50,
                                .differs = round % 2 == 0});
        for (uint32_t i = 0; i < 1000; i++) {
            while (at->alive >= 40)
                world_advance(at, BT_MILLISECOND);
            case_ask(8 + (uint32_t)(bt_mix64(i) % 70), 1 + i % 12, i % 3 == 0 ? 1 + i % 7 : 0);
        }
        case_settle();
        ck_assert_uint_eq(at->totals.full, 1000);
        fetched += case_decode(0).fetched_sequences + case_decode(1).fetched_sequences;
        case_close();
    }
    ck_assert_uint_gt(fetched, 4000);
}
END_TEST

static bool
fetches_now(void)
{
    return case_decode(0).fetching > 0;
}

// The prompt is said to end where it does not: the decode node must see that it is complete.
START_TEST(c5_a_prompt_that_is_called_complete_too_early_is_not_gone_on_from)
{
    const bt_sequence *sequence = NULL;
    bt_offer_block block = {1, 1};
    bt_message offer = {.kind = BT_MESSAGE_OFFER};
    uint32_t client;

    case_open(&(case_sizes){.prefills = 1, .prefill_chunk = 4, .differs = true});
    client = case_ask(80, 8, 0);
    case_until(fetches_now);
    for (uint32_t i = 0; sequence == NULL; i++) {
        if (at->members[DECODE(0)].decode->sequences.slots[i].state == BT_SEQUENCE_FETCHING)
            sequence = &at->members[DECODE(0)].decode->sequences.slots[i];
    }
    ck_assert_uint_lt(sequence->fetch.offered, 19);
    offer.offer = (bt_offer){.ticket = {.epoch = at->members[DECODE(0)].epoch,
                                        .slot = (uint32_t)(sequence - at->members[DECODE(0)].decode->sequences.slots),
                                        .generation = sequence->generation,
                                        .layout = 2},
                             .epoch = at->members[PREFILL(0)].epoch,
                             .first_position = sequence->fetch.offered * WORLD_BLOCK,
                             .token_count = WORLD_BLOCK,
                             .block_count = 1,
                             .blocks = &block,
                             .last = true,
                             .has_token = true,
                             .token = {.id = 3}};
    world_inject(at, PREFILL(0), DECODE(0), &offer);
    ck_assert_uint_eq(case_decode(0).bad_messages, 1);
    ck_assert_uint_eq(case_decode(0).fetching, 0);
    case_settle();
    ck_assert_uint_eq(case_heard(client), 8);
    case_close();
}
END_TEST

START_TEST(c6_a_flipped_page_is_fetched_again_and_never_attended_to)
{
    case_open(&(case_sizes){.prefills = 1,
                            .requests = 200,
                            .queue = 200,
                            .differs = true,
                            .degrade_after = BT_SECOND,
                            .one_in = {[WORLD_FETCH_FLIP] = 5}});
    for (uint32_t i = 0; i < 100; i++)
        case_ask(60, 6, 0);
    case_settle();
    ck_assert_uint_eq(at->totals.full, 100);
    ck_assert_uint_gt(at->totals.injected[WORLD_FETCH_FLIP], 20);
    ck_assert_uint_gt(case_decode(0).refetches, 10);
    case_close();
}
END_TEST

// Holds end early and fetches come late: what is read has been lent anew, in whole or in part.
START_TEST(c7_a_slot_that_was_reused_meanwhile_is_told_by_its_generation)
{
    case_open(&(case_sizes){.prefills = 1,
                            .requests = 200,
                            .queue = 200,
                            .prefill_blocks = WORLD_FETCH_BLOCKS,
                            .hold_max = 30 * BT_MILLISECOND,
                            .one_in = {[WORLD_FETCH_LATE] = 2, [WORLD_FETCH_TORN] = 2}});
    for (uint32_t i = 0; i < 100; i++) {
        case_ask(60, 6, 0);
        world_advance(at, 10 * BT_MILLISECOND);
    }
    case_settle();
    ck_assert_uint_eq(at->totals.full, 100);
    ck_assert_uint_gt(at->totals.stale, 20);
    case_close();
}
END_TEST

// The very first request, sent while nodes still meet, and again after each start of the decode node.
START_TEST(c9_the_first_request_is_as_right_as_any)
{
    uint32_t asked = 0;

    case_open(&(case_sizes){.prefills = 1});
    for (uint32_t round = 0; round < 8; round++) {
        world_kill(at, DECODE(0), 0);
        for (uint32_t i = 0; i < 30; i++) {
            uint32_t client = case_ask(60, 3, 0);

            asked += case_alive(client);
            world_advance(at, 2 * BT_MILLISECOND);
        }
        case_settle();
        world_advance(at, 3 * BT_SECOND);
    }
    ck_assert_uint_eq(at->totals.full, asked);
    ck_assert_uint_gt(asked, 40);
    case_close();
}
END_TEST

START_TEST(g1_max_tokens_of_one_is_one_token_and_of_two_two)
{
    case_open(&(case_sizes){.prefills = 1, .differs = true});
    for (uint32_t tokens = 1; tokens <= 3; tokens++) {
        for (uint32_t i = 0; i < 10; i++) {
            uint32_t client = case_ask(50, tokens, 0);

            case_settle();
            ck_assert_uint_eq(case_heard(client), tokens);
        }
    }
    ck_assert_uint_eq(case_router(ROUTER).remote, 30);
    case_close();
}
END_TEST

START_TEST(g2_scores_of_a_prompt_are_as_one_node_would_give_them)
{
    case_open(&(case_sizes){.prefills = 1, .requests = 100, .queue = 100});
    for (uint32_t i = 0; i < 40; i++)
        case_ask_as((world_client){.prompt = 40, .max_tokens = i % 3, .scores = true}, i % 2);
    case_settle();
    ck_assert_uint_eq(at->totals.scored, 40 * 39);
    case_close();
}
END_TEST

START_TEST(g3_the_first_tokens_log_probability_survives_the_way_between_the_nodes)
{
    case_open(&(case_sizes){.prefills = 1, .differs = true});
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t client = case_ask(50, 1 + i % 4, 0);

        case_settle(); // each token's log-probability is compared, the first one's too
        ck_assert_uint_gt(case_heard(client), 0);
        ck_assert(!at->clients[client].odd);
    }
    ck_assert_uint_eq(case_router(ROUTER).remote, 20);
    case_close();
}
END_TEST

// Every step at every node fails: who asked is told, by its deadline at the latest (breakers keep some waiting).
START_TEST(g5_an_error_of_a_prefill_node_ends_in_an_answer_or_in_an_error)
{
    case_open(&(case_sizes){.prefills = 1, .requests = 100, .queue = 100, .differs = true});
    at->failing = true;
    for (uint32_t i = 0; i < 20; i++)
        case_ask_as((world_client){.prompt = 50, .max_tokens = 4, .deadline = at->now + 20 * BT_SECOND}, 0);
    at->one_in[WORLD_DEVICE] = 1;
    case_settle();
    ck_assert_uint_eq(at->totals.failed, 20);
    at->one_in[WORLD_DEVICE] = 0;
    world_advance(at, 120 * BT_SECOND); // past what breakers wait
    for (uint32_t i = 0; i < 20; i++)
        case_ask(50, 4, 0);
    case_settle();
    ck_assert_uint_eq(at->totals.full, 20);
    case_close();
}
END_TEST

START_TEST(g7_a_prompt_that_was_fetched_is_not_read_again)
{
    case_open(&(case_sizes){.prefills = 2, .decodes = 2, .requests = 100, .queue = 100, .differs = true});
    for (uint32_t i = 0; i < 60; i++)
        case_ask(61, 4, i % 3);
    case_settle();
    ck_assert_uint_eq(case_decode(0).prompt_tokens + case_decode(1).prompt_tokens, 0);
    case_close();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("peers.md 7 C, G");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 300);
    tcase_add_test(all, c1_nothing_creeps_in_over_ten_thousand_requests);
    tcase_add_test(all, c5_a_prompt_that_is_called_complete_too_early_is_not_gone_on_from);
    tcase_add_test(all, c6_a_flipped_page_is_fetched_again_and_never_attended_to);
    tcase_add_test(all, c7_a_slot_that_was_reused_meanwhile_is_told_by_its_generation);
    tcase_add_test(all, c9_the_first_request_is_as_right_as_any);
    tcase_add_test(all, g1_max_tokens_of_one_is_one_token_and_of_two_two);
    tcase_add_test(all, g2_scores_of_a_prompt_are_as_one_node_would_give_them);
    tcase_add_test(all, g3_the_first_tokens_log_probability_survives_the_way_between_the_nodes);
    tcase_add_test(all, g5_an_error_of_a_prefill_node_ends_in_an_answer_or_in_an_error);
    tcase_add_test(all, g7_a_prompt_that_was_fetched_is_not_read_again);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
