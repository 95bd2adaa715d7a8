// Reading request bodies. Each endpoint has a table of all the names it knows; whatever is not in it is refused by its name.
#include "router/openai_read.h"

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
    error->retry_after = 0;
    snprintf(error->param, sizeof error->param, "%s", param != NULL ? param : "");
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    // A cut must not leave half a character.
    error->message[bt_utf8_valid_prefix(error->message, strlen(error->message))] = 0;
    error->param[bt_utf8_valid_prefix(error->param, strlen(error->param))] = 0;
    return err;
}

static bt_err
take_member(bt_openai_reader *r, const bt_openai_parameter *parameters, const bt_json_at *member)
{
    for (; parameters->name != NULL; parameters++) {
        if (bt_str_is(member->key, parameters->name)) {
            return parameters->take != NULL ? parameters->take(r, member)
                                            : bt_openai_take_only(r, member, parameters->values);
        }
    }
    return bt_openai_refuse_with(r, member, "unsupported_parameter", "not supported by this server");
}

// An empty array or object is nothing, except where it was asked for by its name.
static bool
may_be_empty(bt_str key)
{
    return bt_str_is(key, "messages") || bt_str_is(key, "prompt") || bt_str_is(key, "tokens");
}

static bt_err
take_members(bt_openai_reader *r, const bt_openai_parameter *parameters, const bt_json_at *root)
{
    bt_json_at member;
    void *step = NULL;
    bt_err err;

    if (bt_json_as_object(root, &r->why) != BT_OK) {
        return bt_openai_refuse(r, root);
    }
    while (bt_json_next(root, &step, &member)) {
        if (!bt_openai_says_something(&member) && !(may_be_empty(member.key) && bt_json_given(&member))) {
            continue;
        }
        if ((err = take_member(r, parameters, &member)) != BT_OK) {
            return err;
        }
    }
    return BT_OK;
}

static bt_err
take_all(bt_openai_reader *r, const bt_openai_parameter *parameters, bt_str body)
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
missing(bt_openai_reader *r, const char *name)
{
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, name, "%s: missing", name);
}

static bt_err
clash(bt_openai_reader *r, const char *name, const char *words)
{
    return bt_openai_fail(r->error, BT_ERR_INVALID, 400, NULL, name, "%s: %s", name, words);
}

static bt_err
check_whole(bt_openai_reader *r)
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

void
bt_openai_request_init(bt_openai_request *out, bt_openai_kind kind, const bt_openai_limits *limits)
{
    memset(out, 0, sizeof *out);
    out->kind = kind;
    out->n = 1;
    out->max_tokens = UINT32_MAX;
    out->add_generation_prompt = true;
    out->sampling.temperature = out->sampling.top_p = out->sampling.repetition_penalty = 1;
    bt_arena_init(&out->arena, limits->arena_bytes);
}

static void
begin(bt_openai_reader *r, bt_openai_request *out, bt_openai_kind kind, const bt_openai_limits *limits,
      bt_openai_error *error)
{
    *r = (bt_openai_reader){.out = out, .limits = limits, .error = error};
    bt_openai_request_init(out, kind, limits);
}

bt_err
bt_openai_parse(bt_openai_request *out, bt_openai_kind kind, bt_str body, const bt_openai_limits *limits,
                bt_openai_error *error)
{
    bt_openai_reader r;
    bt_err err;

    begin(&r, out, kind, limits, error);
    if ((err = take_all(&r, kind == BT_OPENAI_CHAT ? bt_openai_chat_parameters : bt_openai_text_parameters, body)) !=
            BT_OK ||
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
    bt_openai_reader r;
    bt_err err;

    begin(&r, out, BT_OPENAI_TEXT, limits, error);
    out->stream = true;
    if ((err = take_all(&r, bt_openai_tokenize_parameters, body)) == BT_OK && out->messages_json.len == 0 &&
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
    bt_openai_reader r;
    bt_err err;

    begin(&r, out, BT_OPENAI_TEXT, limits, error);
    if ((err = take_all(&r, bt_openai_detokenize_parameters, body)) == BT_OK && out->prompt_count == 0) {
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
