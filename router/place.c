#include "router/place.h"
#include "common/base/rng.h"

// A node as a choice. Less is better, in this order; what only others can do better is never out of the question.
typedef struct {
    uint32_t node; // BT_REQUEST_NONE = no choice yet
    bool failed;   // this request before
    uint64_t cost, tie;
} choice;

static bool
is_better(const choice *a, const choice *b)
{
    if (b->node == BT_REQUEST_NONE || a->failed != b->failed)
        return b->node == BT_REQUEST_NONE || b->failed;
    return a->cost != b->cost ? a->cost < b->cost : a->tie < b->tie;
}

static void
keep_better(choice *best, const choice *other)
{
    if (is_better(other, best))
        *best = *other;
}

static uint64_t
tie_of(const bt_node *node, const bt_request *request, const bt_router_limits *limits)
{
    uint64_t own = request->session != 0 && limits->place == BT_PLACE_OURS ? request->session : request->tag;

    return bt_mix64(bt_mix64(limits->seed ^ own) ^ node->name);
}

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
    return !node->hello.draining && blocks <= node->hello.blocks &&
           request->prompt_count + request->max_tokens <= node->hello.context;
}

static bool
takes_now(const bt_node *node, uint32_t blocks, bt_time now)
{
    return node->busy_until <= now && bt_breaker_allows(&node->breaker, now) &&
           (has_room(node, blocks) || node->reserving < lookahead(node));
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

static uint64_t
prefill_cost(const bt_node *node, uint32_t tokens, const bt_router_limits *limits)
{
    switch (limits->place) {
    case BT_PLACE_LEAST_LOAD:
        return node->prompts;
    case BT_PLACE_RANDOM:
        return 0;
    case BT_PLACE_OURS:
        break;
    }
    return reading_time(node, tokens);
}

static uint64_t
decode_cost(const bt_node *node, const bt_router_limits *limits)
{
    switch (limits->place) {
    case BT_PLACE_LEAST_LOAD:
        return node->requests;
    case BT_PLACE_RANDOM:
        return 0;
    case BT_PLACE_OURS:
        break;
    }
    return node->blocks + node->requests;
}

// Could this node read the prompt for that one, now or when it has room?
static bool
suits(const bt_node *node, const bt_node *decode, const bt_request *request)
{
    uint64_t pool = (uint64_t)node->hello.blocks * node->hello.block_tokens;

    return node->hello.model == decode->hello.model && node->hello.layout == decode->hello.layout &&
           request->prompt_count <= node->hello.context && request->prompt_count <= pool;
}

// The best prefill node with room; `full` when there are some without.
static choice
find_prefill(const bt_registry *registry, const bt_request *request, const bt_node *decode, uint32_t tokens,
             const bt_router_limits *limits, bt_time now, bool *full)
{
    choice best = {.node = BT_REQUEST_NONE};

    *full = false;
    for (uint32_t n = 0; n < decode->source_count; n++) {
        choice c = {.node = bt_registry_source(registry, decode, n)};
        const bt_node *node = c.node != BT_REQUEST_NONE ? &registry->nodes[c.node] : NULL;

        if (node == NULL || !suits(node, decode, request) || !bt_breaker_allows(&node->breaker, now))
            continue;
        if (node->busy_until > now || node->prompts >= node->hello.queue) {
            *full = true;
            continue;
        }
        c.failed = c.node == request->prefill_failed;
        c.cost = prefill_cost(node, tokens, limits);
        c.tie = tie_of(node, request, limits);
        keep_better(&best, &c);
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
    choice best[2] = {{.node = BT_REQUEST_NONE}, {.node = BT_REQUEST_NONE}};
    bool paired = false;

    for (uint32_t i = 0; i < registry->decodes.count; i++) {
        choice c = {.node = registry->decodes.nodes[i]};
        const bt_node *node = &registry->nodes[c.node];
        uint32_t blocks = bt_registry_worst_blocks(node, request);
        bool takes = takes_now(node, blocks, now), full = false, alone = false;

        if (!could_take(node, request, blocks))
            continue;
        c.failed = c.node == request->decode_failed;
        c.cost = decode_cost(node, limits);
        c.tie = tie_of(node, request, limits);
        if (paired && (!takes || !is_better(&c, &best[0])))
            continue; // whatever its prefill nodes do
        if (must_be_remote(registry, node, limits) && may_be_remote(request))
            alone = find_prefill(registry, request, node, request->prompt_count, limits, now, &full).node ==
                    BT_REQUEST_NONE;
        paired |= !alone || full;
        if (takes && !alone)
            keep_better(&best[0], &c);
        if (takes)
            keep_better(&best[1], &c);
    }
    return (bt_decode_place){best[!paired].node, !paired};
}

bt_prefill_place
bt_place_prefill(const bt_registry *registry, const bt_request *request, uint32_t decode, uint32_t tokens,
                 const bt_router_limits *limits, bt_time now)
{
    const bt_node *at = &registry->nodes[decode];
    bool full, must = must_be_remote(registry, at, limits);
    choice best = find_prefill(registry, request, at, tokens, limits, now, &full);
    bool none = best.node == BT_REQUEST_NONE;
    uint64_t there;

    if (!may_be_remote(request))
        return (bt_prefill_place){.node = BT_REQUEST_NONE, .degraded = must};
    if (must)
        return (bt_prefill_place){.node = best.node, .wait = none && full, .degraded = none, .unpaired = none && !full};
    if (none || best.failed || tokens < limits->remote_tokens_min)
        return (bt_prefill_place){.node = BT_REQUEST_NONE};
    there = best.cost + (uint64_t)tokens * 1000000 / RATE_TRANSFER;
    if (limits->place == BT_PLACE_OURS && there + there / 8 >= reading_time(at, tokens))
        return (bt_prefill_place){.node = BT_REQUEST_NONE};
    return (bt_prefill_place){.node = best.node};
}
