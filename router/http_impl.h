// What the parts of the HTTP edge share: http.c (routes, keys, small answers), http_answer.c (what becomes of a call).
#pragma once

#include "router/call.h"
#include "router/http.h"

struct bt_router_http {
    bt_loop *loop;
    bt_router_http_options options;
    bt_http *server;
    bt_calls *calls;
    bt_time started;
    bt_openai_logprobs logprobs; // scratch: those that are being written
};

// http.c
// Takes or draws the request's name and puts it into the answer's headers.
void bt_router_http_name(bt_router_http *http, bt_http_request *request, char name[BT_REQUEST_NAME_MAX + 1]);
void bt_router_http_answer(bt_router_http *http, bt_http_request *request, unsigned status, const char *type);
// With Retry-After where the error says so.
void bt_router_http_refuse(bt_router_http *http, bt_http_request *request, const bt_openai_error *error);

// http_answer.c
void bt_router_http_call(bt_router_http *http, bt_http_request *request, bt_text_task task, bt_openai_kind kind);
void bt_router_http_gone(void *http, bt_http_request *request); // the client is

// http_cluster.c
void bt_router_http_write_cluster(bt_router_http *http, bt_buf *out);
// Metrics of each node that there is a link to.
void bt_router_http_write_nodes(bt_router_http *http, bt_buf *out, const char *labels);
