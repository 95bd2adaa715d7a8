#include "tests/support/draw_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESULTS_MAX 12
#define ENTRIES_MAX 9
#define IDS_MAX 700

static int32_t ids[IDS_MAX];
static bt_sampling sampling;
static bt_tokens_entry entries[ENTRIES_MAX];
static bt_token_result results[ENTRIES_MAX][2][RESULTS_MAX];
static bt_offer_block blocks[40];
static uint8_t bytes[300];

// Small, large and boundary values alike.
static uint64_t
number(bt_rng *rng)
{
    uint64_t value = bt_rng_next(rng); // drawn one after the other: the order within an expression is the compiler's

    return value >> bt_rng_below(rng, 64);
}

static uint32_t
number32(bt_rng *rng)
{
    return (uint32_t)number(rng);
}

static uint32_t
count(bt_rng *rng, uint32_t max)
{
    uint32_t choice = (uint32_t)bt_rng_below(rng, 4);

    return choice == 0 ? 0 : choice == 1 ? max : (uint32_t)bt_rng_below(rng, max + 1);
}

static int32_t
token_id(bt_rng *rng)
{
    return (int32_t)(number32(rng) & INT32_MAX);
}

static float
real(bt_rng *rng)
{
    return (bt_rng_float(rng) - 0.5f) * 100;
}

static bool
coin(bt_rng *rng)
{
    return bt_rng_below(rng, 2) == 0;
}

static void
draw_name(bt_rng *rng, char out[BT_NODE_NAME_MAX])
{
    uint32_t length = count(rng, BT_NODE_NAME_MAX - 1);

    for (uint32_t i = 0; i < length; i++)
        out[i] = (char)('!' + bt_rng_below(rng, '~' - '!' + 1));
}

static bt_request_id
draw_request(bt_rng *rng)
{
    bt_request_id request = {.slot = number32(rng)};

    request.generation = number32(rng);
    request.attempt = number32(rng);
    return request;
}

static bt_ticket
draw_ticket(bt_rng *rng)
{
    bt_ticket ticket = {.epoch = number(rng)};

    ticket.slot = number32(rng);
    ticket.generation = number32(rng);
    ticket.layout = number(rng);
    return ticket;
}

static void
draw_phases(bt_rng *rng, bt_phases *out)
{
    if (coin(rng))
        return;
    out->route = (bt_time)number(rng);
    out->queue_prefill = (bt_time)number(rng);
    out->prefill = (bt_time)number(rng);
    out->transfer_wait = (bt_time)number(rng);
    out->transfer = (bt_time)number(rng);
    out->queue_decode = (bt_time)number(rng);
    out->first_token = (bt_time)number(rng);
}

static void
draw_sampling(bt_rng *rng)
{
    memset(&sampling, 0, sizeof sampling);
    sampling.temperature = bt_rng_float(rng);
    sampling.top_p = bt_rng_float(rng);
    sampling.min_p = real(rng);
    sampling.top_k = number32(rng);
    sampling.repetition_penalty = real(rng);
    sampling.presence_penalty = real(rng);
    sampling.frequency_penalty = real(rng);
    sampling.seed = number(rng);
    sampling.top_logprobs = count(rng, BT_TOP_LOGPROBS_MAX);
    sampling.logprobs = coin(rng);
    sampling.ignore_eos = coin(rng);
    sampling.bias_count = count(rng, BT_LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < sampling.bias_count; i++) {
        sampling.bias_ids[i] = token_id(rng);
        sampling.bias_values[i] = real(rng);
    }
}

// Came later than the frames of tests/data/wire: drawn beside `rng`, so that what that gives stays as it was.
static void
draw_job_name(bt_job *out)
{
    bt_rng rng = {out->request.slot};
    uint32_t length = count(&rng, BT_JOB_NAME_MAX);

    for (uint32_t i = 0; i < length; i++)
        out->name[i] = (char)('!' + bt_rng_below(&rng, '~' - '!' + 1));
}

