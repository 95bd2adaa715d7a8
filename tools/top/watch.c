#include "tools/top/watch.h"

#include "common/base/mem.h"
#include "common/json/json.h"
#include "tools/top/scrape.h"

#include <stdio.h>
#include <string.h>

#define TEXT_MAX (16u << 20)
#define RECENT 10 // looks that latencies are of
#define ROUTER_TIME (2 * BT_SECOND)
#define NODE_TIME (300 * BT_MILLISECOND)
#define NODES_TIME BT_SECOND // all of them together
#define SKIPS 5              // looks that a node is left alone after it did not answer

// What a node said at the look before.
typedef struct {
    char name[64];
    bt_time at; // 0 = nothing
    double tokens, bytes;
    uint32_t skip;
} node_before;

typedef struct {
    bt_scrape_histogram ttft, token;
} latencies;

struct bt_top_watch {
    bt_get_server server;
    const char *key;
    bt_buf cluster, metrics, node;
    bt_time at; // of the look before; 0 = none
    double requests, tokens, prompt_tokens, uptime;
    uint64_t looks;
    latencies recent[RECENT];
    uint32_t node_count, next_node; // next_node: whom a look begins with, so that each gets its turn
    node_before nodes[BT_TOP_NODES_MAX];
};

bt_err
bt_top_watch_open(bt_top_watch **out, const bt_get_server *server, const char *key, bt_why *why)
{
    bt_top_watch *w = bt_alloc(sizeof *w);

    if (w == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory");
    }
    w->server = *server;
    w->key = key;
    bt_buf_init(&w->cluster, TEXT_MAX);
    bt_buf_init(&w->metrics, TEXT_MAX);
    bt_buf_init(&w->node, TEXT_MAX);
    *out = w;
    return BT_OK;
}

void
bt_top_watch_close(bt_top_watch *w)
{
    if (w == NULL) {
        return;
    }
    bt_buf_fini(&w->cluster);
    bt_buf_fini(&w->metrics);
    bt_buf_fini(&w->node);
    bt_free(w);
}

// ---- asking ----

static bt_err
ask(bt_top_watch *w, const char *path, bt_time deadline, bt_buf *out, bt_why *why)
{
    unsigned status = 0;
    bt_err err;

    bt_buf_clear(out);
    if ((err = bt_get(&w->server, path, w->key, deadline, &status, out, why)) != BT_OK) {
        return err;
    }
    if (status == 401) {
        return bt_fail(why, BT_ERR_INVALID, "%s:%s wants a key: --key KEY", w->server.host, w->server.port);
    }
    if (status != 200 || out->data == NULL) {
        return bt_fail(why, BT_ERR_INVALID, "%s:%s answers GET %s with %u: not a router of baton", w->server.host,
                       w->server.port, path, status);
    }
    return BT_OK;
}

static node_before *
before_of(bt_top_watch *w, const char *name)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (strcmp(w->nodes[i].name, name) == 0) {
            return &w->nodes[i];
        }
    }
    if (w->node_count == BT_TOP_NODES_MAX) {
        return NULL;
    }
    snprintf(w->nodes[w->node_count].name, sizeof w->nodes[0].name, "%s", name);
    return &w->nodes[w->node_count++];
}

// ---- a node's own metrics ----

static double
per_second(double now, double before, bt_time span)
{
    return span > 0 && now > before ? (now - before) * BT_SECOND / (double)span : 0; // a restart counts from 0 again
}

static void
take_metrics(bt_top_node *n, node_before *before, const char *text, bt_time now)
{
    bool decodes = strcmp(n->role, "decode") == 0;
    double tokens =
        bt_scrape_sum(text, decodes ? "baton:answer_tokens_total" : "baton:prefix_cache_misses_total", NULL);
    double bytes = bt_scrape_sum(text, "baton:transfer_bytes_total", NULL);

    if (before->at != 0 && now > before->at) {
        n->measured = true;
        n->tokens_per_s = per_second(tokens, before->tokens, now - before->at);
        n->gb_per_s = per_second(bytes, before->bytes, now - before->at) / 1e9;
    }
    n->blocks_used = n->blocks * bt_scrape_sum(text, "baton:kv_cache_usage_perc", NULL); // newer than a heartbeat
    n->hit_rate = bt_scrape_sum(text, "baton:prefix_cache_hit_rate", NULL);
    if (decodes) {
        bt_scrape_label(text, "baton:transfer_peer_gb_per_s", "transport", n->transport, sizeof n->transport);
        n->gb_per_s_of_proof = bt_scrape_sum(text, "baton:transfer_peer_gb_per_s", NULL);
    }
    before->at = now;
    before->tokens = tokens;
    before->bytes = bytes;
}

