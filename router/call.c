// A call's life: FREE → TEXT → RUNS → OVER → FREE. The client may go in each phase; the call stays until the text worker has
// given its job back and the core has finished its last choice.
#include "router/http_impl.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static bt_call *
take_call(bt_router_http *http)
{
    for (uint32_t i = 0; i < http->options.calls_max; i++) {
        if (http->calls[i].phase == BT_CALL_FREE) {
            http->calls_open++;
            return &http->calls[i];
        }
    }
    return NULL;
}

static void
free_call(bt_call *call)
{
    bt_router_http *http = call->http;

    while (call->choices != NULL) {
        bt_choice *choice = call->choices;

        call->choices = choice->next;
        bt_choice_free(choice);
    }
    bt_text_job_fini(&call->job);
    memset(call, 0, sizeof *call);
    http->calls_open--;
}

// Frees the call when nothing of it is out any more.
static void
settle(bt_call *call)
{
    if (call->phase == BT_CALL_OVER && call->choices_live == 0 && call->held == 0) {
        free_call(call);
    }
}

static void
cancel_choices(bt_call *call)
{
    bt_router_http *http = call->http;

    call->held++; // the core finishes them within the call of cancel
    for (bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        if (choice->live) {
            bt_router_edge_cancel(http->edge, bt_loop_now(http->loop), choice->id, BT_FINISH_CANCELLED);
        }
    }
    call->held--;
}

static void
let_go(bt_call *call)
{
    if (call->request != NULL) {
        bt_http_set_data(call->request, NULL);
        call->request = NULL;
    }
}

static void
end_call(bt_call *call)
{
    let_go(call);
    call->phase = BT_CALL_OVER;
    cancel_choices(call);
    settle(call);
}

static void
count_refusal(bt_router_http *http, const bt_openai_error *error)
{
    bt_router_metrics *m = &http->metrics;

    *(error->status == 429                                                         ? &m->rejected_busy
      : error->status >= 500                                                       ? &m->failed
      : error->code != NULL && strcmp(error->code, "context_length_exceeded") == 0 ? &m->rejected_too_long
                                                                                   : &m->rejected_invalid) += 1;
}

static void
fail_call(bt_call *call, const bt_openai_error *error)
{
    bt_router_http *http = call->http;

    count_refusal(http, error);
    bt_log_info("REQ-FAILED", "req %s status %u %s", call->name, error->status, error->message);
    if (call->request != NULL && call->streaming) {
        bt_openai_write_error_event(bt_http_out(call->request), error);
        bt_http_end(call->request);
    } else if (call->request != NULL) {
        bt_router_http_refuse(http, call->request, error);
    }
    end_call(call);
}

void
bt_call_leave(bt_call *call)
{
    call->http->metrics.cancelled++;
    bt_log_info("REQ-LEFT", "req %s: the client is gone", call->name);
    if (call->phase == BT_CALL_TEXT) {
        let_go(call); // the job comes back and finds nobody
        atomic_store(&call->job.dropped, true);
    } else {
        end_call(call);
    }
}

void
bt_call_close(bt_call *call)
{
    if (call->phase != BT_CALL_FREE) {
        let_go(call);
        free_call(call);
    }
}

// ---- begin: to the text workers ----

static void
refuse_new(bt_router_http *http, bt_http_request *request, unsigned status, const char *code, const char *words)
{
    bt_openai_error error;

    bt_openai_fail(&error, BT_ERR_BUSY, status, code, NULL, "%s", words);
    *(status == 429 ? &http->metrics.rejected_busy : &http->metrics.rejected_not_ready) += 1;
    bt_router_http_set_retry(request, BT_SECOND);
    bt_router_http_refuse(http, request, &error);
}

void
bt_call_start(bt_router_http *http, bt_http_request *request, bt_text_task task, bt_openai_kind kind)
{
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_call *call;

    bt_router_http_name(http, request, name);
    if (http->edge == NULL || http->draining) {
        refuse_new(http, request, 503, http->draining ? "draining" : "loading",
                   http->draining ? "this server is going down" : "the model is being loaded");
        return;
    }
    if ((call = take_call(http)) == NULL) {
        refuse_new(http, request, 429, "too_many_requests", "as many requests as this server takes are running");
        return;
    }
    call->http = http;
    call->phase = BT_CALL_TEXT;
    call->request = request;
    call->arrived = bt_loop_now(http->loop);
    memcpy(call->name, name, sizeof name);
    bt_http_set_data(request, call);
    bt_http_take_body(request, &call->job.body);
    call->job.task = task;
    call->job.kind = kind;
    call->job.arg = call;
    if (bt_text_submit(http->text, &call->job) != BT_OK) {
        let_go(call);
        free_call(call);
        refuse_new(http, request, 429, "too_many_requests", "as many requests as this server takes are waiting");
    }
}

