#include "prefill-node/core.h"
#include "common/base/mem.h"
#include "prefill-node/inside.h"
#include "prefill-node/offer.h"

#include <assert.h>
#include <string.h>

// Sends kept free for what a call may add at its end: news and heartbeats.
#define SENDS_SPARE (2 * BT_PREFILL_PEERS_MAX + 16)

static void
fill_defaults(bt_prefill_limits *limits)
{
    if (limits->logit_rows == 0)
        limits->logit_rows = limits->sequences;
    if (limits->lease == 0)
        limits->lease = 30 * BT_SECOND;
    if (limits->hold_max == 0)
        limits->hold_max = 10 * limits->lease;
    if (limits->heartbeat == 0)
        limits->heartbeat = BT_SECOND;
}

static bt_err
check_limits(const bt_prefill_limits *limits, bt_why *why)
{
    if (limits->epoch == 0 || limits->context == 0 || limits->blocks == 0 || limits->vocab == 0)
        return bt_fail(why, BT_ERR_INVALID, "prefill node: epoch, context, blocks and vocab must not be 0");
    if (limits->sequences == 0 || limits->prompts == 0 || limits->prompts > 4096)
        return bt_fail(why, BT_ERR_INVALID, "prefill node: %u prompts, %u in a step, expected 1 to 4096, and 1 or more",
                       limits->prompts, limits->sequences);
    if (limits->chunk_tokens == 0 || limits->block_tokens == 0 || limits->block_tokens > BT_KV_KEY_TOKENS_MAX)
        return bt_fail(why, BT_ERR_INVALID, "prefill node: chunks of %u tokens, blocks of %u", limits->chunk_tokens,
                       limits->block_tokens);
    if (limits->description_bytes > BT_DESCRIPTION_BYTES_MAX)
        return bt_fail(why, BT_ERR_INVALID, "prefill node: description of %u bytes, at most %u",
                       limits->description_bytes, BT_DESCRIPTION_BYTES_MAX);
    return BT_OK;
}

static bt_err
open_parts(bt_prefill_core *core)
{
    const bt_prefill_limits *limits = &core->limits;
    bt_err err;

    // A prompt is in a call's news at most twice: read, or refused, and over.
    core->news_max = 2 * limits->prompts + 1;
    core->news = bt_alloc_array(core->news_max, sizeof *core->news);
    core->sorted = bt_alloc_array(core->news_max, sizeof *core->sorted);
    core->news_tokens = bt_alloc_array(core->news_max, sizeof *core->news_tokens);
    core->news_peer = bt_alloc_array(core->news_max, sizeof *core->news_peer);
    core->stamps = bt_alloc_array(limits->blocks, sizeof *core->stamps);
    core->clears = bt_alloc_array(limits->blocks, sizeof *core->clears);
    core->offers = bt_alloc_array(BT_OFFER_BLOCKS_MAX, sizeof *core->offers);
    if (core->news == NULL || core->sorted == NULL || core->news_tokens == NULL || core->news_peer == NULL ||
        core->stamps == NULL || core->clears == NULL || core->offers == NULL)
        return BT_ERR_NO_MEMORY;
    if ((err = bt_prompts_init(&core->prompts, limits->prompts, limits->context, limits->block_tokens)) != BT_OK ||
        (err = bt_kv_pool_open(&core->pool, limits->blocks)) != BT_OK ||
        (err = bt_kv_prefix_open(&core->prefix, core->pool, limits->block_tokens)) != BT_OK)
        return err;
    return bt_chunker_init(&core->chunker, limits);
}

bt_err
bt_prefill_core_open(bt_prefill_core **out, const bt_prefill_limits *limits, bt_why *why)
{
    bt_prefill_core *core;
    bt_err err = check_limits(limits, why);

    if (err != BT_OK)
        return err;
    core = bt_alloc(sizeof *core);
    if (core == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "prefill node: out of memory");
    core->limits = *limits;
    fill_defaults(&core->limits);
    core->next_expiry = BT_TIME_NEVER;
    if ((err = open_parts(core)) != BT_OK) {
        bt_prefill_core_close(core);
        return bt_fail(why, err, "prefill node: no memory for %u prompts of %u tokens and %u blocks of %u tokens",
                       limits->prompts, limits->context, limits->blocks, limits->block_tokens);
    }
    *out = core;
    return BT_OK;
}

