#include "tools/top/view.h"

#include "common/json/write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- JSON ----

static void
put(bt_json_writer *w, const char *key, bool known, double value)
{
    if (known) {
        bt_json_put_real(w, key, value);
    } else {
        bt_json_put_null(w, key);
    }
}

static void
put_node(bt_json_writer *w, const bt_top_node *n)
{
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "name", bt_str_of(n->name));
    bt_json_put_text(w, "role", bt_str_of(n->role));
    bt_json_put_text(w, "state", bt_str_of(n->state));
    bt_json_put_text(w, "breaker", bt_str_of(n->breaker));
    bt_json_put_int(w, "running", (int64_t)n->running);
    bt_json_put_int(w, "queued", (int64_t)n->queued);
    bt_json_put_int(w, "blocks", (int64_t)n->blocks);
    bt_json_put_int(w, "blocks_used", (int64_t)n->blocks_used);
    put(w, "tokens_per_s", n->measured, n->tokens_per_s);
    put(w, "hit_rate", n->hit_rate >= 0, n->hit_rate);
    put(w, "transfer_gb_per_s", n->measured, n->gb_per_s);
    if (n->transport[0] != 0) {
        bt_json_put_text(w, "transport", bt_str_of(n->transport));
        bt_json_put_real(w, "transport_gb_per_s", n->gb_per_s_of_proof);
    }
    bt_json_end(w);
}

void
bt_top_write_json(const bt_top_view *v, bt_buf *out)
{
    bt_json_writer w;

    bt_json_write(&w, out);
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "cluster", bt_str_of(v->cluster));
    bt_json_put_text(&w, "router", bt_str_of(v->router));
    bt_json_put_text(&w, "model", bt_str_of(v->model));
    bt_json_put_text(&w, "state", bt_str_of(v->state));
    bt_json_put_real(&w, "uptime_s", v->uptime_s);
    bt_json_put_int(&w, "running", (int64_t)v->running);
    bt_json_put_int(&w, "queued", (int64_t)v->queued);
    put(&w, "requests_per_s", v->measured, v->requests_per_s);
    put(&w, "tokens_per_s", v->measured, v->tokens_per_s);
    put(&w, "prompt_tokens_per_s", v->measured, v->prompt_tokens_per_s);
    bt_json_put_text(&w, "latencies_of", bt_str_of(v->recent ? "recent" : "all"));
    put(&w, "ttft_p50_ms", v->ttft_count > 0, 1e3 * v->ttft_p50);
    put(&w, "ttft_p99_ms", v->ttft_count > 0, 1e3 * v->ttft_p99);
    put(&w, "inter_token_p50_ms", v->ttft_count > 0, 1e3 * v->token_p50);
    put(&w, "inter_token_p99_ms", v->ttft_count > 0, 1e3 * v->token_p99);
    bt_json_put_int(&w, "failed", (int64_t)v->failed);
    bt_json_put_int(&w, "rejected", (int64_t)v->rejected);
    bt_json_put_int(&w, "cancelled", (int64_t)v->cancelled);
    bt_json_put_int(&w, "moves", (int64_t)v->moves);
    bt_json_put_int(&w, "retries", (int64_t)v->retries);
    bt_json_put_int(&w, "degraded", (int64_t)v->degraded);
    bt_json_begin_array(&w, "nodes");
    for (uint32_t i = 0; i < v->node_count; i++) {
        put_node(&w, &v->nodes[i]);
    }
    bt_json_end(&w);
    bt_json_end(&w);
}

// ---- text ----

typedef struct {
    bt_buf *out;
    const char *line_end;
    unsigned columns, rows, written;
    bool colors;
} page;

// Names and words of others go onto a terminal: nothing that it would obey, and a byte a column.
static void
line(page *p, const char *color, const char *text)
{
    if (p->rows != 0 && p->written >= p->rows) {
        return;
    }
    p->written++;
    if (p->colors && color != NULL) {
        bt_buf_append_text(p->out, color);
    }
    for (unsigned i = 0; i < p->columns && text[i] != 0; i++) {
        bt_buf_append_char(p->out, text[i] < ' ' || text[i] > '~' ? '?' : text[i]);
    }
    if (p->colors && color != NULL) {
        bt_buf_append_text(p->out, "\033[0m");
    }
    bt_buf_append_text(p->out, p->line_end);
}

static const char *
rate(char out[16], bool known, double value)
{
    if (!known) {
        snprintf(out, 16, "-");
    } else if (value >= 99950) {
        snprintf(out, 16, "%.0fk", value / 1e3);
    } else {
        snprintf(out, 16, value < 9.95 ? "%.1f" : "%.0f", value);
    }
    return out;
}

