// What the loop asks of a data plane comes, once, and as it was written. Run it under TSan too.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/must.h"
#include "tests/unit/node/plane_case.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#ifdef BT_HAVE_UCX
static const char *const ucx_tls[] = {"shm", "tcp"};
#define UCX_TLS 2
#endif

START_TEST(blocks_come_as_they_were_written)
{
    bt_plane_event event;
    bt_plane_stats stats;
    bt_plane_peer info;

    open_both(paths[_i]);
    join();
    ck_assert_int_eq(fetch(3, 40, owner.epoch, SOON, 7), BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    ck_assert_uint_eq(event.user, 7);
    ck_assert_uint_eq(event.good, 40);
    ck_assert_uint_eq(event.peer, OWNER);
    ck_assert_int_gt(event.took, 0);
    ck_assert_mem_eq(receiver.pool + 3 * layout.block_bytes, owner.pool + 3 * layout.block_bytes,
                     40 * layout.block_bytes);
    ck_assert_mem_ne(receiver.pool + 43 * layout.block_bytes, owner.pool + 43 * layout.block_bytes, layout.block_bytes);
    // A look at the figures; the event may be faster than they are.
    for (int i = 0; i < 1000; i++) {
        bt_plane_get_stats(receiver.plane, &stats);
        if (stats.transfer.fetches_done == 2 && bt_plane_get_peer(receiver.plane, OWNER, &info))
            break;
        usleep(1000);
    }
    ck_assert_uint_eq(stats.transfer.fetches_done, 2); // the proof is one
    ck_assert_uint_ge(stats.transfer.fetched_bytes, 40 * layout.block_bytes);
    ck_assert_uint_eq(stats.fetches, 0);
    ck_assert_uint_eq(stats.connected, 1);
    ck_assert_uint_eq(info.epoch, owner.epoch);
    ck_assert(info.transfer.up && info.transfer.proved);
    close_both();
}
END_TEST

#ifdef BT_HAVE_UCX
START_TEST(blocks_come_by_ucx_and_its_threads_sleep_too)
{
    bt_plane_stats before, after;

    library = "ucx";
    tls = ucx_tls[_i];
    open_both(BT_TRANSFER_PATH_AUTO);
    join();
    for (uint32_t i = 0; i < FETCHES; i++)
        ck_assert_int_eq(fetch(i, BLOCKS, owner.epoch, SOON, i), BT_OK);
    for (uint32_t i = 0; i < FETCHES; i++)
        expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    ck_assert_mem_eq(receiver.pool, owner.pool, BLOCKS * layout.block_bytes);
    expect_silence(&receiver, 1200 * BT_MILLISECOND);
    bt_plane_get_stats(receiver.plane, &before);
    expect_silence(&receiver, 1500 * BT_MILLISECOND);
    bt_plane_get_stats(receiver.plane, &after);
    ck_assert_int_lt(after.cpu_time - before.cpu_time, 150 * BT_MILLISECOND);
    close_both();
}
END_TEST
#endif

START_TEST(the_proof_names_the_way_that_blocks_take)
{
    bt_plane_event event;

    open_both(paths[_i]);
    describe_to(&receiver, &owner, 0, 0);
    describe_to(&owner, &receiver, OWNER, SOON);
    expect(&receiver, BT_PLANE_CONNECTED, BT_OK);
    event = expect(&receiver, BT_PLANE_PROVED, BT_OK);
    ck_assert_uint_eq(event.epoch, owner.epoch);
    ck_assert_int_eq(event.path, _i == 0 ? BT_TRANSFER_PATH_DIRECT : BT_TRANSFER_PATH_STREAM);
    ck_assert_str_eq(event.transport, _i == 0 ? "shm" : "tcp");
    ck_assert(event.gb_per_s > 0);
    close_both();
}
END_TEST

START_TEST(a_fetch_may_follow_its_connect_at_once)
{
    open_both(paths[_i]);
    describe_to(&receiver, &owner, 0, 0);
    describe_to(&owner, &receiver, OWNER, 0);
    ck_assert(bt_plane_connected(receiver.plane, OWNER, owner.epoch));
    ck_assert_int_eq(fetch(0, BLOCKS, owner.epoch, SOON, 1), BT_OK);
    expect(&receiver, BT_PLANE_CONNECTED, BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    ck_assert_mem_eq(receiver.pool, owner.pool, BLOCKS * layout.block_bytes);
    close_both();
}
END_TEST

START_TEST(a_fetch_from_nobody_or_another_program_ends_with_peer)
{
    bt_transfer_block block = {0, 0, 1};
    bt_plane_event event;
    bt_plane_stats stats;

    open_both(BT_TRANSFER_PATH_AUTO);
    ck_assert_int_eq(fetch(0, 1, owner.epoch, SOON, 1), BT_OK); // not connected yet
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    ck_assert_uint_eq(event.user, 1);
    ck_assert_uint_eq(event.good, 0);
    join();
    ck_assert_int_eq(fetch(0, 1, owner.epoch + 1, SOON, 2), BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    ck_assert_int_eq(bt_plane_fetch(receiver.plane, 7000, owner.epoch, &block, 1, SOON, 3), BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    ck_assert_uint_eq(event.peer, 7000);
    bt_plane_disconnect(receiver.plane, OWNER);
    ck_assert_int_eq(fetch(0, 1, owner.epoch, SOON, 4), BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    ck_assert_mem_ne(receiver.pool, owner.pool, layout.block_bytes);
    bt_plane_get_stats(receiver.plane, &stats);
    ck_assert_uint_ge(stats.strays, 3);
    close_both();
}
END_TEST

START_TEST(a_block_of_another_life_is_told_with_those_before_it)
{
    bt_transfer_block blocks[] = {{0, 0, 1}, {1, 1, 2}, {2, 2, 99}, {3, 3, 4}};
    bt_plane_event event;

    open_both(paths[_i]);
    join();
    ck_assert_int_eq(bt_plane_fetch(receiver.plane, OWNER, owner.epoch, blocks, 4, SOON, 1), BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    ck_assert_int_eq(event.cause, BT_TRANSFER_CAUSE_GENERATION);
    ck_assert_uint_eq(event.good, 2);
    blocks[0].from = BLOCKS; // outside of the owner's pool
    ck_assert_int_eq(bt_plane_fetch(receiver.plane, OWNER, owner.epoch, blocks, 1, SOON, 2), BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_INVALID);
    close_both();
}
END_TEST

START_TEST(what_does_not_fit_is_refused_and_the_rest_is_told_once)
{
    uint32_t seen[FETCHES] = {0};

    open_both(paths[_i]);
    join();
    ck_assert_int_eq(fetch(0, 0, owner.epoch, SOON, 0), BT_ERR_INVALID);
    ck_assert_int_eq(fetch(0, BLOCKS + 1, owner.epoch, SOON, 0), BT_ERR_INVALID);
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < FETCHES; i++)
            ck_assert_int_eq(fetch(i, BLOCKS, owner.epoch, SOON, i), BT_OK);
        // Also when all of them are done: what was not taken still counts.
        usleep(round * 1000);
        ck_assert_int_eq(fetch(0, 1, owner.epoch, SOON, 99), BT_ERR_BUSY);
        for (uint32_t i = 0; i < FETCHES; i++)
            seen[expect(&receiver, BT_PLANE_FETCHED, BT_OK).user]++;
    }
    for (uint32_t i = 0; i < FETCHES; i++)
        ck_assert_uint_eq(seen[i], 20);
    expect_silence(&receiver, 20 * BT_MILLISECOND);
    close_both();
}
END_TEST

START_TEST(a_description_that_is_not_one_is_refused)
{
    uint8_t bytes[BT_TRANSFER_DESCRIPTION_MAX + 1] = {0};
    const uint8_t *good;
    uint32_t count;

    open_both(BT_TRANSFER_PATH_AUTO);
    ck_assert_int_eq(bt_plane_connect(receiver.plane, OWNER, 5, bytes, sizeof bytes, 0), BT_ERR_INVALID);
    ck_assert_int_eq(bt_plane_connect(receiver.plane, OWNER, 5, NULL, 0, SOON), BT_OK);
    expect(&receiver, BT_PLANE_CONNECTED, BT_ERR_INVALID);
    ck_assert_int_eq(bt_plane_connect(receiver.plane, OWNER, 5, bytes, 100, SOON), BT_OK);
    expect(&receiver, BT_PLANE_CONNECTED, BT_ERR_INVALID);
    ck_assert(!bt_plane_connected(receiver.plane, OWNER, 5));
    good = bt_plane_description(owner.plane, &count);
    memcpy(bytes, good, count);
    bytes[count / 2] ^= 1;
    ck_assert_int_eq(bt_plane_connect(receiver.plane, OWNER, 5, bytes, count, SOON), BT_OK);
    expect(&receiver, BT_PLANE_CONNECTED, BT_ERR_INVALID);
    join();
    close_both();
}
END_TEST

// When the receiver disconnects, the owner's own connection to it is lost, and by a stream it lets in only whom it has one to: as a node
// does, it is told of the receiver again.
static void
keep_known(void)
{
    bt_plane_event event;

    while (bt_plane_next(owner.plane, &event)) {
        if (event.kind == BT_PLANE_LOST)
            describe_to(&receiver, &owner, 0, 0);
    }
}

// As a node does after a loss: connects until the owner is proved.
static void
join_again(void)
{
    bt_plane_event event = {.kind = BT_PLANE_LOST};
    bt_time end = SOON - 5 * BT_SECOND; // the proof's deadline is no answer

    while (event.kind != BT_PLANE_PROVED || event.err != BT_OK) {
        if (event.kind == BT_PLANE_LOST)
            describe_to(&owner, &receiver, OWNER, SOON);
        keep_known();
        if (!event_within(&receiver, &event, BT_MILLISECOND))
            event.kind = BT_PLANE_CONNECTED;
        MUST(bt_time_now() < end);
    }
}

// Whatever is asked in whatever order: each fetch that was accepted is told once, long before its deadline, and nothing is told that was
// not asked.
START_TEST(no_event_is_lost_or_doubled_when_all_is_asked_at_random)
{
    bt_rng rng = {.state = 5};
    bool out[64] = {false};
    uint32_t outstanding = 0, accepted = 0, busy = 0, told = 0;
    bt_time end = BT_TIME_NEVER;
    bt_plane_event event;

    open_both(paths[_i]);
    describe_to(&receiver, &owner, 0, 0);
    for (int i = 0; i < 4000 || outstanding > 0; i++) {
        uint64_t user = bt_rng_below(&rng, 64);
        uint32_t bytes;
        const uint8_t *description = bt_plane_description(owner.plane, &bytes);
        bt_time prove = bt_rng_below(&rng, 2) ? SOON : 0;
        uint64_t what = i < 4000 ? bt_rng_below(&rng, 20) : 19;

        keep_known();
        if (i == 4000)
            end = SOON - 5 * BT_SECOND;
        MUST(bt_time_now() < end);
        if (what == 0) {
            bt_err err = bt_plane_connect(receiver.plane, OWNER, owner.epoch, description, bytes, prove);

            MUST(err == BT_OK || err == BT_ERR_BUSY);
        } else if (what == 1) {
            bt_plane_disconnect(receiver.plane, OWNER);
        } else if (what < 5) {
            bt_plane_cancel(receiver.plane, user);
        } else if (what < 13 && !out[user]) {
            bt_err err = fetch((uint32_t)user, 1 + (uint32_t)bt_rng_below(&rng, 8), owner.epoch, SOON, user);

            MUST(err == (outstanding == FETCHES ? BT_ERR_BUSY : BT_OK));
            busy += err == BT_ERR_BUSY;
            out[user] = err == BT_OK || out[user];
            outstanding += err == BT_OK;
            accepted += err == BT_OK;
        } else if (what >= 16 && event_within(&receiver, &event, BT_MILLISECOND)) {
            told++;
            if (event.kind == BT_PLANE_FETCHED) {
                MUST(out[event.user] && event.err != BT_ERR_TIMEOUT);
                out[event.user] = false;
                outstanding--;
            }
        }
    }
    ck_assert_uint_gt(accepted, 100);
    ck_assert_uint_gt(busy, 10);
    ck_assert_uint_gt(told, accepted);
    while (event_within(&receiver, &event, 50 * BT_MILLISECOND))
        ck_assert_int_ne(event.kind, BT_PLANE_FETCHED);
    join_again();
    close_both();
}
END_TEST

// A stage that takes what it is given on when it is told to.
static struct {
    pthread_mutex_t lock;
    int signs; // eventfd: there is more to say
    uint64_t begun, through;
    uint32_t blocks[FETCHES]; // of each that was begun
    bt_err refuses, fails;
} stage;

static bt_err
stage_begin(void *arg, const bt_transfer_block *blocks, uint32_t count, uint64_t *ticket)
{
    bt_err err;

    (void)arg, (void)blocks;
    pthread_mutex_lock(&stage.lock);
    if ((err = stage.refuses) == BT_OK) {
        stage.blocks[stage.begun] = count;
        *ticket = ++stage.begun;
    }
    pthread_mutex_unlock(&stage.lock);
    return err;
}

static bt_err
stage_through(void *arg, uint64_t *ticket)
{
    eventfd_t count;
    bt_err err;

    (void)arg;
    eventfd_read(stage.signs, &count);
    pthread_mutex_lock(&stage.lock);
    *ticket = stage.through;
    err = stage.fails;
    pthread_mutex_unlock(&stage.lock);
    return err;
}

static void
let_through(uint64_t ticket, bt_err fails)
{
    pthread_mutex_lock(&stage.lock);
    stage.through = ticket;
    stage.fails = fails;
    pthread_mutex_unlock(&stage.lock);
    eventfd_write(stage.signs, 1);
}

static void
open_staged(void)
{
    bt_plane_options o = plane_options(&receiver);
    bt_why why = {{0}};

    open_both(BT_TRANSFER_PATH_AUTO);
    close_node(&receiver);
    memset(&stage, 0, sizeof stage);
    pthread_mutex_init(&stage.lock, NULL);
    stage.signs = eventfd(0, EFD_NONBLOCK);
    receiver.woken = eventfd(0, EFD_NONBLOCK);
    o.stage = (bt_plane_stage){stage_begin, stage_through, NULL, stage.signs};
    ck_assert_msg(bt_plane_open(&receiver.plane, open_transfer(&receiver, BT_TRANSFER_PATH_AUTO, 33), &o, &why) ==
                      BT_OK,
                  "%s", why.text);
    join();
}

START_TEST(what_is_staged_is_told_when_it_is_through)
{
    bt_transfer_block blocks[] = {{0, 0, 1}, {1, 1, 2}, {2, 2, 99}, {3, 3, 4}};
    bt_plane_event event;

    open_staged();
    ck_assert_int_eq(fetch(0, 8, owner.epoch, SOON, 1), BT_OK);
    ck_assert_int_eq(bt_plane_fetch(receiver.plane, OWNER, owner.epoch, blocks, 4, SOON, 2), BT_OK);
    expect_silence(&receiver, 200 * BT_MILLISECOND);
    let_through(1, BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    ck_assert_uint_eq(event.user, 1);
    ck_assert_uint_eq(event.good, 8);
    expect_silence(&receiver, 100 * BT_MILLISECOND);
    let_through(2, BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER); // the third was bad: those before it are here, and staged
    ck_assert_uint_eq(event.user, 2);
    ck_assert_uint_eq(event.good, 2);
    ck_assert_uint_eq(stage.blocks[0], 8);
    ck_assert_uint_eq(stage.blocks[1], 2);
    ck_assert_int_eq(fetch(0, 1, owner.epoch + 1, SOON, 3), BT_OK); // nothing good: nothing to be staged
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    close_both();
}
END_TEST

START_TEST(what_cannot_be_staged_is_not_here)
{
    bt_plane_event event;

    open_staged();
    ck_assert_int_eq(fetch(0, 8, owner.epoch, SOON, 1), BT_OK);
    expect_silence(&receiver, 100 * BT_MILLISECOND);
    let_through(0, BT_ERR_DEVICE);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_DEVICE);
    ck_assert_uint_eq(event.good, 0);
    stage.refuses = BT_ERR_DEVICE;
    ck_assert_int_eq(fetch(0, 8, owner.epoch, SOON, 2), BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_ERR_DEVICE);
    ck_assert_uint_eq(event.good, 0);
    close_both();
}
END_TEST

START_TEST(a_plane_that_is_stopped_stages_nothing_more)
{
    open_staged();
    ck_assert_int_eq(fetch(0, 8, owner.epoch, SOON, 1), BT_OK);
    expect_silence(&receiver, 100 * BT_MILLISECOND);
    bt_plane_stop(receiver.plane);
    let_through(1, BT_OK);
    expect_silence(&receiver, 100 * BT_MILLISECOND);
    bt_plane_stop(receiver.plane);
    bt_plane_stop(NULL);
    close_both();
}
END_TEST

// Nodes with a pool of another kind first: here of another layout, with the one of all others behind it.
static void
open_pair(node *n, uint64_t epoch, uint8_t **first_pool)
{
    bt_plane_options o = plane_options(n);
    bt_kv_layout plain = layout;
    bt_transfer *first;
    bt_why why = {{0}};

    n->woken = eventfd(0, EFD_NONBLOCK);
    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_F16, 4, 2, 64, 32, 64, NULL), BT_OK);
    first = open_transfer(n, BT_TRANSFER_PATH_AUTO, epoch);
    write_blocks(n);
    *first_pool = n->pool;
    layout = plain;
    o.second = open_transfer(n, BT_TRANSFER_PATH_AUTO, epoch);
    write_blocks(n);
    ck_assert_msg(bt_plane_open(&n->plane, first, &o, &why) == BT_OK, "%s", why.text);
}

START_TEST(a_peer_is_fetched_from_by_the_first_pool_that_both_have)
{
    static const struct {
        bool owner_has_both, receiver_has_both;
    } cases[] = {{true, true}, {false, true}, {true, false}};
    bool first = cases[_i].owner_has_both && cases[_i].receiver_has_both;
    uint8_t *owners = NULL, *receivers = NULL, before[64];
    bt_plane_event event;
    bt_plane_stats stats;

    open_both(BT_TRANSFER_PATH_AUTO);
    if (cases[_i].owner_has_both) {
        close_node(&owner);
        open_pair(&owner, 44, &owners);
    }
    if (cases[_i].receiver_has_both) {
        close_node(&receiver);
        open_pair(&receiver, 55, &receivers);
        memcpy(before, receivers, sizeof before);
    }
    join();
    ck_assert_int_eq(fetch(0, 8, owner.epoch, SOON, 1), BT_OK);
    event = expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    ck_assert_uint_eq(event.good, 8);
    if (first) // the head of a block of either layout is told by epoch and place
        ck_assert_mem_eq(receivers, owners, 64);
    else
        ck_assert_mem_eq(receiver.pool, owner.pool, 8 * layout.block_bytes);
    if (receivers != NULL && !first)
        ck_assert_mem_eq(receivers, before, sizeof before);
    usleep(200000); // the figures follow
    fetch(0, 8, owner.epoch, SOON, 2);
    expect(&receiver, BT_PLANE_FETCHED, BT_OK);
    bt_plane_get_stats(receiver.plane, &stats);
    ck_assert_uint_ge(stats.transfer.fetched_blocks, 8);
    close_node(&owner);
    event = expect(&receiver, BT_PLANE_LOST, BT_ERR_PEER);
    ck_assert_int_eq(fetch(0, 8, event.epoch, SOON, 3), BT_OK);
    expect(&receiver, BT_PLANE_FETCHED, BT_ERR_PEER);
    close_both();
}
END_TEST

START_TEST(two_nodes_without_a_common_kind_of_pool_are_refused)
{
    bt_plane_options o = plane_options(&owner);
    bt_kv_layout plain;
    bt_why why = {{0}};

    open_both(BT_TRANSFER_PATH_AUTO);
    close_node(&owner);
    plain = layout;
    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_F16, 4, 2, 64, 32, 64, NULL), BT_OK);
    owner.woken = eventfd(0, EFD_NONBLOCK);
    ck_assert_int_eq(bt_plane_open(&owner.plane, open_transfer(&owner, BT_TRANSFER_PATH_AUTO, 66), &o, &why), BT_OK);
    layout = plain;
    bt_log_set_level(BT_LOG_NONE);
    describe_to(&owner, &receiver, OWNER, SOON);
    expect(&receiver, BT_PLANE_CONNECTED, BT_ERR_UNSUPPORTED);
    close_both();
}
END_TEST