void
bt_prefill_core_close(bt_prefill_core *core)
{
    if (core == NULL)
        return;
    for (uint32_t i = 0; core->prompts.slots != NULL && core->pool != NULL && i < core->prompts.capacity; i++)
        bt_kv_table_shrink(&core->prompts.slots[i].table, core->pool, 0);
    bt_chunker_fini(&core->chunker);
    bt_kv_prefix_close(core->prefix);
    bt_kv_pool_close(core->pool);
    bt_prompts_fini(&core->prompts);
    bt_free(core->news);
    bt_free(core->sorted);
    bt_free(core->news_tokens);
    bt_free(core->news_peer);
    bt_free(core->stamps);
    bt_free(core->clears);
    bt_free(core->offers);
    bt_free(core);
}

bt_message *
bt_prefill_say(bt_prefill_actions *out, uint32_t peer, bt_message_kind kind)
{
    bt_prefill_send *send = &out->send[out->send_count++];

    assert(out->send_count <= BT_PREFILL_ACTIONS_MAX);
    *send = (bt_prefill_send){.peer = peer, .message.kind = kind};
    return &send->message;
}

bool
bt_prefill_full(const bt_prefill_actions *out)
{
    return out->send_count + SENDS_SPARE >= BT_PREFILL_ACTIONS_MAX;
}

void
bt_prefill_greet(bt_prefill_core *core, bt_prefill_actions *out, uint32_t peer)
{
    const bt_prefill_limits *limits = &core->limits;
    bt_hello *hello = &bt_prefill_say(out, peer, BT_MESSAGE_HELLO)->hello;

    *hello = (bt_hello){
        .role = BT_NODE_PREFILL,
        .version = BT_PROTOCOL_VERSION,
        .epoch = limits->epoch,
        .model = limits->model,
        .weights = limits->weights,
        .layout = limits->layout,
        .kv_format = limits->kv_format,
        .sequences = limits->sequences,
        .queue = limits->prompts,
        .blocks = limits->blocks,
        .block_tokens = limits->block_tokens,
        .context = limits->context,
        .draining = core->draining,
    };
    memcpy(hello->name, limits->name, sizeof hello->name);
    if (core->peers[peer].role == BT_NODE_ROUTER)
        core->peers[peer].tokens_number = 0;
    else if (core->peers[peer].known)
        bt_prefill_say(out, peer, BT_MESSAGE_DESCRIPTION)->description =
            (bt_description){.epoch = limits->epoch,
                             .layout = limits->layout,
                             .blocks = limits->blocks,
                             .byte_count = limits->description_bytes,
                             .bytes = limits->description};
}

bt_tokens_entry *
bt_prefill_news(bt_prefill_core *core, uint32_t router, bt_request_id request)
{
    bt_tokens_entry *entry = &core->news[core->news_count];

    if (router == BT_PROMPT_NONE || !core->peers[router].known)
        return NULL;
    assert(core->news_count < core->news_max);
    core->news_peer[core->news_count++] = router;
    *entry = (bt_tokens_entry){.request = request};
    return entry;
}

void
bt_prefill_free(bt_prefill_core *core, bt_prompt *prompt)
{
    bt_kv_table_shrink(&prompt->table, core->pool, 0);
    bt_prompts_release(&core->prompts, prompt);
}

void
bt_prefill_note_end(bt_prefill_core *core, const bt_prompt *prompt, bt_finish finish, bt_err err)
{
    bt_prefill_ended *note;

    if (core->out->ended_count++ >= BT_PREFILL_ENDED_MAX)
        return;
    note = &core->out->ended[core->out->ended_count - 1];
    *note = (bt_prefill_ended){.finish = finish,
                               .err = err,
                               .tokens = prompt->count,
                               .cached_tokens = prompt->cached_tokens,
                               .computed_tokens = prompt->computed - prompt->cached_tokens,
                               .phases = prompt->phases,
                               .total = core->last_step - prompt->received};
    memcpy(note->name, prompt->name, sizeof note->name);
}

