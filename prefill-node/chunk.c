#include "prefill-node/chunk.h"
#include "common/base/mem.h"

bt_err
bt_chunker_init(bt_chunker *chunker, const bt_prefill_limits *limits)
{
    *chunker = (bt_chunker){0};
    chunker->items = bt_alloc_array(limits->sequences, sizeof *chunker->items);
    chunker->slots = bt_alloc_array(limits->sequences, sizeof *chunker->slots);
    chunker->order = bt_alloc_array(limits->prompts, sizeof *chunker->order);
    chunker->batch.items = chunker->items;
    chunker->batch.result.drawn = bt_alloc_array(limits->sequences, sizeof(bt_token_result));
    chunker->batch.result.scored = bt_alloc_array(limits->logit_rows, sizeof(bt_token_result));
    if (chunker->items != NULL && chunker->slots != NULL && chunker->order != NULL &&
        chunker->batch.result.drawn != NULL && chunker->batch.result.scored != NULL)
        return BT_OK;
    bt_chunker_fini(chunker);
    return BT_ERR_NO_MEMORY;
}

void
bt_chunker_fini(bt_chunker *chunker)
{
    bt_free(chunker->items);
    bt_free(chunker->slots);
    bt_free(chunker->order);
    bt_free(chunker->batch.result.drawn);
    bt_free(chunker->batch.result.scored);
    *chunker = (bt_chunker){0};
}

typedef struct {
    bt_chunker *chunker;
    bt_prompts *prompts;
    bt_time now;
    uint32_t tokens, rows, chunk_tokens; // left for the step; of a whole one
} filling;

static uint32_t
least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void
add(filling *f, uint32_t slot, uint32_t count, bt_logits_want want)
{
    bt_prompt *prompt = &f->prompts->slots[slot];
    uint32_t index = f->chunker->batch.count++, end = prompt->computed + count;

    f->chunker->slots[index] = slot;
    f->chunker->items[index] = (bt_batch_item){
        .ids = prompt->ids + prompt->computed,
        .count = count,
        .position = prompt->computed,
        .blocks = prompt->table.blocks,
        .want = want,
        .sampling = &prompt->sampling,
        .history = prompt->ids,
        .prompt_count = prompt->count,
        .next_id = want == BT_LOGITS_ALL && end < prompt->count ? prompt->ids[end] : -1,
    };
    prompt->in_step = true;
    f->chunker->tokens += count;
    f->tokens -= count;
    f->rows -= want == BT_LOGITS_ALL ? count : want == BT_LOGITS_LAST;
    if (prompt->begun == 0)
        prompt->begun = f->now;
}

// The next chunk, cut to what is left; nothing when that is nothing.
static void
add_chunk(filling *f, uint32_t slot)
{
    const bt_prompt *prompt = &f->prompts->slots[slot];
    uint32_t rest = prompt->count - prompt->computed, count = least(rest, f->tokens);
    bt_logits_want want;

    if (prompt->scores)
        count = least(count, f->rows);
    want = prompt->scores ? BT_LOGITS_ALL : count == rest && prompt->draws ? BT_LOGITS_LAST : BT_LOGITS_NONE;
    if (count > 0 && (want != BT_LOGITS_LAST || f->rows > 0))
        add(f, slot, count, want);
}

// Tokens to go, a quarter of a step's chunk less for each step it has waited or worked, so that long prompts come to their end too.
static int64_t
urgency(const filling *f, const bt_prompt *prompt)
{
    return (int64_t)(prompt->count - prompt->computed) -
           (int64_t)(f->chunker->begun - prompt->started_step) * (f->chunk_tokens / 4 + 1);
}

static bool
goes_before(const filling *f, uint32_t a, uint32_t b)
{
    const bt_prompt *x = &f->prompts->slots[a], *y = &f->prompts->slots[b];
    int64_t urgent_x = urgency(f, x), urgent_y = urgency(f, y);

    return urgent_x != urgent_y ? urgent_x < urgent_y : x->serial < y->serial;
}

static uint32_t
order_prompts(const filling *f)
{
    uint32_t *order = f->chunker->order, count = 0;

    for (uint32_t slot = 0; slot < f->prompts->capacity; slot++) {
        uint32_t at;

        if (f->prompts->slots[slot].state != BT_PROMPT_READING)
            continue;
        for (at = count++; at > 0 && goes_before(f, slot, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = slot;
    }
    return count;
}

bool
bt_chunker_fill(bt_chunker *chunker, const bt_prefill_limits *limits, bt_prompts *prompts, bt_time now)
{
    filling f = {chunker, prompts, now, limits->chunk_tokens, limits->logit_rows, limits->chunk_tokens};
    uint32_t count;

    chunker->batch.count = chunker->tokens = 0;
    count = order_prompts(&f);
    for (uint32_t i = 0; i < count && f.tokens > 0 && chunker->batch.count < limits->sequences; i++)
        add_chunk(&f, chunker->order[i]);
    if (chunker->batch.count == 0)
        return false;
    chunker->begun++;
    return true;
}
