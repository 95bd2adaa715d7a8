#include "tests/support/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/trailer.h"
#include "common/transfer/transfer.h"

#include <string.h>

#define BLOCKS 64

static bt_kv_layout layout;
static bt_transfer *owner, *receiver;
static uint32_t peer; // the owner, at the receiver
static bt_time now;

// What the transport was asked to move, and what it shall do wrong.
static struct {
    uint32_t from[BLOCKS], count[BLOCKS], calls;
    bt_transfer_fault fault;
    bt_time delay;
} asked;

static bt_transfer_fault
draw(void *self, uint32_t of, uint32_t from, uint32_t count, bt_time *delay)
{
    (void)self;
    (void)of;
    asked.from[asked.calls] = from;
    asked.count[asked.calls++] = count;
    *delay = asked.delay;
    return asked.fault;
}

static bt_transfer_options
options(uint64_t epoch)
{
    return (bt_transfer_options){.transport = "loopback",
                                 .epoch = epoch,
                                 .layout = layout,
                                 .blocks = BLOCKS,
                                 .peers_max = 2,
                                 .fetches_max = 3,
                                 .fetch_blocks_max = BLOCKS,
                                 .window = 2,
                                 .piece_bytes = 8 * layout.block_bytes,
                                 .turn_bytes = 1 << 20,
                                 .draw = draw};
}

static bt_err
join(bt_transfer *to, bt_transfer *from, uint32_t *out)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length;

    ck_assert_int_eq(bt_transfer_describe(from, bytes, sizeof bytes, &length), BT_OK);
    return bt_transfer_connect(to, bytes, length, out, NULL);
}

static uint8_t *
block_of(bt_transfer *t, uint32_t b)
{
    return bt_transfer_pool(t) + b * layout.block_bytes;
}

static void
write_block(uint32_t b, uint64_t generation)
{
    uint8_t *block = block_of(owner, b);

    bt_kv_trailer_clear(&layout, block);
    for (size_t i = 0; i < layout.trailer_offset; i++) {
        block[i] = (uint8_t)bt_mix64(b * 1000003u + generation * 77u + i);
    }
    bt_kv_trailer_stamp(&layout, block, 11, generation);
}

static void
set_up(void)
{
    bt_transfer_options o;

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 1, 1, 32, 16, 32, NULL), BT_OK);
    now = 1;
    memset(&asked, 0, sizeof asked);
    o = options(11);
    ck_assert_int_eq(bt_transfer_open(&owner, &o, NULL), BT_OK);
    o = options(22);
    ck_assert_int_eq(bt_transfer_open(&receiver, &o, NULL), BT_OK);
    ck_assert_int_eq(join(receiver, owner, &peer), BT_OK);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        write_block(b, b + 1);
    }
}

static void
tear_down(void)
{
    bt_transfer_close(receiver);
    bt_transfer_close(owner);
    owner = receiver = NULL;
}

static bt_transfer_event
next_event(void)
{
    bt_transfer_event event;

    for (int turn = 0; turn < 100; turn++) {
        if (bt_transfer_poll(receiver, now, &event, 1) == 1) {
            return event;
        }
    }
    ck_abort_msg("no event came");
}

static bool
no_event(void)
{
    bt_transfer_event event;
    uint32_t count = 0;

    for (int turn = 0; turn < 10; turn++) {
        count += bt_transfer_poll(receiver, now, &event, 1);
    }
    return count == 0;
}

static bt_err
fetch_one(uint32_t from, uint32_t to, uint64_t generation, uint64_t user)
{
    bt_transfer_block block = {from, to, generation};

    return bt_transfer_fetch(receiver, peer, &block, 1, now + BT_SECOND, user);
}

// Blocks 0 … count - 1 to the place `shift` further on.
static bt_err
fetch_run(uint32_t count, uint32_t shift, uint64_t user)
{
    bt_transfer_block blocks[BLOCKS];

    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = (bt_transfer_block){i, (i + shift) % BLOCKS, i + 1};
    }
    return bt_transfer_fetch(receiver, peer, blocks, count, now + BT_SECOND, user);
}

