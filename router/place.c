#include "router/place.h"
#include "common/base/rng.h"

// A node as a choice. Less is better, in this order; what only others can do better is never out of the question.
typedef struct {
    uint32_t node;  // BT_REQUEST_NONE = no choice yet
    bool failed;    // this request before
    bool loaded;    // above the bound
    bool elsewhere; // another one has the session
    uint64_t cost, tie;
} choice;

static bool
is_better(const choice *a, const choice *b)
{
    if (b->node == BT_REQUEST_NONE || a->failed != b->failed)
        return b->node == BT_REQUEST_NONE || b->failed;
    if (a->loaded != b->loaded)
        return b->loaded;
    if (a->elsewhere != b->elsewhere)
        return b->elsewhere;
    return a->cost != b->cost ? a->cost < b->cost : a->tie < b->tie;
}

static void
keep_better(choice *best, const choice *other)
{
    if (is_better(other, best))
        *best = *other;
}

static uint64_t
tie_of(const bt_placing *p, const bt_node *node, const bt_request *request)
{
    // An edge may use a tag again, as soon as its request is over: idle nodes shall take turns all the same.
    uint64_t own = request->session != 0 && p->limits->place == BT_PLACE_OURS ? request->session
                                                                              : request->tag + request->generation;

    return bt_mix64(bt_mix64(p->limits->seed ^ own) ^ node->name);
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
takes_now(const bt_placing *p, const bt_node *node, uint32_t blocks)
{
    return node->busy_until <= p->now && (has_room(node, blocks) || node->reserving < lookahead(node));
}

// Microseconds until the node has read its queue and so many tokens more.
static uint64_t
reading_time(const bt_placing *p, const bt_node *node, uint64_t tokens)
{
    return (node->prefill_tokens + tokens) * 1000000 / bt_registry_prefill_rate(p->registry, node, p->now);
}

// Of the prompt, what the node does not have itself: what another has helps no one to compute. The last token is always computed.
static uint32_t
tokens_to_read(const bt_placing *p, const bt_request *request, uint32_t node)
{
    uint32_t has = p->limits->place == BT_PLACE_OURS ? bt_affinity_tokens(p->affinity, node) : 0;

    return has < request->prompt_count ? request->prompt_count - has : 1;
}

// Could this node read the prompt for that one, now or when it has room?
static bool
suits(const bt_node *node, const bt_node *decode, const bt_request *request)
{
    uint64_t pool = (uint64_t)node->hello.blocks * node->hello.block_tokens;

    return node->hello.model == decode->hello.model && node->hello.layout == decode->hello.layout &&
           request->prompt_count <= node->hello.context && request->prompt_count <= pool;
}

// The decode node's n-th source, if that could read the prompt now or soon; else NULL.
static const bt_node *
source_of(const bt_placing *p, const bt_request *request, const bt_node *decode, uint32_t n, uint32_t *out)
{
    uint32_t node = bt_registry_source(p->registry, decode, n);
    const bt_node *source = node != BT_REQUEST_NONE ? &p->registry->nodes[node] : NULL;

    *out = node;
    return source != NULL && suits(source, decode, request) && bt_breaker_allows(&source->breaker, p->now) ? source
                                                                                                           : NULL;
}

static uint64_t
prefill_cost(const bt_placing *p, const bt_node *node, uint32_t tokens)
{
    switch (p->limits->place) {
    case BT_PLACE_LEAST_LOAD:
        return node->prompts;
    case BT_PLACE_RANDOM:
        return 0;
    case BT_PLACE_OURS:
        break;
    }
    return reading_time(p, node, tokens);
}

// Microseconds of queue above which a prefill node has too much, at this decode node's sources. A few short prompts are never too much.
static uint64_t
longest_queue(const bt_placing *p, const bt_request *request, const bt_node *decode)
{
    uint64_t sum = 0, count = 0;
    uint32_t unused;

    for (uint32_t n = 0; n < decode->source_count; n++) {
        const bt_node *node = source_of(p, request, decode, n, &unused);

        if (node != NULL) {
            sum += reading_time(p, node, 0);
            count++;
        }
    }
    return count > 0 ? 5 * sum / (4 * count) : 0;
}

// The best prefill node with room; `full` when there are some without.
static choice
find_prefill(const bt_placing *p, const bt_request *request, const bt_node *decode, bool *full)
{
    choice best = {.node = BT_REQUEST_NONE};
    uint64_t longest = longest_queue(p, request, decode);

    *full = false;
    for (uint32_t n = 0; n < decode->source_count; n++) {
        choice c = {0};
        const bt_node *node = source_of(p, request, decode, n, &c.node);

        if (node == NULL)
            continue;
        if (node->busy_until > p->now || node->prompts >= node->hello.queue) {
            *full = true;
            continue;
        }
        c.failed = c.node == request->prefill_failed;
        c.loaded = p->limits->place == BT_PLACE_OURS && node->prefill_tokens > 4 * p->limits->remote_tokens_min &&
                   reading_time(p, node, 0) > longest;
        c.cost = prefill_cost(p, node, tokens_to_read(p, request, c.node));
        c.tie = tie_of(p, node, request);
        keep_better(&best, &c);
    }
    return best;
}

// Is its prompt another one when this decode node reads it?
static bool
must_be_remote(const bt_placing *p, const bt_node *decode)
{
    bool differs = p->registry->prompt_weights != 0 ? p->registry->prompt_weights != decode->hello.weights
                                                    : p->limits->two_weights;

    return differs && !p->limits->inexact;
}

static bool
may_be_remote(const bt_request *request)
{
    return !request->prompt_logprobs && request->prefill_failures < BT_PREFILL_FAILURES_MAX;
}

// A block that must be computed or sent is work now, one in use is only in the way. Between 1 and 1024 tried on the Mooncake trace (8 + 8
// nodes, 12 times as fast): within the SLO 58 % at 1, 70 % at 4, 92 % at 8, 95 % at 16, 96 % at 32 and 64, 94 % at 1024.
#define BLOCK_WORTH 32u

static uint64_t
decode_cost(const bt_placing *p, uint32_t number, const bt_node *node, const bt_request *request)
{
    switch (p->limits->place) {
    case BT_PLACE_LEAST_LOAD:
        return node->requests;
    case BT_PLACE_RANDOM:
        return 0;
    case BT_PLACE_OURS:
        break;
    }
    return node->blocks + node->requests + BLOCK_WORTH * tokens_to_read(p, request, number) / node->hello.block_tokens;
}

// Above 1.25 times the mean of requests, with this one?
static bool
is_loaded(const bt_placing *p, const bt_node *node)
{
    return p->limits->place == BT_PLACE_OURS && node->requests >= node->hello.sequences / 8 &&
           (uint64_t)node->requests * p->registry->decodes.count * 4 >= 5 * (p->registry->decode_requests + 1);
}

static choice
decode_choice(const bt_placing *p, const bt_request *request, uint32_t number)
{
    const bt_node *node = &p->registry->nodes[number];
    uint32_t pinned = p->limits->place == BT_PLACE_OURS ? p->affinity->pinned : BT_AFFINITY_NONE;

    return (choice){.node = number,
                    .failed = number == request->decode_failed,
                    .loaded = is_loaded(p, node),
                    .elsewhere = pinned != BT_AFFINITY_NONE && pinned != number,
                    .cost = decode_cost(p, number, node, request),
                    .tie = tie_of(p, node, request)};
}

// Among nodes that their breakers let, or among all; `found` when there is one that could take it, now or later.
static bt_decode_place
choose_decode(const bt_placing *p, const bt_request *request, bool all, bool *found)
{
    // [0] with a prefill node where it needs one, [1] whatever the weights
    choice best[2] = {{.node = BT_REQUEST_NONE}, {.node = BT_REQUEST_NONE}};
    bool paired = false;

    *found = false;
    for (uint32_t i = 0; i < p->registry->decodes.count; i++) {
        choice c = decode_choice(p, request, p->registry->decodes.nodes[i]);
        const bt_node *node = &p->registry->nodes[c.node];
        uint32_t blocks = bt_registry_worst_blocks(node, request);
        bool takes = takes_now(p, node, blocks), full = false, alone = false;

        if (!could_take(node, request, blocks) || (!all && !bt_breaker_allows(&node->breaker, p->now)))
            continue;
        *found = true;
        if (paired && (!takes || !is_better(&c, &best[0])))
            continue; // whatever its prefill nodes do
        if (must_be_remote(p, node) && may_be_remote(request))
            alone = find_prefill(p, request, node, &full).node == BT_REQUEST_NONE;
        paired |= !alone || full;
        if (takes && !alone)
            keep_better(&best[0], &c);
        if (takes)
            keep_better(&best[1], &c);
    }
    return (bt_decode_place){best[!paired].node, !paired};
}

// Where no node can be trusted, passing all of them over helps nobody.
bt_decode_place
bt_place_decode(const bt_placing *p, const bt_request *request)
{
    bool found;
    bt_decode_place place = choose_decode(p, request, false, &found);

    return found ? place : choose_decode(p, request, true, &found);
}

// While a decode node reads a prompt, every answer that is written there waits: so many of them weigh as much as the prompt. Tried on the
// Mooncake trace (12 + 4 nodes, 13 times as fast): within the SLO 27 % where they weigh nothing, 97 % at 64, 98 % at 32, 98.5 % at 16; below 16
// idle clusters lose more than busy ones win.
#define ANSWERS_WORTH 16u

static uint64_t
cost_here(const bt_placing *p, const bt_node *decode, uint32_t tokens)
{
    uint64_t time = reading_time(p, decode, tokens);

    return time + time * decode->requests / ANSWERS_WORTH;
}

bt_prefill_place
bt_place_prefill(const bt_placing *p, const bt_request *request, uint32_t decode, uint32_t tokens)
{
    const bt_node *at = &p->registry->nodes[decode];
    bool full, must = must_be_remote(p, at);
    choice best = find_prefill(p, request, at, &full);
    bool none = best.node == BT_REQUEST_NONE;
    uint32_t there = none ? 0 : tokens_to_read(p, request, best.node);
    uint64_t time;

    if (!may_be_remote(request))
        return (bt_prefill_place){.node = BT_REQUEST_NONE, .tokens = tokens, .degraded = must};
    if (must && none)
        return (bt_prefill_place){
            .node = BT_REQUEST_NONE, .tokens = tokens, .wait = full, .degraded = true, .unpaired = !full};
    if (must)
        return (bt_prefill_place){.node = best.node, .tokens = there};
    if (none || best.failed || tokens < p->limits->remote_tokens_min)
        return (bt_prefill_place){.node = BT_REQUEST_NONE, .tokens = tokens};
    time = best.cost + (uint64_t)tokens * 1000000 / bt_registry_transfer_rate(p->registry, at);
    if (p->limits->place == BT_PLACE_OURS && time + time / 8 >= cost_here(p, at, tokens))
        return (bt_prefill_place){.node = BT_REQUEST_NONE, .tokens = tokens};
    return (bt_prefill_place){.node = best.node, .tokens = there};
}

// Adds a node's rate and keeps the shortest time, in microseconds, that it and what was seen before would take for the prompt.
static void
predict_at(const bt_placing *p, const bt_request *request, uint32_t number, uint64_t *rates, uint64_t *shortest)
{
    const bt_node *node = &p->registry->nodes[number];
    uint64_t time = 0;

    if (node->hello.draining || !bt_breaker_allows(&node->breaker, p->now))
        return;
    if (node->prefill_rate != 0)
        time = reading_time(p, node, tokens_to_read(p, request, number));
    *rates += node->prefill_rate;
    *shortest = time < *shortest ? time : *shortest;
}

bt_time
bt_place_predict(const bt_placing *p, const bt_request *request, uint64_t queued_tokens)
{
    const bt_registry *registry = p->registry;
    uint64_t rates = 0, shortest = UINT64_MAX;

    for (uint32_t i = 0; i < registry->prefills.count; i++)
        predict_at(p, request, registry->prefills.nodes[i], &rates, &shortest);
    for (uint32_t i = 0; i < registry->decodes.count; i++) {
        if (registry->prefills.count == 0 || !must_be_remote(p, &registry->nodes[registry->decodes.nodes[i]]))
            predict_at(p, request, registry->decodes.nodes[i], &rates, &shortest);
    }
    if (shortest == UINT64_MAX)
        return 0;
    return (bt_time)(shortest + (rates > 0 ? queued_tokens * 1000000 / rates : 0)) * BT_MICROSECOND;
}
