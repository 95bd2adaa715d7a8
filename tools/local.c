// baton local: router and decode node in one process, the same cores and messages as the cluster.
//
//     loop thread      HTTP, router core, decode core; everything but what follows
//     loader           opens the model while the loop answers /health, then ends
//     text workers     parse, render, tokenize (router/text.h)
//     engine thread    runs steps (decode-node/main.h), with the threads of its device
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/loopback.h"
#include "decode-node/main.h"
#include "router/http.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/local_config.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define LINK_BYTES (32u << 20)

typedef struct {
    bt_local_config config;
    bt_loop *loop;
    bt_router_http *http;
    bt_watch signals;
    int signal_fd;
    bt_turn turn;
    bt_timer deadline; // of a drain
    bool draining;
    int exit_code;
    // The loader's, until `loaded`.
    pthread_t loader;
    atomic_bool loaded;
    bool loader_runs, opened;
    bt_err load_err;
    bt_why load_why;
    bt_time started;
    bt_engine *engine;
    // Then:
    bt_link *router_link, *node_link;
    bt_decode_node *node;
    bt_router_edge *edge;
} local;

// ---- what the node has to tell ----

typedef struct {
    bt_decode_stats stats;
    double blocks, blocks_free, blocks_cached, usage, leak, decoding, prefilling, batch;
} node_metrics;

#define NODE(field) offsetof(node_metrics, field)
#define STAT(field) (offsetof(node_metrics, stats) + offsetof(bt_decode_stats, field))

static const bt_metric node_table[] = {
    {BT_METRIC_GAUGE, NODE(blocks), "baton:kv_blocks", "Blocks of the KV pool.", NULL, NULL},
    {BT_METRIC_GAUGE, NODE(blocks_free), "baton:kv_blocks_free", "On no table and in no cache.", NULL, NULL},
    {BT_METRIC_GAUGE, NODE(blocks_cached), "baton:kv_blocks_cached", "In the prefix cache and unheld.", NULL, NULL},
    {BT_METRIC_GAUGE, NODE(usage), "baton:kv_cache_usage_perc", "Share of the blocks that sequences hold, 0 to 1.",
     NULL, NULL},
    {BT_METRIC_GAUGE, NODE(leak), "baton:kv_leak_blocks", "Blocks that nobody accounts for; always 0.", NULL, NULL},
    {BT_METRIC_GAUGE, NODE(decoding), "baton:sequences_decoding", "Sequences that are being written.", NULL, NULL},
    {BT_METRIC_GAUGE, NODE(prefilling), "baton:sequences_prefilling", "Sequences whose prompt is being read.", NULL,
     NULL},
    {BT_METRIC_GAUGE, NODE(batch), "baton:batch_fill", "Sequences a step, mean since start.", NULL, NULL},
    {BT_METRIC_COUNTER, STAT(prompt_tokens), "baton:prefix_cache_misses_total", "Prompt tokens that were computed.",
     NULL, NULL},
    {BT_METRIC_COUNTER, STAT(cached_tokens), "baton:prefix_cache_hits_total", "Prompt tokens that were found.", NULL,
     NULL},
    {BT_METRIC_COUNTER, STAT(steps), "baton:engine_steps_total", "Steps.", NULL, NULL},
    {BT_METRIC_COUNTER, STAT(step_tokens), "baton:engine_tokens_total", "Tokens of all steps.", NULL, NULL},
    {BT_METRIC_SECONDS_TOTAL, STAT(step_time), "baton:engine_seconds_total", "Time in steps.", NULL, NULL},
    {BT_METRIC_COUNTER, STAT(dropped_tokens), "baton:engine_dropped_tokens_total",
     "Drawn for sequences that had ended meanwhile.", NULL, NULL},
    {BT_METRIC_COUNTER, STAT(failed_steps), "baton:engine_failed_steps_total", "Steps that failed.", NULL, NULL},
    {BT_METRIC_COUNTER, STAT(aborted), "baton:node_aborted_total", "Sequences that were cancelled.", NULL, NULL},
    {BT_METRIC_COUNTER, STAT(expired), "baton:node_expired_total", "Sequences whose lease ran out.", NULL, NULL},
    {0},
};

static void
write_node_metrics(void *self, bt_buf *out, const char *labels)
{
    local *l = self;
    node_metrics m = {0};

    if (l->node == NULL) {
        return;
    }
    bt_decode_node_stats(l->node, &m.stats);
    m.blocks = m.stats.blocks;
    m.blocks_free = m.stats.blocks_free;
    m.blocks_cached = m.stats.blocks_cached;
    m.usage = m.stats.blocks != 0 ? 1 - (m.blocks_free + m.blocks_cached) / m.blocks : 0;
    m.leak = (double)m.stats.leak;
    m.decoding = m.stats.decoding;
    m.prefilling = m.stats.prefilling;
    m.batch = m.stats.steps != 0 ? (double)m.stats.step_items / (double)m.stats.steps : 0;
    bt_metrics_write(out, node_table, &m, labels);
}

