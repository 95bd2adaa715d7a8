// proto/stream.proto: tokens in columns, offers.
#include "common/wire/wire_impl.h"

#include <string.h>

static bool
has_logprobs(const bt_token_result *results, uint32_t count)
{
    static const float zero;

    for (uint32_t i = 0; i < count; i++) {
        if (memcmp(&results[i].logprob, &zero, sizeof zero) != 0)
            return true;
    }
    return false;
}

static size_t
count_tops(const bt_token_result *results, uint32_t count)
{
    size_t tops = 0;

    for (uint32_t i = 0; i < count; i++)
        tops += results[i].top_count;
    return tops;
}

static void
put_tops(bt_wire_scratch *scratch, Baton__Results *form, const bt_token_result *results, uint32_t count, size_t tops)
{
    size_t at = 0;

    form->top_counts = bt_wire_take_array(scratch, count, sizeof *form->top_counts);
    form->top_ids = bt_wire_take_array(scratch, tops, sizeof *form->top_ids);
    form->top_logprobs = bt_wire_take_array(scratch, tops, sizeof *form->top_logprobs);
    if (scratch->failed)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t top_count = results[i].top_count;

        form->top_counts[i] = top_count;
        memcpy(form->top_ids + at, results[i].top_ids, top_count * sizeof *form->top_ids);
        memcpy(form->top_logprobs + at, results[i].top_logprobs, top_count * sizeof *form->top_logprobs);
        at += top_count;
    }
    form->n_top_counts = count;
    form->n_top_ids = form->n_top_logprobs = tops;
}

static void
put_logprobs(bt_wire_scratch *scratch, Baton__Results *form, const bt_token_result *results, uint32_t count)
{
    form->logprobs = bt_wire_take_array(scratch, count, sizeof *form->logprobs);
    if (form->logprobs == NULL)
        return;
    for (uint32_t i = 0; i < count; i++)
        form->logprobs[i] = results[i].logprob;
    form->n_logprobs = count;
}

static Baton__Results *
encode_results(bt_wire_scratch *scratch, const bt_token_result *results, uint32_t count)
{
    Baton__Results form = BATON__RESULTS__INIT;
    size_t tops = count_tops(results, count);

    if (count == 0)
        return NULL;
    form.ids = bt_wire_take_array(scratch, count, sizeof *form.ids);
    if (form.ids == NULL)
        return NULL;
    for (uint32_t i = 0; i < count; i++)
        form.ids[i] = results[i].id;
    form.n_ids = count;
    if (has_logprobs(results, count))
        put_logprobs(scratch, &form, results, count);
    if (tops > 0)
        put_tops(scratch, &form, results, count, tops);
    return bt_wire_put(scratch, &form, sizeof form);
}

// Absent where nothing was measured, as in all messages after the first of a request.
static Baton__Phases *
encode_phases(bt_wire_scratch *scratch, const bt_phases *phases)
{
    Baton__Phases form = BATON__PHASES__INIT;

    if ((phases->route | phases->queue_prefill | phases->prefill | phases->transfer_wait | phases->transfer |
         phases->queue_decode | phases->first_token) == 0)
        return NULL;
    form.route = phases->route;
    form.queue_prefill = phases->queue_prefill;
    form.prefill = phases->prefill;
    form.transfer_wait = phases->transfer_wait;
    form.transfer = phases->transfer;
    form.queue_decode = phases->queue_decode;
    form.first_token = phases->first_token;
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__TokensEntry *
encode_entry(bt_wire_scratch *scratch, const bt_tokens_entry *entry)
{
    Baton__TokensEntry form = BATON__TOKENS_ENTRY__INIT;

    form.request = bt_encode_request(scratch, entry->request);
    form.first = entry->first;
    form.results = encode_results(scratch, entry->results, entry->count);
    form.scored_first = entry->scored_first;
    form.scored = encode_results(scratch, entry->scored, entry->scored_count);
    form.finish = (Baton__Finish)entry->finish; // the same numbers: asserted in decode_stream.c
    form.error = bt_encode_error(entry->err);
    form.cached_tokens = entry->cached_tokens;
    form.phases = encode_phases(scratch, &entry->phases);
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Tokens *
bt_encode_tokens(bt_wire_scratch *scratch, const bt_tokens *tokens)
{
    Baton__Tokens form = BATON__TOKENS__INIT;

    form.number = tokens->number;
    form.entries = bt_wire_take_array(scratch, tokens->entry_count, sizeof *form.entries);
    if (scratch->failed)
        return NULL;
    for (uint32_t i = 0; i < tokens->entry_count; i++)
        form.entries[i] = encode_entry(scratch, &tokens->entries[i]);
    form.n_entries = tokens->entry_count;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Offer *
bt_encode_offer(bt_wire_scratch *scratch, const bt_offer *offer)
{
    Baton__Offer form = BATON__OFFER__INIT;

    form.ticket = bt_encode_ticket(scratch, &offer->ticket);
    form.epoch = offer->epoch;
    form.first_position = offer->first_position;
    form.token_count = offer->token_count;
    form.blocks = bt_wire_take_array(scratch, offer->block_count, sizeof *form.blocks);
    form.generations = bt_wire_take_array(scratch, offer->block_count, sizeof *form.generations);
    if (scratch->failed)
        return NULL;
    for (uint32_t i = 0; i < offer->block_count; i++) {
        form.blocks[i] = offer->blocks[i].block;
        form.generations[i] = offer->blocks[i].generation;
    }
    form.n_blocks = form.n_generations = offer->block_count;
    form.last = offer->last;
    form.token = offer->has_token ? encode_results(scratch, &offer->token, 1) : NULL;
    form.phases = encode_phases(scratch, &offer->phases);
    form.cached_tokens = offer->cached_tokens;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Taken *
bt_encode_taken(bt_wire_scratch *scratch, const bt_taken *taken)
{
    Baton__Taken form = BATON__TAKEN__INIT;

    form.ticket = bt_encode_ticket(scratch, &taken->ticket);
    form.block_count = taken->block_count;
    form.error = bt_encode_error(taken->err);
    return bt_wire_put(scratch, &form, sizeof form);
}
