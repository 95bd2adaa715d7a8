// Reading request bodies. Each endpoint has a table of all the names it knows; whatever is not in it is refused by its name.
#include "router/openai.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bt_err
bt_openai_fail(bt_openai_error *error, bt_err err, unsigned status, const char *code, const char *param,
               const char *format, ...)
{
    va_list args;

    error->status = status;
    error->type = status >= 500   ? "server_error"
                  : status == 401 ? "authentication_error"
                  : status == 429 ? "rate_limit_error"
                                  : "invalid_request_error";
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param != NULL ? param : "");
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    // A cut must not leave half a character.
    error->message[bt_utf8_valid_prefix(error->message, strlen(error->message))] = 0;
    error->param[bt_utf8_valid_prefix(error->param, strlen(error->param))] = 0;
    return err;
}

// What a reader needs at hand.
typedef struct {
    bt_openai_request *out;
    const bt_openai_limits *limits;
    bt_openai_error *error;
    bt_why why;
} reader;

// A getter has failed and said so in r->why: becomes a 400 with the parameter's path.
static bt_err
refuse(reader *r, const bt_json_at *at)
{
    char path[128];

    if (at->parent == NULL) {
        return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, NULL, "%s", r->why.text); // the body is no parameter
    }
    bt_json_path(at, path, sizeof path);
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, path, "%s", r->why.text);
}

static bt_err
refuse_with(reader *r, const bt_json_at *at, const char *code, const char *words)
{
    char path[128];

    bt_json_path(at, path, sizeof path);
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, code, path, "%s: %s", path, words);
}

static bt_err
out_of_room(reader *r, const bt_json_at *at)
{
    char path[128];

    bt_json_path(at, path, sizeof path);
    return bt_openai_fail(r->error, BT_ERR_TOO_LONG, 400, NULL, path, "%s: larger than this server takes", path);
}

// null, [] and {} say nothing; clients that send every field they know send these.
static bool
says_something(const bt_json_at *at)
{
    bt_json_type type = bt_json_type_of(at);

    return bt_json_given(at) && !((type == BT_JSON_ARRAY || type == BT_JSON_OBJECT) && bt_json_count(at) == 0);
}

// ---- values ----

static bt_err
read_text(reader *r, const bt_json_at *at, bt_str *out)
{
    return bt_json_as_text(at, out, &r->why) == BT_OK ? BT_OK : refuse(r, at);
}

// A text that outlives the document.
static bt_err
keep_text(reader *r, const bt_json_at *at, bt_str *out)
{
    bt_str text;
    bt_err err = read_text(r, at, &text);
    char *copy = err == BT_OK ? bt_arena_copy(&r->out->arena, text.data, text.len) : NULL;

    if (err != BT_OK) {
        return err;
    }
    if (copy == NULL) {
        return out_of_room(r, at);
    }
    *out = (bt_str){copy, text.len};
    return BT_OK;
}

static bt_err
read_bool(reader *r, const bt_json_at *at, bool *out)
{
    return bt_json_as_bool(at, out, &r->why) == BT_OK ? BT_OK : refuse(r, at);
}

static bt_err
read_int(reader *r, const bt_json_at *at, int64_t min, int64_t max, int64_t *out)
{
    return bt_json_as_int(at, min, max, out, &r->why) == BT_OK ? BT_OK : refuse(r, at);
}

static bt_err
read_float(reader *r, const bt_json_at *at, double min, double max, float *out)
{
    double value = 0;

    if (bt_json_as_real(at, min, max, &value, &r->why) != BT_OK) {
        return refuse(r, at);
    }
    *out = (float)value;
    return BT_OK;
}

static bt_err
read_count(reader *r, const bt_json_at *at, int64_t min, int64_t max, uint32_t *out)
{
    int64_t value = 0;
    bt_err err = read_int(r, at, min, max, &value);

    if (err == BT_OK) {
        *out = (uint32_t)value;
    }
    return err;
}

