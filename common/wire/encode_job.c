// proto/job.proto. Forms borrow the struct's arrays: protobuf-c only reads what it packs, its pointers merely are not const.
#include "common/wire/wire_impl.h"

Baton__RequestId *
bt_encode_request(bt_wire_scratch *scratch, bt_request_id request)
{
    Baton__RequestId form = BATON__REQUEST_ID__INIT;

    form.slot = request.slot;
    form.generation = request.generation;
    form.attempt = request.attempt;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Ticket *
bt_encode_ticket(bt_wire_scratch *scratch, const bt_ticket *ticket)
{
    Baton__Ticket form = BATON__TICKET__INIT;

    form.epoch = ticket->epoch;
    form.slot = ticket->slot;
    form.generation = ticket->generation;
    form.layout = ticket->layout;
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__Sampling *
encode_sampling(bt_wire_scratch *scratch, const bt_sampling *sampling)
{
    Baton__Sampling form = BATON__SAMPLING__INIT;

    form.temperature = sampling->temperature;
    form.top_p = sampling->top_p;
    form.min_p = sampling->min_p;
    form.top_k = sampling->top_k;
    form.repetition_penalty = sampling->repetition_penalty;
    form.presence_penalty = sampling->presence_penalty;
    form.frequency_penalty = sampling->frequency_penalty;
    form.seed = sampling->seed;
    form.top_logprobs = sampling->top_logprobs;
    form.logprobs = sampling->logprobs;
    form.ignore_eos = sampling->ignore_eos;
    form.n_bias_ids = form.n_bias_values = sampling->bias_count;
    form.bias_ids = (int32_t *)sampling->bias_ids;
    form.bias_values = (float *)sampling->bias_values;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Job *
bt_encode_job(bt_wire_scratch *scratch, const bt_job *job)
{
    Baton__Job form = BATON__JOB__INIT;

    form.request = bt_encode_request(scratch, job->request);
    form.n_ids = (size_t)job->prompt_count + job->answer_count;
    form.ids = (int32_t *)job->ids;
    form.prompt_count = job->prompt_count;
    form.max_tokens = job->max_tokens;
    form.sampling = encode_sampling(scratch, job->sampling);
    form.prompt_logprobs = job->prompt_logprobs;
    form.n_end_ids = job->end_count;
    form.end_ids = (int32_t *)job->end_ids;
    form.time_left = job->time_left;
    form.name = (char *)job->name;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__TicketReply *
bt_encode_ticket_reply(bt_wire_scratch *scratch, const bt_ticket_reply *reply)
{
    Baton__TicketReply form = BATON__TICKET_REPLY__INIT;

    form.request = bt_encode_request(scratch, reply->request);
    form.error = bt_encode_error(reply->err);
    form.ticket = bt_encode_ticket(scratch, &reply->ticket);
    form.cached_tokens = reply->cached_tokens;
    form.lease = reply->lease;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Start *
bt_encode_start(bt_wire_scratch *scratch, const bt_start *start)
{
    Baton__Start form = BATON__START__INIT;

    form.request = bt_encode_request(scratch, start->request);
    form.ticket = bt_encode_ticket(scratch, &start->ticket);
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Abort *
bt_encode_abort(bt_wire_scratch *scratch, const bt_abort *abort)
{
    Baton__Abort form = BATON__ABORT__INIT;

    form.request = bt_encode_request(scratch, abort->request);
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Await *
bt_encode_await(bt_wire_scratch *scratch, const bt_await *await)
{
    Baton__Await form = BATON__AWAIT__INIT;

    form.request = bt_encode_request(scratch, await->request);
    form.ticket = bt_encode_ticket(scratch, &await->ticket);
    form.prefill = (char *)await->prefill;
    form.prefill_epoch = await->prefill_epoch;
    return bt_wire_put(scratch, &form, sizeof form);
}

Baton__Prefill *
bt_encode_prefill(bt_wire_scratch *scratch, const bt_prefill *prefill)
{
    Baton__Prefill form = BATON__PREFILL__INIT;

    form.job = bt_encode_job(scratch, &prefill->job);
    form.ticket = bt_encode_ticket(scratch, &prefill->ticket);
    form.decode = (char *)prefill->decode;
    form.cached_tokens = prefill->cached_tokens;
    return bt_wire_put(scratch, &form, sizeof form);
}
