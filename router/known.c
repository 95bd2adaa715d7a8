// What the router knows of nodes' caches: asked before a request is placed, told when it is.
#include "router/inside.h"

static bool
is_used(const bt_router *router)
{
    return router->limits.place == BT_PLACE_OURS;
}

// The chain is computed once for a request, and again when other weights read prompts now.
static void
make_chain(bt_router *router, bt_request *request)
{
    uint64_t weights = bt_registry_prompt_weights(&router->registry);

    if (request->key_weights == weights)
        return;
    request->key_weights = weights;
    request->key_count =
        bt_affinity_chain(&router->affinity, weights, request->ids, request->prompt_count, request->keys);
}

bt_placing
bt_known_look(bt_router *router, bt_time now, bt_request *request)
{
    if (is_used(router)) {
        make_chain(router, request);
        bt_affinity_look(&router->affinity, request->keys, request->key_count, request->session);
    }
    return (bt_placing){&router->registry, &router->affinity, &router->limits, now};
}

// A decode node that reads by weights of its own keeps nothing of it that other prompts could use.
void
bt_known_placed(bt_router *router, const bt_request *request)
{
    const bt_node *decode = &router->registry.nodes[request->node];

    if (!is_used(router))
        return;
    if (request->prefill != BT_REQUEST_NONE)
        bt_affinity_record(&router->affinity, request->keys, request->key_count, request->prefill);
    if (request->prefill != BT_REQUEST_NONE || decode->hello.weights == request->key_weights)
        bt_affinity_record(&router->affinity, request->keys, request->key_count, request->node);
    bt_affinity_pin(&router->affinity, request->session, request->node);
}

// The answer is the next prompt's beginning, where one kind of weights reads and writes.
void
bt_known_answered(bt_router *router, bt_request *request)
{
    uint32_t count = request->prompt_count + request->answer_count, keys;

    if (!is_used(router) || request->node == BT_REQUEST_NONE ||
        router->registry.nodes[request->node].hello.weights != request->key_weights ||
        count / router->affinity.step == request->key_count)
        return;
    keys = bt_affinity_chain(&router->affinity, request->key_weights, request->ids, count, request->keys);
    bt_affinity_record(&router->affinity, request->keys + request->key_count, keys - request->key_count, request->node);
}

void
bt_known_hello(bt_router *router, uint32_t node)
{
    bt_node *self = &router->registry.nodes[node];

    if (self->last_epoch != 0 && self->last_epoch != self->hello.epoch)
        bt_affinity_forget(&router->affinity, node);
    self->last_epoch = self->hello.epoch;
}
