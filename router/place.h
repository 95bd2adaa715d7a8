// Which decode node a request goes to, and who reads its prompt. Pure: integers, and ties by a seeded hash of the session (or request) and
// the node's name, so that decisions replay.
//
// **A decode node** by blocks in use and to come + active sequences + what would have to be sent or read for it. A session stays where it
// was, softly: no node with more than 1.25 times the mean of requests is taken while another has room (below an eighth of its sequences a
// node is never too full). A node that is full takes a few more into its own queue, so that its next step never waits for a message of
// ours; the rest stays here, in our order.
//
// **A prefill node** iff at least `remote_tokens_min` tokens of the prompt are to be computed for the decode node and the time predicted
// there (its queue, what it does not have of the prompt, the transfer, all at measured rates) is an eighth shorter than at the decode
// node, where the answers that would wait meanwhile count too. Prompts that share steps share their time when rates are measured; of a
// decode node that never read one a half of the prefill nodes' rate is expected, a quarter where its weights are others (registry.h). So
// one prefill node and one decode node do as two decode nodes would where those are better (tools/README.md, "Two GPUs").
// Where the two hold different weights, a prompt goes to a prefill node whatever it costs, unless limits say `inexact`: an answer is its
// prompt through the prefill weights (DESIGN 1.7). The shortest such time is taken; a queue above 1.25 times the mean, in time, is too long
// while another is shorter, so that a beginning that all prompts share is read at more and more nodes. Prompts to be scored stay at the
// decode node.
//
// A node that failed this very request is the last choice. One whose breaker does not let it is none, unless no decode node is let: an
// only node that fails is asked all the same.
#pragma once

#include "router/affinity.h"
#include "router/registry.h"

// What a choice is made from. `affinity` has looked at the request (bt_affinity_look).
typedef struct {
    const bt_registry *registry;
    const bt_affinity *affinity;
    const bt_router_limits *limits;
    bt_time now;
} bt_placing;

// A prompt that must go to a prefill node goes to decode nodes that can fetch from one, and waits for their room.
typedef struct {
    uint32_t node; // BT_REQUEST_NONE when none should be given it now
    // It must go to a prefill node, and no decode node can fetch from one that suits it: `node` would read it itself.
    bool unpaired;
} bt_decode_place;

bt_decode_place bt_place_decode(const bt_placing *p, const bt_request *request);

#define BT_PREFILL_FAILURES_MAX 3 // of a request; then its decode node reads the prompt

typedef struct {
    uint32_t node;   // the prefill node; BT_REQUEST_NONE = the decode node itself
    uint32_t tokens; // of the prompt, that it has to compute
    bool wait;       // neither now: prefill nodes that must do it are only full
    bool degraded;   // the decode node does it with other weights than should
    bool unpaired;   // because it cannot fetch from a prefill node that suits
} bt_prefill_place;

// `tokens` of the prompt are to be computed for the decode node.
bt_prefill_place bt_place_prefill(const bt_placing *p, const bt_request *request, uint32_t decode, uint32_t tokens);

// Time to the first token as it would be now, from measured rates alone: what was not measured yet counts as nothing.
bt_time bt_place_predict(const bt_placing *p, const bt_request *request, uint64_t queued_tokens);
