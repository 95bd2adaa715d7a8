// A node's own HTTP: is it alive, is it ready, what does it measure.
#include "common/net/http.h"
#include "tools/node.h"
#include "tools/node_metrics.h"

#include <stdio.h>
#include <unistd.h>

#define JSON "application/json"

static const char *
state_of(const bt_node_program *p)
{
    return !p->opened ? "loading" : p->program.draining ? "draining" : "ready";
}

static void
say(bt_http_request *request, unsigned status, const char *word)
{
    bt_buf_printf(bt_http_out(request), "{\"status\":\"%s\"}", word);
    bt_http_answer(request, status, JSON);
}

static void
on_health(void *self, bt_http_request *request)
{
    (void)self;
    say(request, 200, "ok");
}

static void
on_ready(void *self, bt_http_request *request)
{
    const bt_node_program *p = self;

    say(request, p->opened && !p->program.draining ? 200 : 503, state_of(p));
}

// ---- /metrics ----

typedef struct {
    double ready, resident_bytes, uptime;
} process_metrics;

static void
write_process(const bt_node_program *p, bt_buf *out, const char *labels)
{
    static const bt_metric table[] = {
        {BT_METRIC_GAUGE, offsetof(process_metrics, ready), "baton:ready", "1 when requests are taken.", NULL, NULL},
        {BT_METRIC_GAUGE, offsetof(process_metrics, resident_bytes), "process_resident_memory_bytes",
         "Resident memory.", NULL, NULL},
        {BT_METRIC_GAUGE, offsetof(process_metrics, uptime), "baton:uptime_seconds", "Since start.", NULL, NULL},
        {0},
    };
    process_metrics m = {p->opened && !p->program.draining, bt_resident_bytes(),
                         (double)(bt_loop_now(p->program.loop) - p->program.started) / BT_SECOND};

    bt_metrics_write(out, table, &m, labels);
}

// A decode node's peers are the prefill nodes as listed; a prefill node's are whoever came.
static void
write_peers(const bt_node_program *p, bt_buf *out, const char *labels)
{
    const char *names[BT_CLUSTER_NODES_MAX];

    for (uint32_t i = 0; i < p->cluster.prefill_count; i++) {
        names[i] = p->cluster.prefill[i].name;
    }
    bt_plane_peers_write(out, p->machine.plane, p->machine.options.plane.peers_max,
                         p->kind->role == BT_NODE_DECODE ? names : NULL, labels);
}

static void
on_metrics(void *self, bt_http_request *request)
{
    const bt_node_program *p = self;
    bt_buf *out = bt_http_out(request), labels;

    bt_buf_init(&labels, 1024);
    bt_metrics_label(&labels, "node", p->config->name);
    bt_buf_append_text(&labels, p->kind->role == BT_NODE_DECODE ? ",role=\"decode\"" : ",role=\"prefill\"");
    write_process(p, out, labels.data);
    if (p->opened) {
        p->kind->metrics(p, out, labels.data);
        bt_link_metrics_write(out, p->link, labels.data);
    }
    if (p->opened && p->machine.plane != NULL) {
        bt_plane_metrics_write(out, p->machine.plane, labels.data);
        write_peers(p, out, labels.data);
    }
    bt_buf_fini(&labels);
    bt_http_answer(request, 200, "text/plain; version=0.0.4");
}

// ---- /v1/node ----

// Numbers of 64 bits are text: a reader's doubles would round them.
static void
put_hex(bt_json_writer *w, const char *key, uint64_t value)
{
    char text[17];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    bt_json_put_text(w, key, bt_str_of(text));
}