START_TEST(a_fetched_block_has_the_owner_s_bytes)
{
    bt_transfer_event event;

    ck_assert_int_eq(fetch_one(5, 9, 6, 42), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
    ck_assert_int_eq(event.err, BT_OK);
    ck_assert_uint_eq(event.user, 42);
    ck_assert_uint_eq(event.good, 1);
    ck_assert_mem_eq(block_of(receiver, 9), block_of(owner, 5), layout.block_bytes);
}
END_TEST

START_TEST(neighbours_on_both_sides_travel_as_one_operation)
{
    const bt_transfer_block blocks[] = {{3, 10, 4}, {4, 11, 5}, {5, 12, 6}, {7, 13, 8}, {8, 14, 9}, {9, 20, 10}};

    ck_assert_int_eq(bt_transfer_fetch(receiver, peer, blocks, 6, now + BT_SECOND, 1), BT_OK);
    ck_assert_uint_eq(next_event().good, 6);
    ck_assert_uint_eq(asked.calls, 3);
    ck_assert_uint_eq(asked.from[0], 3);
    ck_assert_uint_eq(asked.count[0], 3);
    ck_assert_uint_eq(asked.from[1], 7);
    ck_assert_uint_eq(asked.count[1], 2);
    ck_assert_uint_eq(asked.from[2], 9);
    ck_assert_uint_eq(asked.count[2], 1);
}
END_TEST

START_TEST(a_long_run_is_cut_at_the_piece_s_length)
{
    ck_assert_int_eq(fetch_run(20, 0, 1), BT_OK);
    ck_assert_uint_eq(next_event().good, 20);
    ck_assert_uint_eq(asked.calls, 3);
    ck_assert_uint_eq(asked.count[0], 8);
    ck_assert_uint_eq(asked.count[2], 4);
}
END_TEST

START_TEST(no_more_operations_fly_than_the_window_allows)
{
    bt_transfer_stats stats;

    asked.fault = BT_TRANSFER_FAULT_DELAY;
    asked.delay = 100;
    ck_assert_int_eq(fetch_run(40, 0, 1), BT_OK);
    ck_assert(no_event());
    bt_transfer_get_stats(receiver, &stats);
    ck_assert_uint_eq(stats.operations, 2);
    ck_assert_uint_eq(asked.calls, 2);
    now += 100;
    ck_assert(no_event());
    ck_assert_uint_eq(asked.calls, 4);
    now += 1000;
    ck_assert(no_event());
    now += 1000;
    ck_assert_uint_eq(next_event().good, 40);
    bt_transfer_get_stats(receiver, &stats);
    ck_assert_uint_eq(stats.operations, 0);
    ck_assert_uint_eq(stats.fetched_blocks, 40);
}
END_TEST

START_TEST(one_fetch_too_many_is_busy_and_room_comes_back)
{
    asked.fault = BT_TRANSFER_FAULT_DELAY;
    asked.delay = 100;
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(fetch_one(i, i, i + 1, i), BT_OK);
    }
    ck_assert_int_eq(fetch_one(3, 3, 4, 3), BT_ERR_BUSY);
    ck_assert(no_event());
    now += 100;
    ck_assert_int_eq(next_event().err, BT_OK);
    ck_assert_int_eq(fetch_one(3, 3, 4, 3), BT_OK);
}
END_TEST

START_TEST(a_block_lent_anew_is_caught_by_its_generation)
{
    bt_transfer_event event;

    write_block(5, 99);
    ck_assert_int_eq(fetch_run(8, 0, 1), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_PEER);
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_GENERATION);
    ck_assert_uint_eq(event.good, 5);
}
END_TEST

START_TEST(a_block_of_another_program_is_caught_by_its_epoch)
{
    bt_kv_trailer_stamp(&layout, block_of(owner, 2), 12, 3);
    ck_assert_int_eq(fetch_one(2, 2, 3, 1), BT_OK);
    ck_assert_int_eq(next_event().cause, BT_TRANSFER_CAUSE_EPOCH);
}
END_TEST