// ---- parameters, a function each ----

static bt_err
take_model(reader *r, const bt_json_at *at)
{
    return keep_text(r, at, &r->out->model);
}

static bt_err
take_stream(reader *r, const bt_json_at *at)
{
    return read_bool(r, at, &r->out->stream);
}

static bt_err
take_stream_options(reader *r, const bt_json_at *at)
{
    bt_json_at member;
    void *step = NULL;
    bt_err err;

    if (bt_json_as_object(at, &r->why) != BT_OK) {
        return refuse(r, at);
    }
    while (bt_json_next(at, &step, &member)) {
        if (!bt_json_given(&member)) {
            continue;
        }
        if (!bt_str_is(member.key, "include_usage")) {
            return refuse_with(r, &member, "unsupported_parameter", "not supported by this server");
        }
        if ((err = read_bool(r, &member, &r->out->include_usage)) != BT_OK) {
            return err;
        }
    }
    return BT_OK;
}

static bt_err
take_max_tokens(reader *r, const bt_json_at *at)
{
    // 0 scores a prompt and writes nothing: only together with echo, which check_whole looks at.
    uint32_t before = r->out->max_tokens, min = r->out->kind == BT_OPENAI_TEXT ? 0 : 1;
    bt_err err = read_count(r, at, min, INT32_MAX, &r->out->max_tokens);

    if (err == BT_OK && before != UINT32_MAX && before != r->out->max_tokens) {
        return refuse_with(r, at, NULL, "max_tokens and max_completion_tokens differ; send one of them");
    }
    return err;
}

static bt_err
take_n(reader *r, const bt_json_at *at)
{
    return read_count(r, at, 1, r->limits->choices_max, &r->out->n);
}

static bt_err
take_seed(reader *r, const bt_json_at *at)
{
    int64_t seed = 0;
    bt_err err = read_int(r, at, INT64_MIN, INT64_MAX, &seed);

    r->out->sampling.seed = (uint64_t)seed;
    r->out->seed_given = err == BT_OK;
    return err;
}

static bt_err
take_temperature(reader *r, const bt_json_at *at)
{
    return read_float(r, at, 0, 2, &r->out->sampling.temperature);
}

static bt_err
take_top_p(reader *r, const bt_json_at *at)
{
    bt_err err = read_float(r, at, 0, 1, &r->out->sampling.top_p);

    // Nothing but the likeliest token: 0 itself would mean an empty set.
    if (err == BT_OK && r->out->sampling.top_p < 1e-6f) {
        r->out->sampling.top_p = 1e-6f;
    }
    return err;
}

static bt_err
take_top_k(reader *r, const bt_json_at *at)
{
    int64_t value = 0;
    bt_err err = read_int(r, at, -1, INT32_MAX, &value);

    r->out->sampling.top_k = value > 0 ? (uint32_t)value : 0; // -1, as vLLM has it, is off too
    return err;
}

static bt_err
take_min_p(reader *r, const bt_json_at *at)
{
    return read_float(r, at, 0, 1, &r->out->sampling.min_p);
}

static bt_err
take_presence_penalty(reader *r, const bt_json_at *at)
{
    return read_float(r, at, -2, 2, &r->out->sampling.presence_penalty);
}

static bt_err
take_frequency_penalty(reader *r, const bt_json_at *at)
{
    return read_float(r, at, -2, 2, &r->out->sampling.frequency_penalty);
}

static bt_err
take_repetition_penalty(reader *r, const bt_json_at *at)
{
    return read_float(r, at, 0.01, 10, &r->out->sampling.repetition_penalty);
}

static bt_err
take_ignore_eos(reader *r, const bt_json_at *at)
{
    return read_bool(r, at, &r->out->sampling.ignore_eos);
}

static bt_err
take_user(reader *r, const bt_json_at *at)
{
    return keep_text(r, at, &r->out->user);
}

