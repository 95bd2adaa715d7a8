#include "router/registry.h"
#include "common/base/hash.h"
#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

bt_err
bt_registry_init(bt_registry *registry, uint32_t nodes_max)
{
    *registry = (bt_registry){.nodes_max = nodes_max};
    registry->nodes = bt_alloc_array(nodes_max, sizeof *registry->nodes);
    registry->decodes.nodes = bt_alloc_array(nodes_max, sizeof *registry->decodes.nodes);
    registry->prefills.nodes = bt_alloc_array(nodes_max, sizeof *registry->prefills.nodes);
    registry->sources = bt_alloc_array(nodes_max, BT_SOURCES_MAX * sizeof *registry->sources);
    registry->source_nodes = bt_alloc_array(nodes_max, BT_SOURCES_MAX * sizeof *registry->source_nodes);
    if (registry->nodes != NULL && registry->decodes.nodes != NULL && registry->prefills.nodes != NULL &&
        registry->sources != NULL && registry->source_nodes != NULL)
        return BT_OK;
    bt_registry_fini(registry);
    return BT_ERR_NO_MEMORY;
}

void
bt_registry_fini(bt_registry *registry)
{
    bt_free(registry->nodes);
    bt_free(registry->decodes.nodes);
    bt_free(registry->prefills.nodes);
    bt_free(registry->sources);
    bt_free(registry->source_nodes);
    *registry = (bt_registry){0};
}

static bt_node_list *
list_of(bt_registry *registry, const bt_node *node)
{
    return node->hello.role == BT_NODE_DECODE ? &registry->decodes : &registry->prefills;
}

static uint32_t
position(const bt_node_list *list, uint32_t node)
{
    uint32_t at = 0;

    while (at < list->count && list->nodes[at] < node)
        at++;
    return at;
}

static void
add_ready(bt_node_list *list, uint32_t node)
{
    uint32_t at = position(list, node);

    memmove(&list->nodes[at + 1], &list->nodes[at], (list->count++ - at) * sizeof *list->nodes);
    list->nodes[at] = node;
}

static void
remove_ready(bt_node_list *list, uint32_t node)
{
    uint32_t at = position(list, node);

    memmove(&list->nodes[at], &list->nodes[at + 1], (--list->count - at) * sizeof *list->nodes);
}

static void
begin_state(bt_registry *registry, uint32_t node, bt_node_state state, bt_time now)
{
    const bt_node *before = &registry->nodes[node];

    registry->nodes[node] = (bt_node){.state = state,
                                      .last_epoch = before->last_epoch,
                                      .reading = before->reading,
                                      .prefill_rate = before->prefill_rate,
                                      .measured = before->measured,
                                      .transfer_rate = before->transfer_rate,
                                      .heard = now,
                                      .sources = registry->sources + (size_t)node * BT_SOURCES_MAX,
                                      .source_nodes = registry->source_nodes + (size_t)node * BT_SOURCES_MAX};
    registry->version++;
}

void
bt_registry_met(bt_registry *registry, uint32_t node, bt_time now)
{
    assert(registry->nodes[node].state == BT_NODE_DOWN);
    begin_state(registry, node, BT_NODE_MET, now);
}

void
bt_registry_lost(bt_registry *registry, uint32_t node)
{
    bt_node *self = &registry->nodes[node];

    assert(self->requests == 0 && self->prompts == 0);
    if (self->state == BT_NODE_READY)
        remove_ready(list_of(registry, self), node);
    begin_state(registry, node, BT_NODE_DOWN, 0);
}

void
bt_registry_refuse(bt_registry *registry, uint32_t node, const bt_hello *hello, const bt_router_refusal *refusal)
{
    bt_node *self = &registry->nodes[node];

    assert(self->state == BT_NODE_MET || self->state == BT_NODE_REFUSED);
    self->state = BT_NODE_REFUSED;
    self->hello = *hello;
    self->refusal = *refusal;
}

// Which node runs the program of this epoch?
static uint32_t
find_source(const bt_registry *registry, uint64_t epoch)
{
    for (uint32_t i = 0; i < registry->prefills.count; i++) {
        uint32_t node = registry->prefills.nodes[i];

        if (registry->nodes[node].hello.epoch == epoch)
            return node;
    }
    return BT_REQUEST_NONE;
}

// A prefill node came, of which decode nodes may have spoken already.
static void
pair(bt_registry *registry, uint32_t prefill)
{
    uint64_t epoch = registry->nodes[prefill].hello.epoch;

    for (uint32_t i = 0; i < registry->decodes.count; i++) {
        bt_node *decode = &registry->nodes[registry->decodes.nodes[i]];

        for (uint32_t n = 0; n < decode->source_count; n++) {
            if (decode->sources[n] == epoch)
                decode->source_nodes[n] = prefill;
        }
    }
}

