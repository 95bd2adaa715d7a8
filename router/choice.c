// One answer on its way to text: tokens in, text and results out.
#include "router/call.h"

#include <string.h>

#define ANSWER_BYTES_MAX (32u << 20)

// A result as it lies in `results`: this, then top_count ids, then as many log-probabilities.
typedef struct {
    int32_t id;
    float logprob;
    uint16_t top_count;
    bool prompt, known;
} packed_result;

void
bt_choice_init(bt_choice *choice)
{
    *choice = (bt_choice){0};
    bt_buf_init(&choice->text, ANSWER_BYTES_MAX);
    bt_buf_init(&choice->results, ANSWER_BYTES_MAX);
}

bt_choice *
bt_choice_take(bt_call *call, uint32_t index, uint32_t prompt)
{
    bt_calls *calls = call->calls;
    bt_choice *choice = NULL, **last = &call->choices;

    for (uint32_t i = 0; i < calls->options.answers_max && choice == NULL; i++) {
        choice = calls->choice[i].call == NULL ? &calls->choice[i] : NULL;
    }
    if (choice == NULL) {
        return NULL;
    }
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = choice;
    choice->call = call;
    choice->index = index;
    choice->prompt = prompt;
    choice->finish = BT_FINISH_NONE;
    bt_detok_init(&choice->detok, calls->tokenizer, &call->job.request.stops, false, false);
    call->choice_count++;
    calls->choices_open++;
    return choice;
}

void
bt_choice_free(bt_choice *choice)
{
    choice->call->calls->choices_open--;
    bt_buf_fini(&choice->text);
    bt_buf_fini(&choice->results);
    bt_choice_init(choice);
}

void
bt_choice_sent(bt_choice *choice)
{
    bt_buf_clear(&choice->text);
    bt_buf_clear(&choice->results);
}

// ---- results ----

static void
add_result(bt_choice *choice, const bt_token_result *result, bool prompt, bool known)
{
    packed_result packed = {result->id, result->logprob, (uint16_t)result->top_count, prompt, known};

    if (!choice->call->job.request.logprobs && !choice->call->wants_results) {
        return;
    }
    bt_buf_append(&choice->results, &packed, sizeof packed);
    bt_buf_append(&choice->results, result->top_ids, result->top_count * sizeof *result->top_ids);
    bt_buf_append(&choice->results, result->top_logprobs, result->top_count * sizeof *result->top_logprobs);
}

static void
take(const bt_choice *choice, size_t *at, void *out, size_t bytes)
{
    memcpy(out, choice->results.data + *at, bytes);
    *at += bytes;
}

bool
bt_choice_next_result(const bt_choice *choice, size_t *at, bt_choice_result *out)
{
    packed_result packed;

    if (choice->results.failed || *at >= choice->results.len) {
        return false;
    }
    take(choice, at, &packed, sizeof packed);
    out->result.id = packed.id;
    out->result.logprob = packed.logprob;
    out->result.top_count = packed.top_count;
    out->prompt = packed.prompt;
    out->known = packed.known;
    take(choice, at, out->result.top_ids, packed.top_count * sizeof *out->result.top_ids);
    take(choice, at, out->result.top_logprobs, packed.top_count * sizeof *out->result.top_logprobs);
    return true;
}

// ---- text ----

// The prompt comes back as it was written; ids come back as their text.
static void
echo(bt_choice *choice)
{
    const bt_call *call = choice->call;
    const bt_openai_prompt *prompt = &call->job.request.prompts[choice->prompt];
    char piece[BT_DETOK_OUT_MAX];
    bt_detok detok;

    if (!prompt->is_ids) {
        bt_buf_append(&choice->text, prompt->text.data, prompt->text.len);
    } else {
        bt_detok_init(&detok, call->calls->tokenizer, NULL, false, true);
        for (uint32_t i = 0; i < prompt->id_count; i++) {
            bt_buf_append(&choice->text, piece, bt_detok_push(&detok, prompt->ids[i], piece, sizeof piece));
        }
        bt_buf_append(&choice->text, piece, bt_detok_finish(&detok, piece, sizeof piece));
    }
    if (call->job.request.logprobs) {
        bt_token_result first = {.id = call->job.prompts[choice->prompt].ids[0]};

        add_result(choice, &first, true, false);
    }
}

static void
begin(bt_choice *choice)
{
    if (!choice->begun && choice->call->job.request.echo) {
        echo(choice);
    }
    choice->begun = true;
}

static bool
is_end(const bt_call *call, int32_t id)
{
    const bt_calls *calls = call->calls;
    uint32_t count = call->head.kind == BT_OPENAI_CHAT ? calls->end_count : calls->end_count != 0;

    for (uint32_t i = 0; i < count && !call->job.request.sampling.ignore_eos; i++) {
        if (calls->end_ids[i] == id) {
            return true;
        }
    }
    return false;
}

void
bt_choice_add(bt_choice *choice, const bt_router_tokens *tokens)
{
    char piece[BT_DETOK_OUT_MAX];

    begin(choice);
    for (uint32_t i = 0; i < tokens->scored_count; i++) {
        add_result(choice, &tokens->scored[i], true, true);
    }
    for (uint32_t i = 0; i < tokens->count && !choice->detok.stopped; i++) {
        const bt_token_result *result = &tokens->results[i];

        choice->tokens++;
        add_result(choice, result, false, true);
        if (!is_end(choice->call, result->id)) {
            bt_buf_append(&choice->text, piece, bt_detok_push(&choice->detok, result->id, piece, sizeof piece));
        }
    }
}

void
bt_choice_end(bt_choice *choice)
{
    char piece[BT_DETOK_OUT_MAX];

    begin(choice);
    bt_buf_append(&choice->text, piece, bt_detok_finish(&choice->detok, piece, sizeof piece));
}