static bool
is_any_address(const char *host)
{
    return host[0] == 0 || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

// Where the node's HTTP is: as configured, or where it listens on all addresses, at the host of its link.
static bool
find_status(const char *status, const char *link, bt_get_server *out)
{
    const char *host = strstr(link, "://");
    bt_get_server of_link;

    if (status[0] == 0) {
        return false;
    }
    if (strncmp(status, "*:", 2) == 0) {
        snprintf(out->port, sizeof out->port, "%.7s", status + 2);
        out->host[0] = 0;
    } else if (bt_get_parse(out, status, "80", NULL) != BT_OK) {
        return false;
    }
    if (is_any_address(out->host)) {
        if (host == NULL || bt_get_parse(&of_link, host + 3, "0", NULL) != BT_OK) {
            return false;
        }
        memcpy(out->host, of_link.host, sizeof out->host);
    }
    return true;
}

static void
look_at_node(bt_top_watch *w, bt_top_node *n, const char *status, const char *link, bt_time until)
{
    node_before *before = before_of(w, n->name);
    bt_time now = bt_time_now(), deadline = now + NODE_TIME < until ? now + NODE_TIME : until;
    bt_get_server server;
    unsigned code = 0;

    if (before == NULL || deadline <= now || !find_status(status, link, &server)) {
        return;
    }
    if (before->skip > 0) {
        before->skip--;
        return;
    }
    bt_buf_clear(&w->node);
    if (bt_get(&server, "/metrics", NULL, deadline, &code, &w->node, NULL) == BT_OK && code == 200 &&
        w->node.data != NULL) {
        take_metrics(n, before, w->node.data, bt_time_now());
    } else {
        before->at = 0;
        before->skip = SKIPS;
    }
}

// ---- the router's JSON ----

static void
copy_text(const bt_json_at *from, const char *key, char *out, size_t bytes)
{
    bt_str text = {"", 0};

    bt_json_maybe_text(from, key, &text, NULL);
    snprintf(out, bytes, "%.*s", (int)text.len, text.data);
}

static double
number(const bt_json_at *from, const char *key)
{
    bt_json_at at = bt_json_get(from, key);
    double value = 0;

    bt_json_as_real(&at, -1e18, 1e18, &value, NULL);
    return value;
}

static void
take_sources(const bt_json_at *node, bt_top_node *n)
{
    bt_json_at sources = bt_json_get(node, "fetches_from");
    size_t used = 0;

    for (size_t i = 0; i < bt_json_count(&sources); i++) {
        bt_json_at item = bt_json_item(&sources, i);
        bt_str name = {"?", 1};

        bt_json_as_text(&item, &name, NULL);
        used += (size_t)snprintf(n->sources + used, sizeof n->sources - used, "%s%.*s", i != 0 ? " " : "",
                                 (int)name.len, name.data);
        if (used >= sizeof n->sources) {
            return; // cut
        }
    }
}

static void
take_node(const bt_json_at *node, bt_top_node *n)
{
    bt_json_at kv = bt_json_get(node, "kv");

    *n = (bt_top_node){.hit_rate = -1};
    copy_text(node, "name", n->name, sizeof n->name);
    copy_text(node, "role", n->role, sizeof n->role);
    copy_text(node, "state", n->state, sizeof n->state);
    copy_text(node, "breaker", n->breaker, sizeof n->breaker);
    if (n->breaker[0] == 0) {
        strcpy(n->breaker, "closed");
    }
    n->running = number(node, "running");
    n->queued = number(node, "queued");
    n->blocks = number(&kv, "blocks");
    n->blocks_used = n->blocks - number(&kv, "free");
    take_sources(node, n);
}

static void
take_nodes(bt_top_watch *w, const bt_json_at *root, bt_top_view *view)
{
    bt_json_at nodes = bt_json_get(root, "nodes");
    bt_time until = bt_time_now() + NODES_TIME;
    uint32_t decodes = 0;

    view->node_count = (uint32_t)bt_json_count(&nodes);
    view->node_count = view->node_count < BT_TOP_NODES_MAX ? view->node_count : BT_TOP_NODES_MAX;
    for (uint32_t i = 0; i < view->node_count; i++) {
        bt_json_at node = bt_json_item(&nodes, i);

        take_node(&node, &view->nodes[i]);
        decodes += strcmp(view->nodes[i].role, "decode") == 0;
    }
    for (uint32_t k = 0; k < view->node_count; k++) {
        uint32_t i = (w->next_node + k) % view->node_count;
        bt_json_at node = bt_json_item(&nodes, i);
        bt_top_node *n = &view->nodes[i];
        char status[160], link[160];

        copy_text(&node, "status", status, sizeof status);
        copy_text(&node, "link", link, sizeof link);
        if (strcmp(n->state, "ready") == 0 || strcmp(n->state, "draining") == 0) {
            look_at_node(w, n, status, link, until);
        }
        // `baton local` speaks for its node itself.
        if (link[0] == 0 && decodes == 1 && strcmp(n->role, "decode") == 0 && before_of(w, n->name) != NULL) {
            take_metrics(n, before_of(w, n->name), w->metrics.data, bt_time_now());
        }
    }
    w->next_node = view->node_count != 0 ? (w->next_node + 1) % view->node_count : 0;
}

static void
take_head(const bt_json_at *root, bt_top_view *view)
{
    bt_json_at model = bt_json_get(root, "model"), requests = bt_json_get(root, "requests");
    bool ready = false, draining = false;

    copy_text(root, "cluster", view->cluster, sizeof view->cluster);
    copy_text(root, "router", view->router, sizeof view->router);
    copy_text(&model, "name", view->model, sizeof view->model);
    bt_json_maybe_bool(root, "ready", &ready, NULL);
    bt_json_maybe_bool(root, "draining", &draining, NULL);
    snprintf(view->state, sizeof view->state, "%s", draining ? "draining" : ready ? "ready" : "not ready");
    view->uptime_s = number(root, "uptime_ms") / 1e3;
    view->running = number(&requests, "running");
    view->queued = number(&requests, "queued");
}

// ---- the router's metrics ----

static void
take_latencies(bt_top_watch *w, const char *text, bt_top_view *view)
{
    latencies *oldest = &w->recent[w->looks % RECENT], now;
    // Nine looks ago, or the first.
    const latencies *since = w->looks >= RECENT ? oldest : w->looks > 0 ? &w->recent[0] : NULL;

    bt_scrape_read(text, "baton:time_to_first_token_seconds", &now.ttft);
    bt_scrape_read(text, "baton:inter_token_latency_seconds", &now.token);
    view->recent = since != NULL && bt_scrape_count(&now.ttft, &since->ttft) > 0;
    since = view->recent ? since : NULL;
    view->ttft_count = bt_scrape_count(&now.ttft, since != NULL ? &since->ttft : NULL);
    view->ttft_p50 = bt_scrape_quantile(&now.ttft, since != NULL ? &since->ttft : NULL, 0.5);
    view->ttft_p99 = bt_scrape_quantile(&now.ttft, since != NULL ? &since->ttft : NULL, 0.99);
    view->token_p50 = bt_scrape_quantile(&now.token, since != NULL ? &since->token : NULL, 0.5);
    view->token_p99 = bt_scrape_quantile(&now.token, since != NULL ? &since->token : NULL, 0.99);
    *oldest = now;
    w->looks++;
}

static void
take_router(bt_top_watch *w, bt_top_view *view, bt_time now)
{
    const char *text = w->metrics.data;
    double requests = bt_scrape_sum(text, "baton:request_success_total", NULL);
    double tokens = bt_scrape_sum(text, "baton:generation_tokens_total", NULL);
    double prompt_tokens = bt_scrape_sum(text, "baton:prompt_tokens_total", NULL);
    bt_time span = now - w->at;

    if (view->uptime_s < w->uptime) { // another program: what was counted before is another's
        w->at = 0;
        w->looks = 0;
    }
    view->measured = w->at != 0 && span > 0;
    if (view->measured) {
        view->requests_per_s = per_second(requests, w->requests, span);
        view->tokens_per_s = per_second(tokens, w->tokens, span);
        view->prompt_tokens_per_s = per_second(prompt_tokens, w->prompt_tokens, span);
    }
    take_latencies(w, text, view);
    view->failed = bt_scrape_sum(text, "baton:request_failed_total", NULL);
    view->rejected = bt_scrape_sum(text, "baton:requests_rejected_total", NULL);
    view->cancelled = bt_scrape_sum(text, "baton:request_cancelled_total", NULL);
    view->moves = bt_scrape_sum(text, "baton:request_moves_total", NULL);
    view->retries = bt_scrape_sum(text, "baton:request_retries_total", NULL);
    view->degraded = bt_scrape_sum(text, "baton:request_degraded_total", NULL);
    w->at = now;
    w->requests = requests;
    w->tokens = tokens;
    w->prompt_tokens = prompt_tokens;
    w->uptime = view->uptime_s;
}

bt_err
bt_top_look(bt_top_watch *w, bt_top_view *view, bt_why *why)
{
    bt_time deadline = bt_time_now() + ROUTER_TIME;
    bt_json *document;
    bt_json_at root;
    bt_err err;

    if ((err = ask(w, "/v1/cluster", deadline, &w->cluster, why)) != BT_OK ||
        (err = ask(w, "/metrics", deadline, &w->metrics, why)) != BT_OK) {
        return err;
    }
    if ((err = bt_json_parse(&document, (bt_str){w->cluster.data, w->cluster.len}, NULL, why)) != BT_OK) {
        return err;
    }
    *view = (bt_top_view){0};
    root = bt_json_root(document);
    take_head(&root, view);
    take_router(w, view, bt_time_now());
    take_nodes(w, &root, view);
    bt_json_close(document);
    return BT_OK;
}