START_TEST(a_flipped_byte_is_caught_by_the_checksum)
{
    bt_transfer_event event;

    asked.fault = BT_TRANSFER_FAULT_FLIP;
    ck_assert_int_eq(fetch_one(2, 2, 3, 1), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_CHECKSUM);
    ck_assert_uint_eq(event.good, 0);
    asked.fault = BT_TRANSFER_FAULT_NONE;
    block_of(owner, 2)[100] ^= 4;
    ck_assert_int_eq(fetch_one(2, 2, 3, 1), BT_OK);
    ck_assert_int_eq(next_event().cause, BT_TRANSFER_CAUSE_CHECKSUM);
}
END_TEST

START_TEST(success_reported_for_nothing_is_caught)
{
    asked.fault = BT_TRANSFER_FAULT_EMPTY;
    ck_assert_int_eq(fetch_one(2, 2, 3, 1), BT_OK);
    ck_assert_int_eq(next_event().err, BT_ERR_PEER);
}
END_TEST

START_TEST(a_failed_operation_ends_the_fetch_with_what_was_good_before_it)
{
    bt_transfer_event event;
    bt_transfer_stats stats;

    asked.fault = BT_TRANSFER_FAULT_ERROR;
    ck_assert_int_eq(fetch_run(30, 0, 1), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_PEER);
    ck_assert_uint_eq(event.good, 0);
    ck_assert_uint_eq(asked.calls, 1);
    bt_transfer_get_stats(receiver, &stats);
    ck_assert_uint_eq(stats.failures[BT_TRANSFER_CAUSE_PEER], 1);
    ck_assert_uint_eq(stats.fetches_failed, 1);
}
END_TEST

START_TEST(a_deadline_ends_a_fetch_that_is_late)
{
    bt_transfer_event event;

    asked.fault = BT_TRANSFER_FAULT_DELAY;
    asked.delay = 10 * BT_SECOND;
    ck_assert_int_eq(fetch_run(30, 0, 1), BT_OK);
    ck_assert(no_event());
    ck_assert_int_eq(bt_transfer_next_deadline(receiver), now + BT_SECOND);
    now += BT_SECOND;
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_TIMEOUT);
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_TIMEOUT);
    // The late completion touches nothing: the landing block is ours.
    memset(block_of(receiver, 0), 0x77, layout.block_bytes);
    now += 20 * BT_SECOND;
    ck_assert(no_event());
    ck_assert_uint_eq(block_of(receiver, 0)[0], 0x77);
    asked.fault = BT_TRANSFER_FAULT_NONE;
    ck_assert_int_eq(fetch_one(3, 3, 4, 2), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
}
END_TEST

START_TEST(an_operation_that_never_ends_costs_the_peer_and_still_has_its_event)
{
    bt_transfer_event event;

    asked.fault = BT_TRANSFER_FAULT_NEVER;
    ck_assert_int_eq(fetch_run(8, 0, 1), BT_OK);
    ck_assert(no_event());
    now += BT_SECOND;
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
    ck_assert_int_eq(event.err, BT_ERR_TIMEOUT);
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_LOST);
    ck_assert_uint_eq(event.peer, peer);
    ck_assert_int_eq(fetch_one(3, 3, 4, 2), BT_ERR_PEER);
    bt_transfer_disconnect(receiver, peer);
    ck_assert(no_event());
    asked.fault = BT_TRANSFER_FAULT_NONE;
    ck_assert_int_eq(join(receiver, owner, &peer), BT_OK);
    ck_assert_int_eq(fetch_one(3, 3, 4, 2), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
}
END_TEST

START_TEST(a_cancelled_fetch_ends_as_cancelled_and_touches_nothing_later)
{
    bt_transfer_event event;

    asked.fault = BT_TRANSFER_FAULT_DELAY;
    asked.delay = 1000;
    ck_assert_int_eq(fetch_run(30, 0, 5), BT_OK);
    ck_assert(no_event());
    bt_transfer_cancel(receiver, 5);
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_CANCELLED);
    ck_assert_uint_eq(event.good, 0);
    memset(block_of(receiver, 0), 0x77, layout.block_bytes);
    now += 5000;
    ck_assert(no_event());
    ck_assert_uint_eq(block_of(receiver, 0)[9], 0x77);
    bt_transfer_cancel(receiver, 5); // unknown by now
    ck_assert(no_event());
}
END_TEST

