#include "router/place.h"
#include "common/base/rng.h"

// How many reserves may wait at a node for room.
static uint32_t
lookahead(const bt_node *node)
{
    uint32_t ahead = node->hello.sequences / 4 + 1;

    return ahead < node->hello.queue ? ahead : node->hello.queue;
}

static bool
has_room(const bt_node *node, uint32_t blocks)
{
    return node->requests < node->hello.sequences && node->blocks + blocks <= node->hello.blocks;
}

static bool
may_take(const bt_node *node, const bt_request *request, uint32_t blocks, bt_time now)
{
    if (!bt_node_decodes(node) || node->hello.draining || node->busy_until > now)
        return false;
    if (blocks > node->hello.blocks || request->prompt_count + request->max_tokens > node->hello.context)
        return false;
    return has_room(node, blocks) || node->reserving < lookahead(node);
}

static uint64_t
tie_hash(const bt_node *node, const bt_request *request, uint64_t seed)
{
    uint64_t hash = bt_mix64(seed ^ (request->session != 0 ? request->session : request->tag));

    for (const char *c = node->hello.name; *c != 0; c++)
        hash = bt_mix64(hash ^ (uint64_t)(unsigned char)*c);
    return hash;
}

uint32_t
bt_place_decode(const bt_registry *registry, const bt_request *request, uint64_t seed, bt_time now)
{
    uint32_t best = BT_REQUEST_NONE;
    uint64_t best_cost = 0, best_tie = 0;

    for (uint32_t i = 0; i < BT_ROUTER_NODES_MAX; i++) {
        const bt_node *node = &registry->nodes[i];
        uint64_t cost, tie;

        if (!bt_node_decodes(node) || !may_take(node, request, bt_registry_worst_blocks(node, request), now))
            continue;
        cost = node->blocks + node->requests;
        tie = tie_hash(node, request, seed);
        if (best == BT_REQUEST_NONE || cost < best_cost || (cost == best_cost && tie < best_tie)) {
            best = i;
            best_cost = cost;
            best_tie = tie;
        }
    }
    return best;
}

// Until something is measured: rates in tokens a second, and how fast blocks travel.
#define RATE_PREFILL 8000u
#define RATE_DECODE 2000u
#define RATE_TRANSFER 200000u

// Microseconds until the node has read its queue and so many tokens more.
static uint64_t
reading_time(const bt_node *node, uint64_t tokens)
{
    uint64_t rate = node->prefill_rate != 0               ? node->prefill_rate
                    : node->hello.role == BT_NODE_PREFILL ? RATE_PREFILL
                                                          : RATE_DECODE;

    return (node->prefill_tokens + tokens) * 1000000 / rate;
}

// Could this node read the prompt for that one, now or when it has room?
static bool
suits(const bt_node *node, const bt_node *decode, const bt_request *request)
{
    uint64_t pool = (uint64_t)node->hello.blocks * node->hello.block_tokens;

    return node->state == BT_NODE_READY && node->hello.role == BT_NODE_PREFILL && !node->hello.draining &&
           node->hello.model == decode->hello.model && node->hello.layout == decode->hello.layout &&
           request->prompt_count <= node->hello.context && request->prompt_count <= pool;
}

typedef struct {
    uint32_t node;
    uint64_t time, tie;
    bool failed; // this request before: only where there is no other
} candidate;

static bool
is_better(const candidate *a, const candidate *b)
{
    if (b->node == BT_REQUEST_NONE || a->failed != b->failed)
        return b->node == BT_REQUEST_NONE || b->failed;
    return a->time != b->time ? a->time < b->time : a->tie < b->tie;
}

// The best prefill node with room; `full` when there are some without.
static candidate
find_prefill(const bt_registry *registry, const bt_request *request, const bt_node *decode, uint32_t tokens,
             uint64_t seed, bt_time now, bool *full)
{
    candidate best = {.node = BT_REQUEST_NONE};

    *full = false;
    for (uint32_t i = 0; i < BT_ROUTER_NODES_MAX; i++) {
        const bt_node *node = &registry->nodes[i];
        candidate c = {.node = i, .failed = i == request->prefill_failed};

        if (!suits(node, decode, request))
            continue;
        if (node->busy_until > now || node->prompts >= node->hello.queue) {
            *full = true;
            continue;
        }
        c.time = reading_time(node, tokens);
        c.tie = tie_hash(node, request, seed);
        if (is_better(&c, &best))
            best = c;
    }
    return best;
}

bt_prefill_place
bt_place_prefill(const bt_registry *registry, const bt_request *request, uint32_t decode, uint32_t tokens,
                 const bt_router_limits *limits, bt_time now)
{
    const bt_node *at = &registry->nodes[decode];
    bool differs = registry->prompt_weights != 0 ? registry->prompt_weights != at->hello.weights : limits->two_weights;
    bool full;
    bool must = differs && !limits->inexact;
    candidate best = find_prefill(registry, request, at, tokens, limits->seed, now, &full);
    uint64_t there = best.time + (uint64_t)tokens * 1000000 / RATE_TRANSFER;

    if (request->prompt_logprobs || request->prefill_failures >= BT_PREFILL_FAILURES_MAX)
        return (bt_prefill_place){.node = BT_REQUEST_NONE, .degraded = must};
    if (must)
        return (bt_prefill_place){
            .node = best.node, .wait = best.node == BT_REQUEST_NONE && full, .degraded = best.node == BT_REQUEST_NONE};
    if (best.node == BT_REQUEST_NONE || best.failed || tokens < limits->remote_tokens_min ||
        there + there / 8 >= reading_time(at, tokens))
        return (bt_prefill_place){.node = BT_REQUEST_NONE};
    return (bt_prefill_place){.node = best.node};
}
