#include "decode-node/core.h"
#include "common/base/mem.h"
#include "decode-node/fetch.h"
#include "decode-node/inside.h"
#include "decode-node/source.h"

#include <assert.h>
#include <string.h>

// Sends kept free for what each call may add after its event: news, heartbeats.
#define SENDS_SPARE (3 * BT_DECODE_ROUTERS_MAX + 2 * BT_DECODE_SOURCES_MAX)

static void
fill_defaults(bt_decode_limits *limits)
{
    if (limits->prefill_tokens == 0)
        limits->prefill_tokens = limits->chunk_tokens / 2 + 1;
    if (limits->logit_rows == 0)
        limits->logit_rows = limits->sequences;
    if (limits->lease == 0)
        limits->lease = 30 * BT_SECOND;
    if (limits->heartbeat == 0)
        limits->heartbeat = BT_SECOND;
    if (limits->prompt_weights == 0)
        limits->prompt_weights = limits->weights;
    if (limits->fetch_blocks == 0)
        limits->fetch_blocks = 1024;
    if (limits->fetch_time == 0)
        limits->fetch_time = 2 * BT_SECOND;
    if (limits->fetch_time_block == 0)
        limits->fetch_time_block = 20 * BT_MILLISECOND;
    if (limits->source_silence == 0)
        limits->source_silence = 10 * BT_SECOND;
}

static bt_err
check_limits(const bt_decode_limits *limits, bt_why *why)
{
    if (limits->epoch == 0 || limits->context == 0 || limits->blocks == 0 || limits->vocab == 0)
        return bt_fail(why, BT_ERR_INVALID, "decode node: epoch, context, blocks and vocab must not be 0");
    if (limits->sequences == 0 || limits->sequences > BT_MESSAGE_ENTRIES_MAX || limits->queue_max > 4096)
        return bt_fail(why, BT_ERR_INVALID, "decode node: %u sequences and %u waiting, expected 1 to %u and up to 4096",
                       limits->sequences, limits->queue_max, BT_MESSAGE_ENTRIES_MAX);
    if (limits->chunk_tokens < limits->sequences)
        return bt_fail(why, BT_ERR_INVALID, "decode node: chunk_tokens %u is less than max_sequences %u",
                       limits->chunk_tokens, limits->sequences);
    if (limits->logit_rows != 0 && limits->logit_rows < limits->sequences)
        return bt_fail(why, BT_ERR_INVALID, "decode node: %u rows of logits for %u sequences", limits->logit_rows,
                       limits->sequences);
    return BT_OK;
}

static bt_err
open_parts(bt_decode_core *core)
{
    const bt_decode_limits *limits = &core->limits;
    uint32_t slots = limits->sequences + limits->queue_max;
    bt_err err;

    // A sequence can be in a call's news twice: with its tokens, and with an end of another cause.
    core->news_max = 2 * slots + 1;
    core->news = bt_alloc_array(core->news_max, sizeof *core->news);
    core->sorted = bt_alloc_array(core->news_max, sizeof *core->sorted);
    core->news_peer = bt_alloc_array(core->news_max, sizeof *core->news_peer);
    if (core->news == NULL || core->sorted == NULL || core->news_peer == NULL)
        return BT_ERR_NO_MEMORY;
    if ((err = bt_sequences_init(&core->sequences, slots, limits->context, limits->block_tokens)) != BT_OK ||
        (err = bt_room_init(&core->room, limits->blocks, limits->block_tokens, limits->prompt_weights,
                            limits->weights)) != BT_OK ||
        (err = bt_fetch_init(&core->fetches, limits)) != BT_OK)
        return err;
    return bt_batcher_init(&core->batcher, limits);
}

bt_err
bt_decode_core_open(bt_decode_core **out, const bt_decode_limits *limits, bt_why *why)
{
    bt_decode_core *core;
    bt_err err = check_limits(limits, why);

    if (err != BT_OK)
        return err;
    core = bt_alloc(sizeof *core);
    if (core == NULL)
        return bt_fail(why, BT_ERR_NO_MEMORY, "decode node: out of memory");
    core->limits = *limits;
    fill_defaults(&core->limits);
    core->next_expiry = BT_TIME_NEVER;
    if ((err = open_parts(core)) != BT_OK) {
        bt_decode_core_close(core);
        return bt_fail(why, err, "decode node: no memory for %u sequences of %u tokens and %u blocks of %u tokens",
                       limits->sequences + limits->queue_max, limits->context, limits->blocks, limits->block_tokens);
    }
    *out = core;
    return BT_OK;
}

