// What comes from prefill nodes: offers in order, fetches, bad blocks, and every way it can end in between.
#include "tests/support/test.h"
#include "tests/unit/decode/node_case.h"

#include <string.h>

#define SOURCE BT_DECODE_ROUTERS_MAX
#define PROMPT 14u // blocks of 4, 4, 4, 2

static bt_ticket_reply ticket;
static bt_token_result first_token;

static void
hear(uint32_t peer, bt_message message)
{
    feed(&(bt_decode_event){.kind = BT_DECODE_MESSAGE, .peer = peer, .message = &message});
}

static void
greet_source(uint64_t epoch)
{
    hear(SOURCE,
         (bt_message){.kind = BT_MESSAGE_HELLO, .hello = {.name = "p1", .role = BT_NODE_PREFILL, .epoch = epoch}});
}

static void
setup(void)
{
    case_open((bt_decode_limits){.fetches = true, .fetch_blocks = 2});
    meet(0);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = SOURCE});
    ck_assert_int_eq(acts->send[0].message.kind, BT_MESSAGE_HELLO); // it speaks first
    ck_assert_uint_eq(acts->send[0].peer, SOURCE);
    greet_source(21);
}

static void
grant(bt_job job)
{
    reserve(0, &job);
    ck_assert_ptr_nonnull(find_ticket(job.request.slot));
    ticket = *find_ticket(job.request.slot);
    first_token = fake_engine_draw(job.ids, job.prompt_count, 11, CASE_VOCAB);
}

static void
await_source(void)
{
    hear(0, (bt_message){.kind = BT_MESSAGE_AWAIT,
                         .await = {ticket.request, ticket.ticket, .prefill = "p1", .prefill_epoch = 21}});
}

// Blocks [from, to) of the prompt, as source blocks 40, 41, …
static bt_message
offer(uint32_t from, uint32_t to)
{
    static bt_offer_block blocks[16];
    uint32_t end = to * 4 < PROMPT ? to * 4 : PROMPT;

    for (uint32_t i = 0; i < to - from; i++)
        blocks[i] = (bt_offer_block){40 + from + i, 3};
    return (bt_message){.kind = BT_MESSAGE_OFFER,
                        .offer = {.ticket = ticket.ticket,
                                  .epoch = 21,
                                  .first_position = from * 4,
                                  .token_count = end - from * 4,
                                  .block_count = to - from,
                                  .blocks = blocks,
                                  .last = end == PROMPT,
                                  .has_token = end == PROMPT,
                                  .token = first_token}};
}

