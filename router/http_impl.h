// What the parts of the HTTP edge share: http.c (routes, keys, small answers), call.c (a call's life), choice.c (one answer).
#pragma once

#include "common/metrics/request_id.h"
#include "router/http.h"
#include "router/text.h"

typedef enum {
    BT_CALL_FREE,
    BT_CALL_TEXT, // with the text workers
    BT_CALL_RUNS, // choices are the core's
    BT_CALL_OVER, // answered, failed or left; some choices are still to come home
} bt_call_phase;

typedef struct bt_call bt_call;

// One answer.
typedef struct bt_choice {
    bt_call *call; // NULL = free
    uint32_t index, prompt;
    bool live;  // the core has it
    bool begun; // its first chunk (role, echo) is out
    bt_request_id id;
    bt_detok detok;
    bt_buf text; // not yet sent; all of it where nothing is streamed
    bt_openai_logprobs logprobs;
    uint32_t tokens;
    bt_time last_token;
    bt_finish finish;
    bt_usage usage;
    struct bt_choice *next; // of the call
} bt_choice;

struct bt_call {
    bt_router_http *http;
    bt_call_phase phase;
    bt_http_request *request; // NULL once it is answered or the client is gone
    bool streaming;           // headers are out
    bool submitted;           // all choices have been given to the core
    uint32_t held;            // the call is being worked on: it is not freed meanwhile
    char name[BT_REQUEST_NAME_MAX + 1];
    bt_openai_head head;
    bt_text_job job;
    bt_time arrived, prepared;
    uint32_t choice_count, choices_live;
    bt_choice *choices; // in the order of their index
};

struct bt_router_http {
    bt_loop *loop;
    bt_router_http_options options;
    bt_http *server;
    bt_text *text;
    bt_router_edge *edge; // NULL until the model is there
    const bt_tokenizer *tokenizer;
    uint32_t context;
    int32_t end_ids[BT_END_IDS_MAX]; // that end a turn; the first is eos
    uint32_t end_count;
    bool draining;
    bt_rng rng;
    bt_time started;
    bt_router_metrics metrics;
    bt_call *calls;     // [calls_max]
    bt_choice *choices; // [answers_max]
    uint32_t calls_open, choices_open;
};

// http.c
// Takes or draws the request's name and puts it into the answer's headers.
void bt_router_http_name(bt_router_http *http, bt_http_request *request, char name[BT_REQUEST_NAME_MAX + 1]);
void bt_router_http_answer(bt_router_http *http, bt_http_request *request, unsigned status, const char *type);
void bt_router_http_refuse(bt_router_http *http, bt_http_request *request, const bt_openai_error *error);
void bt_router_http_set_retry(bt_http_request *request, bt_time after);
bt_openai_vocab bt_router_http_vocab(const bt_router_http *http);

// call.c
void bt_call_start(bt_router_http *http, bt_http_request *request, bt_text_task task, bt_openai_kind kind);
void bt_call_on_text(void *http, bt_text_job *job);
void bt_call_on_tokens(void *http, const bt_router_tokens *tokens);
void bt_call_on_finished(void *http, const bt_router_finished *finished);
void bt_call_leave(bt_call *call); // the client is gone
void bt_call_close(bt_call *call); // at the end of the program: frees it whatever its phase

// choice.c
void bt_choice_init(bt_choice *choice);
bt_choice *bt_choice_take(bt_call *call, uint32_t index, uint32_t prompt); // NULL = all are in use
void bt_choice_free(bt_choice *choice);
void bt_choice_add(bt_choice *choice, const bt_router_tokens *tokens);
void bt_choice_end(bt_choice *choice);
// Writes what is new onto the stream; `reason` ends it, NULL = not yet.
void bt_choice_write(bt_choice *choice, const char *reason);
