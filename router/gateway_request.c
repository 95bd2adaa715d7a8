// A call's arguments as the gateway gets them → the request that HTTP's bodies become too. On a text worker.
#include "router/gateway_impl.h"

#include "common/json/write.h"

#include <string.h>

typedef struct {
    bt_openai_request *out;
    const bt_openai_limits *limits;
    bt_openai_error *error;
} reader;

static bt_err
refuse(const reader *r, const char *field, const char *words)
{
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, field, "%s: %s", field, words);
}

static bt_err
out_of_room(const reader *r, const char *field)
{
    return bt_openai_fail(r->error, BT_ERR_TOO_LONG, 400, NULL, field, "%s: larger than this server takes", field);
}

static bt_err
refuse_body(const reader *r, bt_err err)
{
    return bt_openai_fail(r->error, err, 400, NULL, "body", "body: %s",
                          err == BT_ERR_TOO_LONG ? "larger than this server takes"
                                                 : "not the arguments of this method, or more of them than may be");
}

static bool
is_text(bt_str text)
{
    return bt_utf8_valid_prefix(text.data, text.len) == text.len;
}

// ---- what is to be read ----

static bt_err
write_message(const reader *r, const bt_gateway_message *message, bt_json_writer *w)
{
    const char *role = bt_openai_role(message->role);

    if (role == NULL) {
        return refuse(r, "chat.messages.role", "not one of system, developer, user, assistant");
    }
    if (!is_text(message->content) || !is_text(message->name)) {
        return refuse(r, "chat.messages", "not UTF-8");
    }
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "role", bt_str_of(role));
    bt_json_put_text(w, "content", message->content);
    if (message->name.len != 0) {
        bt_json_put_text(w, "name", message->name);
    }
    bt_json_end(w);
    return BT_OK;
}

static bt_err
write_messages(const reader *r, const bt_gateway_input *input, bt_buf *buf)
{
    bt_json_writer w;
    bt_err err = BT_OK;

    bt_json_write(&w, buf);
    bt_json_begin_array(&w, NULL);
    for (uint32_t i = 0; i < input->message_count && err == BT_OK; i++) {
        err = write_message(r, &input->messages[i], &w);
    }
    if (err == BT_OK) {
        bt_json_end(&w);
        err = buf->failed ? out_of_room(r, "chat.messages") : BT_OK;
    }
    return err;
}

// The template's variables have to be an object.
static bt_err
take_template_json(const reader *r, bt_str text)
{
    bt_json_limits limits = {.bytes_max = text.len + 1, .refuse_duplicates = true};
    bt_why why = {""};
    bt_json *document;
    bt_json_at root;
    bool good;

    if (text.len == 0) {
        return BT_OK;
    }
    if (bt_json_parse(&document, text, &limits, &why) != BT_OK) {
        return refuse(r, "chat.template_json", why.text);
    }
    root = bt_json_root(document);
    good = bt_json_type_of(&root) == BT_JSON_OBJECT;
    bt_json_close(document);
    r->out->extra_json = text;
    return good ? BT_OK : refuse(r, "chat.template_json", "not an object");
}

static bt_err
take_chat(const reader *r, const bt_gateway_input *input)
{
    bt_openai_request *out = r->out;
    char *copy = NULL;
    bt_buf buf;
    bt_err err;

    if (input->message_count == 0) {
        return refuse(r, "chat.messages", "must not be empty");
    }
    bt_buf_init(&buf, r->limits->arena_bytes);
    if ((err = write_messages(r, input, &buf)) == BT_OK) {
        copy = bt_arena_copy(&out->arena, buf.data, buf.len);
        out->messages_json = (bt_str){copy, buf.len};
        err = copy != NULL ? take_template_json(r, input->template_json) : out_of_room(r, "chat.messages");
    }
    bt_buf_fini(&buf);
    out->kind = BT_OPENAI_CHAT;
    out->add_generation_prompt = !input->no_generation_prompt;
    return err;
}