// Plays the transfer: what these tokens are in a cache goes into the landing blocks. Good up to `good` blocks when there is an error.
static void
finish_fetch(bt_err err, uint32_t good)
{
    static uint64_t cells[64];
    static fake_engine twin;
    static uint32_t blocks[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static bt_sampling sampling = {.repetition_penalty = 1};
    bt_decode_fetch fetch = acts->fetch;
    bt_job job = a_job(0, 64, 0);
    bt_token_result drawn;
    bt_step_result result = {.drawn = &drawn};
    bt_batch_item item = {.ids = job.ids, .count = 64, .blocks = blocks, .sampling = &sampling, .history = job.ids};

    ck_assert(acts->has_fetch);
    twin = (fake_engine){
        .cells = cells, .blocks = 16, .block_tokens = 4, .vocab = CASE_VOCAB, .sequences = 1, .chunk_tokens = 64};
    fake_engine_step(&twin, &item, 1, &result);
    for (uint32_t i = 0; i < (err == BT_OK ? fetch.count : good); i++)
        memcpy(&engine.cells[fetch.blocks[i].to * 4], &cells[(fetch.blocks[i].from - 40) * 4], 4 * sizeof *cells);
    feed(&(bt_decode_event){.kind = BT_DECODE_FETCHED, .user = fetch.user, .err = err, .good = good});
}

static const bt_taken *
find_taken(void)
{
    for (uint32_t i = 0; i < acts->send_count; i++) {
        if (acts->send[i].message.kind == BT_MESSAGE_TAKEN) {
            ck_assert_uint_eq(acts->send[i].peer, SOURCE);
            return &acts->send[i].message.taken;
        }
    }
    return NULL;
}

static void
abort_it(void)
{
    hear(0, (bt_message){.kind = BT_MESSAGE_ABORT, .abort = {ticket.request}});
}

START_TEST(what_the_prefill_node_found_and_measured_is_passed_on)
{
    bt_job job = a_job(1, PROMPT, 1);
    bt_message last;

    strcpy(job.name, "r-9");
    grant(job);
    last = offer(0, 4);
    last.offer.cached_tokens = 8;
    last.offer.phases = (bt_phases){.queue_prefill = 5, .prefill = 70};
    hear(SOURCE, last);
    finish_fetch(BT_OK, 2); // two at a time
    now += 2 * BT_MILLISECOND;
    finish_fetch(BT_OK, 2);
    ck_assert_uint_eq(find_entry(1)->cached_tokens, 8);
    ck_assert(find_entry(1)->phases.queue_prefill == 5 && find_entry(1)->phases.prefill == 70);
    ck_assert_uint_eq(acts->ended_count, 1); // for the log
    ck_assert_str_eq(acts->ended[0].name, "r-9");
    ck_assert(acts->ended[0].source == SOURCE && acts->ended[0].finish == BT_FINISH_LENGTH);
    ck_assert(acts->ended[0].phases.prefill == 70 && acts->ended[0].phases.transfer == 2 * BT_MILLISECOND);
    ck_assert(acts->ended[0].answer_tokens == 1 && acts->ended[0].prompt_tokens == PROMPT);
}
END_TEST

START_TEST(how_long_the_last_blocks_took_is_told)
{
    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 2));
    now += 50 * BT_MILLISECOND; // while the next chunk is read: nobody waits for these
    finish_fetch(BT_OK, 2);
    hear(SOURCE, offer(2, 4));
    now += 3 * BT_MILLISECOND;
    finish_fetch(BT_OK, 2);
    ck_assert_int_eq(find_entry(1)->phases.transfer, 3 * BT_MILLISECOND);
    ck_assert_uint_eq(find_entry(1)->cached_tokens, 0);
    ck_assert_int_eq(stats().handover_time, 3 * BT_MILLISECOND);
}
END_TEST

START_TEST(a_fetched_prompt_goes_on_as_if_it_had_been_read_here)
{
    bt_job job = a_job(1, PROMPT, 3);
    int32_t ids[32];

    memcpy(ids, job.ids, PROMPT * sizeof *ids);
    grant(job);
    await_source();
    hear(SOURCE, offer(0, 2));
    ck_assert(acts->has_fetch && acts->fetch.count == 2 && acts->fetch.peer == SOURCE);
    ck_assert_uint_eq(acts->fetch.blocks[1].to, acts->fetch.blocks[0].to + 1); // adjacent: one operation
    ck_assert(acts->fetch.blocks[0].from == 40 && acts->fetch.blocks[0].generation == 3);
    finish_fetch(BT_OK, 2);
    ck_assert_uint_eq(find_taken()->block_count, 2);
    ck_assert_ptr_null(running);
    hear(SOURCE, offer(2, 4));
    finish_fetch(BT_OK, 2);
    ck_assert(find_taken()->block_count == 4 && find_taken()->err == BT_OK);
    ck_assert(find_entry(1)->first == 0 && find_entry(1)->count == 1);
    ids[PROMPT] = find_entry(1)->results[0].id;
    ck_assert_int_eq(ids[PROMPT], fake_engine_draw(ids, PROMPT, 11, CASE_VOCAB).id);
    for (uint32_t n = 1; n < 3; n++) {
        finish_step();
        ck_assert_uint_eq(find_entry(1)->first, n);
        ids[PROMPT + n] = fake_engine_draw(ids, PROMPT + n, 11, CASE_VOCAB).id;
        ck_assert_int_eq(find_entry(1)->results[0].id, ids[PROMPT + n]);
    }
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_LENGTH);
    expect_idle();
}
END_TEST

START_TEST(an_offer_may_be_faster_than_the_await)
{
    uint64_t user;

    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 2));
    ck_assert_uint_eq(stats().fetching, 1);
    user = acts->fetch.user;
    await_source();
    ck_assert(!acts->has_fetch && stats().fetching == 1);
    feed(&(bt_decode_event){.kind = BT_DECODE_FETCHED, .user = user});
    ck_assert_uint_eq(find_taken()->block_count, 2);
}
END_TEST

