// GET /v1/cluster: the nodes as this router sees them.
//
//     {"cluster": "demo", "router": "r1", "ready": true, "draining": false, "model": {"name": …, "context": …},
//      "requests": {"running": 0, "queued": 0}, "nodes": [
//        {"name": "d1", "role": "decode", "link": "tcp://…", "status": "10.0.0.11:9100", "state": "ready", "epoch": "…", "heard_ms": 12,
//         "sequences": 16, "running": 1, "queued": 0, "requests": 1, "prompts": 0,
//         "kv": {"blocks": 4096, "free": 4000, "block_tokens": 32}, "context": 8192, "prefill_tokens_per_s": 900, "breaker": "closed",
//         "fetches_from": ["p1"]},
//        {"name": "d2", …, "state": "refused", "refused": {"field": "layout", "expected": "…", "found": "…"}},
//        {"name": "d3", …, "state": "down"}]}
//
// States: down (no link), met (a link, and nothing said yet), refused, ready, draining. running and queued are the node's own words, requests
// and prompts what this router gave it.
#include "router/http_impl.h"

#include <stdio.h>

static void
put_digest(bt_json_writer *w, const char *key, uint64_t digest)
{
    char text[17];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    bt_json_put_text(w, key, bt_str_of(text));
}

static const char *
state_name(const bt_router_node *node)
{
    switch (node->state) {
    case BT_NODE_MET:
        return "met";
    case BT_NODE_REFUSED:
        return "refused";
    case BT_NODE_READY:
        return node->hello->draining ? "draining" : "ready";
    default:
        return "down";
    }
}

static void
put_sources(const bt_router *core, uint32_t decode, uint32_t nodes, bt_json_writer *w)
{
    bt_json_begin_array(w, "fetches_from");
    for (uint32_t i = 0; i < nodes; i++) {
        bt_router_node source;

        if (bt_router_is_pair(core, decode, i)) {
            bt_router_get_node(core, i, &source);
            bt_json_put_text(w, NULL, bt_str_of(source.hello->name));
        }
    }
    bt_json_end(w);
}

static void
put_load(const bt_router_node *node, bt_json_writer *w)
{
    bt_json_put_int(w, "sequences", node->hello->sequences);
    bt_json_put_int(w, "context", node->hello->context);
    bt_json_put_int(w, "running", node->load->running);
    bt_json_put_int(w, "queued", node->load->queued);
    bt_json_put_int(w, "requests", node->requests);
    bt_json_put_int(w, "prompts", node->prompts);
    bt_json_put_int(w, "prompt_tokens", (int64_t)node->prefill_tokens);
    bt_json_put_int(w, "prefill_tokens_per_s", (int64_t)node->prefill_rate);
    bt_json_put_text(w, "breaker", bt_str_of(bt_breaker_name(node->breaker)));
    bt_json_begin_object(w, "kv");
    bt_json_put_int(w, "blocks", node->hello->blocks);
    bt_json_put_int(w, "free", node->load->blocks_free);
    bt_json_put_int(w, "block_tokens", node->hello->block_tokens);
    bt_json_end(w);
    put_digest(w, "model", node->hello->model);
    put_digest(w, "weights", node->hello->weights);
    put_digest(w, "layout", node->hello->layout);
}

static void
put_refusal(const bt_router_refusal *refusal, bt_json_writer *w)
{
    bt_json_begin_object(w, "refused");
    bt_json_put_text(w, "field", bt_str_of(refusal->field));
    bt_json_put_text(w, "expected", bt_str_of(refusal->expected));
    bt_json_put_text(w, "found", bt_str_of(refusal->found));
    bt_json_end(w);
}

static void
put_node(const bt_router_http *http, const bt_router *core, uint32_t index, uint32_t nodes, bt_json_writer *w)
{
    const bt_router_address *as = index < http->options.node_count ? &http->options.nodes[index] : NULL;
    bt_router_node node = {0};
    bool said;

    if (core != NULL) {
        bt_router_get_node(core, index, &node);
    }
    if (node.state == BT_NODE_DOWN && as == NULL) {
        return;
    }
    said = node.state == BT_NODE_REFUSED || node.state == BT_NODE_READY;
    bt_json_begin_object(w, NULL);
    if (as != NULL || said) {
        bt_json_put_text(w, "name", bt_str_of(as != NULL ? as->name : node.hello->name));
        bt_json_put_text(w, "role", bt_str_of(bt_node_role_name(as != NULL ? as->role : node.hello->role)));
    }
    if (as != NULL) {
        bt_json_put_text(w, "link", bt_str_of(as->link));
        if (as->status != NULL && as->status[0] != 0) {
            bt_json_put_text(w, "status", bt_str_of(as->status));
        }
    }
    bt_json_put_text(w, "state", bt_str_of(state_name(&node)));
    if (said) {
        put_digest(w, "epoch", node.hello->epoch);
        bt_json_put_int(w, "heard_ms", (bt_loop_now(http->loop) - node.heard) / BT_MILLISECOND);
    }
    if (node.state == BT_NODE_REFUSED) {
        put_refusal(node.refusal, w);
    }
    if (node.state == BT_NODE_READY) {
        put_load(&node, w);
    }
    if (node.state == BT_NODE_READY && node.hello->role == BT_NODE_DECODE) {
        put_sources(core, index, nodes, w);
    }
    bt_json_end(w);
}

