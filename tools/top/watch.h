// Looks at a router (GET /v1/cluster and /metrics) and at the nodes whose status address that names, and makes views of what changed
// between looks.
//
//     bt_top_watch_open(&watch, &server, key, &why);
//     bt_top_look(watch, &view, &why)      again and again; the first view has no rates
//     bt_top_watch_close(watch);
#pragma once

#include "tools/top/get.h"
#include "tools/top/view.h"

typedef struct bt_top_watch bt_top_watch;

bt_err bt_top_watch_open(bt_top_watch **out, const bt_get_server *server, const char *key, bt_why *why);
void bt_top_watch_close(bt_top_watch *watch); // NULL is fine

// Takes at most some three seconds. On an error (the router does not answer, or not as one) the view stays as it was. A node that does
// not answer only lacks its rates, and is not asked at the next looks.
bt_err bt_top_look(bt_top_watch *watch, bt_top_view *view, bt_why *why);
