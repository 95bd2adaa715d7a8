// proto/gateway.proto as C structs: what clients from outside and a router say to each other. The proto file says what each field means.
//
//     client:  bt_gateway_pack_generate(&body, &generate, scratch); bt_gateway_draft_request(&draft, &request, scratch);
//              bt_gateway_write(&draft, memory);             draft.bytes of them
//     router:  bt_gateway_read_request(&request, bytes, length, scratch); by its method: bt_gateway_read_generate(&generate, body, scratch)
//
// and the same with replies. Structs are read and written as they are: ranges are for who uses them, counts are limited here. Texts are
// spans (not NUL-terminated) and not checked to be UTF-8. What is read borrows the scratch; a scratch is reset by its owner, and what
// is packed and drafted lies in it until then. No state: any thread, with its own scratch.
#pragma once

#include "common/base/err.h"
#include "common/base/str.h"
#include "common/engine/sampling.h"
#include "common/wire/message.h"
#include "common/wire/scratch.h"

#define BT_GATEWAY_MESSAGES_MAX 4096
#define BT_GATEWAY_STOPS_MAX 16
#define BT_GATEWAY_CHOICES_MAX 128
#define BT_GATEWAY_MODELS_MAX 64
#define BT_GATEWAY_CREDITS 64 // where a request names none

typedef enum {
    BT_GATEWAY_NONE,
    BT_GATEWAY_GENERATE,
    BT_GATEWAY_CANCEL,
    BT_GATEWAY_TOKENIZE,
    BT_GATEWAY_DETOKENIZE,
    BT_GATEWAY_MODELS,
    BT_GATEWAY_HEALTH,
    BT_GATEWAY_STATS,
    BT_GATEWAY_CREDIT,
    BT_GATEWAY_METHODS, // how many; also: one that is not known
} bt_gateway_method;

// gRPC's, with its numbers.
typedef enum {
    BT_CODE_OK,
    BT_CODE_CANCELLED,
    BT_CODE_UNKNOWN,
    BT_CODE_INVALID_ARGUMENT,
    BT_CODE_DEADLINE_EXCEEDED,
    BT_CODE_NOT_FOUND,
    BT_CODE_ALREADY_EXISTS,
    BT_CODE_PERMISSION_DENIED,
    BT_CODE_RESOURCE_EXHAUSTED,
    BT_CODE_FAILED_PRECONDITION,
    BT_CODE_ABORTED,
    BT_CODE_OUT_OF_RANGE,
    BT_CODE_UNIMPLEMENTED,
    BT_CODE_INTERNAL,
    BT_CODE_UNAVAILABLE,
    BT_CODE_DATA_LOSS,
    BT_CODE_UNAUTHENTICATED,
    BT_CODES
} bt_code;

const char *bt_code_name(bt_code code); // "INVALID_ARGUMENT", …

// ---- envelopes ----

typedef struct {
    uint64_t id;
    bt_gateway_method method;
    uint32_t timeout_ms, credits;
    bt_str auth, name, body;
} bt_gateway_request;

typedef struct {
    bt_code code;
    bt_str message, reason, field;
    uint32_t retry_after_ms;
} bt_gateway_status;

typedef struct {
    uint64_t id;
    bt_str name;
    bool last; // `status` is there
    bt_gateway_status status;
    bt_str body;
} bt_gateway_reply;

typedef struct {
    const void *form; // ours
    size_t bytes;
} bt_gateway_draft;

// BT_ERR_TOO_LONG: the scratch is too small.
bt_err bt_gateway_draft_request(bt_gateway_draft *out, const bt_gateway_request *request, bt_wire_scratch *scratch);
bt_err bt_gateway_draft_reply(bt_gateway_draft *out, const bt_gateway_reply *reply, bt_wire_scratch *scratch);
void bt_gateway_write(const bt_gateway_draft *draft, uint8_t *out);
// BT_ERR_INVALID: no such message (or an id of 0). BT_ERR_TOO_LONG: the scratch is too small.
bt_err bt_gateway_read_request(bt_gateway_request *out, const void *bytes, size_t length, bt_wire_scratch *scratch);
bt_err bt_gateway_read_reply(bt_gateway_reply *out, const void *bytes, size_t length, bt_wire_scratch *scratch);

// ---- what calls ask ----

typedef struct {
    bt_str role, content, name;
} bt_gateway_message;

typedef enum { BT_INPUT_NONE, BT_INPUT_CHAT, BT_INPUT_PROMPT, BT_INPUT_IDS } bt_gateway_input_kind;

