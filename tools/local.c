// baton local: router and nodes in one process, the same cores and messages as the cluster.
//
//     loop thread      HTTP, the cores; everything but what follows
//     loader           opens the model while the loop answers /health, then ends
//     text workers     parse, render, tokenize (router/text.h)
//     engine thread    runs steps, with the threads of its device; two where prompts are read by other weights (tools/local_nodes.h),
//                      and then a plane thread for each that moves blocks
#include "common/base/log.h"
#include "router/gateway.h"
#include "router/http.h"
#include "tools/commands.h"
#include "tools/local_config.h"
#include "tools/local_nodes.h"
#include "tools/program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bt_local_config config;
    bt_program program;
    bt_router_http *http;
    bt_router_gateway *gateway; // NULL = none
    // The loader's, until `loaded`.
    pthread_t loader;
    atomic_bool loaded;
    bool loader_runs, opened, serves;
    bool broken; // a device
    bt_err load_err;
    bt_why load_why;
    bt_local_nodes nodes;
    // Then:
    bt_router_edge *edge;
} local;

static void
write_node_metrics(void *self, bt_buf *out, const char *labels)
{
    const local *l = self;

    if (l->opened) {
        bt_local_nodes_metrics(&l->nodes, out, labels);
    }
    bt_router_gateway_write_metrics(l->gateway, out, labels);
}

// ---- loading ----

static void *
load(void *self)
{
    local *l = self;
    const bt_local_config *c = &l->config;
    bt_local_nodes_options options = {
        .engine = c->engine,
        .model = c->model,
        .prompt_weights = c->prompt_weights == 0 ? BT_LOCAL_ONE_WEIGHTS : c->prompt_weights - 1,
        .queue = c->http.queue,
        .wake = bt_program_wake,
        .wake_arg = &l->program,
    };

    l->load_err = bt_local_nodes_load(&l->nodes, &options, &l->load_why);
    atomic_store(&l->loaded, true);
    bt_loop_wake(l->program.loop);
    return NULL;
}

static bt_err
open_router(local *l, bt_why *why)
{
    bt_router_callbacks callbacks = bt_router_http_callbacks(l->http);
    bt_router_limits limits = {
        .requests_max = l->config.http.queue,
        .context = bt_engine_context(l->nodes.decoding.engine),
        .vocab = bt_engine_model(l->nodes.decoding.engine)->config.vocab,
        .epoch = bt_program_draw_epoch(),
        .two_weights = l->nodes.prefill != NULL,
    };

    return bt_router_edge_open(&l->edge, &limits, l->nodes.router_link, &callbacks, why);
}

static bt_err
open_rest(local *l, bt_why *why)
{
    bt_err err;

    if (bt_engine_model(l->nodes.decoding.engine)->tokenizer == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: has no tokenizer, so it cannot be served as text",
                       l->config.model);
    }
    err = bt_local_nodes_open(&l->nodes, why);
    return err == BT_OK ? open_router(l, why) : err;
}

static void
take_model(local *l)
{
    pthread_join(l->loader, NULL);
    l->loader_runs = false;
    if (l->load_err == BT_OK) {
        l->load_err = open_rest(l, &l->load_why);
    }
    if (l->load_err != BT_OK) {
        bt_program_fail(&l->program, &l->load_why);
        return;
    }
    l->opened = true;
}

static void
begin_to_serve(local *l, bt_time now)
{
    const bt_engine *engine = l->nodes.decoding.engine;
    bt_why why = {""};
    char name[128];

    bt_settings_model_name(l->config.model, name);
    if (bt_router_http_set_model(l->http, l->edge, bt_engine_model(engine)->tokenizer, bt_engine_context(engine), name,
                                 &why) != BT_OK) {
        bt_program_fail(&l->program, &why);
        return;
    }
    l->serves = true;
    bt_log_info("LOCAL-READY", "model %s on %.*s:%u, %lld ms after the start", l->config.model,
                (int)(strrchr(l->config.listen, ':') - l->config.listen), l->config.listen,
                bt_router_http_port(l->http), (long long)((now - l->program.started) / BT_MILLISECOND));
}

// ---- the loop ----

static bt_time
turn(void *self, bt_time now)
{
    local *l = self;
    bt_time router = BT_TIME_NEVER, node = BT_TIME_NEVER;

    if (l->loader_runs && atomic_load(&l->loaded)) {
        take_model(l);
    }
    if (l->opened) {
        // Each may have written to the other: two rounds carry a question and its answer, more waits for the next turn.
        for (int i = 0; i < 2; i++) {
            router = bt_router_edge_turn(l->edge, now);
            node = bt_local_nodes_turn(&l->nodes, now);
        }
        router = bt_link_pending(l->nodes.router_link) ? now : router;
        if (!l->serves && bt_local_nodes_ready(&l->nodes)) {
            begin_to_serve(l, now);
        }
    }
    if (l->opened && !l->broken && bt_local_nodes_broken(&l->nodes)) {
        bt_log_error("DEVICE-LOST",
                     "the device is of no use any more: no request can be answered, and this program ends");
        l->broken = true;
        l->program.exit_code = 1;
        bt_program_drain(&l->program);
    }
    return router < node ? router : node;
}

static bool
drain(void *self, bt_time now)
{
    local *l = self;

    if (l->serves) {
        bt_router_edge_drain(l->edge, now);
        bt_router_http_drain(l->http);
        bt_router_gateway_drain(l->gateway);
    }
    return l->serves;
}

