// baton router: HTTP for clients on one side, links to the nodes of the cluster on the other. Reads the tokenizer and the sizes of the
// model, and none of its weights.
//
//     loop thread      HTTP, link, router core; everything but what follows
//     loader           reads the tokenizer while the loop answers /health and dials the nodes, then ends
//     text workers     parse, render, tokenize (router/text.h)
#include "common/base/log.h"
#include "common/model/card.h"
#include "router/gateway.h"
#include "router/http.h"
#include "tools/cluster_config.h"
#include "tools/commands.h"
#include "tools/node_metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bt_cluster_config cluster;
    const bt_router_config *config; // our own, of it
    bt_program program;
    uint64_t epoch;
    bt_router_http *http;
    bt_router_gateway *gateway; // NULL = none
    bt_router_address nodes[BT_CLUSTER_NODES_MAX];
    uint32_t node_count;
    bt_cluster_addresses addresses;
    bt_link *link;
    // The loader's, until `loaded`.
    pthread_t loader;
    atomic_bool loaded;
    bool loader_runs;
    bt_err load_err;
    bt_why load_why;
    bt_model_card card;
    bt_router_expected expected[BT_CLUSTER_NODES_MAX];
    // Then:
    bt_router_edge *edge;
} router;

// ---- loading ----

// What the nodes of a pool will say of themselves, by the file and the model as they are here.
static bt_err
expect(router *r, const bt_node_config *nodes, uint32_t count, const bt_model_names *names, bt_router_expected *out,
       bt_why *why)
{
    const bt_engine_settings *s = &nodes[0].engine;
    bt_kv_layout layout;
    bt_err err = bt_engine_layout_of(&layout, &r->card.config, (bt_kv_format)s->kv_format, s->kv_block_tokens, why);

    for (uint32_t i = 0; i < count && err == BT_OK; i++) {
        out[i] = (bt_router_expected){.role = nodes[i].role,
                                      .version = BT_PROTOCOL_VERSION,
                                      .block_tokens = s->kv_block_tokens,
                                      .kv_format = 1 + s->kv_format,
                                      .model = names->family,
                                      .weights = names->digest,
                                      .layout = bt_kv_layout_fingerprint(&layout)};
        memcpy(out[i].name, nodes[i].name, sizeof out[i].name);
    }
    return err;
}

static bool
rounds(const bt_node_config *node)
{
    bt_device_options device = bt_engine_settings_options(&node->engine, "").device;

    return bt_device_would_round(&device);
}

// A node of a pool that rounds where the pool's first does not, or the reverse; NULL = none does.
static const bt_node_config *
other_kind(const bt_node_config *nodes, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (rounds(&nodes[i]) != rounds(&nodes[0])) {
            return &nodes[i];
        }
    }
    return NULL;
}

static bt_err
fail_mixed(const char *path, const bt_node_config *first, const bt_node_config *other, bt_why *why)
{
    return bt_fail(
        why, BT_ERR_INVALID,
        "%s: some of its layers have 16-bit weights, which a GPU and a CPU compute with different roundings: "
        "%s (device: %s) and %s (device: %s) are of one pool and would not give the same answers (a GPU gives the "
        "CPU's "
        "with cuda.activations: f32, slowly)",
        path, first->name, first->engine.device, other->name, other->engine.device);
}

static bt_err
load_model(router *r, bt_why *why)
{
    const bt_cluster_config *c = &r->cluster;
    const struct {
        const bt_node_config *nodes;
        uint32_t count;
        bt_router_expected *expected;
    } pools[] = {{c->prefill, c->prefill_count, r->expected},
                 {c->decode, c->decode_count, r->expected + c->prefill_count}};
    const bt_node_config *other[2];
    bt_model_options options[4]; // of each pool's first node and of one on another kind of device
    bt_model_names names[4];
    bt_err err;

    for (int i = 0; i < 2; i++) { // zeroes where there is no node
        other[i] = other_kind(pools[i].nodes, pools[i].count);
        options[2 * i] = bt_engine_settings_options(&pools[i].nodes[0].engine, r->config->model).model;
        options[2 * i + 1] =
            other[i] != NULL ? bt_engine_settings_options(&other[i]->engine, r->config->model).model : options[2 * i];
    }
    err = bt_model_card_open(&r->card, r->config->model, options, names, 4, why);
    for (int i = 0; i < 2 && err == BT_OK; i++) {
        if (names[2 * i].digest != names[2 * i + 1].digest) {
            err = fail_mixed(r->config->model, pools[i].nodes, other[i], why);
        } else if (pools[i].count != 0) {
            err = expect(r, pools[i].nodes, pools[i].count, &names[2 * i], pools[i].expected, why);
        }
    }
    return err;
}

