// What becomes of a request that a node failed: another try, if that is no fault of its own and errors are few enough; and what the
// node's breaker hears of it.
#include "router/inside.h"

// Every tenth request may be tried once more. What was saved up, and what a fresh router may spend, is bounded.
#define RETRY_COST 10
#define RETRY_SAVED_MAX (100 * RETRY_COST)
#define RETRY_SAVED_FIRST (10 * RETRY_COST)
#define RETRIES_OF_A_REQUEST 2

void
bt_retry_init(bt_router *router)
{
    router->retry_saved = RETRY_SAVED_FIRST;
}

void
bt_retry_save(bt_router *router)
{
    if (router->retry_saved < RETRY_SAVED_MAX)
        router->retry_saved++;
}

bool
bt_retry_is_fault(bt_err err)
{
    switch (err) {
    case BT_ERR_UNSUPPORTED: // of what was checked before it was sent
    case BT_ERR_NOT_FOUND:
    case BT_ERR_PEER:
    case BT_ERR_NO_MEMORY:
    case BT_ERR_DEVICE:
    case BT_ERR_IO:
    case BT_ERR_BUG:
        return true;
    default:
        return false;
    }
}

void
bt_retry_note(bt_router *router, bt_time now, bt_request *request, uint32_t node, bool good)
{
    bool *probe = node == request->node ? &request->probes : &request->prefill_probes;
    bt_node *self = &router->registry.nodes[node];

    if (!bt_breaker_note(&self->breaker, &router->limits.breaker, now, good, *probe))
        return;
    *probe = false;
    router->stats.breakers_opened += self->breaker.open;
    router->registry.version++;
}

static bool
may_retry(bt_router *router, bt_request *request)
{
    if (request->retries >= RETRIES_OF_A_REQUEST || router->retry_saved < RETRY_COST)
        return false;
    router->retry_saved -= RETRY_COST;
    request->retries++;
    return true;
}

void
bt_retry(bt_router *router, bt_time now, bt_request *request, uint32_t node, bt_err err, bt_router_actions *out)
{
    bool decodes = node == request->node;

    if (decodes)
        request->decode_failed = node;
    if (!may_retry(router, request)) {
        router->stats.retries_refused++;
        bt_router_finish(router, now, request, BT_FINISH_ERROR, err, out);
        return;
    }
    router->stats.retries[decodes ? BT_NODE_DECODE : BT_NODE_PREFILL]++;
    router->stats.retries_by[err]++;
    request->failed = err;
    bt_router_move_on(router, request, BT_MOVE_ERROR);
}
