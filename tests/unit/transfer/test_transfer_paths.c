// Two transfers in one process, by each transport and path that this machine has: the promises of transfer.h, kept by real ones.
#include "tests/support/fake_gpu.h"
#include "tests/support/test.h"

#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/base/time.h"
#include "common/kv/trailer.h"
#include "common/transfer/description.h"
#include "common/transfer/transfer.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 96
#define OWNER_EPOCH 11

static const struct {
    const char *library, *tls;
    bt_transfer_path path, expected;
    const char *transport; // its name contains
} kinds[] = {
    {"host", NULL, BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_DIRECT, "shm"},
    {"host", NULL, BT_TRANSFER_PATH_STREAM, BT_TRANSFER_PATH_STREAM, "tcp"},
    {"cuda", NULL, BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_DIRECT, "cuda_ipc/peer"}, // GPUs made of shared memory
#ifdef BT_HAVE_UCX
    {"ucx", "shm", BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_DIRECT, NULL},
    {"ucx", "shm", BT_TRANSFER_PATH_GET, BT_TRANSFER_PATH_GET, NULL},
    {"ucx", "tcp", BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_AM, "tcp"},
    {"ucx", "shm", BT_TRANSFER_PATH_AM, BT_TRANSFER_PATH_AM, NULL},
    {"ucx", NULL, BT_TRANSFER_PATH_AUTO, BT_TRANSFER_PATH_DIRECT, NULL},
#endif
};
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

// UCX 1.13 leaves a few hundred bytes behind at its end; ours are still looked at.
const char *__lsan_default_suppressions(void);
const char *
__lsan_default_suppressions(void)
{
    return "leak:libuct.so\nleak:libucp.so\nleak:libucs.so\n";
}

static bool
needs_owner(int kind)
{
    return kinds[kind].expected == BT_TRANSFER_PATH_AM || kinds[kind].expected == BT_TRANSFER_PATH_STREAM;
}

static bt_kv_layout layout;
static bt_transfer *owner, *receiver;
static bt_device *gpus[2];
static uint32_t peer, back; // the owner at the receiver, the receiver at the owner

static bool
is_cuda(int kind)
{
    return strcmp(kinds[kind].library, "cuda") == 0;
}

static bt_transfer_options
options(int kind, uint64_t epoch, bt_device *gpu)
{
    return (bt_transfer_options){.transport = kinds[kind].library,
                                 .epoch = epoch,
                                 .layout = layout,
                                 .blocks = BLOCKS,
                                 .memory = is_cuda(kind) ? BT_TRANSFER_CUDA : BT_TRANSFER_HOST,
                                 .device = gpu,
                                 .peers_max = 2,
                                 .fetches_max = 3,
                                 .fetch_blocks_max = BLOCKS,
                                 .window = 2,
                                 .piece_bytes = 8 * layout.block_bytes,
                                 .tls = kinds[kind].tls,
                                 .path = kinds[kind].path};
}

static uint32_t
join(bt_transfer *to, bt_transfer *from)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length;
    uint32_t slot;
    bt_why why = {{0}};

    ck_assert_int_eq(bt_transfer_describe(from, bytes, sizeof bytes, &length), BT_OK);
    ck_assert_msg(bt_transfer_connect(to, bytes, length, &slot, &why) == BT_OK, "%s", why.text);
    return slot;
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
    for (size_t i = 0; i < layout.trailer_offset; i += 8) {
        uint64_t word = bt_mix64(b * 1000003u + generation * 77u + i);

        memcpy(block + i, &word, 8);
    }
    bt_kv_trailer_stamp(&layout, block, OWNER_EPOCH, generation);
}

static void
open_both(int kind)
{
    bt_transfer_options o;
    bt_why why = {{0}};

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 4, 2, 64, 32, 64, NULL), BT_OK);
    for (uint8_t i = 0; i < 2; i++) {
        gpus[i] = fake_gpu_open(i + 1);
        fake_gpu_ways_of(gpus[i])->asks_a_batch = 3;
    }
    o = options(kind, OWNER_EPOCH, gpus[0]);
    ck_assert_msg(bt_transfer_open(&owner, &o, &why) == BT_OK, "%s", why.text);
    o = options(kind, 22, gpus[1]);
    ck_assert_msg(bt_transfer_open(&receiver, &o, &why) == BT_OK, "%s", why.text);
    peer = join(receiver, owner);
    back = join(owner, receiver);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        write_block(b, b + 1);
    }
}

