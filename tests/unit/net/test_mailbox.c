#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/net/mailbox.h"

#include <pthread.h>
#include <sched.h>

#define SENDERS 4
#define MESSAGES_EACH 20000

typedef struct {
    int sender, number;
} letter;

typedef struct {
    bt_mailbox *box;
    int sender;
} sender_state;

static int next_number[SENDERS], received;

START_TEST(full_box_says_busy_and_keeps_order)
{
    bt_mailbox *box;
    letter got;

    ck_assert_int_eq(bt_mailbox_open(&box, 2, sizeof(letter)), BT_OK);
    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(bt_mailbox_post(box, &(letter){0, 1}), BT_OK);
        ck_assert_int_eq(bt_mailbox_post(box, &(letter){0, 2}), BT_OK);
        ck_assert_int_eq(bt_mailbox_post(box, &(letter){0, 3}), BT_ERR_BUSY);
        ck_assert(bt_mailbox_try(box, &got) && got.number == 1);
        ck_assert_int_eq(bt_mailbox_post(box, &(letter){0, 3}), BT_OK);
        ck_assert(bt_mailbox_try(box, &got) && got.number == 2);
        ck_assert(bt_mailbox_try(box, &got) && got.number == 3);
        ck_assert(!bt_mailbox_try(box, &got));
    }
    bt_mailbox_close(box);
}
END_TEST

START_TEST(ended_box_gives_what_it_has_and_then_closes)
{
    bt_mailbox *box;
    letter got;

    ck_assert_int_eq(bt_mailbox_open(&box, 4, sizeof(letter)), BT_OK);
    ck_assert_int_eq(bt_mailbox_wait_until(box, &got, bt_time_now()), BT_ERR_TIMEOUT);
    ck_assert_int_eq(bt_mailbox_post(box, &(letter){0, 7}), BT_OK);
    bt_mailbox_end(box);
    ck_assert_int_eq(bt_mailbox_post(box, &(letter){0, 8}), BT_ERR_CLOSED);
    ck_assert(bt_mailbox_wait(box, &got) && got.number == 7);
    ck_assert(!bt_mailbox_wait(box, &got));
    ck_assert_int_eq(bt_mailbox_wait_until(box, &got, BT_TIME_NEVER), BT_ERR_CLOSED);
    bt_mailbox_close(box);
}
END_TEST

static void *
send_all(void *self)
{
    sender_state *state = self;

    for (int i = 0; i < MESSAGES_EACH; i++) {
        while (bt_mailbox_post(state->box, &(letter){state->sender, i}) == BT_ERR_BUSY) {
            sched_yield();
        }
    }
    return NULL;
}

static void
receive(void *self, const void *message)
{
    const letter *got = message;

    ck_assert_int_eq(got->number, next_number[got->sender]++);
    if (++received == SENDERS * MESSAGES_EACH) {
        bt_loop_stop(self);
    }
}

START_TEST(loop_gets_every_message_of_every_sender_in_its_order)
{
    pthread_t threads[SENDERS];
    sender_state states[SENDERS];
    bt_mailbox *box;
    bt_loop *loop;

    memset(next_number, 0, sizeof next_number);
    received = 0;
    ck_assert_int_eq(bt_loop_open(&loop), BT_OK);
    ck_assert_int_eq(bt_mailbox_open(&box, 16, sizeof(letter)), BT_OK);
    for (int i = 0; i < SENDERS; i++) {
        states[i] = (sender_state){box, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, send_all, &states[i]), 0);
    }
    ck_assert_int_eq(bt_mailbox_attach(box, loop, receive, loop), BT_OK);
    bt_loop_run(loop);
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(next_number[i], MESSAGES_EACH);
    }
    bt_mailbox_close(box);
    bt_loop_close(loop);
}
END_TEST

static void
detach_in_the_call(void *self, const void *message)
{
    (void)message;
    received++;
    bt_mailbox_detach(self);
}

START_TEST(detached_box_is_not_read_any_more)
{
    bt_mailbox *box;
    bt_loop *loop;

    received = 0;
    ck_assert_int_eq(bt_loop_open(&loop), BT_OK);
    ck_assert_int_eq(bt_mailbox_open(&box, 4, sizeof(letter)), BT_OK);
    bt_mailbox_post(box, &(letter){0, 1});
    bt_mailbox_post(box, &(letter){0, 2});
    ck_assert_int_eq(bt_mailbox_attach(box, loop, detach_in_the_call, box), BT_OK);
    bt_loop_once(loop, BT_SECOND);
    bt_loop_once(loop, 0);
    ck_assert_int_eq(received, 1);
    ck_assert_uint_eq(bt_mailbox_count(box), 1);
    bt_mailbox_close(box);
    bt_loop_close(loop);
}
END_TEST

START_TEST(open_survives_any_missing_allocation)
{
    long live = bt_mem_live();
    bt_mailbox *box = NULL;
    bt_err err;
    long nth = 0;

    do {
        bt_mem_fail_nth(++nth);
        err = bt_mailbox_open(&box, 4, sizeof(letter));
        bt_mem_fail_nth(0);
        ck_assert(err == BT_OK || (err == BT_ERR_NO_MEMORY && box == NULL));
        ck_assert(err == BT_OK || bt_mem_live() == live);
    } while (err != BT_OK);
    ck_assert_int_gt(nth, 1);
    bt_mailbox_close(box);
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("mailbox");
    TCase *tests = tcase_create("mailbox");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, full_box_says_busy_and_keeps_order);
    tcase_add_test(tests, ended_box_gives_what_it_has_and_then_closes);
    tcase_add_test(tests, loop_gets_every_message_of_every_sender_in_its_order);
    tcase_add_test(tests, detached_box_is_not_read_any_more);
    tcase_add_test(tests, open_survives_any_missing_allocation);
    suite_add_tcase(suite, tests);
    return bt_test_run(suite);
}
