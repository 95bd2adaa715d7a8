// A call's way to the core: taken, prepared by a text worker, given to the core; and how it ends before its answer is complete.
#include "router/call.h"

#include "common/base/hash.h"
#include "common/base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static bt_call *
take_call(bt_calls *calls)
{
    for (uint32_t i = 0; i < calls->options.calls_max; i++) {
        if (calls->call[i].phase == BT_CALL_FREE) {
            calls->calls_open++;
            return &calls->call[i];
        }
    }
    return NULL;
}

static void
free_call(bt_call *call)
{
    bt_calls *calls = call->calls;

    while (call->choices != NULL) {
        bt_choice *choice = call->choices;

        call->choices = choice->next;
        bt_choice_free(choice);
    }
    bt_text_job_fini(&call->job);
    memset(call, 0, sizeof *call);
    calls->calls_open--;
}

void
bt_call_settle(bt_call *call)
{
    if (call->phase == BT_CALL_OVER && call->choices_live == 0 && call->held == 0) {
        free_call(call);
    }
}

static void
cancel_choices(bt_call *call)
{
    bt_calls *calls = call->calls;

    call->held++; // the core finishes them within the call of cancel
    for (bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        if (choice->live) {
            bt_router_edge_cancel(calls->edge, bt_loop_now(calls->loop), choice->id, BT_FINISH_CANCELLED);
        }
    }
    call->held--;
}

void
bt_call_over(bt_call *call)
{
    call->client = NULL;
    call->phase = BT_CALL_OVER;
    cancel_choices(call);
    bt_call_settle(call);
}

static void
count_refusal(bt_calls *calls, const bt_openai_error *error)
{
    bt_router_metrics *m = &calls->metrics;

    *(error->status == 429                                                         ? &m->rejected_busy
      : error->status >= 500                                                       ? &m->failed
      : error->code != NULL && strcmp(error->code, "context_length_exceeded") == 0 ? &m->rejected_too_long
                                                                                   : &m->rejected_invalid) += 1;
}

void
bt_call_fail(bt_call *call, const bt_openai_error *error)
{
    count_refusal(call->calls, error);
    bt_trace_end(call->calls->trace, call->traced, error->code != NULL ? error->code : "failed",
                 bt_loop_now(call->calls->loop));
    bt_log_info("REQ-FAILED", "req %s status %u %s", call->name, error->status, error->message);
    if (call->client != NULL) {
        call->sink->fail(call, error);
    }
    bt_call_over(call);
}

void
bt_call_leave(bt_call *call, const char *why)
{
    call->calls->metrics.cancelled++;
    bt_trace_end(call->calls->trace, call->traced, why, bt_loop_now(call->calls->loop));
    bt_log_info("REQ-LEFT", "req %s: %s", call->name, why);
    if (call->phase == BT_CALL_TEXT) {
        call->client = NULL; // the job comes back and finds nobody
        atomic_store(&call->job.dropped, true);
    } else {
        bt_call_over(call);
    }
}

void
bt_call_close(bt_call *call)
{
    if (call->phase != BT_CALL_FREE) {
        free_call(call);
    }
}

// ---- begin: to the text workers ----

static bt_err
refuse_new(bt_calls *calls, bt_openai_error *error, unsigned status, const char *code, const char *words)
{
    *(status == 429 ? &calls->metrics.rejected_busy : &calls->metrics.rejected_not_ready) += 1;
    bt_openai_fail(error, BT_ERR_BUSY, status, code, NULL, "%s", words);
    error->retry_after = BT_SECOND;
    return BT_ERR_BUSY;
}

static uint64_t
session_of(bt_str key)
{
    return key.len != 0 ? bt_hash_text(key.data, key.len) | 1 : 0;
}

static void
fill_call(bt_call *call, const bt_question *question)
{
    call->sink = question->sink;
    call->edge = question->edge;
    call->client = question->client;
    call->wants_results = question->wants_results;
    call->deadline = question->time_max == BT_TIME_NEVER ? BT_TIME_NEVER : call->arrived + question->time_max;
    call->session = session_of(bt_str_of(question->session != NULL ? question->session : ""));
    snprintf(call->name, sizeof call->name, "%s", question->name);
    call->job.task = question->task;
    call->job.kind = question->kind;
    call->job.parse = question->parse;
    call->job.body = *question->body;
    call->job.arg = call;
    *question->body = (bt_buf){0};
}

bt_err
bt_call_start(bt_call **out, bt_calls *calls, const bt_question *question, bt_openai_error *error)
{
    bt_call *call = NULL;
    bt_err err;

    if (calls->edge == NULL || calls->draining) {
        err = refuse_new(calls, error, 503, calls->draining ? "draining" : "loading",
                         calls->draining ? "this server is going down" : "the model is being loaded");
    } else if ((call = take_call(calls)) == NULL) {
        err = refuse_new(calls, error, 429, "too_many_requests", "as many requests as this server takes are running");
    } else {
        call->calls = calls;
        call->phase = BT_CALL_TEXT;
        call->arrived = bt_loop_now(calls->loop);
        fill_call(call, question);
        if (question->task == BT_TEXT_COMPLETE) {
            call->traced = bt_trace_begin(calls->trace, call->name, call->arrived);
        }
        if ((err = bt_text_submit(calls->text, &call->job)) == BT_OK) {
            *out = call;
            return BT_OK;
        }
        free_call(call);
        err = refuse_new(calls, error, 429, "too_many_requests", "as many requests as this server takes are waiting");
    }
    bt_buf_fini(question->body);
    *question->body = (bt_buf){0};
    return err;
}

