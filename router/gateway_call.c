// Calls that came over RPC: begun, streamed as far as credits and the socket go, ended.
#include "router/gateway_impl.h"

#include <string.h>

#define WAITING_MAX (256u << 10)     // bytes on their way to a client: streams wait
#define REPLY_BYTES (256u << 10)     // of one Reply, about: further choices go into the next
#define TEXT_BYTES_MAX (1u << 20)    // of one answer that waits for its client
#define RESULTS_BYTES_MAX (8u << 20) // the same
#define CREDITS_MAX (1u << 20)

// ---- calls of a connection ----

bt_gateway_call *
bt_gateway_find(const bt_router_gateway *gateway, uint32_t conn, uint64_t id)
{
    bt_gateway_call *asked = gateway->of_conn[conn];

    while (asked != NULL && asked->id != id) {
        asked = asked->next;
    }
    return asked;
}

static uint32_t
count_of(const bt_router_gateway *gateway, uint32_t conn)
{
    uint32_t count = 0;

    for (const bt_gateway_call *asked = gateway->of_conn[conn]; asked != NULL; asked = asked->next) {
        count++;
    }
    return count;
}

static void
take_off(bt_gateway_call **list, bt_gateway_call *asked)
{
    while (*list != asked) {
        list = &(*list)->next;
    }
    *list = asked->next;
}

static void
give_back(bt_gateway_call *asked)
{
    asked->next = asked->gateway->free;
    asked->gateway->free = asked;
}

static void
release(bt_gateway_call *asked)
{
    bt_router_gateway *gateway = asked->gateway;

    take_off(&gateway->of_conn[asked->conn], asked);
    bt_sp_keep(gateway->sp, asked->conn, gateway->of_conn[asked->conn] != NULL);
    asked->call = NULL;
    if (!asked->dirty) { // else the pump finds it and gives it back
        give_back(asked);
    }
}

static void
mark(bt_gateway_call *asked)
{
    if (!asked->dirty) {
        asked->dirty = true;
        asked->next_dirty = asked->gateway->dirty;
        asked->gateway->dirty = asked;
    }
}

// ---- what is new ----

static bool
has_news(const bt_choice *choice)
{
    return choice->text.len != 0 || choice->results.len != 0 || (choice->finish != BT_FINISH_NONE && !choice->told);
}

// The results as columns, in the scratch. `prompt` says whose.
static bt_gateway_tokens
columns(const bt_choice *choice, bool prompt, bool logprobs, bt_wire_scratch *scratch)
{
    bt_gateway_tokens out = {0};
    bt_choice_result next;
    uint32_t count = 0, tops = 0;
    int32_t *ids, *top_ids;
    float *values, *top_values;
    uint32_t *counts;

    for (size_t at = 0; bt_choice_next_result(choice, &at, &next);) {
        count += next.prompt == prompt;
        tops += next.prompt == prompt ? next.result.top_count : 0;
    }
    ids = bt_wire_take_array(scratch, count, sizeof *ids);
    values = logprobs ? bt_wire_take_array(scratch, count, sizeof *values) : NULL;
    counts = tops != 0 ? bt_wire_take_array(scratch, count, sizeof *counts) : NULL;
    top_ids = bt_wire_take_array(scratch, tops, sizeof *top_ids);
    top_values = bt_wire_take_array(scratch, tops, sizeof *top_values);
    if (scratch->failed) {
        return out;
    }
    for (size_t at = 0; bt_choice_next_result(choice, &at, &next);) {
        uint32_t top = next.result.top_count;

        if (next.prompt != prompt) {
            continue;
        }
        ids[out.count] = next.result.id;
        if (values != NULL) {
            values[out.count] = next.result.logprob;
        }
        if (top != 0) {
            counts[out.count] = top;
            memcpy(top_ids + out.top_total, next.result.top_ids, top * sizeof *top_ids);
            memcpy(top_values + out.top_total, next.result.top_logprobs, top * sizeof *top_values);
        }
        out.count++;
        out.top_total += top;
    }
    out.ids = ids;
    out.logprobs = values;
    out.top_counts = counts;
    out.top_ids = top_ids;
    out.top_logprobs = top_values;
    return out;
}