void
bt_registry_hello(bt_registry *registry, uint32_t node, const bt_hello *hello, bt_time now)
{
    bt_node *self = &registry->nodes[node];

    if (self->state == BT_NODE_READY)
        remove_ready(list_of(registry, self), node);
    if (self->state != BT_NODE_READY || self->hello.epoch != hello->epoch) {
        self->source_count = 0; // one that begins to drain keeps them for what it has
        self->breaker = (bt_breaker){0};
    }
    self->state = BT_NODE_READY;
    self->hello = *hello;
    self->name = bt_hash_text(hello->name, strlen(hello->name));
    self->load = (bt_heartbeat){.blocks_free = hello->blocks};
    self->heard = now;
    self->busy_until = 0;
    self->tokens_number = 0;
    add_ready(list_of(registry, self), node);
    registry->version++;
    if (hello->role != BT_NODE_PREFILL)
        return;
    registry->prompt_weights = hello->weights;
    pair(registry, node);
}

void
bt_registry_heartbeat(bt_registry *registry, uint32_t node, const bt_heartbeat *heartbeat)
{
    bt_node *self = &registry->nodes[node];
    uint32_t count = heartbeat->source_count;

    self->load = *heartbeat;
    self->load.sources = NULL;
    self->load.source_count = 0;
    if (count == self->source_count &&
        (count == 0 || memcmp(self->sources, heartbeat->sources, count * sizeof *self->sources) == 0))
        return;
    registry->version++;
    self->source_count = count;
    for (uint32_t n = 0; n < count; n++) {
        self->sources[n] = heartbeat->sources[n];
        self->source_nodes[n] = find_source(registry, heartbeat->sources[n]);
    }
}

void
bt_registry_busy(bt_registry *registry, uint32_t node, bt_time until)
{
    registry->nodes[node].busy_until = until;
    registry->version++;
}

uint32_t
bt_registry_source(const bt_registry *registry, const bt_node *decode, uint32_t n)
{
    uint32_t node = decode->source_nodes[n];
    const bt_node *source = node != BT_REQUEST_NONE ? &registry->nodes[node] : NULL;

    if (source == NULL || source->state != BT_NODE_READY || source->hello.role != BT_NODE_PREFILL ||
        source->hello.draining || source->hello.epoch != decode->sources[n])
        return BT_REQUEST_NONE;
    return node;
}

