// Every way in which a connection or a fetch of a data plane ends. Run it under TSan too.
#include "tests/unit/node/plane_case.h"

#include <string.h>
#include <unistd.h>

// An owner that is there and does nothing: its transfer is open, and nobody polls it.
static bt_transfer *
join_stopped(bt_time prove)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t count;
    bt_transfer *stopped;
    node unused = {0};

    stopped = open_transfer(&unused, BT_TRANSFER_PATH_STREAM, 33);
    ck_assert_int_eq(bt_transfer_describe(stopped, bytes + 2, sizeof bytes - 2, &count), BT_OK);
    bytes[0] = (uint8_t)count;
    bytes[1] = (uint8_t)(count >> 8);
    ck_assert_int_eq(bt_plane_connect(receiver.plane, OWNER, 33, bytes, (uint32_t)count + 2, prove), BT_OK);
    expect(&receiver, BT_PLANE_CONNECTED, BT_OK);
    return stopped;
}

START_TEST(cancelling_ends_a_fetch_that_nobody_answers)
{
    bt_transfer *stopped;
    bt_plane_event event;

    open_both(BT_TRANSFER_PATH_STREAM);
    stopped = join_stopped(0);
    for (uint64_t user = 1; user <= 3; user++)
        ck_assert_int_eq(fetch(0, 8, 33, SOON, user), BT_OK);
    expect_silence(&receiver, 20 * BT_MILLISECOND);
    bt_plane_cancel(receiver.plane, 77); // nobody
    bt_plane_cancel(receiver.plane, 2);
    bt_plane_cancel(receiver.plane, 2);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_CANCELLED);
    ck_assert_uint_eq(event.user, 2);
    ck_assert_uint_eq(event.good, 0);
    bt_plane_cancel(receiver.plane, 2); // over
    expect_silence(&receiver, 20 * BT_MILLISECOND);
    bt_plane_cancel(receiver.plane, 1);
    bt_plane_cancel(receiver.plane, 3);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_CANCELLED);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_CANCELLED);
    bt_transfer_close(stopped);
    close_both();
}
END_TEST

START_TEST(a_fetch_ends_at_its_deadline)
{
    bt_time began = bt_time_now();
    bt_transfer *stopped;
    bt_plane_event event;

    open_both(BT_TRANSFER_PATH_STREAM);
    stopped = join_stopped(0);
    ck_assert_int_eq(fetch(0, 8, 33, began + 150 * BT_MILLISECOND, 5), BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_TIMEOUT);
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_TIMEOUT);
    ck_assert_int_ge(bt_time_now(), began + 150 * BT_MILLISECOND);
    bt_transfer_close(stopped);
    close_both();
}
END_TEST

// The thread sleeps on descriptors: neither an idle plane nor one that waits for a stopped owner turns in circles.
START_TEST(waiting_takes_no_processor)
{
    bt_plane_stats before, after;
    bt_transfer *stopped;

    open_both(BT_TRANSFER_PATH_STREAM);
    stopped = join_stopped(bt_time_now() + 900 * BT_MILLISECOND);
    ck_assert_int_eq(fetch(0, 8, 33, bt_time_now() + 1200 * BT_MILLISECOND, 5), BT_OK);
    expect_silence(&receiver, 200 * BT_MILLISECOND);
    bt_plane_get_stats(receiver.plane, &before);
    expect(&receiver, BT_PLANE_PROVED, BT_ERR_TIMEOUT);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_TIMEOUT);
    for (int i = 0; i < 3000; i++) {
        bt_plane_get_stats(receiver.plane, &after);
        if (after.transfer.fetches_failed == 2)
            break;
        usleep(1000);
    }
    ck_assert_uint_eq(after.transfer.failures[BT_TRANSFER_CAUSE_TIMEOUT], 2);
    ck_assert_int_lt(after.cpu_time - before.cpu_time, 100 * BT_MILLISECOND); // of about a second
    bt_transfer_close(stopped);
    close_both();
}
END_TEST