START_TEST(more_than_one_fetch_holds_is_fetched_one_after_the_other)
{
    grant(a_job(1, PROMPT, 3));
    await_source();
    hear(SOURCE, offer(0, 4));
    ck_assert_uint_eq(acts->fetch.count, 2);
    finish_fetch(BT_OK, 2);
    ck_assert(acts->has_fetch && acts->fetch.blocks[0].from == 42);
    finish_fetch(BT_OK, 2);
    ck_assert_uint_eq(stats().decoding, 1);
}
END_TEST

START_TEST(fetches_that_share_the_way_have_time_for_all_of_it)
{
    bt_decode_fetch first;

    case_close();
    case_open((bt_decode_limits){
        .fetches = true, .fetch_blocks = 2, .fetch_time = 1000, .fetch_time_block = 10, .queue_max = 2});
    meet(0);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = SOURCE});
    greet_source(21);
    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 1));
    first = acts->fetch;
    ck_assert_int_eq(first.deadline, now + 1010);
    grant(a_job(2, PROMPT, 3));
    hear(SOURCE, offer(0, 2));
    ck_assert_int_eq(acts->fetch.deadline, now + 1030);
    feed(&(bt_decode_event){.kind = BT_DECODE_FETCHED, .user = first.user, .err = BT_OK, .good = 1});
    hear(SOURCE, offer(2, 4)); // more of the second, when its first are here
    feed(&(bt_decode_event){
        .kind = BT_DECODE_FETCHED, .user = (uint64_t)ticket.ticket.generation << 32 | ticket.ticket.slot, .good = 2});
    ck_assert_int_eq(acts->fetch.deadline, now + 1020);
}
END_TEST

START_TEST(a_fetched_prefix_is_found_again_and_not_fetched_twice)
{
    grant(a_job(1, PROMPT, 1));
    hear(SOURCE, offer(0, 4));
    finish_fetch(BT_OK, 2);
    finish_fetch(BT_OK, 2);
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_LENGTH);
    grant(a_job(2, PROMPT, 2));
    ck_assert_uint_eq(ticket.cached_tokens, 12);
    hear(SOURCE, offer(3, 4));
    ck_assert_uint_eq(acts->fetch.count, 1);
    finish_fetch(BT_OK, 1);
    ck_assert_int_eq(find_entry(2)->results[0].id, first_token.id);
}
END_TEST

START_TEST(a_bad_block_is_fetched_once_more)
{
    grant(a_job(1, PROMPT, 1));
    hear(SOURCE, offer(0, 4));
    finish_fetch(BT_ERR_PEER, 1);
    ck_assert_uint_eq(find_taken()->block_count, 1);
    ck_assert(acts->has_fetch && acts->fetch.blocks[0].from == 41);
    finish_fetch(BT_OK, 2);
    finish_fetch(BT_OK, 1);
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_LENGTH);
    ck_assert_uint_eq(stats().refetches, 1);
    expect_idle();
}
END_TEST

START_TEST(a_block_that_is_bad_twice_ends_the_sequence_here)
{
    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 4));
    finish_fetch(BT_ERR_PEER, 1);
    finish_fetch(BT_ERR_PEER, 0);
    ck_assert(find_entry(1)->finish == BT_FINISH_ERROR && find_entry(1)->err == BT_ERR_PEER);
    ck_assert(find_taken()->err != BT_OK && !acts->has_fetch);
    expect_idle();
    ck_assert_uint_eq(stats().blocks_cached, 0); // nothing of it is found again
}
END_TEST

START_TEST(a_fetch_that_ran_out_of_time_is_not_tried_again)
{
    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 4));
    finish_fetch(BT_ERR_TIMEOUT, 0);
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_PEER);
    expect_idle();
}
END_TEST