// ---- middle: to the core ----

static uint64_t
hash_of(bt_str text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < text.len; i++) {
        hash = (hash ^ (unsigned char)text.data[i]) * 0x100000001b3u;
    }
    return text.len != 0 ? bt_mix64(hash) | 1 : 0;
}

static void
refusal_of(bt_call *call, bt_err err, const bt_router_answer *answer, const bt_choice *choice, bt_openai_error *error)
{
    bool chat = call->head.kind == BT_OPENAI_CHAT;
    const char *param = chat ? "messages" : "prompt";
    uint32_t prompt = call->job.prompts[choice->prompt].count;

    if (err == BT_ERR_TOO_LONG) {
        bt_openai_fail(error, err, 400, "context_length_exceeded", param,
                       "this model's context is %u tokens long, and %u were asked for: %u of the prompt and %u of the "
                       "answer",
                       answer->tokens_max, answer->tokens, prompt, answer->tokens - prompt);
    } else if (err == BT_ERR_INVALID) {
        bt_openai_fail(error, err, 400, NULL, param, "%s: not a prompt for this model", param);
    } else if (err == BT_ERR_BUSY) {
        bt_openai_fail(error, err, 429, "too_many_requests", NULL, "as many requests as this server takes are running");
    } else {
        bt_openai_fail(error, err, 503, err == BT_ERR_CLOSED ? "draining" : "no_node", NULL, "%s",
                       err == BT_ERR_CLOSED ? "this server is going down" : "no node can take this request now");
    }
    if (error->status != 400) {
        bt_router_http_set_retry(call->request, answer->retry_after);
    }
}

static bt_err
submit_choice(bt_call *call, bt_choice *choice, bt_router_answer *answer)
{
    bt_router_http *http = call->http;
    const bt_openai_request *request = &call->job.request;
    bt_sampling sampling = request->sampling;
    bt_time longest = http->options.request_time_max;
    bt_router_arrival arrival = {
        .tag = (uint64_t)(uintptr_t)choice,
        .ids = call->job.prompts[choice->prompt].ids,
        .count = call->job.prompts[choice->prompt].count,
        .sampling = &sampling,
        .max_tokens = request->max_tokens == UINT32_MAX ? BT_MAX_TOKENS_REST : request->max_tokens,
        .prompt_logprobs = request->echo && request->logprobs,
        .end_ids = http->end_ids,
        .end_count = sampling.ignore_eos                 ? 0
                     : call->head.kind == BT_OPENAI_CHAT ? http->end_count
                                                         : http->end_count != 0,
        .session = hash_of(request->user),
        .deadline = longest == BT_TIME_NEVER ? BT_TIME_NEVER : call->arrived + longest,
    };
    bt_err err;

    sampling.seed += choice->index;
    err = bt_router_edge_submit(http->edge, bt_loop_now(http->loop), &arrival, answer);
    if (err == BT_OK) {
        choice->id = answer->request;
        choice->live = true;
        call->choices_live++;
    }
    return err;
}

static void finish_call(bt_call *call);

static void
run(bt_call *call)
{
    const bt_openai_request *request = &call->job.request;
    bt_router_answer answer = {.retry_after = BT_SECOND};
    bt_openai_error error;

    call->phase = BT_CALL_RUNS;
    call->held++;
    for (uint32_t i = 0; i < call->job.prompt_count * request->n; i++) {
        bt_choice *choice = bt_choice_take(call, i, i / request->n);
        bt_err err = choice != NULL ? submit_choice(call, choice, &answer) : BT_ERR_BUSY;

        if (err != BT_OK) {
            refusal_of(call, err, &answer, choice != NULL ? choice : &(bt_choice){0}, &error);
            fail_call(call, &error);
            break;
        }
    }
    call->submitted = true;
    call->held--;
    if (call->phase == BT_CALL_RUNS && call->choices_live == 0) {
        finish_call(call);
    }
    settle(call);
}

static bool
model_is_served(const bt_call *call)
{
    bt_str model = call->job.request.model;

    return model.len == 0 || bt_str_is(model, call->http->options.model);
}

static void
answer_tokenize(bt_call *call)
{
    const bt_text_ids *ids = &call->job.prompts[0];
    bt_json_writer w;

    bt_json_write(&w, bt_http_out(call->request));
    bt_json_begin_object(&w, NULL);
    bt_json_put_int(&w, "count", ids->count);
    bt_json_put_int(&w, "max_model_len", call->http->context);
    bt_json_begin_array(&w, "tokens");
    for (uint32_t i = 0; i < ids->count; i++) {
        bt_json_put_int(&w, NULL, ids->ids[i]);
    }
    bt_json_end(&w);
    bt_json_end(&w);
    bt_router_http_answer(call->http, call->request, 200, "application/json");
    end_call(call);
}

