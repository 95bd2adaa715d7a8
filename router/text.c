#include "router/text.h"

#include "common/base/log.h"
#include "router/text_guard.h"

#include <pthread.h>
#include <string.h>

#define WORKERS_MAX 8
#define RENDERED_BYTES_MAX (64u << 20)

typedef struct {
    bt_text *text;
    pthread_t thread;
    bool started;
    int32_t *ids; // [context + 1] scratch
} worker;

struct bt_text {
    bt_text_options options;
    bt_mailbox *jobs, *answers; // of bt_text_job *
    worker workers[WORKERS_MAX];
    uint32_t jobs_out; // submitted and not given back; the loop's
    // The model; set before the first job is posted, which orders it for the workers.
    const bt_tokenizer *tokenizer;
    uint32_t context;
    bt_template *chat;
    bt_why chat_why; // why there is none
    bt_text_guard guard;
};

void
bt_text_job_fini(bt_text_job *job)
{
    bt_buf_fini(&job->body);
    bt_buf_fini(&job->text);
    bt_openai_request_fini(&job->request);
    job->prompts = NULL;
    job->prompt_count = 0;
}

// ---- a job, on a worker ----

static bt_err
too_long(const bt_text *text, bt_text_job *job, size_t count)
{
    bool chat = job->request.kind == BT_OPENAI_CHAT;

    return bt_openai_fail(&job->error, BT_ERR_TOO_LONG, 400, "context_length_exceeded", chat ? "messages" : "prompt",
                          "this model's context is %u tokens long, and the prompt has %s%zu", text->context,
                          count > text->context + 1 ? "" : "at least ", count);
}

static bt_err
refuse_text(bt_text_job *job, bt_err err, const char *words)
{
    const char *param = job->request.kind == BT_OPENAI_CHAT ? "messages" : "prompt";

    return bt_openai_fail(&job->error, err, 400, NULL, param, "%s: %s", param, words);
}

// Appends the ids of a piece to the scratch.
static bt_err
encode(const worker *w, bt_text_job *job, bt_str piece, unsigned flags, size_t *used)
{
    size_t room = (size_t)w->text->context + 1 - *used, count = 0;
    bt_why why = {""};
    bt_err err = bt_tokenizer_encode(w->text->tokenizer, piece, flags, w->ids + *used, room, &count, &why);

    if (err == BT_ERR_TOO_LONG || *used + count > w->text->context) {
        return too_long(w->text, job, *used + count);
    }
    *used += count;
    return err == BT_OK ? BT_OK : refuse_text(job, err, why.text);
}

static bt_err
keep_ids(const worker *w, bt_text_job *job, size_t count, bt_text_ids *out)
{
    int32_t *ids = bt_arena_alloc(&job->request.arena, (count + 1) * sizeof *ids);

    if (ids == NULL) {
        return refuse_text(job, BT_ERR_TOO_LONG, "larger than this server takes");
    }
    memcpy(ids, w->ids, count * sizeof *ids);
    *out = (bt_text_ids){ids, (uint32_t)count};
    return BT_OK;
}

static bt_err
encode_rendered(const worker *w, bt_text_job *job, bt_str rendered, bt_text_ids *out)
{
    size_t used = 0;
    bt_err err = BT_OK;
    bt_str piece;
    bool plain;

    while (err == BT_OK && bt_text_guard_next(&rendered, &piece, &plain)) {
        err = encode(w, job, piece, plain ? 0 : BT_ENCODE_SPECIAL, &used);
    }
    return err == BT_OK ? keep_ids(w, job, used, out) : err;
}

static bt_str
token_text(const bt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 ? bt_tokenizer_token_text(tokenizer, id) : (bt_str){"", 0};
}

static bt_err
render(const bt_text *text, bt_text_job *job, bt_str messages, bt_buf *out)
{
    bt_template_input input = {
        .messages_json = messages,
        .extra_json = job->request.extra_json,
        .add_generation_prompt = job->request.add_generation_prompt,
        .bos_token = token_text(text->tokenizer, bt_tokenizer_bos(text->tokenizer)),
        .eos_token = token_text(text->tokenizer, bt_tokenizer_eos(text->tokenizer)),
    };
    bt_why why = {""};
    bt_err err;

    if (text->chat == NULL) {
        return refuse_text(job, BT_ERR_UNSUPPORTED, text->chat_why.text);
    }
    err = bt_template_render(text->chat, &input, out, &why);
    return err == BT_OK ? BT_OK : refuse_text(job, err, why.text);
}

