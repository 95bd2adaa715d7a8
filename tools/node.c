#include "tools/node.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tools/commands.h"

#include <string.h>
#include <unistd.h>

// ---- loading ----

static bt_err
load_machine(bt_node_program *p, bt_why *why)
{
    const bt_node_config *c = p->config;
    bt_machine_options options = {
        .engine = bt_engine_settings_options(&c->engine, c->model),
        .direct = bt_cluster_direct(&p->cluster, c),
        .transfer = {.epoch = p->epoch,
                     .transport = strcmp(c->transport, "ucx") == 0 ? "ucx" : NULL,
                     .path = (bt_transfer_path)c->transfer_path,
                     .listen = c->transfer[0] != 0 ? c->transfer : NULL},
        .plane = {.wake = bt_program_wake, .wake_arg = &p->program},
    };
    bt_err err = p->kind->prepare(p, &options, why);

    return err == BT_OK ? bt_machine_load(&p->machine, &options, why) : err;
}

static void *
load(void *self)
{
    bt_node_program *p = self;

    p->load_err = load_machine(p, &p->load_why);
    atomic_store(&p->loaded, true);
    bt_loop_wake(p->program.loop);
    return NULL;
}

static bt_err
open_link(bt_node_program *p, bt_why *why)
{
    bt_nng_link_options options = bt_cluster_link(&p->cluster, &p->addresses);

    options.seed = p->epoch;
    return bt_nng_link_open(&p->link, p->program.loop, &options, why);
}

static void
take_model(bt_node_program *p, bt_time now)
{
    bt_err err;

    pthread_join(p->loader, NULL);
    p->loader_runs = false;
    if ((err = p->load_err) == BT_OK && (err = bt_machine_start(&p->machine, &p->load_why)) == BT_OK &&
        (err = open_link(p, &p->load_why)) == BT_OK) {
        err = p->kind->open(p, &p->load_why);
    }
    if (err != BT_OK) {
        bt_program_fail(&p->program, &p->load_why);
        return;
    }
    p->opened = true;
    bt_log_write(BT_LOG_INFO, p->kind->role == BT_NODE_DECODE ? "DECODE-READY" : "PREFILL-READY",
                 "%s: model %s, %u blocks, link %s, %lld ms after the start", p->config->name, p->config->model,
                 bt_engine_kv_blocks(p->machine.engine), p->config->link_listen,
                 (long long)((now - p->program.started) / BT_MILLISECOND));
}

// ---- the loop ----

static bt_time
turn(void *self, bt_time now)
{
    bt_node_program *p = self;
    bt_time next;

    if (p->loader_runs && atomic_load(&p->loaded)) {
        take_model(p, now);
    }
    if (!p->opened) {
        return BT_TIME_NEVER;
    }
    next = p->kind->turn(p, now);
    if (p->kind->broken(p) && !p->broken) {
        p->broken = true;
        bt_log_error("DEVICE-LOST", "%s leaves: its device is of no use any more; other nodes take over",
                     p->config->name);
        bt_program_leave(&p->program);
    }
    return next;
}

static bool
drain(void *self, bt_time now)
{
    bt_node_program *p = self;

    if (p->opened) {
        p->kind->drain(p, now);
    }
    return p->opened;
}

// What this node said last has to be read before its connections close.
static bool
idle(void *self)
{
    const bt_node_program *p = self;

    return p->kind->idle(p) && bt_nng_link_quiet(p->link);
}

static bt_err
open_program(bt_node_program *p, bt_why *why)
{
    bt_err err;

    p->program = (bt_program){.command = p->kind->command,
                              .event = p->kind->event,
                              .self = p,
                              .turn = turn,
                              .drain = drain,
                              .idle = idle,
                              .drain_time = p->config->drain_time};
    p->epoch = bt_program_draw_epoch();
    if ((err = bt_program_open(&p->program, why)) != BT_OK || (err = bt_node_status_open(p, why)) != BT_OK ||
        (err = open_link(p, why)) != BT_OK) {
        return err;
    }
    bt_link_close(p->link); // it was to be tried only
    p->link = NULL;
    if (pthread_create(&p->loader, NULL, load, p) != 0) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no thread to load the model");
    }
    p->loader_runs = true;
    return BT_OK;
}

static int
close_program(bt_node_program *p)
{
    bt_http_close(p->status);
    if (p->broken) {
        bt_link_close(p->link);
        _exit(p->program.exit_code); // a device that is lost may not even let go of its memory
    }
    p->kind->close(p);
    bt_link_close(p->link);
    if (p->loader_runs) {
        _exit(p->program.exit_code); // a load cannot be interrupted, and there is nothing to lose
    }
    bt_machine_close(&p->machine);
    return bt_program_close(&p->program);
}

static int
serve(bt_node_program *p)
{
    bt_why why = {""};

    bt_log_set_level((bt_log_level)p->config->log_level);
    if (open_program(p, &why) != BT_OK) {
        p->program.exit_code = bt_program_wrong(p->kind->command, &why);
    } else {
        bt_program_run(&p->program);
    }
    return close_program(p);
}

int
bt_node_main(const bt_node_kind *kind, int argc, char **argv)
{
    static bt_node_program p; // large, and there is one
    static bt_program_args args;
    static const bt_arg own[] = {{NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL}};
    uint32_t positional = 0;
    int code;

    bt_program_args_init(&args, true);
    code = bt_args_parse(
        &(bt_args_spec){
            .usage = kind->usage, .about = kind->about, .example = kind->example, .args = own, .more = args.table},
        argc, argv, NULL, &positional);
    p.kind = kind;
    if (code < 0 && (code = bt_cluster_begin(&p.cluster, kind->command, kind->role, &args)) < 0) {
        p.config = bt_cluster_node(&p.cluster);
        code = serve(&p);
    }
    bt_program_args_fini(&args);
    return code;
}
