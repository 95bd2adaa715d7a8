// Routes, keys, and the answers that need no model.
#include "router/http_impl.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>

#define JSON "application/json"

void
bt_router_http_name(bt_router_http *http, bt_http_request *request, char name[BT_REQUEST_NAME_MAX + 1])
{
    bt_calls_name(http->calls, bt_http_header(request, "X-Request-Id"), name);
    bt_http_add_header(request, "X-Request-Id", name);
}

void
bt_router_http_answer(bt_router_http *http, bt_http_request *request, unsigned status, const char *type)
{
    bt_router_metrics *m = &http->calls->metrics;

    *(status < 400 ? &m->http_2xx : status < 500 ? &m->http_4xx : &m->http_5xx) += 1;
    bt_http_answer(request, status, type);
}

void
bt_router_http_refuse(bt_router_http *http, bt_http_request *request, const bt_openai_error *error)
{
    char seconds[32];

    if (error->retry_after > 0) {
        snprintf(seconds, sizeof seconds, "%lld", (long long)((error->retry_after + BT_SECOND - 1) / BT_SECOND));
        bt_http_add_header(request, "Retry-After", seconds);
    }
    bt_openai_write_error(bt_http_out(request), error);
    bt_router_http_answer(http, request, error->status, JSON);
}

// ---- routes ----

static void
on_chat(void *self, bt_http_request *request)
{
    bt_router_http_call(self, request, BT_TEXT_COMPLETE, BT_OPENAI_CHAT);
}

static void
on_completion(void *self, bt_http_request *request)
{
    bt_router_http_call(self, request, BT_TEXT_COMPLETE, BT_OPENAI_TEXT);
}

static void
on_tokenize(void *self, bt_http_request *request)
{
    bt_router_http_call(self, request, BT_TEXT_TOKENIZE, BT_OPENAI_TEXT);
}

static void
on_detokenize(void *self, bt_http_request *request)
{
    bt_router_http_call(self, request, BT_TEXT_DETOKENIZE, BT_OPENAI_TEXT);
}

static void
on_health(void *self, bt_http_request *request)
{
    bt_buf_append_text(bt_http_out(request), "{\"status\":\"ok\"}");
    bt_router_http_answer(self, request, 200, JSON);
}

static void
on_ready(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    const char *status = bt_calls_ready(http->calls) ? "ready"
                         : http->calls->draining     ? "draining"
                         : http->calls->edge == NULL ? "loading"
                                                     : "no decode node";

    bt_buf_printf(bt_http_out(request), "{\"status\":\"%s\"}", status);
    bt_router_http_answer(http, request, bt_calls_ready(http->calls) ? 200 : 503, JSON);
}

static void
put_model(const bt_router_http *http, bt_json_writer *w)
{
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "id", bt_str_of(http->calls->options.model));
    bt_json_put_text(w, "object", bt_str_of("model"));
    bt_json_put_int(w, "created", 0);
    bt_json_put_text(w, "owned_by", bt_str_of("baton"));
    bt_json_put_int(w, "max_model_len", http->calls->context);
    bt_json_end(w);
}

static void
refuse_loading(bt_router_http *http, bt_http_request *request)
{
    bt_openai_error error;

    bt_openai_fail(&error, BT_ERR_BUSY, 503, "loading", NULL, "the model is being loaded");
    error.retry_after = BT_SECOND;
    bt_router_http_refuse(http, request, &error);
}

static void
on_models(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_json_writer w;

    bt_router_http_name(http, request, name);
    if (http->calls->edge == NULL) {
        refuse_loading(http, request);
        return;
    }
    bt_json_write(&w, bt_http_out(request));
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "object", bt_str_of("list"));
    bt_json_begin_array(&w, "data");
    put_model(http, &w);
    bt_json_end(&w);
    bt_json_end(&w);
    bt_router_http_answer(http, request, 200, JSON);
}

