// Which decode node a request goes to, and who reads its prompt.
//
// Cost = blocks in use and to come + active sequences, integers, so that decisions replay; ties by a seeded hash of the session (or
// request) and the node's name, which pins sessions softly. A node that is full takes a few more into its own queue, so that its next
// step never waits for a message of ours; the rest stays here, in our order. Pure.
#pragma once

#include "router/registry.h"

// A prompt goes to a prefill node iff at least `remote_tokens_min` of its tokens are to be computed and the time predicted there (its
// queue and the prompt at its measured rate, and the transfer) is an eighth shorter than at the decode node. Where the two hold different
// weights, it goes there whatever it costs, unless limits say `inexact`: an answer is its prompt through the prefill weights (DESIGN 1.7).
// Among prefill nodes the shortest queue, in time, is taken. Prompts to be scored stay at the decode node.

// A prompt that must go to a prefill node goes to decode nodes that can fetch from one, and waits for their room.
typedef struct {
    uint32_t node; // BT_REQUEST_NONE when none should be given it now
    bool
        unpaired; // it must go to a prefill node, and no decode node can fetch from one that suits it: `node` would read it itself
} bt_decode_place;

bt_decode_place bt_place_decode(const bt_registry *registry, const bt_request *request, const bt_router_limits *limits,
                                bt_time now);

#define BT_PREFILL_FAILURES_MAX 3 // of a request; then its decode node reads the prompt

typedef struct {
    uint32_t node; // the prefill node; BT_REQUEST_NONE = the decode node itself
    bool wait;     // neither now: prefill nodes that must do it are only full
    bool degraded; // the decode node does it with other weights than should
    bool unpaired; // because it cannot fetch from a prefill node that suits
} bt_prefill_place;

// `tokens` of the prompt are to be computed for the decode node.
bt_prefill_place bt_place_prefill(const bt_registry *registry, const bt_request *request, uint32_t decode,
                                  uint32_t tokens, const bt_router_limits *limits, bt_time now);