bool
bt_registry_paired(const bt_registry *registry)
{
    for (uint32_t i = 0; i < registry->decodes.count; i++) {
        const bt_node *decode = &registry->nodes[registry->decodes.nodes[i]];

        for (uint32_t n = 0; n < decode->source_count && !decode->hello.draining; n++) {
            if (bt_registry_source(registry, decode, n) != BT_REQUEST_NONE)
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
bt_registry_count(bt_registry *registry, uint32_t node, bt_request *request, bt_time now)
{
    bt_node *self = &registry->nodes[node];

    assert(request->node == BT_REQUEST_NONE && self->state == BT_NODE_READY);
    request->node = node;
    request->node_blocks = bt_registry_worst_blocks(self, request);
    self->requests++;
    registry->decode_requests++;
    self->reserving++;
    self->blocks += request->node_blocks;
    request->probes = bt_breaker_begin(&self->breaker, now);
}

void
bt_registry_ticketed(bt_registry *registry, const bt_request *request)
{
    registry->nodes[request->node].reserving--;
    registry->version++;
}

void
bt_registry_uncount(bt_registry *registry, bt_request *request)
{
    bt_node *self = &registry->nodes[request->node];

    assert(self->requests > 0 && self->blocks >= request->node_blocks);
    self->requests--;
    registry->decode_requests--;
    self->blocks -= request->node_blocks;
    if (request->probes)
        bt_breaker_end_probe(&self->breaker);
    request->probes = false;
    request->node = BT_REQUEST_NONE;
    request->node_blocks = 0;
    registry->version++;
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
    registry->version++;
}

void
bt_registry_give_prefill(bt_registry *registry, uint32_t node, bt_request *request, bt_time now)
{
    assert(request->prefill == BT_REQUEST_NONE);
    request->prefill = node;
    request->prefill_probes = bt_breaker_begin(&registry->nodes[node].breaker, now);
}

void
bt_registry_leave_prefill(bt_registry *registry, bt_request *request)
{
    if (request->prefill_probes)
        bt_breaker_end_probe(&registry->nodes[request->prefill].breaker);
    registry->version += request->prefill_probes;
    request->prefill_probes = false;
    request->prefill = BT_REQUEST_NONE;
}

// Short prompts say little: what a step costs by itself is most of them.
static bool
tells(uint32_t tokens, bt_time duration)
{
    return tokens >= 64 && duration >= BT_MICROSECOND;
}

// A running mean over some four prompts.
static void
measure(uint64_t *mean, uint32_t tokens, bt_time duration)
{
    uint64_t rate;

    if (!tells(tokens, duration))
        return;
    rate = (uint64_t)tokens * 1000000 / (uint64_t)(duration / BT_MICROSECOND) + 1;
    *mean = *mean == 0 ? rate : (3 * *mean + rate) / 4;
}

static uint64_t
add_reading(bt_reading *reading, uint64_t tokens, uint64_t us)
{
    reading->tokens += tokens - reading->tokens / 8;
    reading->us += us - reading->us / 8;
    return reading->us != 0 ? reading->tokens * 1000000 / reading->us + 1 : 0;
}

void
bt_registry_measure_prefill(bt_registry *registry, uint32_t node, uint32_t tokens, bt_time duration, bt_time now)
{
    bt_node *self = &registry->nodes[node];
    bt_node_role role = self->hello.role;
    bt_time since = now - self->measured;
    bt_time alone =
        self->prefill_rate != 0 && since < duration ? since : duration; // of what it shared, what none has had

    if (!tells(tokens, duration))
        return;
    self->prefill_rate = add_reading(&self->reading, tokens, (uint64_t)(alone / BT_MICROSECOND));
    registry->typical_rates[role] =
        add_reading(&registry->typical_readings[role], tokens, (uint64_t)(alone / BT_MICROSECOND));
    self->measured = now;
}

void
bt_registry_measure_transfer(bt_registry *registry, uint32_t node, uint32_t tokens, bt_time duration)
{
    measure(&registry->nodes[node].transfer_rate, tokens, duration);
    measure(&registry->typical_transfer_rate, tokens, duration);
}

// Until something is measured: a prefill node reads four times as fast as a decode node, twice where they hold the same weights. A decode
// node that is feared to be slow is never asked while prefill nodes are not overrun, and then nothing is ever measured there.
#define RATE_PREFILL 8000u
#define RATE_DECODE 2000u
#define RATE_TRANSFER 200000u

static uint64_t
most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// Of a node that was not asked yet: hoped for rather than feared, or it would never be asked.
static uint64_t
hoped_rate(const bt_registry *registry, const bt_node *node)
{
    const uint64_t *typical = registry->typical_rates;
    bt_node_role role = node->hello.role;
    uint64_t share = node->hello.weights == registry->prompt_weights ? 2 : 4;

    if (role == BT_NODE_PREFILL)
        return most(RATE_PREFILL, typical[role] != 0 ? typical[role] : 4 * typical[BT_NODE_DECODE]);
    return most(RATE_DECODE, typical[role] != 0 ? typical[role] : typical[BT_NODE_PREFILL] / share);
}

uint64_t
bt_registry_prefill_rate(const bt_registry *registry, const bt_node *node, bt_time now)
{
    uint64_t typical = registry->typical_rates[node->hello.role], rate = node->prefill_rate;

    if (rate == 0)
        return hoped_rate(registry, node);
    for (bt_time since = now - node->measured; since >= 30 * BT_SECOND && rate < typical; since -= 30 * BT_SECOND)
        rate = 2 * rate < typical ? 2 * rate : typical;
    return rate;
}

uint64_t
bt_registry_transfer_rate(const bt_registry *registry, const bt_node *node)
{
    if (node->transfer_rate != 0)
        return node->transfer_rate;
    return registry->typical_transfer_rate != 0 ? registry->typical_transfer_rate : RATE_TRANSFER;
}

uint64_t
bt_registry_prompt_weights(const bt_registry *registry)
{
    if (registry->prompt_weights != 0)
        return registry->prompt_weights;
    return registry->decodes.count > 0 ? registry->nodes[registry->decodes.nodes[0]].hello.weights : 0;
}

uint32_t
bt_registry_longest(const bt_registry *registry)
{
    uint64_t longest = 0;

    for (uint32_t i = 0; i < registry->decodes.count; i++) {
        const bt_hello *hello = &registry->nodes[registry->decodes.nodes[i]].hello;
        uint64_t tokens = (uint64_t)hello->blocks * hello->block_tokens;

        tokens = tokens < hello->context ? tokens : hello->context;
        longest = tokens > longest ? tokens : longest;
    }
    return (uint32_t)longest;
}

bool
bt_registry_open(const bt_registry *registry)
{
    for (uint32_t i = 0; i < registry->decodes.count; i++) {
        if (!registry->nodes[registry->decodes.nodes[i]].hello.draining)
            return true;
    }
    return false;
}

static void
earlier(bt_time *next, bt_time at, bt_time now)
{
    if (at > now && at < *next)
        *next = at;
}

static bt_time
next_change_of(const bt_registry *registry, const bt_node_list *list, bt_time now, bt_time next)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const bt_node *node = &registry->nodes[list->nodes[i]];

        earlier(&next, node->busy_until, now);
        if (node->breaker.open)
            earlier(&next, node->breaker.until, now);
    }
    return next;
}

bt_time
bt_registry_next_change(const bt_registry *registry, bt_time now)
{
    return next_change_of(registry, &registry->prefills, now,
                          next_change_of(registry, &registry->decodes, now, BT_TIME_NEVER));
}
