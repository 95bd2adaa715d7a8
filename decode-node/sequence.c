#include "decode-node/sequence.h"
#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

bt_err
bt_sequences_init(bt_sequences *sequences, uint32_t capacity, uint32_t context, uint32_t block_tokens)
{
    *sequences = (bt_sequences){
        .capacity = capacity, .context = context, .queue_first = BT_SEQUENCE_NONE, .queue_last = BT_SEQUENCE_NONE};
    sequences->slots = bt_alloc_array(capacity, sizeof *sequences->slots);
    sequences->ids = bt_alloc_array(capacity, (size_t)context * sizeof *sequences->ids);
    for (uint32_t i = 0; sequences->slots != NULL && sequences->ids != NULL && i < capacity; i++) {
        bt_sequence *slot = &sequences->slots[i];

        slot->ids = sequences->ids + (size_t)i * context;
        slot->next = i + 1 < capacity ? i + 1 : BT_SEQUENCE_NONE;
        if (bt_kv_table_init(&slot->table, bt_kv_blocks_for(context, block_tokens)) != BT_OK)
            break;
        if (i + 1 == capacity)
            return BT_OK;
    }
    bt_sequences_fini(sequences);
    return BT_ERR_NO_MEMORY;
}

void
bt_sequences_fini(bt_sequences *sequences)
{
    for (uint32_t i = 0; sequences->slots != NULL && i < sequences->capacity; i++)
        bt_kv_table_fini(&sequences->slots[i].table);
    bt_free(sequences->slots);
    bt_free(sequences->ids);
    *sequences = (bt_sequences){0};
}

static void
fill(bt_sequence *sequence, bt_time now, uint32_t peer, const bt_job *job)
{
    sequence->peer = peer;
    sequence->request = job->request;
    memcpy(sequence->name, job->name, sizeof sequence->name);
    sequence->prompt_count = job->prompt_count;
    sequence->count = job->prompt_count + job->answer_count;
    sequence->max_tokens = job->max_tokens;
    sequence->prompt_logprobs = job->prompt_logprobs;
    sequence->sampling = *job->sampling;
    sequence->end_count = job->end_count;
    memcpy(sequence->end_ids, job->end_ids, sizeof sequence->end_ids);
    memcpy(sequence->ids, job->ids, sequence->count * sizeof *sequence->ids);
    sequence->received = now;
    sequence->deadline = job->time_left < BT_TIME_NEVER - now ? now + job->time_left : BT_TIME_NEVER;
}

bt_sequence *
bt_sequences_enqueue(bt_sequences *sequences, bt_time now, uint32_t peer, const bt_job *job)
{
    uint32_t index = sequences->free;
    bt_sequence *sequence, kept;

    if (index == BT_SEQUENCE_NONE)
        return NULL;
    sequence = &sequences->slots[index];
    kept = *sequence;
    assert(kept.state == BT_SEQUENCE_FREE && kept.table.count == 0);
    sequences->free = kept.next;
    *sequence = (bt_sequence){.state = BT_SEQUENCE_WAITING,
                              .generation = kept.generation + 1,
                              .ids = kept.ids,
                              .table = kept.table,
                              .serial = ++sequences->serial,
                              .indexable = UINT32_MAX,
                              .next = BT_SEQUENCE_NONE};
    fill(sequence, now, peer, job);
    if (sequences->queue_last != BT_SEQUENCE_NONE)
        sequences->slots[sequences->queue_last].next = index;
    else
        sequences->queue_first = index;
    sequences->queue_last = index;
    sequences->queued++;
    return sequence;
}

// Takes the slot `index` out of the queue; `before` is its predecessor there.
static void
unlink_queued(bt_sequences *sequences, uint32_t index, uint32_t before)
{
    uint32_t next = sequences->slots[index].next;

    if (before == BT_SEQUENCE_NONE)
        sequences->queue_first = next;
    else
        sequences->slots[before].next = next;
    if (sequences->queue_last == index)
        sequences->queue_last = before;
    sequences->slots[index].next = BT_SEQUENCE_NONE;
    sequences->queued--;
}

void
bt_sequences_grant_first(bt_sequences *sequences)
{
    bt_sequence *sequence = &sequences->slots[sequences->queue_first];

    unlink_queued(sequences, sequences->queue_first, BT_SEQUENCE_NONE);
    sequence->state = BT_SEQUENCE_GRANTED;
    sequences->with_room++;
}

void
bt_sequences_release(bt_sequences *sequences, bt_sequence *sequence)
{
    uint32_t index = (uint32_t)(sequence - sequences->slots), before = BT_SEQUENCE_NONE;

    assert(sequence->state != BT_SEQUENCE_FREE && sequence->table.count == 0);
    if (sequence->state == BT_SEQUENCE_WAITING) {
        for (uint32_t i = sequences->queue_first; i != index; i = sequences->slots[i].next)
            before = i;
        unlink_queued(sequences, index, before);
    } else {
        sequences->with_room--;
    }
    sequence->state = BT_SEQUENCE_FREE;
    sequence->next = sequences->free;
    sequences->free = index;
}

bt_sequence *
bt_sequences_find(bt_sequences *sequences, uint32_t peer, bt_request_id request)
{
    for (uint32_t i = 0; i < sequences->capacity; i++) {
        bt_sequence *sequence = &sequences->slots[i];

        if (sequence->state != BT_SEQUENCE_FREE && sequence->state != BT_SEQUENCE_ENDING && sequence->peer == peer &&
            bt_request_id_equal(sequence->request, request))
            return sequence;
    }
    return NULL;
}
