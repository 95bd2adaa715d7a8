// One request: framing, body, the call of its route, and the answer on its way out.
//
//             first call             last byte of body          begin              end
//     IDLE ───────────────▶ BODY ───────────────────▶ ASKED ──────────▶ STREAMS ─────────▶ SENDS ──▶ IDLE (completed)
//                            │ refused: drop the body    └──────── answer ──────────────────▲
//                            └──────────────────────── refuse ──────────────────────────────┘
//
// While the application thinks (ASKED), and while a stream has nothing to send (STREAMS), the connection is suspended.
#include "common/net/http_impl.h"

#include "common/base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define READER_BLOCK 16384

static void
set_deadline(bt_http_request *request, bt_time wait)
{
    request->deadline = wait == BT_TIME_NEVER ? BT_TIME_NEVER : bt_loop_now(request->server->loop) + wait;
}

static void
suspend(bt_http_request *request)
{
    MHD_suspend_connection(request->connection);
    request->suspended = true;
    set_deadline(request, BT_TIME_NEVER);
}

static void
resume(bt_http_request *request)
{
    if (request->suspended) {
        request->suspended = false;
        set_deadline(request, request->server->limits.stall_time_max);
        MHD_resume_connection(request->connection);
    }
}

void
bt_http_lose(bt_http_request *request)
{
    bool owned = (request->phase == BT_HTTP_ASKED || request->phase == BT_HTTP_STREAMS) && !request->broken;

    bt_loop_unwatch(request->server->loop, &request->watch);
    request->broken = request->phase >= BT_HTTP_ASKED;
    request->closing = true;
    shutdown(request->fd, SHUT_RDWR);
    resume(request);
    if (owned) {
        request->phase = BT_HTTP_SENDS;
        request->server->handler.gone(request->server->handler.self, request);
    }
}

static void
on_hangup(void *self, uint32_t events)
{
    (void)events;
    bt_http_lose(self);
}

// A buffer that grew is given back, a small one is kept for the next request: what all slots keep must not add up.
static void
empty(bt_buf *buf)
{
    if (buf->cap > 8u << 10) {
        bt_buf_fini(buf);
    }
    bt_buf_clear(buf);
}

void
bt_http_forget(bt_http_request *request)
{
    bt_http *server = request->server;

    bt_loop_unwatch(server->loop, &request->watch);
    server->body_bytes_total -= request->body_held;
    request->body_held = 0;
    empty(&request->body);
    empty(&request->out);
    request->suspended = request->queued = request->broken = request->streamed = false;
    request->route = NULL;
    request->refused = 0;
    request->dropped = request->sent = 0;
    request->data = NULL;
    request->header_count = 0;
}

// ---- the request comes in ----

