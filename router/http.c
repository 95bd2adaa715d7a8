// Routes, keys, and the answers that need no model.
#include "router/http_impl.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define JSON "application/json"

void
bt_router_http_name(bt_router_http *http, bt_http_request *request, char name[BT_REQUEST_NAME_MAX + 1])
{
    const char *given = bt_http_header(request, "X-Request-Id");

    if (given == NULL || !bt_request_name_take(name, given)) {
        bt_request_name_draw(name, &http->rng);
    }
    bt_http_add_header(request, "X-Request-Id", name);
}

void
bt_router_http_answer(bt_router_http *http, bt_http_request *request, unsigned status, const char *type)
{
    *(status < 400 ? &http->metrics.http_2xx : status < 500 ? &http->metrics.http_4xx : &http->metrics.http_5xx) += 1;
    bt_http_answer(request, status, type);
}

void
bt_router_http_refuse(bt_router_http *http, bt_http_request *request, const bt_openai_error *error)
{
    bt_openai_write_error(bt_http_out(request), error);
    bt_router_http_answer(http, request, error->status, JSON);
}

void
bt_router_http_set_retry(bt_http_request *request, bt_time after)
{
    char seconds[32];

    snprintf(seconds, sizeof seconds, "%lld", (long long)((after + BT_SECOND - 1) / BT_SECOND));
    bt_http_add_header(request, "Retry-After", after > 0 ? seconds : "1");
}

static bt_str
token_bytes(const void *self, int32_t id)
{
    return bt_tokenizer_bytes(self, id, true);
}

bt_openai_vocab
bt_router_http_vocab(const bt_router_http *http)
{
    return (bt_openai_vocab){token_bytes, http->tokenizer};
}

// ---- routes ----

static void
on_chat(void *self, bt_http_request *request)
{
    bt_call_start(self, request, BT_TEXT_COMPLETE, BT_OPENAI_CHAT);
}

static void
on_completion(void *self, bt_http_request *request)
{
    bt_call_start(self, request, BT_TEXT_COMPLETE, BT_OPENAI_TEXT);
}

static void
on_tokenize(void *self, bt_http_request *request)
{
    bt_call_start(self, request, BT_TEXT_TOKENIZE, BT_OPENAI_TEXT);
}

static void
on_detokenize(void *self, bt_http_request *request)
{
    bt_call_start(self, request, BT_TEXT_DETOKENIZE, BT_OPENAI_TEXT);
}

static void
on_health(void *self, bt_http_request *request)
{
    bt_buf_append_text(bt_http_out(request), "{\"status\":\"ok\"}");
    bt_router_http_answer(self, request, 200, JSON);
}

static bool
is_ready(const bt_router_http *http)
{
    return http->edge != NULL && !http->draining && bt_router_edge_ready(http->edge);
}

static void
on_ready(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    const char *status = is_ready(http) ? "ready" : http->draining ? "draining" : "loading";

    bt_buf_printf(bt_http_out(request), "{\"status\":\"%s\"}", status);
    bt_router_http_answer(http, request, is_ready(http) ? 200 : 503, JSON);
}

static void
put_model(const bt_router_http *http, bt_json_writer *w)
{
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "id", bt_str_of(http->options.model));
    bt_json_put_text(w, "object", bt_str_of("model"));
    bt_json_put_int(w, "created", 0);
    bt_json_put_text(w, "owned_by", bt_str_of("baton"));
    bt_json_put_int(w, "max_model_len", http->context);
    bt_json_end(w);
}

static void
refuse_loading(bt_router_http *http, bt_http_request *request)
{
    bt_openai_error error;

    bt_openai_fail(&error, BT_ERR_BUSY, 503, "loading", NULL, "the model is being loaded");
    bt_router_http_set_retry(request, BT_SECOND);
    bt_router_http_refuse(http, request, &error);
}

static void
on_models(void *self, bt_http_request *request)
{
    bt_router_http *http = self;
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_json_writer w;

    bt_router_http_name(http, request, name);
    if (http->edge == NULL) {
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
    if (http->edge == NULL) {
        refuse_loading(http, request);
    } else if (strcmp(bt_http_path(request) + strlen("/v1/models/"), http->options.model) == 0) {
        bt_json_write(&w, bt_http_out(request));
        put_model(http, &w);
        bt_router_http_answer(http, request, 200, JSON);
    } else {
        bt_openai_fail(&error, BT_ERR_NOT_FOUND, 404, "model_not_found", "model", "model: this server has \"%s\" only",
                       http->options.model);
        bt_router_http_refuse(http, request, &error);
    }
}

static void
measure_now(bt_router_http *http)
{
    bt_router_metrics *m = &http->metrics;
    bt_router_stats stats = {0};

    if (http->edge != NULL) {
        bt_router_edge_stats(http->edge, &stats);
    }
    m->running = stats.running;
    m->waiting = stats.queued;
    m->leak = (double)stats.leak;
    m->ready = is_ready(http);
    m->calls = http->calls_open;
    m->choices = http->choices_open;
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
    bt_metrics_label(&labels, "model_name", http->options.model);
    measure_now(http);
    bt_metrics_write(out, bt_router_metrics_table, &http->metrics, labels.data);
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
                  "GET  /metrics\n",
                  is_ready(http) ? "ready" : "not ready", http->options.model);
    bt_router_http_answer(http, request, 200, "text/plain; charset=utf-8");
}