static bt_err
take_echo(reader *r, const bt_json_at *at)
{
    return read_bool(r, at, &r->out->echo);
}

// Chat: a bool, the number is top_logprobs. Completions: the number of alternatives.
static bt_err
take_logprobs(reader *r, const bt_json_at *at)
{
    bool on = true;
    bt_err err = r->out->kind == BT_OPENAI_CHAT
                     ? read_bool(r, at, &on)
                     : read_count(r, at, 0, BT_TOP_LOGPROBS_MAX, &r->out->sampling.top_logprobs);

    r->out->logprobs = r->out->sampling.logprobs = on;
    return err;
}

static bt_err
take_top_logprobs(reader *r, const bt_json_at *at)
{
    return read_count(r, at, 0, BT_TOP_LOGPROBS_MAX, &r->out->sampling.top_logprobs);
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
take_logit_bias(reader *r, const bt_json_at *at)
{
    bt_sampling *sampling = &r->out->sampling;
    bt_json_at member;
    void *step = NULL;
    bt_err err;

    if (bt_json_as_object(at, &r->why) != BT_OK) {
        return refuse(r, at);
    }
    if (bt_json_count(at) > BT_LOGIT_BIAS_MAX) {
        return refuse_with(r, at, NULL, "more than 300 tokens");
    }
    while (bt_json_next(at, &step, &member)) {
        if (!parse_id(member.key, r->limits->vocab, &sampling->bias_ids[sampling->bias_count])) {
            return refuse_with(r, &member, NULL, "not a token id of this model");
        }
        if ((err = read_float(r, &member, -100, 100, &sampling->bias_values[sampling->bias_count])) != BT_OK) {
            return err;
        }
        sampling->bias_count++;
    }
    return BT_OK;
}

static bt_err
add_stop(reader *r, const bt_json_at *at)
{
    bt_str text;
    bt_err err = read_text(r, at, &text);

    if (err != BT_OK) {
        return err;
    }
    if ((err = bt_stop_strings_add(&r->out->stops, text, &r->why)) != BT_OK) {
        return refuse(r, at);
    }
    return BT_OK;
}

static bt_err
take_stop(reader *r, const bt_json_at *at)
{
    size_t count = 0;
    bt_err err = BT_OK;

    if (bt_json_type_of(at) == BT_JSON_TEXT) {
        return add_stop(r, at);
    }
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return refuse_with(r, at, NULL, "expected a string or an array of strings");
    }
    if ((count = bt_json_count(at)) > BT_STOP_MAX) {
        return refuse_with(r, at, NULL, "more than 16 strings");
    }
    for (size_t i = 0; i < count && err == BT_OK; i++) {
        bt_json_at item = bt_json_item(at, i);

        err = add_stop(r, &item);
    }
    return err;
}

// ---- messages ----

// Content is a string, or an array of {"type": "text", "text": …}, which are joined.
static bt_err
join_parts(reader *r, const bt_json_at *content, bt_buf *joined)
{
    for (size_t i = 0; i < bt_json_count(content); i++) {
        bt_json_at part = bt_json_item(content, i), type = bt_json_get(&part, "type"),
                   text = bt_json_get(&part, "text");
        bt_str words;
        bt_err err;

        if ((err = read_text(r, &type, &words)) != BT_OK) {
            return err;
        }
        if (!bt_str_is(words, "text")) {
            return refuse_with(r, &type, "unsupported_parameter", "only parts of type \"text\" are supported");
        }
        if ((err = read_text(r, &text, &words)) != BT_OK) {
            return err;
        }
        bt_buf_append(joined, words.data, words.len);
    }
    return BT_OK;
}