static void
close_both(void)
{
    bt_transfer_close(receiver);
    bt_transfer_close(owner);
    bt_device_close(gpus[0]);
    bt_device_close(gpus[1]);
    owner = receiver = NULL;
}

// Both sides turn until the receiver has an event; false after `wait`.
static bool
event_within(bt_transfer_event *event, bt_time wait)
{
    bt_time until = bt_time_now() + wait;

    while (bt_time_now() < until) {
        bt_transfer_event unused;

        if (owner != NULL) {
            bt_transfer_poll(owner, bt_time_now(), &unused, 1);
        }
        if (bt_transfer_poll(receiver, bt_time_now(), event, 1) == 1) {
            return true;
        }
    }
    return false;
}

static void
settle(void)
{
    bt_transfer_event unused;

    event_within(&unused, 20 * BT_MILLISECOND);
}

static bt_transfer_event
next_event(void)
{
    bt_transfer_event event;

    ck_assert(event_within(&event, 20 * BT_SECOND));
    return event;
}

static bt_err
fetch_run(uint32_t first, uint32_t count, uint32_t shift, bt_time time_left, uint64_t user)
{
    bt_transfer_block blocks[BLOCKS];

    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = (bt_transfer_block){first + i, (first + i + shift) % BLOCKS, first + i + 1};
    }
    return bt_transfer_fetch(receiver, peer, blocks, count, bt_time_now() + time_left, user);
}

START_TEST(every_block_arrives_by_the_expected_path)
{
    bt_transfer_peer_info info;
    bt_transfer_stats stats;
    bt_transfer_event event;

    open_both(_i);
    ck_assert_int_eq(bt_transfer_prove(receiver, peer, bt_time_now() + 20 * BT_SECOND, 7), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_PROVED);
    ck_assert_msg(event.err == BT_OK, "kind %d: %s", _i, bt_transfer_cause_name(event.cause));
    ck_assert_int_eq(fetch_run(0, BLOCKS, 5, 20 * BT_SECOND, 1), BT_OK);
    event = next_event();
    ck_assert_msg(event.err == BT_OK, "kind %d: %s after %u", _i, bt_transfer_cause_name(event.cause), event.good);
    ck_assert_uint_eq(event.good, BLOCKS);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        ck_assert_mem_eq(block_of(receiver, (b + 5) % BLOCKS), block_of(owner, b), layout.block_bytes);
    }
    ck_assert_int_eq(bt_transfer_peer(receiver, peer, &info), BT_OK);
    ck_assert_int_eq(info.path, kinds[_i].expected);
    ck_assert(info.proved && info.gb_per_s > 0);
    printf("kind %d: path %s, transport %s\n", _i, bt_transfer_path_name(info.path), info.transport);
    ck_assert(kinds[_i].transport == NULL || strstr(info.transport, kinds[_i].transport) != NULL);
    bt_transfer_get_stats(receiver, &stats);
    ck_assert_uint_eq(stats.fetched_blocks, BLOCKS + 8);
    bt_transfer_get_stats(owner, &stats);
    ck_assert_uint_eq(stats.served != 0, needs_owner(_i));
    close_both();
}
END_TEST

