// The prefill node's edge with the real engine on the tiny model, a real data plane and real sockets. What is played is a router and
// decode nodes: what they fetch is, bit for bit, what an engine of their own computes.
#include "common/kv/table.h"
#include "common/kv/trailer.h"
#include "tests/model/prefill_world.h"

#include <stdio.h>
#include <string.h>

static bool
is_whole(uint32_t q)
{
    return prompts[q].over && prompts[q].last && prompts[q].landed == prompts[q].offered_count;
}

static bool
all_are_whole(void)
{
    for (uint32_t q = 0; q < PROMPTS; q++) {
        if (!is_whole(q))
            return false;
    }
    return true;
}

static void
expect_ours(const reader *r, uint32_t q)
{
    const prompt *p = &prompts[q];

    ck_assert_uint_eq(p->offered_count, bt_kv_blocks_for(p->count, BLOCK_TOKENS));
    for (uint32_t i = 0; i < p->offered_count; i++) {
        const uint8_t *landed = r->pool + (q * PROMPT_BLOCKS + i) * layout.block_bytes;
        uint32_t tokens = p->count - i * BLOCK_TOKENS;

        ck_assert_int_eq(bt_kv_trailer_check(&layout, landed, w.epoch, p->offered[i].generation, NULL), BT_KV_GOOD);
        ck_assert_msg(
            same_tokens(landed, p->blocks + i * layout.block_bytes, tokens < BLOCK_TOKENS ? tokens : BLOCK_TOKENS),
            "prompt %u, block %u", q, i);
    }
    ck_assert_int_eq(p->finish, BT_FINISH_LENGTH);
    ck_assert_int_eq(p->told_token, p->token);
    ck_assert_int_eq(p->offered_token, p->token);
}

static void
expect_idle(void)
{
    bt_prefill_node_stats stats;

    TURN_UNTIL(bt_prefill_node_idle(w.node));
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_int_eq(stats.core.leak, 0);
    ck_assert_uint_eq(stats.core.blocks_free + stats.core.blocks_cached, stats.core.blocks);
}

static const bt_transfer_path paths[] = {BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_STREAM};
#define PATHS 2
#define CASES ((int)POOLS_CASES * PATHS)

static void
open_case(int i, uint32_t blocks)
{
    open_world_as(paths[i % PATHS], blocks, (pools_case)(i / PATHS));
}

// ---- cases ----

START_TEST(what_decode_nodes_fetch_is_what_their_own_engine_computes)
{
    bt_prefill_node_stats stats;
    uint32_t blocks = 0, offers = 0;

    open_case(_i, 64);
    ask(1, &w.readers[1 % READERS]); // the longest: read before the others come, so that its family finds its blocks
    TURN_UNTIL(is_whole(1));
    for (uint32_t q = 0; q < PROMPTS; q++)
        if (q != 1)
            ask(q, &w.readers[q % READERS]);
    TURN_UNTIL(all_are_whole());
    for (uint32_t q = 0; q < PROMPTS; q++) {
        expect_ours(&w.readers[q % READERS], q);
        blocks += prompts[q].offered_count;
        offers += prompts[q].offers;
    }
    expect_idle();
    bt_prefill_node_get_stats(w.node, &stats);
    printf("%u blocks in %u offers, %llu stamped\n", blocks, offers, (unsigned long long)stats.stamped_blocks);
    ck_assert_uint_gt(offers, PROMPTS);              // chunk by chunk
    ck_assert_uint_gt(stats.core.cached_tokens, 0);  // families share their beginnings
    ck_assert_uint_lt(stats.stamped_blocks, blocks); // what is shared is stamped once
    ck_assert_uint_eq(stats.core.taken, PROMPTS);
    ck_assert_uint_eq(stats.readers, READERS);
    close_world();
}
END_TEST

START_TEST(a_pool_for_one_prompt_at_a_time_serves_all)
{
    open_case(_i, PROMPT_BLOCKS);
    for (uint32_t q = 0; q < PROMPTS; q++)
        ask(q, &w.readers[q % READERS]);
    TURN_UNTIL(all_are_whole());
    for (uint32_t q = 0; q < PROMPTS; q++)
        expect_ours(&w.readers[q % READERS], q);
    expect_idle();
    close_world();
}
END_TEST