// ---- loading ----

static void *
load(void *self)
{
    local *l = self;
    const bt_local_config *c = &l->config;
    bt_engine_options options = {
        .model = {.path = c->model,
                  .weights = (bt_load_weights)c->weights,
                  .equalise = c->kv_format == BT_KV_INT8 && c->weights != BT_LOAD_EXACT},
        .device = {.kind = BT_DEVICE_CPU, .threads = c->threads, .isa = bt_local_isas[c->isa]},
        .kv_format = (bt_kv_format)c->kv_format,
        .kv_block_tokens = c->kv_block_tokens,
        .kv_blocks = c->kv_blocks,
        .max_sequences = c->max_sequences,
        .chunk_tokens = c->chunk_tokens,
        .context = c->context,
        .memory_max = c->memory,
    };

    l->load_err = bt_engine_open(&l->engine, &options, &l->load_why);
    atomic_store(&l->loaded, true);
    bt_loop_wake(l->loop);
    return NULL;
}

static void
wake_loop(void *self)
{
    bt_loop_wake(self);
}

static uint64_t
draw_epoch(void)
{
    uint64_t epoch = 0;

    if (getrandom(&epoch, sizeof epoch, 0) != sizeof epoch) {
        epoch = (uint64_t)bt_time_now();
    }
    return epoch | 1;
}

static bt_err
open_node(local *l, bt_why *why)
{
    bt_decode_node_options options = {
        .name = "local",
        .epoch = draw_epoch(),
        .queue_max = l->config.queue,
        .max_sequences = l->config.max_sequences,
        .chunk_tokens = l->config.chunk_tokens,
        .prefill_share = (float)l->config.prefill_share,
        .wake = wake_loop,
        .wake_arg = l->loop,
    };

    return bt_decode_node_open(&l->node, &options, l->engine, l->node_link, NULL, why);
}

static bt_err
open_router(local *l, bt_why *why)
{
    bt_router_callbacks callbacks = bt_router_http_callbacks(l->http);
    bt_router_limits limits = {
        .requests_max = l->config.queue,
        .context = bt_engine_context(l->engine),
        .vocab = bt_engine_model(l->engine)->config.vocab,
        .epoch = draw_epoch(),
    };

    return bt_router_edge_open(&l->edge, &limits, l->router_link, &callbacks, why);
}

// The file's name without folder and .gguf.
static void
name_of(const char *path, char out[128])
{
    char copy[1024], *slash;
    size_t len;

    snprintf(copy, sizeof copy, "%s", path);
    for (len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--) {
        copy[len - 1] = 0;
    }
    if (len > 5 && strcasecmp(copy + len - 5, ".gguf") == 0) {
        copy[len - 5] = 0;
    }
    slash = strrchr(copy, '/');
    snprintf(out, 128, "%.127s", slash != NULL ? slash + 1 : copy);
}

static bt_err
open_rest(local *l, bt_why *why)
{
    const bt_model *model = bt_engine_model(l->engine);
    char name[128];
    bt_err err;

    if (model->tokenizer == NULL) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "%s: has no tokenizer, so it cannot be served as text",
                       l->config.model);
    }
    name_of(l->config.model, name);
    if ((err = bt_loopback_open(&l->router_link, &l->node_link, LINK_BYTES)) != BT_OK) {
        return bt_fail(why, err, "no memory for the link between router and node");
    }
    if ((err = open_node(l, why)) != BT_OK || (err = open_router(l, why)) != BT_OK) {
        return err;
    }
    return bt_router_http_set_model(l->http, l->edge, model->tokenizer, bt_engine_context(l->engine), name, why);
}

static void
take_model(local *l, bt_time now)
{
    pthread_join(l->loader, NULL);
    l->loader_runs = false;
    if (l->load_err == BT_OK) {
        l->load_err = open_rest(l, &l->load_why);
    }
    if (l->load_err != BT_OK) {
        fprintf(stderr, "baton local: %s\n", l->load_why.text);
        l->exit_code = 2;
        bt_loop_stop(l->loop);
        return;
    }
    l->opened = true;
    bt_log_info("LOCAL-READY", "model %s on %.*s:%u, %lld ms after the start", l->config.model,
                (int)(strrchr(l->config.listen, ':') - l->config.listen), l->config.listen,
                bt_router_http_port(l->http), (long long)((now - l->started) / BT_MILLISECOND));
}

// ---- the loop ----