START_TEST(a_cancelled_operation_that_cannot_be_dropped_costs_the_peer_after_a_second)
{
    asked.fault = BT_TRANSFER_FAULT_NEVER;
    ck_assert_int_eq(fetch_run(8, 0, 5), BT_OK);
    ck_assert(no_event());
    bt_transfer_cancel(receiver, 5);
    ck_assert(no_event());
    now += BT_SECOND;
    ck_assert_int_eq(next_event().err, BT_ERR_CANCELLED);
    ck_assert_int_eq(next_event().kind, BT_TRANSFER_LOST);
}
END_TEST

START_TEST(a_closed_owner_is_a_lost_peer)
{
    bt_transfer_event event;

    asked.fault = BT_TRANSFER_FAULT_DELAY;
    asked.delay = 1000;
    ck_assert_int_eq(fetch_run(30, 0, 5), BT_OK);
    ck_assert(no_event());
    bt_transfer_close(owner);
    owner = NULL;
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
    ck_assert_int_eq(event.err, BT_ERR_PEER);
    ck_assert_int_eq(next_event().kind, BT_TRANSFER_LOST);
    ck_assert(no_event()); // told once
    ck_assert_int_eq(fetch_one(1, 1, 2, 1), BT_ERR_PEER);
}
END_TEST

START_TEST(disconnecting_ends_what_is_in_progress)
{
    bt_transfer_event event;

    asked.fault = BT_TRANSFER_FAULT_NEVER;
    ck_assert_int_eq(fetch_run(8, 0, 5), BT_OK);
    ck_assert(no_event());
    bt_transfer_disconnect(receiver, peer);
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_CLOSED);
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_ENDED);
    ck_assert_int_eq(fetch_one(1, 1, 2, 1), BT_ERR_PEER);
}
END_TEST

START_TEST(blocks_outside_of_either_pool_are_refused)
{
    ck_assert_int_eq(fetch_one(BLOCKS, 0, 1, 1), BT_ERR_INVALID);
    ck_assert_int_eq(fetch_one(0, BLOCKS, 1, 1), BT_ERR_INVALID);
    ck_assert_int_eq(fetch_one(UINT32_MAX, UINT32_MAX, 1, 1), BT_ERR_INVALID);
    ck_assert_int_eq(bt_transfer_fetch(receiver, peer, NULL, 0, now, 1), BT_ERR_INVALID);
    ck_assert_int_eq(bt_transfer_fetch(receiver, peer, NULL, BLOCKS + 1, now, 1), BT_ERR_INVALID);
    ck_assert_int_eq(bt_transfer_fetch(receiver, 77, NULL, 1, now, 1), BT_ERR_PEER);
}
END_TEST

START_TEST(a_proof_fetches_a_real_block_and_says_so)
{
    bt_transfer_peer_info info;
    bt_transfer_event event;

    ck_assert_int_eq(bt_transfer_prove(receiver, peer, now + BT_SECOND, 8), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_PROVED);
    ck_assert_int_eq(event.err, BT_OK);
    ck_assert_int_eq(bt_transfer_peer(receiver, peer, &info), BT_OK);
    ck_assert(info.proved && info.up);
    ck_assert_uint_eq(info.epoch, 11);
    ck_assert_uint_eq(info.bytes, 8 * layout.block_bytes);
    ck_assert_str_eq(info.transport, "loopback");
}
END_TEST

START_TEST(a_proof_of_damaged_memory_fails)
{
    bt_transfer_peer_info info;

    block_of(owner, BLOCKS)[7] ^= 1; // the proof block lies behind the pool
    ck_assert_int_eq(bt_transfer_prove(receiver, peer, now + BT_SECOND, 8), BT_OK);
    ck_assert_int_eq(next_event().cause, BT_TRANSFER_CAUSE_CHECKSUM);
    ck_assert_int_eq(bt_transfer_peer(receiver, peer, &info), BT_OK);
    ck_assert(!info.proved);
}
END_TEST