START_TEST(landing_blocks_come_home_only_when_their_fetch_is_over)
{
    uint64_t user;

    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 2));
    user = acts->fetch.user;
    abort_it();
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_CANCELLED);
    ck_assert(acts->cancel_count == 1 && acts->cancel[0] == user);
    ck_assert_int_eq(find_taken()->err, BT_ERR_CANCELLED);
    ck_assert_uint_eq(stats().ending, 1);
    ck_assert_uint_eq(stats().blocks_free, 32 - 4);
    feed(&(bt_decode_event){.kind = BT_DECODE_FETCHED, .user = user, .err = BT_ERR_CANCELLED});
    expect_idle();
}
END_TEST

START_TEST(a_cancel_between_the_legs_frees_both)
{
    grant(a_job(1, PROMPT, 3));
    await_source();
    abort_it();
    ck_assert_int_eq(find_taken()->err, BT_ERR_CANCELLED);
    expect_idle();
    hear(SOURCE, offer(0, 2)); // on its way meanwhile
    ck_assert_int_eq(find_taken()->err, BT_ERR_CANCELLED);
    ck_assert(!acts->has_fetch && stats().late_messages == 1);
}
END_TEST

static void
expect_bad_offer(bt_message message)
{
    uint64_t bad = stats().bad_messages;

    hear(SOURCE, message);
    ck_assert_uint_eq(stats().bad_messages, bad + 1);
    ck_assert(find_entry(1)->err == BT_ERR_PEER && find_taken()->err != BT_OK);
    expect_idle();
    grant(a_job(1, PROMPT, 3));
    await_source();
}

START_TEST(an_offer_that_does_not_follow_is_refused_with_its_sequence)
{
    bt_message message;

    grant(a_job(1, PROMPT, 3));
    await_source();
    expect_bad_offer(offer(1, 2)); // a gap
    message = offer(0, 2);
    message.offer.token_count = 7; // not whole
    expect_bad_offer(message);
    message = offer(0, 2);
    message.offer.epoch = 20; // of a program before
    expect_bad_offer(message);
    message = offer(0, 2);
    message.offer.last = true; // not the end
    expect_bad_offer(message);
    message = offer(0, 4);
    message.offer.has_token = false;
    expect_bad_offer(message);
    message = offer(0, 4);
    message.offer.token.id = CASE_VOCAB;
    expect_bad_offer(message);
}
END_TEST

START_TEST(a_lost_source_ends_what_still_misses_offers)
{
    grant(a_job(1, PROMPT, 3));
    await_source();
    hear(SOURCE, offer(0, 2));
    finish_fetch(BT_OK, 2);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = SOURCE});
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_PEER);
    expect_idle();
}
END_TEST

START_TEST(a_source_out_of_reach_may_still_be_read)
{
    bt_decode_fetch fetch;

    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 4));
    fetch = acts->fetch;
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = SOURCE});
    ck_assert_uint_eq(stats().fetching, 1);
    feed(&(bt_decode_event){.kind = BT_DECODE_FETCHED, .user = fetch.user});
    ck_assert_ptr_null(find_taken());
    finish_fetch(BT_OK, 2);
    ck_assert_uint_eq(stats().decoding, 1);
}
END_TEST

START_TEST(a_source_that_was_restarted_ends_all_that_came_from_it)
{
    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 4));
    greet_source(22);
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_PEER);
    ck_assert_uint_eq(stats().ending, 1); // its fetch is not over
}
END_TEST

START_TEST(a_source_that_was_restarted_behind_a_cut_link_is_not_read_for_the_one_before)
{
    bt_decode_fetch fetch;

    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 4));
    fetch = acts->fetch;
    ck_assert_uint_eq(fetch.epoch, 21);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = SOURCE});
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = SOURCE});
    greet_source(22);
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_PEER);
    feed(&(bt_decode_event){.kind = BT_DECODE_FETCHED, .user = fetch.user, .err = BT_ERR_PEER});
    ck_assert(!acts->has_fetch);
    expect_idle();
}
END_TEST

START_TEST(a_silent_source_counts_as_lost_and_is_greeted_until_it_answers)
{
    grant(a_job(1, PROMPT, 30));
    await_source();
    for (int i = 0; i < 11; i++) {
        now += BT_SECOND;
        hear(0, (bt_message){.kind = BT_MESSAGE_HEARTBEAT});
    }
    expect_idle();
    ck_assert_uint_eq(stats().lost_fetches, 1);
    greet_source(21);
    grant(a_job(1, PROMPT, 3));
    hear(SOURCE, offer(0, 2));
    ck_assert(acts->has_fetch);
}
END_TEST