static bt_err
prepare_chat(const worker *w, bt_text_job *job)
{
    bt_buf marked, rendered;
    bt_err err;

    bt_buf_init(&marked, RENDERED_BYTES_MAX);
    bt_buf_init(&rendered, RENDERED_BYTES_MAX);
    bt_text_guard_mark(&w->text->guard, job->request.messages_json, &marked);
    err = marked.failed ? refuse_text(job, BT_ERR_TOO_LONG, "larger than this server takes")
                        : render(w->text, job, (bt_str){marked.data, marked.len}, &rendered);
    if (err == BT_OK) {
        err = encode_rendered(w, job, (bt_str){rendered.data != NULL ? rendered.data : "", rendered.len},
                              &job->prompts[0]);
    }
    bt_buf_fini(&marked);
    bt_buf_fini(&rendered);
    return err;
}

static bt_err
prepare_prompt(const worker *w, bt_text_job *job, const bt_openai_prompt *prompt, unsigned flags, bt_text_ids *out)
{
    size_t used = 0;
    bt_err err;

    if (prompt->is_ids) {
        *out = (bt_text_ids){prompt->ids, prompt->id_count};
        return prompt->id_count <= w->text->context ? BT_OK : too_long(w->text, job, prompt->id_count);
    }
    err = encode(w, job, prompt->text, flags, &used);
    return err == BT_OK ? keep_ids(w, job, used, out) : err;
}

static bt_err
prepare(const worker *w, bt_text_job *job, unsigned flags)
{
    bt_openai_request *request = &job->request;
    bt_err err = BT_OK;

    job->prompt_count = request->kind == BT_OPENAI_CHAT ? 1 : request->prompt_count;
    job->prompts = bt_arena_alloc(&request->arena, job->prompt_count * sizeof *job->prompts);
    if (job->prompts == NULL) {
        return refuse_text(job, BT_ERR_TOO_LONG, "larger than this server takes");
    }
    if (request->kind == BT_OPENAI_CHAT) {
        return prepare_chat(w, job);
    }
    for (uint32_t i = 0; i < job->prompt_count && err == BT_OK; i++) {
        err = prepare_prompt(w, job, &request->prompts[i], flags, &job->prompts[i]);
        // Nothing to read is nothing to go on from; models with a BOS never get here.
        if (err == BT_OK && job->prompts[i].count == 0 && job->task == BT_TEXT_COMPLETE) {
            err = refuse_text(job, BT_ERR_INVALID, "must not be empty for this model");
        }
    }
    return err;
}

static bt_err
detokenize(const worker *w, bt_text_job *job)
{
    const bt_openai_prompt *tokens = &job->request.prompts[0];
    char piece[BT_DETOK_OUT_MAX];
    bt_detok detok;

    bt_buf_init(&job->text, RENDERED_BYTES_MAX);
    bt_detok_init(&detok, w->text->tokenizer, NULL, true, true);
    for (uint32_t i = 0; i < tokens->id_count; i++) {
        bt_buf_append(&job->text, piece, bt_detok_push(&detok, tokens->ids[i], piece, sizeof piece));
    }
    bt_buf_append(&job->text, piece, bt_detok_finish(&detok, piece, sizeof piece));
    return job->text.failed ? refuse_text(job, BT_ERR_TOO_LONG, "larger than this server takes") : BT_OK;
}

static bt_err
parse_json(bt_text_job *job, const bt_openai_limits *limits, bool *special)
{
    bt_str body = {job->body.data != NULL ? job->body.data : "", job->body.len};

    if (job->task == BT_TEXT_COMPLETE) {
        return bt_openai_parse(&job->request, job->kind, body, limits, &job->error);
    }
    return job->task == BT_TEXT_TOKENIZE ? bt_openai_parse_tokenize(&job->request, special, body, limits, &job->error)
                                         : bt_openai_parse_detokenize(&job->request, body, limits, &job->error);
}

