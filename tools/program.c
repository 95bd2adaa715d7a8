#include "tools/program.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

// ---- the command line ----

static bt_err
add_set(void *self, const char *pair, bt_why *why)
{
    bt_program_args *args = self;

    if (args->set_count == BT_PROGRAM_SETS_MAX) {
        return bt_fail(why, BT_ERR_TOO_LONG, "more than %d settings", BT_PROGRAM_SETS_MAX);
    }
    args->sets[args->set_count++] = pair;
    return BT_OK;
}

bt_err
bt_program_set_option(void *self, const char *value, bt_why *why)
{
    const bt_program_set *set = self;
    size_t bytes = strlen(set->key) + strlen(value) + 2;
    char *pair = bt_alloc(bytes);
    bt_err err;

    if (pair == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory");
    }
    snprintf(pair, bytes, "%s=%s", set->key, value);
    if ((err = add_set(set->args, pair, why)) != BT_OK) {
        bt_free(pair);
        return err;
    }
    set->args->owned[set->args->owned_count++] = pair;
    return BT_OK;
}

void
bt_program_args_init(bt_program_args *args, bool named)
{
    const bt_arg table[] = {
        {"config", BT_ARG_STRING, &args->config, "FILE", "settings in YAML; options go over them", NULL},
        {"set", BT_ARG_CALL, args, "KEY=VALUE", "any setting; --print-config lists them", add_set},
        {"print-config", BT_ARG_FLAG, &args->print, NULL, "write all settings as YAML and end", NULL},
        {"check-config", BT_ARG_FLAG, &args->check, NULL, "end with 0 if the settings are good, else 2", NULL},
        {"name", BT_ARG_STRING, &args->name, "NAME", "which of the file's nodes; not needed where there is one", NULL},
    };

    *args = (bt_program_args){0};
    for (size_t i = 0; i < (named ? 5 : 4); i++) {
        args->table[i] = table[i];
    }
}

void
bt_program_args_fini(bt_program_args *args)
{
    while (args->owned_count != 0) {
        bt_free(args->owned[--args->owned_count]);
    }
}

int
bt_program_print(bt_buf *out)
{
    bool whole = !out->failed && fwrite(out->data, 1, out->len, stdout) == out->len && fflush(stdout) == 0;

    bt_buf_fini(out);
    return whole ? 0 : 1;
}

int
bt_program_wrong(const char *command, const bt_why *why)
{
    fprintf(stderr, "%s: %s\n", command, why->text);
    return 2;
}

// ---- the loop, and its end ----

static const char *
event(const bt_program *program, const char *what, char out[48])
{
    snprintf(out, 48, "%s-%s", program->event, what);
    return out;
}

static bt_time
turn(void *self, bt_time now)
{
    bt_program *p = self;
    bt_time again = p->turn(p->self, now);

    if (p->draining && p->idle(p->self)) {
        bt_loop_stop(p->loop);
    }
    return again;
}

static void
stop_late(void *self)
{
    bt_program *p = self;
    char name[48];

    bt_log_warn(event(p, "LATE", name), "what ran did not finish in time");
    bt_loop_stop(p->loop);
}

void
bt_program_drain(bt_program *p)
{
    bt_time now = bt_loop_now(p->loop);

    if (p->draining || !p->drain(p->self, now)) {
        bt_loop_stop(p->loop);
        return;
    }
    p->draining = true;
    bt_timer_set(p->loop, &p->deadline, now + p->drain_time);
}

static void
on_signal(void *self, uint32_t events)
{
    bt_program *p = self;
    struct signalfd_siginfo info;
    char name[48];

    (void)events;
    if (read(p->signal_fd, &info, sizeof info) != sizeof info) {
        return;
    }
    bt_log_info(event(p, "DRAIN", name), "signal %u: %s", info.ssi_signo,
                p->draining ? "ending at once" : "finishing what runs");
    bt_program_drain(p);
}

static bt_err
watch_signals(bt_program *p)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL); // before any thread is there: all inherit it
    p->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return p->signal_fd < 0 ? BT_ERR_IO : bt_loop_watch(p->loop, &p->signals, p->signal_fd, EPOLLIN);
}

bt_err
bt_program_open(bt_program *p, bt_why *why)
{
    bt_err err;

    p->started = bt_time_now();
    p->signal_fd = -1;
    p->turning = (bt_turn){.turn = turn, .self = p};
    p->signals = (bt_watch){.ready = on_signal, .self = p};
    p->deadline = (bt_timer){.due = stop_late, .self = p};
    p->exit_code = 0;
    if ((err = bt_loop_open(&p->loop)) != BT_OK || (err = watch_signals(p)) != BT_OK) {
        return bt_fail(why, err, "no loop: %s", bt_err_name(err));
    }
    bt_loop_add_turn(p->loop, &p->turning);
    return BT_OK;
}

void
bt_program_run(bt_program *p)
{
    bt_loop_run(p->loop);
}

void
bt_program_fail(bt_program *p, const bt_why *why)
{
    p->exit_code = bt_program_wrong(p->command, why);
    if (p->loop != NULL) {
        bt_loop_stop(p->loop);
    }
}

void
bt_program_leave(bt_program *p)
{
    p->exit_code = 1;
    bt_loop_stop(p->loop);
}

int
bt_program_close(bt_program *p)
{
    if (p->loop != NULL && p->signal_fd >= 0) {
        close(p->signal_fd);
    }
    bt_loop_close(p->loop);
    p->loop = NULL;
    return p->exit_code;
}

void
bt_program_wake(void *program)
{
    bt_loop_wake(((bt_program *)program)->loop);
}

uint64_t
bt_program_draw_epoch(void)
{
    uint64_t epoch = 0;

    if (getrandom(&epoch, sizeof epoch, 0) != sizeof epoch) {
        epoch = (uint64_t)bt_time_now();
    }
    return epoch | 1;
}