static void
on_model(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_openai_error error;
    bt_json_writer w;

    bt_router_http_name(http, request, name);
    if (http->calls->edge == NULL) {
        refuse_loading(http, request);
    } else if (strcmp(bt_http_path(request) + strlen("/v1/models/"), http->calls->options.model) == 0) {
        bt_json_write(&w, bt_http_out(request));
        put_model(http, &w);
        bt_router_http_answer(http, request, 200, JSON);
    } else {
        bt_openai_fail(&error, BT_ERR_NOT_FOUND, 404, "model_not_found", "model", "model: this server has \"%s\" only",
                       http->calls->options.model);
        bt_router_http_refuse(http, request, &error);
    }
}

static void
on_cluster(void *self, bt_http_request *request)
{
    char name[BT_REQUEST_NAME_MAX + 1];

    bt_router_http_name(self, request, name);
    bt_router_http_write_cluster(self, bt_http_out(request));
    bt_router_http_answer(self, request, 200, JSON);
}

static void
on_trace(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    const char *of = bt_http_path(request) + strlen("/v1/trace/");
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_openai_error error;

    bt_router_http_name(http, request, name);
    if (bt_trace_write(http->calls->trace, of, bt_loop_now(http->loop), bt_http_out(request)) == BT_OK) {
        bt_router_http_answer(http, request, 200, JSON);
        return;
    }
    bt_openai_fail(&error, BT_ERR_NOT_FOUND, 404, "trace_not_found", NULL, "%s",
                   http->calls->trace == NULL ? "no spans are kept here: trace.requests is 0"
                                              : "no request of this name is among the last ones");
    bt_router_http_refuse(http, request, &error);
}

static void
measure_now(bt_router_http *http)
{
    bt_router_metrics *m = &http->calls->metrics;

    if (http->calls->edge != NULL) {
        bt_router_edge_stats(http->calls->edge, &m->core);
    }
    m->running = m->core.running;
    m->waiting = m->core.queued;
    m->leak = (double)m->core.leak;
    m->nodes = m->core.nodes_up;
    m->ready = bt_calls_ready(http->calls);
    m->calls = http->calls->calls_open;
    m->choices = http->calls->choices_open;
    m->connections = bt_http_connections(http->server);
    m->resident_bytes = bt_resident_bytes();
    m->uptime = (double)(bt_loop_now(http->loop) - http->started) / BT_SECOND;
}

static void
on_metrics(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    bt_buf labels, *out = bt_http_out(request);

    bt_buf_init(&labels, 4096);
    bt_metrics_label(&labels, "model_name", http->calls->options.model);
    measure_now(http);
    bt_metrics_write(out, bt_router_metrics_table, &http->calls->metrics, labels.data);
    bt_router_http_write_nodes(http, out, labels.data);
    if (http->options.more_metrics != NULL) {
        http->options.more_metrics(http->options.more_self, out, labels.data);
    }
    bt_buf_fini(&labels);
    bt_router_http_answer(http, request, 200, "text/plain; version=0.0.4; charset=utf-8");
}

static void
on_root(void *self, bt_http_request *request)
{
    bt_router_http *http = self;

    bt_buf_printf(bt_http_out(request),
                  "baton: %s\nmodel: %s\n\nPOST /v1/chat/completions\nPOST /v1/completions\n"
                  "POST /tokenize\nPOST /detokenize\nGET  /v1/models\nGET  /health\nGET  /ready\n"
                  "GET  /metrics\nGET  /v1/cluster\nGET  /v1/trace/ID\n",
                  bt_calls_ready(http->calls) ? "ready" : "not ready", http->calls->options.model);
    bt_router_http_answer(http, request, 200, "text/plain; charset=utf-8");
}

static const bt_http_route routes[] = {
    {"POST", "/v1/chat/completions", on_chat},
    {"POST", "/v1/completions", on_completion},
    {"POST", "/tokenize", on_tokenize},
    {"POST", "/detokenize", on_detokenize},
    {"GET", "/v1/models", on_models},
    {"GET", "/v1/models/*", on_model},
    {"GET", "/v1/cluster", on_cluster},
    {"GET", "/v1/trace/*", on_trace},
    {"GET", "/health", on_health},
    {"GET", "/ready", on_ready},
    {"GET", "/metrics", on_metrics},
    {"GET", "/", on_root},
};

// ---- keys and refusals ----

