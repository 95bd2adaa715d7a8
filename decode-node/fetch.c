#include "decode-node/fetch.h"
#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

bt_err
bt_fetch_init(bt_decode_fetches *fetches, const bt_decode_limits *limits)
{
    *fetches = (bt_decode_fetches){.list_max = bt_kv_blocks_for(limits->context, limits->block_tokens)};
    if (!limits->fetches)
        return BT_OK;
    fetches->blocks = bt_alloc_array(limits->sequences, fetches->list_max * sizeof *fetches->blocks);
    fetches->free = bt_alloc_array(limits->sequences, sizeof *fetches->free);
    fetches->wanted = bt_alloc_array(limits->fetch_blocks, sizeof *fetches->wanted);
    if (fetches->blocks == NULL || fetches->free == NULL || fetches->wanted == NULL)
        return BT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < limits->sequences; i++)
        fetches->free[fetches->free_count++] = i;
    return BT_OK;
}

void
bt_fetch_fini(bt_decode_fetches *fetches)
{
    bt_free(fetches->blocks);
    bt_free(fetches->free);
    bt_free(fetches->wanted);
    *fetches = (bt_decode_fetches){0};
}

static bt_ticket
ticket_of(const bt_decode_core *core, const bt_sequence *sequence)
{
    return (bt_ticket){.epoch = core->limits.epoch,
                       .slot = (uint32_t)(sequence - core->sequences.slots),
                       .generation = sequence->generation,
                       .layout = core->limits.layout};
}

static bt_offer_block *
list_of(const bt_decode_core *core, const bt_sequence *sequence)
{
    return core->fetches.blocks + (size_t)sequence->fetch.list * core->fetches.list_max;
}

static uint64_t
user_of(const bt_decode_core *core, const bt_sequence *sequence)
{
    return (uint64_t)sequence->generation << 32 | (uint64_t)(sequence - core->sequences.slots);
}

static void
say_taken(bt_decode_core *core, uint32_t peer, const bt_ticket *ticket, uint32_t count, bt_err err)
{
    if (core->peers[peer].known)
        bt_decode_say(core, core->out, peer, BT_MESSAGE_TAKEN)->taken = (bt_taken){*ticket, count, err};
}

// The room for the whole prompt is taken now, out of the promise.
static void
begin(bt_decode_core *core, bt_sequence *sequence, uint32_t source)
{
    assert(core->fetches.free_count > 0); // as many as sequences with room
    sequence->state = BT_SEQUENCE_FETCHING;
    sequence->fetch = (bt_sequence_fetch){.source = source,
                                          .epoch = core->peers[source].epoch,
                                          .list = core->fetches.free[--core->fetches.free_count],
                                          .first = sequence->table.count,
                                          .bad_at = BT_SEQUENCE_NONE};
    bt_room_take(&core->room, sequence, sequence->prompt_count);
}

static void
end_list(bt_decode_core *core, bt_sequence *sequence)
{
    core->fetches.free[core->fetches.free_count++] = sequence->fetch.list;
}

void
bt_fetch_stop(bt_decode_core *core, bt_sequence *sequence)
{
    bt_ticket ticket = ticket_of(core, sequence);

    if (sequence->fetch.flying > 0) {
        assert(core->out->cancel_count < BT_MESSAGE_ENTRIES_MAX);
        core->out->cancel[core->out->cancel_count++] = user_of(core, sequence);
    }
    say_taken(core, sequence->fetch.source, &ticket, sequence->fetch.landed, BT_ERR_CANCELLED);
    end_list(core, sequence);
}

// The blocks did not come: the router gives the request to another node, or to this one anew.
static void
give_up(bt_decode_core *core, bt_sequence *sequence)
{
    core->stats.lost_fetches++;
    bt_decode_end(core, sequence, BT_FINISH_ERROR, BT_ERR_PEER, true);
}

static uint32_t
least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// Blocks that are on their way here, from whomever.
static uint32_t
blocks_flying(const bt_decode_core *core)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < core->sequences.capacity; i++)
        count += core->sequences.slots[i].fetch.flying;
    return count;
}

