// A call: what one client asked, from its arrival to its answer, whichever edge it came through (http.c, gateway.c).
//
//     bt_call_start(&call, calls, &question, &error)    to the text workers; refused at once, `error` says what the client shall hear
//     sink->progress(choice) …                          n × prompts answers, each ends with its finish
//     sink->end(call, &usage)  or  sink->fail(call, &error)  or  sink->tokens / sink->text        exactly one, the last word
//     bt_call_leave(call, why)                          instead: the client is gone, or wants no more; nothing follows
//
// All on the loop's thread. A call's life: FREE → TEXT → RUNS → OVER → FREE; it outlives its client until the text worker has given its
// job back and the core has finished its last choice.
#pragma once

#include "common/config/config.h"
#include "common/metrics/request_id.h"
#include "router/main.h"
#include "router/metrics.h"
#include "router/text.h"
#include "router/trace.h"

typedef struct bt_calls bt_calls;
typedef struct bt_call bt_call;
typedef struct bt_choice bt_choice;

// How an edge hears what becomes of its calls. From these the edge may leave the call; after the last word it forgets it.
typedef struct {
    // Tokens have come (`text` and the results have grown), or the choice is finished. Whoever sends them on clears them with
    // bt_choice_sent; what is left lies there and grows.
    void (*progress)(bt_choice *choice);
    // All choices are finished. False: what there is cannot be sent as it is; `fail` follows.
    bool (*end)(bt_call *call, const bt_openai_usage *usage);
    void (*fail)(bt_call *call, const bt_openai_error *error);
    void (*tokens)(bt_call *call); // TOKENIZE: call->job.prompts[0]
    void (*text)(bt_call *call);   // DETOKENIZE: call->job.text
} bt_call_sink;

typedef struct {
    uint32_t calls_max;   // answered at once; more are a 429
    uint32_t choices_max; // of one call: n × prompts
    uint32_t answers_max; // of all calls
    uint32_t text_workers;
    size_t body_bytes_max;    // of one question
    bt_time request_time_max; // from arrival to the end; BT_TIME_NEVER = none
    const bt_text_list *keys; // borrowed; none = everyone may
    char model[128];          // the name that clients use; empty = the one set_model gives
    uint32_t trace_requests;  // whose spans are kept; 0 = none
    const char *router;       // how this program is called there
} bt_calls_options;

bt_err bt_calls_open(bt_calls **out, bt_loop *loop, const bt_calls_options *options, bt_why *why);
// After all edges: what still runs is dropped without a word. NULL is fine.
void bt_calls_close(bt_calls *calls);
// What bt_router_edge_open is given as callbacks.
bt_router_callbacks bt_calls_callbacks(bt_calls *calls);
// The model is loaded: calls are taken. Borrowed; once.
bt_err bt_calls_set_model(bt_calls *calls, bt_router_edge *edge, const bt_tokenizer *tokenizer, uint32_t context,
                          const char *name, bt_why *why);
// May calls be made now? False while the model is being loaded, while draining, and while no node is there.
bool bt_calls_ready(const bt_calls *calls);
// Is this one of the keys? NULL = none was shown. Takes as long wherever it differs.
bool bt_calls_may_ask(const bt_calls *calls, const char *key);
// The client's own name for its request if it is a proper one, else drawn. `given` may be NULL.
void bt_calls_name(bt_calls *calls, const char *given, char name[BT_REQUEST_NAME_MAX + 1]);

typedef struct {
    const bt_call_sink *sink;
    void *edge, *client; // the edge's own; the client is not NULL
    const char *name;    // of bt_calls_name
    const char *session; // goes where it was before; NULL or empty = as `user` says
    bt_text_task task;
    bt_openai_kind kind;
    bt_text_parse *parse; // NULL: the body is JSON
    bt_buf *body;         // moved out of here, whatever becomes of it
    bt_time time_max;     // of the client's own; BT_TIME_NEVER = none
    bool wants_results;   // ids at least, also where no log-probabilities were asked for
} bt_question;

bt_err bt_call_start(bt_call **out, bt_calls *calls, const bt_question *question, bt_openai_error *error);
void bt_call_leave(bt_call *call, const char *why);

// ---- for the edges' sinks: what a call has come to ----

