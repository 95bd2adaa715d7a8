#include "router/admit.h"

static bool
is_well_formed(const bt_router_limits *limits, const bt_router_arrival *arrival)
{
    const bt_sampling *sampling = arrival->sampling;

    if (arrival->count == 0 || arrival->ids == NULL || sampling == NULL || arrival->end_count > BT_END_IDS_MAX)
        return false;
    if (sampling->bias_count > BT_LOGIT_BIAS_MAX || sampling->top_logprobs > BT_TOP_LOGPROBS_MAX)
        return false;
    if (limits->vocab == 0)
        return true;
    for (uint32_t i = 0; i < arrival->count; i++) {
        if (arrival->ids[i] < 0 || (uint32_t)arrival->ids[i] >= limits->vocab)
            return false;
    }
    return true;
}

// Fills in max_tokens; BT_ERR_TOO_LONG with both numbers when prompt and answer do not fit into `longest`.
static bt_admission
fit(const bt_router_limits *limits, const bt_router_arrival *arrival, uint32_t longest)
{
    uint64_t wanted = arrival->max_tokens;
    bt_admission admission = {.tokens_max = longest};

    if (arrival->max_tokens == BT_MAX_TOKENS_REST) {
        wanted = arrival->count < longest ? longest - arrival->count : 1;
        if (limits->max_tokens_default > 0 && wanted > limits->max_tokens_default)
            wanted = limits->max_tokens_default;
    }
    wanted += arrival->count;
    admission.tokens = wanted < UINT32_MAX ? (uint32_t)wanted : UINT32_MAX;
    admission.err = wanted > longest ? BT_ERR_TOO_LONG : BT_OK;
    admission.max_tokens = admission.err == BT_OK ? (uint32_t)wanted - arrival->count : 0;
    return admission;
}

bt_admission
bt_admit(const bt_router_limits *limits, const bt_registry *registry, const bt_requests *requests,
         const bt_router_arrival *arrival)
{
    uint32_t longest = bt_registry_longest(registry);
    bt_admission admission;

    // With no node in sight the model's context still tells what is too long for ever.
    longest = longest > 0 && longest < limits->context ? longest : limits->context;
    if (arrival->count <= longest && !is_well_formed(limits, arrival))
        return (bt_admission){.err = BT_ERR_INVALID};
    admission = fit(limits, arrival, longest);
    if (admission.err == BT_OK && !bt_registry_open(registry))
        admission.err = BT_ERR_PEER;
    if (admission.err == BT_OK && (requests->used >= requests->capacity || requests->queued >= limits->queue_max))
        admission.err = BT_ERR_BUSY;
    return admission;
}

bt_time
bt_admit_bounded(bt_time wait)
{
    if (wait < BT_SECOND)
        return BT_SECOND;
    return wait < 60 * BT_SECOND ? wait : 60 * BT_SECOND;
}

bt_time
bt_admit_retry_after(const bt_requests *requests, bt_time between_ends)
{
    return bt_admit_bounded(between_ends * ((bt_time)requests->queued + 1));
}
