// Writing answers and stream events. Field for field what OpenAI sends, since clients are typed by it.
#include "router/openai.h"

#include <math.h>
#include <stdio.h>

void
bt_openai_write_error(bt_buf *out, const bt_openai_error *error)
{
    bt_json_writer w;

    bt_json_write(&w, out);
    bt_json_begin_object(&w, NULL);
    bt_json_begin_object(&w, "error");
    bt_json_put_text(&w, "message", bt_str_of(error->message));
    bt_json_put_text(&w, "type", bt_str_of(error->type));
    if (error->param[0] != 0) {
        bt_json_put_text(&w, "param", bt_str_of(error->param));
    } else {
        bt_json_put_null(&w, "param");
    }
    if (error->code != NULL) {
        bt_json_put_text(&w, "code", bt_str_of(error->code));
    } else {
        bt_json_put_null(&w, "code");
    }
    bt_json_end(&w);
    bt_json_end(&w);
}

// ---- log-probabilities ----

void
bt_openai_logprobs_init(bt_openai_logprobs *logprobs, size_t limit)
{
    logprobs->count = logprobs->offset = 0;
    bt_buf_init(&logprobs->items, limit);
    bt_buf_init(&logprobs->logprobs, limit);
    bt_buf_init(&logprobs->tops, limit);
    bt_buf_init(&logprobs->offsets, limit);
}

void
bt_openai_logprobs_fini(bt_openai_logprobs *logprobs)
{
    bt_buf_fini(&logprobs->items);
    bt_buf_fini(&logprobs->logprobs);
    bt_buf_fini(&logprobs->tops);
    bt_buf_fini(&logprobs->offsets);
}

void
bt_openai_logprobs_clear(bt_openai_logprobs *logprobs)
{
    logprobs->count = 0;
    bt_buf_clear(&logprobs->items);
    bt_buf_clear(&logprobs->logprobs);
    bt_buf_clear(&logprobs->tops);
    bt_buf_clear(&logprobs->offsets);
}

// JSON has no infinity; -9999 is what OpenAI and vLLM write for "never".
static double
no_infinity(float logprob)
{
    return isfinite(logprob) ? (double)logprob : -9999.0;
}

static void
put_token(bt_json_writer *w, const bt_openai_vocab *vocab, int32_t id, float logprob)
{
    bt_str bytes = vocab->bytes(vocab->self, id);

    bt_json_put_text(w, "token", bytes);
    bt_json_put_real(w, "logprob", no_infinity(logprob));
    bt_json_begin_array(w, "bytes");
    for (size_t i = 0; i < bytes.len; i++) {
        bt_json_put_int(w, NULL, (unsigned char)bytes.data[i]);
    }
    bt_json_end(w);
}

static void
add_chat(bt_openai_logprobs *logprobs, const bt_openai_vocab *vocab, const bt_token_result *result)
{
    bt_json_writer w;

    bt_json_write(&w, &logprobs->items);
    bt_json_begin_object(&w, NULL);
    put_token(&w, vocab, result->id, result->logprob);
    bt_json_begin_array(&w, "top_logprobs");
    for (uint32_t i = 0; i < result->top_count; i++) {
        bt_json_begin_object(&w, NULL);
        put_token(&w, vocab, result->top_ids[i], result->top_logprobs[i]);
        bt_json_end(&w);
    }
    bt_json_end(&w);
    bt_json_end(&w);
}

static uint32_t
characters(bt_str text)
{
    uint32_t count = 0;

    for (size_t i = 0; i < text.len; i++) {
        count += (text.data[i] & 0xc0) != 0x80;
    }
    return count;
}

// Two ids may have the same text (a token, and a byte of it): the likelier one comes first and keeps the name.
static bool
named_before(const bt_openai_vocab *vocab, const bt_token_result *result, uint32_t rank)
{
    bt_str text = vocab->bytes(vocab->self, result->top_ids[rank]);

    for (uint32_t i = 0; i < rank; i++) {
        if (bt_str_equal(vocab->bytes(vocab->self, result->top_ids[i]), text)) {
            return true;
        }
    }
    return false;
}

static void
add_top(bt_buf *tops, bt_str text, float logprob)
{
    char number[BT_REAL_TEXT_BYTES];

    bt_json_append_text(tops, text);
    bt_buf_append_char(tops, ':');
    bt_buf_append(tops, number, bt_real_text(no_infinity(logprob), number));
}

