// Calls that came over HTTP: their answers as whole JSON or as server-sent events. Headers go out with the first token: until then an
// error is a status, afterwards an error event.
#include "router/http_impl.h"

// The call's last word: what is left of it is none of the client's.
static bt_http_request *
let_go(bt_call *call)
{
    bt_http_request *request = call->client;

    bt_http_set_data(request, NULL);
    return request;
}

// ---- log-probabilities ----

static bt_str
token_bytes(const void *self, int32_t id)
{
    return bt_tokenizer_bytes(self, id, true);
}

// NULL where none were asked for. Valid until the next call.
static const bt_openai_logprobs *
logprobs_of(bt_router_http *http, bt_choice *choice)
{
    const bt_call *call = choice->call;
    const bt_tokenizer *tokenizer = call->calls->tokenizer;
    bt_openai_vocab vocab = {token_bytes, tokenizer};
    bt_openai_logprobs *logprobs = &http->logprobs;
    bt_choice_result next;
    size_t at = 0;

    if (!call->job.request.logprobs) {
        return NULL;
    }
    bt_openai_logprobs_clear(logprobs);
    logprobs->offset = choice->text_offset;
    while (bt_choice_next_result(choice, &at, &next)) {
        uint32_t offset = logprobs->offset;

        bt_openai_logprobs_add(logprobs, call->head.kind, &vocab, &next.result, next.known);
        if (bt_tokenizer_type(tokenizer, next.result.id) == BT_TOKEN_CONTROL) {
            logprobs->offset = offset; // not part of the text
        }
    }
    choice->text_offset = logprobs->offset;
    return logprobs;
}

// ---- answers that are not what they should be ----

// In the headers where they are still to be sent, else as a comment, which clients pass over.
static void
mark(bt_call *call)
{
    if (!call->degraded || call->marked) {
        return;
    }
    call->marked = true;
    if (call->streaming) {
        bt_buf_append_text(bt_http_out(call->client), ": x-baton-degraded: 1\n\n");
    } else {
        bt_http_add_header(call->client, "x-baton-degraded", "1");
    }
}

// ---- events ----

static void
introduce(bt_choice *choice)
{
    bt_call *call = choice->call;

    mark(call);
    if (!call->streaming) {
        call->streaming = true;
        call->calls->metrics.http_2xx++;
        bt_http_begin(call->client, 200, "text/event-stream; charset=utf-8");
    }
    if (!choice->introduced && call->head.kind == BT_OPENAI_CHAT) {
        bt_openai_write_role(bt_http_out(call->client), &call->head, choice->index);
    }
    choice->introduced = true;
}

static void
write_new(bt_router_http *http, bt_choice *choice)
{
    const bt_call *call = choice->call;
    bt_buf *out = bt_http_out(call->client);
    bool finished = choice->finish != BT_FINISH_NONE;

    // Log-probabilities of tokens without text of their own wait for the text that they become part of, or the end.
    if (choice->text.len != 0 || (finished && choice->results.len != 0)) {
        bt_openai_write_delta(out, &call->head, choice->index, bt_choice_text(choice), logprobs_of(http, choice));
        bt_choice_sent(choice);
    }
    if (finished) {
        bt_openai_write_finish(out, &call->head, choice->index, bt_finish_name(choice->finish));
    }
}

static void
flush(bt_call *call)
{
    bt_http_request *request = call->client;

    if (bt_http_flush(request) != BT_OK) {
        let_go(call);
        bt_call_leave(call, "the client reads too slowly");
        bt_http_break(request);
    }
}

static void
progress(bt_choice *choice)
{
    bt_call *call = choice->call;
    bt_router_http *http = call->edge;

    if (!call->job.request.stream) {
        return;
    }
    introduce(choice);
    write_new(http, choice);
    if (!call->submitted || call->choices_live != 0) {
        flush(call); // else the end follows, which is one
    }
}

// ---- last words ----

static bool
write_whole(bt_call *call, const bt_openai_usage *usage)
{
    bt_router_http *http = call->edge;
    bt_buf *out = bt_http_out(call->client);
    bt_json_writer w;

    bt_openai_begin_answer(&w, out, &call->head);
    for (bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        bt_openai_put_choice(&w, &call->head, choice->index, bt_choice_text(choice), logprobs_of(http, choice),
                             bt_finish_name(choice->finish));
    }
    bt_openai_end_answer(&w, usage);
    if (out->failed) {
        bt_buf_clear(out);
        return false;
    }
    return true;
}

static bool
end(bt_call *call, const bt_openai_usage *usage)
{
    bt_buf *out = bt_http_out(call->client);

    if (!call->streaming) {
        if (!write_whole(call, usage)) {
            return false;
        }
        mark(call);
        bt_router_http_answer(call->edge, let_go(call), 200, "application/json");
        return true;
    }
    if (call->head.include_usage) {
        bt_openai_write_usage(out, &call->head, usage);
    }
    bt_openai_write_done(out);
    bt_http_end(let_go(call));
    return true;
}

static void
fail(bt_call *call, const bt_openai_error *error)
{
    bt_http_request *request = let_go(call);

    if (call->streaming) {
        bt_openai_write_error_event(bt_http_out(request), error);
        bt_http_end(request);
    } else {
        bt_router_http_refuse(call->edge, request, error);
    }
}

static void
answer_tokenize(bt_call *call)
{
    const bt_text_ids *ids = &call->job.prompts[0];
    bt_http_request *request = let_go(call);
    bt_json_writer w;

    bt_json_write(&w, bt_http_out(request));
    bt_json_begin_object(&w, NULL);
    bt_json_put_int(&w, "count", ids->count);
    bt_json_put_int(&w, "max_model_len", call->calls->context);
    bt_json_begin_array(&w, "tokens");
    for (uint32_t i = 0; i < ids->count; i++) {
        bt_json_put_int(&w, NULL, ids->ids[i]);
    }
    bt_json_end(&w);
    bt_json_end(&w);
    bt_router_http_answer(call->edge, request, 200, "application/json");
}

static void
answer_detokenize(bt_call *call)
{
    bt_http_request *request = let_go(call);
    bt_json_writer w;

    bt_json_write(&w, bt_http_out(request));
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "prompt",
                     (bt_str){call->job.text.data != NULL ? call->job.text.data : "", call->job.text.len});
    bt_json_end(&w);
    bt_router_http_answer(call->edge, request, 200, "application/json");
}

static const bt_call_sink sink = {progress, end, fail, answer_tokenize, answer_detokenize};

// ---- the beginning, and the client's own end ----

void
bt_router_http_call(bt_router_http *http, bt_http_request *request, bt_text_task task, bt_openai_kind kind)
{
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_buf body = {0};
    bt_question question = {.sink = &sink,
                            .edge = http,
                            .client = request,
                            .name = name,
                            .session = bt_http_header(request, "X-Session-Id"),
                            .task = task,
                            .kind = kind,
                            .body = &body,
                            .time_max = BT_TIME_NEVER};
    bt_openai_error error;
    bt_call *call;

    bt_router_http_name(http, request, name);
    bt_http_take_body(request, &body);
    if (bt_call_start(&call, http->calls, &question, &error) == BT_OK) {
        bt_http_set_data(request, call);
    } else {
        bt_router_http_refuse(http, request, &error);
    }
}

void
bt_router_http_gone(void *self, bt_http_request *request)
{
    bt_call *call = bt_http_data(request);

    (void)self;
    if (call != NULL) {
        bt_http_set_data(request, NULL);
        bt_call_leave(call, "the client is gone");
    }
}