typedef enum {
    BT_CALL_FREE,
    BT_CALL_TEXT, // with the text workers
    BT_CALL_RUNS, // choices are the core's
    BT_CALL_OVER, // answered, failed or left; some choices are still to come home
} bt_call_phase;

// One answer.
struct bt_choice {
    bt_call *call; // NULL = free
    uint32_t index, prompt;
    bool live;  // the core has it
    bool begun; // its first tokens have come
    bt_request_id id;
    bt_detok detok;
    bt_buf text, results; // not yet sent; all of it where nothing is streamed
    uint32_t tokens;
    bt_time submitted, last_token;
    bt_finish finish;
    bt_usage usage;
    struct bt_choice *next; // of the call
    // The edge's own:
    bool introduced;      // HTTP: its first event is out
    bool told;            // RPC: its finish is out
    uint32_t text_offset; // HTTP: characters that log-probabilities have spoken of
};

struct bt_call {
    bt_calls *calls;
    const bt_call_sink *sink;
    bt_call_phase phase;
    void *edge, *client; // client: NULL once the last word was said or the client is gone
    bool streaming;      // the edge's own: it has begun to answer
    bool wants_results;  // ids at least, also without log-probabilities
    bool degraded;       // a prompt of it was read by other weights than it should have been
    bool marked;         // the edge's own: it has said so
    bool submitted;      // all choices have been given to the core
    uint32_t held;       // the call is being worked on: it is not freed meanwhile
    char name[BT_REQUEST_NAME_MAX + 1];
    uint64_t traced;  // its mark
    uint64_t session; // 0 = none
    bt_openai_head head;
    bt_text_job job;
    bt_time arrived, prepared, deadline;
    uint32_t choice_count, choices_live;
    bt_choice *choices; // in the order of their index
};

struct bt_calls {
    bt_loop *loop;
    bt_calls_options options;
    bt_text *text;
    bt_router_edge *edge; // NULL until the model is there
    const bt_tokenizer *tokenizer;
    uint32_t context;
    int32_t end_ids[BT_END_IDS_MAX]; // that end a turn; the first is eos
    uint32_t end_count;
    bool draining; // new calls are refused
    bt_rng rng;
    bt_router_metrics metrics;
    bt_trace *trace;   // NULL = none
    bt_call *call;     // [calls_max]
    bt_choice *choice; // [answers_max]
    uint32_t calls_open, choices_open;
};

// A token of the answer, or of a prompt that is scored.
typedef struct {
    bt_token_result result;
    bool prompt; // of the prompt
    bool known;  // false: the first token of an echoed prompt, which follows nothing
} bt_choice_result;

// Those of `choice->results`, in turn: `at` begins at 0.
bool bt_choice_next_result(const bt_choice *choice, size_t *at, bt_choice_result *out);
void bt_choice_sent(bt_choice *choice); // empties text and results
static inline bt_str
bt_choice_text(const bt_choice *choice)
{
    return (bt_str){choice->text.data != NULL ? choice->text.data : "", choice->text.len};
}

// ---- between call.c, call_answer.c and choice.c ----

void bt_call_finish(bt_call *call);                             // all choices are finished
void bt_call_fail(bt_call *call, const bt_openai_error *error); // the last word, if someone is there to hear it
void bt_call_over(bt_call *call);                               // after the last word: what still runs is cancelled
void bt_call_settle(bt_call *call);                             // frees it when nothing of it is out any more

void bt_choice_init(bt_choice *choice);
bt_choice *bt_choice_take(bt_call *call, uint32_t index, uint32_t prompt); // NULL = all are in use
void bt_choice_free(bt_choice *choice);
void bt_choice_add(bt_choice *choice, const bt_router_tokens *tokens);
void bt_choice_end(bt_choice *choice);

// ---- between call.c and calls.c ----

void bt_call_on_text(void *calls, bt_text_job *job);
void bt_call_on_tokens(void *calls, const bt_router_tokens *tokens);
void bt_call_on_finished(void *calls, const bt_router_finished *finished);
void bt_call_on_attempt(void *calls, const bt_router_attempted *attempted);
void bt_call_close(bt_call *call); // at the end of the program: frees it whatever its phase