static bt_err
copy_content(reader *r, const bt_json_at *content, bt_json_writer *writer)
{
    bt_buf joined;
    bt_str text;
    bt_err err;

    if (bt_json_type_of(content) != BT_JSON_ARRAY) {
        if ((err = read_text(r, content, &text)) == BT_OK) {
            bt_json_put_text(writer, "content", text);
        }
        return err;
    }
    bt_buf_init(&joined, r->limits->arena_bytes);
    if ((err = join_parts(r, content, &joined)) == BT_OK) {
        bt_json_put_text(writer, "content", (bt_str){joined.data, joined.len});
        err = joined.failed ? out_of_room(r, content) : BT_OK;
    }
    bt_buf_fini(&joined);
    return err;
}

static const char *
role_of(bt_str role)
{
    return bt_str_is(role, "developer") || bt_str_is(role, "system") ? "system"
           : bt_str_is(role, "user")                                 ? "user"
           : bt_str_is(role, "assistant")                            ? "assistant"
                                                                     : NULL;
}

static bt_err
copy_message(reader *r, const bt_json_at *message, bt_json_writer *writer)
{
    bt_json_at role = bt_json_get(message, "role"), content = bt_json_get(message, "content"), member;
    void *step = NULL;
    bt_str text;
    bt_err err;

    if (bt_json_as_object(message, &r->why) != BT_OK) {
        return refuse(r, message);
    }
    if ((err = read_text(r, &role, &text)) != BT_OK) {
        return err;
    }
    if (role_of(text) == NULL) {
        return refuse_with(r, &role, NULL, "not one of system, developer, user, assistant");
    }
    bt_json_begin_object(writer, NULL);
    bt_json_put_text(writer, "role", bt_str_of(role_of(text)));
    if ((err = copy_content(r, &content, writer)) != BT_OK) {
        return err;
    }
    while (bt_json_next(message, &step, &member)) {
        if (bt_str_is(member.key, "role") || bt_str_is(member.key, "content") || !says_something(&member)) {
            continue;
        }
        if (!bt_str_is(member.key, "name")) {
            return refuse_with(r, &member, "unsupported_parameter", "not supported by this server");
        }
        if ((err = read_text(r, &member, &text)) != BT_OK) {
            return err;
        }
        bt_json_put_text(writer, "name", text);
    }
    bt_json_end(writer);
    return BT_OK;
}

static bt_err
keep(reader *r, const bt_json_at *at, bt_buf *from, bt_str *out)
{
    char *copy = from->failed ? NULL : bt_arena_copy(&r->out->arena, from->len != 0 ? from->data : "", from->len);

    if (copy == NULL) {
        return out_of_room(r, at);
    }
    *out = (bt_str){copy, from->len};
    return BT_OK;
}

static bt_err
take_messages(reader *r, const bt_json_at *at)
{
    bt_json_writer writer;
    size_t count = 0;
    bt_err err = BT_OK;
    bt_buf buf;

    if (bt_json_as_array(at, &count, &r->why) != BT_OK) {
        return refuse(r, at);
    }
    if (count == 0) {
        return refuse_with(r, at, NULL, "must not be empty");
    }
    bt_buf_init(&buf, r->limits->arena_bytes);
    bt_json_write(&writer, &buf);
    bt_json_begin_array(&writer, NULL);
    for (size_t i = 0; i < count && err == BT_OK; i++) {
        bt_json_at message = bt_json_item(at, i);

        err = copy_message(r, &message, &writer);
    }
    if (err == BT_OK) {
        bt_json_end(&writer);
        err = keep(r, at, &buf, &r->out->messages_json);
    }
    bt_buf_fini(&buf);
    return err;
}

static bt_err
take_template_kwargs(reader *r, const bt_json_at *at)
{
    bt_err err;
    bt_buf buf;

    if (bt_json_as_object(at, &r->why) != BT_OK) {
        return refuse(r, at);
    }
    bt_buf_init(&buf, r->limits->arena_bytes);
    bt_json_append_value(&buf, at);
    err = keep(r, at, &buf, &r->out->extra_json);
    bt_buf_fini(&buf);
    return err;
}

