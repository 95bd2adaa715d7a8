// The parameters, and which endpoint knows which.
#include "router/openai_read.h"

#include <string.h>

static bt_err
take_model(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_keep_text(r, at, &r->out->model);
}

static bt_err
take_stream(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_bool(r, at, &r->out->stream);
}

static bt_err
take_stream_options(bt_openai_reader *r, const bt_json_at *at)
{
    bt_json_at member;
    void *step = NULL;
    bt_err err;

    if (bt_json_as_object(at, &r->why) != BT_OK) {
        return bt_openai_refuse(r, at);
    }
    while (bt_json_next(at, &step, &member)) {
        if (!bt_json_given(&member)) {
            continue;
        }
        if (!bt_str_is(member.key, "include_usage")) {
            return bt_openai_refuse_with(r, &member, "unsupported_parameter", "not supported by this server");
        }
        if ((err = bt_openai_read_bool(r, &member, &r->out->include_usage)) != BT_OK) {
            return err;
        }
    }
    return BT_OK;
}

static bt_err
take_max_tokens(bt_openai_reader *r, const bt_json_at *at)
{
    // 0 scores a prompt and writes nothing: only together with echo, which check_whole looks at.
    uint32_t before = r->out->max_tokens, min = r->out->kind == BT_OPENAI_TEXT ? 0 : 1;
    bt_err err = bt_openai_read_count(r, at, min, INT32_MAX, &r->out->max_tokens);

    if (err == BT_OK && before != UINT32_MAX && before != r->out->max_tokens) {
        return bt_openai_refuse_with(r, at, NULL, "max_tokens and max_completion_tokens differ; send one of them");
    }
    return err;
}

static bt_err
take_n(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_count(r, at, 1, r->limits->choices_max, &r->out->n);
}

static bt_err
take_seed(bt_openai_reader *r, const bt_json_at *at)
{
    int64_t seed = 0;
    bt_err err = bt_openai_read_int(r, at, INT64_MIN, INT64_MAX, &seed);

    r->out->sampling.seed = (uint64_t)seed;
    r->out->seed_given = err == BT_OK;
    return err;
}

static bt_err
take_temperature(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_float(r, at, 0, 2, &r->out->sampling.temperature);
}

static bt_err
take_top_p(bt_openai_reader *r, const bt_json_at *at)
{
    bt_err err = bt_openai_read_float(r, at, 0, 1, &r->out->sampling.top_p);

    // Nothing but the likeliest token: 0 itself would mean an empty set.
    if (err == BT_OK && r->out->sampling.top_p < 1e-6f) {
        r->out->sampling.top_p = 1e-6f;
    }
    return err;
}

static bt_err
take_top_k(bt_openai_reader *r, const bt_json_at *at)
{
    int64_t value = 0;
    bt_err err = bt_openai_read_int(r, at, -1, INT32_MAX, &value);

    r->out->sampling.top_k = value > 0 ? (uint32_t)value : 0; // -1, as vLLM has it, is off too
    return err;
}

static bt_err
take_min_p(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_float(r, at, 0, 1, &r->out->sampling.min_p);
}

static bt_err
take_presence_penalty(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_float(r, at, -2, 2, &r->out->sampling.presence_penalty);
}

static bt_err
take_frequency_penalty(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_float(r, at, -2, 2, &r->out->sampling.frequency_penalty);
}

static bt_err
take_repetition_penalty(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_float(r, at, 0.01, 10, &r->out->sampling.repetition_penalty);
}

static bt_err
take_ignore_eos(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_bool(r, at, &r->out->sampling.ignore_eos);
}

static bt_err
take_user(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_keep_text(r, at, &r->out->user);
}

static bt_err
take_echo(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_bool(r, at, &r->out->echo);
}

// Chat: a bool, the number is top_logprobs. Completions: the number of alternatives.
static bt_err
take_logprobs(bt_openai_reader *r, const bt_json_at *at)
{
    bool on = true;
    bt_err err = r->out->kind == BT_OPENAI_CHAT
                     ? bt_openai_read_bool(r, at, &on)
                     : bt_openai_read_count(r, at, 0, BT_TOP_LOGPROBS_MAX, &r->out->sampling.top_logprobs);

    r->out->logprobs = r->out->sampling.logprobs = on;
    return err;
}

static bt_err
take_top_logprobs(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_count(r, at, 0, BT_TOP_LOGPROBS_MAX, &r->out->sampling.top_logprobs);
}

static bool
parse_id(bt_str key, uint32_t vocab, int32_t *out)
{
    int64_t value = 0;

    if (key.len == 0 || key.len > 9) {
        return false;
    }
    for (size_t i = 0; i < key.len; i++) {
        if (key.data[i] < '0' || key.data[i] > '9') {
            return false;
        }
        value = value * 10 + (key.data[i] - '0');
    }
    *out = (int32_t)value;
    return vocab == 0 || value < vocab;
}

static bt_err
take_logit_bias(bt_openai_reader *r, const bt_json_at *at)
{
    bt_sampling *sampling = &r->out->sampling;
    bt_json_at member;
    void *step = NULL;
    bt_err err;

    if (bt_json_as_object(at, &r->why) != BT_OK) {
        return bt_openai_refuse(r, at);
    }
    if (bt_json_count(at) > BT_LOGIT_BIAS_MAX) {
        return bt_openai_refuse_with(r, at, NULL, "more than 300 tokens");
    }
    while (bt_json_next(at, &step, &member)) {
        if (!parse_id(member.key, r->limits->vocab, &sampling->bias_ids[sampling->bias_count])) {
            return bt_openai_refuse_with(r, &member, NULL, "not a token id of this model");
        }
        if ((err = bt_openai_read_float(r, &member, -100, 100, &sampling->bias_values[sampling->bias_count])) !=
            BT_OK) {
            return err;
        }
        sampling->bias_count++;
    }
    return BT_OK;
}

