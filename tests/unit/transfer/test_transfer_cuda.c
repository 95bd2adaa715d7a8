// The cuda transport on GPUs made of shared memory: who can be read from and what is said when not, batches that take their time, and what
// becomes of fetches when a GPU hangs or fails, or the owner closes or dies. On real GPUs: tests/gpu/test_cuda_transfer.
#include "tests/support/fake_gpu.h"
#include "tests/support/test.h"

#include "common/base/log.h"
#include "common/base/time.h"
#include "common/kv/trailer.h"
#include "common/transfer/cuda.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 32u
#define OWNER_EPOCH 11u

static bt_kv_layout layout;
static bt_device *owner_gpu, *gpu;
static bt_transfer *owner, *receiver;
static uint32_t peer;

static bt_transfer *
open_end(bt_device *device, uint64_t epoch, uint32_t window)
{
    bt_transfer_options o = {.epoch = epoch,
                             .layout = layout,
                             .blocks = BLOCKS,
                             .memory = BT_TRANSFER_CUDA,
                             .device = device,
                             .peers_max = 3,
                             .fetches_max = 4,
                             .fetch_blocks_max = BLOCKS,
                             .window = window,
                             .piece_bytes = 4 * layout.block_bytes};
    bt_transfer *t = NULL;
    bt_why why = {{0}};

    ck_assert_msg(bt_transfer_open(&t, &o, &why) == BT_OK, "%s", why.text);
    return t;
}

static void
write_blocks(bt_device *device, bt_transfer *t)
{
    bt_copier_stamping stampings[BLOCKS];
    bt_copier_options options = {0};
    bt_copier *copier;
    uint64_t ticket;

    for (uint32_t b = 0; b < BLOCKS; b++) {
        memset(bt_transfer_pool(t) + b * layout.block_bytes, (int)b + 1, layout.trailer_offset);
        stampings[b] = (bt_copier_stamping){b, b + 1};
    }
    ck_assert_int_eq(bt_copier_open(&copier, device, &options, NULL), BT_OK);
    ck_assert_int_eq(bt_copier_stamp(copier, &layout, bt_transfer_pool(t), OWNER_EPOCH, stampings, BLOCKS, &ticket),
                     BT_OK);
    bt_copier_close(copier);
}

static bt_err
join(const void *bytes, size_t length, bt_why *why)
{
    return bt_transfer_connect(receiver, bytes, length, &peer, why);
}

static void
open_both(uint32_t window)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length;
    bt_why why = {{0}};

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 1, 2, 32, 16, 32, NULL), BT_OK);
    bt_log_set_level(BT_LOG_ERROR);
    owner_gpu = fake_gpu_open(1);
    gpu = fake_gpu_open(2);
    owner = open_end(owner_gpu, OWNER_EPOCH, window);
    write_blocks(owner_gpu, owner);
    receiver = open_end(gpu, 22, window);
    ck_assert_int_eq(bt_transfer_describe(owner, bytes, sizeof bytes, &length), BT_OK);
    ck_assert_msg(join(bytes, length, &why) == BT_OK, "%s", why.text);
}

static void
close_both(void)
{
    bt_transfer_close(receiver);
    bt_transfer_close(owner);
    bt_device_close(owner_gpu);
    bt_device_close(gpu);
    owner = NULL;
}

static bt_err
fetch(uint32_t first, uint32_t count, bt_time time_left, uint64_t user)
{
    bt_transfer_block blocks[BLOCKS];

    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = (bt_transfer_block){first + i, first + i, first + i + 1};
    }
    return bt_transfer_fetch(receiver, peer, blocks, count, bt_time_now() + time_left, user);
}

static bt_transfer_event
next_event(void)
{
    bt_time until = bt_time_now() + 10 * BT_SECOND;
    bt_transfer_event event;

    while (bt_transfer_poll(receiver, bt_time_now(), &event, 1) == 0) {
        ck_assert_int_lt(bt_time_now(), until);
    }
    return event;
}