static bt_err
take_generation_prompt(reader *r, const bt_json_at *at)
{
    return read_bool(r, at, &r->out->add_generation_prompt);
}

// ---- prompts ----

static bt_err
take_ids(reader *r, const bt_json_at *at, bt_openai_prompt *prompt)
{
    size_t count = bt_json_count(at);
    int32_t *ids = count <= UINT32_MAX / sizeof(int32_t) ? bt_arena_alloc(&r->out->arena, count * sizeof *ids) : NULL;
    int64_t id = 0, last = r->limits->vocab != 0 ? (int64_t)r->limits->vocab - 1 : INT32_MAX;
    bt_err err;

    if (ids == NULL) {
        return out_of_room(r, at);
    }
    for (size_t i = 0; i < count; i++) {
        bt_json_at item = bt_json_item(at, i);

        if ((err = read_int(r, &item, 0, last, &id)) != BT_OK) {
            return err;
        }
        ids[i] = (int32_t)id;
    }
    *prompt = (bt_openai_prompt){.is_ids = true, .ids = ids, .id_count = (uint32_t)count};
    return BT_OK;
}

static bt_err
take_one_prompt(reader *r, const bt_json_at *at, bt_openai_prompt *prompt)
{
    if (bt_json_type_of(at) == BT_JSON_TEXT) {
        return keep_text(r, at, &prompt->text);
    }
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return refuse_with(r, at, NULL, "expected a string or an array of token ids");
    }
    return bt_json_count(at) != 0 ? take_ids(r, at, prompt) : refuse_with(r, at, NULL, "must not be empty");
}

// A string, an array of strings, of ids, or of arrays of ids.
static bt_err
take_prompt(reader *r, const bt_json_at *at)
{
    bt_json_at first = bt_json_item(at, 0);
    bool several = bt_json_type_of(at) == BT_JSON_ARRAY && bt_json_type_of(&first) != BT_JSON_INT;
    size_t count = several ? bt_json_count(at) : 1;
    bt_err err = BT_OK;

    if (count == 0) {
        return refuse_with(r, at, NULL, "must not be empty");
    }
    if (count > BT_OPENAI_PROMPTS_MAX || count > r->limits->choices_max) {
        return refuse_with(r, at, NULL, "more prompts than this server takes at once");
    }
    if ((r->out->prompts = bt_arena_alloc(&r->out->arena, count * sizeof *r->out->prompts)) == NULL) {
        return out_of_room(r, at);
    }
    for (size_t i = 0; i < count && err == BT_OK; i++) {
        bt_json_at item = several ? bt_json_item(at, i) : *at;

        err = take_one_prompt(r, &item, &r->out->prompts[i]);
    }
    r->out->prompt_count = (uint32_t)count;
    return err;
}

// ---- parameters that we have only one value for ----

static bt_err
take_only(reader *r, const bt_json_at *at, const char *const *values)
{
    bt_buf buf;
    bool same = false;

    bt_buf_init(&buf, 4096);
    bt_json_append_value(&buf, at);
    for (; *values != NULL && !buf.failed; values++) {
        same |= strcmp(buf.data, *values) == 0;
    }
    bt_buf_fini(&buf);
    return same ? BT_OK : refuse_with(r, at, "unsupported_parameter", "not supported by this server");
}

typedef struct {
    const char *name;
    bt_err (*take)(reader *r, const bt_json_at *at);
    const char *const *values; // with take == NULL: the values that mean what we do anyway
} parameter;

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

static const parameter chat_parameters[] = {
    SAMPLING,
    {"messages", take_messages, NULL},
    {"max_completion_tokens", take_max_tokens, NULL},
    {"top_logprobs", take_top_logprobs, NULL},
    {"chat_template_kwargs", take_template_kwargs, NULL},
    {"add_generation_prompt", take_generation_prompt, NULL},
    {"response_format", NULL, text_format},
    {"modalities", NULL, text_only},
    {"tool_choice", NULL, none},
    {"function_call", NULL, none},
    {"service_tier", NULL, any_tier},
    {"store", NULL, no},
    {NULL, NULL, NULL},
};