static void
tell_model(const bt_node_program *p, bt_json_writer *w)
{
    const bt_model *model = bt_engine_model(p->machine.engine);
    const bt_kv_layout *layout = bt_engine_kv_layout(p->machine.engine);

    bt_json_begin_object(w, "model");
    bt_json_put_text(w, "path", bt_str_of(p->config->model));
    put_hex(w, "family", model->family);
    bt_json_put_text(w, "weights", bt_str_of(bt_settings_weights[p->config->engine.weights]));
    put_hex(w, "weights_digest", model->digest);
    if (p->prompt_weights != 0) {
        put_hex(w, "prompt_weights_digest", p->prompt_weights);
    }
    bt_json_put_int(w, "context", bt_engine_context(p->machine.engine));
    bt_json_put_text(w, "kv_format", bt_str_of(bt_settings_kv_formats[layout->format]));
    bt_json_put_int(w, "kv_block_tokens", layout->block_tokens);
    put_hex(w, "kv_layout", bt_kv_layout_fingerprint(layout));
    bt_json_end(w);
}

static void
tell_peers(const bt_node_program *p, bt_json_writer *w)
{
    bt_plane_peer peer;

    bt_json_begin_array(w, "transfer_peers");
    for (uint32_t i = 0; p->machine.plane != NULL && i < p->machine.options.plane.peers_max; i++) {
        if (!bt_plane_get_peer(p->machine.plane, i, &peer)) {
            continue;
        }
        bt_json_begin_object(w, NULL);
        bt_json_put_int(w, "peer", i);
        put_hex(w, "epoch", peer.epoch);
        bt_json_put_text(w, "path", bt_str_of(bt_transfer_path_name(peer.transfer.path)));
        bt_json_put_text(w, "transport", bt_str_of(peer.transfer.transport));
        bt_json_put_real(w, "gb_per_s", peer.transfer.gb_per_s);
        bt_json_put_int(w, "bytes", (int64_t)peer.transfer.bytes);
        bt_json_end(w);
    }
    bt_json_end(w);
}

static void
on_node(void *self, bt_http_request *request)
{
    const bt_node_program *p = self;
    bt_json_writer w;

    bt_json_write(&w, bt_http_out(request));
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "name", bt_str_of(p->config->name));
    bt_json_put_text(&w, "role", bt_str_of(bt_node_role_name(p->kind->role)));
    bt_json_put_text(&w, "state", bt_str_of(state_of(p)));
    put_hex(&w, "epoch", p->epoch);
    bt_json_put_int(&w, "pid", getpid());
    if (p->opened) {
        tell_model(p, &w);
        p->kind->tell(p, &w);
        tell_peers(p, &w);
    }
    bt_json_end(&w);
    bt_http_answer(request, 200, JSON);
}

static void
refuse(void *self, bt_http_request *request, unsigned status, const char *message)
{
    (void)self;
    bt_buf_printf(bt_http_out(request), "{\"error\":{\"message\":\"%s\"}}", message);
    bt_http_answer(request, status, JSON);
}

static void
gone(void *self, bt_http_request *request)
{
    (void)self;
    (void)request;
}

bt_err
bt_node_status_open(bt_node_program *p, bt_why *why)
{
    static const bt_http_route routes[] = {{"GET", "/health", on_health},
                                           {"GET", "/ready", on_ready},
                                           {"GET", "/metrics", on_metrics},
                                           {"GET", "/v1/node", on_node}};
    bt_http_handler handler = {p, routes, sizeof routes / sizeof *routes, NULL, refuse, gone};
    bt_http_limits limits = {.listen = p->config->status,
                             .connections_max = 16,
                             .header_bytes_max = 16384,
                             .body_bytes_max = 4096,
                             .body_bytes_total_max = 65536,
                             .out_bytes_max = 1 << 20,
                             .header_time_max = 10 * BT_SECOND,
                             .body_time_max = 10 * BT_SECOND,
                             .idle_time_max = 120 * BT_SECOND,
                             .stall_time_max = 30 * BT_SECOND};

    return limits.listen[0] != 0 ? bt_http_open(&p->status, p->program.loop, &limits, &handler, why) : BT_OK;
}
