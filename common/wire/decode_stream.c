// proto/stream.proto, back: columns must be of one length, and the alternatives exactly as many as are announced.
#include "common/wire/wire_impl.h"

#include <assert.h>
#include <string.h>

static_assert((int)BT_FINISH_NONE == (int)BATON__FINISH__FINISH_NONE &&
                  (int)BT_FINISH_ERROR == (int)BATON__FINISH__FINISH_ERROR,
              "the numbers of bt_finish are the wire's");

// A column is full or absent; SIZE_MAX when the counts of alternatives are over their limit.
static size_t
sum_tops(const Baton__Results *form)
{
    size_t sum = 0;

    for (size_t i = 0; i < form->n_top_counts; i++) {
        if (form->top_counts[i] > BT_TOP_LOGPROBS_MAX)
            return SIZE_MAX;
        sum += form->top_counts[i];
    }
    return sum;
}

static bool
columns_match(const Baton__Results *form)
{
    return form->n_ids >= 1 && form->n_ids <= BT_MESSAGE_IDS_MAX &&
           (form->n_logprobs == 0 || form->n_logprobs == form->n_ids) &&
           (form->n_top_counts == 0 || form->n_top_counts == form->n_ids) && form->n_top_ids == form->n_top_logprobs &&
           form->n_top_ids == sum_tops(form);
}

static void
read_tops(const Baton__Results *form, bt_token_result *results)
{
    size_t at = 0;

    for (size_t i = 0; i < form->n_top_counts; i++) {
        uint32_t count = form->top_counts[i];

        if (count == 0)
            continue;
        results[i].top_count = count;
        memcpy(results[i].top_ids, form->top_ids + at, count * sizeof *form->top_ids);
        memcpy(results[i].top_logprobs, form->top_logprobs + at, count * sizeof *form->top_logprobs);
        at += count;
    }
}

static void
read_columns(const Baton__Results *form, bt_token_result *results)
{
    for (size_t i = 0; i < form->n_ids; i++) {
        results[i].id = form->ids[i];
        results[i].logprob = form->n_logprobs > 0 ? form->logprobs[i] : 0;
    }
    read_tops(form, results);
}

static bool
decode_results(bt_wire_scratch *scratch, const Baton__Results *form, const bt_token_result **out, uint32_t *count)
{
    bt_token_result *results;

    if (form == NULL)
        return true;
    if (!columns_match(form))
        return false;
    results = bt_wire_take_array(scratch, form->n_ids, sizeof *results);
    if (results == NULL)
        return false;
    read_columns(form, results);
    *out = results;
    *count = (uint32_t)form->n_ids;
    return true;
}

static void
decode_phases(const Baton__Phases *form, bt_phases *out)
{
    if (form == NULL)
        return;
    *out = (bt_phases){.route = form->route,
                       .queue_prefill = form->queue_prefill,
                       .prefill = form->prefill,
                       .transfer_wait = form->transfer_wait,
                       .transfer = form->transfer,
                       .queue_decode = form->queue_decode,
                       .first_token = form->first_token};
}

static bool
decode_entry(bt_wire_scratch *scratch, const Baton__TokensEntry *form, bt_tokens_entry *out)
{
    out->first = form->first;
    out->scored_first = form->scored_first;
    out->finish = (bt_finish)form->finish; // its range: bt_message_check
    out->cached_tokens = form->cached_tokens;
    decode_phases(form->phases, &out->phases);
    return bt_decode_request(form->request, &out->request) && bt_decode_error(form->error, &out->err) &&
           decode_results(scratch, form->results, &out->results, &out->count) &&
           decode_results(scratch, form->scored, &out->scored, &out->scored_count);
}

bool
bt_decode_tokens(bt_wire_scratch *scratch, const Baton__Tokens *form, bt_tokens *out)
{
    bt_tokens_entry *entries;

    if (form->n_entries > BT_MESSAGE_ENTRIES_MAX)
        return false;
    entries = bt_wire_take_array(scratch, form->n_entries, sizeof *entries);
    if (scratch->failed)
        return false;
    for (size_t i = 0; i < form->n_entries; i++) {
        if (!decode_entry(scratch, form->entries[i], &entries[i]))
            return false;
    }
    out->number = form->number;
    out->entry_count = (uint32_t)form->n_entries;
    out->entries = entries;
    return true;
}

static bool
decode_offer_token(bt_wire_scratch *scratch, const Baton__Results *form, bt_offer *out)
{
    const bt_token_result *token = NULL;
    uint32_t count = 0;

    if (!decode_results(scratch, form, &token, &count) || count > 1)
        return false;
    out->has_token = count == 1;
    if (token != NULL)
        out->token = *token;
    return true;
}

bool
bt_decode_offer(bt_wire_scratch *scratch, const Baton__Offer *form, bt_offer *out)
{
    bt_offer_block *blocks;

    if (form->n_blocks != form->n_generations || form->n_blocks > BT_OFFER_BLOCKS_MAX)
        return false;
    blocks = bt_wire_take_array(scratch, form->n_blocks, sizeof *blocks);
    if (scratch->failed)
        return false;
    for (size_t i = 0; i < form->n_blocks; i++) {
        blocks[i].block = form->blocks[i];
        blocks[i].generation = form->generations[i];
    }
    out->epoch = form->epoch;
    out->first_position = form->first_position;
    out->token_count = form->token_count;
    out->block_count = (uint32_t)form->n_blocks;
    out->blocks = blocks;
    out->last = form->last;
    out->cached_tokens = form->cached_tokens;
    decode_phases(form->phases, &out->phases);
    return bt_decode_ticket(form->ticket, &out->ticket) && decode_offer_token(scratch, form->token, out);
}

bool
bt_decode_taken(const Baton__Taken *form, bt_taken *out)
{
    out->block_count = form->block_count;
    return bt_decode_ticket(form->ticket, &out->ticket) && bt_decode_error(form->error, &out->err);
}
