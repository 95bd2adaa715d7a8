// What a model is to read: messages, prompts and ids. They outlive the document that they came in.
#include "router/openai_read.h"

// ---- messages ----

// Content is a string, or an array of {"type": "text", "text": …}, which are joined.
static bt_err
join_parts(bt_openai_reader *r, const bt_json_at *content, bt_buf *joined)
{
    for (size_t i = 0; i < bt_json_count(content); i++) {
        bt_json_at part = bt_json_item(content, i), type = bt_json_get(&part, "type"),
                   text = bt_json_get(&part, "text");
        bt_str words;
        bt_err err;

        if ((err = bt_openai_read_text(r, &type, &words)) != BT_OK) {
            return err;
        }
        if (!bt_str_is(words, "text")) {
            return bt_openai_refuse_with(r, &type, "unsupported_parameter",
                                         "only parts of type \"text\" are supported");
        }
        if ((err = bt_openai_read_text(r, &text, &words)) != BT_OK) {
            return err;
        }
        bt_buf_append(joined, words.data, words.len);
    }
    return BT_OK;
}

static bt_err
copy_content(bt_openai_reader *r, const bt_json_at *content, bt_json_writer *writer)
{
    bt_buf joined;
    bt_str text;
    bt_err err;

    if (bt_json_type_of(content) != BT_JSON_ARRAY) {
        if ((err = bt_openai_read_text(r, content, &text)) == BT_OK) {
            bt_json_put_text(writer, "content", text);
        }
        return err;
    }
    bt_buf_init(&joined, r->limits->arena_bytes);
    if ((err = join_parts(r, content, &joined)) == BT_OK) {
        bt_json_put_text(writer, "content", (bt_str){joined.data, joined.len});
        err = joined.failed ? bt_openai_out_of_room(r, content) : BT_OK;
    }
    bt_buf_fini(&joined);
    return err;
}

const char *
bt_openai_role(bt_str role)
{
    return bt_str_is(role, "developer") || bt_str_is(role, "system") ? "system"
           : bt_str_is(role, "user")                                 ? "user"
           : bt_str_is(role, "assistant")                            ? "assistant"
                                                                     : NULL;
}

static bt_err
copy_message(bt_openai_reader *r, const bt_json_at *message, bt_json_writer *writer)
{
    bt_json_at role = bt_json_get(message, "role"), content = bt_json_get(message, "content"), member;
    void *step = NULL;
    bt_str text;
    bt_err err;

    if (bt_json_as_object(message, &r->why) != BT_OK) {
        return bt_openai_refuse(r, message);
    }
    if ((err = bt_openai_read_text(r, &role, &text)) != BT_OK) {
        return err;
    }
    if (bt_openai_role(text) == NULL) {
        return bt_openai_refuse_with(r, &role, NULL, "not one of system, developer, user, assistant");
    }
    bt_json_begin_object(writer, NULL);
    bt_json_put_text(writer, "role", bt_str_of(bt_openai_role(text)));
    if ((err = copy_content(r, &content, writer)) != BT_OK) {
        return err;
    }
    while (bt_json_next(message, &step, &member)) {
        if (bt_str_is(member.key, "role") || bt_str_is(member.key, "content") || !bt_openai_says_something(&member)) {
            continue;
        }
        if (!bt_str_is(member.key, "name")) {
            return bt_openai_refuse_with(r, &member, "unsupported_parameter", "not supported by this server");
        }
        if ((err = bt_openai_read_text(r, &member, &text)) != BT_OK) {
            return err;
        }
        bt_json_put_text(writer, "name", text);
    }
    bt_json_end(writer);
    return BT_OK;
}

static bt_err
keep(bt_openai_reader *r, const bt_json_at *at, bt_buf *from, bt_str *out)
{
    char *copy = from->failed ? NULL : bt_arena_copy(&r->out->arena, from->len != 0 ? from->data : "", from->len);

    if (copy == NULL) {
        return bt_openai_out_of_room(r, at);
    }
    *out = (bt_str){copy, from->len};
    return BT_OK;
}