static void
draw_job(bt_rng *rng, bt_job *out)
{
    draw_sampling(rng);
    out->request = draw_request(rng);
    out->prompt_count = 1 + count(rng, IDS_MAX / 2 - 1);
    out->answer_count = count(rng, IDS_MAX / 2);
    out->max_tokens = out->answer_count + (number32(rng) >> 1);
    for (uint32_t i = 0; i < out->prompt_count + out->answer_count; i++)
        ids[i] = token_id(rng);
    out->ids = ids;
    out->sampling = &sampling;
    out->prompt_logprobs = coin(rng);
    out->end_count = count(rng, BT_END_IDS_MAX);
    for (uint32_t i = 0; i < out->end_count; i++)
        out->end_ids[i] = token_id(rng);
    out->time_left = coin(rng) ? BT_TIME_NEVER : (bt_time)(number(rng) >> 1);
    draw_job_name(out);
}

static void
draw_result(bt_rng *rng, bool logprobs, bt_token_result *out)
{
    out->id = token_id(rng);
    if (!logprobs)
        return;
    out->logprob = -bt_rng_float(rng); // -0 is a value too
    out->top_count = count(rng, BT_TOP_LOGPROBS_MAX);
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = token_id(rng);
        out->top_logprobs[i] = real(rng);
    }
}

static const bt_token_result *
draw_results(bt_rng *rng, bt_token_result out[RESULTS_MAX], uint32_t *result_count)
{
    bool logprobs = coin(rng);

    *result_count = count(rng, RESULTS_MAX);
    for (uint32_t i = 0; i < *result_count; i++)
        draw_result(rng, logprobs, &out[i]);
    return *result_count > 0 ? out : NULL;
}

static void
draw_tokens(bt_rng *rng, bt_tokens *out)
{
    memset(entries, 0, sizeof entries);
    memset(results, 0, sizeof results);
    out->number = number(rng);
    out->entry_count = count(rng, ENTRIES_MAX);
    out->entries = out->entry_count > 0 ? entries : NULL;
    for (uint32_t i = 0; i < out->entry_count; i++) {
        bt_tokens_entry *entry = &entries[i];

        entry->request = draw_request(rng);
        entry->first = number32(rng);
        entry->results = draw_results(rng, results[i][0], &entry->count);
        entry->scored_first = number32(rng);
        entry->scored = draw_results(rng, results[i][1], &entry->scored_count);
        entry->finish = (bt_finish)bt_rng_below(rng, BT_FINISH_ERROR + 1);
        entry->err = (bt_err)bt_rng_below(rng, BT_ERR_COUNT);
        entry->cached_tokens = number32(rng);
        draw_phases(rng, &entry->phases);
    }
}

static void
draw_hello(bt_rng *rng, bt_hello *out)
{
    draw_name(rng, out->name);
    out->role = (bt_node_role)bt_rng_below(rng, 3);
    out->epoch = number(rng) | 1;
    out->model = number(rng);
    out->weights = number(rng);
    out->layout = number(rng);
    out->sequences = number32(rng);
    out->queue = number32(rng);
    out->blocks = number32(rng);
    out->block_tokens = number32(rng);
    out->context = number32(rng);
    out->draining = coin(rng);
    out->version = 1 + (uint32_t)(out->epoch >> 40); // came later than the frames of tests/data/wire
    out->kv_format = (uint32_t)(out->epoch >> 41) & 3;
}

static void
draw_offer(bt_rng *rng, bt_offer *out)
{
    memset(blocks, 0, sizeof blocks);
    out->ticket = draw_ticket(rng);
    out->epoch = number(rng) | 1;
    out->first_position = number32(rng);
    out->block_count = count(rng, sizeof blocks / sizeof *blocks);
    out->token_count = out->block_count * 32;
    out->blocks = out->block_count > 0 ? blocks : NULL;
    for (uint32_t i = 0; i < out->block_count; i++) {
        blocks[i].block = number32(rng);
        blocks[i].generation = number(rng);
    }
    out->last = coin(rng);
    out->has_token = out->last && coin(rng);
    if (out->has_token)
        draw_result(rng, coin(rng), &out->token);
    draw_phases(rng, &out->phases);
    out->cached_tokens = out->last ? out->block_count * 7 : 0; // came later
}

