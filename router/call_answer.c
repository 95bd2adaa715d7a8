// A call's way back: tokens and ends of its choices from the core, until all are finished.
#include "router/call.h"

#include "common/base/log.h"

static void
time_tokens(bt_choice *choice, uint32_t before)
{
    bt_router_metrics *m = &choice->call->calls->metrics;
    bt_time now = bt_loop_now(choice->call->calls->loop);

    for (uint32_t i = before; i < choice->tokens; i++) {
        if (i != 0) {
            bt_histogram_add_time(&m->inter_token, &bt_latency_buckets, now - choice->last_token);
        }
        choice->last_token = now;
    }
}

// Time and phases are counted in one place, so that what is scraped always sums.
static void
note_first_token(bt_choice *choice, const bt_router_tokens *tokens)
{
    bt_router_metrics *m = &choice->call->calls->metrics;
    bt_phases phases = tokens->phases;
    bt_time text = choice->submitted - choice->call->arrived;

    phases.route += text; // the core counts from the submit on
    bt_histogram_add_time(&m->ttft, &bt_latency_buckets, text + tokens->ttft);
    bt_router_metrics_note_phases(m, &phases);
}

void
bt_call_on_tokens(void *self, const bt_router_tokens *tokens)
{
    bt_choice *choice = (bt_choice *)(uintptr_t)tokens->tag;
    bt_calls *calls = self;
    bt_call *call = choice->call;
    uint32_t before = choice->tokens;

    if (call->phase != BT_CALL_RUNS || choice->detok.stopped) {
        return;
    }
    call->degraded |= tokens->degraded;
    if (tokens->ttft > 0) {
        note_first_token(choice, tokens);
    }
    bt_choice_add(choice, tokens);
    time_tokens(choice, before);
    calls->metrics.generation_tokens += choice->tokens - before; // now: those of a client that leaves were sent as well
    if (choice->detok.stopped) {
        bt_router_edge_cancel(calls->edge, bt_loop_now(calls->loop), choice->id, BT_FINISH_STOP);
    }
    call->sink->progress(choice);
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
count_done(bt_call *call, const bt_openai_usage *usage)
{
    bt_router_metrics *m = &call->calls->metrics;
    bt_time now = bt_loop_now(call->calls->loop);
    uint32_t stops = 0, lengths = 0;

    for (const bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        stops += choice->finish == BT_FINISH_STOP;
        lengths += choice->finish == BT_FINISH_LENGTH;
        bt_histogram_add(&m->generation_length, &bt_token_buckets, choice->tokens);
    }
    *(lengths == 0 ? &m->done_stop : stops == 0 ? &m->done_length : &m->done_mixed) += 1;
    m->prompt_tokens += usage->prompt_tokens;
    m->cached_tokens += usage->cached_tokens;
    m->degraded += call->degraded;
    bt_histogram_add(&m->prompt_length, &bt_token_buckets, usage->prompt_tokens);
    bt_histogram_add_time(&m->total, &bt_latency_buckets, now - call->arrived);
    bt_trace_end(call->calls->trace, call->traced, bt_finish_name(call->choices->finish), now);
    bt_log_info("REQ-DONE", "req %s prompt %u cached %u answer %u choices %u finish %s total %lld ms", call->name,
                usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens, call->choice_count,
                bt_finish_name(call->choices->finish), (long long)((now - call->arrived) / BT_MILLISECOND));
    if (call->degraded) {
        bt_log_warn("REQ-DEGRADED", "req %s was read by decode weights: no prefill node could be used", call->name);
    }
}

static bool
is_whole(const bt_call *call)
{
    bool whole = true;

    for (const bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        whole &= !choice->text.failed && !choice->results.failed;
    }
    return whole;
}

// All choices are finished.
void
bt_call_finish(bt_call *call)
{
    bt_openai_usage usage = usage_of(call);
    bt_openai_error error;

    if (!is_whole(call) || !call->sink->end(call, &usage)) {
        bt_openai_fail(&error, BT_ERR_TOO_LONG, 500, "answer_too_large", NULL,
                       "the answer is larger than this server holds; ask for it as a stream");
        bt_call_fail(call, &error);
        return;
    }
    count_done(call, &usage);
    bt_call_over(call);
}

static void
fail_choice(bt_call *call, const bt_router_finished *finished)
{
    bt_openai_error error;
    bt_err err = finished->finish == BT_FINISH_ERROR ? finished->err : BT_ERR_CANCELLED;

    if (err == BT_ERR_TIMEOUT) {
        bt_openai_fail(&error, err, 504, "timeout", NULL, "the answer was not complete in time");
    } else if (err == BT_ERR_BUSY || err == BT_ERR_PEER || err == BT_ERR_CLOSED || err == BT_ERR_DEVICE) {
        bt_openai_fail(&error, err, 503, "no_node", NULL, "no node could finish this request");
    } else {
        bt_openai_fail(&error, err, 500, "internal_error", NULL, "the model failed on this request (%s)",
                       bt_err_name(err));
    }
    bt_call_fail(call, &error);
}

static void
note_finished(bt_choice *choice, const bt_router_finished *finished)
{
    bt_router_metrics *m = &choice->call->calls->metrics;

    choice->finish = finished->finish;
    choice->usage = finished->usage;
    choice->call->degraded |= finished->degraded;
    if (finished->ttft > 0) {
        bt_histogram_add_time(&m->decode, &bt_latency_buckets, finished->total - finished->ttft);
    }
    if (choice->tokens > 1) {
        bt_histogram_add_time(&m->per_output_token, &bt_latency_buckets,
                              (finished->total - finished->ttft) / (choice->tokens - 1));
    }
}

// May be after the call's last word: the choice is the core's still.
void
bt_call_on_attempt(void *self, const bt_router_attempted *attempted)
{
    const bt_choice *choice = (const bt_choice *)(uintptr_t)attempted->what->tag;
    const bt_router_attempt *what = attempted->what;
    bt_calls *calls = self;

    if (what->joined != 0 && attempted->prefill != NULL) {
        bt_histogram_add_time(&calls->metrics.transfer, &bt_latency_buckets, what->answering.transfer);
    }
    bt_trace_attempt(calls->trace, choice->call->traced, choice->index, choice->submitted, attempted);
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
        bt_call_settle(call);
        return;
    }
    if (finished->finish != BT_FINISH_STOP && finished->finish != BT_FINISH_LENGTH) {
        fail_choice(call, finished);
        return;
    }
    note_finished(choice, finished);
    bt_choice_end(choice);
    if (call->submitted && call->choices_live == 0) {
        call->held++; // the sink may leave it
        call->sink->progress(choice);
        if (call->phase == BT_CALL_RUNS) {
            bt_call_finish(call);
        }
        call->held--;
        bt_call_settle(call);
    } else {
        call->sink->progress(choice);
    }
}