void
bt_decode_core_close(bt_decode_core *core)
{
    if (core == NULL)
        return;
    for (uint32_t i = 0; core->sequences.slots != NULL && core->room.pool != NULL && i < core->sequences.capacity; i++)
        bt_kv_table_shrink(&core->sequences.slots[i].table, core->room.pool, 0);
    bt_batcher_fini(&core->batcher);
    bt_room_fini(&core->room);
    bt_sequences_fini(&core->sequences);
    bt_fetch_fini(&core->fetches);
    bt_free(core->news);
    bt_free(core->sorted);
    bt_free(core->news_peer);
    bt_free(core);
}

bt_message *
bt_decode_say(bt_decode_core *core, bt_decode_actions *out, uint32_t peer, bt_message_kind kind)
{
    bt_decode_send *send = &out->send[out->send_count++];

    (void)core;
    assert(out->send_count <= BT_DECODE_ACTIONS_MAX);
    *send = (bt_decode_send){.peer = peer, .message.kind = kind};
    return &send->message;
}

void
bt_decode_greet(bt_decode_core *core, bt_decode_actions *out, uint32_t peer)
{
    const bt_decode_limits *limits = &core->limits;
    bt_hello *hello = &bt_decode_say(core, out, peer, BT_MESSAGE_HELLO)->hello;

    *hello = (bt_hello){
        .role = BT_NODE_DECODE,
        .version = BT_PROTOCOL_VERSION,
        .epoch = limits->epoch,
        .model = limits->model,
        .weights = limits->weights,
        .layout = limits->layout,
        .kv_format = limits->kv_format,
        .sequences = limits->sequences,
        .queue = limits->queue_max,
        .blocks = limits->blocks,
        .block_tokens = limits->block_tokens,
        .context = limits->context,
        .draining = core->draining,
    };
    memcpy(hello->name, limits->name, sizeof hello->name);
    core->peers[peer].tokens_number = 0;
}

bt_sequence *
bt_decode_by_ticket(bt_decode_core *core, const bt_ticket *ticket)
{
    bt_sequence *sequence;

    if (ticket->epoch != core->limits.epoch || ticket->slot >= core->sequences.capacity)
        return NULL;
    sequence = &core->sequences.slots[ticket->slot];
    return sequence->state != BT_SEQUENCE_FREE && sequence->generation == ticket->generation ? sequence : NULL;
}

bt_tokens_entry *
bt_decode_news(bt_decode_core *core, const bt_sequence *sequence)
{
    bt_tokens_entry *entry = &core->news[core->news_count];

    if (!core->peers[sequence->peer].known)
        return NULL;
    assert(core->news_count < core->news_max);
    core->news_peer[core->news_count++] = sequence->peer;
    *entry = (bt_tokens_entry){
        .request = sequence->request, .first = bt_sequence_answer(sequence), .cached_tokens = sequence->cached_tokens};
    return entry;
}

void
bt_decode_free_unused(bt_decode_core *core, bt_sequence *sequence)
{
    if (sequence->in_step || sequence->fetch.flying > 0)
        return;
    bt_room_release(&core->room, sequence);
    bt_sequences_release(&core->sequences, sequence);
}

static void
note_end(bt_decode_core *core, const bt_sequence *sequence, bt_finish finish, bt_err err)
{
    bt_decode_ended *note;

    if (core->out->ended_count++ >= BT_DECODE_ENDED_MAX)
        return;
    note = &core->out->ended[core->out->ended_count - 1];
    *note = (bt_decode_ended){.peer = sequence->peer,
                              .source = sequence->fetch.source != 0 ? sequence->fetch.source : BT_DECODE_PEERS_MAX,
                              .finish = finish,
                              .err = err,
                              .prompt_tokens = sequence->prompt_count,
                              .cached_tokens = sequence->cached_tokens,
                              .answer_tokens = bt_sequence_answer(sequence),
                              .phases = sequence->phases,
                              .total = core->last_step - sequence->received};
    memcpy(note->name, sequence->name, sizeof note->name);
}