static void
prove_source(uint64_t epoch, bool up)
{
    feed(&(bt_decode_event){.kind = BT_DECODE_SOURCE, .peer = SOURCE, .epoch = epoch, .up = up});
}

// So many sources are named in the heartbeat of this event to the router; -1 = there was none.
static int
told_sources(void)
{
    for (uint32_t i = 0; i < acts->send_count; i++) {
        const bt_message *message = &acts->send[i].message;

        if (acts->send[i].peer == 0 && message->kind == BT_MESSAGE_HEARTBEAT) {
            ck_assert(message->heartbeat.source_count == 0 || message->heartbeat.sources[0] == 21);
            return (int)message->heartbeat.source_count;
        }
    }
    return -1;
}

START_TEST(routers_hear_at_once_which_prefill_nodes_are_proved)
{
    ck_assert_int_eq(told_sources(), -1);
    prove_source(21, true);
    ck_assert_int_eq(told_sources(), 1);
    prove_source(21, true);
    ck_assert_int_eq(told_sources(), -1); // nothing new
    meet(0);
    ck_assert_int_eq(told_sources(), 1); // together with the node's own greeting
    prove_source(21, false);
    ck_assert_int_eq(told_sources(), 0);
    prove_source(21, true);
    prove_source(20, false); // news of a program before
    ck_assert_int_eq(told_sources(), -1);
    ck_assert_uint_eq(stats().sources, 1);
    now += BT_SECOND;
    tick();
    ck_assert_int_eq(told_sources(), 1);
}
END_TEST

START_TEST(a_source_is_unlisted_with_its_link_its_voice_and_its_epoch)
{
    prove_source(21, true);
    greet_source(22);
    ck_assert_int_eq(told_sources(), 0);
    greet_source(21); // as if it had been a stray: it is proved still
    ck_assert_int_eq(told_sources(), 1);
    for (int i = 0; i < 11; i++) { // silence
        now += BT_SECOND;
        hear(0, (bt_message){.kind = BT_MESSAGE_HEARTBEAT});
    }
    ck_assert_uint_eq(stats().sources, 0);
    greet_source(21);
    ck_assert_int_eq(told_sources(), 1);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = SOURCE});
    ck_assert_int_eq(told_sources(), 0);
    prove_source(21, true); // was under way
    ck_assert_int_eq(told_sources(), -1);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = SOURCE});
    greet_source(21);
    ck_assert_int_eq(told_sources(), -1); // greeted and not proved
}
END_TEST

START_TEST(an_await_of_an_unknown_prefill_node_ends_at_once)
{
    grant(a_job(1, PROMPT, 3));
    hear(0, (bt_message){.kind = BT_MESSAGE_AWAIT,
                         .await = {ticket.request, ticket.ticket, .prefill = "p2", .prefill_epoch = 21}});
    ck_assert_int_eq(find_entry(1)->err, BT_ERR_PEER);
    expect_idle();
}
END_TEST

START_TEST(an_answer_is_replayed_upon_a_fetched_prompt)
{
    bt_job job = a_job(1, PROMPT, 4);
    bt_message message;

    job.answer_count = 2; // counting goes on
    grant(job);
    message = offer(0, 4);
    message.offer.has_token = false;
    hear(SOURCE, message);
    finish_fetch(BT_OK, 2);
    finish_fetch(BT_OK, 2);
    ck_assert(running->count == 1 && running->items[0].position == PROMPT && running->items[0].count == 2);
    finish_step();
    ck_assert_uint_eq(find_entry(1)->first, 2);
    ck_assert_int_eq(find_entry(1)->results[0].id, fake_engine_draw(job.ids, PROMPT + 2, 11, CASE_VOCAB).id);
}
END_TEST

START_TEST(an_end_token_drawn_by_the_prefill_node_ends_the_answer)
{
    bt_job job = a_job(1, PROMPT, 4);

    job.end_count = 1;
    job.end_ids[0] = fake_engine_draw(job.ids, PROMPT, 11, CASE_VOCAB).id;
    grant(job);
    hear(SOURCE, offer(0, 4));
    finish_fetch(BT_OK, 2);
    finish_fetch(BT_OK, 2);
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_STOP);
    expect_idle();
}
END_TEST

