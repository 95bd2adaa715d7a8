// What all drivers share: their arguments and their main.
#pragma once

#include "emulated.h"

#include <check.h>
#include <string.h>

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