void
bt_prefill_end(bt_prefill_core *core, bt_prompt *prompt, bt_finish finish, bt_err err)
{
    bool told = prompt->state == BT_PROMPT_HOLDING;
    bt_tokens_entry *entry = told ? NULL : bt_prefill_news(core, prompt->router, prompt->request);

    bt_prefill_note_end(core, prompt, finish, err);
    if (entry != NULL) {
        entry->finish = finish;
        entry->err = err;
    }
    if (prompt->in_step)
        prompt->state = BT_PROMPT_ENDING;
    else
        bt_prefill_free(core, prompt);
}

void
bt_prefill_expires(bt_prefill_core *core, bt_time at)
{
    if (at < core->next_expiry)
        core->next_expiry = at;
}

static void
drain(bt_prefill_core *core, bt_prefill_actions *out)
{
    if (core->draining)
        return;
    core->draining = true;
    for (uint32_t peer = 0; peer < BT_PREFILL_PEERS_MAX; peer++) {
        if (core->peers[peer].known && core->peers[peer].role == BT_NODE_ROUTER)
            bt_prefill_greet(core, out, peer);
    }
}

// Time that this program slept through does not count against its peers.
static void
forgive_own_stall(bt_prefill_core *core, bt_time now)
{
    bt_time gap = now - core->last_step;

    if (core->last_step != 0 && gap > 2 * core->limits.heartbeat) {
        for (uint32_t peer = 0; peer < BT_PREFILL_PEERS_MAX; peer++)
            core->peers[peer].lease_end += gap;
    }
    core->last_step = now;
}

static void
expire_leases(bt_prefill_core *core, bt_time now)
{
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt *prompt = &core->prompts.slots[i];
        bool unread = prompt->state == BT_PROMPT_WAITING || prompt->state == BT_PROMPT_READING;

        if (!unread && prompt->state != BT_PROMPT_HOLDING)
            continue;
        if (unread && prompt->router != BT_PROMPT_NONE && core->peers[prompt->router].lease_end <= now) {
            core->stats.expired++;
            bt_prefill_end(core, prompt, BT_FINISH_CANCELLED, BT_OK);
        } else if (prompt->decode != BT_PROMPT_NONE && core->peers[prompt->decode].lease_end <= now) {
            core->stats.expired++;
            bt_prefill_end(core, prompt, BT_FINISH_ERROR, BT_ERR_PEER);
        }
    }
}

static void
expire_deadlines(bt_prefill_core *core, bt_time now)
{
    if (core->next_expiry > now)
        return;
    core->next_expiry = BT_TIME_NEVER;
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt *prompt = &core->prompts.slots[i];
        bt_time end = prompt->deadline < prompt->hold_end ? prompt->deadline : prompt->hold_end;

        if (prompt->state == BT_PROMPT_FREE || prompt->state == BT_PROMPT_ENDING)
            continue;
        if (end <= now) {
            core->stats.expired++;
            bt_prefill_end(core, prompt, BT_FINISH_ERROR, BT_ERR_TIMEOUT);
        } else {
            bt_prefill_expires(core, end);
        }
    }
}

static void
beat_one(bt_prefill_core *core, uint32_t peer, bt_prefill_actions *out)
{
    bt_heartbeat *beat = &bt_prefill_say(out, peer, BT_MESSAGE_HEARTBEAT)->heartbeat;

    *beat = (bt_heartbeat){.number = core->heartbeats,
                           .tokens_number = core->peers[peer].tokens_number,
                           .running = core->prompts.capacity,
                           .queued = core->prompts.queued,
                           .blocks_free = bt_kv_pool_available(core->pool)};
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt_state state = core->prompts.slots[i].state;

        beat->running -= state == BT_PROMPT_FREE || state == BT_PROMPT_WAITING;
    }
}

