// The decode node's core: room, leases, ends. batch composition is in test_decode_batch.c.
#include "common/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/decode/node_case.h"

#include <string.h>

static void
setup(void)
{
    case_open((bt_decode_limits){0});
    meet(0);
}

// Runs steps until the request's end and returns how.
static bt_finish
run_to_end(uint32_t slot)
{
    for (int i = 0; i < 100; i++) {
        const bt_tokens_entry *entry;

        finish_step();
        entry = find_entry(slot);
        if (entry != NULL && entry->finish != BT_FINISH_NONE)
            return entry->finish;
    }
    ck_abort_msg("no end");
    return BT_FINISH_NONE;
}

START_TEST(a_hello_is_answered_with_what_the_node_is)
{
    const bt_message *hello = &acts->send[0].message;

    ck_assert_int_eq(hello->kind, BT_MESSAGE_HELLO);
    ck_assert_uint_eq(hello->hello.epoch, 7);
    ck_assert_uint_eq(hello->hello.sequences, 2);
    ck_assert_uint_eq(hello->hello.blocks, 32);
}
END_TEST

START_TEST(a_job_runs_to_its_length_with_the_tokens_it_should_have)
{
    bt_job job = a_job(1, 6, 5);
    int32_t ids[64];

    for (int i = 0; i < 6; i++)
        ids[i] = job.ids[i];
    begin(0, &job);
    for (uint32_t n = 0; n < 5; n++) {
        const bt_tokens_entry *entry;

        finish_step();
        entry = find_entry(1);
        ck_assert(entry != NULL && entry->count == 1 && entry->first == n);
        ids[6 + n] = fake_engine_draw(ids, 6 + n, 11, CASE_VOCAB).id;
        ck_assert_int_eq(entry->results[0].id, ids[6 + n]);
        ck_assert_int_eq(entry->finish, n == 4 ? BT_FINISH_LENGTH : BT_FINISH_NONE);
    }
    expect_idle();
    ck_assert_ptr_null(running);
}
END_TEST

START_TEST(waiting_for_room_is_not_waiting_for_a_step)
{
    bt_job job = a_job(1, 6, 1);
    bt_ticket_reply ticket;

    strcpy(job.name, "req/1");
    reserve(0, &job);
    ticket = *find_ticket(1);
    now += 40 * BT_MILLISECOND; // until the router says START
    start(0, &ticket);
    now += 7 * BT_MILLISECOND;
    finish_step();
    ck_assert_int_eq(find_entry(1)->phases.queue_decode, 0); // which the router measures
    ck_assert_int_eq(find_entry(1)->phases.queue_prefill, 0);
    ck_assert_int_ge(find_entry(1)->phases.prefill, 7 * BT_MILLISECOND);
    ck_assert_int_lt(find_entry(1)->phases.prefill, 40 * BT_MILLISECOND);
    ck_assert_uint_eq(acts->ended_count, 1);
    ck_assert_str_eq(acts->ended[0].name, "req/1");
    ck_assert(acts->ended[0].source == BT_DECODE_PEERS_MAX && acts->ended[0].total >= 47 * BT_MILLISECOND);
}
END_TEST

START_TEST(of_many_ends_at_once_some_are_told_and_all_counted)
{
    case_close();
    case_open((bt_decode_limits){.queue_max = 200});
    meet(0);
    for (uint32_t slot = 0; slot < 100; slot++) {
        bt_job job = a_job(slot, 6, 4);

        reserve(0, &job);
    }
    feed(&(bt_decode_event){.kind = BT_DECODE_LINK_DOWN, .peer = 0});
    ck_assert_uint_eq(acts->ended_count, 100);
    ck_assert_int_eq(acts->ended[BT_DECODE_ENDED_MAX - 1].finish, BT_FINISH_CANCELLED);
    tick();
    ck_assert_uint_eq(acts->ended_count, 0);
}
END_TEST

START_TEST(an_end_token_ends_the_answer_and_is_part_of_it)
{
    bt_job job = a_job(1, 6, 5);
    const bt_tokens_entry *entry;

    job.end_count = 1;
    job.end_ids[0] = fake_engine_draw(job.ids, 6, 11, CASE_VOCAB).id;
    begin(0, &job);
    finish_step();
    entry = find_entry(1);
    ck_assert_int_eq(entry->finish, BT_FINISH_STOP);
    ck_assert_uint_eq(entry->count, 1);
    ck_assert_int_eq(entry->results[0].id, job.end_ids[0]);
    expect_idle();
}
END_TEST