static void *
load(void *self)
{
    router *r = self;

    r->load_err = load_model(r, &r->load_why);
    atomic_store(&r->loaded, true);
    bt_loop_wake(r->program.loop);
    return NULL;
}

// The longest that some decode node can hold, by the file.
static uint32_t
context_of(const router *r)
{
    uint32_t own = r->card.config.context, longest = 0;

    for (uint32_t i = 0; i < r->cluster.decode_count; i++) {
        uint32_t context = r->cluster.decode[i].engine.context;

        context = context != 0 ? context : own;
        longest = context > longest ? context : longest;
    }
    return longest < BT_MESSAGE_IDS_MAX ? longest : BT_MESSAGE_IDS_MAX;
}

static bt_err
open_edge(router *r, bt_why *why)
{
    const bt_router_config *c = r->config;
    bt_router_callbacks callbacks = bt_router_http_callbacks(r->http);
    bt_router_limits limits = {
        .nodes_max = r->node_count,
        .requests_max = c->http.queue,
        .context = context_of(r),
        .vocab = r->card.config.vocab,
        .epoch = r->epoch,
        .heartbeat = c->placement.heartbeat,
        .node_silence = c->placement.node_silence,
        .remote_tokens_min = c->placement.remote_tokens_min,
        .degrade_after = c->placement.degrade_after,
        .slo_ttft = c->placement.slo_ttft,
        .two_weights =
            r->cluster.prefill_count != 0 && r->expected[0].weights != r->expected[r->cluster.prefill_count].weights,
        .inexact = !c->placement.exact,
        .expected = r->expected,
    };
    char name[128];
    bt_err err;

    bt_settings_model_name(c->model, name);
    if ((err = bt_router_edge_open(&r->edge, &limits, r->link, &callbacks, why)) != BT_OK) {
        return err;
    }
    return bt_router_http_set_model(r->http, r->edge, r->card.tokenizer, limits.context, name, why);
}

static void
take_model(router *r, bt_time now)
{
    pthread_join(r->loader, NULL);
    r->loader_runs = false;
    if (r->load_err != BT_OK || open_edge(r, &r->load_why) != BT_OK) {
        bt_program_fail(&r->program, &r->load_why);
        return;
    }
    bt_log_info("ROUTER-OPEN", "%s: model %s on %.*s:%u, %u prefill and %u decode nodes, %lld ms after the start",
                r->config->name, r->config->model, (int)(strrchr(r->config->listen, ':') - r->config->listen),
                r->config->listen, bt_router_http_port(r->http), r->cluster.prefill_count, r->cluster.decode_count,
                (long long)((now - r->program.started) / BT_MILLISECOND));
}

// ---- the loop ----

static bt_time
turn(void *self, bt_time now)
{
    router *r = self;

    if (r->loader_runs && atomic_load(&r->loaded)) {
        take_model(r, now);
    }
    return r->edge != NULL ? bt_router_edge_turn(r->edge, now) : BT_TIME_NEVER;
}

static bool
drain(void *self, bt_time now)
{
    router *r = self;

    if (r->edge != NULL) {
        bt_router_edge_drain(r->edge, now);
        bt_router_http_drain(r->http);
        bt_router_gateway_drain(r->gateway);
    }
    return r->edge != NULL;
}

static bool
idle(void *self)
{
    const router *r = self;

    return bt_router_http_idle(r->http) && bt_router_gateway_idle(r->gateway);
}

// ---- open and close ----

static void
list_nodes(router *r, const bt_node_config *nodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        r->nodes[r->node_count++] = (bt_router_address){
            .name = nodes[i].name, .link = nodes[i].link, .status = nodes[i].status, .role = nodes[i].role};
    }
}