static const parameter text_parameters[] = {
    SAMPLING, {"prompt", take_prompt, NULL}, {"echo", take_echo, NULL}, {"best_of", NULL, one}, {NULL, NULL, NULL},
};

static bt_err
take_special(reader *r, const bt_json_at *at)
{
    // Kept where parse_tokenize finds it: the body has no stream.
    return read_bool(r, at, &r->out->stream);
}

static const parameter tokenize_parameters[] = {
    {"model", take_model, NULL},
    {"prompt", take_prompt, NULL},
    {"messages", take_messages, NULL},
    {"add_special_tokens", take_special, NULL},
    {"chat_template_kwargs", take_template_kwargs, NULL},
    {"add_generation_prompt", take_generation_prompt, NULL},
    {NULL, NULL, NULL},
};

static bt_err
take_tokens(reader *r, const bt_json_at *at)
{
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return refuse_with(r, at, NULL, "expected an array of token ids");
    }
    if ((r->out->prompts = bt_arena_alloc(&r->out->arena, sizeof *r->out->prompts)) == NULL) {
        return out_of_room(r, at);
    }
    r->out->prompt_count = 1;
    return take_ids(r, at, r->out->prompts);
}

static const parameter detokenize_parameters[] = {
    {"model", take_model, NULL},
    {"tokens", take_tokens, NULL},
    {NULL, NULL, NULL},
};

static bt_err
take_member(reader *r, const parameter *parameters, const bt_json_at *member)
{
    for (; parameters->name != NULL; parameters++) {
        if (bt_str_is(member->key, parameters->name)) {
            return parameters->take != NULL ? parameters->take(r, member) : take_only(r, member, parameters->values);
        }
    }
    return refuse_with(r, member, "unsupported_parameter", "not supported by this server");
}

// An empty array or object is nothing, except where it was asked for by its name.
static bool
may_be_empty(bt_str key)
{
    return bt_str_is(key, "messages") || bt_str_is(key, "prompt") || bt_str_is(key, "tokens");
}

static bt_err
take_members(reader *r, const parameter *parameters, const bt_json_at *root)
{
    bt_json_at member;
    void *step = NULL;
    bt_err err;

    if (bt_json_as_object(root, &r->why) != BT_OK) {
        return refuse(r, root);
    }
    while (bt_json_next(root, &step, &member)) {
        if (!says_something(&member) && !(may_be_empty(member.key) && bt_json_given(&member))) {
            continue;
        }
        if ((err = take_member(r, parameters, &member)) != BT_OK) {
            return err;
        }
    }
    return BT_OK;
}

static bt_err
take_all(reader *r, const parameter *parameters, bt_str body)
{
    bt_json_limits limits = {.bytes_max = body.len + 1, .refuse_duplicates = true};
    bt_json *document;
    bt_json_at root;
    bt_err err;

    if (bt_json_parse(&document, body, &limits, &r->why) != BT_OK) {
        return bt_openai_fail(r->error, BT_ERR_INVALID, 400, "invalid_json", NULL, "the body is not valid JSON: %s",
                              r->why.text);
    }
    root = bt_json_root(document);
    err = take_members(r, parameters, &root);
    bt_json_close(document);
    return err;
}

// ---- what holds between parameters ----

static bt_err
missing(reader *r, const char *name)
{
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, name, "%s: missing", name);
}

static bt_err
clash(reader *r, const char *name, const char *words)
{
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, name, "%s: %s", name, words);
}