static const char *
duration(char out[16], bool known, double seconds)
{
    if (!known) {
        snprintf(out, 16, "-");
    } else if (seconds < 0.9995) {
        snprintf(out, 16, seconds < 0.00995 ? "%.1f ms" : "%.0f ms", 1e3 * seconds);
    } else {
        snprintf(out, 16, "%.1f s", seconds);
    }
    return out;
}

static const char *
uptime(char out[48], double seconds)
{
    unsigned long s = (unsigned long)seconds;

    if (s >= 86400) {
        snprintf(out, 48, "%lud %luh", s / 86400, s / 3600 % 24);
    } else if (s >= 3600) {
        snprintf(out, 48, "%luh %lum", s / 3600, s / 60 % 60);
    } else {
        snprintf(out, 48, "%lum %lus", s / 60, s % 60);
    }
    return out;
}

static void
write_head(page *p, const bt_top_view *v)
{
    char text[512], up[48], a[16], b[16], c[16], d[16];
    bool any = v->ttft_count > 0;

    snprintf(text, sizeof text, "%s  router %s %s, up %s  model %s", v->cluster, v->router, v->state,
             uptime(up, v->uptime_s), v->model);
    line(p, "\033[1m", text);
    snprintf(text, sizeof text, "requests  %.0f running, %.0f queued, %s/s   tokens  %s/s out, %s/s in", v->running,
             v->queued, rate(a, v->measured, v->requests_per_s), rate(b, v->measured, v->tokens_per_s),
             rate(c, v->measured, v->prompt_tokens_per_s));
    line(p, NULL, text);
    snprintf(text, sizeof text, "first token  p50 %s, p99 %s   next tokens  p50 %s, p99 %s   (%s)",
             duration(a, any, v->ttft_p50), duration(b, any, v->ttft_p99), duration(c, any, v->token_p50),
             duration(d, any, v->token_p99), v->recent ? "lately" : "since the start");
    line(p, NULL, text);
    snprintf(text, sizeof text,
             "since the start  %.0f failed, %.0f rejected, %.0f left, %.0f moved, %.0f tried again, %.0f degraded",
             v->failed, v->rejected, v->cancelled, v->moves, v->retries, v->degraded);
    line(p, v->failed > 0 || v->degraded > 0 ? "\033[33m" : NULL, text);
    line(p, NULL, "");
}

static const char *
color_of(const bt_top_node *n)
{
    return strcmp(n->state, "ready") != 0 ? "\033[31m" : strcmp(n->breaker, "closed") != 0 ? "\033[33m" : NULL;
}

static const char *
share(char out[16], double hit_rate)
{
    if (hit_rate < 0) {
        snprintf(out, 16, "-");
    } else {
        snprintf(out, 16, "%.0f%%", 100 * hit_rate);
    }
    return out;
}

static void
write_node(page *p, const bt_top_node *n)
{
    char text[512], blocks[32], a[16], b[16], way[300] = "";
    const char *state = strcmp(n->state, "ready") == 0 && strcmp(n->breaker, "closed") != 0 ? n->breaker : n->state;

    snprintf(blocks, sizeof blocks, "%.0f/%.0f", n->blocks_used, n->blocks);
    if (n->transport[0] != 0 || n->sources[0] != 0) {
        snprintf(way, sizeof way, "%.2f GB/s of %.1f by %s from %s", n->gb_per_s, n->gb_per_s_of_proof,
                 n->transport[0] != 0 ? n->transport : "?", n->sources);
    }
    snprintf(text, sizeof text, "%-16.16s %-8s %-9s %5.0f %6.0f %13s %8s %5s  %s", n->name, n->role, state, n->running,
             n->queued, blocks, rate(a, n->measured, n->tokens_per_s), share(b, n->hit_rate), way);
    line(p, color_of(n), text);
}

void
bt_top_write_text(const bt_top_view *view, const char *note, unsigned columns, unsigned rows, bool colors,
                  const char *line_end, bt_buf *out)
{
    page p = {.out = out, .line_end = line_end, .columns = columns, .rows = rows, .colors = colors};
    char text[128];

    if (note != NULL) {
        line(&p, "\033[1;31m", note);
    }
    write_head(&p, view);
    snprintf(text, sizeof text, "%-16s %-8s %-9s %5s %6s %13s %8s %5s  %s", "NODE", "ROLE", "STATE", "RUN", "QUEUE",
             "BLOCKS", "TOK/S", "HITS", "BLOCKS COME");
    line(&p, "\033[7m", text);
    for (uint32_t i = 0; i < view->node_count; i++) {
        if (rows != 0 && p.written + 1 == rows && i + 1 < view->node_count) {
            snprintf(text, sizeof text, "and %u more", view->node_count - i);
            line(&p, NULL, text);
            return;
        }
        write_node(&p, &view->nodes[i]);
    }
}