static bool
may_ask(const bt_router_http *http, bt_http_request *request)
{
    const char *given = bt_http_header(request, "Authorization");

    return bt_calls_may_ask(http->calls, given != NULL && strncasecmp(given, "Bearer ", 7) == 0 ? given + 7 : NULL);
}

static bool
is_open_to_all(const char *path)
{
    return strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0 || strcmp(path, "/metrics") == 0 ||
           strcmp(path, "/") == 0;
}

static void
admit(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_openai_error error;

    if (is_open_to_all(bt_http_path(request)) || may_ask(http, request)) {
        return;
    }
    http->calls->metrics.rejected_auth++;
    bt_router_http_name(http, request, name);
    bt_http_add_header(request, "WWW-Authenticate", "Bearer");
    bt_openai_fail(&error, BT_ERR_INVALID, 401, "invalid_api_key", NULL,
                   "this server wants a key: Authorization: Bearer KEY");
    bt_router_http_refuse(http, request, &error);
}

static void
refuse(void *self, bt_http_request *request, unsigned status, const char *message)
{
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_openai_error error;

    bt_router_http_name(self, request, name);
    bt_openai_fail(&error, BT_ERR_INVALID, status, NULL, NULL, "%s", message);
    bt_router_http_refuse(self, request, &error);
}

// ---- open and close ----

static bt_err
open_parts(bt_router_http *http, bt_why *why)
{
    const bt_router_http_options *options = &http->options;
    bt_http_handler handler = {http, routes, sizeof routes / sizeof *routes, admit, refuse, bt_router_http_gone};
    bt_calls_options calls = {
        .calls_max = options->calls_max,
        .choices_max = options->choices_max,
        .answers_max = options->answers_max,
        .text_workers = options->text_workers,
        .body_bytes_max = options->http.body_bytes_max,
        .request_time_max = options->request_time_max,
        .keys = options->keys,
        .trace_requests = options->trace_requests,
        .router = options->router != NULL ? options->router : "router",
    };
    bt_err err;

    memcpy(calls.model, options->model, sizeof calls.model);
    bt_openai_logprobs_init(&http->logprobs, options->http.out_bytes_max);
    if ((err = bt_calls_open(&http->calls, http->loop, &calls, why)) != BT_OK) {
        return err;
    }
    return bt_http_open(&http->server, http->loop, &options->http, &handler, why);
}

bt_err
bt_router_http_open(bt_router_http **out, bt_loop *loop, const bt_router_http_options *options, bt_why *why)
{
    bt_router_http *http = bt_alloc(sizeof *http);
    bt_err err;

    if (http == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the HTTP edge");
    }
    http->loop = loop;
    http->options = *options;
    http->started = bt_loop_now(loop);
    if ((err = open_parts(http, why)) != BT_OK) {
        bt_router_http_close(http);
        return err;
    }
    *out = http;
    return BT_OK;
}

void
bt_router_http_close(bt_router_http *http)
{
    if (http == NULL) {
        return;
    }
    bt_http_close(http->server); // clients that still wait are gone: their calls are cancelled
    bt_calls_close(http->calls);
    bt_openai_logprobs_fini(&http->logprobs);
    bt_free(http);
}

bt_router_callbacks
bt_router_http_callbacks(bt_router_http *http)
{
    return bt_calls_callbacks(http->calls);
}

bt_calls *
bt_router_http_calls(bt_router_http *http)
{
    return http->calls;
}

bt_err
bt_router_http_set_model(bt_router_http *http, bt_router_edge *edge, const bt_tokenizer *tokenizer, uint32_t context,
                         const char *name, bt_why *why)
{
    return bt_calls_set_model(http->calls, edge, tokenizer, context, name, why);
}

void
bt_router_http_drain(bt_router_http *http)
{
    http->calls->draining = true;
    bt_http_quiesce(http->server);
}

bool
bt_router_http_idle(const bt_router_http *http)
{
    return http->calls->calls_open == 0 && bt_http_requests(http->server) == 0;
}

uint16_t
bt_router_http_port(const bt_router_http *http)
{
    return bt_http_port(http->server);
}
