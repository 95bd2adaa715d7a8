// Commands whose files have not landed yet say so. Deleted with the last of them.
#include "tools/commands.h"

#include <stdio.h>

#define MISSING(function)                                                                                              \
    __attribute__((weak)) int function(int argc, char **argv)                                                          \
    {                                                                                                                  \
        (void)argc;                                                                                                    \
        fprintf(stderr, "baton %s: not built in yet\n", argv[0]);                                                      \
        return 1;                                                                                                      \
    }

MISSING(bt_inspect_main)
MISSING(bt_eval_main)
MISSING(bt_bench_engine_main)
MISSING(bt_bench_serve_main)
MISSING(bt_local_main)