static bt_err
check_whole(reader *r)
{
    const bt_openai_request *q = r->out;

    if (q->kind == BT_OPENAI_CHAT ? q->messages_json.len == 0 : q->prompt_count == 0) {
        return missing(r, q->kind == BT_OPENAI_CHAT ? "messages" : "prompt");
    }
    if (q->include_usage && !q->stream) {
        return clash(r, "stream_options", "only together with \"stream\": true");
    }
    if (q->sampling.top_logprobs != 0 && !q->logprobs) {
        return clash(r, "top_logprobs", "only together with \"logprobs\": true");
    }
    if (q->max_tokens == 0 && !q->echo) {
        return clash(r, "max_tokens", "0 only together with \"echo\": true");
    }
    if (q->kind == BT_OPENAI_TEXT && (uint64_t)q->n * q->prompt_count > r->limits->choices_max) {
        return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, "n",
                              "n: %u answers to %u prompts are more than the %u "
                              "that this server takes at once",
                              q->n, q->prompt_count, r->limits->choices_max);
    }
    return BT_OK;
}

static void
begin(reader *r, bt_openai_request *out, bt_openai_kind kind, const bt_openai_limits *limits, bt_openai_error *error)
{
    memset(out, 0, sizeof *out);
    *r = (reader){.out = out, .limits = limits, .error = error};
    out->kind = kind;
    out->n = 1;
    out->max_tokens = UINT32_MAX;
    out->add_generation_prompt = true;
    out->sampling.temperature = out->sampling.top_p = out->sampling.repetition_penalty = 1;
    bt_arena_init(&out->arena, limits->arena_bytes);
}

bt_err
bt_openai_parse(bt_openai_request *out, bt_openai_kind kind, bt_str body, const bt_openai_limits *limits,
                bt_openai_error *error)
{
    reader r;
    bt_err err;

    begin(&r, out, kind, limits, error);
    if ((err = take_all(&r, kind == BT_OPENAI_CHAT ? chat_parameters : text_parameters, body)) != BT_OK ||
        (err = check_whole(&r)) != BT_OK) {
        bt_openai_request_fini(out);
        return err;
    }
    if (kind == BT_OPENAI_TEXT && out->max_tokens == UINT32_MAX) {
        out->max_tokens = 16; // OpenAI's default here; chat's is the rest of the context
    }
    return BT_OK;
}

bt_err
bt_openai_parse_tokenize(bt_openai_request *out, bool *special, bt_str body, const bt_openai_limits *limits,
                         bt_openai_error *error)
{
    reader r;
    bt_err err;

    begin(&r, out, BT_OPENAI_TEXT, limits, error);
    out->stream = true;
    if ((err = take_all(&r, tokenize_parameters, body)) == BT_OK && out->messages_json.len == 0 &&
        (out->prompt_count != 1 || out->prompts[0].is_ids)) {
        err = clash(&r, "prompt", "expected a string, or messages instead of it");
    } else if (err == BT_OK && out->messages_json.len != 0 && out->prompt_count != 0) {
        err = clash(&r, "prompt", "not together with messages");
    }
    if (err != BT_OK) {
        bt_openai_request_fini(out);
        return err;
    }
    out->kind = out->messages_json.len != 0 ? BT_OPENAI_CHAT : BT_OPENAI_TEXT;
    *special = out->stream;
    return BT_OK;
}

bt_err
bt_openai_parse_detokenize(bt_openai_request *out, bt_str body, const bt_openai_limits *limits, bt_openai_error *error)
{
    reader r;
    bt_err err;

    begin(&r, out, BT_OPENAI_TEXT, limits, error);
    if ((err = take_all(&r, detokenize_parameters, body)) == BT_OK && out->prompt_count == 0) {
        err = missing(&r, "tokens");
    }
    if (err != BT_OK) {
        bt_openai_request_fini(out);
    }
    return err;
}

void
bt_openai_request_fini(bt_openai_request *request)
{
    bt_arena_fini(&request->arena);
    memset(request, 0, sizeof *request);
}
