// The OpenAI API as text: request bodies become a checked bt_openai_request, results become the JSON that clients expect.
// No sockets, no model; any thread. router/http.c does the rest.
//
// Parameters are either known and checked, or refused by name: a client never gets an answer that silently ignored what it
// asked for. null, and values that mean what we do anyway ("response_format": {"type": "text"}), count as not given.
#pragma once

#include "common/base/mem.h"
#include "common/base/time.h"
#include "common/engine/sampling.h"
#include "common/json/json.h"
#include "common/json/write.h"
#include "common/text/detok.h"

#define BT_OPENAI_PROMPTS_MAX 128 // of one request; prompts × n is limited by bt_openai_limits
#define BT_OPENAI_ID_MAX 80

// An error as clients get it. `type` and `code` are constants; NULL and "" are written as null.
typedef struct {
    unsigned status; // HTTP
    const char *type, *code;
    char param[128], message[512];
    bt_time retry_after; // 0 = nothing is said of it
} bt_openai_error;

// Fills `error` and returns `err`.
bt_err bt_openai_fail(bt_openai_error *error, bt_err err, unsigned status, const char *code, const char *param,
                      const char *format, ...) __attribute__((format(printf, 6, 7)));
// The error object, for a body (`{"error":{…}}`).
void bt_openai_write_error(bt_buf *out, const bt_openai_error *error);

typedef enum { BT_OPENAI_CHAT, BT_OPENAI_TEXT } bt_openai_kind;

typedef struct {
    uint32_t choices_max; // n × prompts
    uint32_t vocab;       // ids at or above are refused; 0 = not checked
    size_t arena_bytes;   // what one request may keep besides its JSON
} bt_openai_limits;

// One prompt: text, or ids as they are. Chat has one, whose text is rendered later.
typedef struct {
    bool is_ids;
    bt_str text;
    const int32_t *ids;
    uint32_t id_count;
} bt_openai_prompt;

typedef struct {
    bt_openai_kind kind;
    bt_arena arena; // holds all texts and ids
    bt_str model;   // empty = whichever is served
    bool stream, include_usage, echo;
    bool logprobs;        // alternatives: sampling.top_logprobs
    bool prompt_logprobs; // of the prompt too, without its echo (RPC)
    bool seed_given;
    uint32_t n;
    uint32_t max_tokens; // UINT32_MAX = not given
    bt_sampling sampling;
    bt_stop_strings stops;
    bt_str user; // pins a session softly; empty = none
    // Chat, for bt_template_render: the messages with text parts joined and "developer" as "system".
    bt_str messages_json, extra_json;
    bool add_generation_prompt;
    // Completions.
    uint32_t prompt_count;
    bt_openai_prompt *prompts;
} bt_openai_request;

// Reads a body of /v1/chat/completions or /v1/completions. On an error `error` says what the client shall hear and nothing
// is held. `fini` accepts a zeroed request.
bt_err bt_openai_parse(bt_openai_request *out, bt_openai_kind kind, bt_str body, const bt_openai_limits *limits,
                       bt_openai_error *error);
void bt_openai_request_fini(bt_openai_request *request);

// For who reads a request out of something else than JSON (router/gateway_request.c): what holds where nothing is given, and the name
// that templates know a role by ("developer" is "system"), NULL for one that nobody knows.
void bt_openai_request_init(bt_openai_request *out, bt_openai_kind kind, const bt_openai_limits *limits);
const char *bt_openai_role(bt_str role);

// /tokenize: {"model"?, "prompt", "add_special_tokens"?} or {"model"?, "messages", "add_generation_prompt"?};
// /detokenize: {"model"?, "tokens"}. The request's kind is CHAT when messages were given; `special` is add_special_tokens.
bt_err bt_openai_parse_tokenize(bt_openai_request *out, bool *special, bt_str body, const bt_openai_limits *limits,
                                bt_openai_error *error);
bt_err bt_openai_parse_detokenize(bt_openai_request *out, bt_str body, const bt_openai_limits *limits,
                                  bt_openai_error *error);

// ---- writing ----

typedef struct {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
} bt_openai_usage;

// What all chunks and answers of one request have in common.
typedef struct {
    bt_openai_kind kind;
    char id[BT_OPENAI_ID_MAX]; // "chatcmpl-…"
    bt_str model;
    int64_t created; // seconds
    bool include_usage;
} bt_openai_head;

// The text of a token for people, and its exact bytes: of whoever has a tokenizer.
typedef struct {
    bt_str (*bytes)(const void *self, int32_t id);
    const void *self;
} bt_openai_vocab;

// Log-probabilities of one choice, gathered until they are written: JSON items without the brackets. Zeroed = empty, for
// those who set the limit with init.
typedef struct {
    uint32_t count, offset;         // offset: characters of text so far (completions' text_offset)
    bt_buf items;                   // chat: {"token", "logprob", "bytes", "top_logprobs"}; completions: tokens
    bt_buf logprobs, tops, offsets; // completions
} bt_openai_logprobs;

void bt_openai_logprobs_init(bt_openai_logprobs *logprobs, size_t limit);
void bt_openai_logprobs_fini(bt_openai_logprobs *logprobs);
void bt_openai_logprobs_clear(bt_openai_logprobs *logprobs); // keeps memory and offset
// `known` is false for the first token of an echoed prompt, which follows nothing. Writes result->top_count alternatives.
void bt_openai_logprobs_add(bt_openai_logprobs *logprobs, bt_openai_kind kind, const bt_openai_vocab *vocab,
                            const bt_token_result *result, bool known);

// A stream's events, complete with "data: " and the empty line.
void bt_openai_write_role(bt_buf *out, const bt_openai_head *head, uint32_t index); // chat's first chunk of a choice
void bt_openai_write_delta(bt_buf *out, const bt_openai_head *head, uint32_t index, bt_str text,
                           const bt_openai_logprobs *logprobs); // NULL = null
void bt_openai_write_finish(bt_buf *out, const bt_openai_head *head, uint32_t index, const char *reason);
void bt_openai_write_usage(bt_buf *out, const bt_openai_head *head, const bt_openai_usage *usage);
void bt_openai_write_error_event(bt_buf *out, const bt_openai_error *error);
void bt_openai_write_done(bt_buf *out);

// The whole answer: begin, each choice in order, end.
void bt_openai_begin_answer(bt_json_writer *writer, bt_buf *out, const bt_openai_head *head);
void bt_openai_put_choice(bt_json_writer *writer, const bt_openai_head *head, uint32_t index, bt_str text,
                          const bt_openai_logprobs *logprobs, const char *reason);
void bt_openai_end_answer(bt_json_writer *writer, const bt_openai_usage *usage);