static void
check_landed(uint32_t first, uint32_t count)
{
    for (uint32_t b = first; b < first + count; b++) {
        const uint8_t *block = bt_transfer_pool(receiver) + b * layout.block_bytes;

        ck_assert_int_eq(bt_kv_trailer_check(&layout, block, OWNER_EPOCH, b + 1, NULL), BT_KV_GOOD);
        ck_assert_uint_eq(block[layout.trailer_offset / 2], b + 1);
    }
}

START_TEST(more_pieces_than_batches_wait_and_all_arrive)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    bt_transfer_block blocks[BLOCKS]; // none beside the next: a piece each
    uint32_t peers[2];
    size_t length;

    open_both(64); // the copier has 64 batches: two peers may want twice as many
    peers[0] = peer;
    ck_assert_int_eq(bt_transfer_describe(owner, bytes, sizeof bytes, &length), BT_OK);
    ck_assert_int_eq(bt_transfer_connect(receiver, bytes, length, &peers[1], NULL), BT_OK);
    fake_gpu_ways_of(gpu)->asks_a_batch = 2;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        blocks[i] = (bt_transfer_block){i, BLOCKS - 1 - i, i + 1};
    }
    for (uint64_t user = 0; user < 4; user++) {
        ck_assert_int_eq(
            bt_transfer_fetch(receiver, peers[user % 2], blocks, BLOCKS, bt_time_now() + 5 * BT_SECOND, user), BT_OK);
    }
    for (int i = 0; i < 4; i++) {
        bt_transfer_event event = next_event();

        ck_assert_int_eq(event.err, BT_OK);
        ck_assert_uint_eq(event.good, BLOCKS);
    }
    close_both();
}
END_TEST

START_TEST(a_cancel_waits_for_what_is_in_flight_and_what_landed_counts)
{
    bt_transfer_event event;

    open_both(2);
    fake_gpu_ways_of(gpu)->asks_a_batch = 50;
    ck_assert_int_eq(fetch(0, BLOCKS, BT_SECOND, 1), BT_OK);
    ck_assert_uint_eq(bt_transfer_poll(receiver, bt_time_now(), &event, 1), 0);
    bt_transfer_cancel(receiver, 1);
    event = next_event();
    ck_assert_int_eq(event.err, BT_ERR_CANCELLED);
    ck_assert_uint_eq(event.good, 8); // two pieces of four
    check_landed(0, 8);
    ck_assert_uint_eq(bt_transfer_pool(receiver)[8 * layout.block_bytes], 0);
    ck_assert_int_eq(fetch(8, 4, BT_SECOND, 2), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    close_both();
}
END_TEST

START_TEST(a_gpu_that_hangs_costs_the_deadline_and_then_the_peer)
{
    bt_time began = bt_time_now();
    bt_transfer_event event;

    open_both(2);
    fake_gpu_ways_of(gpu)->hangs = true;
    ck_assert_int_eq(fetch(0, 8, 100 * BT_MILLISECOND, 1), BT_OK);
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_LOST);
    ck_assert_int_ge(bt_time_now() - began, 100 * BT_MILLISECOND);
    bt_transfer_disconnect(receiver, peer);
    // The landing blocks are the fetch's until the GPU has let go of them.
    for (int i = 0; i < 20; i++) {
        ck_assert_uint_eq(bt_transfer_poll(receiver, bt_time_now(), &event, 1), 0);
    }
    fake_gpu_ways_of(gpu)->hangs = false;
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
    ck_assert_int_eq(event.err, BT_ERR_TIMEOUT);
    close_both();
}
END_TEST