// The likeliest, and the token itself where it is none of them: "up to logprobs+1 elements".
static void
add_tops(bt_buf *tops, const bt_openai_vocab *vocab, const bt_token_result *result)
{
    bt_str own = vocab->bytes(vocab->self, result->id);
    bool has_own = false;

    bt_buf_append_char(tops, '{');
    for (uint32_t i = 0; i < result->top_count; i++) {
        bt_str text = vocab->bytes(vocab->self, result->top_ids[i]);

        if (named_before(vocab, result, i)) {
            continue;
        }
        bt_buf_append_text(tops, i != 0 ? "," : "");
        add_top(tops, text, result->top_logprobs[i]);
        has_own |= bt_str_equal(text, own);
    }
    if (!has_own) {
        bt_buf_append_text(tops, result->top_count != 0 ? "," : "");
        add_top(tops, own, result->logprob);
    }
    bt_buf_append_char(tops, '}');
}

static void
add_text(bt_openai_logprobs *logprobs, const bt_openai_vocab *vocab, const bt_token_result *result, bool known)
{
    bt_str bytes = vocab->bytes(vocab->self, result->id);
    char number[BT_REAL_TEXT_BYTES];

    bt_json_append_text(&logprobs->items, bytes);
    bt_buf_printf(&logprobs->offsets, "%u", logprobs->offset);
    if (known) {
        bt_buf_append(&logprobs->logprobs, number, bt_real_text(no_infinity(result->logprob), number));
        add_tops(&logprobs->tops, vocab, result);
    } else {
        bt_buf_append_text(&logprobs->logprobs, "null");
        bt_buf_append_text(&logprobs->tops, "null");
    }
    logprobs->offset += characters(bytes);
}

void
bt_openai_logprobs_add(bt_openai_logprobs *logprobs, bt_openai_kind kind, const bt_openai_vocab *vocab,
                       const bt_token_result *result, bool known)
{
    const char *comma = logprobs->count++ != 0 ? "," : "";

    bt_buf_append_text(&logprobs->items, comma);
    if (kind == BT_OPENAI_CHAT) {
        add_chat(logprobs, vocab, result);
        return;
    }
    bt_buf_append_text(&logprobs->logprobs, comma);
    bt_buf_append_text(&logprobs->tops, comma);
    bt_buf_append_text(&logprobs->offsets, comma);
    add_text(logprobs, vocab, result, known);
}

static void
put_array(bt_json_writer *w, const char *key, const bt_buf *items)
{
    bt_json_begin_array(w, key);
    if (items->len != 0) {
        bt_json_put_raw(w, NULL, (bt_str){items->data, items->len});
    }
    bt_json_end(w);
}

static void
put_logprobs(bt_json_writer *w, bt_openai_kind kind, const bt_openai_logprobs *logprobs)
{
    if (logprobs == NULL) {
        bt_json_put_null(w, "logprobs");
        return;
    }
    bt_json_begin_object(w, "logprobs");
    if (kind == BT_OPENAI_CHAT) {
        put_array(w, "content", &logprobs->items);
        bt_json_put_null(w, "refusal");
    } else {
        put_array(w, "tokens", &logprobs->items);
        put_array(w, "token_logprobs", &logprobs->logprobs);
        put_array(w, "top_logprobs", &logprobs->tops);
        put_array(w, "text_offset", &logprobs->offsets);
    }
    bt_json_end(w);
}

// ---- events ----

static void
begin_event(bt_json_writer *w, bt_buf *out, const bt_openai_head *head)
{
    bt_buf_append_text(out, "data: ");
    bt_json_write(w, out);
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "id", bt_str_of(head->id));
    bt_json_put_text(w, "object",
                     bt_str_of(head->kind == BT_OPENAI_CHAT ? "chat.completion.chunk" : "text_completion"));
    bt_json_put_int(w, "created", head->created);
    bt_json_put_text(w, "model", head->model);
    bt_json_begin_array(w, "choices");
}

static void
end_event(bt_json_writer *w, bt_buf *out, const bt_openai_head *head)
{
    bt_json_end(w);
    if (head->include_usage) {
        bt_json_put_null(w, "usage");
    }
    bt_json_end(w);
    bt_buf_append_text(out, "\n\n");
}

static void
put_reason(bt_json_writer *w, const char *reason)
{
    if (reason != NULL) {
        bt_json_put_text(w, "finish_reason", bt_str_of(reason));
    } else {
        bt_json_put_null(w, "finish_reason");
    }
}