START_TEST(blocks_lent_anew_are_not_taken_for_those_that_were_offered)
{
    reader *r = &w.readers[0];

    open_case(_i, PROMPT_BLOCKS);
    ask(1, r); // all of the pool
    TURN_UNTIL(is_whole(1));
    expect_idle();
    ask(2, r);
    TURN_UNTIL(is_whole(2));
    r->silent = true;
    prompts[1].landed = 0;
    fetch(r, 1, 0, 1);
    TURN_UNTIL(r->bad_fetches + prompts[1].landed > 0);
    // Prompt 2 took block 0 of the pool, or another; of those of prompt 1 that are still there none is bad.
    if (r->bad_fetches > 0)
        ck_assert_int_eq(r->cause, BT_TRANSFER_CAUSE_GENERATION);
    fetch(r, 1, 0, PROMPT_BLOCKS);
    TURN_UNTIL(r->bad_fetches > 0);
    ck_assert_int_eq(r->cause, BT_TRANSFER_CAUSE_GENERATION);
    close_world();
}
END_TEST

START_TEST(what_is_held_can_be_fetched_until_the_lease_though_the_link_is_down)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    r->silent = true;
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    bt_link_close(r->link);
    r->link = NULL;
    r->up = false;
    turn_for(LEASE / 4);
    ck_assert(!bt_prefill_node_idle(w.node));
    prompts[1].landed = 0;
    memset(r->pool + PROMPT_BLOCKS * layout.block_bytes, 0, PROMPT_BLOCKS * layout.block_bytes);
    fetch(r, 1, 0, PROMPT_BLOCKS);
    TURN_UNTIL(prompts[1].landed == PROMPT_BLOCKS);
    expect_ours(r, 1);
    expect_idle();
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.core.expired, 1);
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.readers == READERS - 1));
    TURN_UNTIL(r->losses == 1 || paths[_i] != BT_TRANSFER_PATH_STREAM);
    close_world();
}
END_TEST

START_TEST(a_decode_node_that_comes_back_keeps_its_connection)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    bt_link_close(r->link);
    r->up = false;
    r->link = dial();
    TURN_UNTIL(r->up);
    turn_for(2 * LEASE);
    ck_assert_uint_eq(r->losses, 0);
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.readers, READERS);
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    expect_ours(r, 1);
    close_world();
}
END_TEST

START_TEST(a_connection_that_broke_comes_again_when_the_decode_node_describes_itself_again)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;
    const uint8_t *description;
    uint32_t bytes;

    open_world(paths[_i], 64);
    bt_plane_disconnect(r->plane, 0);
    // The other side sees the end of its own connection, unless that was still being made: it is then greeted by the next.
    for (bt_time until = bt_time_now() + BT_SECOND / 2; bt_time_now() < until;) {
        turn();
        bt_prefill_node_get_stats(w.node, &stats);
        if (stats.readers == READERS - 1)
            break;
    }
    describe(r, r->epoch);
    r->proved = false;
    description = bt_plane_description(w.plane, &bytes);
    ck_assert_int_eq(bt_plane_connect(r->plane, 0, w.epoch, description, bytes, bt_time_now() + LONG), BT_OK);
    TURN_UNTIL(r->proved);
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    expect_ours(r, 1);
    close_world();
}
END_TEST

START_TEST(a_new_program_of_a_decode_node_is_served_and_the_old_one_forgotten)
{
    reader *r = &w.readers[0];
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    r->silent = true;
    ask(1, r);
    TURN_UNTIL(is_whole(1));
    close_reader(r);
    open_reader(r, 600);
    TURN_UNTIL(r->proved);
    ask(2, r);
    TURN_UNTIL(is_whole(2));
    expect_ours(r, 2);
    expect_idle(); // what the old program held is free at the end of its lease
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.readers == READERS));
    close_world();
}
END_TEST

START_TEST(a_restarted_prefill_node_is_fetched_from_under_its_new_epoch)
{
    open_world(paths[_i], 64);
    bt_link_close(&w.link.link);
    close_prefill();
    w.readers[0].proved = w.readers[1].proved = w.router_up = false;
    open_link();
    // Its address is another one here.
    for (uint32_t i = 0; i < READERS; i++) {
        bt_link_close(w.readers[i].link);
        w.readers[i].link = dial();
    }
    bt_link_close(w.router);
    w.router = dial();
    open_prefill(78, 64);
    TURN_UNTIL(w.router_up && w.readers[0].proved && w.readers[1].proved);
    for (uint32_t q = 0; q < PROMPTS; q++)
        ask(q, &w.readers[q % READERS]);
    TURN_UNTIL(all_are_whole());
    for (uint32_t q = 0; q < PROMPTS; q++)
        expect_ours(&w.readers[q % READERS], q);
    close_world();
}
END_TEST

