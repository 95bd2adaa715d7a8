// What the GPU's test programs share: how much of them runs, and their main.
#pragma once

#include "kernels/device.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>

// Is case `i` of a loop run? All are, or with BATON_GPU_QUICK=N in the environment about one in N, any loop's first of all among them:
// compute-sanitizer makes kernels a hundred times slower (sanitize.sh).
static inline bool
bt_gpu_takes(uint32_t i)
{
    const char *quick = getenv("BATON_GPU_QUICK");
    uint32_t n = quick != NULL ? (uint32_t)strtoul(quick, NULL, 10) : 1;

    return n <= 1 || i % n == 0;
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
