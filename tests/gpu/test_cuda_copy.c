// The copier on the GPU: sums, stamps and fetches are the CPU's, and memory lent to another process stays whole whatever becomes of its
// owner.
#include "common/kv/trailer.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/copier_case.h"
#include "tests/support/test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define EPOCH 77u

START_TEST(sums_of_blocks_of_every_shape_are_those_of_the_specification)
{
    for (size_t shape = 0; shape < COPIER_SHAPES; shape++) {
        copier_case_sums(BT_DEVICE_CUDA, shape);
    }
}
END_TEST

START_TEST(a_fetch_either_way_brings_the_bytes_their_sums_and_their_trailers)
{
    for (size_t shape = 0; shape < COPIER_SHAPES; shape++) {
        copier_case_fetches(BT_DEVICE_CUDA, shape);
    }
}
END_TEST

START_TEST(stamped_blocks_are_good_and_cleared_ones_are_not)
{
    for (size_t shape = 0; shape < COPIER_SHAPES; shape++) {
        copier_case_stamps(BT_DEVICE_CUDA, shape);
    }
}
END_TEST

START_TEST(copies_of_any_kind_come_in_order)
{
    copier_case_copies(BT_DEVICE_CUDA);
}
END_TEST

START_TEST(a_full_queue_says_busy_and_the_end_of_a_batch_wakes)
{
    size_t bytes = (size_t)64 << 20;
    copier_world w = {0};
    struct pollfd fd = {.events = POLLIN};
    uint8_t *memory;
    uint64_t through;
    bt_err err = BT_OK;

    copier_world_open_device(&w, BT_DEVICE_CUDA, true);
    fd.fd = bt_copier_fd(w.copier);
    ck_assert_int_ge(fd.fd, 0);
    memory = bt_device_alloc(w.device, 2 * bytes);
    ck_assert_int_eq(bt_copier_copy(w.copier, &(bt_copier_run){memory, memory + bytes, bytes}, 1, &w.ticket), BT_OK);
    ck_assert(!bt_copier_arm(w.copier) || poll(&fd, 1, 100000) == 1);
    ck_assert_int_eq(bt_copier_through(w.copier, &through), BT_OK);
    ck_assert_uint_eq(through, 1);
    ck_assert_int_eq(poll(&fd, 1, 0), 0);
    ck_assert(bt_copier_arm(w.copier));                   // nothing is in flight, and nothing has ended unseen
    for (uint32_t i = 0; i < 1000 && err == BT_OK; i++) { // four may be in flight
        const bt_copier_run run = {memory, memory + bytes, bytes};
        const bt_copier_run runs[] = {run, run, run, run, run, run, run, run};

        err = bt_copier_copy(w.copier, runs, 8, &w.ticket);
    }
    ck_assert_int_eq(err, BT_ERR_BUSY);
    copier_await(&w);
    bt_device_free(w.device, memory, 2 * bytes);
    bt_copier_close(w.copier);
    bt_device_close(w.device);
}
END_TEST

// ---- two processes ----

#define SHARED_SHAPE (COPIER_SHAPES - 1)
#define SHARED_BLOCKS 128u // 273 MB

// Lends a stamped pool, then obeys: 'F' frees it, 'Q' ends.
static void
own(int fd)
{
    copier_world w;
    bt_copier_stamping stampings[SHARED_BLOCKS];
    bt_device_shared shared;
    bt_why why = {{0}};
    char word = 0;

    copier_world_open(&w, BT_DEVICE_CUDA, SHARED_SHAPE, SHARED_BLOCKS);
    for (uint32_t b = 0; b < SHARED_BLOCKS; b++) {
        stampings[b] = (bt_copier_stamping){b, b + 1};
    }
    if (bt_copier_stamp(w.copier, &w.layout, w.from, EPOCH, stampings, SHARED_BLOCKS, &w.ticket) != BT_OK ||
        bt_copier_wait(w.copier, w.ticket, COPIER_SOON) != BT_OK ||
        bt_device_share(w.device, w.from, &shared, &why) != BT_OK) {
        printf("owner: %s\n", why.text);
        _exit(1);
    }
    if (send(fd, &shared, sizeof shared, 0) != sizeof shared) {
        _exit(1);
    }
    while (recv(fd, &word, 1, 0) == 1 && word != 'Q') {
        bt_device_free(w.device, w.from, w.bytes);
        w.from = NULL;
        if (send(fd, &word, 1, 0) != 1) {
            _exit(1);
        }
    }
    _exit(0);
}

// All blocks, as they were stamped, by both ways.
static void
fetch_all(copier_world *w, const void *from)
{
    bt_copier_blocks run = {w->to, from, w->blocks};

    for (bt_copier_way way = BT_COPIER_BY_KERNEL; way <= BT_COPIER_BY_ENGINE; way++) {
        const bt_copier_landed *landed;

        ck_assert_int_eq(bt_copier_fetch(w->copier, &w->layout, &run, 1, way, &w->ticket), BT_OK);
        copier_await(w);
        landed = bt_copier_landed_of(w->copier, w->ticket);
        for (uint32_t b = 0; b < w->blocks; b++) {
            ck_assert_int_eq(bt_kv_trailer_judge(&w->layout, &landed[b].trailer, EPOCH, b + 1, &landed[b].sum),
                             BT_KV_GOOD);
            ck_assert_uint_eq(landed[b].sum,
                              bt_kv_checksum_part(w->host + b * w->layout.block_bytes, w->layout.trailer_offset, 0));
        }
        ck_assert_int_eq(bt_device_write(w->device, w->to, w->back, w->bytes), BT_OK);
    }
}

