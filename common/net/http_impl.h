// What the two halves of the server share: http.c (connections, deadlines, the daemon) and http_request.c (one request).
// Only this folder includes libmicrohttpd.
#pragma once

#include "common/net/http.h"

#include <microhttpd.h>

#define BT_HTTP_HEADERS_MAX 8
#define BT_HTTP_PATH_MAX 256
// A body that will be refused is read to its end and dropped, up to so many bytes, so that the client sees the answer
// and not a reset.
#define BT_HTTP_DRAIN_MAX (64u << 20)

typedef enum {
    BT_HTTP_FREE,    // no connection
    BT_HTTP_IDLE,    // waits for (more of) a request's headers
    BT_HTTP_BODY,    // reads a body
    BT_HTTP_ASKED,   // the application has it
    BT_HTTP_STREAMS, // the application streams the answer
    BT_HTTP_SENDS,   // the answer is complete, and being sent
} bt_http_phase;

// A connection and the request on it: HTTP/1.1 has one at a time.
struct bt_http_request {
    bt_http *server;
    struct MHD_Connection *connection;
    bt_http_phase phase;
    int fd;
    bt_watch watch; // RDHUP and HUP while the application has the request
    bool suspended, queued, broken, streamed, closing;
    bt_time deadline; // of the phase; when it passes the socket is shut
    char method[16], path[BT_HTTP_PATH_MAX], peer[64];
    const bt_http_route *route;
    unsigned refused; // a status to answer when the body is over, 0 = none
    const char *refused_why;
    bt_buf body, out;
    size_t body_held; // bytes counted in the server's body_bytes_total
    size_t dropped;   // bytes of a refused body
    size_t sent;      // bytes of `out` that have been given to the daemon
    void *data;
    unsigned status, header_count;
    const char *content_type;
    struct {
        char name[32], value[256];
    } headers[BT_HTTP_HEADERS_MAX];
};

struct bt_http {
    bt_loop *loop;
    struct MHD_Daemon *daemon;
    bt_http_limits limits;
    bt_http_handler handler;
    bt_watch ready; // the daemon's own epoll
    bt_turn turn;
    bt_timer sweep;
    int listen_fd;
    uint16_t port;
    bool quiet, open;
    size_t body_bytes_total;
    uint32_t connection_count;
    bt_http_request *slots; // [connections_max + 1]
    uint32_t slot_count;
};

enum MHD_Result bt_http_on_call(void *server, struct MHD_Connection *connection, const char *url, const char *method,
                                const char *version, const char *data, size_t *data_bytes, void **context);
void bt_http_on_completed(void *server, struct MHD_Connection *connection, void **context,
                          enum MHD_RequestTerminationCode code);
// The client is gone or has run out of time: tells the application, once, and lets the daemon close the connection.
void bt_http_lose(bt_http_request *request);
void bt_http_forget(bt_http_request *request); // frees what the request held
