// What routers say.
#include "decode-node/fetch.h"
#include "decode-node/inside.h"

// Whatever this router had here is void: it begins anew.
static void
hear_hello(bt_decode_core *core, bt_time now, uint32_t peer, const bt_hello *hello, bt_decode_actions *out)
{
    if (hello->role != BT_NODE_ROUTER) {
        core->stats.bad_messages++;
        return;
    }
    bt_decode_end_peer(core, peer);
    core->peers[peer] =
        (bt_decode_peer){.up = true, .known = true, .epoch = hello->epoch, .lease_end = now + core->limits.lease};
    bt_decode_greet(core, out, peer);
    if (core->source_count > 0)
        bt_decode_beat(core, out, peer); // a router that knew no sources would place prompts as if there were none
}

static bool
ids_are_known(const bt_decode_core *core, const bt_job *job)
{
    for (uint32_t i = 0; i < job->prompt_count + job->answer_count; i++) {
        if (job->ids[i] < 0 || (uint32_t)job->ids[i] >= core->limits.vocab)
            return false;
    }
    return true;
}

// Why the job cannot be done here, now or ever; BT_OK when it may wait for room.
static bt_err
refusal(const bt_decode_core *core, const bt_job *job)
{
    uint64_t tokens = (uint64_t)job->prompt_count + job->max_tokens;

    if (tokens > core->limits.context ||
        bt_room_worst(&core->room, job->prompt_count, job->max_tokens) > core->limits.blocks)
        return BT_ERR_TOO_LONG;
    if (!ids_are_known(core, job) || (job->max_tokens > 0 && job->answer_count >= job->max_tokens))
        return BT_ERR_INVALID;
    if (core->draining)
        return BT_ERR_CLOSED;
    return core->sequences.free == BT_SEQUENCE_NONE ? BT_ERR_BUSY : BT_OK;
}

static void
hear_reserve(bt_decode_core *core, bt_time now, uint32_t peer, const bt_job *job, bt_decode_actions *out)
{
    bt_sequence *sequence;
    bt_err err = refusal(core, job);

    if (bt_sequences_find(&core->sequences, peer, job->request) != NULL) {
        core->stats.bad_messages++; // a repeat
        return;
    }
    if (err != BT_OK) {
        bt_ticket_reply *reply = &bt_decode_say(core, out, peer, BT_MESSAGE_TICKET)->ticket;

        *reply = (bt_ticket_reply){.request = job->request, .err = err};
        core->stats.refused_busy += err == BT_ERR_BUSY;
        core->stats.refused_other += err != BT_ERR_BUSY;
        return;
    }
    sequence = bt_sequences_enqueue(&core->sequences, now, peer, job);
    if (sequence->deadline < core->next_expiry)
        core->next_expiry = sequence->deadline;
    core->stats.reserved++;
}

static void
hear_start(bt_decode_core *core, uint32_t peer, const bt_start *start)
{
    bt_sequence *sequence = bt_decode_by_ticket(core, &start->ticket);

    if (sequence == NULL || sequence->state != BT_SEQUENCE_GRANTED || sequence->peer != peer ||
        !bt_request_id_equal(sequence->request, start->request)) {
        core->stats.late_messages++;
        return;
    }
    sequence->state = BT_SEQUENCE_PREFILLING;
    sequence->started = core->last_step;
    sequence->started_step = core->batcher.begun;
    if (core->room.others_write)
        sequence->indexable = 0; // what is written here is not what other prompts look for
}

static void
hear_await(bt_decode_core *core, uint32_t peer, const bt_await *await)
{
    bt_sequence *sequence = bt_decode_by_ticket(core, &await->ticket);

    if (sequence == NULL || (sequence->state != BT_SEQUENCE_GRANTED && sequence->state != BT_SEQUENCE_FETCHING) ||
        sequence->peer != peer || !bt_request_id_equal(sequence->request, await->request)) {
        core->stats.late_messages++;
        return;
    }
    bt_fetch_await(core, sequence, await);
}

static void
hear_abort(bt_decode_core *core, uint32_t peer, const bt_abort *abort)
{
    bt_sequence *sequence = bt_sequences_find(&core->sequences, peer, abort->request);

    if (sequence == NULL) {
        core->stats.late_messages++; // it ended by itself meanwhile
        return;
    }
    core->stats.aborted++;
    bt_decode_end(core, sequence, BT_FINISH_CANCELLED, BT_OK, true);
}

void
bt_decode_hear(bt_decode_core *core, bt_time now, uint32_t peer, const bt_message *message, bt_decode_actions *out)
{
    bt_decode_peer *self = &core->peers[peer];

    if (!self->up || bt_message_check(message) != BT_OK) {
        core->stats.bad_messages++;
        return;
    }
    if (peer >= BT_DECODE_ROUTERS_MAX) {
        bt_fetch_hear(core, now, peer, message);
        return;
    }
    if (!self->known && message->kind != BT_MESSAGE_HELLO) {
        core->stats.late_messages++;
        return;
    }
    switch (message->kind) {
    case BT_MESSAGE_HELLO:
        hear_hello(core, now, peer, &message->hello, out);
        break;
    case BT_MESSAGE_HEARTBEAT:
        self->lease_end = now + core->limits.lease;
        break;
    case BT_MESSAGE_RESERVE:
        hear_reserve(core, now, peer, &message->reserve, out);
        break;
    case BT_MESSAGE_START:
        hear_start(core, peer, &message->start);
        break;
    case BT_MESSAGE_AWAIT:
        hear_await(core, peer, &message->await);
        break;
    case BT_MESSAGE_ABORT:
        hear_abort(core, peer, &message->abort);
        break;
    default:
        core->stats.bad_messages++;
    }
}
