// What routers and decode nodes say, and what their loss means.
#include "prefill-node/inside.h"
#include "prefill-node/offer.h"

#include <string.h>

// A router's prompts are not wanted any more; what is read already is its decode node's affair, which will say so.
static void
lose_router(bt_prefill_core *core, uint32_t peer)
{
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt *prompt = &core->prompts.slots[i];

        if (prompt->state == BT_PROMPT_FREE || prompt->router != peer)
            continue;
        prompt->router = BT_PROMPT_NONE;
        if (prompt->state == BT_PROMPT_WAITING || prompt->state == BT_PROMPT_READING) {
            core->stats.aborted++;
            bt_prefill_end(core, prompt, BT_FINISH_CANCELLED, BT_OK);
        }
    }
}

// With `gone` it is another program now, and what was held for it can be reused at once; else it may only be cut off and still read.
static void
lose_decode(bt_prefill_core *core, bt_time now, uint32_t peer, bool gone)
{
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt *prompt = &core->prompts.slots[i];

        if (prompt->state == BT_PROMPT_FREE || prompt->decode != peer)
            continue;
        prompt->decode = BT_PROMPT_NONE;
        if (prompt->state == BT_PROMPT_ENDING)
            continue;
        if (prompt->state != BT_PROMPT_HOLDING || prompt->offered < prompt->table.count || gone) {
            bt_prefill_end(core, prompt, BT_FINISH_ERROR, BT_ERR_PEER);
        } else if (now + core->limits.lease < prompt->hold_end) {
            prompt->hold_end = now + core->limits.lease;
            bt_prefill_expires(core, prompt->hold_end);
        }
    }
}

void
bt_prefill_lose(bt_prefill_core *core, bt_time now, uint32_t peer)
{
    if (core->peers[peer].known && core->peers[peer].role == BT_NODE_ROUTER)
        lose_router(core, peer);
    else if (core->peers[peer].known)
        lose_decode(core, now, peer, false);
    core->peers[peer] = (bt_prefill_peer){0};
}

// A program that greets us by another link has noticed before us that the one it had is dead: nothing more is said there.
static void
leave_older_links(bt_prefill_core *core, bt_time now, uint32_t peer, const bt_hello *hello)
{
    for (uint32_t other = 0; other < BT_PREFILL_PEERS_MAX; other++) {
        const bt_prefill_peer *older = &core->peers[other];

        if (other == peer || !older->known || older->role != hello->role || older->epoch != hello->epoch)
            continue;
        bt_prefill_lose(core, now, other);
        core->peers[other].up = true;
    }
}

static bool
is_welcome(bt_prefill_core *core, const bt_hello *hello)
{
    if (hello->role == BT_NODE_ROUTER)
        return true;
    if (hello->role != BT_NODE_DECODE) {
        core->stats.bad_messages++;
        return false;
    }
    if (hello->model != core->limits.model || hello->layout != core->limits.layout) {
        core->stats.refused_peers++;
        return false;
    }
    return true;
}

// A router begins anew: what it had here is void. A decode node repeats its HELLO until it is answered; only another epoch is another
// program.
static void
hear_hello(bt_prefill_core *core, bt_time now, uint32_t peer, const bt_hello *hello, bt_prefill_actions *out)
{
    bt_prefill_peer *self = &core->peers[peer];

    if (self->known && self->role == BT_NODE_ROUTER)
        lose_router(core, peer);
    else if (self->known && self->epoch != hello->epoch)
        lose_decode(core, now, peer, true);
    leave_older_links(core, now, peer, hello);
    self->known = is_welcome(core, hello);
    self->role = hello->role;
    self->epoch = hello->epoch;
    self->lease_end = now + core->limits.lease;
    memcpy(self->name, hello->name, sizeof self->name);
    bt_prefill_greet(core, out, peer); // also to one that is refused: it can name the field that differs
}

static uint32_t
find_decode(const bt_prefill_core *core, const bt_prefill *prefill)
{
    for (uint32_t peer = 0; peer < BT_PREFILL_PEERS_MAX; peer++) {
        const bt_prefill_peer *self = &core->peers[peer];

        if (self->known && self->role == BT_NODE_DECODE && self->epoch == prefill->ticket.epoch &&
            strncmp(self->name, prefill->decode, sizeof self->name) == 0)
            return peer;
    }
    return BT_PROMPT_NONE;
}