START_TEST(without_max_tokens_a_prompt_is_only_read)
{
    bt_job job = a_job(1, 6, 0);

    begin(0, &job);
    finish_step();
    ck_assert_int_eq(find_entry(1)->finish, BT_FINISH_LENGTH);
    ck_assert_uint_eq(find_entry(1)->count, 0);
    expect_idle();
}
END_TEST

START_TEST(a_replayed_answer_goes_on_where_it_was)
{
    bt_job job = a_job(1, 6, 5);
    int32_t ids[64];
    const bt_tokens_entry *entry;

    for (uint32_t i = 0; i < 8; i++) // as if two had been drawn
        ids[i] = i < 6 ? job.ids[i] : fake_engine_draw(ids, i, 11, CASE_VOCAB).id;
    job.ids = ids;
    job.answer_count = 2;
    begin(0, &job);
    finish_step();
    entry = find_entry(1);
    ck_assert_uint_eq(entry->first, 2);
    ck_assert_int_eq(entry->results[0].id, fake_engine_draw(ids, 8, 11, CASE_VOCAB).id);
    ck_assert_int_eq(run_to_end(1), BT_FINISH_LENGTH);
    ck_assert_uint_eq(stats().answer_tokens, 3);
}
END_TEST

START_TEST(a_prompt_is_scored_once_at_every_position)
{
    bt_job job = a_job(1, 14, 0);
    uint32_t next = 1;

    job.prompt_logprobs = true;
    begin(0, &job);
    for (bt_finish finish = BT_FINISH_NONE; finish == BT_FINISH_NONE;) {
        const bt_tokens_entry *entry;

        finish_step(); // at most two rows of logits a step
        entry = find_entry(1);
        ck_assert_uint_le(entry->scored_count, 2);
        for (uint32_t i = 0; i < entry->scored_count; i++, next++) {
            bt_token_result expected = fake_engine_score(job.ids, next, job.ids[next]);

            ck_assert_uint_eq(entry->scored_first + i, next);
            ck_assert_int_eq(entry->scored[i].id, expected.id);
            ck_assert(entry->scored[i].logprob == expected.logprob);
        }
        finish = entry->finish;
    }
    ck_assert_uint_eq(next, 14);
    expect_idle();
}
END_TEST

typedef enum { WAITING, GRANTED, PREFILLING, PREFILLING_IN_STEP, DECODING_IN_STEP, PHASES } phase;

// Request 9 in the given phase.
static void
bring_to(phase to)
{
    bt_job other = a_job(1, 5, 30), job = a_job(9, 40, 20);

    if (to == WAITING) {
        begin(0, &other); // 9 of 32 blocks; the big one needs 15, and two of them one too many
        other = a_job(2, 40, 20);
        reserve(0, &other);
        reserve(0, &job);
        ck_assert_ptr_null(find_ticket(9));
    } else if (to == GRANTED) {
        reserve(0, &job);
    } else if (to == PREFILLING) {
        begin(0, &other); // a step runs already, without it
        begin(0, &job);
        ck_assert_ptr_null(find_item(40));
    } else {
        begin(0, &job);
        for (int steps = 0; to == DECODING_IN_STEP && steps < 4; steps++)
            finish_step();
        ck_assert_ptr_nonnull(find_item(40));
    }
}

START_TEST(an_abort_gives_the_room_back_in_every_phase) // A1, A3, A4, A5
{
    phase at = (phase)_i;

    bring_to(at);
    abort_request(0, 9);
    ck_assert(find_entry(9) != NULL && find_entry(9)->finish == BT_FINISH_CANCELLED); // acknowledged at once
    if (at >= PREFILLING_IN_STEP) {
        ck_assert_uint_eq(stats().ending, 1);
        ck_assert_uint_gt(stats().blocks_promised + stats().blocks - stats().blocks_free, 0);
        finish_step(); // its blocks were in use until now
        ck_assert_ptr_null(find_entry(9));
    }
    abort_request(0, 9); // again: nothing to do
    ck_assert_uint_eq(stats().late_messages, 1);
    abort_request(0, 1);
    abort_request(0, 2);
    while (running != NULL)
        finish_step();
    expect_idle();
}
END_TEST

START_TEST(after_an_abort_the_next_request_is_in_the_very_next_step) // A15
{
    bt_job job = a_job(9, 40, 20), next = a_job(3, 10, 4);

    case_close();
    case_open((bt_decode_limits){.sequences = 1, .blocks = 16});
    meet(0);
    begin(0, &job);
    reserve(0, &next);
    ck_assert_ptr_null(find_ticket(3));
    abort_request(0, 9); // in the middle of a step
    finish_step();
    ck_assert_ptr_nonnull(find_ticket(3));
    start(0, find_ticket(3));
    ck_assert_ptr_nonnull(find_item(10));
    ck_assert_ptr_null(find_item(40));
}
END_TEST