static bt_err
open_link(router *r, bt_why *why)
{
    bt_nng_link_options options = bt_cluster_link(&r->cluster, &r->addresses);

    options.seed = r->epoch;
    return bt_nng_link_open(&r->link, r->program.loop, &options, why);
}

static bt_err
open_gateway(router *r, bt_why *why)
{
    const bt_router_config *c = r->config;
    bt_router_gateway_options options = bt_http_settings_gateway(&c->http, c->gateway, c->cluster.cert_key_file);

    return c->gateway[0] == 0
               ? BT_OK
               : bt_router_gateway_open(&r->gateway, r->program.loop, bt_router_http_calls(r->http), &options, why);
}

static void
write_metrics(void *self, bt_buf *out, const char *labels)
{
    const router *r = self;

    bt_router_gateway_write_metrics(r->gateway, out, labels);
    bt_link_metrics_write(out, r->link, labels);
}

static bt_err
open_router(router *r, bt_why *why)
{
    const bt_router_config *c = r->config;
    bt_router_http_options options = bt_http_settings_options(&c->http, c->listen, c->model_name);
    bt_err err;

    r->program = (bt_program){.command = "baton router",
                              .event = "ROUTER",
                              .self = r,
                              .turn = turn,
                              .drain = drain,
                              .idle = idle,
                              .drain_time = c->http.drain_time};
    r->epoch = bt_program_draw_epoch();
    // In the order of the link's peers (tools/cluster_config.h).
    list_nodes(r, r->cluster.prefill, r->cluster.prefill_count);
    list_nodes(r, r->cluster.decode, r->cluster.decode_count);
    options.cluster = c->cluster.name;
    options.router = c->name;
    options.nodes = r->nodes;
    options.node_count = r->node_count;
    options.more_metrics = write_metrics;
    options.more_self = r;
    if ((err = bt_program_open(&r->program, why)) != BT_OK ||
        (err = bt_router_http_open(&r->http, r->program.loop, &options, why)) != BT_OK ||
        (err = open_gateway(r, why)) != BT_OK || (err = open_link(r, why)) != BT_OK) {
        return err;
    }
    if (pthread_create(&r->loader, NULL, load, r) != 0) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no thread to load the tokenizer");
    }
    r->loader_runs = true;
    return BT_OK;
}

static void
close_router(router *r)
{
    bt_router_gateway_close(r->gateway);
    bt_router_http_close(r->http);
    bt_router_edge_close(r->edge);
    bt_link_close(r->link);
    if (r->loader_runs) {
        _exit(r->program.exit_code); // reading cannot be interrupted, and there is nothing to lose
    }
    bt_model_card_close(&r->card);
}

static int
serve(router *r)
{
    bt_why why = {""};

    bt_log_set_level((bt_log_level)r->config->log_level);
    if (open_router(r, &why) != BT_OK) {
        bt_program_fail(&r->program, &why);
    } else {
        bt_program_run(&r->program);
    }
    close_router(r);
    return bt_program_close(&r->program);
}

int
bt_router_main(int argc, char **argv)
{
    static router r; // large, and there is one
    static bt_program_args common;
    static bt_program_set listen = {&common, "listen"};
    static const bt_arg args[] = {
        {"listen", BT_ARG_CALL, &listen, "HOST:PORT", "where to serve clients, over the file", bt_program_set_option},
        {NULL, BT_ARG_FLAG, NULL, NULL, NULL, NULL},
    };
    static const bt_args_spec spec = {
        .usage = "baton router --config FILE [--name NAME] [options]",
        .about =
            "A router of the cluster that the file describes: speaks the OpenAI API, and gives prompts and answers\n"
            "to its nodes, which may start before or after it. /ready answers 200 while a decode node is there;\n"
            "SIGTERM or Ctrl-C finishes what runs and ends.",
        .example = "  baton router --config cluster.yaml --name r1",
        .args = args,
        .more = common.table,
    };
    int code;

    bt_program_args_init(&common, true);
    if ((code = bt_args_parse(&spec, argc, argv, NULL, NULL)) < 0 &&
        (code = bt_cluster_begin(&r.cluster, "baton router", BT_NODE_ROUTER, &common)) < 0) {
        r.config = bt_cluster_router(&r.cluster);
        code = serve(&r);
    }
    bt_program_args_fini(&common);
    return code;
}