void
bt_decode_end(bt_decode_core *core, bt_sequence *sequence, bt_finish finish, bt_err err, bool tell)
{
    bt_tokens_entry *entry = tell ? bt_decode_news(core, sequence) : NULL;

    if (entry != NULL) {
        entry->finish = finish;
        entry->err = err;
    }
    note_end(core, sequence, finish, err);
    if (sequence->state == BT_SEQUENCE_FETCHING)
        bt_fetch_stop(core, sequence);
    if (sequence->in_step || sequence->fetch.flying > 0)
        sequence->state = BT_SEQUENCE_ENDING;
    bt_decode_free_unused(core, sequence);
}

void
bt_decode_end_peer(bt_decode_core *core, uint32_t peer)
{
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence *sequence = &core->sequences.slots[i];

        if (sequence->peer != peer || sequence->state == BT_SEQUENCE_FREE || sequence->state == BT_SEQUENCE_ENDING)
            continue;
        core->stats.aborted++;
        bt_decode_end(core, sequence, BT_FINISH_CANCELLED, BT_OK, false);
    }
}

static void
link_down(bt_decode_core *core, uint32_t peer)
{
    core->peers[peer] = (bt_decode_peer){0}; // first: nothing is said to it any more
    if (peer < BT_DECODE_ROUTERS_MAX)
        bt_decode_end_peer(core, peer);
    else
        bt_fetch_lose(core, peer);
}

static void
drain(bt_decode_core *core, bt_decode_actions *out)
{
    if (core->draining)
        return;
    core->draining = true;
    for (uint32_t peer = 0; peer < BT_DECODE_ROUTERS_MAX; peer++) {
        if (core->peers[peer].known)
            bt_decode_greet(core, out, peer);
    }
}

// Time that this program slept through does not count against its routers.
static void
forgive_own_stall(bt_decode_core *core, bt_time now)
{
    bt_time gap = now - core->last_step;

    if (core->last_step != 0 && gap > 2 * core->limits.heartbeat) {
        for (uint32_t peer = 0; peer < BT_DECODE_PEERS_MAX; peer++)
            core->peers[peer].lease_end += gap;
    }
    core->last_step = now;
}

static void
expire_leases(bt_decode_core *core, bt_time now)
{
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence *sequence = &core->sequences.slots[i];

        if (sequence->state == BT_SEQUENCE_FREE || sequence->state == BT_SEQUENCE_ENDING ||
            core->peers[sequence->peer].lease_end > now)
            continue;
        core->stats.expired++;
        bt_decode_end(core, sequence, BT_FINISH_CANCELLED, BT_OK, true);
    }
}

static void
expire_deadlines(bt_decode_core *core, bt_time now)
{
    if (core->next_expiry > now)
        return;
    core->next_expiry = BT_TIME_NEVER;
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence *sequence = &core->sequences.slots[i];

        if (sequence->state == BT_SEQUENCE_FREE || sequence->state == BT_SEQUENCE_ENDING)
            continue;
        if (sequence->deadline <= now) {
            core->stats.expired++;
            bt_decode_end(core, sequence, BT_FINISH_ERROR, BT_ERR_TIMEOUT, true);
        } else if (sequence->deadline < core->next_expiry) {
            core->next_expiry = sequence->deadline;
        }
    }
}

void
bt_decode_beat(bt_decode_core *core, bt_decode_actions *out, uint32_t peer)
{
    bt_decode_say(core, out, peer, BT_MESSAGE_HEARTBEAT)->heartbeat =
        (bt_heartbeat){.number = core->heartbeats,
                       .tokens_number = core->peers[peer].tokens_number,
                       .running = core->sequences.with_room,
                       .queued = core->sequences.queued,
                       .blocks_free = bt_kv_pool_available(core->room.pool),
                       .source_count = core->source_count,
                       .sources = core->sources};
}