START_TEST(late_reads_and_flipped_bytes_are_caught)
{
    bt_transfer_event event;

    open_both(_i);
    write_block(9, 500);
    ck_assert_int_eq(fetch_run(0, 20, 0, 20 * BT_SECOND, 1), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_GENERATION);
    ck_assert_uint_eq(event.good, 9);
    block_of(owner, 30)[1000] ^= 0x20;
    ck_assert_int_eq(fetch_run(25, 10, 0, 20 * BT_SECOND, 2), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_CHECKSUM);
    ck_assert_uint_eq(event.good, 5);
    ck_assert_int_eq(fetch_run(40, 10, 0, 20 * BT_SECOND, 3), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    close_both();
}
END_TEST

START_TEST(an_owner_that_does_not_turn_costs_the_deadline_and_no_more)
{
    bt_transfer *stopped;
    bt_transfer_event event;
    bt_time began;

    open_both(_i);
    ck_assert_int_eq(fetch_run(0, 8, 0, 20 * BT_SECOND, 1), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    stopped = owner;
    owner = NULL; // nobody polls it
    began = bt_time_now();
    ck_assert_int_eq(fetch_run(0, 40, 0, 300 * BT_MILLISECOND, 2), BT_OK);
    ck_assert(event_within(&event, 10 * BT_SECOND));
    if (kinds[_i].expected == BT_TRANSFER_PATH_DIRECT) {
        ck_assert_int_eq(event.err, BT_OK); // the owner takes no part
    } else if (needs_owner(_i)) {
        ck_assert_int_eq(event.err, BT_ERR_TIMEOUT);
        ck_assert_int_ge(bt_time_now() - began, 300 * BT_MILLISECOND);
    }
    ck_assert_int_le(bt_time_now() - began, 5 * BT_SECOND);
    // It turns again: the late answers touch nothing, and the next fetch works.
    for (uint32_t b = 0; b < 40; b++) {
        memset(block_of(receiver, b), 0x77, layout.block_bytes);
    }
    owner = stopped;
    if (event_within(&event, 100 * BT_MILLISECOND)) {
        // An operation that UCX had in hand could only be ended with the endpoint.
        ck_assert_int_eq(event.kind, BT_TRANSFER_LOST);
        bt_transfer_disconnect(receiver, peer);
        bt_transfer_disconnect(owner, back);
        settle();
        peer = join(receiver, owner);
        back = join(owner, receiver);
    }
    ck_assert_int_eq(fetch_run(50, 8, 0, 20 * BT_SECOND, 3), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    for (uint32_t b = 0; b < 40; b++) {
        ck_assert_uint_eq(block_of(receiver, b)[5], 0x77);
    }
    close_both();
}
END_TEST

START_TEST(a_cancelled_fetch_has_its_event_and_the_next_one_works)
{
    open_both(_i);
    ck_assert_int_eq(fetch_run(0, BLOCKS, 0, 20 * BT_SECOND, 1), BT_OK);
    bt_transfer_cancel(receiver, 1);
    ck_assert_int_eq(next_event().err, BT_ERR_CANCELLED);
    ck_assert_int_eq(fetch_run(0, BLOCKS, 0, 20 * BT_SECOND, 2), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    close_both();
}
END_TEST

START_TEST(peers_disconnect_and_come_back)
{
    bt_transfer_event event;

    open_both(_i);
    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(fetch_run(0, BLOCKS, round, 20 * BT_SECOND, 1), BT_OK);
        if (round != 1) {
            ck_assert_int_eq(next_event().err, BT_OK);
        }
        bt_transfer_disconnect(receiver, peer);
        bt_transfer_disconnect(owner, back);
        if (round == 1) {
            event = next_event();
            ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
            ck_assert_int_ne(event.err, BT_OK);
        }
        ck_assert(!event_within(&event, 50 * BT_MILLISECOND));
        peer = join(receiver, owner);
        back = join(owner, receiver);
    }
    ck_assert_int_eq(fetch_run(0, BLOCKS, 2, 20 * BT_SECOND, 9), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    close_both();
}
END_TEST

// The number of a connection that ends is another's soon, and ends with that one again.
START_TEST(who_comes_while_an_older_connection_ends_belongs_to_the_newer)
{
    bt_transfer_event event;
    uint32_t other;

    open_both(_i);
    ck_assert_uint_eq(bt_transfer_poll(owner, bt_time_now(), &event, 1), 0); // it is let in,
    for (int i = 0; i < 10; i++) { // and says who it is, and nobody has looked yet
        ck_assert_uint_eq(bt_transfer_poll(receiver, bt_time_now(), &event, 1), 0);
    }
    bt_transfer_disconnect(owner, back);
    back = join(owner, receiver);
    ck_assert(!event_within(&event, 50 * BT_MILLISECOND));
    other = join(owner, receiver);
    bt_transfer_disconnect(owner, other);
    ck_assert(!event_within(&event, 50 * BT_MILLISECOND));
    ck_assert_int_eq(fetch_run(0, BLOCKS, 0, 20 * BT_SECOND, 1), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    close_both();
}
END_TEST

// The described memory is not there: another way is found, or said to be missing.
static void
check_not_direct(const void *bytes, size_t length, bool may_refuse)
{
    bt_transfer_peer_info info;
    uint32_t slot;
    bt_err err = bt_transfer_connect(receiver, bytes, length, &slot, NULL);

    if (may_refuse) {
        ck_assert_int_eq(err, BT_ERR_PEER);
        return;
    }
    ck_assert_int_eq(err, BT_OK);
    ck_assert_int_eq(bt_transfer_peer(receiver, slot, &info), BT_OK);
    ck_assert_int_ne(info.path, BT_TRANSFER_PATH_DIRECT);
    bt_transfer_disconnect(receiver, slot);
    settle();
}

START_TEST(damaged_descriptions_are_refused_and_memory_that_is_not_there_costs_the_direct_path)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX], wrong[BT_TRANSFER_DESCRIPTION_MAX], key[BT_DESCRIPTION_KEY_MAX];
    bt_description d;
    size_t length;
    uint32_t slot;

    open_both(_i);
    ck_assert_int_eq(bt_transfer_describe(owner, bytes, sizeof bytes, &length), BT_OK);
    for (size_t at = 0; at < length; at++) {
        bytes[at] ^= 0x40;
        ck_assert_int_ne(bt_transfer_connect(receiver, bytes, length, &slot, NULL), BT_OK);
        bytes[at] ^= 0x40;
    }
    ck_assert_int_eq(bt_description_decode(&d, bytes, length, NULL), BT_OK);
    memcpy(key, d.key, d.key_bytes);
    d.key = key;
    for (size_t at = 0; at < 16; at++) { // length, process and file of the shared memory
        key[at] ^= 0x15;
        ck_assert_int_eq(bt_description_encode(&d, wrong, sizeof wrong, &length), BT_OK);
        check_not_direct(wrong, length, is_cuda(_i));
        key[at] ^= 0x15;
    }
    d.identity++; // the right place, and another memory
    ck_assert_int_eq(bt_description_encode(&d, wrong, sizeof wrong, &length), BT_OK);
    check_not_direct(wrong, length, is_cuda(_i));
    close_both();
}
END_TEST

START_TEST(a_stranger_s_request_is_refused)
{
    bt_transfer_stats stats;
    bt_transfer_event event;

    open_both(_i);
    bt_transfer_disconnect(owner, back); // the owner does not know the receiver any more
    ck_assert_int_eq(fetch_run(0, 8, 0, 200 * BT_MILLISECOND, 1), BT_OK);
    event = next_event();
    if (needs_owner(_i)) {
        ck_assert_int_ne(event.err, BT_OK);
        bt_transfer_get_stats(owner, &stats);
        ck_assert_uint_eq(stats.served, 0);
    }
    close_both();
}
END_TEST

START_TEST(a_sleeper_is_woken_by_what_arrives)
{
    bt_time until = bt_time_now() + 20 * BT_SECOND;
    bt_transfer_event event;
    uint32_t slept = 0, count = 0;

    open_both(_i);
    ck_assert_int_eq(fetch_run(0, BLOCKS, 0, 20 * BT_SECOND, 1), BT_OK);
    while (count == 0 && bt_time_now() < until) {
        struct pollfd fds[2] = {{.fd = bt_transfer_fd(owner), .events = POLLIN},
                                {.fd = bt_transfer_fd(receiver), .events = POLLIN}};
        bool idle;

        bt_transfer_poll(owner, bt_time_now(), &event, 1);
        count = bt_transfer_poll(receiver, bt_time_now(), &event, 1);
        idle = bt_transfer_arm(owner);
        idle = bt_transfer_arm(receiver) && idle;
        if (count == 0 && idle) {
            slept++;
            ck_assert_int_ge(poll(fds, 2, 10000), 1); // woken, and not by the time
        }
    }
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(event.err, BT_OK);
    close_both();
}
END_TEST

// A case a test, so that CK_RUN_CASE can pick one.
static void
add(Suite *suite, const char *name, const TTest *test)
{
    TCase *tcase = tcase_create(name);

    tcase_add_loop_test(tcase, test, 0, KINDS);
    suite_add_tcase(suite, tcase);
}

int
main(void)
{
    Suite *suite = suite_create("paths");

    add(suite, "every_block_arrives_by_the_expected_path", every_block_arrives_by_the_expected_path);
    add(suite, "late_reads_and_flipped_bytes_are_caught", late_reads_and_flipped_bytes_are_caught);
    add(suite, "an_owner_that_does_not_turn_costs_the_deadline_and_no_more",
        an_owner_that_does_not_turn_costs_the_deadline_and_no_more);
    add(suite, "a_cancelled_fetch_has_its_event_and_the_next_one_works",
        a_cancelled_fetch_has_its_event_and_the_next_one_works);
    add(suite, "peers_disconnect_and_come_back", peers_disconnect_and_come_back);
    add(suite, "who_comes_while_an_older_connection_ends_belongs_to_the_newer",
        who_comes_while_an_older_connection_ends_belongs_to_the_newer);
    add(suite, "damaged_descriptions_are_refused_and_memory_that_is_not_there_costs_the_direct_path",
        damaged_descriptions_are_refused_and_memory_that_is_not_there_costs_the_direct_path);
    add(suite, "a_stranger_s_request_is_refused", a_stranger_s_request_is_refused);
    add(suite, "a_sleeper_is_woken_by_what_arrives", a_sleeper_is_woken_by_what_arrives);
    return bt_test_run(suite);
}