START_TEST(a_gpu_that_fails_ends_all_fetches_and_the_peer)
{
    bt_transfer_event event;

    open_both(1);
    fake_gpu_ways_of(gpu)->asks_a_batch = 1000000;
    ck_assert_int_eq(fetch(0, 8, 10 * BT_SECOND, 1), BT_OK);
    ck_assert_int_eq(fetch(8, 8, 10 * BT_SECOND, 2), BT_OK);
    ck_assert_uint_eq(bt_transfer_poll(receiver, bt_time_now(), &event, 1), 0);
    fake_gpu_ways_of(gpu)->failed = true;
    for (int i = 0; i < 2; i++) {
        event = next_event();
        ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
        ck_assert_uint_eq(event.good, 0);
        ck_assert(event.err == BT_ERR_DEVICE || event.err == BT_ERR_PEER);
    }
    ck_assert_int_eq(next_event().kind, BT_TRANSFER_LOST);
    ck_assert_int_eq(fetch(0, 8, BT_SECOND, 3), BT_ERR_PEER);
    close_both();
}
END_TEST

START_TEST(an_owner_that_closes_is_lost_before_anything_is_read_of_it_again)
{
    open_both(2);
    ck_assert_int_eq(fetch(0, 8, BT_SECOND, 1), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK);
    bt_transfer_close(owner);
    owner = NULL;
    ck_assert_int_eq(next_event().kind, BT_TRANSFER_LOST);
    ck_assert_int_eq(fetch(8, 8, BT_SECOND, 2), BT_ERR_PEER);
    close_both();
}
END_TEST

// ---- the handshake ----

static bt_description described;
static uint8_t described_bytes[BT_TRANSFER_DESCRIPTION_MAX];
static bt_cuda_host described_host;
static bt_cuda_key described_key;

static void
take_description(void)
{
    size_t length;

    bt_transfer_disconnect(receiver, peer);
    ck_assert_int_eq(bt_transfer_describe(owner, described_bytes, sizeof described_bytes, &length), BT_OK);
    ck_assert_int_eq(bt_description_decode(&described, described_bytes, length, NULL), BT_OK);
    memcpy(&described_host, described.address, sizeof described_host);
    memcpy(&described_key, described.key, sizeof described_key);
    described.address = (const uint8_t *)&described_host;
    described.key = (const uint8_t *)&described_key;
}

static void
check_refused(bt_err expected, const char *names)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length;
    bt_why why = {{0}};

    ck_assert_int_eq(bt_description_encode(&described, bytes, sizeof bytes, &length), BT_OK);
    ck_assert_int_eq(join(bytes, length, &why), expected);
    ck_assert_msg(strstr(why.text, names) != NULL, "'%s' does not name %s", why.text, names);
}

START_TEST(who_cannot_be_read_from_is_told_by_the_field_that_differs)
{
    open_both(2);
    take_description();
    described_host.boot[3] ^= 1;
    check_refused(BT_ERR_UNSUPPORTED, "host");
    described_host.boot[3] ^= 1;
    described_host.pid_namespace++;
    check_refused(BT_ERR_UNSUPPORTED, "PID namespace");
    described_host.pid_namespace--;
    fake_gpu_ways_of(gpu)->blind_to = 1;
    check_refused(BT_ERR_UNSUPPORTED, "peer access");
    fake_gpu_ways_of(gpu)->blind_to = 0;
    described.transport ^= 0x100;
    check_refused(BT_ERR_UNSUPPORTED, "pool is in the host's memory");
    described.transport ^= 0x107; // ucx
    check_refused(BT_ERR_UNSUPPORTED, "transport is number");
    described.transport ^= 0x007;
    described.key_bytes -= 8;
    check_refused(BT_ERR_INVALID, "key");
    described.key_bytes += 8;
    described_key.mark.fd += 100;
    check_refused(BT_ERR_PEER, "gone");
    described_key.mark.fd -= 100;
    described.identity++;
    check_refused(BT_ERR_PEER, "gone");
    close_both();
}
END_TEST