START_TEST(descriptions_that_do_not_fit_their_hello_are_refused)
{
    bt_prefill_node_stats stats;
    bt_message message = {.kind = BT_MESSAGE_DESCRIPTION};
    uint8_t rubbish[100] = {1, 2, 3};

    open_world(BT_TRANSFER_PATH_AUTO, 64);
    describe(&w.readers[0], 501); // the other's epoch
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.refused_descriptions == 1));
    message.description = (bt_description){.epoch = 5, .blocks = 1, .bytes = rubbish, .byte_count = sizeof rubbish};
    ck_assert_int_eq(bt_link_send(w.router, 0, &message), BT_OK); // routers have no memory to read
    TURN_UNTIL((bt_prefill_node_get_stats(w.node, &stats), stats.refused_descriptions == 2));
    ck_assert_uint_eq(stats.readers, READERS);
    describe(&w.readers[0], 500); // again, which changes nothing
    ask(1, &w.readers[0]);
    TURN_UNTIL(is_whole(1));
    ck_assert_uint_eq(w.readers[0].losses, 0);
    close_world();
}
END_TEST

START_TEST(an_offer_that_is_lost_ends_its_prompt_and_nothing_else)
{
    bt_prefill_node_stats stats;

    open_world(paths[_i], 64);
    ask(1, &w.readers[0]);
    w.link.refuses = BT_MESSAGE_OFFER;
    TURN_UNTIL(prompts[1].over);
    ck_assert_int_eq(prompts[1].finish, BT_FINISH_ERROR);
    ck_assert_int_eq(prompts[1].err, BT_ERR_PEER);
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.resets, 1);
    ask(2, &w.readers[1]);
    TURN_UNTIL(is_whole(2));
    expect_ours(&w.readers[1], 2);
    expect_idle();
    close_world();
}
END_TEST

START_TEST(a_link_that_goes_right_after_it_lost_a_message_is_not_taken_for_one_that_came_back)
{
    bt_prefill_node_stats stats;

    open_world(BT_TRANSFER_PATH_AUTO, 64);
    // The answer to a HELLO is sent as soon as that is heard; the link's end is heard in the same turn.
    w.link.refuses = BT_MESSAGE_HELLO;
    w.link.then_down = true;
    bt_link_close(w.readers[0].link);
    w.readers[0].link = dial();
    TURN_UNTIL(w.link.refuses == BT_MESSAGE_NONE && w.link.down == NOBODY);
    bt_prefill_node_get_stats(w.node, &stats);
    ck_assert_uint_eq(stats.resets, 0);
    close_world();
}
END_TEST

START_TEST(a_draining_node_finishes_what_it_has_and_takes_no_more)
{
    open_world(BT_TRANSFER_PATH_AUTO, 64);
    ask(1, &w.readers[0]);
    TURN_UNTIL(prompts[1].offered_count > 0);
    bt_prefill_node_drain(w.node, bt_time_now());
    ask(2, &w.readers[0]);
    TURN_UNTIL(prompts[2].over && is_whole(1));
    ck_assert_int_eq(prompts[2].finish, BT_FINISH_ERROR);
    ck_assert_int_eq(prompts[2].err, BT_ERR_CLOSED);
    expect_ours(&w.readers[0], 1);
    expect_idle();
    close_world();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("prefill engine");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, what_decode_nodes_fetch_is_what_their_own_engine_computes, 0, CASES);
    tcase_add_loop_test(all, a_pool_for_one_prompt_at_a_time_serves_all, 0, CASES);
    tcase_add_loop_test(all, blocks_lent_anew_are_not_taken_for_those_that_were_offered, 0, CASES);
    tcase_add_loop_test(all, what_is_held_can_be_fetched_until_the_lease_though_the_link_is_down, 0, PATHS);
    tcase_add_loop_test(all, a_decode_node_that_comes_back_keeps_its_connection, 0, PATHS);
    tcase_add_loop_test(all, a_connection_that_broke_comes_again_when_the_decode_node_describes_itself_again, 0, PATHS);
    tcase_add_loop_test(all, a_new_program_of_a_decode_node_is_served_and_the_old_one_forgotten, 0, PATHS);
    tcase_add_loop_test(all, a_restarted_prefill_node_is_fetched_from_under_its_new_epoch, 0, PATHS);
    tcase_add_test(all, descriptions_that_do_not_fit_their_hello_are_refused);
    tcase_add_loop_test(all, an_offer_that_is_lost_ends_its_prompt_and_nothing_else, 0, PATHS);
    tcase_add_test(all, a_link_that_goes_right_after_it_lost_a_message_is_not_taken_for_one_that_came_back);
    tcase_add_test(all, a_draining_node_finishes_what_it_has_and_takes_no_more);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
