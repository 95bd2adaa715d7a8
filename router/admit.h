// Who is let in. Everything here is asked before any work is done for a request: its shape, its length, then whether there is room
// to wait. Pure.
#pragma once

#include "router/core.h"
#include "router/registry.h"

// What a request is let in with, or why not.
typedef struct {
    bt_err err;
    uint32_t max_tokens;         // BT_OK: with the default filled in
    uint32_t tokens, tokens_max; // TOO_LONG
    bt_time retry_after;         // BUSY; 0 = bt_admit_retry_after says it
} bt_admission;

bt_admission bt_admit(const bt_router_limits *limits, const bt_registry *registry, const bt_requests *requests,
                      const bt_router_arrival *arrival);

// When a client that was turned away should come back: the queue's work at the rate that requests end here, 1 to 60 s.
bt_time bt_admit_retry_after(const bt_requests *requests, bt_time between_ends);
// A time within those limits.
bt_time bt_admit_bounded(bt_time wait);
