// What the GPU's test programs share: how much of them runs, their device, and their main.
#pragma once

#include "kernels/device.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

// Is case `i` of a loop run? All are, or with BATON_GPU_QUICK=N in the environment about one in N, any loop's first of all among them:
// compute-sanitizer makes kernels a hundred times slower (sanitize.sh).
static inline bool
bt_gpu_takes(uint32_t i)
{
    const char *quick = getenv("BATON_GPU_QUICK");
    uint32_t n = quick != NULL ? (uint32_t)strtoul(quick, NULL, 10) : 1;

    return n <= 1 || i % n == 0;
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

// bt_test_run where cuda:0 can be opened; else says why not and returns 77.
static inline int
bt_gpu_run(Suite *suite)
{
    bt_device *device;
    bt_why why;

    if (bt_device_open(&device, &(bt_device_options){.kind = BT_DEVICE_CUDA}, &why) != BT_OK) {
        printf("%s\n", why.text);
        return 77;
    }
    bt_device_close(device);
    setenv("CK_FORK", "no", 1); // a context does not survive a fork
    return bt_test_run(suite);
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
    return bt_test_run(suite);
}
