// What calls are answered.
#include "common/wire/gateway_impl.h"

// ---- writing ----

static Baton__Gateway__Tokens *
encode_tokens(bt_wire_scratch *scratch, const bt_gateway_tokens *tokens)
{
    Baton__Gateway__Tokens form = BATON__GATEWAY__TOKENS__INIT;

    if (tokens->count == 0)
        return NULL;
    form.n_ids = tokens->count;
    form.ids = (int32_t *)tokens->ids;
    form.n_logprobs = tokens->logprobs != NULL ? tokens->count : 0;
    form.logprobs = (float *)tokens->logprobs;
    form.n_top_counts = tokens->top_counts != NULL ? tokens->count : 0;
    form.top_counts = (uint32_t *)tokens->top_counts;
    form.n_top_ids = form.n_top_logprobs = tokens->top_total;
    form.top_ids = (int32_t *)tokens->top_ids;
    form.top_logprobs = (float *)tokens->top_logprobs;
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__Gateway__Choice *
encode_choice(bt_wire_scratch *scratch, const bt_gateway_choice *choice)
{
    Baton__Gateway__Choice form = BATON__GATEWAY__CHOICE__INIT;

    form.index = choice->index;
    form.text = bt_gateway_bytes(choice->text);
    form.tokens = encode_tokens(scratch, &choice->tokens);
    form.prompt = encode_tokens(scratch, &choice->prompt);
    form.finish = choice->finish == BT_FINISH_STOP     ? BATON__GATEWAY__FINISH__FINISH_STOP
                  : choice->finish == BT_FINISH_LENGTH ? BATON__GATEWAY__FINISH__FINISH_LENGTH
                                                       : BATON__GATEWAY__FINISH__FINISH_NONE;
    return bt_wire_put(scratch, &form, sizeof form);
}

bt_err
bt_gateway_pack_generated(bt_str *out, const bt_gateway_generated *generated, bt_wire_scratch *scratch)
{
    Baton__Gateway__GenerateReply form = BATON__GATEWAY__GENERATE_REPLY__INIT;
    Baton__Gateway__Usage usage = BATON__GATEWAY__USAGE__INIT;
    Baton__Gateway__Choice *choices[BT_GATEWAY_CHOICES_MAX];

    if (generated->choice_count > BT_GATEWAY_CHOICES_MAX)
        return BT_ERR_INVALID;
    for (uint32_t i = 0; i < generated->choice_count; i++)
        choices[i] = encode_choice(scratch, &generated->choices[i]);
    if (scratch->failed)
        return BT_ERR_TOO_LONG;
    form.n_choices = generated->choice_count;
    form.choices = choices;
    usage.prompt_tokens = generated->usage.prompt_tokens;
    usage.completion_tokens = generated->usage.completion_tokens;
    usage.cached_tokens = generated->usage.cached_tokens;
    form.usage = generated->has_usage ? &usage : NULL;
    form.degraded = generated->degraded;
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_tokenized(bt_str *out, const bt_gateway_tokenized *tokenized, bt_wire_scratch *scratch)
{
    Baton__Gateway__TokenizeReply form = BATON__GATEWAY__TOKENIZE_REPLY__INIT;

    form.n_ids = tokenized->id_count;
    form.ids = (int32_t *)tokenized->ids;
    form.context = tokenized->context;
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_text(bt_str *out, bt_str text, bt_wire_scratch *scratch)
{
    Baton__Gateway__DetokenizeReply form = BATON__GATEWAY__DETOKENIZE_REPLY__INIT;

    form.text = bt_gateway_bytes(text);
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_models(bt_str *out, const bt_gateway_model *models, uint32_t count, bt_wire_scratch *scratch)
{
    Baton__Gateway__ModelsReply form = BATON__GATEWAY__MODELS_REPLY__INIT;
    Baton__Gateway__Model forms[BT_GATEWAY_MODELS_MAX], *pointers[BT_GATEWAY_MODELS_MAX];

    if (count > BT_GATEWAY_MODELS_MAX)
        return BT_ERR_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        baton__gateway__model__init(&forms[i]);
        forms[i].name = bt_gateway_bytes(models[i].name);
        forms[i].context = models[i].context;
        pointers[i] = &forms[i];
    }
    form.n_models = count;
    form.models = pointers;
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_health(bt_str *out, bt_gateway_state state, bt_wire_scratch *scratch)
{
    Baton__Gateway__HealthReply form = BATON__GATEWAY__HEALTH_REPLY__INIT;

    form.state = (Baton__Gateway__State)state;
    return bt_gateway_pack(out, &form.base, scratch);
}

bt_err
bt_gateway_pack_stats(bt_str *out, const bt_gateway_stats *stats, bt_wire_scratch *scratch)
{
    Baton__Gateway__StatsReply form = BATON__GATEWAY__STATS_REPLY__INIT;

    form.running = stats->running;
    form.queued = stats->queued;
    form.nodes = stats->nodes;
    form.calls = stats->calls;
    form.connections = stats->connections;
    form.uptime_ms = stats->uptime_ms;
    form.done = stats->done;
    form.failed = stats->failed;
    form.cancelled = stats->cancelled;
    form.rejected = stats->rejected;
    form.prompt_tokens = stats->prompt_tokens;
    form.cached_tokens = stats->cached_tokens;
    form.completion_tokens = stats->completion_tokens;
    return bt_gateway_pack(out, &form.base, scratch);
}

// ---- reading ----

static bool
decode_tokens(const Baton__Gateway__Tokens *form, bt_gateway_tokens *out)
{
    uint64_t tops = 0;

    if (form == NULL)
        return true;
    if (form->n_ids > BT_MESSAGE_IDS_MAX || (form->n_logprobs != 0 && form->n_logprobs != form->n_ids) ||
        (form->n_top_counts != 0 && form->n_top_counts != form->n_ids) || form->n_top_ids != form->n_top_logprobs)
        return false;
    for (size_t i = 0; i < form->n_top_counts; i++)
        tops += form->top_counts[i];
    if (tops != form->n_top_ids)
        return false;
    *out = (bt_gateway_tokens){
        .count = (uint32_t)form->n_ids,
        .top_total = (uint32_t)form->n_top_ids,
        .ids = form->ids,
        .logprobs = form->n_logprobs != 0 ? form->logprobs : NULL,
        .top_counts = form->n_top_counts != 0 ? form->top_counts : NULL,
        .top_ids = form->top_ids,
        .top_logprobs = form->top_logprobs,
    };
    return true;
}

static bool
decode_choice(const Baton__Gateway__Choice *form, bt_gateway_choice *out)
{
    out->index = form->index;
    out->text = bt_gateway_text(form->text);
    out->finish = form->finish == BATON__GATEWAY__FINISH__FINISH_STOP     ? BT_FINISH_STOP
                  : form->finish == BATON__GATEWAY__FINISH__FINISH_LENGTH ? BT_FINISH_LENGTH
                                                                          : BT_FINISH_NONE;
    return decode_tokens(form->tokens, &out->tokens) && decode_tokens(form->prompt, &out->prompt);
}

bt_err
bt_gateway_read_generated(bt_gateway_generated *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__GenerateReply *form =
        bt_gateway_unpack(&baton__gateway__generate_reply__descriptor, body.data, body.len, scratch);
    bt_gateway_choice *choices;

    if (form == NULL || form->n_choices > BT_GATEWAY_CHOICES_MAX)
        return bt_gateway_bad(scratch);
    choices = bt_wire_take_array(scratch, form->n_choices, sizeof *choices);
    if (choices == NULL && form->n_choices > 0)
        return BT_ERR_TOO_LONG;
    for (size_t i = 0; i < form->n_choices; i++) {
        if (!decode_choice(form->choices[i], &choices[i]))
            return BT_ERR_INVALID;
    }
    *out = (bt_gateway_generated){.choices = choices, .choice_count = (uint32_t)form->n_choices};
    out->has_usage = form->usage != NULL;
    out->degraded = form->degraded;
    if (form->usage != NULL)
        out->usage = (bt_usage){form->usage->prompt_tokens, form->usage->completion_tokens, form->usage->cached_tokens};
    return BT_OK;
}

bt_err
bt_gateway_read_tokenized(bt_gateway_tokenized *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__TokenizeReply *form =
        bt_gateway_unpack(&baton__gateway__tokenize_reply__descriptor, body.data, body.len, scratch);

    if (form == NULL || form->n_ids > UINT32_MAX)
        return bt_gateway_bad(scratch);
    *out = (bt_gateway_tokenized){form->ids, (uint32_t)form->n_ids, form->context};
    return BT_OK;
}

bt_err
bt_gateway_read_text(bt_str *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__DetokenizeReply *form =
        bt_gateway_unpack(&baton__gateway__detokenize_reply__descriptor, body.data, body.len, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    *out = bt_gateway_text(form->text);
    return BT_OK;
}

bt_err
bt_gateway_read_models(const bt_gateway_model **models, uint32_t *count, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__ModelsReply *form =
        bt_gateway_unpack(&baton__gateway__models_reply__descriptor, body.data, body.len, scratch);
    bt_gateway_model *out;

    if (form == NULL || form->n_models > BT_GATEWAY_MODELS_MAX)
        return bt_gateway_bad(scratch);
    out = bt_wire_take_array(scratch, form->n_models, sizeof *out);
    if (out == NULL && form->n_models > 0)
        return BT_ERR_TOO_LONG;
    for (size_t i = 0; i < form->n_models; i++)
        out[i] = (bt_gateway_model){bt_gateway_text(form->models[i]->name), form->models[i]->context};
    *models = out;
    *count = (uint32_t)form->n_models;
    return BT_OK;
}

bt_err
bt_gateway_read_health(bt_gateway_state *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__HealthReply *form =
        bt_gateway_unpack(&baton__gateway__health_reply__descriptor, body.data, body.len, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    *out = (unsigned)form->state <= BT_STATE_NO_NODE ? (bt_gateway_state)form->state : BT_STATE_NONE;
    return BT_OK;
}

bt_err
bt_gateway_read_stats(bt_gateway_stats *out, bt_str body, bt_wire_scratch *scratch)
{
    const Baton__Gateway__StatsReply *form =
        bt_gateway_unpack(&baton__gateway__stats_reply__descriptor, body.data, body.len, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    *out = (bt_gateway_stats){
        .running = form->running,
        .queued = form->queued,
        .nodes = form->nodes,
        .calls = form->calls,
        .connections = form->connections,
        .uptime_ms = form->uptime_ms,
        .done = form->done,
        .failed = form->failed,
        .cancelled = form->cancelled,
        .rejected = form->rejected,
        .prompt_tokens = form->prompt_tokens,
        .cached_tokens = form->cached_tokens,
        .completion_tokens = form->completion_tokens,
    };
    return BT_OK;
}
