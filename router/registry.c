#include "router/registry.h"

#include <assert.h>
#include <string.h>

void
bt_registry_met(bt_registry *registry, uint32_t node, bt_time now)
{
    assert(registry->nodes[node].state == BT_NODE_DOWN);
    registry->nodes[node] = (bt_node){.state = BT_NODE_MET, .heard = now};
}

void
bt_registry_lost(bt_registry *registry, uint32_t node)
{
    assert(registry->nodes[node].requests == 0 && registry->nodes[node].prompts == 0);
    registry->up -= registry->nodes[node].state == BT_NODE_READY;
    registry->nodes[node] = (bt_node){.state = BT_NODE_DOWN};
}

void
bt_registry_hello(bt_registry *registry, uint32_t node, const bt_hello *hello, bt_time now)
{
    bt_node *self = &registry->nodes[node];

    registry->up += self->state != BT_NODE_READY;
    self->state = BT_NODE_READY;
    self->hello = *hello;
    self->load = (bt_heartbeat){.blocks_free = hello->blocks};
    self->heard = now;
    self->busy_until = 0;
    self->tokens_number = 0;
    if (hello->role == BT_NODE_PREFILL)
        registry->prompt_weights = hello->weights;
}

void
bt_registry_heartbeat(bt_registry *registry, uint32_t node, const bt_heartbeat *heartbeat)
{
    bt_node *self = &registry->nodes[node];

    self->load = *heartbeat;
    self->load.sources = self->sources;
    if (heartbeat->source_count > 0)
        memcpy(self->sources, heartbeat->sources, heartbeat->source_count * sizeof *self->sources);
}

bool
bt_node_fetches_from(const bt_node *decode, const bt_node *prefill)
{
    for (uint32_t i = 0; i < decode->load.source_count; i++) {
        if (decode->sources[i] == prefill->hello.epoch)
            return prefill->state == BT_NODE_READY && prefill->hello.role == BT_NODE_PREFILL;
    }
    return false;
}

bool
bt_registry_paired(const bt_registry *registry)
{
    for (uint32_t d = 0; d < BT_ROUTER_NODES_MAX; d++) {
        const bt_node *decode = &registry->nodes[d];

        if (!bt_node_decodes(decode) || decode->hello.draining)
            continue;
        for (uint32_t p = 0; p < BT_ROUTER_NODES_MAX; p++) {
            if (!registry->nodes[p].hello.draining && bt_node_fetches_from(decode, &registry->nodes[p]))
                return true;
        }
    }
    return false;
}

uint32_t
bt_registry_worst_blocks(const bt_node *node, const bt_request *request)
{
    uint32_t tokens = request->prompt_count + request->max_tokens, block = node->hello.block_tokens;

    return tokens / block + (tokens % block != 0);
}

void
bt_registry_count(bt_registry *registry, uint32_t node, bt_request *request)
{
    bt_node *self = &registry->nodes[node];

    assert(request->node == BT_REQUEST_NONE && self->state == BT_NODE_READY);
    request->node = node;
    request->node_blocks = bt_registry_worst_blocks(self, request);
    self->requests++;
    self->blocks += request->node_blocks;
}

void
bt_registry_uncount(bt_registry *registry, bt_request *request)
{
    bt_node *self = &registry->nodes[request->node];

    assert(self->requests > 0 && self->blocks >= request->node_blocks);
    self->requests--;
    self->blocks -= request->node_blocks;
    request->node = BT_REQUEST_NONE;
    request->node_blocks = 0;
}

void
bt_registry_count_prefill(bt_registry *registry, uint32_t node, bt_request *request, uint32_t tokens)
{
    assert(request->prefill_at == BT_REQUEST_NONE);
    request->prefill_at = node;
    request->prefill_tokens = tokens;
    registry->nodes[node].prompts++;
    registry->nodes[node].prefill_tokens += tokens;
}

void
bt_registry_uncount_prefill(bt_registry *registry, bt_request *request)
{
    bt_node *self;

    if (request->prefill_at == BT_REQUEST_NONE)
        return;
    self = &registry->nodes[request->prefill_at];
    assert(self->prompts > 0 && self->prefill_tokens >= request->prefill_tokens);
    self->prompts--;
    self->prefill_tokens -= request->prefill_tokens;
    request->prefill_at = BT_REQUEST_NONE;
    request->prefill_tokens = 0;
}

// A running mean over some four prompts. Short ones say little: what a step costs by itself is most of them.
void
bt_registry_measure_prefill(bt_registry *registry, uint32_t node, uint32_t tokens, bt_time duration)
{
    bt_node *self = &registry->nodes[node];
    uint64_t rate;

    if (tokens < 64 || duration < BT_MICROSECOND)
        return;
    rate = (uint64_t)tokens * 1000000 / (uint64_t)(duration / BT_MICROSECOND) + 1;
    self->prefill_rate = self->prefill_rate == 0 ? rate : (3 * self->prefill_rate + rate) / 4;
}

uint32_t
bt_registry_longest(const bt_registry *registry)
{
    uint64_t longest = 0;

    for (uint32_t i = 0; i < BT_ROUTER_NODES_MAX; i++) {
        const bt_hello *hello = &registry->nodes[i].hello;
        uint64_t tokens = (uint64_t)hello->blocks * hello->block_tokens;

        if (!bt_node_decodes(&registry->nodes[i]))
            continue;
        tokens = tokens < hello->context ? tokens : hello->context;
        longest = tokens > longest ? tokens : longest;
    }
    return (uint32_t)longest;
}

bool
bt_registry_open(const bt_registry *registry)
{
    for (uint32_t i = 0; i < BT_ROUTER_NODES_MAX; i++) {
        if (bt_node_decodes(&registry->nodes[i]) && !registry->nodes[i].hello.draining)
            return true;
    }
    return false;
}
