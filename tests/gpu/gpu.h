// What the GPU's test programs share: how much of them runs, their main, and what is said of one that does not come to its end.
#pragma once

#include "kernels/device.h"
#include "tests/support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t bt_gpu_case = -1; // what bt_gpu_takes was asked last

// What BATON_GPU_QUICK says: N, about one case in N; or N:K/M, of those every M-th, from the K-th on: M processes share a program.
// compute-sanitizer makes kernels a hundred times slower (sanitize.sh).
static inline uint32_t
bt_gpu_quick(uint32_t *own, uint32_t *all)
{
    const char *quick = getenv("BATON_GPU_QUICK");
    char *end = NULL;
    uint32_t n = quick != NULL ? (uint32_t)strtoul(quick, &end, 10) : 1;

    *own = 0, *all = 1;
    if (end != NULL && *end == ':') {
        *own = (uint32_t)strtoul(end + 1, &end, 10);
        *all = *end == '/' ? (uint32_t)strtoul(end + 1, NULL, 10) : 1;
    }
    *all += *all == 0;
    return n + (n == 0);
}

// Is case `i` of a loop run? All are, or with BATON_GPU_QUICK a part, any loop's first of all among them (by one of those that share).
static inline bool
bt_gpu_takes(uint32_t i)
{
    static uint32_t count;
    static time_t begin;
    uint32_t own, all, n = bt_gpu_quick(&own, &all);

    bt_gpu_case = (sig_atomic_t)i;
    if (i % n != 0 || count++ % all != own) {
        return false;
    }
    if (all > 1) { // what was slow, and what was the last, is to be seen in the log of a share
        begin = begin == 0 ? time(NULL) : begin;
        fprintf(stderr, "after %ld s: %s, case %u\n", (long)(time(NULL) - begin), tcase_name(), i);
    }
    return true;
}

// Is all of it run, of what is no loop?
static inline bool
bt_gpu_whole(void)
{
    uint32_t own, all;

    return bt_gpu_quick(&own, &all) == 1;
}

// How often is repeated what ought to give the same every time: `times`, or in a part of the program no more than `few`.
static inline int
bt_gpu_times(int times, int few)
{
    return bt_gpu_whole() || times < few ? times : few;
}

// Opens cuda:0 for calls within `limits`. Fails the test, or the set-up and with it all of the case's tests, and leaves *out NULL then:
// nobody goes on with a device that is half open.
static inline void
bt_gpu_open(bt_device **out, const bt_device_limits *limits)
{
    bt_device *device = NULL;
    bt_why why = {""};
    bt_err err;

    bt_device_close(*out);
    *out = NULL;
    err = bt_device_open(&device, &(bt_device_options){.kind = BT_DEVICE_CUDA}, &why);
    if (err == BT_OK && (err = bt_device_reserve(device, limits, &why)) != BT_OK) {
        bt_device_close(device);
    }
    ck_assert_msg(err == BT_OK, "%s", why.text);
    *out = device;
}

// Is it to be one that is older than Hopper? On such a GPU these programs are run with BATON_CUDA_AS, so that one which ought to round
// activations that meet 16-bit weights and does not is found. An older one has no way to: they are f32 as on the CPU, if that is asked for
// (bt_device_options.float_activations), and the bits are the CPU's.
static inline bool
bt_gpu_is_older(void)
{
    const char *as = getenv("BATON_CUDA_AS");

    return as != NULL && atoi(as) < 9;
}

// Cases `first` … `end` − 1 of a test of a suite as a case of its own, behind a set-up: CK_RUN_CASE picks one.
static inline void
bt_gpu_add_some(Suite *s, const char *name, void (*open)(void), const TTest *test, int first, int end)
{
    TCase *t = tcase_create(name);

    tcase_add_loop_test(t, test, first, end);
    tcase_add_unchecked_fixture(t, open, NULL);
    suite_add_tcase(s, t);
}

static inline void
bt_gpu_add(Suite *s, const char *name, void (*open)(void), const TTest *test, int count)
{
    bt_gpu_add_some(s, name, open, test, 0, count);
}

// run.sh sends SIGUSR1 when the time is over; the others are crashes. Says in which test.
static inline void
bt_gpu_say_where(int signal_number)
{
    const char *name = tcase_name();
    char line[256];
    int length = snprintf(line, sizeof line, "%s in %s, case %d\n",
                          signal_number == SIGUSR1 ? "out of time" : strsignal(signal_number),
                          name != NULL ? name : "no test", (int)bt_gpu_case);
    ssize_t put = write(STDOUT_FILENO, line, (size_t)length);

    (void)put;
    if (signal_number == SIGUSR1) {
        fflush(NULL); // what failed before that (CK_LOG_FILE_NAME); where this itself hangs, run.sh kills
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

// bt_test_run where cuda:0 can be opened; else says why not and returns 77.
static inline int
bt_gpu_run(Suite *suite)
{
    static const int ends[] = {SIGUSR1, SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
    bt_device *device;
    bt_why why;

    if (bt_device_open(&device, &(bt_device_options){.kind = BT_DEVICE_CUDA}, &why) != BT_OK) {
        printf("%s\n", why.text);
        return 77;
    }
    bt_device_close(device);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        signal(ends[i], bt_gpu_say_where);
    }
    setenv("CK_FORK", "no", 1); // a context does not survive a fork
    return bt_test_run(suite);
}

static inline void
bt_gpu_end(int signal_number)
{
    (void)signal_number;
    raise(SIGTERM); // which ends a forked test, too
}

// The same for programs that fork, and so must not have touched the driver: another process looks.
static inline int
bt_gpu_run_forking(Suite *suite)
{
    pid_t looks;
    int status = 0;

    fflush(NULL);
    if ((looks = fork()) == 0) {
        bt_device *device;
        bt_why why;
        bool none = bt_device_open(&device, &(bt_device_options){.kind = BT_DEVICE_CUDA}, &why) != BT_OK;

        if (none) {
            printf("%s\n", why.text);
            fflush(NULL);
        }
        _exit(none ? 77 : 0);
    }
    if (looks > 0 && waitpid(looks, &status, 0) == looks && WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        return 77;
    }
    signal(SIGUSR1, bt_gpu_end);
    return bt_test_run(suite);
}