// The sweep of leases rides on the heartbeat: a timer of our own, not traffic. A change of sources does not wait for it.
static void
beat(bt_decode_core *core, bt_time now, bt_decode_actions *out)
{
    bool due = core->next_heartbeat <= now;

    if (due) {
        core->next_heartbeat = now + core->limits.heartbeat;
        core->heartbeats++;
        expire_leases(core, now);
        bt_fetch_beat(core, now);
    }
    if (!bt_source_list(core) && !due)
        return;
    for (uint32_t peer = 0; peer < BT_DECODE_ROUTERS_MAX; peer++) {
        if (core->peers[peer].known)
            bt_decode_beat(core, out, peer);
    }
}

// First come, first served: the head of the queue waits for its room, and nobody overtakes it.
static void
grant_waiting(bt_decode_core *core, bt_decode_actions *out)
{
    while (core->sequences.queued > 0 && core->sequences.with_room < core->limits.sequences) {
        bt_sequence *first = &core->sequences.slots[core->sequences.queue_first];
        bt_ticket_reply *reply;

        if (out->send_count + SENDS_SPARE >= BT_DECODE_ACTIONS_MAX) {
            core->unfinished = true;
            return;
        }
        if (!bt_room_grant(&core->room, first))
            return;
        bt_sequences_grant_first(&core->sequences);
        first->granted = core->last_step;
        first->phases.queue_decode = first->granted - first->received;
        reply = &bt_decode_say(core, out, first->peer, BT_MESSAGE_TICKET)->ticket;
        *reply = (bt_ticket_reply){.request = first->request,
                                   .cached_tokens = first->cached_tokens,
                                   .lease = core->limits.lease,
                                   .ticket = {.epoch = core->limits.epoch,
                                              .slot = (uint32_t)(first - core->sequences.slots),
                                              .generation = first->generation,
                                              .layout = core->limits.layout}};
    }
}

// One message a router with all its news; more only where they are more than one can hold.
static void
send_news(bt_decode_core *core, bt_decode_actions *out)
{
    uint32_t sorted = 0;

    for (uint32_t peer = 0; peer < BT_DECODE_ROUTERS_MAX && sorted < core->news_count; peer++) {
        uint32_t begin = sorted;

        for (uint32_t i = 0; i < core->news_count; i++) {
            if (core->news_peer[i] == peer)
                core->sorted[sorted++] = core->news[i];
        }
        while (begin < sorted) {
            bt_tokens *tokens = &bt_decode_say(core, out, peer, BT_MESSAGE_TOKENS)->tokens;
            uint32_t count = sorted - begin < BT_MESSAGE_ENTRIES_MAX ? sorted - begin : BT_MESSAGE_ENTRIES_MAX;

            *tokens = (bt_tokens){++core->peers[peer].tokens_number, count, core->sorted + begin};
            begin += count;
        }
    }
    core->news_count = 0;
}

static void
begin_step(bt_decode_core *core, bt_time now, bt_decode_actions *out)
{
    if (core->stepping || !bt_batcher_fill(&core->batcher, &core->limits, &core->sequences, &core->room, now))
        return;
    core->stepping = true;
    core->stats.steps++;
    core->stats.step_items += core->batcher.batch.count;
    core->stats.step_tokens += core->batcher.tokens;
    out->step = &core->batcher.batch;
}

void
bt_decode_core_step(bt_decode_core *core, bt_time now, const bt_decode_event *event, bt_decode_actions *out)
{
    bt_mem_serving_begin();
    out->send_count = out->cancel_count = out->ended_count = 0;
    out->has_fetch = false;
    out->step = NULL;
    core->out = out;
    core->unfinished = false;
    forgive_own_stall(core, now);
    assert(event->peer < BT_DECODE_PEERS_MAX);
    switch (event->kind) {
    case BT_DECODE_LINK_UP:
        core->peers[event->peer].up = true; // a router speaks first
        if (event->peer >= BT_DECODE_ROUTERS_MAX)
            bt_decode_greet(core, out, event->peer);
        break;
    case BT_DECODE_LINK_DOWN:
        link_down(core, event->peer);
        break;
    case BT_DECODE_MESSAGE:
        bt_decode_hear(core, now, event->peer, event->message, out);
        break;
    case BT_DECODE_STEPPED:
        core->stats.step_time += event->duration;
        bt_decode_stepped(core, now, event->err);
        break;
    case BT_DECODE_FETCHED:
        bt_fetch_done(core, now, event->user, event->err, event->good);
        break;
    case BT_DECODE_SOURCE:
        assert(event->peer >= BT_DECODE_ROUTERS_MAX);
        bt_source_proved(core, event->peer, event->epoch, event->up);
        break;
    case BT_DECODE_DRAIN:
        drain(core, out);
        break;
    case BT_DECODE_TICK:
        break;
    }
    expire_deadlines(core, now);
    beat(core, now, out);
    send_news(core, out);
    grant_waiting(core, out);
    begin_step(core, now, out);
    bt_mem_serving_end();
}

