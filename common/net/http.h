// An HTTP/1.1 server on a loop: bounded requests in, whole or streamed answers out.
//
//     static const bt_http_route routes[] = {{"POST", "/v1/completions", on_completion}, …};
//     bt_http_open(&server, loop, &limits, &handler, &why);
//     …on_completion(self, request):   bt_http_take_body(request, &body) … keep `request`, return
//     …later:                          bt_http_begin(request, 200, "text/event-stream");
//                                      bt_buf_append_text(bt_http_out(request), "data: …\n\n"); bt_http_flush(request);
//                                      bt_http_end(request);
//
// All on the loop's thread. A request belongs to the application from its route's call until it was answered, ended or
// broken, or until `gone` was called for it; afterwards the pointer must not be used. A client that hangs up, in whatever
// phase, is noticed by our own watch of its socket (libmicrohttpd suspends connections and then notices nothing), a client
// that sends or reads too slowly by our own deadlines. Malformed HTTP is answered by the server itself.
#pragma once

#include "common/base/buf.h"
#include "common/base/str.h"
#include "common/net/loop.h"

#include <stddef.h>

typedef struct bt_http bt_http;
typedef struct bt_http_request bt_http_request;

typedef struct {
    const char *listen;            // "127.0.0.1:8080", "[::1]:8080", "*:8080"; port 0 takes a free one
    uint32_t connections_max;      // more wait unaccepted
    uint32_t connections_each_max; // from one address; 0 = no limit of its own
    size_t header_bytes_max;       // request line and headers, and what is being sent
    size_t body_bytes_max;         // of one request; more is a 413
    size_t body_bytes_total_max;   // of all requests together; more is a 503
    size_t out_bytes_max;          // of an answer that waits for its client
    bt_time header_time_max;       // from accept to the end of the first request's headers
    bt_time body_time_max;         // from there to the end of its body
    bt_time idle_time_max;         // from an answer to the end of the next request's headers
    bt_time stall_time_max;        // without progress while there is something to send
} bt_http_limits;

typedef struct {
    const char *method,
        *path; // GET answers HEAD too; the path is compared whole (or up to a last *), without the query
    void (*call)(void *self, bt_http_request *request);
} bt_http_route;

typedef struct {
    void *self;
    const bt_http_route *routes;
    size_t route_count;
    // The headers are here, the body is not: may answer at once (a wrong key), or do nothing. May be NULL.
    void (*admit)(void *self, bt_http_request *request);
    // The server refuses (400, 404, 405, 413, 503): append a body and bt_http_answer it with this status, in the call.
    void (*refuse)(void *self, bt_http_request *request, unsigned status, const char *message);
    // The client is gone before the answer was complete. The request is not to be used after this call.
    void (*gone)(void *self, bt_http_request *request);
} bt_http_handler;

// Listens at once. BT_ERR_INVALID for an address that makes no sense, BT_ERR_IO when it cannot be had; `why` says which.
// `handler` is copied, its routes are not.
bt_err bt_http_open(bt_http **out, bt_loop *loop, const bt_http_limits *limits, const bt_http_handler *handler,
                    bt_why *why);
// Breaks what is not answered yet (calling `gone`), closes all connections. NULL is fine.
void bt_http_close(bt_http *server);
// Accepts no more connections; each one that there is closes with its answer.
void bt_http_quiesce(bt_http *server);

uint16_t bt_http_port(const bt_http *server);
uint32_t bt_http_connections(const bt_http *server);
uint32_t bt_http_requests(const bt_http *server); // that are the application's or still being sent

// What was asked. Borrowed, valid while the request is.
const char *bt_http_path(const bt_http_request *request);
const char *bt_http_header(const bt_http_request *request, const char *name); // NULL = not there
// Moves the body, with its memory, into `out` (which must hold nothing): it may be read on another thread.
void bt_http_take_body(bt_http_request *request, bt_buf *out);

// The application's own pointer, NULL at first.
void bt_http_set_data(bt_http_request *request, void *data);
void *bt_http_data(const bt_http_request *request);

// Before begin or answer; up to 8, values up to 255 bytes, more is cut.
void bt_http_add_header(bt_http_request *request, const char *name, const char *value);

// What is to be sent: append to it. Limited by out_bytes_max (see `failed` in buf.h); what was sent leaves it.
bt_buf *bt_http_out(bt_http_request *request);

// The whole answer: what is in `out`. The request is the server's from here on.
void bt_http_answer(bt_http_request *request, unsigned status, const char *content_type);

// A streamed answer. Flush sends what was appended: BT_ERR_TIMEOUT when the client read so slowly that `out` has filled; break it then.
// After end or break the request is the server's.
void bt_http_begin(bt_http_request *request, unsigned status, const char *content_type);
bt_err bt_http_flush(bt_http_request *request);
void bt_http_end(bt_http_request *request);
void bt_http_break(bt_http_request *request); // closes the connection without the proper end, which clients report
