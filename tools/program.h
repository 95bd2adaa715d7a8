// What every serving program does the same way (local, router, prefill, decode): the options of its command line, its loop, signals,
// the drain and its end.
//
//     static bt_program_args args;
//     bt_program_args_init(&args, true);                    adds --config, --set, --print-config, --check-config, --name to a table
//     bt_args_parse(&(bt_args_spec){…, .args = own, .more = args.table}, …)     own options may be BT_PROGRAM_SET rows
//     … read the settings by args.config and args.sets; bt_program_print(…) for args.print; 0 for args.check; args_fini …
//
//     bt_program program = {.command = "baton router", .event = "ROUTER", .self = r, .turn = turn, .drain = drain, .idle = idle};
//     bt_program_open(&program, why);                       first of all: signals are blocked before any thread is there
//     … open the rest on program.loop …
//     bt_program_run(&program);                             until drained, or bt_program_fail
//     … close the rest …
//     return bt_program_close(&program);                    the exit code
//
// SIGTERM and SIGINT begin the drain: `drain` is called, then `idle` after every turn until it says true or drain_time is over. A second
// signal ends at once, and so does the first where `drain` says that there is nothing to finish. All on the loop's thread.
#pragma once

#include "common/base/buf.h"
#include "common/net/loop.h"
#include "tools/args.h"

#define BT_PROGRAM_SETS_MAX 64

typedef struct {
    const char *config, *name;             // --config FILE, --name NAME; NULL = not given
    bool print, check;                     // --print-config, --check-config
    const char *sets[BT_PROGRAM_SETS_MAX]; // [set_count] key=value, in the order of the command line
    uint32_t set_count;
    bt_arg table[6]; // for bt_args_spec.more
    char *owned[BT_PROGRAM_SETS_MAX];
    uint32_t owned_count;
} bt_program_args;

// `args` must stay where it is.
void bt_program_args_init(bt_program_args *args, bool named);
void bt_program_args_fini(bt_program_args *args);

// An own option that is a setting's short name: {"listen", BT_ARG_CALL, &(bt_program_set){&args, "listen"}, "HOST:PORT", "…",
// bt_program_set_option}.
typedef struct {
    bt_program_args *args;
    const char *key;
} bt_program_set;
bt_err bt_program_set_option(void *set, const char *value, bt_why *why);

// Writes what `out` holds to stdout, ends it, and returns the exit code.
int bt_program_print(bt_buf *out);
// "COMMAND: why" on stderr; returns 2.
int bt_program_wrong(const char *command, const bt_why *why);

typedef struct {
    const char *command, *event; // "baton router"; "ROUTER": what its log events begin with
    void *self;
    bt_time (*turn)(void *self, bt_time now); // does what is due; when it wants to be called again
    bool (*drain)(void *self, bt_time now);   // takes nothing new from now on; false = nothing runs, end now
    bool (*idle)(void *self);                 // what ran is done
    bt_time drain_time;
    // The program's own:
    bt_loop *loop;
    bt_time started;
    bt_turn turning;
    bt_watch signals;
    int signal_fd;
    bt_timer deadline;
    bool draining;
    int exit_code;
} bt_program;

// `turn` runs before the turns of whatever is opened on the loop later, HTTP's for one, so that its answers go out in the same round.
bt_err bt_program_open(bt_program *program, bt_why *why);
void bt_program_run(bt_program *program);
// Exit code 2 and the words on stderr; ends the run: what could not be opened, and what was found wrong later (a model that cannot be
// loaded).
void bt_program_fail(bt_program *program, const bt_why *why);
// As on a signal.
void bt_program_drain(bt_program *program);
// Exit code 1, and ends the run: what runs cannot go on.
void bt_program_leave(bt_program *program);
int bt_program_close(bt_program *program);
// Any thread: the loop takes a turn. For options that have a `wake` and its `wake_arg`, which is the program.
void bt_program_wake(void *program);

uint64_t bt_program_draw_epoch(void); // of one start of a program, never 0