static void
draw_description(bt_rng *rng, bt_description *out)
{
    out->epoch = number(rng) | 1;
    out->layout = number(rng);
    out->blocks = number32(rng);
    out->byte_count = count(rng, sizeof bytes);
    out->bytes = out->byte_count > 0 ? bytes : NULL;
    for (uint32_t i = 0; i < out->byte_count; i++)
        bytes[i] = (uint8_t)bt_rng_next(rng);
}

// Came later than the frames of tests/data/wire: drawn beside `rng`, so that what that gives stays as it was.
static void
draw_sources(bt_heartbeat *out)
{
    static uint64_t sources[BT_SOURCES_MAX];
    bt_rng rng = {out->number};

    out->source_count = count(&rng, BT_SOURCES_MAX);
    out->sources = out->source_count > 0 ? sources : NULL;
    for (uint32_t i = 0; i < out->source_count; i++)
        sources[i] = number(&rng) | 1;
}

void
bt_draw_message(bt_rng *rng, bt_message_kind kind, bt_message *out)
{
    memset(out, 0, sizeof *out);
    out->kind = kind != BT_MESSAGE_NONE ? kind : (bt_message_kind)(1 + bt_rng_below(rng, BT_MESSAGE_KINDS - 1));
    switch (out->kind) {
    case BT_MESSAGE_HELLO:
        draw_hello(rng, &out->hello);
        break;
    case BT_MESSAGE_HEARTBEAT:
        out->heartbeat.number = number(rng);
        out->heartbeat.tokens_number = number(rng);
        out->heartbeat.running = number32(rng);
        out->heartbeat.queued = number32(rng);
        out->heartbeat.blocks_free = number32(rng);
        draw_sources(&out->heartbeat);
        break;
    case BT_MESSAGE_RESERVE:
        draw_job(rng, &out->reserve);
        break;
    case BT_MESSAGE_TICKET:
        out->ticket.request = draw_request(rng);
        out->ticket.err = (bt_err)bt_rng_below(rng, BT_ERR_COUNT);
        out->ticket.ticket = draw_ticket(rng);
        out->ticket.cached_tokens = number32(rng);
        out->ticket.lease = (bt_time)(number(rng) >> 1);
        break;
    case BT_MESSAGE_START:
        out->start.request = draw_request(rng);
        out->start.ticket = draw_ticket(rng);
        break;
    case BT_MESSAGE_ABORT:
        out->abort.request = draw_request(rng);
        break;
    case BT_MESSAGE_TOKENS:
        draw_tokens(rng, &out->tokens);
        break;
    case BT_MESSAGE_AWAIT:
        out->await.request = draw_request(rng);
        out->await.ticket = draw_ticket(rng);
        draw_name(rng, out->await.prefill);
        out->await.prefill_epoch = number(rng) | 1;
        break;
    case BT_MESSAGE_PREFILL:
        draw_job(rng, &out->prefill.job);
        out->prefill.ticket = draw_ticket(rng);
        draw_name(rng, out->prefill.decode);
        out->prefill.cached_tokens = (uint32_t)bt_rng_below(rng, out->prefill.job.prompt_count);
        break;
    case BT_MESSAGE_DESCRIPTION:
        draw_description(rng, &out->description);
        break;
    case BT_MESSAGE_OFFER:
        draw_offer(rng, &out->offer);
        break;
    case BT_MESSAGE_TAKEN:
        out->taken.ticket = draw_ticket(rng);
        out->taken.block_count = number32(rng);
        out->taken.err = (bt_err)bt_rng_below(rng, BT_ERR_COUNT);
        break;
    case BT_MESSAGE_NONE:
    case BT_MESSAGE_KINDS:
        abort();
    }
}

// Both are copied to the same place, one after the other, so that the copies' pointers are the same numbers too.
bool
bt_same_message(const bt_message *a, const bt_message *b)
{
    size_t size = bt_message_size(a);
    uint8_t *place, *first;
    bool same;

    if (a->kind != b->kind || size != bt_message_size(b))
        return false;
    place = aligned_alloc(16, size);
    first = malloc(size);
    memset(place, 0, size);
    bt_message_copy(place, a);
    memcpy(first, place, size);
    memset(place, 0, size);
    bt_message_copy(place, b);
    same = memcmp(first, place, size) == 0;
    free(place);
    free(first);
    return same;
}
