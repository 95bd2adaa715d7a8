// One answer on its way to text: tokens in, text and log-probabilities out.
#include "router/http_impl.h"

#include <string.h>

#define ANSWER_BYTES_MAX (32u << 20)

void
bt_choice_init(bt_choice *choice)
{
    *choice = (bt_choice){0};
    bt_buf_init(&choice->text, ANSWER_BYTES_MAX);
    bt_openai_logprobs_init(&choice->logprobs, ANSWER_BYTES_MAX);
}

bt_choice *
bt_choice_take(bt_call *call, uint32_t index, uint32_t prompt)
{
    bt_router_http *http = call->http;
    bt_choice *choice = NULL, **last = &call->choices;

    for (uint32_t i = 0; i < http->options.answers_max && choice == NULL; i++) {
        choice = http->choices[i].call == NULL ? &http->choices[i] : NULL;
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
    choice->logprobs.offset = 0;
    bt_detok_init(&choice->detok, http->tokenizer, &call->job.request.stops, false, false);
    call->choice_count++;
    http->choices_open++;
    return choice;
}

void
bt_choice_free(bt_choice *choice)
{
    choice->call->http->choices_open--;
    bt_buf_fini(&choice->text);
    bt_openai_logprobs_fini(&choice->logprobs);
    bt_choice_init(choice);
}

static void
add_logprob(bt_choice *choice, const bt_token_result *result, bool known)
{
    bt_router_http *http = choice->call->http;
    bt_openai_vocab vocab = bt_router_http_vocab(http);
    uint32_t offset = choice->logprobs.offset;

    bt_openai_logprobs_add(&choice->logprobs, choice->call->head.kind, &vocab, result, known);
    if (bt_tokenizer_type(http->tokenizer, result->id) == BT_TOKEN_CONTROL) {
        choice->logprobs.offset = offset; // not part of the text
    }
}

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
        bt_detok_init(&detok, call->http->tokenizer, NULL, false, true);
        for (uint32_t i = 0; i < prompt->id_count; i++) {
            bt_buf_append(&choice->text, piece, bt_detok_push(&detok, prompt->ids[i], piece, sizeof piece));
        }
        bt_buf_append(&choice->text, piece, bt_detok_finish(&detok, piece, sizeof piece));
    }
    if (call->job.request.logprobs) {
        bt_token_result first = {.id = call->job.prompts[choice->prompt].ids[0]};

        add_logprob(choice, &first, false);
    }
}

static void
begin(bt_choice *choice)
{
    if (choice->begun) {
        return;
    }
    choice->begun = true;
    if (choice->call->streaming && choice->call->head.kind == BT_OPENAI_CHAT) {
        bt_openai_write_role(bt_http_out(choice->call->request), &choice->call->head, choice->index);
    }
    if (choice->call->job.request.echo) {
        echo(choice);
    }
}

static bool
is_end(const bt_call *call, int32_t id)
{
    const bt_router_http *http = call->http;
    uint32_t count = call->head.kind == BT_OPENAI_CHAT ? http->end_count : http->end_count != 0;

    for (uint32_t i = 0; i < count && !call->job.request.sampling.ignore_eos; i++) {
        if (http->end_ids[i] == id) {
            return true;
        }
    }
    return false;
}

void
bt_choice_add(bt_choice *choice, const bt_router_tokens *tokens)
{
    const bt_openai_request *request = &choice->call->job.request;
    char piece[BT_DETOK_OUT_MAX];

    begin(choice);
    for (uint32_t i = 0; i < tokens->scored_count && request->logprobs; i++) {
        add_logprob(choice, &tokens->scored[i], true);
    }
    for (uint32_t i = 0; i < tokens->count && !choice->detok.stopped; i++) {
        const bt_token_result *result = &tokens->results[i];

        choice->tokens++;
        if (request->logprobs) {
            add_logprob(choice, result, true);
        }
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

void
bt_choice_write(bt_choice *choice, const char *reason)
{
    const bt_call *call = choice->call;
    bt_buf *out = bt_http_out(call->request);
    bool logprobs = call->job.request.logprobs;

    // Log-probabilities of tokens without text of their own wait for the text that they become part of, or the end.
    if (choice->text.len != 0 || (reason != NULL && choice->logprobs.count != 0)) {
        bt_str text = {choice->text.data != NULL ? choice->text.data : "", choice->text.len};

        bt_openai_write_delta(out, &call->head, choice->index, text, logprobs ? &choice->logprobs : NULL);
        bt_buf_clear(&choice->text);
        bt_openai_logprobs_clear(&choice->logprobs);
    }
    if (reason != NULL) {
        bt_openai_write_finish(out, &call->head, choice->index, reason);
    }
}