static void
fetch_more(bt_decode_core *core, bt_time now, bt_sequence *sequence)
{
    bt_sequence_fetch *fetch = &sequence->fetch;
    const bt_offer_block *offered = list_of(core, sequence) + fetch->landed;
    const bt_block *to = sequence->table.blocks + fetch->first + fetch->landed;
    uint32_t count = least(fetch->offered - fetch->landed, core->limits.fetch_blocks), flying;

    if (fetch->flying > 0 || count == 0)
        return;
    assert(!core->out->has_fetch);        // an event is about one sequence
    flying = count + blocks_flying(core); // all share the way
    for (uint32_t i = 0; i < count; i++)
        core->fetches.wanted[i] = (bt_transfer_block){offered[i].block, to[i], offered[i].generation};
    fetch->flying = count;
    core->out->has_fetch = true;
    core->out->fetch =
        (bt_decode_fetch){.peer = fetch->source,
                          .epoch = fetch->epoch,
                          .user = user_of(core, sequence),
                          .blocks = core->fetches.wanted,
                          .count = count,
                          .deadline = now + core->limits.fetch_time + flying * core->limits.fetch_time_block};
    core->stats.fetches++;
}

// The first token, drawn by the prefill node. Its router may have it from there already.
static void
join_with_token(bt_decode_core *core, bt_sequence *sequence, bt_tokens_entry *entry)
{
    const bt_token_result *token = &sequence->fetch.token;

    sequence->ids[sequence->count++] = token->id;
    sequence->state = BT_SEQUENCE_DECODING;
    sequence->first_token_sent = true;
    if (entry == NULL)
        return;
    core->fetches.token = *token; // the sequence may be gone before this is sent
    entry->results = &core->fetches.token;
    entry->count = 1;
    if (bt_decode_is_end_token(sequence, token->id))
        entry->finish = BT_FINISH_STOP;
    else if (bt_sequence_answer(sequence) >= sequence->max_tokens)
        entry->finish = BT_FINISH_LENGTH;
}

// All is here: into the next step, with the token that was drawn, or with those that are to be replayed.
static void
join(bt_decode_core *core, bt_time now, bt_sequence *sequence)
{
    bt_sequence_fetch *fetch = &sequence->fetch;
    bt_tokens_entry *entry = NULL;

    end_list(core, sequence);
    sequence->computed = sequence->prompt_count;
    if (core->room.others_write)
        sequence->indexable = sequence->prompt_count;
    bt_room_index(&core->room, sequence);
    core->stats.fetched_sequences++;
    core->stats.handover_time += now - fetch->last_offer;
    core->stats.cached_tokens += sequence->cached_tokens;
    sequence->state = BT_SEQUENCE_PREFILLING;
    sequence->started = now;
    sequence->started_step = core->batcher.begun;
    fetch->phases.transfer = now - fetch->last_offer;
    sequence->phases.queue_prefill = fetch->phases.queue_prefill;
    sequence->phases.prefill = fetch->phases.prefill;
    sequence->phases.transfer = fetch->phases.transfer;
    if (sequence->count > sequence->prompt_count)
        return;
    entry = bt_decode_news(core, sequence);
    if (entry != NULL) {
        entry->phases = fetch->phases;
        entry->cached_tokens = fetch->cached_tokens;
    }
    if (fetch->has_token)
        join_with_token(core, sequence, entry);
    else if (entry != NULL)
        entry->finish = BT_FINISH_LENGTH; // only to be read
    if (entry != NULL && entry->finish != BT_FINISH_NONE) {
        core->stats.finished++;
        bt_decode_end(core, sequence, entry->finish, BT_OK, false);
    }
}

static void
go_on(bt_decode_core *core, bt_time now, bt_sequence *sequence)
{
    if (sequence->fetch.last && sequence->fetch.landed == sequence->fetch.offered)
        join(core, now, sequence);
    else
        fetch_more(core, now, sequence);
}