START_TEST(what_decode_weights_wrote_matches_no_prompt)
{
    case_close();
    case_open((bt_decode_limits){.weights = 1, .prompt_weights = 2});
    meet(0);
    for (uint32_t slot = 1; slot <= 2; slot++) {
        bt_job job = a_job(slot, PROMPT, 1);

        begin(0, &job);
        finish_step();
        ck_assert_uint_eq(find_entry(slot)->cached_tokens, 0);
    }
}
END_TEST

// A longer prompt holds the ids of an answer, as the prompt's weights wrote them. An answer moved here goes on as decode weights do.
START_TEST(a_replayed_answer_is_not_found_in_what_prompt_weights_wrote)
{
    bt_job job = a_job(2, PROMPT, 8);

    case_close();
    case_open((bt_decode_limits){.weights = 1, .prompt_weights = 2, .fetches = true, .fetch_blocks = 4});
    meet(0);
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_UP, .peer = SOURCE});
    hear(SOURCE, (bt_message){.kind = BT_MESSAGE_HELLO,
                              .hello = {.name = "p1", .role = BT_NODE_PREFILL, .epoch = 21, .weights = 2}});
    grant(a_job(1, PROMPT, 1));
    hear(SOURCE, offer(0, 4));
    finish_fetch(BT_OK, 4);
    job.prompt_count = 6;
    job.answer_count = 6;
    grant(job);
    ck_assert_uint_eq(ticket.cached_tokens,
                      4); // the block with the prompt's last two and the answer's first two is another
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("decode fetch");
    TCase *cases = tcase_create("all");

    tcase_add_checked_fixture(cases, setup, case_close);
    tcase_add_test(cases, what_the_prefill_node_found_and_measured_is_passed_on);
    tcase_add_test(cases, how_long_the_last_blocks_took_is_told);
    tcase_add_test(cases, a_fetched_prompt_goes_on_as_if_it_had_been_read_here);
    tcase_add_test(cases, an_offer_may_be_faster_than_the_await);
    tcase_add_test(cases, more_than_one_fetch_holds_is_fetched_one_after_the_other);
    tcase_add_test(cases, fetches_that_share_the_way_have_time_for_all_of_it);
    tcase_add_test(cases, a_fetched_prefix_is_found_again_and_not_fetched_twice);
    tcase_add_test(cases, a_bad_block_is_fetched_once_more);
    tcase_add_test(cases, a_block_that_is_bad_twice_ends_the_sequence_here);
    tcase_add_test(cases, a_fetch_that_ran_out_of_time_is_not_tried_again);
    tcase_add_test(cases, landing_blocks_come_home_only_when_their_fetch_is_over);
    tcase_add_test(cases, a_cancel_between_the_legs_frees_both);
    tcase_add_test(cases, an_offer_that_does_not_follow_is_refused_with_its_sequence);
    tcase_add_test(cases, a_lost_source_ends_what_still_misses_offers);
    tcase_add_test(cases, a_source_out_of_reach_may_still_be_read);
    tcase_add_test(cases, a_source_that_was_restarted_ends_all_that_came_from_it);
    tcase_add_test(cases, a_source_that_was_restarted_behind_a_cut_link_is_not_read_for_the_one_before);
    tcase_add_test(cases, a_silent_source_counts_as_lost_and_is_greeted_until_it_answers);
    tcase_add_test(cases, routers_hear_at_once_which_prefill_nodes_are_proved);
    tcase_add_test(cases, a_source_is_unlisted_with_its_link_its_voice_and_its_epoch);
    tcase_add_test(cases, an_await_of_an_unknown_prefill_node_ends_at_once);
    tcase_add_test(cases, an_answer_is_replayed_upon_a_fetched_prompt);
    tcase_add_test(cases, an_end_token_drawn_by_the_prefill_node_ends_the_answer);
    tcase_add_test(cases, what_decode_weights_wrote_matches_no_prompt);
    tcase_add_test(cases, a_replayed_answer_is_not_found_in_what_prompt_weights_wrote);
    suite_add_tcase(suite, cases);
    return bt_test_run(suite);
}
