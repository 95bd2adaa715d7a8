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

// Could it hold this request, now or later?
static bool
could_take(const bt_node *node, const bt_request *request, uint32_t blocks)
{
    return bt_node_decodes(node) && !node->hello.draining && blocks <= node->hello.blocks &&
           request->prompt_count + request->max_tokens <= node->hello.context;
}

static bool
takes_now(const bt_node *node, uint32_t blocks, bt_time now)
{
    return node->busy_until <= now && (has_room(node, blocks) || node->reserving < lookahead(node));
}

static uint64_t
tie_hash(const bt_node *node, const bt_request *request, uint64_t seed)
{
    uint64_t hash = bt_mix64(seed ^ (request->session != 0 ? request->session : request->tag));

    for (const char *c = node->hello.name; *c != 0; c++)
        hash = bt_mix64(hash ^ (uint64_t)(unsigned char)*c);
    return hash;
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

    return bt_node_fetches_from(decode, node) && !node->hello.draining && node->hello.model == decode->hello.model &&
           node->hello.layout == decode->hello.layout && request->prompt_count <= node->hello.context &&
           request->prompt_count <= pool;
}

typedef struct {
    uint32_t node;
    uint64_t cost, tie; // of a prefill node: microseconds until it has read the prompt
    bool failed;        // this request before: only where there is no other
} candidate;

static bool
is_better(const candidate *a, const candidate *b)
{
    if (b->node == BT_REQUEST_NONE || a->failed != b->failed)
        return b->node == BT_REQUEST_NONE || b->failed;
    return a->cost != b->cost ? a->cost < b->cost : a->tie < b->tie;
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
        c.cost = reading_time(node, tokens);
        c.tie = tie_hash(node, request, seed);
        if (is_better(&c, &best))
            best = c;
    }
    return best;
}

// Is its prompt another one when this decode node reads it?
static bool
must_be_remote(const bt_registry *registry, const bt_node *decode, const bt_router_limits *limits)
{
    bool differs =
        registry->prompt_weights != 0 ? registry->prompt_weights != decode->hello.weights : limits->two_weights;

    return differs && !limits->inexact;
}

static bool
may_be_remote(const bt_request *request)
{
    return !request->prompt_logprobs && request->prefill_failures < BT_PREFILL_FAILURES_MAX;
}

bt_decode_place
bt_place_decode(const bt_registry *registry, const bt_request *request, const bt_router_limits *limits, bt_time now)
{
    // [0] with a prefill node where it needs one, [1] whatever the weights
    candidate best[2] = {{.node = BT_REQUEST_NONE}, {.node = BT_REQUEST_NONE}};
    bool paired = false;

    for (uint32_t i = 0; i < BT_ROUTER_NODES_MAX; i++) {
        const bt_node *node = &registry->nodes[i];
        uint32_t blocks = bt_node_decodes(node) ? bt_registry_worst_blocks(node, request) : 0;
        candidate c = {.node = i, .cost = node->blocks + node->requests};
        bool full = false, alone = false;

        if (!could_take(node, request, blocks))
            continue;
        if (must_be_remote(registry, node, limits) && may_be_remote(request))
            alone = find_prefill(registry, request, node, request->prompt_count, limits->seed, now, &full).node ==
                    BT_REQUEST_NONE;
        paired |= !alone || full;
        if (!takes_now(node, blocks, now))
            continue;
        c.tie = tie_hash(node, request, limits->seed);
        if (!alone && is_better(&c, &best[0]))
            best[0] = c;
        if (is_better(&c, &best[1]))
            best[1] = c;
    }
    return (bt_decode_place){best[!paired].node, !paired};
}

bt_prefill_place
bt_place_prefill(const bt_registry *registry, const bt_request *request, uint32_t decode, uint32_t tokens,
                 const bt_router_limits *limits, bt_time now)
{
    const bt_node *at = &registry->nodes[decode];
    bool full, must = must_be_remote(registry, at, limits);
    candidate best = find_prefill(registry, request, at, tokens, limits->seed, now, &full);
    uint64_t there = best.cost + (uint64_t)tokens * 1000000 / RATE_TRANSFER;
    bool none = best.node == BT_REQUEST_NONE;

    if (!may_be_remote(request))
        return (bt_prefill_place){.node = BT_REQUEST_NONE, .degraded = must};
    if (must)
        return (bt_prefill_place){.node = best.node, .wait = none && full, .degraded = none, .unpaired = none && !full};
    if (none || best.failed || tokens < limits->remote_tokens_min || there + there / 8 >= reading_time(at, tokens))
        return (bt_prefill_place){.node = BT_REQUEST_NONE};
    return (bt_prefill_place){.node = best.node};
}