static const char *
in_header(const bt_http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

typedef struct {
    unsigned lengths, encodings;
} framing;

static enum MHD_Result
count_framing(void *self, enum MHD_ValueKind kind, const char *name, const char *value)
{
    framing *seen = self;

    (void)kind, (void)value;
    seen->lengths += strcasecmp(name, "content-length") == 0;
    seen->encodings += strcasecmp(name, "transfer-encoding") == 0;
    return MHD_YES;
}

// Two ways to tell where a body ends are one too many: what we and a proxy before us make of them may differ.
static bool
framing_is_clear(bt_http_request *request)
{
    framing seen = {0, 0};
    const char *encoding = in_header(request, "Transfer-Encoding"), *length = in_header(request, "Content-Length");

    MHD_get_connection_values(request->connection, MHD_HEADER_KIND, count_framing, &seen);
    return seen.lengths + seen.encodings <= 1 && (encoding == NULL || strcasecmp(encoding, "chunked") == 0) &&
           (length == NULL || (*length != 0 && strspn(length, "0123456789") == strlen(length)));
}

static void
refuse_later(bt_http_request *request, unsigned status, const char *why)
{
    if (request->refused == 0) {
        request->refused = status;
        request->refused_why = why;
    }
}

static bool
path_fits(const char *route, const char *path)
{
    size_t len = strlen(route);

    return len != 0 && route[len - 1] == '*' ? strncmp(route, path, len - 1) == 0 : strcmp(route, path) == 0;
}

static void
find_route(bt_http_request *request)
{
    const bt_http_handler *handler = &request->server->handler;
    const char *method = strcmp(request->method, "HEAD") == 0 ? "GET" : request->method;
    const char *allowed = NULL;

    for (size_t i = 0; i < handler->route_count && request->route == NULL; i++) {
        if (path_fits(handler->routes[i].path, request->path)) {
            allowed = handler->routes[i].method;
            request->route = strcmp(allowed, method) == 0 ? &handler->routes[i] : NULL;
        }
    }
    if (request->route == NULL && allowed != NULL) {
        bt_http_add_header(request, "Allow", allowed);
        refuse_later(request, 405, "this path does not take this method");
    } else if (request->route == NULL) {
        refuse_later(request, 404, "there is nothing at this path");
    }
}

static void
plan_body(bt_http_request *request)
{
    const char *length = in_header(request, "Content-Length");
    unsigned long long bytes = length != NULL ? strtoull(length, NULL, 10) : 0;

    if (bytes > request->server->limits.body_bytes_max) {
        refuse_later(request, 413, "the body is larger than this server takes");
    }
    if (bytes > BT_HTTP_DRAIN_MAX) {
        request->dropped = BT_HTTP_DRAIN_MAX; // not worth reading: answer at once and close
    }
}

static void
answer_refused(bt_http_request *request)
{
    const bt_http_handler *handler = &request->server->handler;

    request->phase = BT_HTTP_ASKED;
    handler->refuse(handler->self, request, request->refused, request->refused_why);
    assert(request->phase == BT_HTTP_SENDS && "refuse must answer");
}

static ssize_t read_out(void *self, uint64_t at, char *to, size_t bytes);

static enum MHD_Result
queue_answer(bt_http_request *request)
{
    uint64_t size = request->streamed ? MHD_SIZE_UNKNOWN : request->out.len;
    struct MHD_Response *response = MHD_create_response_from_callback(size, READER_BLOCK, read_out, request, NULL);
    enum MHD_Result queued;

    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", request->content_type);
    for (unsigned i = 0; i < request->header_count; i++) {
        MHD_add_response_header(response, request->headers[i].name, request->headers[i].value);
    }
    if (request->streamed) {
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    if (request->server->quiet || request->dropped >= BT_HTTP_DRAIN_MAX) {
        MHD_add_response_header(response, "Connection", "close");
    }
    queued = MHD_queue_response(request->connection, request->status, response);
    MHD_destroy_response(response);
    request->queued = true;
    set_deadline(request, request->server->limits.stall_time_max);
    return queued;
}

// Refuses and closes where it is not certain where the next request begins. A body where none belongs, or a POST that does
// not say its length, is how line ends that libmicrohttpd forgives (bare LF, folded headers) become a second request.
static void
check_framing(bt_http_request *request)
{
    const char *length = in_header(request, "Content-Length");
    bool encoded = in_header(request, "Transfer-Encoding") != NULL;
    bool reads = strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0;

    if (!framing_is_clear(request)) {
        refuse_later(request, 400, "Content-Length and Transfer-Encoding do not say clearly how long the body is");
    } else if (reads && (encoded || (length != NULL && strtoull(length, NULL, 10) != 0))) {
        refuse_later(request, 400, "a request of this method has no body");
    } else if (strcmp(request->method, "POST") == 0 && !encoded && length == NULL) {
        refuse_later(request, 411, "Content-Length or Transfer-Encoding: chunked is needed");
    }
    if (request->refused != 0) {
        request->dropped = BT_HTTP_DRAIN_MAX;
    }
}

// The headers are here. Refusals wait for the end of the body, unless the client asks before it sends one.
static enum MHD_Result
begin_request(bt_http_request *request, const char *url, const char *method)
{
    const bt_http_handler *handler = &request->server->handler;
    const char *expect = in_header(request, "Expect");

    snprintf(request->method, sizeof request->method, "%s", method);
    snprintf(request->path, sizeof request->path, "%s", strlen(url) < sizeof request->path ? url : "");
    request->phase = BT_HTTP_BODY;
    set_deadline(request, request->server->limits.body_time_max);
    check_framing(request);
    find_route(request);
    plan_body(request);
    if (request->refused == 0 && handler->admit != NULL) {
        request->phase = BT_HTTP_ASKED;
        handler->admit(handler->self, request);
        request->phase = request->phase == BT_HTTP_ASKED ? BT_HTTP_BODY : request->phase;
    }
    if (request->refused != 0 && (expect != NULL || request->dropped >= BT_HTTP_DRAIN_MAX)) {
        request->dropped = BT_HTTP_DRAIN_MAX;
        answer_refused(request);
    }
    // An answer of admit's waits for the end of the body too.
    if (request->phase == BT_HTTP_SENDS && (expect != NULL || request->dropped >= BT_HTTP_DRAIN_MAX)) {
        return queue_answer(request);
    }
    return MHD_YES;
}

static enum MHD_Result
take_body(bt_http_request *request, const char *data, size_t bytes)
{
    bt_http *server = request->server;

    if (request->refused == 0 && request->phase == BT_HTTP_BODY) {
        if (bytes > server->limits.body_bytes_max - request->body.len) {
            refuse_later(request, 413, "the body is larger than this server takes");
        } else if (bytes > server->limits.body_bytes_total_max - server->body_bytes_total) {
            refuse_later(request, 503, "the bodies of all requests together are larger than this server takes");
        } else {
            bt_buf_append(&request->body, data, bytes);
            server->body_bytes_total += bytes;
            request->body_held += bytes;
        }
        if (request->body.failed) {
            refuse_later(request, 503, "no memory for the body");
        }
    }
    if (request->refused != 0 || request->phase != BT_HTTP_BODY) {
        request->dropped += bytes;
        return request->dropped < BT_HTTP_DRAIN_MAX ? MHD_YES : MHD_NO;
    }
    return MHD_YES;
}

// The whole request is here.
static enum MHD_Result
ask(bt_http_request *request)
{
    const bt_http_handler *handler = &request->server->handler;

    if (request->refused != 0) {
        answer_refused(request);
    } else if (request->phase == BT_HTTP_BODY) {
        request->phase = BT_HTTP_ASKED;
        request->watch = (bt_watch){.ready = on_hangup, .self = request};
        bt_loop_watch(request->server->loop, &request->watch, request->fd, EPOLLRDHUP);
        request->route->call(handler->self, request);
    }
    if (request->phase == BT_HTTP_ASKED) {
        suspend(request);
        return MHD_YES;
    }
    return request->broken ? MHD_NO : queue_answer(request);
}

enum MHD_Result
bt_http_on_call(void *self, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                const char *data, size_t *data_bytes, void **context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    bt_http_request *request = info != NULL ? info->socket_context : NULL;

    (void)self, (void)version;
    if (request == NULL || request->closing) {
        return MHD_NO;
    }
    if (*context == NULL) {
        *context = request;
        return begin_request(request, url, method);
    }
    if (*data_bytes != 0) {
        size_t bytes = *data_bytes;

        *data_bytes = 0;
        return take_body(request, data, bytes);
    }
    return request->queued ? MHD_YES : ask(request);
}

void
bt_http_on_completed(void *self, struct MHD_Connection *connection, void **context,
                     enum MHD_RequestTerminationCode code)
{
    bt_http_request *request = *context;

    (void)self, (void)connection, (void)code;
    if (request == NULL) {
        return;
    }
    if (request->phase == BT_HTTP_ASKED || request->phase == BT_HTTP_STREAMS) {
        request->suspended = false; // the daemon is done with the connection: nothing to resume
        bt_http_lose(request);
    }
    bt_http_forget(request);
    request->phase = BT_HTTP_IDLE;
    set_deadline(request, request->server->limits.idle_time_max);
    if (request->server->quiet) {
        bt_http_lose(request);
    }
    *context = NULL;
}

// ---- the answer goes out ----

static ssize_t
read_out(void *self, uint64_t at, char *to, size_t bytes)
{
    bt_http_request *request = self;
    size_t left = request->out.len - request->sent;

    (void)at;
    if (request->broken) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    set_deadline(request, request->server->limits.stall_time_max);
    if (left != 0) {
        bytes = bytes < left ? bytes : left;
        memcpy(to, request->out.data + request->sent, bytes);
        request->sent += bytes;
        if (request->streamed && request->sent == request->out.len) {
            bt_buf_clear(&request->out);
            request->sent = 0;
        }
        return (ssize_t)bytes;
    }
    if (request->phase == BT_HTTP_SENDS) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    suspend(request);
    return 0;
}

static void
start_answer(bt_http_request *request, unsigned status, const char *content_type, bt_http_phase phase)
{
    assert(request->phase == BT_HTTP_ASKED);
    request->status = status;
    request->content_type = content_type;
    request->phase = phase;
    request->streamed = phase == BT_HTTP_STREAMS;
    resume(request);
}

void
bt_http_answer(bt_http_request *request, unsigned status, const char *content_type)
{
    bt_loop_unwatch(request->server->loop, &request->watch);
    start_answer(request, status, content_type, BT_HTTP_SENDS);
}

void
bt_http_begin(bt_http_request *request, unsigned status, const char *content_type)
{
    start_answer(request, status, content_type, BT_HTTP_STREAMS);
}

bt_err
bt_http_flush(bt_http_request *request)
{
    assert(request->phase == BT_HTTP_STREAMS);
    if (request->out.failed) {
        return BT_ERR_TIMEOUT;
    }
    if (request->out.len != request->sent) {
        resume(request);
    }
    return BT_OK;
}

void
bt_http_end(bt_http_request *request)
{
    assert(request->phase == BT_HTTP_STREAMS);
    bt_loop_unwatch(request->server->loop, &request->watch);
    request->phase = BT_HTTP_SENDS;
    request->broken = request->out.failed; // half an event would be worse than none
    resume(request);
}

void
bt_http_break(bt_http_request *request)
{
    assert(request->phase == BT_HTTP_ASKED || request->phase == BT_HTTP_STREAMS);
    request->phase = BT_HTTP_SENDS;
    bt_http_lose(request);
}

// ---- what was asked ----

const char *
bt_http_path(const bt_http_request *request)
{
    return request->path;
}

void
bt_http_take_body(bt_http_request *request, bt_buf *out)
{
    *out = request->body;
    bt_buf_init(&request->body, request->server->limits.body_bytes_max);
}

const char *
bt_http_header(const bt_http_request *request, const char *name)
{
    return in_header(request, name);
}

void
bt_http_set_data(bt_http_request *request, void *data)
{
    request->data = data;
}

void *
bt_http_data(const bt_http_request *request)
{
    return request->data;
}

void
bt_http_add_header(bt_http_request *request, const char *name, const char *value)
{
    if (request->header_count < BT_HTTP_HEADERS_MAX) {
        snprintf(request->headers[request->header_count].name, sizeof request->headers[0].name, "%s", name);
        snprintf(request->headers[request->header_count++].value, sizeof request->headers[0].value, "%s", value);
    }
}

bt_buf *
bt_http_out(bt_http_request *request)
{
    return &request->out;
}