START_TEST(an_owner_that_ends_in_mid_fetch_is_told_and_another_takes_its_place)
{
    bt_plane_event event;

    open_both(paths[_i]);
    for (uint64_t round = 0; round < 8; round++) {
        uint32_t fetched = 0;
        bool lost = false;

        join();
        for (uint32_t i = 0; i < FETCHES; i++)
            ck_assert_int_eq(fetch(i, BLOCKS, owner.epoch, SOON, i), BT_OK);
        usleep(100 * (useconds_t)round);
        close_node(&owner);
        while (fetched < FETCHES || !lost) {
            ck_assert(event_within(&receiver, &event, 20 * BT_SECOND));
            lost |= event.kind == BT_PLANE_LOST;
            fetched += event.kind == BT_PLANE_FETCHED;
            ck_assert(event.err == BT_OK || event.err == BT_ERR_PEER || event.err == BT_ERR_CLOSED);
        }
        ck_assert(!bt_plane_connected(receiver.plane, OWNER, 11 + round));
        open_node(&owner, paths[_i], 12 + round);
        write_blocks(&owner);
    }
    close_both();
}
END_TEST

START_TEST(after_a_disconnect_only_the_fetches_are_heard_of)
{
    open_both(paths[_i]);
    for (int round = 0; round < 30; round++) {
        uint32_t fetched = 0;
        bt_plane_event event;

        // The owner hears that its peer went away, sooner or later.
        while (bt_plane_next(owner.plane, &event))
            ck_assert_int_ne(event.kind, BT_PLANE_FETCHED);
        if (!bt_plane_connected(owner.plane, 0, receiver.epoch))
            describe_to(&receiver, &owner, 0, 0);
        describe_to(&owner, &receiver, OWNER, SOON);
        for (uint32_t i = 0; i < FETCHES; i++)
            ck_assert_int_eq(fetch(i, BLOCKS, owner.epoch, SOON, i), BT_OK);
        usleep(round * 50);
        bt_plane_disconnect(receiver.plane, OWNER);
        bt_plane_disconnect(receiver.plane, OWNER);
        while (fetched < FETCHES) {
            ck_assert(event_within(&receiver, &event, 20 * BT_SECOND));
            ck_assert_int_eq(event.kind, BT_PLANE_FETCHED);
            ck_assert(event.err == BT_OK || event.err == BT_ERR_CLOSED || event.err == BT_ERR_PEER);
            fetched++;
        }
    }
    expect_silence(&receiver, 20 * BT_MILLISECOND);
    close_both();
}
END_TEST

START_TEST(a_new_program_takes_the_old_one_s_number)
{
    node other = {0};

    open_both(paths[_i]);
    join();
    open_node(&other, paths[_i], 44);
    write_blocks(&other);
    describe_to(&receiver, &other, 0, 0);
    describe_to(&other, &receiver, OWNER, SOON);
    ck_assert(!bt_plane_connected(receiver.plane, OWNER, owner.epoch));
    ck_assert_uint_eq(expect(&receiver, BT_PLANE_CONNECTED, BT_OK).epoch, 44);
    ck_assert_uint_eq(expect(&receiver, BT_PLANE_PROVED, BT_OK).epoch, 44);
    ck_assert_int_eq(fetch(0, 1, owner.epoch, SOON, 1), BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    ck_assert_int_eq(fetch(0, BLOCKS, 44, SOON, 2), BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    ck_assert_mem_eq(receiver.pool, other.pool, BLOCKS * layout.block_bytes);
    close_node(&other);
    close_both();
}
END_TEST
START_TEST(an_owner_that_does_not_answer_is_not_proved)
{
    bt_transfer *stopped;

    open_both(BT_TRANSFER_PATH_STREAM);
    stopped = join_stopped(bt_time_now() + 100 * BT_MILLISECOND);
    expect(&receiver, BT_PLANE_PROVED, BT_ERR_TIMEOUT);
    bt_transfer_close(stopped);
    close_both();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("plane ends");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_test(all, cancelling_ends_a_fetch_that_nobody_answers);
    tcase_add_test(all, a_fetch_ends_at_its_deadline);
    tcase_add_test(all, waiting_takes_no_processor);
    tcase_add_loop_test(all, an_owner_that_ends_in_mid_fetch_is_told_and_another_takes_its_place, 0, PATHS);
    tcase_add_loop_test(all, after_a_disconnect_only_the_fetches_are_heard_of, 0, PATHS);
    tcase_add_loop_test(all, a_new_program_takes_the_old_one_s_number, 0, PATHS);
    tcase_add_test(all, an_owner_that_does_not_answer_is_not_proved);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