// The sweep of leases rides on the heartbeat: a timer of our own, not traffic.
static void
beat(bt_prefill_core *core, bt_time now, bt_prefill_actions *out)
{
    if (core->next_heartbeat > now)
        return;
    core->next_heartbeat = now + core->limits.heartbeat;
    core->heartbeats++;
    expire_leases(core, now);
    for (uint32_t peer = 0; peer < BT_PREFILL_PEERS_MAX; peer++) {
        if (core->peers[peer].known)
            beat_one(core, peer, out);
    }
}

// All blocks of the prompt, those that the prefix index has and new ones. False when there are not enough.
static bool
take_blocks(bt_prefill_core *core, bt_prompt *prompt, bt_prefill_actions *out)
{
    bt_kv_table *table = &prompt->table;
    uint32_t found = 0;

    prompt->at = bt_kv_prefix_root(core->limits.weights);
    if (!prompt->scores) // which needs the logits of all positions
        found = bt_kv_prefix_find(core->prefix, &prompt->at, prompt->ids, prompt->count, table->blocks, table->limit);
    table->count = found;
    if (bt_kv_table_grow(table, core->pool, bt_kv_blocks_for(prompt->count, core->limits.block_tokens)) != BT_OK) {
        bt_kv_table_shrink(table, core->pool, 0);
        return false;
    }
    prompt->indexed = prompt->finished = found;
    prompt->computed = prompt->cached_tokens = found * core->limits.block_tokens;
    for (uint32_t i = found; i < table->count; i++)
        core->clears[out->clear_count++] = table->blocks[i];
    return true;
}

// First come, first served: the head of the queue waits for its blocks, and nobody overtakes it.
static void
begin_waiting(bt_prefill_core *core, bt_prefill_actions *out)
{
    while (core->prompts.queued > 0) {
        bt_prompt *first = &core->prompts.slots[core->prompts.queue_first];

        if (!take_blocks(core, first, out))
            return;
        bt_prompts_begin_first(&core->prompts);
    }
}

// One message a router with all its news; more only where they are more than one can hold.
static void
send_news(bt_prefill_core *core, bt_prefill_actions *out)
{
    uint32_t sorted = 0;

    for (uint32_t peer = 0; peer < BT_PREFILL_PEERS_MAX && sorted < core->news_count; peer++) {
        uint32_t begin = sorted;

        for (uint32_t i = 0; i < core->news_count; i++) {
            if (core->news_peer[i] == peer)
                core->sorted[sorted++] = core->news[i];
        }
        while (begin < sorted) {
            bt_tokens *tokens = &bt_prefill_say(out, peer, BT_MESSAGE_TOKENS)->tokens;
            uint32_t count = sorted - begin < BT_MESSAGE_ENTRIES_MAX ? sorted - begin : BT_MESSAGE_ENTRIES_MAX;

            *tokens = (bt_tokens){++core->peers[peer].tokens_number, count, core->sorted + begin};
            begin += count;
        }
    }
    core->news_count = 0;
}

static void
begin_step(bt_prefill_core *core, bt_time now, bt_prefill_actions *out)
{
    if (core->stepping || !bt_chunker_fill(&core->chunker, &core->limits, &core->prompts, now))
        return;
    core->stepping = true;
    core->stats.steps++;
    core->stats.step_items += core->chunker.batch.count;
    core->stats.step_tokens += core->chunker.tokens;
    out->step = &core->chunker.batch;
}

static void
take_event(bt_prefill_core *core, bt_time now, const bt_prefill_event *event, bt_prefill_actions *out)
{
    assert(event->peer < BT_PREFILL_PEERS_MAX);
    switch (event->kind) {
    case BT_PREFILL_LINK_UP:
        core->peers[event->peer].up = true; // it speaks first
        break;
    case BT_PREFILL_LINK_DOWN:
        bt_prefill_lose(core, now, event->peer);
        break;
    case BT_PREFILL_MESSAGE:
        bt_prefill_hear(core, now, event->peer, event->message, out);
        break;
    case BT_PREFILL_STEPPED:
        core->stats.step_time += event->duration;
        bt_prefill_stepped(core, now, event->err, out);
        break;
    case BT_PREFILL_DRAIN:
        drain(core, out);
        break;
    case BT_PREFILL_TICK:
        break;
    }
}