START_TEST(room_is_granted_for_the_worst_case_only) // A22, A23, A25
{
    bt_job job = a_job(1, 8, 13); // 20 tokens written: 5 blocks

    case_close();
    case_open((bt_decode_limits){.sequences = 8, .queue_max = 8, .blocks = 14, .chunk_tokens = 64});
    meet(0);
    for (uint32_t slot = 1; slot <= 6; slot++) {
        job.request.slot = slot;
        reserve(0, &job);
        ck_assert((find_ticket(slot) != NULL) == (slot <= 2));
    }
    ck_assert_uint_eq(stats().blocks_promised, 10);
    ck_assert_uint_eq(stats().waiting, 4);
    abort_request(0, 1);
    ck_assert_ptr_nonnull(find_ticket(3));
    ck_assert_ptr_null(find_ticket(4));
}
END_TEST

START_TEST(what_never_fits_is_refused_at_once) // A20
{
    bt_job job = a_job(1, 40, 25);

    reserve(0, &job); // over the context
    ck_assert_int_eq(find_ticket(1)->err, BT_ERR_TOO_LONG);
    case_close();
    case_open((bt_decode_limits){.blocks = 4});
    meet(0);
    job = a_job(1, 8, 10); // 17 tokens written: 5 blocks
    reserve(0, &job);
    ck_assert_int_eq(find_ticket(1)->err, BT_ERR_TOO_LONG);
    job = a_job(1, 8, 9);
    reserve(0, &job);
    ck_assert_int_eq(find_ticket(1)->err, BT_OK);
}
END_TEST

START_TEST(a_full_queue_says_busy_and_a_repeat_changes_nothing)
{
    bt_job job = a_job(1, 4, 4);

    for (uint32_t slot = 1; slot <= 4; slot++) {
        job.request.slot = slot;
        reserve(0, &job);
    }
    ck_assert_uint_eq(stats().waiting, 2);
    reserve(0, &job);
    ck_assert_uint_eq(stats().bad_messages, 1);
    job.request.slot = 5;
    reserve(0, &job);
    ck_assert_int_eq(find_ticket(5)->err, BT_ERR_BUSY);
    ck_assert_uint_eq(stats().waiting, 2);
}
END_TEST

START_TEST(malformed_jobs_are_refused)
{
    static int32_t ids[4] = {1, 2, CASE_VOCAB, 3};
    bt_job job = a_job(1, 4, 4);

    job.ids = ids;
    reserve(0, &job);
    ck_assert_int_eq(find_ticket(1)->err, BT_ERR_INVALID);
    job = a_job(2, 4, 4);
    job.answer_count = 4; // nothing left to write
    reserve(0, &job);
    ck_assert_int_eq(find_ticket(2)->err, BT_ERR_INVALID);
    expect_idle();
}
END_TEST

START_TEST(a_draining_node_finishes_what_it_has_and_takes_no_more)
{
    bt_job job = a_job(1, 4, 4);

    begin(0, &job);
    feed(&(bt_decode_event){.kind = BT_DECODE_DRAIN});
    ck_assert(acts->send[0].message.kind == BT_MESSAGE_HELLO && acts->send[0].message.hello.draining);
    job.request.slot = 2;
    reserve(0, &job);
    ck_assert_int_eq(find_ticket(2)->err, BT_ERR_CLOSED);
    ck_assert_int_eq(run_to_end(1), BT_FINISH_LENGTH);
    expect_idle();
}
END_TEST

START_TEST(a_prompt_seen_before_is_found_up_to_its_last_block)
{
    bt_job job = a_job(1, 12, 6);

    begin(0, &job);
    run_to_end(1);
    job = a_job(2, 12, 6);
    ck_assert_uint_eq(begin(0, &job).cached_tokens, 8); // one token at least is to be computed
    ck_assert_uint_eq(find_item(12)->position, 8);
    run_to_end(2);
    job = a_job(3, 12, 6);
    job.prompt_logprobs = true; // all of it is needed
    ck_assert_uint_eq(begin(0, &job).cached_tokens, 0);
    run_to_end(3);
    ck_assert_uint_eq(stats().cached_tokens, 8);
    expect_idle();
}
END_TEST