static bt_time
turn(void *self, bt_time now)
{
    local *l = self;
    bt_time router = BT_TIME_NEVER, node = BT_TIME_NEVER;

    if (l->loader_runs && atomic_load(&l->loaded)) {
        take_model(l, now);
    }
    if (l->opened) {
        // Each may have written to the other: two rounds carry a question and its answer, more waits for the next turn.
        for (int i = 0; i < 2; i++) {
            router = bt_router_edge_turn(l->edge, now);
            node = bt_decode_node_turn(l->node, now);
        }
        router = bt_link_pending(l->router_link) ? now : router;
    }
    if (l->draining && bt_router_http_idle(l->http)) {
        bt_loop_stop(l->loop);
    }
    return router < node ? router : node;
}

static void
stop_late(void *self)
{
    local *l = self;

    bt_log_warn("LOCAL-LATE", "some requests did not finish in time");
    bt_loop_stop(l->loop);
}

static void
on_signal(void *self, uint32_t events)
{
    local *l = self;
    struct signalfd_siginfo info;
    bt_time now = bt_loop_now(l->loop);

    (void)events;
    if (read(l->signal_fd, &info, sizeof info) != sizeof info) {
        return;
    }
    if (l->draining || !l->opened) {
        bt_loop_stop(l->loop);
        return;
    }
    bt_log_info("LOCAL-DRAIN", "signal %u: finishing what runs", info.ssi_signo);
    l->draining = true;
    bt_router_edge_drain(l->edge, now);
    bt_router_http_drain(l->http);
    bt_timer_set(l->loop, &l->deadline, now + l->config.drain_time);
}

static bt_err
watch_signals(local *l)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL); // before any thread is there: all inherit it
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    l->signals = (bt_watch){.ready = on_signal, .self = l};
    return l->signal_fd < 0 ? BT_ERR_IO : bt_loop_watch(l->loop, &l->signals, l->signal_fd, EPOLLIN);
}

static bt_router_http_options
http_options(local *l)
{
    const bt_local_config *c = &l->config;
    bt_router_http_options options = {
        .http = {.listen = c->listen,
                 .connections_max = c->connections,
                 .connections_each_max = c->connections_each,
                 .header_bytes_max = c->header_bytes,
                 .body_bytes_max = c->body_bytes,
                 .body_bytes_total_max = c->body_bytes_total,
                 .out_bytes_max = c->out_bytes,
                 .header_time_max = c->header_time,
                 .body_time_max = c->body_time,
                 .idle_time_max = c->idle_time,
                 .stall_time_max = c->stall_time},
        .calls_max = c->calls,
        .choices_max = c->choices,
        .answers_max = c->queue,
        .text_workers = c->text_workers,
        .request_time_max = c->request_time,
        .keys = &l->config.keys,
        .more_metrics = write_node_metrics,
        .more_self = l,
    };

    memcpy(options.model, c->model_name, sizeof options.model);
    return options;
}

