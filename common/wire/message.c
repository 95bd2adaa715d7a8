#include "common/wire/message.h"

#include <string.h>

static const char *const finish_names[] = {
    [BT_FINISH_NONE] = "none",           [BT_FINISH_STOP] = "stop",   [BT_FINISH_LENGTH] = "length",
    [BT_FINISH_CANCELLED] = "cancelled", [BT_FINISH_ERROR] = "error",
};

static const char *const kind_names[BT_MESSAGE_KINDS] = {
    [BT_MESSAGE_NONE] = "none",
    [BT_MESSAGE_HELLO] = "hello",
    [BT_MESSAGE_HEARTBEAT] = "heartbeat",
    [BT_MESSAGE_RESERVE] = "reserve",
    [BT_MESSAGE_TICKET] = "ticket",
    [BT_MESSAGE_START] = "start",
    [BT_MESSAGE_ABORT] = "abort",
    [BT_MESSAGE_TOKENS] = "tokens",
    [BT_MESSAGE_AWAIT] = "await",
    [BT_MESSAGE_PREFILL] = "prefill",
    [BT_MESSAGE_DESCRIPTION] = "description",
    [BT_MESSAGE_OFFER] = "offer",
    [BT_MESSAGE_TAKEN] = "taken",
};

const char *
bt_finish_name(bt_finish finish)
{
    return (unsigned)finish < sizeof finish_names / sizeof *finish_names ? finish_names[finish] : "?";
}

const char *
bt_message_kind_name(bt_message_kind kind)
{
    return (unsigned)kind < BT_MESSAGE_KINDS ? kind_names[kind] : "?";
}

const char *
bt_node_role_name(bt_node_role role)
{
    return role == BT_NODE_DECODE ? "decode" : role == BT_NODE_PREFILL ? "prefill" : "router";
}

static bool
sampling_is_bounded(const bt_sampling *sampling)
{
    return sampling != NULL && sampling->bias_count <= BT_LOGIT_BIAS_MAX &&
           sampling->top_logprobs <= BT_TOP_LOGPROBS_MAX;
}

// A name goes into logs and is compared: it ends, and has neither blanks nor anything a terminal would obey.
static bool
is_plain(const char *name, size_t bytes)
{
    size_t length = strnlen(name, bytes);

    for (size_t i = 0; i < length; i++) {
        if (name[i] <= ' ' || name[i] > '~')
            return false;
    }
    return length < bytes;
}

static bool
name_is_plain(const char name[BT_NODE_NAME_MAX])
{
    return is_plain(name, BT_NODE_NAME_MAX);
}

static bool
job_is_bounded(const bt_job *job)
{
    return job->prompt_count >= 1 && job->prompt_count <= BT_MESSAGE_IDS_MAX &&
           job->answer_count <= BT_MESSAGE_IDS_MAX && job->answer_count <= job->max_tokens && job->ids != NULL &&
           job->end_count <= BT_END_IDS_MAX && sampling_is_bounded(job->sampling) && job->time_left >= 0 &&
           is_plain(job->name, sizeof job->name);
}

static bool
results_are_bounded(const bt_token_result *results, uint32_t count)
{
    if (count > BT_MESSAGE_IDS_MAX || (count > 0 && results == NULL))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (results[i].top_count > BT_TOP_LOGPROBS_MAX)
            return false;
    }
    return true;
}

static bool
tokens_are_bounded(const bt_tokens *tokens)
{
    if (tokens->entry_count > BT_MESSAGE_ENTRIES_MAX || (tokens->entry_count > 0 && tokens->entries == NULL))
        return false;
    for (uint32_t i = 0; i < tokens->entry_count; i++) {
        const bt_tokens_entry *entry = &tokens->entries[i];

        if (!results_are_bounded(entry->results, entry->count) ||
            !results_are_bounded(entry->scored, entry->scored_count) || (unsigned)entry->finish > BT_FINISH_ERROR ||
            (unsigned)entry->err >= BT_ERR_COUNT)
            return false;
    }
    return true;
}

static bool
offer_is_bounded(const bt_offer *offer)
{
    return offer->block_count <= BT_OFFER_BLOCKS_MAX && (offer->block_count == 0 || offer->blocks != NULL) &&
           (offer->block_count > 0 || offer->token_count == 0) && offer->token_count <= BT_MESSAGE_IDS_MAX &&
           offer->cached_tokens <= BT_MESSAGE_IDS_MAX && offer->token.top_count <= BT_TOP_LOGPROBS_MAX &&
           offer->epoch != 0 && (offer->last || !offer->has_token);
}

static bool
description_is_bounded(const bt_description *description)
{
    return description->byte_count <= BT_DESCRIPTION_BYTES_MAX &&
           (description->byte_count == 0 || description->bytes != NULL) && description->epoch != 0;
}

static bool
heartbeat_is_bounded(const bt_heartbeat *heartbeat)
{
    if (heartbeat->source_count > BT_SOURCES_MAX || (heartbeat->source_count > 0 && heartbeat->sources == NULL))
        return false;
    for (uint32_t i = 0; i < heartbeat->source_count; i++) {
        if (heartbeat->sources[i] == 0)
            return false;
    }
    return true;
}

bt_err
bt_message_check(const bt_message *message)
{
    bool good = true;

    switch (message->kind) {
    case BT_MESSAGE_HELLO:
        good = message->hello.epoch != 0 && name_is_plain(message->hello.name) &&
               (unsigned)message->hello.role <= BT_NODE_ROUTER;
        break;
    case BT_MESSAGE_RESERVE:
        good = job_is_bounded(&message->reserve);
        break;
    case BT_MESSAGE_TICKET:
        good = (unsigned)message->ticket.err < BT_ERR_COUNT && message->ticket.lease >= 0;
        break;
    case BT_MESSAGE_TOKENS:
        good = tokens_are_bounded(&message->tokens);
        break;
    case BT_MESSAGE_AWAIT:
        good = message->await.prefill_epoch != 0 && name_is_plain(message->await.prefill);
        break;
    case BT_MESSAGE_PREFILL:
        good = job_is_bounded(&message->prefill.job) && name_is_plain(message->prefill.decode) &&
               message->prefill.cached_tokens < message->prefill.job.prompt_count;
        break;
    case BT_MESSAGE_DESCRIPTION:
        good = description_is_bounded(&message->description);
        break;
    case BT_MESSAGE_OFFER:
        good = offer_is_bounded(&message->offer);
        break;
    case BT_MESSAGE_TAKEN:
        good = (unsigned)message->taken.err < BT_ERR_COUNT;
        break;
    case BT_MESSAGE_HEARTBEAT:
        good = heartbeat_is_bounded(&message->heartbeat);
        break;
    case BT_MESSAGE_START:
    case BT_MESSAGE_ABORT:
        break;
    default:
        good = false;
    }
    return good ? BT_OK : BT_ERR_INVALID;
}