// What a model is to read.
typedef struct {
    bt_gateway_input_kind kind;
    const bt_gateway_message *messages; // CHAT
    uint32_t message_count;
    bt_str template_json;
    bool no_generation_prompt;
    bt_str prompt;      // PROMPT
    const int32_t *ids; // IDS
    uint32_t id_count;
} bt_gateway_input;

// bt_gateway_generate_defaults fills in what the wire means by "not given".
typedef struct {
    bt_str model, user;
    bt_gateway_input input;
    uint32_t n;
    uint32_t max_tokens; // UINT32_MAX = the rest of the context
    bt_sampling sampling;
    bool seed_given, prompt_logprobs;
    bt_str stops[BT_GATEWAY_STOPS_MAX];
    uint32_t stop_count;
} bt_gateway_generate;

typedef struct {
    bt_str model;
    bt_gateway_input input; // CHAT or PROMPT
    bool plain;
} bt_gateway_tokenize;

typedef struct {
    bt_str model;
    const int32_t *ids;
    uint32_t id_count;
} bt_gateway_detokenize;

void bt_gateway_generate_defaults(bt_gateway_generate *generate);

// BT_ERR_INVALID: more than the limits allow. BT_ERR_TOO_LONG: the scratch is too small.
bt_err bt_gateway_pack_generate(bt_str *out, const bt_gateway_generate *generate, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_cancel(bt_str *out, uint64_t id, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_tokenize(bt_str *out, const bt_gateway_tokenize *tokenize, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_detokenize(bt_str *out, const bt_gateway_detokenize *detokenize, bt_wire_scratch *scratch);
// BT_ERR_INVALID: no such message, or over the limits. BT_ERR_TOO_LONG: the scratch is too small.
bt_err bt_gateway_read_generate(bt_gateway_generate *out, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_cancel(uint64_t *id, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_tokenize(bt_gateway_tokenize *out, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_detokenize(bt_gateway_detokenize *out, bt_str body, bt_wire_scratch *scratch);

// ---- what they are answered ----

// In columns: log-probabilities are there for all ids or for none, alternatives too.
typedef struct {
    uint32_t count, top_total;
    const int32_t *ids;         // [count]
    const float *logprobs;      // [count] or NULL
    const uint32_t *top_counts; // [count] or NULL
    const int32_t *top_ids;     // [top_total]
    const float *top_logprobs;
} bt_gateway_tokens;

typedef struct {
    uint32_t index;
    bt_str text;
    bt_gateway_tokens tokens, prompt;
    bt_finish finish; // NONE, STOP or LENGTH
} bt_gateway_choice;

typedef struct {
    const bt_gateway_choice *choices;
    uint32_t choice_count;
    bool has_usage;
    bt_usage usage;
    bool degraded; // read by other weights than it should have been
} bt_gateway_generated;

typedef struct {
    const int32_t *ids;
    uint32_t id_count, context;
} bt_gateway_tokenized;

typedef struct {
    bt_str name;
    uint32_t context;
} bt_gateway_model;

typedef enum { BT_STATE_NONE, BT_STATE_READY, BT_STATE_LOADING, BT_STATE_DRAINING, BT_STATE_NO_NODE } bt_gateway_state;

typedef struct {
    uint32_t running, queued, nodes, calls, connections;
    uint64_t uptime_ms, done, failed, cancelled, rejected, prompt_tokens, cached_tokens, completion_tokens;
} bt_gateway_stats;

bt_err bt_gateway_pack_generated(bt_str *out, const bt_gateway_generated *generated, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_tokenized(bt_str *out, const bt_gateway_tokenized *tokenized, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_text(bt_str *out, bt_str text, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_models(bt_str *out, const bt_gateway_model *models, uint32_t count, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_health(bt_str *out, bt_gateway_state state, bt_wire_scratch *scratch);
bt_err bt_gateway_pack_stats(bt_str *out, const bt_gateway_stats *stats, bt_wire_scratch *scratch);
bt_err bt_gateway_read_generated(bt_gateway_generated *out, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_tokenized(bt_gateway_tokenized *out, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_text(bt_str *out, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_models(const bt_gateway_model **models, uint32_t *count, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_health(bt_gateway_state *out, bt_str body, bt_wire_scratch *scratch);
bt_err bt_gateway_read_stats(bt_gateway_stats *out, bt_str body, bt_wire_scratch *scratch);