bt_err
bt_openai_take_messages(bt_openai_reader *r, const bt_json_at *at)
{
    bt_json_writer writer;
    size_t count = 0;
    bt_err err = BT_OK;
    bt_buf buf;

    if (bt_json_as_array(at, &count, &r->why) != BT_OK) {
        return bt_openai_refuse(r, at);
    }
    if (count == 0) {
        return bt_openai_refuse_with(r, at, NULL, "must not be empty");
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

bt_err
bt_openai_take_template_kwargs(bt_openai_reader *r, const bt_json_at *at)
{
    bt_err err;
    bt_buf buf;

    if (bt_json_as_object(at, &r->why) != BT_OK) {
        return bt_openai_refuse(r, at);
    }
    bt_buf_init(&buf, r->limits->arena_bytes);
    bt_json_append_value(&buf, at);
    err = keep(r, at, &buf, &r->out->extra_json);
    bt_buf_fini(&buf);
    return err;
}

// ---- prompts ----

static bt_err
take_ids(bt_openai_reader *r, const bt_json_at *at, bt_openai_prompt *prompt)
{
    size_t count = bt_json_count(at);
    int32_t *ids = count <= UINT32_MAX / sizeof(int32_t) ? bt_arena_alloc(&r->out->arena, count * sizeof *ids) : NULL;
    int64_t id = 0, last = r->limits->vocab != 0 ? (int64_t)r->limits->vocab - 1 : INT32_MAX;
    bt_err err;

    if (ids == NULL) {
        return bt_openai_out_of_room(r, at);
    }
    for (size_t i = 0; i < count; i++) {
        bt_json_at item = bt_json_item(at, i);

        if ((err = bt_openai_read_int(r, &item, 0, last, &id)) != BT_OK) {
            return err;
        }
        ids[i] = (int32_t)id;
    }
    *prompt = (bt_openai_prompt){.is_ids = true, .ids = ids, .id_count = (uint32_t)count};
    return BT_OK;
}

static bt_err
take_one_prompt(bt_openai_reader *r, const bt_json_at *at, bt_openai_prompt *prompt)
{
    if (bt_json_type_of(at) == BT_JSON_TEXT) {
        return bt_openai_keep_text(r, at, &prompt->text);
    }
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return bt_openai_refuse_with(r, at, NULL, "expected a string or an array of token ids");
    }
    return bt_json_count(at) != 0 ? take_ids(r, at, prompt) : bt_openai_refuse_with(r, at, NULL, "must not be empty");
}

bt_err
bt_openai_take_prompt(bt_openai_reader *r, const bt_json_at *at)
{
    bt_json_at first = bt_json_item(at, 0);
    bool several = bt_json_type_of(at) == BT_JSON_ARRAY && bt_json_type_of(&first) != BT_JSON_INT;
    size_t count = several ? bt_json_count(at) : 1;
    bt_err err = BT_OK;

    if (count == 0) {
        return bt_openai_refuse_with(r, at, NULL, "must not be empty");
    }
    if (count > BT_OPENAI_PROMPTS_MAX || count > r->limits->choices_max) {
        return bt_openai_refuse_with(r, at, NULL, "more prompts than this server takes at once");
    }
    if ((r->out->prompts = bt_arena_alloc(&r->out->arena, count * sizeof *r->out->prompts)) == NULL) {
        return bt_openai_out_of_room(r, at);
    }
    for (size_t i = 0; i < count && err == BT_OK; i++) {
        bt_json_at item = several ? bt_json_item(at, i) : *at;

        err = take_one_prompt(r, &item, &r->out->prompts[i]);
    }
    r->out->prompt_count = (uint32_t)count;
    return err;
}

bt_err
bt_openai_take_tokens(bt_openai_reader *r, const bt_json_at *at)
{
    if (bt_json_type_of(at) != BT_JSON_ARRAY) {
        return bt_openai_refuse_with(r, at, NULL, "expected an array of token ids");
    }
    if ((r->out->prompts = bt_arena_alloc(&r->out->arena, sizeof *r->out->prompts)) == NULL) {
        return bt_openai_out_of_room(r, at);
    }
    r->out->prompt_count = 1;
    return take_ids(r, at, r->out->prompts);
}
