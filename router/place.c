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
    if (node->state != BT_NODE_READY || node->hello.draining || node->busy_until > now)
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

        if (node->state != BT_NODE_READY || !may_take(node, request, bt_registry_worst_blocks(node, request), now))
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
