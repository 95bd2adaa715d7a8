#include "decode-node/batch.h"
#include "common/base/mem.h"

#include <assert.h>

bt_err
bt_batcher_init(bt_batcher *batcher, const bt_decode_limits *limits)
{
    *batcher = (bt_batcher){0};
    batcher->items = bt_alloc_array(limits->sequences, sizeof *batcher->items);
    batcher->slots = bt_alloc_array(limits->sequences, sizeof *batcher->slots);
    batcher->order = bt_alloc_array(limits->sequences, sizeof *batcher->order);
    batcher->batch.items = batcher->items;
    batcher->batch.result.drawn = bt_alloc_array(limits->sequences, sizeof(bt_token_result));
    // No more rows of logits, no more scores.
    batcher->batch.result.scored = bt_alloc_array(limits->logit_rows, sizeof(bt_token_result));
    if (batcher->items != NULL && batcher->slots != NULL && batcher->order != NULL &&
        batcher->batch.result.drawn != NULL && batcher->batch.result.scored != NULL)
        return BT_OK;
    bt_batcher_fini(batcher);
    return BT_ERR_NO_MEMORY;
}

void
bt_batcher_fini(bt_batcher *batcher)
{
    bt_free(batcher->items);
    bt_free(batcher->slots);
    bt_free(batcher->order);
    bt_free(batcher->batch.result.drawn);
    bt_free(batcher->batch.result.scored);
    *batcher = (bt_batcher){0};
}

typedef struct {
    bt_batcher *batcher;
    bt_sequences *sequences;
    bt_room *room;
    bt_time now;
    uint32_t tokens; // left for the step
    uint32_t rows;   // of logits
} filling;

static void
add(filling *f, uint32_t slot, uint32_t count, bt_logits_want want)
{
    bt_sequence *sequence = &f->sequences->slots[slot];
    uint32_t index = f->batcher->batch.count++, end = sequence->computed + count;

    bt_room_take(f->room, sequence, end);
    f->batcher->slots[index] = slot;
    f->batcher->items[index] = (bt_batch_item){
        .ids = sequence->ids + sequence->computed,
        .count = count,
        .position = sequence->computed,
        .blocks = sequence->table.blocks,
        .want = want,
        .sampling = &sequence->sampling,
        .history = sequence->ids,
        .prompt_count = sequence->prompt_count,
        .next_id = want == BT_LOGITS_ALL && end < sequence->prompt_count ? sequence->ids[end] : -1,
    };
    sequence->in_step = true;
    f->batcher->tokens += count;
    f->tokens -= count;
    f->rows -= want == BT_LOGITS_ALL ? count : want == BT_LOGITS_LAST;
    if (sequence->prefill_begun == 0)
        sequence->prefill_begun = f->now;
}

static uint32_t
least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// The next chunk of a prompt, cut to what is left; nothing when that is nothing.
static void
add_chunk(filling *f, uint32_t slot)
{
    const bt_sequence *sequence = &f->sequences->slots[slot];
    uint32_t rest = sequence->count - sequence->computed, count = least(rest, f->tokens);
    bool scores = sequence->prompt_logprobs && sequence->computed < sequence->prompt_count;
    bt_logits_want want;

    if (scores) // up to the end of the prompt, a row of logits each
        count = least(least(count, sequence->prompt_count - sequence->computed), f->rows);
    want = scores ? BT_LOGITS_ALL : count == rest ? BT_LOGITS_LAST : BT_LOGITS_NONE;
    if (count > 0 && (want != BT_LOGITS_LAST || f->rows > 0))
        add(f, slot, count, want);
}

// Tokens to go, a quarter of a step's chunk less for each step it has waited or worked.
static int64_t
urgency(const filling *f, uint32_t slot, uint32_t chunk_tokens)
{
    const bt_sequence *sequence = &f->sequences->slots[slot];

    return (int64_t)(sequence->count - sequence->computed) -
           (int64_t)(f->batcher->begun - sequence->started_step) * (chunk_tokens / 4 + 1);
}

static bool
goes_before(const filling *f, uint32_t a, uint32_t b, uint32_t chunk_tokens)
{
    int64_t urgent_a = urgency(f, a, chunk_tokens), urgent_b = urgency(f, b, chunk_tokens);

    return urgent_a != urgent_b ? urgent_a < urgent_b : f->sequences->slots[a].serial < f->sequences->slots[b].serial;
}

// Insertion sort: there are few prompts at a time, and mostly the same ones.
static uint32_t
order_prompts(const filling *f, uint32_t chunk_tokens)
{
    uint32_t *order = f->batcher->order, count = 0;

    for (uint32_t slot = 0; slot < f->sequences->capacity; slot++) {
        uint32_t at;

        if (f->sequences->slots[slot].state != BT_SEQUENCE_PREFILLING)
            continue;
        for (at = count++; at > 0 && goes_before(f, slot, order[at - 1], chunk_tokens); at--)
            order[at] = order[at - 1];
        order[at] = slot;
    }
    return count;
}

bool
bt_batcher_fill(bt_batcher *batcher, const bt_decode_limits *limits, bt_sequences *sequences, bt_room *room,
                bt_time now)
{
    filling f = {batcher, sequences, room, now, limits->chunk_tokens, limits->logit_rows};
    uint32_t prompts;

    batcher->batch.count = batcher->tokens = 0;
    for (uint32_t slot = 0; slot < sequences->capacity; slot++) {
        if (sequences->slots[slot].state == BT_SEQUENCE_DECODING)
            add(&f, slot, 1, BT_LOGITS_LAST);
    }
    if (batcher->batch.count > 0)
        f.tokens = least(f.tokens, limits->prefill_tokens);
    prompts = order_prompts(&f, limits->chunk_tokens);
    for (uint32_t i = 0; i < prompts && f.tokens > 0; i++)
        add_chunk(&f, batcher->order[i]);
    if (batcher->batch.count == 0)
        return false;
    batcher->begun++;
    return true;
}
