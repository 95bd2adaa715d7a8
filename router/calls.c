// What all calls share: their memory, the model, the keys.
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/call.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static bt_err
open_parts(bt_calls *calls, bt_why *why)
{
    const bt_calls_options *options = &calls->options;
    bt_text_options text = {
        .workers = options->text_workers,
        .queue = options->calls_max,
        .openai = {.choices_max = options->choices_max, .arena_bytes = 4 * options->body_bytes_max + (16u << 20)},
        .done = bt_call_on_text,
        .self = calls,
    };

    calls->call = bt_alloc_array(options->calls_max, sizeof *calls->call);
    calls->choice = bt_alloc_array(options->answers_max, sizeof *calls->choice);
    if (calls->call == NULL || calls->choice == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for %u calls", options->calls_max);
    }
    for (uint32_t i = 0; i < options->answers_max; i++) {
        bt_choice_init(&calls->choice[i]);
    }
    if (options->trace_requests != 0 &&
        bt_trace_open(&calls->trace, options->trace_requests, options->router, why) != BT_OK) {
        return BT_ERR_NO_MEMORY;
    }
    return bt_text_open(&calls->text, calls->loop, &text, why);
}

bt_err
bt_calls_open(bt_calls **out, bt_loop *loop, const bt_calls_options *options, bt_why *why)
{
    bt_calls *calls = bt_alloc(sizeof *calls);
    bt_err err;

    if (calls == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the calls");
    }
    calls->loop = loop;
    calls->options = *options;
    if (getrandom(&calls->rng, sizeof calls->rng, 0) != sizeof calls->rng) {
        calls->rng.state = (uint64_t)bt_time_now();
    }
    if ((err = open_parts(calls, why)) != BT_OK) {
        bt_calls_close(calls);
        return err;
    }
    *out = calls;
    return BT_OK;
}

void
bt_calls_close(bt_calls *calls)
{
    if (calls == NULL) {
        return;
    }
    bt_text_close(calls->text);
    for (uint32_t i = 0; calls->call != NULL && i < calls->options.calls_max; i++) {
        bt_call_close(&calls->call[i]);
    }
    bt_trace_close(calls->trace);
    bt_free(calls->call);
    bt_free(calls->choice);
    bt_free(calls);
}

bt_router_callbacks
bt_calls_callbacks(bt_calls *calls)
{
    return (bt_router_callbacks){.on_tokens = bt_call_on_tokens,
                                 .on_finished = bt_call_on_finished,
                                 .on_attempt = bt_call_on_attempt,
                                 .arg = calls};
}

static void
find_ends(bt_calls *calls)
{
    uint32_t vocab = bt_tokenizer_vocab_size(calls->tokenizer);
    int32_t eos = bt_tokenizer_eos(calls->tokenizer);

    if (eos >= 0) {
        calls->end_ids[calls->end_count++] = eos;
    }
    for (uint32_t id = 0; id < vocab && calls->end_count < BT_END_IDS_MAX; id++) {
        if ((int32_t)id != eos && bt_tokenizer_is_end(calls->tokenizer, (int32_t)id)) {
            calls->end_ids[calls->end_count++] = (int32_t)id;
        }
    }
}

bt_err
bt_calls_set_model(bt_calls *calls, bt_router_edge *edge, const bt_tokenizer *tokenizer, uint32_t context,
                   const char *name, bt_why *why)
{
    calls->tokenizer = tokenizer;
    calls->context = context;
    if (calls->options.model[0] == 0) {
        snprintf(calls->options.model, sizeof calls->options.model, "%s", name);
    }
    find_ends(calls);
    if (bt_text_set_model(calls->text, tokenizer, context) != BT_OK) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the text workers");
    }
    calls->edge = edge;
    return BT_OK;
}

bool
bt_calls_ready(const bt_calls *calls)
{
    return calls->edge != NULL && !calls->draining && bt_router_edge_ready(calls->edge);
}

// Time does not depend on where the two differ, nor on which key is tried.
static bool
is_key(const char *key, const char *given)
{
    unsigned differs = 0;
    size_t len = strlen(given);

    for (size_t i = 0; i < BT_TEXT_LIST_BYTES; i++) {
        unsigned char theirs = (unsigned char)(i < len ? given[i] : 0);

        differs |= (unsigned)(key[i] ^ theirs) & 0xffu;
    }
    return differs == 0 && len < BT_TEXT_LIST_BYTES;
}

bool
bt_calls_may_ask(const bt_calls *calls, const char *key)
{
    const bt_text_list *keys = calls->options.keys;
    bool found = false;

    if (keys == NULL || keys->count == 0) {
        return true;
    }
    for (uint32_t i = 0; i < keys->count && key != NULL; i++) {
        found |= is_key(keys->items[i], key);
    }
    return found && key[0] != 0;
}

void
bt_calls_name(bt_calls *calls, const char *given, char name[BT_REQUEST_NAME_MAX + 1])
{
    if (given == NULL || !bt_request_name_take(name, given)) {
        bt_request_name_draw(name, &calls->rng);
    }
}
