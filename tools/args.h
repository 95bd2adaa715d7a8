// Command lines by a table: long options, their help, and one positional list. Shared by all commands of `baton`.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    BT_ARG_FLAG,   // bool: present or not
    BT_ARG_STRING, // const char *
    BT_ARG_U32,    // uint32_t
    BT_ARG_U64,    // uint64_t
    BT_ARG_FLOAT,  // float
    BT_ARG_CALL,   // bt_err (*)(void *target, const char *value, bt_why *): --set and the like; may repeat
} bt_arg_kind;

typedef struct {
    const char *name; // without the dashes
    bt_arg_kind kind;
    void *target;      // what the kind says; holds the default before parsing
    const char *value; // how help shows the value, as in "N"; NULL for flags
    const char *help;
    bt_err (*call)(void *target, const char *value, bt_why *why);
} bt_arg;

typedef struct {
    const char *usage;   // "baton run MODEL [options]"
    const char *about;   // one paragraph
    const char *example; // a command or two, NULL = none
    const bt_arg *args;  // ended by name NULL
    const bt_arg *more;  // a second table (shared options), may be NULL
    uint32_t positional_min, positional_max;
} bt_args_spec;

// Fills the targets and `positional` (room for positional_max). Returns -1 to go on, or the exit code: 0 after --help was
// printed to stdout, 2 after a wrong use was named on stderr.
int bt_args_parse(const bt_args_spec *spec, int argc, char **argv, const char **positional, uint32_t *positional_count);
