// Keeps requests away from a node that fails them, and finds out when it no longer does.
//
//     CLOSED ──enough errors, and enough of all, within the window──▶ OPEN ──its time is over──▶ HALF-OPEN
//        ▲                                                              ▲                            │ one request
//        └──────────────────── it went well ─────────────────────────── │ ◀── it failed: twice as long ──┘
//
// What a client did wrong is no outcome, nor is a refusal for lack of room. Requests that were given to the node before it opened say
// nothing about it afterwards: only the probe does. A node that comes back as another program begins with a zeroed breaker.
// Private to the router's core. Pure.
#pragma once

#include "common/base/time.h"

#include <stdbool.h>
#include <stdint.h>

#define BT_BREAKER_SLICES 10

typedef struct {
    uint32_t errors;        // within the window, at least; 0 = 5
    uint32_t share_percent; // of all outcomes within it, at least; 0 = 50
    bt_time window;         // 0 = 30 s
    bt_time open;           // the first time; doubles with each probe that fails, up to twelve times that; 0 = 5 s
} bt_breaker_limits;

typedef enum { BT_BREAKER_CLOSED, BT_BREAKER_OPEN, BT_BREAKER_HALF_OPEN } bt_breaker_state;

const char *bt_breaker_name(bt_breaker_state state);

typedef struct {
    struct {
        uint32_t good, bad;
    } slices[BT_BREAKER_SLICES]; // of the window, as a ring
    int64_t slice;               // the newest: time in slices
    bool open, probing;
    bt_time until;     // open: no probe before
    bt_time open_time; // of this opening
} bt_breaker;

void bt_breaker_fill_defaults(bt_breaker_limits *limits);

bt_breaker_state bt_breaker_look(const bt_breaker *breaker, bt_time now);
// May the node be given a request now?
bool bt_breaker_allows(const bt_breaker *breaker, bt_time now);
// It is given one, allowed or not. True when that is the probe: then exactly one call of end_probe or note(probe) follows.
bool bt_breaker_begin(bt_breaker *breaker, bt_time now);
// The probe came to nothing: cancelled, refused for lack of room.
void bt_breaker_end_probe(bt_breaker *breaker);
// How a request went. True when the breaker opened or closed by it.
bool bt_breaker_note(bt_breaker *breaker, const bt_breaker_limits *limits, bt_time now, bool good, bool probe);
