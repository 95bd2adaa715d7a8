#include "prefill-node/job.h"
#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

bt_err
bt_prompts_init(bt_prompts *prompts, uint32_t capacity, uint32_t context, uint32_t block_tokens)
{
    *prompts = (bt_prompts){.capacity = capacity, .queue_first = BT_PROMPT_NONE, .queue_last = BT_PROMPT_NONE};
    prompts->slots = bt_alloc_array(capacity, sizeof *prompts->slots);
    prompts->ids = bt_alloc_array(capacity, (size_t)context * sizeof *prompts->ids);
    for (uint32_t i = 0; prompts->slots != NULL && prompts->ids != NULL && i < capacity; i++) {
        bt_prompt *slot = &prompts->slots[i];

        slot->ids = prompts->ids + (size_t)i * context;
        slot->next = i + 1 < capacity ? i + 1 : BT_PROMPT_NONE;
        if (bt_kv_table_init(&slot->table, bt_kv_blocks_for(context, block_tokens)) != BT_OK)
            break;
        if (i + 1 == capacity)
            return BT_OK;
    }
    bt_prompts_fini(prompts);
    return BT_ERR_NO_MEMORY;
}

void
bt_prompts_fini(bt_prompts *prompts)
{
    for (uint32_t i = 0; prompts->slots != NULL && i < prompts->capacity; i++)
        bt_kv_table_fini(&prompts->slots[i].table);
    bt_free(prompts->slots);
    bt_free(prompts->ids);
    *prompts = (bt_prompts){0};
}

static void
fill(bt_prompt *prompt, bt_time now, const bt_prefill *prefill, uint32_t block_tokens)
{
    const bt_job *job = &prefill->job;

    prompt->request = job->request;
    memcpy(prompt->name, job->name, sizeof prompt->name);
    prompt->ticket = prefill->ticket;
    prompt->count = job->prompt_count;
    prompt->draws = job->max_tokens > 0 && job->answer_count == 0;
    prompt->scores = job->prompt_logprobs;
    prompt->sampling = *job->sampling;
    memcpy(prompt->ids, job->ids, prompt->count * sizeof *prompt->ids);
    prompt->offered = prompt->offered_before = prefill->cached_tokens / block_tokens;
    prompt->received = now;
    prompt->deadline = job->time_left < BT_TIME_NEVER - now ? now + job->time_left : BT_TIME_NEVER;
    prompt->hold_end = BT_TIME_NEVER;
}

bt_prompt *
bt_prompts_enqueue(bt_prompts *prompts, bt_time now, uint32_t router, uint32_t decode, const bt_prefill *prefill,
                   uint32_t block_tokens)
{
    uint32_t index = prompts->free;
    bt_prompt *prompt, kept;

    if (index == BT_PROMPT_NONE)
        return NULL;
    prompt = &prompts->slots[index];
    kept = *prompt;
    assert(kept.state == BT_PROMPT_FREE && kept.table.count == 0);
    prompts->free = kept.next;
    *prompt = (bt_prompt){.state = BT_PROMPT_WAITING,
                          .router = router,
                          .decode = decode,
                          .ids = kept.ids,
                          .table = kept.table,
                          .serial = ++prompts->serial,
                          .next = BT_PROMPT_NONE};
    fill(prompt, now, prefill, block_tokens);
    if (prompts->queue_last != BT_PROMPT_NONE)
        prompts->slots[prompts->queue_last].next = index;
    else
        prompts->queue_first = index;
    prompts->queue_last = index;
    prompts->queued++;
    return prompt;
}

// Takes the slot `index` out of the queue; `before` is its predecessor there.
static void
unlink_queued(bt_prompts *prompts, uint32_t index, uint32_t before)
{
    uint32_t next = prompts->slots[index].next;

    if (before == BT_PROMPT_NONE)
        prompts->queue_first = next;
    else
        prompts->slots[before].next = next;
    if (prompts->queue_last == index)
        prompts->queue_last = before;
    prompts->slots[index].next = BT_PROMPT_NONE;
    prompts->queued--;
}

void
bt_prompts_begin_first(bt_prompts *prompts)
{
    bt_prompt *prompt = &prompts->slots[prompts->queue_first];

    unlink_queued(prompts, prompts->queue_first, BT_PROMPT_NONE);
    prompt->state = BT_PROMPT_READING;
}

void
bt_prompts_release(bt_prompts *prompts, bt_prompt *prompt)
{
    uint32_t index = (uint32_t)(prompt - prompts->slots), before = BT_PROMPT_NONE;

    assert(prompt->state != BT_PROMPT_FREE && prompt->table.count == 0);
    if (prompt->state == BT_PROMPT_WAITING) {
        for (uint32_t i = prompts->queue_first; i != index; i = prompts->slots[i].next)
            before = i;
        unlink_queued(prompts, index, before);
    }
    prompt->state = BT_PROMPT_FREE;
    prompt->next = prompts->free;
    prompts->free = index;
}

bt_prompt *
bt_prompts_find(bt_prompts *prompts, uint32_t router, bt_request_id request)
{
    for (uint32_t i = 0; i < prompts->capacity; i++) {
        bt_prompt *prompt = &prompts->slots[i];

        if (prompt->state != BT_PROMPT_FREE && prompt->state != BT_PROMPT_ENDING && prompt->router == router &&
            bt_request_id_equal(prompt->request, request))
            return prompt;
    }
    return NULL;
}

bt_prompt *
bt_prompts_find_ticket(bt_prompts *prompts, uint32_t decode, const bt_ticket *ticket)
{
    for (uint32_t i = 0; i < prompts->capacity; i++) {
        bt_prompt *prompt = &prompts->slots[i];

        if (prompt->state != BT_PROMPT_FREE && (prompt->decode == decode || prompt->decode == BT_PROMPT_NONE) &&
            prompt->ticket.epoch == ticket->epoch && prompt->ticket.slot == ticket->slot &&
            prompt->ticket.generation == ticket->generation)
            return prompt;
    }
    return NULL;
}
