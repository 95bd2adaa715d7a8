// What all drivers share: their main.
#pragma once

#include <check.h>

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