static void
describe(const bt_choice *choice, bt_gateway_choice *out, bt_wire_scratch *scratch)
{
    bool logprobs = choice->call->job.request.logprobs;

    *out = (bt_gateway_choice){
        .index = choice->index,
        .text = bt_choice_text(choice),
        .tokens = columns(choice, false, logprobs, scratch),
        .finish = choice->finish,
    };
    if (choice->call->job.request.prompt_logprobs) {
        out->prompt = columns(choice, true, logprobs, scratch);
    }
}

// What is new, up to about `bytes_max`; `sent` are those that are part of it. BT_ERR_TOO_LONG: it does not fit at all.
static bt_err
gather(bt_call *call, size_t bytes_max, const bt_openai_usage *usage, bt_str *body, bt_wire_scratch *scratch)
{
    bt_gateway_choice choices[BT_GATEWAY_CHOICES_MAX];
    bt_gateway_generated generated = {.choices = choices, .has_usage = usage != NULL, .degraded = call->degraded};
    bt_choice *sent[BT_GATEWAY_CHOICES_MAX];
    size_t bytes = 0;
    bt_err err;

    bt_wire_scratch_reset(scratch);
    for (bt_choice *choice = call->choices; choice != NULL && bytes < bytes_max; choice = choice->next) {
        if (has_news(choice) && generated.choice_count < BT_GATEWAY_CHOICES_MAX) {
            bytes += choice->text.len + choice->results.len;
            sent[generated.choice_count] = choice;
            describe(choice, &choices[generated.choice_count++], scratch);
        }
    }
    if (usage != NULL) {
        generated.usage = (bt_usage){usage->prompt_tokens, usage->completion_tokens, usage->cached_tokens};
    }
    if ((err = bt_gateway_pack_generated(body, &generated, scratch)) != BT_OK) {
        return err;
    }
    for (uint32_t i = 0; i < generated.choice_count; i++) {
        bt_choice_sent(sent[i]);
        sent[i]->told = sent[i]->finish != BT_FINISH_NONE;
    }
    return BT_OK;
}

static bool
call_has_news(const bt_call *call)
{
    const bt_choice *choice = call->choices;

    while (choice != NULL && !has_news(choice)) {
        choice = choice->next;
    }
    return choice != NULL;
}

static bt_str
name_once(bt_gateway_call *asked)
{
    bt_str name = asked->named ? (bt_str){"", 0} : bt_str_of(asked->call->name);

    asked->named = true;
    return name;
}

// ---- streams ----

// A call that ends while it runs, by our will or its client's.
static void
end_with(bt_gateway_call *asked, bt_code code, const char *message)
{
    bt_router_gateway *gateway = asked->gateway;
    bt_call *call = asked->call;
    uint32_t conn = asked->conn;
    bt_gateway_reply reply = {
        .id = asked->id,
        .last = true,
        .status = {.code = code, .message = bt_str_of(message), .reason = {"", 0}, .field = {"", 0}},
        .body = {"", 0},
    };
    char name[BT_REQUEST_NAME_MAX + 1];
    bool named = asked->named;

    memcpy(name, call->name, sizeof name);
    reply.name = named ? (bt_str){"", 0} : bt_str_of(name);
    release(asked);
    bt_call_leave(call, message);
    gateway->cancelled = true;
    bt_wire_scratch_reset(&gateway->write);
    bt_gateway_send(gateway, conn, &reply);
}

static bool
is_too_slow(const bt_call *call)
{
    bool slow = false;

    for (const bt_choice *choice = call->choices; choice != NULL; choice = choice->next) {
        slow |= choice->text.len > TEXT_BYTES_MAX || choice->results.len > RESULTS_BYTES_MAX;
    }
    return slow;
}

