// What a step brought.
#include "prefill-node/inside.h"
#include "prefill-node/offer.h"

#include <assert.h>

static void
note_scores(const bt_batch_item *item, const bt_token_result *scored, bt_tokens_entry *entry)
{
    entry->scored_first = item->position + 1;
    entry->scored_count = item->next_id >= 0 ? item->count : item->count - 1;
    entry->scored = scored;
}

// The prompt is read: its router hears so, with the first token, and its blocks are held from now on.
static void
read_to_the_end(bt_prefill_core *core, bt_time now, bt_prompt *prompt, const bt_token_result *drawn,
                bt_tokens_entry *entry)
{
    prompt->state = BT_PROMPT_HOLDING;
    prompt->has_token = prompt->draws;
    prompt->phases.queue_prefill = prompt->begun - prompt->received;
    prompt->phases.prefill = now - prompt->begun;
    if (prompt->draws)
        prompt->token = *drawn;
    prompt->hold_end = now + core->limits.hold_max;
    bt_prefill_expires(core, prompt->hold_end);
    core->stats.read++;
    core->stats.cached_tokens += prompt->cached_tokens;
    if (entry == NULL)
        return;
    entry->finish = BT_FINISH_LENGTH;
    entry->phases = prompt->phases;
    if (prompt->draws) {
        bt_token_result *copy = &core->news_tokens[entry - core->news];

        *copy = *drawn; // the prompt may be gone before this is sent
        entry->results = copy;
        entry->count = 1;
    }
}

static void
take_item(bt_prefill_core *core, bt_time now, bt_prompt *prompt, const bt_batch_item *item,
          const bt_token_result *drawn, const bt_token_result *scored)
{
    bool last = prompt->computed == prompt->count, scores = item->want == BT_LOGITS_ALL;
    bt_tokens_entry *entry = last || scores ? bt_prefill_news(core, prompt->router, prompt->request) : NULL;

    if (entry != NULL)
        entry->cached_tokens = prompt->cached_tokens;
    if (entry != NULL && scores)
        note_scores(item, scored, entry);
    if (last)
        read_to_the_end(core, now, prompt, drawn, entry);
}

static void
take_all(bt_prefill_core *core, bt_time now, bt_prefill_actions *out)
{
    const bt_batch *batch = &core->chunker.batch;
    const bt_token_result *scored = batch->result.scored;

    for (uint32_t i = 0; i < batch->count; i++) {
        bt_prompt *prompt = &core->prompts.slots[core->chunker.slots[i]];
        const bt_batch_item *item = &batch->items[i];

        assert(prompt->in_step);
        prompt->in_step = false;
        prompt->computed += item->count;
        core->stats.prompt_tokens += item->count;
        bt_offer_finish(core, prompt, out);
        if (prompt->state == BT_PROMPT_ENDING)
            bt_prefill_free(core, prompt);
        else
            take_item(core, now, prompt, item, &batch->result.drawn[i], scored);
        scored += item->want == BT_LOGITS_ALL ? item->count : 0;
    }
}

// The blocks of a batch that failed may hold anything, those that it only read too: no prompt goes on in them. What is held for decode
// nodes stays: its checksums tell whether it was hurt.
static void
fail_all(bt_prefill_core *core, bt_err err)
{
    for (uint32_t i = 0; i < core->prompts.capacity; i++) {
        bt_prompt *prompt = &core->prompts.slots[i];

        prompt->in_step = false;
        if (prompt->state == BT_PROMPT_ENDING)
            bt_prefill_free(core, prompt);
        else if (prompt->state == BT_PROMPT_READING)
            bt_prefill_end(core, prompt, BT_FINISH_ERROR, err);
    }
    bt_kv_prefix_clear(core->prefix);
    core->stats.failed_steps++;
}

void
bt_prefill_stepped(bt_prefill_core *core, bt_time now, bt_err err, bt_prefill_actions *out)
{
    assert(core->stepping);
    core->stepping = false;
    if (err == BT_OK)
        take_all(core, now, out);
    else
        fail_all(core, err);
}