static void
write_chunk(bt_buf *out, const bt_openai_head *head, uint32_t index, bool role, const bt_str *text,
            const bt_openai_logprobs *logprobs, const char *reason)
{
    bt_json_writer w;

    begin_event(&w, out, head);
    bt_json_begin_object(&w, NULL);
    bt_json_put_int(&w, "index", index);
    if (head->kind == BT_OPENAI_CHAT) {
        bt_json_begin_object(&w, "delta");
        if (role) {
            bt_json_put_text(&w, "role", bt_str_of("assistant"));
        }
        if (text != NULL) {
            bt_json_put_text(&w, "content", *text);
        }
        bt_json_end(&w);
    } else {
        bt_json_put_text(&w, "text", text != NULL ? *text : bt_str_of(""));
    }
    put_logprobs(&w, head->kind, logprobs);
    put_reason(&w, reason);
    bt_json_end(&w);
    end_event(&w, out, head);
}

void
bt_openai_write_role(bt_buf *out, const bt_openai_head *head, uint32_t index)
{
    bt_str empty = {"", 0};

    write_chunk(out, head, index, true, &empty, NULL, NULL);
}

void
bt_openai_write_delta(bt_buf *out, const bt_openai_head *head, uint32_t index, bt_str text,
                      const bt_openai_logprobs *logprobs)
{
    write_chunk(out, head, index, false, &text, logprobs, NULL);
}

void
bt_openai_write_finish(bt_buf *out, const bt_openai_head *head, uint32_t index, const char *reason)
{
    write_chunk(out, head, index, false, NULL, NULL, reason);
}

static void
put_usage(bt_json_writer *w, const bt_openai_usage *usage)
{
    bt_json_begin_object(w, "usage");
    bt_json_put_int(w, "prompt_tokens", usage->prompt_tokens);
    bt_json_put_int(w, "completion_tokens", usage->completion_tokens);
    bt_json_put_int(w, "total_tokens", (int64_t)usage->prompt_tokens + usage->completion_tokens);
    bt_json_begin_object(w, "prompt_tokens_details");
    bt_json_put_int(w, "cached_tokens", usage->cached_tokens);
    bt_json_end(w);
    bt_json_end(w);
}

void
bt_openai_write_usage(bt_buf *out, const bt_openai_head *head, const bt_openai_usage *usage)
{
    bt_json_writer w;

    begin_event(&w, out, head);
    bt_json_end(&w);
    put_usage(&w, usage);
    bt_json_end(&w);
    bt_buf_append_text(out, "\n\n");
}

void
bt_openai_write_error_event(bt_buf *out, const bt_openai_error *error)
{
    bt_buf_append_text(out, "data: ");
    bt_openai_write_error(out, error);
    bt_buf_append_text(out, "\n\n");
}

void
bt_openai_write_done(bt_buf *out)
{
    bt_buf_append_text(out, "data: [DONE]\n\n");
}

// ---- whole answers ----

void
bt_openai_begin_answer(bt_json_writer *w, bt_buf *out, const bt_openai_head *head)
{
    bt_json_write(w, out);
    bt_json_begin_object(w, NULL);
    bt_json_put_text(w, "id", bt_str_of(head->id));
    bt_json_put_text(w, "object", bt_str_of(head->kind == BT_OPENAI_CHAT ? "chat.completion" : "text_completion"));
    bt_json_put_int(w, "created", head->created);
    bt_json_put_text(w, "model", head->model);
    bt_json_begin_array(w, "choices");
}

void
bt_openai_put_choice(bt_json_writer *w, const bt_openai_head *head, uint32_t index, bt_str text,
                     const bt_openai_logprobs *logprobs, const char *reason)
{
    bt_json_begin_object(w, NULL);
    bt_json_put_int(w, "index", index);
    if (head->kind == BT_OPENAI_CHAT) {
        bt_json_begin_object(w, "message");
        bt_json_put_text(w, "role", bt_str_of("assistant"));
        bt_json_put_text(w, "content", text);
        bt_json_put_null(w, "refusal");
        bt_json_end(w);
    } else {
        bt_json_put_text(w, "text", text);
    }
    put_logprobs(w, head->kind, logprobs);
    put_reason(w, reason);
    bt_json_end(w);
}

void
bt_openai_end_answer(bt_json_writer *w, const bt_openai_usage *usage)
{
    bt_json_end(w);
    put_usage(w, usage);
    bt_json_end(w);
}