static bool
idle(void *self)
{
    const local *l = self;

    return bt_router_http_idle(l->http) && bt_router_gateway_idle(l->gateway);
}

static bt_err
open_gateway(local *l, bt_why *why)
{
    bt_router_gateway_options options =
        bt_http_settings_gateway(&l->config.http, l->config.gateway, l->config.cert_key);

    return l->config.gateway[0] == 0
               ? BT_OK
               : bt_router_gateway_open(&l->gateway, l->program.loop, bt_router_http_calls(l->http), &options, why);
}

static bt_err
open_local(local *l, bt_why *why)
{
    bt_router_http_options options = bt_http_settings_options(&l->config.http, l->config.listen, l->config.model_name);
    bt_err err;

    l->program = (bt_program){.command = "baton local",
                              .event = "LOCAL",
                              .self = l,
                              .turn = turn,
                              .drain = drain,
                              .idle = idle,
                              .drain_time = l->config.http.drain_time};
    options.more_metrics = write_node_metrics;
    options.more_self = l;
    if ((err = bt_program_open(&l->program, why)) != BT_OK ||
        (err = bt_router_http_open(&l->http, l->program.loop, &options, why)) != BT_OK ||
        (err = open_gateway(l, why)) != BT_OK) {
        return err;
    }
    if (pthread_create(&l->loader, NULL, load, l) != 0) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no thread to load the model");
    }
    l->loader_runs = true;
    return BT_OK;
}

static void
close_local(local *l)
{
    bt_router_gateway_close(l->gateway);
    bt_router_http_close(l->http);
    bt_router_edge_close(l->edge);
    if (l->loader_runs || l->broken) {
        // A load cannot be interrupted, a broken device may not even let go of its memory, and there is nothing to lose.
        _exit(l->program.exit_code);
    }
    bt_local_nodes_close(&l->nodes);
}

// ---- the command line ----

static int
print_config(const local *l)
{
    bt_buf out;

    bt_buf_init(&out, 1 << 20);
    bt_config_print(bt_local_settings, &l->config, &out);
    return bt_program_print(&out);
}

static int
serve(local *l)
{
    bt_why why = {""};

    bt_log_set_level((bt_log_level)l->config.log_level);
    if (open_local(l, &why) != BT_OK) {
        bt_program_fail(&l->program, &why);
    } else {
        bt_program_run(&l->program);
    }
    close_local(l);
    return bt_program_close(&l->program);
}

static bt_err
read_settings(bt_local_config *c, const bt_program_args *args, bt_why *why)
{
    const char *key;
    bt_err err = BT_OK;

    bt_config_init(bt_local_settings, c);
    if (args->config != NULL) {
        err = bt_config_read_file(bt_local_settings, c, args->config, why);
    }
    for (uint32_t i = 0; i < args->set_count && err == BT_OK; i++) {
        err = bt_config_set_pair(bt_local_settings, c, args->sets[i], why);
    }
    if (err == BT_OK && c->http.auth_file[0] != 0) {
        err = bt_http_settings_read_keys(&c->http, why);
    }
    if (err != BT_OK || (err = bt_engine_settings_check(&c->engine, &key, why)) != BT_OK ||
        (err = bt_http_settings_check(&c->http, &key, why)) != BT_OK) {
        return err;
    }
    return c->model[0] != 0 || args->check || args->print ? BT_OK
                                                          : bt_fail(why, BT_ERR_INVALID, "which model? --model PATH");
}

int
bt_local_main(int argc, char **argv)
{
    static local l; // large, and there is one
    static bt_program_args common;
    static bt_program_set model = {&common, "model.path"}, listen = {&common, "listen"}, threads = {&common, "threads"},
                          device = {&common, "device"}, kv = {&common, "kv.format"}, weights = {&common, "weights"};
    static const bt_arg args[] = {
        {"model", BT_ARG_CALL, &model, "PATH", "a .gguf file or a Hugging Face directory", bt_program_set_option},
        {"listen", BT_ARG_CALL, &listen, "HOST:PORT", "where to serve [127.0.0.1:8080]", bt_program_set_option},
        {"device", BT_ARG_CALL, &device, "WHICH", "cpu or cuda:N [cpu]", bt_program_set_option},
        {"threads", BT_ARG_CALL, &threads, "N", "threads of the engine, 0 = all cores [0]", bt_program_set_option},
        {"kv", BT_ARG_CALL, &kv, "FORMAT", "KV cache: int8, f16 or f32 [int8]", bt_program_set_option},
        {"weights", BT_ARG_CALL, &weights, "HOW", "keep, w8, q4 or exact [keep]", bt_program_set_option},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    static const bt_args_spec spec = {
        .usage = "baton local --model PATH [options]",
        .about =
            "Serves a model on this machine over the OpenAI API, in one process. /ready answers 200 once the model\n"
            "is loaded; SIGTERM or Ctrl-C finishes what runs and ends.",
        .example = "  baton local --model model.gguf --listen 127.0.0.1:8080 --set engine.max_sequences=8",
        .args = args,
        .more = common.table,
    };
    bt_why why = {""};
    bt_err err;
    int code;

    bt_program_args_init(&common, false);
    if ((code = bt_args_parse(&spec, argc, argv, NULL, NULL)) < 0) {
        err = read_settings(&l.config, &common, &why);
        code = err != BT_OK   ? bt_program_wrong("baton local", &why)
               : common.print ? print_config(&l)
               : common.check ? 0
                              : serve(&l);
    }
    bt_program_args_fini(&common);
    return code;
}