START_TEST(peers_that_differ_are_refused_by_the_field_s_name)
{
    bt_transfer_options o = options(33);
    bt_transfer *other;
    uint32_t unused = 77;
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length;
    bt_why why;

    ck_assert_int_eq(bt_kv_layout_init(&o.layout, BT_KV_F16, 1, 1, 32, 16, 32, NULL), BT_OK);
    ck_assert_int_eq(bt_transfer_open(&other, &o, NULL), BT_OK);
    ck_assert_int_eq(bt_transfer_describe(other, bytes, sizeof bytes, &length), BT_OK);
    ck_assert_int_eq(bt_transfer_connect(receiver, bytes, length, &unused, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "layout"));
    ck_assert_uint_eq(unused, 77);
    ck_assert_int_eq(bt_transfer_describe(other, bytes, 10, &length), BT_ERR_TOO_LONG);
    bt_transfer_close(other);
}
END_TEST

START_TEST(one_peer_too_many_is_busy)
{
    uint32_t another;

    ck_assert_int_eq(join(receiver, receiver, &another), BT_OK); // itself is a peer as any
    ck_assert_int_eq(join(receiver, owner, &another), BT_ERR_BUSY);
}
END_TEST

START_TEST(unknown_transports_and_memories_are_clear_errors)
{
    bt_transfer_options o = options(33);
    bt_transfer *none = NULL;
    bt_why why;

    o.transport = "pigeon";
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "pigeon"));
    o = options(33);
    o.memory = BT_TRANSFER_CUDA;
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    o = options(0);
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_INVALID);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(opening_without_memory_leaves_nothing_behind)
{
    bt_transfer_options o = options(44);
    long live = bt_mem_live();
    bt_transfer *t = NULL;
    long n = 1;

    do {
        bt_mem_fail_nth(n++);
    } while (bt_transfer_open(&t, &o, NULL) == BT_ERR_NO_MEMORY && bt_mem_live() == live && n < 100);
    bt_mem_fail_nth(0);
    ck_assert_ptr_nonnull(t);
    ck_assert_int_gt(n, 8);
    bt_transfer_close(t);
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

START_TEST(fetching_allocates_nothing)
{
    long live = bt_mem_live();

    bt_mem_serving_begin();
    ck_assert_int_eq(fetch_run(40, 3, 1), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    bt_mem_serving_end();
    ck_assert_int_eq(bt_mem_live(), live);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("loopback");
    TCase *tcase = tcase_create("loopback");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_fetched_block_has_the_owner_s_bytes);
    tcase_add_test(tcase, neighbours_on_both_sides_travel_as_one_operation);
    tcase_add_test(tcase, a_long_run_is_cut_at_the_piece_s_length);
    tcase_add_test(tcase, no_more_operations_fly_than_the_window_allows);
    tcase_add_test(tcase, one_fetch_too_many_is_busy_and_room_comes_back);
    tcase_add_test(tcase, a_block_lent_anew_is_caught_by_its_generation);
    tcase_add_test(tcase, a_block_of_another_program_is_caught_by_its_epoch);
    tcase_add_test(tcase, a_flipped_byte_is_caught_by_the_checksum);
    tcase_add_test(tcase, success_reported_for_nothing_is_caught);
    tcase_add_test(tcase, a_failed_operation_ends_the_fetch_with_what_was_good_before_it);
    tcase_add_test(tcase, a_deadline_ends_a_fetch_that_is_late);
    tcase_add_test(tcase, an_operation_that_never_ends_costs_the_peer_and_still_has_its_event);
    tcase_add_test(tcase, a_cancelled_fetch_ends_as_cancelled_and_touches_nothing_later);
    tcase_add_test(tcase, a_cancelled_operation_that_cannot_be_dropped_costs_the_peer_after_a_second);
    tcase_add_test(tcase, a_closed_owner_is_a_lost_peer);
    tcase_add_test(tcase, disconnecting_ends_what_is_in_progress);
    tcase_add_test(tcase, blocks_outside_of_either_pool_are_refused);
    tcase_add_test(tcase, a_proof_fetches_a_real_block_and_says_so);
    tcase_add_test(tcase, a_proof_of_damaged_memory_fails);
    tcase_add_test(tcase, peers_that_differ_are_refused_by_the_field_s_name);
    tcase_add_test(tcase, one_peer_too_many_is_busy);
    tcase_add_test(tcase, unknown_transports_and_memories_are_clear_errors);
    tcase_add_test(tcase, opening_without_memory_leaves_nothing_behind);
    tcase_add_test(tcase, fetching_allocates_nothing);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