static void
landed(bt_decode_core *core, bt_sequence *sequence, uint32_t count)
{
    bt_ticket ticket = ticket_of(core, sequence);

    if (count == 0)
        return;
    sequence->fetch.landed += count;
    core->stats.fetched_blocks += count;
    say_taken(core, sequence->fetch.source, &ticket, sequence->fetch.landed, BT_OK);
}

void
bt_fetch_done(bt_decode_core *core, bt_time now, uint64_t user, bt_err err, uint32_t good)
{
    uint32_t slot = (uint32_t)user;
    bt_sequence *sequence = slot < core->sequences.capacity ? &core->sequences.slots[slot] : NULL;
    uint32_t count;

    // Whatever has landing blocks is still there to hear of them.
    assert(sequence != NULL && sequence->generation == (uint32_t)(user >> 32) && sequence->fetch.flying > 0);
    count = err == BT_OK ? sequence->fetch.flying : least(good, sequence->fetch.flying);
    sequence->fetch.flying = 0;
    if (sequence->state == BT_SEQUENCE_ENDING) {
        bt_decode_free_unused(core, sequence);
        return;
    }
    landed(core, sequence, count);
    if (err != BT_OK && (err != BT_ERR_PEER || sequence->fetch.bad_at == sequence->fetch.landed)) {
        give_up(core, sequence);
        return;
    }
    if (err != BT_OK) {
        sequence->fetch.bad_at = sequence->fetch.landed;
        core->stats.refetches++;
    }
    go_on(core, now, sequence);
}

// Does the offer follow the one before without a gap, is it whole, and is its end the prompt's?
static bool
follows(const bt_decode_core *core, const bt_sequence *sequence, const bt_offer *offer)
{
    const bt_sequence_fetch *fetch = &sequence->fetch;
    uint32_t block_tokens = core->limits.block_tokens, first = (fetch->first + fetch->offered) * block_tokens;
    bool draws = sequence->max_tokens > 0 && bt_sequence_answer(sequence) == 0;

    if (fetch->last || offer->first_position != first || offer->token_count > sequence->prompt_count - first ||
        offer->block_count == 0 || offer->block_count != bt_kv_blocks_for(offer->token_count, block_tokens))
        return false;
    if (!offer->last)
        return offer->token_count % block_tokens == 0 && first + offer->token_count < sequence->prompt_count;
    return first + offer->token_count == sequence->prompt_count && offer->has_token == draws &&
           (!draws || (offer->token.id >= 0 && (uint32_t)offer->token.id < core->limits.vocab));
}

static void
take_offer(bt_decode_core *core, bt_time now, bt_sequence *sequence, const bt_offer *offer)
{
    bt_sequence_fetch *fetch = &sequence->fetch;

    memcpy(list_of(core, sequence) + fetch->offered, offer->blocks, offer->block_count * sizeof *offer->blocks);
    fetch->offered += offer->block_count;
    fetch->last_offer = now;
    if (offer->last) {
        fetch->last = true;
        fetch->has_token = offer->has_token;
        fetch->token = offer->token;
        fetch->cached_tokens = least(offer->cached_tokens, sequence->prompt_count);
        fetch->phases.queue_prefill = offer->phases.queue_prefill;
        fetch->phases.prefill = offer->phases.prefill;
    }
    fetch_more(core, now, sequence);
}

static void
hear_offer(bt_decode_core *core, bt_time now, uint32_t peer, const bt_offer *offer)
{
    bt_sequence *sequence = core->limits.fetches ? bt_decode_by_ticket(core, &offer->ticket) : NULL;
    bool fresh = sequence != NULL && sequence->state == BT_SEQUENCE_GRANTED;

    if (sequence == NULL || (!fresh && sequence->state != BT_SEQUENCE_FETCHING) ||
        (!fresh && sequence->fetch.source != peer)) {
        core->stats.late_messages++;
        say_taken(core, peer, &offer->ticket, 0, BT_ERR_CANCELLED);
        return;
    }
    if (fresh)
        begin(core, sequence, peer); // the offer was faster than the AWAIT
    if (offer->epoch == sequence->fetch.epoch && offer->ticket.layout == core->limits.layout &&
        follows(core, sequence, offer)) {
        take_offer(core, now, sequence, offer);
    } else {
        core->stats.bad_messages++;
        give_up(core, sequence);
    }
}