START_TEST(connects_beyond_what_can_be_under_way_are_busy_and_then_fit_again)
{
    uint32_t bytes, fit = 0;
    const uint8_t *description;
    bt_plane_event event;
    bt_err err;

    open_both(BT_TRANSFER_PATH_AUTO);
    description = bt_plane_description(owner.plane, &bytes);
    // Nothing is taken meanwhile, so that no slot comes back.
    while ((err = bt_plane_connect(receiver.plane, OWNER, 11, description, bytes, 0)) == BT_OK)
        ck_assert_uint_lt(fit++, 1000);
    ck_assert_int_eq(err, BT_ERR_BUSY);
    ck_assert_uint_eq(fit, 2 * PEERS);
    while (event_within(&receiver, &event, 50 * BT_MILLISECOND))
        ck_assert_int_eq(event.kind, BT_PLANE_CONNECTED);
    join();
    close_both();
}
END_TEST

START_TEST(opening_without_memory_leaves_the_transfer_to_its_owner)
{
    bt_plane_options o = plane_options(&receiver);
    bt_transfer *transfer;
    bt_plane *plane = NULL;
    bt_why why;
    long before, nth = 0;

    ck_assert_int_eq(bt_kv_layout_init(&layout, BT_KV_INT8, 4, 2, 64, 32, 64, NULL), BT_OK);
    receiver.woken = eventfd(0, EFD_NONBLOCK);
    transfer = open_transfer(&receiver, BT_TRANSFER_PATH_AUTO, 1);
    before = bt_mem_live();
    for (bt_err err = BT_ERR_NO_MEMORY; err != BT_OK;) {
        bt_mem_fail_nth(++nth);
        err = bt_plane_open(&plane, transfer, &o, &why);
        bt_mem_fail_nth(0);
        if (err != BT_OK) {
            ck_assert_int_eq(err, BT_ERR_NO_MEMORY);
            ck_assert_int_eq(bt_mem_live(), before);
        }
    }
    ck_assert_int_gt(nth, 5);
    bt_plane_close(plane);
    o.fetches_max = 0;
    transfer = open_transfer(&receiver, BT_TRANSFER_PATH_AUTO, 1);
    ck_assert_int_eq(bt_plane_open(&plane, transfer, &o, &why), BT_ERR_INVALID);
    bt_transfer_close(transfer);
    close(receiver.woken);
    bt_plane_close(NULL);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("plane");
    TCase *all = tcase_create("all");

    tcase_set_timeout(all, 120);
    tcase_add_loop_test(all, blocks_come_as_they_were_written, 0, PATHS);
#ifdef BT_HAVE_UCX
    tcase_add_loop_test(all, blocks_come_by_ucx_and_its_threads_sleep_too, 0, UCX_TLS);
#endif
    tcase_add_loop_test(all, the_proof_names_the_way_that_blocks_take, 0, PATHS);
    tcase_add_loop_test(all, a_fetch_may_follow_its_connect_at_once, 0, PATHS);
    tcase_add_test(all, a_fetch_from_nobody_or_another_program_ends_with_peer);
    tcase_add_loop_test(all, a_block_of_another_life_is_told_with_those_before_it, 0, PATHS);
    tcase_add_loop_test(all, what_does_not_fit_is_refused_and_the_rest_is_told_once, 0, PATHS);
    tcase_add_test(all, a_description_that_is_not_one_is_refused);
    tcase_add_loop_test(all, no_event_is_lost_or_doubled_when_all_is_asked_at_random, 0, PATHS);
    tcase_add_test(all, what_is_staged_is_told_when_it_is_through);
    tcase_add_test(all, what_cannot_be_staged_is_not_here);
    tcase_add_test(all, a_plane_that_is_stopped_stages_nothing_more);
    tcase_add_loop_test(all, a_peer_is_fetched_from_by_the_first_pool_that_both_have, 0, 3);
    tcase_add_test(all, two_nodes_without_a_common_kind_of_pool_are_refused);
    tcase_add_test(all, connects_beyond_what_can_be_under_way_are_busy_and_then_fit_again);
    tcase_add_test(all, opening_without_memory_leaves_the_transfer_to_its_owner);
    suite_add_tcase(suite, all);
    return bt_test_run(suite);
}