START_TEST(an_answer_can_be_found_as_part_of_the_next_prompt)
{
    bt_job job = a_job(1, 6, 11); // 16 tokens written
    int32_t ids[32];

    for (uint32_t i = 0; i < 20; i++)
        ids[i] = i < 6 ? job.ids[i] : i < 17 ? fake_engine_draw(ids, i, 11, CASE_VOCAB).id : 1;
    begin(0, &job);
    run_to_end(1);
    job = a_job(2, 20, 2);
    job.ids = ids;
    ck_assert_uint_eq(begin(0, &job).cached_tokens, 16);
    finish_step();
    ck_assert_int_eq(find_entry(2)->results[0].id, fake_engine_draw(ids, 20, 11, CASE_VOCAB).id);
}
END_TEST

START_TEST(an_idle_node_still_ends_what_its_router_forgot) // A10
{
    bt_job job = a_job(1, 12, 6);

    reserve(0, &job); // granted, never started
    for (int second = 0; second < 29; second++) {
        now += BT_SECOND;
        tick();
    }
    ck_assert_uint_eq(stats().granted, 1);
    for (int second = 0; second < 3; second++) {
        now = bt_decode_core_next_deadline(core);
        tick();
    }
    ck_assert_uint_eq(stats().expired, 1);
    expect_idle();
}
END_TEST

START_TEST(heartbeats_renew_the_leases_of_their_router_alone)
{
    bt_message beat = {.kind = BT_MESSAGE_HEARTBEAT};
    bt_job job = a_job(1, 12, 6);

    meet(1);
    reserve(0, &job);
    job.request.slot = 2;
    reserve(1, &job);
    for (int second = 0; second < 60; second++) {
        now += BT_SECOND;
        tick();
        feed(&(bt_decode_event){.kind = BT_DECODE_MESSAGE, .peer = 0, .message = &beat});
    }
    ck_assert_uint_eq(stats().granted, 1);
    ck_assert_uint_eq(stats().expired, 1);
    abort_request(0, 1);
    expect_idle();
}
END_TEST

START_TEST(the_nodes_own_sleep_ends_no_lease)
{
    bt_job job = a_job(1, 12, 6);

    reserve(0, &job);
    tick();
    now += 300 * BT_SECOND;
    tick();
    ck_assert_uint_eq(stats().granted, 1);
}
END_TEST

START_TEST(a_deadline_ends_a_sequence_in_every_phase)
{
    bt_job job = a_job(9, 40, 20);

    job.time_left = BT_MILLISECOND;
    if (_i == 0)
        reserve(0, &job);
    else
        begin(0, &job);
    now = bt_decode_core_next_deadline(core);
    ck_assert_int_le(now, BT_SECOND + BT_MILLISECOND);
    tick();
    ck_assert_int_eq(find_entry(9)->err, BT_ERR_TIMEOUT);
    if (_i == 1)
        finish_step();
    expect_idle();
}
END_TEST

START_TEST(what_a_router_had_is_gone_with_its_link_or_its_next_hello)
{
    bt_job job = a_job(9, 40, 20);

    begin(0, &job);
    if (_i == 0)
        feed(&(bt_decode_event){.kind = BT_DECODE_LINK_DOWN});
    else
        meet(0);
    ck_assert_ptr_null(find_entry(9));
    finish_step();
    ck_assert_ptr_null(find_entry(9));
    ck_assert_ptr_null(running);
    expect_idle();
}
END_TEST

START_TEST(tickets_of_another_life_start_nothing) // A6, A18
{
    bt_job job = a_job(1, 12, 6);
    bt_ticket_reply ticket, wrong;

    reserve(0, &job);
    ticket = *find_ticket(1);
    wrong = ticket;
    wrong.ticket.epoch++;
    start(0, &wrong);
    wrong = ticket;
    wrong.ticket.generation++;
    start(0, &wrong);
    wrong = ticket;
    wrong.ticket.slot = 1000;
    start(0, &wrong);
    wrong = ticket;
    wrong.request.attempt++;
    start(0, &wrong);
    ck_assert_ptr_null(running);
    ck_assert_uint_eq(stats().late_messages, 4);
    start(0, &ticket);
    ck_assert_ptr_nonnull(running);
}
END_TEST

