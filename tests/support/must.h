// An assertion for what is asked a million times a run: check's own writes a line to a pipe each time it holds.
#pragma once

#include <check.h>

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("%s", #condition);                                                                            \
    } while (0)
