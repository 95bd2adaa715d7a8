// proto/job.proto, back. Arrays stay where protobuf-c has put them: in the scratch.
#include "common/wire/wire_impl.h"

#include <math.h>
#include <string.h>

static bool
copy_name(const char *text, char *out, size_t bytes)
{
    size_t length = strnlen(text, bytes);

    if (length == bytes)
        return false;
    memcpy(out, text, length + 1);
    return true;
}

bool
bt_decode_name(const char *text, char out[BT_NODE_NAME_MAX])
{
    return copy_name(text, out, BT_NODE_NAME_MAX);
}

bool
bt_decode_request(const Baton__RequestId *form, bt_request_id *out)
{
    if (form == NULL)
        return false;
    *out = (bt_request_id){form->slot, form->generation, form->attempt};
    return true;
}

bool
bt_decode_ticket(const Baton__Ticket *form, bt_ticket *out)
{
    if (form == NULL)
        return false;
    *out =
        (bt_ticket){.epoch = form->epoch, .slot = form->slot, .generation = form->generation, .layout = form->layout};
    return true;
}

static bool
are_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i]))
            return false;
    }
    return true;
}

static bool
are_ids(const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0)
            return false;
    }
    return true;
}

static bool
sampling_is_sane(const Baton__Sampling *form)
{
    const float values[] = {
        form->temperature,      form->top_p, form->min_p, form->repetition_penalty, form->presence_penalty,
        form->frequency_penalty};

    return are_finite(values, sizeof values / sizeof *values) && form->temperature >= 0 &&
           form->n_bias_ids == form->n_bias_values && form->n_bias_ids <= BT_LOGIT_BIAS_MAX &&
           are_ids(form->bias_ids, form->n_bias_ids) && are_finite(form->bias_values, form->n_bias_values);
}

static const bt_sampling *
decode_sampling(bt_wire_scratch *scratch, const Baton__Sampling *form)
{
    bt_sampling *out;

    if (form == NULL || !sampling_is_sane(form))
        return NULL;
    out = bt_wire_take_array(scratch, 1, sizeof *out);
    if (out == NULL)
        return NULL;
    out->temperature = form->temperature;
    out->top_p = form->top_p;
    out->min_p = form->min_p;
    out->top_k = form->top_k;
    out->repetition_penalty = form->repetition_penalty;
    out->presence_penalty = form->presence_penalty;
    out->frequency_penalty = form->frequency_penalty;
    out->seed = form->seed;
    out->top_logprobs = form->top_logprobs;
    out->logprobs = form->logprobs;
    out->ignore_eos = form->ignore_eos;
    out->bias_count = (uint32_t)form->n_bias_ids;
    if (out->bias_count > 0) {
        memcpy(out->bias_ids, form->bias_ids, form->n_bias_ids * sizeof *out->bias_ids);
        memcpy(out->bias_values, form->bias_values, form->n_bias_values * sizeof *out->bias_values);
    }
    return out;
}

bool
bt_decode_job(bt_wire_scratch *scratch, const Baton__Job *form, bt_job *out)
{
    if (form == NULL || form->n_ids > 2 * (size_t)BT_MESSAGE_IDS_MAX || form->prompt_count > form->n_ids ||
        form->n_end_ids > BT_END_IDS_MAX || !are_ids(form->ids, form->n_ids) ||
        !are_ids(form->end_ids, form->n_end_ids) || !bt_decode_request(form->request, &out->request))
        return false;
    out->ids = form->ids;
    out->prompt_count = form->prompt_count;
    out->answer_count = (uint32_t)form->n_ids - form->prompt_count;
    out->max_tokens = form->max_tokens;
    out->sampling = decode_sampling(scratch, form->sampling);
    out->prompt_logprobs = form->prompt_logprobs;
    out->end_count = (uint32_t)form->n_end_ids;
    if (out->end_count > 0)
        memcpy(out->end_ids, form->end_ids, form->n_end_ids * sizeof *out->end_ids);
    out->time_left = form->time_left;
    return out->sampling != NULL && copy_name(form->name, out->name, sizeof out->name);
}

bool
bt_decode_ticket_reply(const Baton__TicketReply *form, bt_ticket_reply *out)
{
    out->cached_tokens = form->cached_tokens;
    out->lease = form->lease;
    return bt_decode_request(form->request, &out->request) && bt_decode_error(form->error, &out->err) &&
           bt_decode_ticket(form->ticket, &out->ticket);
}

bool
bt_decode_start(const Baton__Start *form, bt_start *out)
{
    return bt_decode_request(form->request, &out->request) && bt_decode_ticket(form->ticket, &out->ticket);
}

bool
bt_decode_abort(const Baton__Abort *form, bt_abort *out)
{
    return bt_decode_request(form->request, &out->request);
}

bool
bt_decode_await(const Baton__Await *form, bt_await *out)
{
    out->prefill_epoch = form->prefill_epoch;
    return bt_decode_request(form->request, &out->request) && bt_decode_ticket(form->ticket, &out->ticket) &&
           bt_decode_name(form->prefill, out->prefill);
}

bool
bt_decode_prefill(bt_wire_scratch *scratch, const Baton__Prefill *form, bt_prefill *out)
{
    out->cached_tokens = form->cached_tokens;
    return bt_decode_job(scratch, form->job, &out->job) && bt_decode_ticket(form->ticket, &out->ticket) &&
           bt_decode_name(form->decode, out->decode);
}