void
bt_prefill_core_step(bt_prefill_core *core, bt_time now, const bt_prefill_event *event, bt_prefill_actions *out)
{
    bt_mem_serving_begin();
    out->send_count = out->stamp_count = out->clear_count = out->ended_count = 0;
    core->out = out;
    out->stamps = core->stamps;
    out->clears = core->clears;
    out->step = NULL;
    core->offer_count = 0;
    core->unfinished = false;
    forgive_own_stall(core, now);
    take_event(core, now, event, out);
    expire_deadlines(core, now);
    beat(core, now, out);
    begin_waiting(core, out);
    bt_offer_send(core, out);
    send_news(core, out);
    begin_step(core, now, out);
    bt_mem_serving_end();
}

bt_time
bt_prefill_core_next_deadline(const bt_prefill_core *core)
{
    if (core->unfinished)
        return 0;
    return core->next_heartbeat < core->next_expiry ? core->next_heartbeat : core->next_expiry;
}

static uint32_t
blocks_on_tables(const bt_prefill_core *core)
{
    uint32_t blocks = 0;

    for (uint32_t i = 0; i < core->prompts.capacity; i++)
        blocks += core->prompts.slots[i].table.count;
    return blocks;
}

void
bt_prefill_core_get_stats(const bt_prefill_core *core, bt_prefill_stats *out)
{
    *out = core->stats;
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt_state state = core->prompts.slots[i].state;

        out->waiting += state == BT_PROMPT_WAITING;
        out->reading += state == BT_PROMPT_READING;
        out->holding += state == BT_PROMPT_HOLDING;
        out->ending += state == BT_PROMPT_ENDING;
    }
    out->blocks = bt_kv_pool_blocks(core->pool);
    out->blocks_free = bt_kv_pool_free(core->pool);
    out->blocks_cached = bt_kv_pool_idle(core->pool);
    out->leak = bt_kv_pool_leaked(core->pool, blocks_on_tables(core));
}

static bool
prompt_is_sound(const bt_prefill_core *core, const bt_prompt *prompt)
{
    uint32_t blocks = bt_kv_blocks_for(prompt->count, core->limits.block_tokens);

    if (prompt->state == BT_PROMPT_FREE || prompt->state == BT_PROMPT_WAITING)
        return prompt->table.count == 0 && !(prompt->in_step && prompt->state == BT_PROMPT_WAITING);
    for (uint32_t b = 0; b < prompt->table.count; b++) {
        if (bt_kv_pool_holds(core->pool, prompt->table.blocks[b]) == 0)
            return false;
    }
    return prompt->table.count == blocks && prompt->computed <= prompt->count && prompt->finished <= blocks &&
           prompt->offered <= blocks && (prompt->state != BT_PROMPT_HOLDING || prompt->finished == blocks) &&
           (prompt->state != BT_PROMPT_ENDING || prompt->in_step) && (!prompt->in_step || core->stepping);
}

bool
bt_prefill_core_sound(const bt_prefill_core *core, bt_why *why)
{
    uint32_t waiting = 0;

    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        const bt_prompt *prompt = &core->prompts.slots[i];

        waiting += prompt->state == BT_PROMPT_WAITING;
        if (!prompt_is_sound(core, prompt))
            return bt_fail(why, BT_ERR_BUG,
                           "prompt %u: state %d, %u blocks, %u finished, %u offered, %u of %u computed", i,
                           (int)prompt->state, prompt->table.count, prompt->finished, prompt->offered, prompt->computed,
                           prompt->count) == BT_OK;
    }
    if (waiting != core->prompts.queued)
        return bt_fail(why, BT_ERR_BUG, "%u prompts wait, %u are queued", waiting, core->prompts.queued) == BT_OK;
    if (bt_kv_pool_leaked(core->pool, blocks_on_tables(core)) != 0)
        return bt_fail(why, BT_ERR_BUG, "leak gauge is not 0") == BT_OK;
    return true;
}