static pid_t
start_owner(int *fd, bt_device_shared *shared)
{
    int fds[2];
    pid_t owner;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    fflush(NULL);
    owner = fork(); // before this process has touched the driver
    if (owner == 0) {
        close(fds[0]);
        own(fds[1]);
    }
    close(fds[1]);
    *fd = fds[0];
    ck_assert_int_eq(recv(*fd, shared, sizeof *shared, 0), sizeof *shared);
    return owner;
}

typedef enum { LIVES, STOPPED, KILLED, KILLED_WHILE_COPYING, FREES, ENDS } fate;
static const char *const fates[] = {"lives", "stopped", "killed", "killed while copying", "frees it", "ends"};

START_TEST(lent_memory_can_be_read_whatever_becomes_of_its_owner)
{
    fate f = (fate)_i;
    bool gone = f == KILLED || f == KILLED_WHILE_COPYING || f == ENDS;
    bt_device_shared shared;
    const void *from;
    size_t available;
    bool same;
    bt_why why = {{0}};
    copier_world w;
    int fd;
    pid_t owner = start_owner(&fd, &shared);

    copier_world_open(&w, BT_DEVICE_CUDA, SHARED_SHAPE, SHARED_BLOCKS);
    ck_assert_msg(bt_device_open_shared(w.device, &shared, &from, &same, &why) == BT_OK, "%s", why.text);
    ck_assert(same);
    fetch_all(&w, from);
    if (f == STOPPED) {
        kill(owner, SIGSTOP);
    } else if (f == KILLED_WHILE_COPYING) {
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(bt_copier_fetch(w.copier, &w.layout, &(bt_copier_blocks){w.to, from, w.blocks}, 1,
                                             BT_COPIER_BY_ENGINE, &w.ticket),
                             BT_OK);
        }
        kill(owner, SIGKILL);
        copier_await(&w);
    } else if (f == KILLED) {
        kill(owner, SIGKILL);
    } else if (f == FREES || f == ENDS) {
        char word = f == FREES ? 'F' : 'Q';

        ck_assert_int_eq(send(fd, &word, 1, 0), 1);
        ck_assert_int_eq(recv(fd, &word, 1, 0), f == FREES);
    }
    if (gone) {
        waitpid(owner, NULL, 0);
    }
    usleep(300000);
    fetch_all(&w, from);
    available = bt_device_available(w.device);
    bt_device_close_shared(w.device, from);
    printf("owner %s: its memory is read as before; closing it gave %.0f MB back\n", fates[f],
           ((double)bt_device_available(w.device) - (double)available) / 1e6);
    if (gone) {
        // What a description of a dead owner is good for.
        bt_err err = bt_device_open_shared(w.device, &shared, &from, &same, &why);

        printf("opening it anew: %s\n", err == BT_OK ? "works" : why.text);
        ck_assert_int_ne(err, BT_OK);
    }
    copier_world_close(&w);
    if (!gone) { // else the number may be another's by now
        kill(owner, SIGKILL);
        waitpid(owner, NULL, 0);
    }
    close(fd);
}
END_TEST

START_TEST(a_handle_that_is_none_is_refused)
{
    bt_device_shared shared = {{1}, {2}};
    const void *from;
    bool same;
    bt_why why = {{0}};
    copier_world w;

    copier_world_open_device(&w, BT_DEVICE_CUDA, false);
    ck_assert_int_eq(bt_device_open_shared(w.device, &shared, &from, &same, &why), BT_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "GPU-02000000-0000"));
    bt_copier_close(w.copier);
    bt_device_close(w.device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cuda_copy");
    TCase *tcase = tcase_create("copier"), *lent = tcase_create("lent"); // CK_RUN_CASE picks one

    setenv("CK_FORK", "yes", 1); // a process that has touched the driver cannot fork an owner
    setvbuf(stdout, NULL, _IOLBF, 0);
    tcase_set_timeout(tcase, 200);
    tcase_set_timeout(lent, 200);
    tcase_add_test(tcase, sums_of_blocks_of_every_shape_are_those_of_the_specification);
    tcase_add_test(tcase, a_fetch_either_way_brings_the_bytes_their_sums_and_their_trailers);
    tcase_add_test(tcase, stamped_blocks_are_good_and_cleared_ones_are_not);
    tcase_add_test(tcase, copies_of_any_kind_come_in_order);
    tcase_add_test(tcase, a_full_queue_says_busy_and_the_end_of_a_batch_wakes);
    tcase_add_loop_test(lent, lent_memory_can_be_read_whatever_becomes_of_its_owner, LIVES, ENDS + 1);
    tcase_add_test(lent, a_handle_that_is_none_is_refused);
    suite_add_tcase(suite, tcase);
    suite_add_tcase(suite, lent);
    return bt_gpu_run_forking(suite);
}
