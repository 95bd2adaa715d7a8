// One walk over what a message points to serves both questions, how large a copy is and how it is made: `memory` NULL only counts.
#include "common/wire/message.h"

#include <assert.h>
#include <string.h>

typedef struct {
    uint8_t *memory;
    size_t used;
} room;

static size_t
padded(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

// The copy of `bytes` bytes, or NULL while only counting, or when there are none.
static void *
put(room *to, const void *from, size_t bytes)
{
    void *copy = NULL;

    if (bytes == 0)
        return NULL;
    if (to->memory != NULL)
        copy = memcpy(to->memory + to->used, from, bytes);
    to->used += padded(bytes);
    return copy;
}

static void
put_job(room *to, const bt_job *from, bt_job *copy)
{
    const int32_t *ids = put(to, from->ids, ((size_t)from->prompt_count + from->answer_count) * sizeof *ids);
    const bt_sampling *sampling = put(to, from->sampling, sizeof *sampling);

    if (copy != NULL) {
        copy->ids = ids;
        copy->sampling = sampling;
    }
}

static void
put_tokens(room *to, const bt_tokens *from, bt_tokens *copy)
{
    bt_tokens_entry *entries = put(to, from->entries, from->entry_count * sizeof *entries);

    for (uint32_t i = 0; i < from->entry_count; i++) {
        const bt_tokens_entry *entry = &from->entries[i];
        const bt_token_result *results = put(to, entry->results, entry->count * sizeof *results);
        const bt_token_result *scored = put(to, entry->scored, entry->scored_count * sizeof *scored);

        if (entries != NULL) {
            entries[i].results = results;
            entries[i].scored = scored;
        }
    }
    if (copy != NULL)
        copy->entries = entries;
}

static void
put_description(room *to, const bt_description *from, bt_description *copy)
{
    const uint8_t *bytes = put(to, from->bytes, from->byte_count);

    if (copy != NULL)
        copy->bytes = bytes;
}

static void
put_offer(room *to, const bt_offer *from, bt_offer *copy)
{
    const bt_offer_block *blocks = put(to, from->blocks, from->block_count * sizeof *blocks);

    if (copy != NULL)
        copy->blocks = blocks;
}

static void
put_heartbeat(room *to, const bt_heartbeat *from, bt_heartbeat *copy)
{
    const uint64_t *sources = put(to, from->sources, from->source_count * sizeof *sources);

    if (copy != NULL)
        copy->sources = sources;
}

static bt_message *
put_message(room *to, const bt_message *from)
{
    bt_message *copy = put(to, from, sizeof *copy);

    if (from->kind == BT_MESSAGE_HEARTBEAT)
        put_heartbeat(to, &from->heartbeat, copy != NULL ? &copy->heartbeat : NULL);
    else if (from->kind == BT_MESSAGE_RESERVE)
        put_job(to, &from->reserve, copy != NULL ? &copy->reserve : NULL);
    else if (from->kind == BT_MESSAGE_PREFILL)
        put_job(to, &from->prefill.job, copy != NULL ? &copy->prefill.job : NULL);
    else if (from->kind == BT_MESSAGE_TOKENS)
        put_tokens(to, &from->tokens, copy != NULL ? &copy->tokens : NULL);
    else if (from->kind == BT_MESSAGE_DESCRIPTION)
        put_description(to, &from->description, copy != NULL ? &copy->description : NULL);
    else if (from->kind == BT_MESSAGE_OFFER)
        put_offer(to, &from->offer, copy != NULL ? &copy->offer : NULL);
    return copy;
}

size_t
bt_message_size(const bt_message *message)
{
    room none = {0};

    put_message(&none, message);
    return none.used;
}

bt_message *
bt_message_copy(void *memory, const bt_message *message)
{
    room to = {.memory = memory};

    assert(((uintptr_t)memory & 15) == 0);
    return put_message(&to, message);
}
