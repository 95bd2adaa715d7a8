// What the files of the router's core share: core.c (events of the edge, time), answer.c (what nodes say), remote.c (prompts that are read
// elsewhere than they are answered), retry.c, known.c and phases.c. Nobody else includes this but what checks the
// core from inside (tests/sim).
#pragma once

#include "router/affinity.h"
#include "router/core.h"
#include "router/place.h"
#include "router/registry.h"

struct bt_router {
    bt_router_limits limits;
    bt_requests requests;
    bt_registry registry;
    bt_affinity affinity;
    bt_router_stats stats;
    bool draining;
    bt_time last_step;
    bt_time next_heartbeat;
    bt_time next_expiry; // no deadline of a request is earlier; it may have ended meanwhile
    bt_time last_end;    // of a request that ran to its end
    bt_time between_ends;
    uint64_t heartbeats;
    uint32_t retry_saved;   // tenths of a retry
    uint32_t watched;       // nodes that had this heartbeat
    bt_time unpaired_since; // no decode node can fetch from any prefill node; BT_TIME_NEVER while one can
    // The first of the queue when it last found no place: not tried again until its generation, the registry or the time is another.
    uint32_t stuck, stuck_generation;
    uint64_t stuck_version;
    bt_time stuck_until;
    bool unfinished;             // the actions were full; a TICK goes on
    bt_router_attempt *attempts; // [2 requests_max] that ended in this step
    uint32_t attempt_count;
};

// Room for one request's worst: two ABORTs and a FINISHED.
#define BT_ROUTER_ACTIONS_SPARE 3

static inline bool
bt_router_room(const bt_router_actions *out)
{
    return out->count + BT_ROUTER_ACTIONS_SPARE <= BT_ROUTER_ACTIONS_MAX;
}

bt_router_action *bt_router_act(bt_router_actions *out, bt_router_action_kind kind);
bt_message *bt_router_say(bt_router_actions *out, uint32_t node, bt_message_kind kind);

// Tells the nodes that have it that the request is over for us.
void bt_router_abort(bt_router *router, bt_request *request, bt_router_actions *out);

// The request leaves its node, if it has one, and goes back into the queue with the answer it has.
void bt_router_requeue(bt_router *router, bt_request *request);

// The request is over: FINISHED goes out, the slot is free.
void bt_router_finish(bt_router *router, bt_time now, bt_request *request, bt_finish finish, bt_err err,
                      bt_router_actions *out);

// All requests of the node go back into the queue.
void bt_router_leave_node(bt_router *router, uint32_t node, bt_router_actions *out);

// Leaves a node that has a link and can no longer be believed, and greets it anew: a HELLO voids what it has of ours.
void bt_router_greet_again(bt_router *router, bt_time now, uint32_t node, bt_router_actions *out);

// The request could not go on where it is, and goes back into the queue, counted as moved.
void bt_router_move_on(bt_router *router, bt_request *request, bt_move_cause cause);

// phases.c
// The first token has come, with the node's own durations. From now on the request knows where its time went.
void bt_phases_note(bt_request *request, bt_time now, const bt_phases *durations);
void bt_attempt_begin(bt_request *request, bt_time now);
// It ends now: moved because of `cause`, or (not `moved`) over.
void bt_attempt_end(bt_router *router, bt_request *request, bool moved, bt_move_cause cause, bt_finish finish,
                    bt_err err);

// retry.c
void bt_retry_init(bt_router *router);
void bt_retry_save(bt_router *router); // a request was let in
// Is it the node's fault, and not the client's or a lack of room?
bool bt_retry_is_fault(bt_err err);
// Tells the breaker of the request's decode or prefill node how it went.
void bt_retry_note(bt_router *router, bt_time now, bt_request *request, uint32_t node, bool good);
// One of its two nodes failed the request, and neither works on it any more: it is tried anew, or is over.
void bt_retry(bt_router *router, bt_time now, bt_request *request, uint32_t node, bt_err err, bt_router_actions *out);

// No pair of nodes suits a request whose prompt must be read by prefill weights: may its decode node read it now? Nodes that come back
// soon are waited for, a while that begins when the last pair was lost.
bool bt_router_may_degrade(bt_router *router, bt_time now);

// known.c
// What a choice for this request is made from; good until the next look.
bt_placing bt_known_look(bt_router *router, bt_time now, bt_request *request);
void bt_known_placed(bt_router *router, const bt_request *request); // at its decode node, and its prompt is read
void bt_known_answered(bt_router *router, bt_request *request);     // to its end
void bt_known_hello(bt_router *router, uint32_t node);              // which has just said who it is

// remote.c
// The decode node has room: somebody reads the prompt now.
void bt_remote_begin(bt_router *router, bt_time now, bt_request *request, const bt_ticket *ticket,
                     bt_router_actions *out);
// The prefill node, if there is one, is told that it is over for us; nobody reads the prompt any more.
void bt_remote_abort(bt_router *router, bt_request *request, bt_router_actions *out);
// The prefill node did not read the prompt, or its blocks did not come.
void bt_remote_failed(bt_router *router, bt_time now, bt_request *request);
// The answer has begun at the decode node.
void bt_remote_done(bt_router *router, bt_request *request);
// The prompt is read and offered.
void bt_remote_read(bt_router *router, bt_time now, bt_request *request, const bt_tokens_entry *entry);
// A prefill node is lost.
void bt_remote_leave_node(bt_router *router, uint32_t node, bt_router_actions *out);

// The job of a request for a node, complete.
bt_job bt_router_job(const bt_router *router, const bt_request *request, bt_time now);

// answer.c
void bt_router_hear(bt_router *router, bt_time now, uint32_t node, const bt_message *message, bt_router_actions *out);
