// The text edge: workers that turn request bodies into token ids off the loop (parse, render the chat template, tokenize),
// since a long prompt takes longer than the loop may stand still.
//
//     bt_text_submit(text, job)        loop thread; the job is the workers' from here
//     done(self, job)                  loop thread, once for each submitted job, in no promised order
//
// Special tokens that a user typed into a message stay plain text: they are marked before the template is rendered, and
// what is marked is encoded as text.
#pragma once

#include "common/net/mailbox.h"
#include "common/text/template.h"
#include "router/openai.h"

#include <stdatomic.h>

typedef enum { BT_TEXT_COMPLETE, BT_TEXT_TOKENIZE, BT_TEXT_DETOKENIZE } bt_text_task;

typedef struct {
    const int32_t *ids; // in the request's arena
    uint32_t count;
} bt_text_ids;

typedef struct bt_text_job bt_text_job;

// Reads job->body into job->request, on a worker. `special` is true before; TOKENIZE: false = the prompt's text alone, without BOS.
typedef bt_err bt_text_parse(bt_text_job *job, const bt_openai_limits *limits, bool *special);

struct bt_text_job {
    // In:
    bt_text_task task;
    bt_openai_kind kind;  // COMPLETE
    bt_text_parse *parse; // NULL: the body is JSON, as HTTP has it
    bt_buf body;          // owned; the worker frees it
    void *arg;
    atomic_bool dropped; // set by the loop: nobody waits for it any more; what is not begun is not done
    // Out:
    bt_err err; // not BT_OK: `error` is for the client and nothing else is set
    bt_openai_error error;
    bt_openai_request request;
    bt_text_ids *prompts; // [prompt_count] COMPLETE; one with TOKENIZE
    uint32_t prompt_count;
    bt_buf text; // DETOKENIZE
};

// Frees what a job holds; accepts a zeroed one.
void bt_text_job_fini(bt_text_job *job);

typedef struct {
    uint32_t workers;
    uint32_t queue; // jobs that wait, run, or have not been given back
    bt_openai_limits openai;
    void (*done)(void *self, bt_text_job *job);
    void *self;
} bt_text_options;

typedef struct bt_text bt_text;

bt_err bt_text_open(bt_text **out, bt_loop *loop, const bt_text_options *options, bt_why *why);
// Waits for the jobs that run; `done` is not called for what is left, whose owner frees it. NULL is fine.
void bt_text_close(bt_text *text);

// Which model's text it is; once, before the first job. Borrowed. A template that does not compile is logged, and chat
// requests are refused with its words.
bt_err bt_text_set_model(bt_text *text, const bt_tokenizer *tokenizer, uint32_t context);

// BT_ERR_BUSY when the queue is full: the job is the caller's still.
bt_err bt_text_submit(bt_text *text, bt_text_job *job);