START_TEST(a_failed_step_ends_its_sequences_and_trusts_no_block)
{
    bt_job job = a_job(1, 12, 6);

    begin(0, &job);
    run_to_end(1);
    job = a_job(2, 12, 6);
    begin(0, &job);
    running = NULL;
    feed(&(bt_decode_event){.kind = BT_DECODE_STEPPED, .err = BT_ERR_DEVICE});
    ck_assert_int_eq(find_entry(2)->err, BT_ERR_DEVICE);
    ck_assert_uint_eq(stats().blocks_cached, 0);
    expect_idle();
    job = a_job(3, 12, 6);
    ck_assert_uint_eq(begin(0, &job).cached_tokens, 0);
    ck_assert_int_eq(run_to_end(3), BT_FINISH_LENGTH);
}
END_TEST

START_TEST(news_goes_to_whose_it_is_numbered_from_one)
{
    bt_job job = a_job(1, 4, 4);

    meet(1);
    begin(0, &job);
    job.request.slot = 2;
    job.request.generation = 1;
    begin(1, &job);
    finish_step(); // of the first alone
    ck_assert_uint_eq(acts->send_count, 1);
    finish_step();
    ck_assert_uint_eq(acts->send_count, 2);
    ck_assert_uint_eq(acts->send[0].peer, 0);
    ck_assert_uint_eq(acts->send[0].message.tokens.number, 2);
    ck_assert_uint_eq(acts->send[1].peer, 1);
    ck_assert_uint_eq(acts->send[1].message.tokens.number, 1);
}
END_TEST

START_TEST(opening_survives_the_loss_of_any_allocation)
{
    bt_decode_limits limits = {.epoch = 1,
                               .fetches = true,
                               .sequences = 2,
                               .queue_max = 2,
                               .chunk_tokens = 8,
                               .blocks = 8,
                               .block_tokens = 4,
                               .context = 32,
                               .vocab = 50};
    long live = bt_mem_live();
    bt_decode_core *opened;
    bt_why why;

    for (long nth = 1;; nth++) {
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_decode_core_open(&opened, &limits, &why);
        bt_mem_fail_nth(0);
        if (err == BT_OK)
            break;
        ck_assert_int_eq(err, BT_ERR_NO_MEMORY);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    bt_decode_core_close(opened);
    ck_assert_int_eq(bt_mem_live(), live);
    limits.chunk_tokens = 1;
    ck_assert_int_eq(bt_decode_core_open(&opened, &limits, &why), BT_ERR_INVALID);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("decode core");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, setup, case_close);
    tcase_add_test(all, a_hello_is_answered_with_what_the_node_is);
    tcase_add_test(all, a_job_runs_to_its_length_with_the_tokens_it_should_have);
    tcase_add_test(all, waiting_for_room_is_not_waiting_for_a_step);
    tcase_add_test(all, of_many_ends_at_once_some_are_told_and_all_counted);
    tcase_add_test(all, an_end_token_ends_the_answer_and_is_part_of_it);
    tcase_add_test(all, without_max_tokens_a_prompt_is_only_read);
    tcase_add_test(all, a_replayed_answer_goes_on_where_it_was);
    tcase_add_test(all, a_prompt_is_scored_once_at_every_position);
    tcase_add_loop_test(all, an_abort_gives_the_room_back_in_every_phase, 0, PHASES);
    tcase_add_test(all, after_an_abort_the_next_request_is_in_the_very_next_step);
    tcase_add_test(all, room_is_granted_for_the_worst_case_only);
    tcase_add_test(all, what_never_fits_is_refused_at_once);
    tcase_add_test(all, a_full_queue_says_busy_and_a_repeat_changes_nothing);
    tcase_add_test(all, malformed_jobs_are_refused);
    tcase_add_test(all, a_draining_node_finishes_what_it_has_and_takes_no_more);
    tcase_add_test(all, a_prompt_seen_before_is_found_up_to_its_last_block);
    tcase_add_test(all, an_answer_can_be_found_as_part_of_the_next_prompt);
    tcase_add_test(all, an_idle_node_still_ends_what_its_router_forgot);
    tcase_add_test(all, heartbeats_renew_the_leases_of_their_router_alone);
    tcase_add_test(all, the_nodes_own_sleep_ends_no_lease);
    tcase_add_loop_test(all, a_deadline_ends_a_sequence_in_every_phase, 0, 2);
    tcase_add_loop_test(all, what_a_router_had_is_gone_with_its_link_or_its_next_hello, 0, 2);
    tcase_add_test(all, tickets_of_another_life_start_nothing);
    tcase_add_test(all, a_failed_step_ends_its_sequences_and_trusts_no_block);
    tcase_add_test(all, news_goes_to_whose_it_is_numbered_from_one);
    tcase_add_test(all, opening_survives_the_loss_of_any_allocation);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
