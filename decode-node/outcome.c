// What a step brought.
#include "decode-node/inside.h"

#include <assert.h>

bool
bt_decode_is_end_token(const bt_sequence *sequence, int32_t id)
{
    for (uint32_t i = 0; i < sequence->end_count; i++) {
        if (sequence->end_ids[i] == id)
            return true;
    }
    return false;
}

// Scores of the prompt: result i of the item is about the id after its own.
static void
note_scores(const bt_batch_item *item, const bt_token_result *scored, bt_tokens_entry *entry)
{
    entry->scored_first = item->position + 1;
    entry->scored_count = item->next_id >= 0 ? item->count : item->count - 1;
    entry->scored = scored;
}

// The router measures the wait for room itself, messages included.
static void
tell_phases(const bt_sequence *sequence, bt_tokens_entry *entry)
{
    entry->phases = sequence->phases;
    entry->phases.queue_decode = 0;
}

static void
note_token(bt_decode_core *core, bt_time now, bt_sequence *sequence, const bt_token_result *drawn,
           bt_tokens_entry *entry)
{
    uint32_t answer;

    sequence->ids[sequence->count++] = drawn->id;
    sequence->state = BT_SEQUENCE_DECODING;
    answer = bt_sequence_answer(sequence);
    core->stats.answer_tokens++;
    if (entry == NULL)
        return;
    entry->count = 1;
    entry->results = drawn;
    if (!sequence->first_token_sent) {
        sequence->phases.queue_prefill = sequence->prefill_begun - sequence->started;
        sequence->phases.prefill = now - sequence->prefill_begun;
        tell_phases(sequence, entry);
        sequence->first_token_sent = true;
    }
    if (bt_decode_is_end_token(sequence, drawn->id))
        entry->finish = BT_FINISH_STOP;
    else if (answer >= sequence->max_tokens)
        entry->finish = BT_FINISH_LENGTH;
}

static void
count_prompt(bt_decode_core *core, const bt_sequence *sequence, const bt_batch_item *item)
{
    if (item->position < sequence->prompt_count)
        core->stats.prompt_tokens += item->count;
    if (item->position + item->count == sequence->count && sequence->state == BT_SEQUENCE_PREFILLING)
        core->stats.cached_tokens += sequence->cached_tokens;
}

// One item's results. Something is said when there is something to say: an answer's token, scores, or the end of a prompt that was
// only to be read.
static void
take_item(bt_decode_core *core, bt_time now, bt_sequence *sequence, const bt_batch_item *item,
          const bt_token_result *drawn, const bt_token_result *scored)
{
    bool last = item->position + item->count == sequence->count;
    bt_tokens_entry *entry = NULL;

    count_prompt(core, sequence, item);
    if (last || item->want == BT_LOGITS_ALL)
        entry = bt_decode_news(core, sequence);
    if (entry != NULL && item->want == BT_LOGITS_ALL)
        note_scores(item, scored, entry);
    if (last && sequence->max_tokens > 0)
        note_token(core, now, sequence, drawn, entry);
    else if (last && entry != NULL)
        entry->finish = BT_FINISH_LENGTH;
    if (entry == NULL || entry->finish == BT_FINISH_NONE)
        return;
    core->stats.finished++;
    bt_decode_end(core, sequence, entry->finish, BT_OK, false);
}

// The blocks of a batch that failed may hold anything, and blocks are shared: whoever holds any fails with it, and no prompt is found
// again in what was there before.
static void
fail_all(bt_decode_core *core, bt_err err)
{
    for (uint32_t i = 0; i < core->sequences.capacity; i++) {
        bt_sequence *sequence = &core->sequences.slots[i];

        sequence->in_step = false;
        if (sequence->state == BT_SEQUENCE_ENDING)
            bt_decode_free_unused(core, sequence);
        else if (sequence->table.count > 0)
            bt_decode_end(core, sequence, BT_FINISH_ERROR, err, true);
    }
    bt_room_forget(&core->room);
    core->stats.failed_steps++;
}

static void
take_all(bt_decode_core *core, bt_time now)
{
    bt_batcher *batcher = &core->batcher;
    const bt_token_result *scored = batcher->batch.result.scored;

    for (uint32_t i = 0; i < batcher->batch.count; i++) {
        bt_sequence *sequence = &core->sequences.slots[batcher->slots[i]];
        const bt_batch_item *item = &batcher->items[i];

        assert(sequence->in_step);
        sequence->in_step = false;
        sequence->computed += item->count;
        bt_room_index(&core->room, sequence);
        if (sequence->state == BT_SEQUENCE_ENDING) {
            core->stats.dropped_tokens += item->want != BT_LOGITS_NONE;
            bt_decode_free_unused(core, sequence);
        } else {
            take_item(core, now, sequence, item, &batcher->batch.result.drawn[i], scored);
        }
        scored += item->want == BT_LOGITS_ALL ? item->count : 0;
    }
}

void
bt_decode_stepped(bt_decode_core *core, bt_time now, bt_err err)
{
    assert(core->stepping);
    core->stepping = false;
    if (err == BT_OK)
        take_all(core, now);
    else
        fail_all(core, err);
}
