// One GET over a connection of its own, for programs that look at others: blocks until a deadline and no longer.
#pragma once

#include "common/base/buf.h"
#include "common/base/time.h"

typedef struct {
    char host[256], port[8];
} bt_get_server;

// "http://HOST:PORT", "HOST:PORT" or "HOST" (then `port`); a path behind it is passed over, [::1] is an address. BT_ERR_INVALID says why.
bt_err bt_get_parse(bt_get_server *out, const char *url, const char *port, bt_why *why);

// The body is appended to `body`, each line with its end; `status` is HTTP's. `key`: NULL or a Bearer key. BT_ERR_PEER and BT_ERR_TIMEOUT
// with the reason in `why`: nobody there, or no answer.
bt_err bt_get(const bt_get_server *server, const char *path, const char *key, bt_time deadline, unsigned *status,
              bt_buf *body, bt_why *why);
