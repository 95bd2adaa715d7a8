// What all drivers share: a device of the emulator, what launchers and kernels/device.c ask of it, the drivers' arguments and their main.
#pragma once

#include "emulated.h"

#include <check.h>
#include <string.h>

#include "kernels/cuda/cuda.cuh"

static bt_cuda cuda;

bt_err
bt_cuda_check(bt_cuda *, cudaError_t error, const char *what)
{
    ck_assert_msg(error == cudaSuccess, "%s", what);
    return BT_OK;
}

extern "C" bt_err
bt_cuda_foresee(bt_device_needs *, const bt_device_limits *, bt_why *)
{
    return BT_ERR_UNSUPPORTED;
}

// Was `all` asked for? And `eager` is heeded.
static inline bool
emu_asked(int argc, char **argv)
{
    bool all = false;

    for (int i = 1; i < argc; i++) {
        all = all || strcmp(argv[i], "all") == 0;
        emu_eager = emu_eager || strcmp(argv[i], "eager") == 0;
    }
    return all;
}

static inline int
emu_main(TCase *tests)
{
    Suite *suite = suite_create("emulated");
    SRunner *runner;
    int failed;

    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