static void
answer_detokenize(bt_call *call)
{
    bt_json_writer w;

    bt_json_write(&w, bt_http_out(call->request));
    bt_json_begin_object(&w, NULL);
    bt_json_put_text(&w, "prompt",
                     (bt_str){call->job.text.data != NULL ? call->job.text.data : "", call->job.text.len});
    bt_json_end(&w);
    bt_router_http_answer(call->http, call->request, 200, "application/json");
    end_call(call);
}

static void
fill_head(bt_call *call)
{
    bt_openai_head *head = &call->head;
    const bt_openai_request *request = &call->job.request;

    head->kind = request->kind;
    snprintf(head->id, sizeof head->id, "%s-%s", head->kind == BT_OPENAI_CHAT ? "chatcmpl" : "cmpl", call->name);
    head->model = bt_str_of(call->http->options.model);
    head->created = (int64_t)time(NULL);
    head->include_usage = request->include_usage;
    if (!request->seed_given) {
        call->job.request.sampling.seed = bt_rng_next(&call->http->rng);
    }
}

void
bt_call_on_text(void *self, bt_text_job *job)
{
    bt_call *call = job->arg;
    bt_router_http *http = self;
    bt_openai_error error;

    call->prepared = bt_loop_now(http->loop);
    bt_histogram_add_time(&http->metrics.text, &bt_latency_buckets, call->prepared - call->arrived);
    if (call->request == NULL) {
        free_call(call);
    } else if (job->err != BT_OK) {
        fail_call(call, &job->error);
    } else if (!model_is_served(call)) {
        bt_openai_fail(&error, BT_ERR_NOT_FOUND, 404, "model_not_found", "model", "model: this server has \"%s\" only",
                       http->options.model);
        fail_call(call, &error);
    } else if (job->task == BT_TEXT_TOKENIZE) {
        answer_tokenize(call);
    } else if (job->task == BT_TEXT_DETOKENIZE) {
        answer_detokenize(call);
    } else {
        fill_head(call);
        run(call);
    }
}

// ---- end: answers ----

static void
flush(bt_call *call)
{
    if (bt_http_flush(call->request) != BT_OK) {
        bt_http_request *request = call->request;

        bt_log_info("REQ-SLOW", "req %s: the client reads too slowly", call->name);
        bt_call_leave(call);
        bt_http_break(request);
    }
}

static void
begin_stream(bt_call *call)
{
    if (!call->streaming) {
        call->streaming = true;
        call->http->metrics.http_2xx++;
        bt_http_begin(call->request, 200, "text/event-stream; charset=utf-8");
    }
}

static void
time_tokens(bt_choice *choice, uint32_t before)
{
    bt_router_metrics *m = &choice->call->http->metrics;
    bt_time now = bt_loop_now(choice->call->http->loop);

    for (uint32_t i = before; i < choice->tokens; i++) {
        if (i == 0) {
            bt_histogram_add_time(&m->ttft, &bt_latency_buckets, now - choice->call->arrived);
        } else {
            bt_histogram_add_time(&m->inter_token, &bt_latency_buckets, now - choice->last_token);
        }
        choice->last_token = now;
    }
}

void
bt_call_on_tokens(void *self, const bt_router_tokens *tokens)
{
    bt_choice *choice = (bt_choice *)(uintptr_t)tokens->tag;
    bt_router_http *http = self;
    bt_call *call = choice->call;
    uint32_t before = choice->tokens;

    if (call->phase != BT_CALL_RUNS || choice->detok.stopped) {
        return;
    }
    if (call->job.request.stream) {
        begin_stream(call);
    }
    bt_choice_add(choice, tokens);
    time_tokens(choice, before);
    if (choice->detok.stopped) {
        bt_router_edge_cancel(http->edge, bt_loop_now(http->loop), choice->id, BT_FINISH_STOP);
    }
    if (call->streaming) {
        bt_choice_write(choice, NULL);
        flush(call);
    }
}

static bt_openai_usage
usage_of(const bt_call *call)
{
    bt_openai_usage usage = {0, 0, 0};

    for (uint32_t i = 0; i < call->job.prompt_count; i++) {
        usage.prompt_tokens += call->job.prompts[i].count;
    }
    for (const bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        usage.completion_tokens += choice->tokens;
        // The first answer to a prompt says what was there before this call.
        usage.cached_tokens += choice->index % call->job.request.n == 0 ? choice->usage.cached_tokens : 0;
    }
    return usage;
}