// ---- middle: to the core ----

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
        error->retry_after = answer->retry_after > 0 ? answer->retry_after : BT_SECOND;
    }
}

static bt_time
deadline_of(const bt_call *call)
{
    bt_time longest = call->calls->options.request_time_max, end = call->arrived + longest;

    return longest == BT_TIME_NEVER || call->deadline < end ? call->deadline : end;
}

static bt_err
submit_choice(bt_call *call, bt_choice *choice, bt_router_answer *answer)
{
    bt_calls *calls = call->calls;
    const bt_openai_request *request = &call->job.request;
    bt_sampling sampling = request->sampling;
    bt_router_arrival arrival = {
        .tag = (uint64_t)(uintptr_t)choice,
        .name = call->name,
        .ids = call->job.prompts[choice->prompt].ids,
        .count = call->job.prompts[choice->prompt].count,
        .sampling = &sampling,
        .max_tokens = request->max_tokens == UINT32_MAX ? BT_MAX_TOKENS_REST : request->max_tokens,
        .prompt_logprobs = request->prompt_logprobs || (request->echo && request->logprobs),
        .end_ids = calls->end_ids,
        .end_count = sampling.ignore_eos                 ? 0
                     : call->head.kind == BT_OPENAI_CHAT ? calls->end_count
                                                         : calls->end_count != 0,
        .session = call->session != 0 ? call->session : session_of(request->user),
        .deadline = deadline_of(call),
    };
    bt_err err;

    sampling.seed += choice->index;
    choice->submitted = bt_loop_now(calls->loop);
    err = bt_router_edge_submit(calls->edge, choice->submitted, &arrival, answer);
    if (err == BT_OK) {
        choice->id = answer->request;
        choice->live = true;
        call->choices_live++;
    }
    return err;
}

static void
run(bt_call *call)
{
    const bt_openai_request *request = &call->job.request;
    bt_router_answer answer = {.retry_after = BT_SECOND};
    bt_openai_error error;

    call->phase = BT_CALL_RUNS;
    call->held++;
    // One that is refused, or too late already, ends the call: the others are not begun.
    for (uint32_t i = 0; i < call->job.prompt_count * request->n && call->phase == BT_CALL_RUNS; i++) {
        bt_choice *choice = bt_choice_take(call, i, i / request->n);
        bt_err err = choice != NULL ? submit_choice(call, choice, &answer) : BT_ERR_BUSY;

        if (err != BT_OK) {
            refusal_of(call, err, &answer, choice != NULL ? choice : &(bt_choice){0}, &error);
            bt_call_fail(call, &error);
        }
    }
    call->submitted = true;
    call->held--;
    if (call->phase == BT_CALL_RUNS && call->choices_live == 0) {
        bt_call_finish(call);
    }
    bt_call_settle(call);
}

static bool
model_is_served(const bt_call *call)
{
    bt_str model = call->job.request.model;

    return model.len == 0 || bt_str_is(model, call->calls->options.model);
}

static void
fill_head(bt_call *call)
{
    bt_openai_head *head = &call->head;
    const bt_openai_request *request = &call->job.request;

    head->kind = request->kind;
    snprintf(head->id, sizeof head->id, "%s-%s", head->kind == BT_OPENAI_CHAT ? "chatcmpl" : "cmpl", call->name);
    head->model = bt_str_of(call->calls->options.model);
    head->created = (int64_t)time(NULL);
    head->include_usage = request->include_usage;
    if (!request->seed_given) {
        call->job.request.sampling.seed = bt_rng_next(&call->calls->rng);
    }
}

void
bt_call_on_text(void *self, bt_text_job *job)
{
    bt_call *call = job->arg;
    bt_calls *calls = self;
    bt_openai_error error;

    call->prepared = bt_loop_now(calls->loop);
    bt_trace_text(calls->trace, call->traced, call->prepared);
    bt_histogram_add_time(&calls->metrics.text, &bt_latency_buckets, call->prepared - call->arrived);
    if (call->client == NULL) {
        free_call(call);
    } else if (job->err != BT_OK) {
        bt_call_fail(call, &job->error);
    } else if (!model_is_served(call)) {
        bt_openai_fail(&error, BT_ERR_NOT_FOUND, 404, "model_not_found", "model", "model: this server has \"%s\" only",
                       calls->options.model);
        bt_call_fail(call, &error);
    } else if (job->task == BT_TEXT_COMPLETE) {
        fill_head(call);
        run(call);
    } else {
        (job->task == BT_TEXT_TOKENIZE ? call->sink->tokens : call->sink->text)(call);
        bt_call_over(call);
    }
}