START_TEST(pools_and_transports_that_do_not_fit_are_refused_by_name)
{
    bt_transfer_options o = {.epoch = 1, .blocks = 2, .memory = BT_TRANSFER_CUDA};
    bt_device_options cpu = {.kind = BT_DEVICE_CPU, .threads = 1};
    bt_device *processor;
    bt_transfer *none;
    bt_why why = {{0}};

    ck_assert_int_eq(bt_kv_layout_init(&o.layout, BT_KV_INT8, 1, 1, 32, 16, 32, NULL), BT_OK);
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "no device"));
    ck_assert_int_eq(bt_device_open(&processor, &cpu, NULL), BT_OK);
    o.device = processor;
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "processor"));
    bt_device_close(processor);
    o.device = gpu = fake_gpu_open(1);
    o.transport = "host";
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "'host'"));
    o.transport = "ucx"; // not there, or not for this
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    o.memory = BT_TRANSFER_HOST;
    o.transport = "cuda";
    ck_assert_int_eq(bt_transfer_open(&none, &o, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "'cuda'"));
    bt_device_close(gpu);
}
END_TEST

// ---- two processes ----

static void
own(int fd)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    size_t length = 0;
    bt_device *device = fake_gpu_open(1);
    bt_transfer *t = open_end(device, OWNER_EPOCH, 2);

    write_blocks(device, t);
    if (bt_transfer_describe(t, bytes, sizeof bytes, &length) != BT_OK || send(fd, bytes, length, 0) < 0) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

START_TEST(of_a_killed_owner_comes_an_error_or_good_blocks_and_then_nothing)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX];
    bt_transfer_event event;
    bt_why why = {{0}};
    ssize_t length;
    pid_t child;
    int fds[2];

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 1, 2, 32, 16, 32, NULL), BT_OK);
    bt_log_set_level(BT_LOG_ERROR);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    child = fork();
    if (child == 0) {
        own(fds[1]);
    }
    length = recv(fds[0], bytes, sizeof bytes, 0);
    ck_assert_int_gt(length, 0);
    gpu = fake_gpu_open(2);
    receiver = open_end(gpu, 22, 2);
    ck_assert_msg(join(bytes, (size_t)length, &why) == BT_OK, "%s", why.text);
    kill(child, SIGSTOP);
    ck_assert_int_eq(fetch(0, BLOCKS, BT_SECOND, 1), BT_OK);
    ck_assert_int_eq(next_event().err, BT_OK); // it takes no part
    check_landed(0, BLOCKS);
    fake_gpu_ways_of(gpu)->asks_a_batch = 2000;
    ck_assert_int_eq(fetch(0, BLOCKS, 10 * BT_SECOND, 2), BT_OK);
    ck_assert_uint_eq(bt_transfer_poll(receiver, bt_time_now(), &event, 1), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    event = next_event();
    ck_assert_int_eq(event.kind, BT_TRANSFER_FETCHED);
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_PEER);
    check_landed(0, event.good);
    ck_assert_int_eq(next_event().kind, BT_TRANSFER_LOST);
    bt_transfer_disconnect(receiver, peer);
    bt_transfer_poll(receiver, bt_time_now(), &event, 1);
    ck_assert_int_eq(join(bytes, (size_t)length, &why), BT_ERR_PEER); // nor anew
    bt_transfer_close(receiver);
    bt_device_close(gpu);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("transfer_cuda");
    TCase *tcase = tcase_create("transfer_cuda");

    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, more_pieces_than_batches_wait_and_all_arrive);
    tcase_add_test(tcase, a_cancel_waits_for_what_is_in_flight_and_what_landed_counts);
    tcase_add_test(tcase, a_gpu_that_hangs_costs_the_deadline_and_then_the_peer);
    tcase_add_test(tcase, a_gpu_that_fails_ends_all_fetches_and_the_peer);
    tcase_add_test(tcase, an_owner_that_closes_is_lost_before_anything_is_read_of_it_again);
    tcase_add_test(tcase, who_cannot_be_read_from_is_told_by_the_field_that_differs);
    tcase_add_test(tcase, pools_and_transports_that_do_not_fit_are_refused_by_name);
    tcase_add_test(tcase, of_a_killed_owner_comes_an_error_or_good_blocks_and_then_nothing);
    suite_add_tcase(suite, tcase);
    return bt_test_run(suite);
}