static bt_err
check_ids(const reader *r, const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (r->limits->vocab != 0 && (uint32_t)ids[i] >= r->limits->vocab)) {
            return refuse(r, "ids", "not a token id of this model");
        }
    }
    return BT_OK;
}

static bt_err
take_prompt(const reader *r, const bt_openai_prompt *prompt)
{
    bt_openai_request *out = r->out;

    if (prompt->is_ids && prompt->id_count == 0) {
        return refuse(r, "ids", "must not be empty");
    }
    if (!is_text(prompt->text)) {
        return refuse(r, "prompt", "not UTF-8");
    }
    if ((out->prompts = bt_arena_alloc(&out->arena, sizeof *out->prompts)) == NULL) {
        return out_of_room(r, "prompt");
    }
    *out->prompts = *prompt;
    out->prompt_count = 1;
    out->kind = BT_OPENAI_TEXT;
    return check_ids(r, prompt->ids, prompt->id_count);
}

static bt_err
take_input(const reader *r, const bt_gateway_input *input)
{
    bt_openai_prompt text = {.text = input->prompt};
    bt_openai_prompt ids = {.is_ids = true, .text = {"", 0}, .ids = input->ids, .id_count = input->id_count};

    switch (input->kind) {
    case BT_INPUT_CHAT:
        return take_chat(r, input);
    case BT_INPUT_PROMPT:
        return take_prompt(r, &text);
    case BT_INPUT_IDS:
        return take_prompt(r, &ids);
    default:
        return refuse(r, "input", "missing: chat, prompt or ids");
    }
}

// ---- how it is to be answered ----

static bt_err
check_range(const reader *r, const char *field, float value, float min, float max)
{
    if (value >= min && value <= max) { // a NaN is not
        return BT_OK;
    }
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, field, "%s: must lie between %g and %g", field,
                          (double)min, (double)max);
}

static bt_err
check_bias(const reader *r, const bt_sampling *sampling)
{
    bt_err err = check_ids(r, sampling->bias_ids, sampling->bias_count);

    for (uint32_t i = 0; i < sampling->bias_count && err == BT_OK; i++) {
        err = check_range(r, "bias_values", sampling->bias_values[i], -100, 100);
    }
    return err;
}

// The ranges are HTTP's (router/openai_parameters.c).
static bt_err
check_sampling(const reader *r, const bt_sampling *sampling)
{
    bt_err err;

    if ((err = check_range(r, "temperature", sampling->temperature, 0, 2)) != BT_OK ||
        (err = check_range(r, "top_p", sampling->top_p, 0, 1)) != BT_OK ||
        (err = check_range(r, "min_p", sampling->min_p, 0, 1)) != BT_OK ||
        (err = check_range(r, "presence_penalty", sampling->presence_penalty, -2, 2)) != BT_OK ||
        (err = check_range(r, "frequency_penalty", sampling->frequency_penalty, -2, 2)) != BT_OK ||
        (err = check_range(r, "repetition_penalty", sampling->repetition_penalty, 0.01f, 10)) != BT_OK) {
        return err;
    }
    if (sampling->top_k > INT32_MAX) {
        return refuse(r, "top_k", "too large");
    }
    if (sampling->top_logprobs > BT_TOP_LOGPROBS_MAX) {
        return refuse(r, "top_logprobs", "more than 20");
    }
    if (sampling->top_logprobs != 0 && !sampling->logprobs) {
        return refuse(r, "top_logprobs", "only together with logprobs");
    }
    return check_bias(r, sampling);
}