void
bt_router_http_write_cluster(bt_router_http *http, bt_buf *out)
{
    const bt_calls *calls = http->calls;
    const bt_router *core = calls->edge != NULL ? bt_router_edge_core(calls->edge) : NULL;
    uint32_t nodes = core != NULL ? bt_router_get_limits(core)->nodes_max : http->options.node_count;
    bt_router_stats stats = {0};
    bt_json_writer w;

    if (calls->edge != NULL) {
        bt_router_edge_stats(calls->edge, &stats);
    }
    bt_json_write(&w, out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "cluster", bt_str_of(http->options.cluster != NULL ? http->options.cluster : "baton"));
    bt_json_put_text(&w, "router", bt_str_of(http->options.router != NULL ? http->options.router : "local"));
    bt_json_put_bool(&w, "ready", bt_calls_ready(calls));
    bt_json_put_bool(&w, "draining", calls->draining);
    bt_json_put_int(&w, "uptime_ms", (bt_loop_now(http->loop) - http->started) / BT_MILLISECOND);
    bt_json_begin_object(&w, "model");
    bt_json_put_text(&w, "name", bt_str_of(calls->options.model));
    bt_json_put_int(&w, "context", calls->context);
    bt_json_end(&w);
    bt_json_begin_object(&w, "requests");
    bt_json_put_int(&w, "running", stats.running);
    bt_json_put_int(&w, "queued", stats.queued);
    bt_json_end(&w);
    bt_json_begin_array(&w, "nodes");
    for (uint32_t i = 0; i < nodes; i++) {
        put_node(http, core, i, nodes, &w);
        bt_buf_append_char(out, '\n'); // a line each, for persons and for readers of lines
    }
    bt_json_end(&w);
    bt_json_end(&w);
}

// ---- the same as metrics ----

static double
is_ready(const bt_router_node *node)
{
    return node->state == BT_NODE_READY && !node->hello->draining;
}

static double
breaker_of(const bt_router_node *node)
{
    return node->breaker;
}

static double
requests_of(const bt_router_node *node)
{
    return node->requests;
}

static double
prompt_tokens_of(const bt_router_node *node)
{
    return (double)node->prefill_tokens;
}

static const struct {
    const char *name, *help;
    double (*value)(const bt_router_node *node);
} node_rows[] = {
    {"baton:node_ready", "1 when the node takes requests.", is_ready},
    {"baton:node_breaker", "0 closed, 1 open: passed over for a while, 2 half-open: one request is tried.", breaker_of},
    {"baton:node_requests", "Requests that this router gave it and that are not over.", requests_of},
    {"baton:node_prompt_tokens", "Tokens of prompts that it has still to compute, as counted here.", prompt_tokens_of},
};

static void
write_row(const bt_router_http *http, const bt_router *core, size_t row, bt_buf *out, const char *labels)
{
    bt_buf name;

    bt_buf_init(&name, 4096);
    bt_buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", node_rows[row].name, node_rows[row].help,
                  node_rows[row].name);
    for (uint32_t i = 0; i < bt_router_get_limits(core)->nodes_max; i++) {
        bt_router_node node;

        bt_router_get_node(core, i, &node);
        if (node.state != BT_NODE_READY) {
            continue;
        }
        bt_buf_clear(&name);
        bt_metrics_label(&name, "node", i < http->options.node_count ? http->options.nodes[i].name : node.hello->name);
        bt_buf_printf(out, "%s{%s,%s,role=\"%s\"} %g\n", node_rows[row].name, labels,
                      name.data != NULL ? name.data : "", bt_node_role_name(node.hello->role),
                      node_rows[row].value(&node));
    }
    bt_buf_fini(&name);
}

void
bt_router_http_write_nodes(bt_router_http *http, bt_buf *out, const char *labels)
{
    const bt_router *core = http->calls->edge != NULL ? bt_router_edge_core(http->calls->edge) : NULL;

    for (size_t row = 0; core != NULL && row < sizeof node_rows / sizeof *node_rows; row++) {
        write_row(http, core, row, out, labels);
    }
}
