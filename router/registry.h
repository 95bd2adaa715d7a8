// The nodes as the router knows them: what they said they are, when they were last heard, and the load the router gave them.
//
// Load is counted when a request is given to a node, before anything is sent, and lowered once on every way out (DESIGN 4.3).
// Private to the router's core. One thread. Memory is allocated at init, for `nodes_max` nodes.
#pragma once

#include "common/wire/message.h"
#include "router/core.h"
#include "router/request.h"

// How fast prompts are read: tokens over time in which there were some to read, each prompt an eighth less than the one after it. Prompts
// that share steps share their time, so that a node that packs four into one is not believed to be four times as slow.
typedef struct {
    uint64_t tokens, us;
} bt_reading;

typedef struct {
    bt_node_state state;
    bt_hello hello;
    bt_router_refusal refusal;
    uint64_t name;       // hash of it
    bt_heartbeat load;   // as it says, without its sources
    uint64_t last_epoch; // outlives the link, as do the rates
    bt_time heard;
    bt_time busy_until; // it or its link refused a reserve: none before
    bt_breaker breaker;
    uint64_t tokens_number; // of the last TOKENS message
    // As we count:
    uint32_t requests;       // given to it and not over
    uint32_t reserving;      // of them without a ticket
    uint64_t blocks;         // worst case of those
    uint32_t prompts;        // being read there
    uint64_t prefill_tokens; // of them, to be computed
    bt_reading reading;      // as measured
    uint64_t prefill_rate;   // of it, tokens a second; 0 = not yet
    bt_time measured;        // when that was: the last prompt was read
    uint64_t transfer_rate;  // of a decode node: the same, from the last offer of a prompt until all of it is there
    // Of a decode node: the programs of prefill nodes that it can fetch from, and which nodes those were when last looked for.
    uint32_t source_count;
    uint64_t *sources;      // [BT_SOURCES_MAX] epochs
    uint32_t *source_nodes; // [BT_SOURCES_MAX] BT_REQUEST_NONE = not met
} bt_node;

// Nodes of a kind that are READY, in rising order: placement looks at no others.
typedef struct {
    uint32_t *nodes;
    uint32_t count;
} bt_node_list;

typedef struct {
    bt_node *nodes; // [nodes_max]
    uint32_t nodes_max;
    bt_node_list decodes, prefills;
    bt_reading typical_readings[2];                   // of all nodes of a role
    uint64_t typical_rates[2], typical_transfer_rate; // the same, as measured; 0 = not yet
    uint64_t decode_requests;                         // given to decode nodes and not over
    uint64_t prompt_weights;                          // of the prefill nodes, as last heard; 0 = there was none
    uint64_t version;                                 // another one whenever there may be room where there was none
    uint64_t *sources;                                // behind the nodes'
    uint32_t *source_nodes;
} bt_registry;

bt_err bt_registry_init(bt_registry *registry, uint32_t nodes_max);
void bt_registry_fini(bt_registry *registry); // accepts a zeroed one

void bt_registry_met(bt_registry *registry, uint32_t node, bt_time now);
void bt_registry_lost(bt_registry *registry, uint32_t node); // its requests must have left it
void bt_registry_refuse(bt_registry *registry, uint32_t node, const bt_hello *hello, const bt_router_refusal *refusal);
void bt_registry_hello(bt_registry *registry, uint32_t node, const bt_hello *hello, bt_time now);
void bt_registry_heartbeat(bt_registry *registry, uint32_t node, const bt_heartbeat *heartbeat);
// It takes nothing new until then; a time that is past ends that.
void bt_registry_busy(bt_registry *registry, uint32_t node, bt_time until);

// Blocks that the request may come to hold there.
uint32_t bt_registry_worst_blocks(const bt_node *node, const bt_request *request);
// Sets request->node; it has no ticket yet.
void bt_registry_count(bt_registry *registry, uint32_t node, bt_request *request, bt_time now);
void bt_registry_ticketed(bt_registry *registry, const bt_request *request); // or it goes without one
void bt_registry_uncount(bt_registry *registry, bt_request *request);        // clears it

// The same for a prompt of so many tokens that is read at `node`, whichever kind that is; sets and clears request->prefill_at.
void bt_registry_count_prefill(bt_registry *registry, uint32_t node, bt_request *request, uint32_t tokens);
void bt_registry_uncount_prefill(bt_registry *registry, bt_request *request); // may be called when nothing is counted
// The request's prefill node, beyond what is counted: as whose probe it may be sent, from given to left. Sets and clears request->prefill.
void bt_registry_give_prefill(bt_registry *registry, uint32_t node, bt_request *request, bt_time now);
void bt_registry_leave_prefill(bt_registry *registry, bt_request *request);
// A prompt of so many tokens took so long there, from its first step to the end of its last.
void bt_registry_measure_prefill(bt_registry *registry, uint32_t node, uint32_t tokens, bt_time duration, bt_time now);
// The last blocks of a prompt of so many tokens came so long after they were offered.
void bt_registry_measure_transfer(bt_registry *registry, uint32_t node, uint32_t tokens, bt_time duration);

static inline bool
bt_node_decodes(const bt_node *node)
{
    return node->state == BT_NODE_READY && node->hello.role == BT_NODE_DECODE;
}

// The decode node's n-th source, where that is a prefill node that is there and takes prompts; else BT_REQUEST_NONE.
uint32_t bt_registry_source(const bt_registry *registry, const bt_node *decode, uint32_t n);
// Tokens a second that the node is believed to read. One that was not measured reads like others of its kind, or faster; where no decode
// node was, half as fast as prefill nodes with the same weights, else a quarter. One that was found slow is believed to be twice as fast
// after each half a minute in which nobody asked it, up to what is typical, so that it is asked again.
uint64_t bt_registry_prefill_rate(const bt_registry *registry, const bt_node *node, bt_time now);
// From the last offer of a prompt until all of it is there.
uint64_t bt_registry_transfer_rate(const bt_registry *registry, const bt_node *node);

// Digest of the weights that prompts are read by.
uint64_t bt_registry_prompt_weights(const bt_registry *registry);
// Is there a pair of nodes that reads a prompt at one and answers at the other, drains not counted?
bool bt_registry_paired(const bt_registry *registry);

// Tokens of the longest sequence that some ready decode node can hold; 0 when none is ready.
uint32_t bt_registry_longest(const bt_registry *registry);
// A ready decode node that is not draining?
bool bt_registry_open(const bt_registry *registry);
// The first moment after `now` at which a node may take what it does not take now, without any event.
bt_time bt_registry_next_change(const bt_registry *registry, bt_time now);