static void
pump(bt_gateway_call *asked)
{
    bt_router_gateway *gateway = asked->gateway;
    bt_gateway_reply reply = {.id = asked->id};

    while (asked->call->phase == BT_CALL_RUNS && asked->credits > 0 &&
           bt_sp_waiting(gateway->sp, asked->conn) < WAITING_MAX && call_has_news(asked->call)) {
        if (gather(asked->call, REPLY_BYTES, NULL, &reply.body, &gateway->write) != BT_OK) {
            end_with(asked, BT_CODE_INTERNAL, "an answer too large for one message");
            return;
        }
        asked->credits--;
        reply.name = name_once(asked);
        if (!bt_gateway_send(gateway, asked->conn, &reply)) {
            return;
        }
    }
    if (is_too_slow(asked->call)) {
        end_with(asked, BT_CODE_RESOURCE_EXHAUSTED, "the client reads too slowly");
    }
}

void
bt_gateway_pump(bt_router_gateway *gateway)
{
    while (gateway->dirty != NULL) {
        bt_gateway_call *asked = gateway->dirty;

        gateway->dirty = asked->next_dirty;
        asked->dirty = false;
        if (asked->call != NULL) {
            pump(asked);
        } else {
            give_back(asked);
        }
    }
}

void
bt_gateway_wake(bt_router_gateway *gateway, uint32_t conn)
{
    for (bt_gateway_call *asked = gateway->of_conn[conn]; asked != NULL; asked = asked->next) {
        if (asked->credits > 0 && call_has_news(asked->call)) {
            mark(asked);
        }
    }
}

void
bt_gateway_give_credit(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    bt_gateway_call *asked = bt_gateway_find(gateway, conn, request->id);

    if (asked == NULL) {
        return; // its stream has ended meanwhile
    }
    asked->credits = request->credits < CREDITS_MAX - asked->credits ? asked->credits + request->credits : CREDITS_MAX;
    mark(asked);
}

// ---- the sink ----

static void
progress(bt_choice *choice)
{
    mark(choice->call->client);
}

static void
send_last(bt_gateway_call *asked, bt_gateway_reply *reply)
{
    bt_router_gateway *gateway = asked->gateway;
    uint32_t conn = asked->conn;

    reply->id = asked->id;
    reply->name = name_once(asked);
    reply->last = true;
    release(asked); // before: the connection may break, and the call is not to be left twice
    bt_gateway_send(gateway, conn, reply);
}

static const bt_gateway_status fine = {.message = {"", 0}, .reason = {"", 0}, .field = {"", 0}};

static bool
end(bt_call *call, const bt_openai_usage *usage)
{
    bt_gateway_call *asked = call->client;
    bt_gateway_reply reply = {.status = fine};

    if (gather(call, SIZE_MAX, usage, &reply.body, &asked->gateway->write) != BT_OK ||
        reply.body.len > asked->gateway->options.sp.out_bytes_max / 2) {
        return false;
    }
    send_last(asked, &reply);
    return true;
}

static void
fail(bt_call *call, const bt_openai_error *error)
{
    bt_gateway_call *asked = call->client;
    bt_router_gateway *gateway = asked->gateway;
    uint32_t conn = asked->conn;
    uint64_t id = asked->id;
    bt_str name = name_once(asked);

    release(asked);
    bt_gateway_refuse(gateway, conn, id, name, error);
}

static void
answer_packed(bt_call *call, bt_err err, bt_str body)
{
    bt_gateway_call *asked = call->client;
    bt_gateway_reply reply = {.status = fine, .body = body};
    bt_openai_error error;

    if (err == BT_OK && body.len <= asked->gateway->options.sp.out_bytes_max / 2) {
        send_last(asked, &reply);
    } else {
        bt_openai_fail(&error, BT_ERR_TOO_LONG, 429, "answer_too_large", NULL,
                       "the answer is larger than this server sends in one message");
        fail(call, &error);
    }
}

static void
answer_tokenize(bt_call *call)
{
    bt_gateway_call *asked = call->client;
    bt_gateway_tokenized tokenized = {call->job.prompts[0].ids, call->job.prompts[0].count, call->calls->context};
    bt_str body = {"", 0};
    bt_err err;

    bt_wire_scratch_reset(&asked->gateway->write);
    err = bt_gateway_pack_tokenized(&body, &tokenized, &asked->gateway->write);
    answer_packed(call, err, body);
}

