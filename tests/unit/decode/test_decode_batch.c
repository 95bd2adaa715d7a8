// Who is in a step: tokens and rows within their limits, everyone who writes writes, prompts share the rest.
#include "tests/support/test.h"
#include "tests/unit/decode/node_case.h"

static void
open_with(uint32_t sequences, uint32_t chunk_tokens, uint32_t prefill_tokens)
{
    case_open((bt_decode_limits){.sequences = sequences,
                                 .queue_max = sequences,
                                 .chunk_tokens = chunk_tokens,
                                 .prefill_tokens = prefill_tokens,
                                 .blocks = 256});
    meet(0);
}

START_TEST(a_prompt_alone_fills_the_step)
{
    bt_job job = a_job(1, 40, 4);

    open_with(4, 16, 4);
    begin(0, &job);
    ck_assert_uint_eq(find_item(40)->count, 16);
    ck_assert_int_eq(find_item(40)->want, BT_LOGITS_NONE);
    finish_step();
    finish_step();
    ck_assert_uint_eq(find_item(40)->count, 8);
    ck_assert_uint_eq(find_item(40)->position, 32);
    ck_assert_int_eq(find_item(40)->want, BT_LOGITS_LAST);
    case_close();
}
END_TEST

START_TEST(who_writes_is_in_every_step_and_prompts_keep_to_their_share)
{
    bt_job writer = a_job(1, 3, 20), reader = a_job(2, 40, 4);

    open_with(4, 16, 5);
    begin(0, &writer);
    finish_step();
    begin(0, &reader);
    for (int i = 0; i < 8; i++) {
        finish_step();
        ck_assert_uint_eq(find_item(3)->count, 1);
        ck_assert_uint_eq(find_item(40)->count, 5);
    }
    case_close();
}
END_TEST

START_TEST(the_shortest_rest_goes_first_and_others_fill_up)
{
    bt_job blocker = a_job(1, 2, 1), longer = a_job(2, 30, 4), shorter = a_job(3, 9, 4);

    open_with(4, 16, 16);
    begin(0, &blocker); // a step runs while the other two come
    begin(0, &longer);
    begin(0, &shorter);
    finish_step();
    ck_assert_uint_eq(find_item(9)->count, 9);
    ck_assert_uint_eq(find_item(30)->count, 7);
    case_close();
}
END_TEST

START_TEST(a_long_prompt_does_not_starve_behind_short_ones) // H4, ageing
{
    bt_job longer = a_job(1, 60, 1);
    bool over = false;
    int steps = 0;

    open_with(4, 8, 8);
    begin(0, &longer);
    for (uint32_t slot = 2; !over && steps < 100; steps++) {
        while (stats().prefilling + stats().decoding < 4) {
            static int32_t others[100][8];
            bt_job shorter = a_job(slot, 8, 1);

            for (int i = 0; i < 8; i++) // none is in the cache
                others[slot % 100][i] = (int32_t)(1 + (slot * 7 + (uint32_t)i * (slot % 11)) % (CASE_VOCAB - 1));
            shorter.ids = others[slot % 100];
            begin(0, &shorter);
            slot++;
        }
        finish_step();
        over = find_entry(1) != NULL;
    }
    ck_assert(over);
    ck_assert_int_lt(steps, 60);
    case_close();
}
END_TEST

START_TEST(the_step_is_never_over_its_limits) // fake_engine_step asserts them
{
    open_with(5, 7, 3);
    for (uint32_t slot = 1; slot <= 60; slot++) {
        bt_job job = a_job(slot, 1 + slot * 7 % 40, 1 + slot % 9);

        job.prompt_logprobs = slot % 3 == 0;
        reserve(0, &job);
        for (uint32_t i = 0; i < acts->send_count; i++) {
            bt_ticket_reply reply = acts->send[i].message.ticket;

            if (acts->send[i].message.kind != BT_MESSAGE_TICKET || reply.err != BT_OK)
                continue;
            start(0, &reply); // the sends are others now
            break;
        }
        for (int steps = 0; running != NULL && steps < 12; steps++)
            finish_step();
    }
    case_close();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("decode batch");
    TCase *all = tcase_create("all");

    tcase_add_test(all, a_prompt_alone_fills_the_step);
    tcase_add_test(all, who_writes_is_in_every_step_and_prompts_keep_to_their_share);
    tcase_add_test(all, the_shortest_rest_goes_first_and_others_fill_up);
    tcase_add_test(all, a_long_prompt_does_not_starve_behind_short_ones);
    tcase_add_test(all, the_step_is_never_over_its_limits);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