static bt_err
take_lengths(const reader *r, const bt_gateway_generate *from)
{
    bt_openai_request *out = r->out;

    if (from->n > r->limits->choices_max) {
        return refuse(r, "n", "more answers than this server gives at once");
    }
    if (from->prompt_logprobs && !from->sampling.logprobs) {
        return refuse(r, "prompt_logprobs", "only together with logprobs");
    }
    if (from->max_tokens == 0 && !from->prompt_logprobs) {
        return refuse(r, "max_tokens", "0 only together with prompt_logprobs");
    }
    if (from->max_tokens != UINT32_MAX && from->max_tokens > INT32_MAX) {
        return refuse(r, "max_tokens", "too large");
    }
    out->n = from->n;
    out->max_tokens = from->max_tokens;
    out->prompt_logprobs = from->prompt_logprobs;
    return BT_OK;
}

static bt_err
take_stops(const reader *r, const bt_gateway_generate *from)
{
    bt_why why = {""};

    for (uint32_t i = 0; i < from->stop_count; i++) {
        if (bt_stop_strings_add(&r->out->stops, from->stops[i], &why) != BT_OK) {
            return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, "stop", "%s", why.text);
        }
    }
    return BT_OK;
}

static bt_err
take_generate(const reader *r, bt_str body, bt_wire_scratch *scratch)
{
    bt_openai_request *out = r->out;
    bt_gateway_generate from;
    bt_err err;

    if ((err = bt_gateway_read_generate(&from, body, scratch)) != BT_OK) {
        return refuse_body(r, err);
    }
    if ((err = take_input(r, &from.input)) != BT_OK || (err = take_lengths(r, &from)) != BT_OK ||
        (err = check_sampling(r, &from.sampling)) != BT_OK || (err = take_stops(r, &from)) != BT_OK) {
        return err;
    }
    out->sampling = from.sampling;
    if (out->sampling.top_p < 1e-6f) {
        out->sampling.top_p = 1e-6f; // nothing but the likeliest token: 0 itself would mean an empty set
    }
    out->logprobs = from.sampling.logprobs;
    out->seed_given = from.seed_given;
    out->model = from.model;
    out->user = from.user;
    out->stream = true;
    return BT_OK;
}

static bt_err
take_tokenize(const reader *r, bt_str body, bt_wire_scratch *scratch, bool *special)
{
    bt_gateway_tokenize from;
    bt_err err = bt_gateway_read_tokenize(&from, body, scratch);

    if (err != BT_OK) {
        return refuse_body(r, err);
    }
    r->out->model = from.model;
    *special = !from.plain;
    return take_input(r, &from.input);
}

static bt_err
take_detokenize(const reader *r, bt_str body, bt_wire_scratch *scratch)
{
    bt_openai_prompt prompt = {.is_ids = true, .text = {"", 0}};
    bt_gateway_detokenize from;
    bt_err err = bt_gateway_read_detokenize(&from, body, scratch);

    if (err != BT_OK) {
        return refuse_body(r, err);
    }
    r->out->model = from.model;
    prompt.ids = from.ids;
    prompt.id_count = from.id_count;
    return take_prompt(r, &prompt);
}

bt_err
bt_gateway_parse(bt_text_job *job, const bt_openai_limits *limits, bool *special)
{
    reader r = {&job->request, limits, &job->error};
    bt_str body = {job->body.data != NULL ? job->body.data : "", job->body.len};
    bt_wire_scratch scratch;
    // Packed ids take four times their bytes; small messages by the thousand take more and are refused.
    size_t bytes = 4 * body.len + (64u << 10);
    void *memory;
    bt_err err;

    bt_openai_request_init(r.out, BT_OPENAI_TEXT, limits);
    memory = bt_arena_alloc(&r.out->arena, bytes);
    bt_wire_scratch_init(&scratch, memory, bytes);
    if (memory == NULL) {
        err = refuse_body(&r, BT_ERR_TOO_LONG);
    } else if (job->task == BT_TEXT_COMPLETE) {
        err = take_generate(&r, body, &scratch);
    } else {
        err = job->task == BT_TEXT_TOKENIZE ? take_tokenize(&r, body, &scratch, special)
                                            : take_detokenize(&r, body, &scratch);
    }
    if (err != BT_OK) {
        bt_openai_request_fini(r.out);
    }
    return err;
}