static bool
ids_are_known(const bt_prefill_core *core, const bt_job *job)
{
    for (uint32_t i = 0; i < job->prompt_count; i++) {
        if (job->ids[i] < 0 || (uint32_t)job->ids[i] >= core->limits.vocab)
            return false;
    }
    return true;
}

static bt_err
refusal(const bt_prefill_core *core, const bt_prefill *prefill, uint32_t decode)
{
    const bt_job *job = &prefill->job;

    if (job->prompt_count > core->limits.context ||
        bt_kv_blocks_for(job->prompt_count, core->limits.block_tokens) > core->limits.blocks)
        return BT_ERR_TOO_LONG;
    if (!ids_are_known(core, job) || prefill->cached_tokens % core->limits.block_tokens != 0)
        return BT_ERR_INVALID;
    if (prefill->ticket.layout != core->limits.layout)
        return BT_ERR_UNSUPPORTED;
    if (core->draining)
        return BT_ERR_CLOSED;
    if (decode == BT_PROMPT_NONE)
        return BT_ERR_PEER;
    return core->prompts.free == BT_PROMPT_NONE ? BT_ERR_BUSY : BT_OK;
}

static void
hear_prefill(bt_prefill_core *core, bt_time now, uint32_t peer, const bt_prefill *prefill)
{
    uint32_t decode = find_decode(core, prefill);
    bt_err err = refusal(core, prefill, decode);
    bt_prompt *prompt;

    if (bt_prompts_find(&core->prompts, peer, prefill->job.request) != NULL) {
        core->stats.bad_messages++; // a repeat
        return;
    }
    if (err != BT_OK) {
        bt_tokens_entry *entry = bt_prefill_news(core, peer, prefill->job.request);

        entry->finish = BT_FINISH_ERROR;
        entry->err = err;
        core->stats.refused_busy += err == BT_ERR_BUSY;
        core->stats.refused_other += err != BT_ERR_BUSY;
        return;
    }
    prompt = bt_prompts_enqueue(&core->prompts, now, peer, decode, prefill, core->limits.block_tokens);
    prompt->started_step = core->chunker.begun;
    bt_prefill_expires(core, prompt->deadline);
    core->stats.begun++;
}

static void
hear_abort(bt_prefill_core *core, uint32_t peer, const bt_abort *abort)
{
    bt_prompt *prompt = bt_prompts_find(&core->prompts, peer, abort->request);

    if (prompt == NULL) {
        core->stats.late_messages++; // taken meanwhile
        return;
    }
    core->stats.aborted++;
    bt_prefill_end(core, prompt, BT_FINISH_CANCELLED, BT_OK);
}

static void
hear_router(bt_prefill_core *core, bt_time now, uint32_t peer, const bt_message *message)
{
    if (message->kind == BT_MESSAGE_PREFILL)
        hear_prefill(core, now, peer, &message->prefill);
    else if (message->kind == BT_MESSAGE_ABORT)
        hear_abort(core, peer, &message->abort);
    else
        core->stats.bad_messages++;
}

void
bt_prefill_hear(bt_prefill_core *core, bt_time now, uint32_t peer, const bt_message *message, bt_prefill_actions *out)
{
    bt_prefill_peer *self = &core->peers[peer];

    if (!self->up || bt_message_check(message) != BT_OK)
        core->stats.bad_messages++;
    else if (message->kind == BT_MESSAGE_HELLO)
        hear_hello(core, now, peer, &message->hello, out);
    else if (!self->known)
        core->stats.late_messages++;
    else if (message->kind == BT_MESSAGE_HEARTBEAT)
        self->lease_end = now + core->limits.lease;
    else if (self->role == BT_NODE_ROUTER)
        hear_router(core, now, peer, message);
    else if (message->kind == BT_MESSAGE_TAKEN)
        bt_offer_taken(core, peer, &message->taken);
    else if (message->kind != BT_MESSAGE_DESCRIPTION) // which is the edge's
        core->stats.bad_messages++;
}