static void
answer_detokenize(bt_call *call)
{
    bt_gateway_call *asked = call->client;
    bt_str text = {call->job.text.data != NULL ? call->job.text.data : "", call->job.text.len}, body = {"", 0};
    bt_err err;

    bt_wire_scratch_reset(&asked->gateway->write);
    err = bt_gateway_pack_text(&body, text, &asked->gateway->write);
    answer_packed(call, err, body);
}

static const bt_call_sink sink = {progress, end, fail, answer_tokenize, answer_detokenize};

// ---- beginning, and the client's own end ----

static bt_err
start(bt_gateway_call *asked, const bt_gateway_request *request, const char *name, bt_openai_error *error)
{
    bt_buf body;
    bt_question question = {
        .sink = &sink,
        .edge = asked->gateway,
        .client = asked,
        .name = name,
        .task = request->method == BT_GATEWAY_GENERATE   ? BT_TEXT_COMPLETE
                : request->method == BT_GATEWAY_TOKENIZE ? BT_TEXT_TOKENIZE
                                                         : BT_TEXT_DETOKENIZE,
        .parse = bt_gateway_parse,
        .body = &body,
        .time_max = request->timeout_ms != 0 ? request->timeout_ms * BT_MILLISECOND : BT_TIME_NEVER,
        .wants_results = true,
    };

    bt_buf_init(&body, request->body.len);
    bt_buf_append(&body, request->body.data, request->body.len);
    if (body.failed) {
        return bt_openai_fail(error, BT_ERR_NO_MEMORY, 500, NULL, NULL, "no memory for this request");
    }
    return bt_call_start(&asked->call, asked->gateway->calls, &question, error);
}

static bt_gateway_call *
take(bt_router_gateway *gateway, uint32_t conn)
{
    bt_gateway_call *asked = gateway->free;

    if (asked == NULL || count_of(gateway, conn) >= gateway->options.calls_each_max) {
        return NULL;
    }
    gateway->free = asked->next;
    return asked;
}

void
bt_gateway_start(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    bt_gateway_call *asked = take(gateway, conn);
    char name[BT_REQUEST_NAME_MAX + 2] = "", taken[BT_REQUEST_NAME_MAX + 1];
    bt_openai_error error;

    memcpy(name, request->name.data, request->name.len < sizeof name - 1 ? request->name.len : sizeof name - 1);
    bt_calls_name(gateway->calls, name, taken);
    if (asked == NULL) {
        gateway->calls->metrics.rejected_busy++;
        bt_openai_fail(&error, BT_ERR_BUSY, 429, "too_many_requests", NULL,
                       "as many calls as one connection may have are under way");
        error.retry_after = BT_SECOND;
        bt_gateway_refuse(gateway, conn, request->id, bt_str_of(taken), &error);
        return;
    }
    *asked = (bt_gateway_call){
        .gateway = gateway,
        .conn = conn,
        .id = request->id,
        .credits = request->credits == 0            ? BT_GATEWAY_CREDITS
                   : request->credits < CREDITS_MAX ? request->credits
                                                    : CREDITS_MAX,
    };
    if (start(asked, request, taken, &error) != BT_OK) {
        give_back(asked);
        bt_gateway_refuse(gateway, conn, request->id, bt_str_of(taken), &error);
        return;
    }
    asked->next = gateway->of_conn[conn];
    gateway->of_conn[conn] = asked;
    bt_sp_keep(gateway->sp, conn, true);
}

void
bt_gateway_cancel(bt_gateway_call *asked)
{
    end_with(asked, BT_CODE_CANCELLED, "cancelled by the client");
}

void
bt_gateway_leave(bt_router_gateway *gateway, uint32_t conn)
{
    while (gateway->of_conn[conn] != NULL) {
        bt_call *call = gateway->of_conn[conn]->call;

        release(gateway->of_conn[conn]);
        bt_call_leave(call, "the client is gone");
        gateway->cancelled = true;
    }
}