// Another program answers under this number: what came from the one before comes no more, however well its blocks' names may fit.
static void
lose_others(bt_decode_core *core, uint32_t peer, uint64_t epoch)
{
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence *sequence = &core->sequences.slots[i];

        if (sequence->state == BT_SEQUENCE_FETCHING && sequence->fetch.source == peer && sequence->fetch.epoch != epoch)
            give_up(core, sequence);
    }
}

static void
hear_hello(bt_decode_core *core, bt_time now, uint32_t peer, const bt_hello *hello)
{
    bt_decode_peer *self = &core->peers[peer];

    lose_others(core, peer, hello->epoch);
    self->known = false;
    if (hello->role != BT_NODE_PREFILL) {
        core->stats.bad_messages++;
    } else if (hello->model != core->limits.model || hello->layout != core->limits.layout ||
               hello->weights != core->limits.prompt_weights) {
        core->stats.refused_sources++;
    } else {
        self->known = true;
        self->epoch = hello->epoch;
        self->lease_end = now + core->limits.source_silence;
        memcpy(self->name, hello->name, sizeof self->name);
    }
}

void
bt_fetch_hear(bt_decode_core *core, bt_time now, uint32_t peer, const bt_message *message)
{
    bt_decode_peer *self = &core->peers[peer];

    if (message->kind == BT_MESSAGE_HELLO)
        hear_hello(core, now, peer, &message->hello);
    else if (!self->known)
        core->stats.late_messages++;
    else if (message->kind == BT_MESSAGE_HEARTBEAT)
        self->lease_end = now + core->limits.source_silence;
    else if (message->kind == BT_MESSAGE_OFFER)
        hear_offer(core, now, peer, &message->offer);
    else if (message->kind != BT_MESSAGE_DESCRIPTION) // which is the edge's
        core->stats.bad_messages++;
}

static uint32_t
find_source(const bt_decode_core *core, const bt_await *await)
{
    for (uint32_t peer = BT_DECODE_ROUTERS_MAX; peer < BT_DECODE_PEERS_MAX; peer++) {
        const bt_decode_peer *self = &core->peers[peer];

        if (self->known && self->epoch == await->prefill_epoch &&
            strncmp(self->name, await->prefill, sizeof self->name) == 0)
            return peer;
    }
    return BT_SEQUENCE_NONE;
}

void
bt_fetch_await(bt_decode_core *core, bt_sequence *sequence, const bt_await *await)
{
    uint32_t source = core->limits.fetches ? find_source(core, await) : BT_SEQUENCE_NONE;

    if (source == BT_SEQUENCE_NONE || (sequence->state == BT_SEQUENCE_FETCHING && sequence->fetch.source != source))
        give_up(core, sequence);
    else if (sequence->state == BT_SEQUENCE_GRANTED)
        begin(core, sequence, source);
}

void
bt_fetch_lose(bt_decode_core *core, uint32_t peer)
{
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence *sequence = &core->sequences.slots[i];

        if (sequence->state == BT_SEQUENCE_FETCHING && sequence->fetch.source == peer && !sequence->fetch.last)
            give_up(core, sequence);
    }
}

void
bt_fetch_beat(bt_decode_core *core, bt_time now)
{
    for (uint32_t peer = BT_DECODE_ROUTERS_MAX; peer < BT_DECODE_PEERS_MAX; peer++) {
        bt_decode_peer *self = &core->peers[peer];

        if (!self->up)
            continue;
        if (self->known && self->lease_end <= now) {
            bt_fetch_lose(core, peer);
            self->known = false;
        }
        if (self->known)
            bt_decode_say(core, core->out, peer, BT_MESSAGE_HEARTBEAT)->heartbeat.number = core->heartbeats;
        else
            bt_decode_greet(core, core->out, peer);
    }
}