static void
do_job(const worker *w, bt_text_job *job)
{
    bt_openai_limits limits = w->text->options.openai;
    bool special = true;

    limits.vocab = bt_tokenizer_vocab_size(w->text->tokenizer);
    job->err = (job->parse != NULL ? job->parse : parse_json)(job, &limits, &special);
    bt_buf_fini(&job->body);
    if (job->err == BT_OK) {
        job->err = job->task == BT_TEXT_DETOKENIZE ? detokenize(w, job) : prepare(w, job, special ? BT_ENCODE_BOS : 0);
    }
}

static void *
work(void *self)
{
    worker *w = self;
    bt_text_job *job;

    while (bt_mailbox_wait(w->text->jobs, &job)) {
        if (atomic_load(&job->dropped)) {
            job->err = BT_ERR_CANCELLED;
        } else {
            do_job(w, job);
        }
        bt_mailbox_post(w->text->answers, &job); // as large as all jobs there are: never full
    }
    return NULL;
}

// ---- the loop's side ----

static void
give_back(void *self, const void *message)
{
    bt_text *text = self;

    text->jobs_out--;
    text->options.done(text->options.self, *(bt_text_job *const *)message);
}

bt_err
bt_text_open(bt_text **out, bt_loop *loop, const bt_text_options *options, bt_why *why)
{
    bt_text *text = bt_alloc(sizeof *text);
    bt_err err;

    if (text == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "text: no memory");
    }
    text->options = *options;
    text->options.workers = options->workers < WORKERS_MAX ? options->workers : WORKERS_MAX;
    if ((err = bt_mailbox_open(&text->jobs, options->queue, sizeof(bt_text_job *))) != BT_OK ||
        (err = bt_mailbox_open(&text->answers, options->queue, sizeof(bt_text_job *))) != BT_OK ||
        (err = bt_mailbox_attach(text->answers, loop, give_back, text)) != BT_OK) {
        bt_text_close(text);
        return bt_fail(why, err, "text: no queue of %u jobs", options->queue);
    }
    *out = text;
    return BT_OK;
}

static void
open_template(bt_text *text)
{
    const char *source = bt_tokenizer_chat_template(text->tokenizer);
    bt_why why = {""};

    if (source == NULL) {
        bt_log_warn("TEXT-TEMPLATE", "the model has no chat template: messages are written as ChatML");
    }
    if (bt_template_open(&text->chat, source != NULL ? source : bt_template_chatml, &why) != BT_OK) {
        bt_fail(&text->chat_why, BT_ERR_UNSUPPORTED, "the chat template of this model cannot be used: %s", why.text);
        bt_log_warn("TEXT-TEMPLATE", "%s", text->chat_why.text);
    }
}

bt_err
bt_text_set_model(bt_text *text, const bt_tokenizer *tokenizer, uint32_t context)
{
    bt_err err = bt_text_guard_init(&text->guard, tokenizer);

    text->tokenizer = tokenizer;
    text->context = context;
    open_template(text);
    for (uint32_t i = 0; i < text->options.workers && err == BT_OK; i++) {
        worker *w = &text->workers[i];

        w->text = text;
        w->ids = bt_alloc_array((size_t)context + 1, sizeof *w->ids);
        err = w->ids == NULL ? BT_ERR_NO_MEMORY : BT_OK;
        if (err == BT_OK && pthread_create(&w->thread, NULL, work, w) != 0) {
            err = BT_ERR_NO_MEMORY;
        }
        w->started = err == BT_OK;
    }
    return err;
}

void
bt_text_close(bt_text *text)
{
    bt_text_job *left;

    if (text == NULL) {
        return;
    }
    if (text->jobs != NULL) {
        bt_mailbox_end(text->jobs);
        while (bt_mailbox_try(text->jobs, &left)) { // not begun: their owner frees them
        }
    }
    for (uint32_t i = 0; i < WORKERS_MAX; i++) {
        if (text->workers[i].started) {
            pthread_join(text->workers[i].thread, NULL);
        }
        bt_free(text->workers[i].ids);
    }
    bt_mailbox_close(text->jobs);
    bt_mailbox_close(text->answers);
    bt_template_close(text->chat);
    bt_text_guard_fini(&text->guard);
    bt_free(text);
}

bt_err
bt_text_submit(bt_text *text, bt_text_job *job)
{
    bt_err err = text->jobs_out < text->options.queue ? bt_mailbox_post(text->jobs, &job) : BT_ERR_BUSY;

    text->jobs_out += err == BT_OK;
    return err;
}
