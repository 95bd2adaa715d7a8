#include "common/node/bundle.h"
#include "common/node/loopback.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

#include <stdlib.h>

static const bt_sampling sampling = {.repetition_penalty = 1};

static bt_message
a_heartbeat(uint64_t number)
{
    return (bt_message){.kind = BT_MESSAGE_HEARTBEAT, .heartbeat = {.number = number}};
}

static bt_message
a_reserve(const int32_t *ids, uint32_t count)
{
    bt_message message = {.kind = BT_MESSAGE_RESERVE};

    message.reserve =
        (bt_job){.ids = ids, .prompt_count = count, .max_tokens = 1, .sampling = &sampling, .time_left = 1};
    return message;
}

static void
expect_up(bt_link *link)
{
    bt_link_event event;

    ck_assert(bt_link_pending(link));
    ck_assert(bt_link_receive(link, &event));
    ck_assert_int_eq(event.kind, BT_LINK_UP);
}

START_TEST(messages_arrive_in_order_and_whole)
{
    static int32_t ids[200];
    bt_link *a, *b;
    bt_link_event event;
    bt_rng rng = {5};
    uint64_t sent = 0, received = 0;

    ck_assert_int_eq(bt_loopback_open(&a, &b, 8192), BT_OK);
    expect_up(a);
    expect_up(b);
    // Lengths by chance, so that the ring wraps at every offset.
    for (int i = 0; i < 20000; i++) {
        uint32_t count = 1 + (uint32_t)bt_rng_below(&rng, 200);
        bt_message message = a_reserve(ids, count);

        message.reserve.request.slot = (uint32_t)sent;
        ids[count - 1] = (int32_t)sent;
        sent += bt_link_send(a, 0, &message) == BT_OK;
        if (bt_rng_below(&rng, 2) == 0 && bt_link_receive(b, &event)) {
            const bt_job *job = &event.message->reserve;

            ck_assert_uint_eq(job->request.slot, received);
            ck_assert_int_eq(job->ids[job->prompt_count - 1], (int32_t)received);
            received++;
        }
        ck_assert(bt_link_pending(b) == (received < sent));
    }
    ck_assert_uint_gt(received, 5000);
    bt_link_close(a);
    bt_link_close(b);
}
END_TEST

START_TEST(a_full_ring_refuses_jobs_and_still_takes_the_rest)
{
    static int32_t ids[100];
    bt_link *a, *b;
    bt_link_event event;
    bt_message job = a_reserve(ids, 100), beat = a_heartbeat(1);
    int jobs = 0, beats = 0;

    ck_assert_int_eq(bt_loopback_open(&a, &b, 1 << 16), BT_OK);
    while (bt_link_send(a, 0, &job) == BT_OK)
        jobs++;
    while (bt_link_send(a, 0, &beat) == BT_OK)
        beats++;
    ck_assert_int_gt(jobs, 10);
    ck_assert_int_gt(beats, 20);
    ck_assert_int_eq(bt_link_send(a, 0, &beat), BT_ERR_BUSY);
    expect_up(b);
    for (int i = 0; i < jobs + beats; i++)
        ck_assert(bt_link_receive(b, &event));
    ck_assert(!bt_link_receive(b, &event));
    ck_assert_int_eq(bt_link_send(a, 0, &job), BT_OK);
    bt_link_close(a);
    bt_link_close(b);
}
END_TEST

START_TEST(a_closed_end_is_down_after_its_last_message)
{
    bt_link *a, *b;
    bt_link_event event;
    bt_message beat = a_heartbeat(9);

    ck_assert_int_eq(bt_loopback_open(&a, &b, 4096), BT_OK);
    expect_up(a);
    ck_assert_int_eq(bt_link_send(b, 0, &beat), BT_OK);
    bt_link_close(b);
    ck_assert(bt_link_receive(a, &event) && event.kind == BT_LINK_MESSAGE && event.message->heartbeat.number == 9);
    ck_assert(bt_link_receive(a, &event) && event.kind == BT_LINK_DOWN);
    ck_assert(!bt_link_receive(a, &event));
    ck_assert_int_eq(bt_link_send(a, 0, &beat), BT_ERR_PEER);
    bt_link_close(a);
}
END_TEST

START_TEST(a_bundle_numbers_its_members_and_hears_them_in_turns)
{
    bt_link *near[3], *far[3], *all;
    bt_link_event event;
    uint32_t heard[3] = {0}, ups = 0;

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(bt_loopback_open(&near[i], &far[i], 4096), BT_OK);
    ck_assert_int_eq(bt_bundle_open(&all, near, 3), BT_OK);
    for (uint32_t i = 0; i < 3; i++) {
        bt_message beat = a_heartbeat(i);

        ck_assert_int_eq(bt_link_send(all, i, &beat), BT_OK);
        ck_assert_int_eq(bt_link_send(far[i], 0, &beat), BT_OK);
        ck_assert_int_eq(bt_link_send(far[i], 0, &beat), BT_OK);
    }
    ck_assert_int_eq(bt_link_send(all, 3, &(bt_message){.kind = BT_MESSAGE_HEARTBEAT}), BT_ERR_PEER);
    for (int i = 0; i < 9; i++) {
        ck_assert(bt_link_pending(all) && bt_link_receive(all, &event));
        if (event.kind == BT_LINK_UP) {
            ups |= 1u << event.peer;
        } else {
            ck_assert_uint_eq(event.message->heartbeat.number, event.peer);
            heard[event.peer]++;
        }
        ck_assert_int_eq(ups == 7, i >= 2); // nobody is heard twice before all were heard
    }
    ck_assert(heard[0] == 2 && heard[1] == 2 && heard[2] == 2 && !bt_link_pending(all));
    bt_link_close(far[1]);
    ck_assert(bt_link_receive(all, &event) && event.kind == BT_LINK_DOWN && event.peer == 1);
    for (int i = 0; i < 3; i += 2) {
        expect_up(far[i]);
        ck_assert(bt_link_receive(far[i], &event) && event.message->heartbeat.number == (uint64_t)i);
    }
    bt_link_close(all);
    ck_assert(bt_link_receive(far[0], &event) && event.kind == BT_LINK_DOWN);
    bt_link_close(far[0]);
    bt_link_close(far[2]);
}
END_TEST

START_TEST(opening_survives_the_loss_of_any_allocation)
{
    long live = bt_mem_live();
    bt_link *a, *b;

    for (long nth = 1;; nth++) {
        bt_err err;

        bt_mem_fail_nth(nth);
        err = bt_loopback_open(&a, &b, 4096);
        bt_mem_fail_nth(0);
        if (err == BT_OK)
            break;
        ck_assert_int_eq(err, BT_ERR_NO_MEMORY);
        ck_assert_int_eq(bt_mem_live(), live);
    }
    bt_link_close(a);
    bt_link_close(b);
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("loopback");
    TCase *all = tcase_create("all");

    tcase_add_test(all, messages_arrive_in_order_and_whole);
    tcase_add_test(all, a_full_ring_refuses_jobs_and_still_takes_the_rest);
    tcase_add_test(all, a_closed_end_is_down_after_its_last_message);
    tcase_add_test(all, a_bundle_numbers_its_members_and_hears_them_in_turns);
    tcase_add_test(all, opening_survives_the_loss_of_any_allocation);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