static bt_err
open_local(local *l, bt_why *why)
{
    bt_router_http_options options;
    bt_err err;

    l->started = bt_time_now();
    l->signal_fd = -1;
    l->turn = (bt_turn){.turn = turn, .self = l};
    l->deadline = (bt_timer){.due = stop_late, .self = l};
    if ((err = bt_loop_open(&l->loop)) != BT_OK || (err = watch_signals(l)) != BT_OK) {
        return bt_fail(why, err, "no loop: %s", bt_err_name(err));
    }
    bt_loop_add_turn(l->loop, &l->turn); // before HTTP's, so that its answers go out in the same turn
    options = http_options(l);
    if ((err = bt_router_http_open(&l->http, l->loop, &options, why)) != BT_OK) {
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
    bt_router_http_close(l->http);
    bt_router_edge_close(l->edge);
    bt_decode_node_close(l->node);
    bt_link_close(l->router_link);
    bt_link_close(l->node_link);
    if (l->loader_runs) {
        _exit(l->exit_code); // a load cannot be interrupted, and there is nothing to lose
    }
    bt_engine_close(l->engine);
    if (l->signal_fd >= 0) {
        close(l->signal_fd);
    }
    bt_loop_close(l->loop);
}

// ---- the command line ----

typedef struct {
    local *l;
    const char *key; // NULL: the value is a pair
} target;

static bt_err
set_option(void *self, const char *value, bt_why *why)
{
    target *t = self;

    return t->key != NULL ? bt_config_set(bt_local_settings, &t->l->config, t->key, bt_str_of(value), why)
                          : bt_config_set_pair(bt_local_settings, &t->l->config, value, why);
}

// The file comes first, wherever it stands, so that options change what it says.
static bt_err
read_file(local *l, int argc, char **argv, bt_why *why)
{
    bt_err err = BT_OK;

    for (int i = 1; i < argc && err == BT_OK; i++) {
        const char *path = strncmp(argv[i], "--config=", 9) == 0              ? argv[i] + 9
                           : strcmp(argv[i], "--config") == 0 && i + 1 < argc ? argv[i + 1]
                                                                              : NULL;

        err = path != NULL ? bt_config_read_file(bt_local_settings, &l->config, path, why) : BT_OK;
    }
    return err;
}

static int
wrong_use(const bt_why *why)
{
    fprintf(stderr, "baton local: %s\n", why->text);
    return 2;
}

static int
print_config(const local *l)
{
    bt_buf out;
    size_t put;

    bt_buf_init(&out, 1 << 20);
    bt_config_print(bt_local_settings, &l->config, &out);
    put = fwrite(out.data, 1, out.len, stdout);
    bt_buf_fini(&out);
    return put == 0;
}

static int
serve(local *l)
{
    bt_why why = {""};

    bt_log_set_level((bt_log_level)l->config.log_level);
    if (open_local(l, &why) != BT_OK) {
        l->exit_code = wrong_use(&why);
    } else {
        bt_loop_run(l->loop);
    }
    close_local(l);
    return l->exit_code;
}

// What holds between settings, and what a range cannot say.
static bt_err
check_settings(const bt_local_config *c, bt_why *why)
{
    if (c->chunk_tokens < c->max_sequences) {
        return bt_fail(why, BT_ERR_INVALID, "engine.chunk_tokens: %u, fewer than engine.max_sequences: %u",
                       c->chunk_tokens, c->max_sequences);
    }
    if (c->kv_block_tokens != 16 && c->kv_block_tokens != 32 && c->kv_block_tokens != 64) {
        return bt_fail(why, BT_ERR_INVALID, "kv.block_tokens: %u is none of 16, 32, 64", c->kv_block_tokens);
    }
    if (c->queue < c->choices) {
        return bt_fail(why, BT_ERR_INVALID, "http.queue: %u, fewer than the http.choices: %u of one request", c->queue,
                       c->choices);
    }
    return BT_OK;
}

int
bt_local_main(int argc, char **argv)
{
    static local l; // large, and there is one
    static target model = {&l, "model.path"}, listen = {&l, "listen"}, threads = {&l, "threads"},
                  kv = {&l, "kv.format"}, weights = {&l, "weights"}, pair = {&l, NULL};
    static const char *config;
    static bool print, check;
    static const bt_arg args[] = {
        {"model", BT_ARG_CALL, &model, "PATH", "a .gguf file or a Hugging Face directory", set_option},
        {"listen", BT_ARG_CALL, &listen, "HOST:PORT", "where to serve [127.0.0.1:8080]", set_option},
        {"threads", BT_ARG_CALL, &threads, "N", "threads of the engine, 0 = all cores [0]", set_option},
        {"kv", BT_ARG_CALL, &kv, "FORMAT", "KV cache: int8, f16 or f32 [int8]", set_option},
        {"weights", BT_ARG_CALL, &weights, "HOW", "keep, w8, q4 or exact [keep]", set_option},
        {"config", BT_ARG_STRING, &config, "FILE", "settings in YAML; options here go over them", NULL},
        {"set", BT_ARG_CALL, &pair, "KEY=VALUE", "any setting; --print-config lists them", set_option},
        {"print-config", BT_ARG_FLAG, &print, NULL, "write all settings as YAML and end", NULL},
        {"check-config", BT_ARG_FLAG, &check, NULL, "end with 0 if the settings are good, else 2", NULL},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    static const bt_args_spec spec = {
        .usage = "baton local --model PATH [options]",
        .about =
            "Serves a model on this machine over the OpenAI API, in one process. /ready answers 200 once the model\n"
            "is loaded; SIGTERM or Ctrl-C finishes what runs and ends.",
        .example = "  baton local --model model.gguf --listen 127.0.0.1:8080 --set engine.max_sequences=8",
        .args = args,
    };
    uint32_t positional = 0;
    bt_why why = {""};
    int code;

    bt_config_init(bt_local_settings, &l.config);
    if (read_file(&l, argc, argv, &why) != BT_OK) {
        return wrong_use(&why);
    }
    if ((code = bt_args_parse(&spec, argc, argv, NULL, &positional)) >= 0) {
        return code;
    }
    if (l.config.auth_file[0] != 0 && bt_local_read_keys(&l.config, &why) != BT_OK) {
        return wrong_use(&why);
    }
    if (check_settings(&l.config, &why) != BT_OK) {
        return wrong_use(&why);
    }
    if (print) {
        return print_config(&l);
    }
    if (l.config.model[0] == 0 && !check) {
        bt_fail(&why, BT_ERR_INVALID, "which model? --model PATH");
        return wrong_use(&why);
    }
    return check ? 0 : serve(&l);
}