static void
write_whole(bt_call *call, const bt_openai_usage *usage)
{
    bt_json_writer w;

    bt_openai_begin_answer(&w, bt_http_out(call->request), &call->head);
    for (bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        bt_str text = {choice->text.data != NULL ? choice->text.data : "", choice->text.len};

        bt_openai_put_choice(&w, &call->head, choice->index, text,
                             call->job.request.logprobs ? &choice->logprobs : NULL, bt_finish_name(choice->finish));
    }
    bt_openai_end_answer(&w, usage);
}

static void
count_done(bt_call *call, const bt_openai_usage *usage)
{
    bt_router_metrics *m = &call->http->metrics;
    bt_time now = bt_loop_now(call->http->loop);
    uint32_t stops = 0, lengths = 0;

    for (const bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        stops += choice->finish == BT_FINISH_STOP;
        lengths += choice->finish == BT_FINISH_LENGTH;
        bt_histogram_add(&m->generation_length, &bt_token_buckets, choice->tokens);
    }
    *(lengths == 0 ? &m->done_stop : stops == 0 ? &m->done_length : &m->done_mixed) += 1;
    m->prompt_tokens += usage->prompt_tokens;
    m->cached_tokens += usage->cached_tokens;
    m->generation_tokens += usage->completion_tokens;
    bt_histogram_add(&m->prompt_length, &bt_token_buckets, usage->prompt_tokens);
    bt_histogram_add_time(&m->total, &bt_latency_buckets, now - call->arrived);
    bt_log_info("REQ-DONE", "req %s prompt %u cached %u answer %u choices %u finish %s total %lld ms", call->name,
                usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens, call->choice_count,
                bt_finish_name(call->choices->finish), (long long)((now - call->arrived) / BT_MILLISECOND));
}

// All choices are finished.
static void
finish_call(bt_call *call)
{
    bt_openai_usage usage = usage_of(call);
    bt_openai_error error;

    if (!call->streaming) {
        write_whole(call, &usage);
        if (bt_http_out(call->request)->failed) {
            bt_buf_clear(bt_http_out(call->request));
            bt_openai_fail(&error, BT_ERR_TOO_LONG, 500, "answer_too_large", NULL,
                           "the answer is larger than this server holds; ask for it as a stream");
            fail_call(call, &error);
            return;
        }
        bt_router_http_answer(call->http, call->request, 200, "application/json");
    } else {
        if (call->head.include_usage) {
            bt_openai_write_usage(bt_http_out(call->request), &call->head, &usage);
        }
        bt_openai_write_done(bt_http_out(call->request));
        bt_http_end(call->request);
    }
    count_done(call, &usage);
    end_call(call);
}

static void
fail_choice(bt_call *call, const bt_router_finished *finished)
{
    bt_openai_error error;
    bt_err err = finished->finish == BT_FINISH_ERROR ? finished->err : BT_ERR_CANCELLED;

    if (err == BT_ERR_TIMEOUT) {
        bt_openai_fail(&error, err, 504, "timeout", NULL,
                       "the answer was not complete within this server's time limit");
    } else if (err == BT_ERR_BUSY || err == BT_ERR_PEER || err == BT_ERR_CLOSED) {
        bt_openai_fail(&error, err, 503, "no_node", NULL, "no node could finish this request");
    } else {
        bt_openai_fail(&error, err, 500, "internal_error", NULL, "the model failed on this request (%s)",
                       bt_err_name(err));
    }
    fail_call(call, &error);
}

static void
note_finished(bt_choice *choice, const bt_router_finished *finished)
{
    bt_router_metrics *m = &choice->call->http->metrics;
    bt_phases phases = finished->phases;

    choice->finish = finished->finish;
    choice->usage = finished->usage;
    if (finished->ttft > 0) {
        phases.route += choice->call->prepared - choice->call->arrived; // the core counts from the submit on
        bt_router_metrics_note_phases(m, &phases);
    }
    if (choice->tokens > 1) {
        bt_histogram_add_time(&m->per_output_token, &bt_latency_buckets,
                              (finished->total - finished->ttft) / (choice->tokens - 1));
    }
}

void
bt_call_on_finished(void *self, const bt_router_finished *finished)
{
    bt_choice *choice = (bt_choice *)(uintptr_t)finished->tag;
    bt_call *call = choice->call;

    (void)self;
    choice->live = false;
    call->choices_live--;
    if (call->phase != BT_CALL_RUNS) {
        settle(call);
        return;
    }
    if (finished->finish != BT_FINISH_STOP && finished->finish != BT_FINISH_LENGTH) {
        fail_choice(call, finished);
        return;
    }
    note_finished(choice, finished);
    if (call->job.request.stream) {
        begin_stream(call);
    }
    bt_choice_end(choice);
    if (call->streaming) {
        bt_choice_write(choice, bt_finish_name(choice->finish));
    }
    if (call->submitted && call->choices_live == 0) {
        finish_call(call);
    } else if (call->streaming) {
        flush(call);
    }
}