static const bt_http_route routes[] = {
    {"POST", "/v1/chat/completions", on_chat},
    {"POST", "/v1/completions", on_completion},
    {"POST", "/tokenize", on_tokenize},
    {"POST", "/detokenize", on_detokenize},
    {"GET", "/v1/models", on_models},
    {"GET", "/v1/models/*", on_model},
    {"GET", "/health", on_health},
    {"GET", "/ready", on_ready},
    {"GET", "/metrics", on_metrics},
    {"GET", "/", on_root},
};

// ---- keys and refusals ----

// Time does not depend on where the two differ, nor on which key is tried.
static bool
is_key(const char *key, const char *given)
{
    unsigned differs = 0;
    size_t len = strlen(given);

    for (size_t i = 0; i < BT_TEXT_LIST_BYTES; i++) {
        unsigned char theirs = (unsigned char)(i < len ? given[i] : 0);

        differs |= (unsigned)(key[i] ^ theirs) & 0xffu;
    }
    return differs == 0 && len < BT_TEXT_LIST_BYTES;
}

static bool
may_ask(const bt_router_http *http, bt_http_request *request)
{
    const bt_text_list *keys = http->options.keys;
    const char *given = bt_http_header(request, "Authorization");
    bool found = false;

    if (keys == NULL || keys->count == 0) {
        return true;
    }
    if (given == NULL || strncasecmp(given, "Bearer ", 7) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < keys->count; i++) {
        found |= is_key(keys->items[i], given + 7);
    }
    return found && given[7] != 0;
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
    http->metrics.rejected_auth++;
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

static void
gone(void *self, bt_http_request *request)
{
    bt_call *call = bt_http_data(request);

    (void)self;
    if (call != NULL) {
        bt_call_leave(call);
    }
}

// ---- open and close ----

static bt_err
open_parts(bt_router_http *http, bt_why *why)
{
    const bt_router_http_options *options = &http->options;
    bt_http_handler handler = {http, routes, sizeof routes / sizeof *routes, admit, refuse, gone};
    bt_text_options text = {
        .workers = options->text_workers,
        .queue = options->calls_max,
        .openai = {.choices_max = options->choices_max, .arena_bytes = 4 * options->http.body_bytes_max + (16u << 20)},
        .done = bt_call_on_text,
        .self = http,
    };
    bt_err err;

    http->calls = bt_alloc_array(options->calls_max, sizeof *http->calls);
    http->choices = bt_alloc_array(options->answers_max, sizeof *http->choices);
    if (http->calls == NULL || http->choices == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u calls", options->calls_max);
    }
    for (uint32_t i = 0; i < options->answers_max; i++) {
        bt_choice_init(&http->choices[i]);
    }
    if ((err = bt_text_open(&http->text, http->loop, &text, why)) != BT_OK) {
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
    if (getrandom(&http->rng, sizeof http->rng, 0) != sizeof http->rng) {
        http->rng.state = (uint64_t)bt_time_now();
    }
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
    bt_text_close(http->text);
    for (uint32_t i = 0; http->calls != NULL && i < http->options.calls_max; i++) {
        bt_call_close(&http->calls[i]);
    }
    bt_free(http->calls);
    bt_free(http->choices);
    bt_free(http);
}

bt_router_callbacks
bt_router_http_callbacks(bt_router_http *http)
{
    return (bt_router_callbacks){bt_call_on_tokens, bt_call_on_finished, http};
}

static void
find_ends(bt_router_http *http)
{
    uint32_t vocab = bt_tokenizer_vocab_size(http->tokenizer);
    int32_t eos = bt_tokenizer_eos(http->tokenizer);

    if (eos >= 0) {
        http->end_ids[http->end_count++] = eos;
    }
    for (uint32_t id = 0; id < vocab && http->end_count < BT_END_IDS_MAX; id++) {
        if ((int32_t)id != eos && bt_tokenizer_is_end(http->tokenizer, (int32_t)id)) {
            http->end_ids[http->end_count++] = (int32_t)id;
        }
    }
}

bt_err
bt_router_http_set_model(bt_router_http *http, bt_router_edge *edge, const bt_tokenizer *tokenizer, uint32_t context,
                         const char *name, bt_why *why)
{
    http->tokenizer = tokenizer;
    http->context = context;
    if (http->options.model[0] == 0) {
        snprintf(http->options.model, sizeof http->options.model, "%s", name);
    }
    find_ends(http);
    if (bt_text_set_model(http->text, tokenizer, context) != BT_OK) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the text workers");
    }
    http->edge = edge;
    return BT_OK;
}

void
bt_router_http_drain(bt_router_http *http)
{
    http->draining = true;
    bt_http_quiesce(http->server);
}

bool
bt_router_http_idle(const bt_router_http *http)
{
    return http->calls_open == 0 && bt_http_requests(http->server) == 0;
}

uint16_t
bt_router_http_port(const bt_router_http *http)
{
    return bt_http_port(http->server);
}