bt_time
bt_decode_core_next_deadline(const bt_decode_core *core)
{
    if (core->unfinished)
        return 0;
    return core->next_heartbeat < core->next_expiry ? core->next_heartbeat : core->next_expiry;
}

static uint32_t
blocks_on_tables(const bt_decode_core *core)
{
    uint32_t blocks = 0;

    for (uint32_t i = 0; i < core->sequences.capacity; i++)
        blocks += core->sequences.slots[i].table.count;
    return blocks;
}

void
bt_decode_core_get_stats(const bt_decode_core *core, bt_decode_stats *out)
{
    *out = core->stats;
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence_state state = core->sequences.slots[i].state;

        out->waiting += state == BT_SEQUENCE_WAITING;
        out->granted += state == BT_SEQUENCE_GRANTED;
        out->fetching += state == BT_SEQUENCE_FETCHING;
        out->prefilling += state == BT_SEQUENCE_PREFILLING;
        out->decoding += state == BT_SEQUENCE_DECODING;
        out->ending += state == BT_SEQUENCE_ENDING;
    }
    out->sources = core->source_count;
    out->blocks = bt_kv_pool_blocks(core->room.pool);
    out->blocks_free = bt_kv_pool_free(core->room.pool);
    out->blocks_cached = bt_kv_pool_idle(core->room.pool);
    out->blocks_promised = core->room.promised;
    out->leak = bt_kv_pool_leaked(core->room.pool, blocks_on_tables(core));
}

bool
bt_decode_core_sound(const bt_decode_core *core, bt_why *why)
{
    uint64_t promised = 0, with_room = 0;

    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        const bt_sequence *sequence = &core->sequences.slots[i];
        bool room = bt_sequence_has_room(sequence);

        with_room += room;
        promised += room ? sequence->worst - sequence->table.count : 0;
        if ((!room && sequence->table.count > 0) || (room && sequence->table.count > sequence->worst) ||
            sequence->computed > sequence->count || (sequence->in_step && !core->stepping) ||
            (sequence->state == BT_SEQUENCE_ENDING && !sequence->in_step && sequence->fetch.flying == 0) ||
            (sequence->fetch.flying > 0 && sequence->state != BT_SEQUENCE_FETCHING &&
             sequence->state != BT_SEQUENCE_ENDING))
            return bt_fail(why, BT_ERR_BUG, "sequence %u: state %d, %u of %u blocks, %u of %u computed", i,
                           (int)sequence->state, sequence->table.count, sequence->worst, sequence->computed,
                           sequence->count) == BT_OK;
        for (uint32_t b = 0; b < sequence->table.count; b++) {
            if (bt_kv_pool_holds(core->room.pool, sequence->table.blocks[b]) == 0)
                return bt_fail(why, BT_ERR_BUG, "sequence %u: block %u is not held", i, b) == BT_OK;
        }
    }
    if (promised != core->room.promised || with_room != core->sequences.with_room ||
        with_room > core->limits.sequences || core->sequences.queued > core->limits.queue_max + core->limits.sequences)
        return bt_fail(why, BT_ERR_BUG, "%u blocks promised, %llu owed; %u with room, %llu counted",
                       core->room.promised, (unsigned long long)promised, core->sequences.with_room,
                       (unsigned long long)with_room) == BT_OK;
    if (bt_kv_pool_available(core->room.pool) < core->room.promised)
        return bt_fail(why, BT_ERR_BUG, "%u blocks promised, %u available", core->room.promised,
                       bt_kv_pool_available(core->room.pool)) == BT_OK;
    if (bt_kv_pool_leaked(core->room.pool, blocks_on_tables(core)) != 0)
        return bt_fail(why, BT_ERR_BUG, "leak gauge is not 0") == BT_OK;
    return true;
}