static bt_err
add_stop(bt_openai_reader *r, const bt_json_at *at)
{
    bt_str text;
    bt_err err = bt_openai_read_text(r, at, &text);

    if (err != BT_OK) {
        return err;
    }
    if ((err = bt_stop_strings_add(&r->out->stops, text, &r->why)) != BT_OK) {
        return bt_openai_refuse(r, at);
    }
    return BT_OK;
}

static bt_err
take_stop(bt_openai_reader *r, const bt_json_at *at)
{
    size_t count = 0;
    bt_err err = BT_OK;

    if (bt_json_type_of(at) == BT_JSON_TEXT) {
        return add_stop(r, at);
    }
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return bt_openai_refuse_with(r, at, NULL, "expected a string or an array of strings");
    }
    if ((count = bt_json_count(at)) > BT_STOP_MAX) {
        return bt_openai_refuse_with(r, at, NULL, "more than 16 strings");
    }
    for (size_t i = 0; i < count && err == BT_OK; i++) {
        bt_json_at item = bt_json_item(at, i);

        err = add_stop(r, &item);
    }
    return err;
}

static bt_err
take_generation_prompt(bt_openai_reader *r, const bt_json_at *at)
{
    return bt_openai_read_bool(r, at, &r->out->add_generation_prompt);
}

// ---- parameters that we have only one value for ----

bt_err
bt_openai_take_only(bt_openai_reader *r, const bt_json_at *at, const char *const *values)
{
    bt_buf buf;
    bool same = false;

    bt_buf_init(&buf, 4096);
    bt_json_append_value(&buf, at);
    for (; *values != NULL && !buf.failed; values++) {
        same |= strcmp(buf.data, *values) == 0;
    }
    bt_buf_fini(&buf);
    return same ? BT_OK : bt_openai_refuse_with(r, at, "unsupported_parameter", "not supported by this server");
}

static const char *const no[] = {"false", NULL};
static const char *const text_format[] = {"{\"type\":\"text\"}", NULL};
static const char *const text_only[] = {"[\"text\"]", NULL};
static const char *const none[] = {"\"none\"", NULL};
static const char *const any_tier[] = {"\"auto\"", "\"default\"", NULL};
static const char *const one[] = {"1", NULL};

#define SAMPLING                                                                                                       \
    {"model", take_model, NULL}, {"stream", take_stream, NULL}, {"stream_options", take_stream_options, NULL},         \
        {"max_tokens", take_max_tokens, NULL}, {"n", take_n, NULL}, {"seed", take_seed, NULL},                         \
        {"temperature", take_temperature, NULL}, {"top_p", take_top_p, NULL}, {"top_k", take_top_k, NULL},             \
        {"min_p", take_min_p, NULL}, {"presence_penalty", take_presence_penalty, NULL},                                \
        {"frequency_penalty", take_frequency_penalty, NULL}, {"repetition_penalty", take_repetition_penalty, NULL},    \
        {"logit_bias", take_logit_bias, NULL}, {"stop", take_stop, NULL}, {"user", take_user, NULL},                   \
        {"ignore_eos", take_ignore_eos, NULL},                                                                         \
    {                                                                                                                  \
        "logprobs", take_logprobs, NULL                                                                                \
    }

const bt_openai_parameter bt_openai_chat_parameters[] = {
    SAMPLING,
    {"messages", bt_openai_take_messages, NULL},
    {"max_completion_tokens", take_max_tokens, NULL},
    {"top_logprobs", take_top_logprobs, NULL},
    {"chat_template_kwargs", bt_openai_take_template_kwargs, NULL},
    {"add_generation_prompt", take_generation_prompt, NULL},
    {"response_format", NULL, text_format},
    {"modalities", NULL, text_only},
    {"tool_choice", NULL, none},
    {"function_call", NULL, none},
    {"service_tier", NULL, any_tier},
    {"store", NULL, no},
    {NULL, NULL, NULL},
};

const bt_openai_parameter bt_openai_text_parameters[] = {
    SAMPLING,           {"prompt", bt_openai_take_prompt, NULL}, {"echo", take_echo, NULL}, {"best_of", NULL, one},
    {NULL, NULL, NULL},
};

static bt_err
take_special(bt_openai_reader *r, const bt_json_at *at)
{
    // Kept where parse_tokenize finds it: the body has no stream.
    return bt_openai_read_bool(r, at, &r->out->stream);
}

const bt_openai_parameter bt_openai_tokenize_parameters[] = {
    {"model", take_model, NULL},
    {"prompt", bt_openai_take_prompt, NULL},
    {"messages", bt_openai_take_messages, NULL},
    {"add_special_tokens", take_special, NULL},
    {"chat_template_kwargs", bt_openai_take_template_kwargs, NULL},
    {"add_generation_prompt", take_generation_prompt, NULL},
    {NULL, NULL, NULL},
};

const bt_openai_parameter bt_openai_detokenize_parameters[] = {
    {"model", take_model, NULL},
    {"tokens", bt_openai_take_tokens, NULL},
    {NULL, NULL, NULL},
};
