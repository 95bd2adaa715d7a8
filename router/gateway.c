// Opens and closes the RPC edge, judges what comes, and answers what needs no model.
#include "router/gateway_impl.h"

#include "common/base/log.h"
#include "common/base/mem.h"

#include <string.h>

// ---- replies ----

bool
bt_gateway_send(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_reply *reply)
{
    bt_gateway_draft draft;
    uint8_t *memory;

    if (bt_gateway_draft_reply(&draft, reply, &gateway->write) != BT_OK) {
        bt_sp_drop(gateway->sp, conn, "a reply that does not fit");
        return false;
    }
    memory = bt_sp_begin(gateway->sp, conn, draft.bytes);
    if (memory != NULL) {
        bt_gateway_write(&draft, memory);
    }
    return memory != NULL;
}

static bt_code
code_of(const bt_openai_error *error)
{
    switch (error->status) {
    case 401:
        return BT_CODE_UNAUTHENTICATED;
    case 404:
        return BT_CODE_NOT_FOUND;
    case 429:
        return BT_CODE_RESOURCE_EXHAUSTED;
    case 501:
        return BT_CODE_UNIMPLEMENTED;
    case 503:
        return BT_CODE_UNAVAILABLE;
    case 504:
        return BT_CODE_DEADLINE_EXCEEDED;
    default:
        return error->status < 500 ? BT_CODE_INVALID_ARGUMENT : BT_CODE_INTERNAL;
    }
}

void
bt_gateway_refuse(bt_router_gateway *gateway, uint32_t conn, uint64_t id, bt_str name, const bt_openai_error *error)
{
    bt_gateway_reply reply = {
        .id = id,
        .name = name,
        .last = true,
        .status = {.code = code_of(error),
                   .message = bt_str_of(error->message),
                   .reason = bt_str_of(error->code != NULL ? error->code : ""),
                   .field = bt_str_of(error->param),
                   .retry_after_ms = (uint32_t)(error->retry_after / BT_MILLISECOND)},
        .body = {"", 0},
    };

    bt_wire_scratch_reset(&gateway->write);
    bt_gateway_send(gateway, conn, &reply);
}

// A small answer: what was packed into the scratch just now.
static void
answer(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request, bt_str body)
{
    bt_gateway_reply reply = {
        .id = request->id,
        .name = {"", 0},
        .last = true,
        .status = {.message = {"", 0}, .reason = {"", 0}, .field = {"", 0}},
        .body = body,
    };

    bt_gateway_send(gateway, conn, &reply);
}

static void
refuse(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request, unsigned status,
       const char *reason, const char *words)
{
    bt_openai_error error;

    bt_openai_fail(&error, BT_ERR_INVALID, status, reason, NULL, "%s", words);
    bt_gateway_refuse(gateway, conn, request->id, (bt_str){"", 0}, &error);
}

// ---- methods that need no model ----

static void
on_cancel(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    bt_gateway_call *asked;
    uint64_t id;

    if (bt_gateway_read_cancel(&id, request->body, &gateway->read) != BT_OK) {
        refuse(gateway, conn, request, 400, NULL, "body: not a CancelRequest");
    } else if ((asked = bt_gateway_find(gateway, conn, id)) == NULL) {
        refuse(gateway, conn, request, 404, NULL, "id: no such call is under way");
    } else {
        bt_gateway_cancel(asked);
        bt_wire_scratch_reset(&gateway->write);
        answer(gateway, conn, request, (bt_str){"", 0});
    }
}

static void
on_models(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    const bt_calls *calls = gateway->calls;
    bt_gateway_model model = {bt_str_of(calls->options.model), calls->context};
    bt_str body = {"", 0};

    if (calls->edge == NULL) {
        refuse(gateway, conn, request, 503, "loading", "the model is being loaded");
        return;
    }
    bt_wire_scratch_reset(&gateway->write);
    bt_gateway_pack_models(&body, &model, 1, &gateway->write);
    answer(gateway, conn, request, body);
}

static void
on_health(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    const bt_calls *calls = gateway->calls;
    bt_gateway_state state = calls->draining         ? BT_STATE_DRAINING
                             : calls->edge == NULL   ? BT_STATE_LOADING
                             : bt_calls_ready(calls) ? BT_STATE_READY
                                                     : BT_STATE_NO_NODE;
    bt_str body = {"", 0};

    bt_wire_scratch_reset(&gateway->write);
    bt_gateway_pack_health(&body, state, &gateway->write);
    answer(gateway, conn, request, body);
}

static void
on_stats(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    const bt_calls *calls = gateway->calls;
    const bt_router_metrics *m = &calls->metrics;
    bt_router_stats router = {0};
    bt_gateway_stats stats = {
        .calls = calls->calls_open,
        .connections = bt_sp_connections(gateway->sp),
        .uptime_ms = (uint64_t)((bt_loop_now(gateway->loop) - gateway->opened) / BT_MILLISECOND),
        .done = m->done_stop + m->done_length + m->done_mixed,
        .failed = m->failed,
        .cancelled = m->cancelled,
        .rejected =
            m->rejected_invalid + m->rejected_too_long + m->rejected_busy + m->rejected_auth + m->rejected_not_ready,
        .prompt_tokens = m->prompt_tokens,
        .cached_tokens = m->cached_tokens,
        .completion_tokens = m->generation_tokens,
    };
    bt_str body = {"", 0};

    if (calls->edge != NULL) {
        bt_router_edge_stats(calls->edge, &router);
    }
    stats.running = router.running;
    stats.queued = router.queued;
    stats.nodes = router.nodes_up;
    bt_wire_scratch_reset(&gateway->write);
    bt_gateway_pack_stats(&body, &stats, &gateway->write);
    answer(gateway, conn, request, body);
}

// ---- what comes ----

static bool
may_ask(const bt_router_gateway *gateway, bt_str auth)
{
    char key[BT_TEXT_LIST_BYTES + 1];

    if (auth.len >= sizeof key || memchr(auth.data, 0, auth.len) != NULL) {
        return bt_calls_may_ask(gateway->calls, NULL);
    }
    memcpy(key, auth.data, auth.len);
    key[auth.len] = 0;
    return bt_calls_may_ask(gateway->calls, key);
}

static void
dispatch(bt_router_gateway *gateway, uint32_t conn, const bt_gateway_request *request)
{
    switch (request->method) {
    case BT_GATEWAY_GENERATE:
    case BT_GATEWAY_TOKENIZE:
    case BT_GATEWAY_DETOKENIZE:
        bt_gateway_start(gateway, conn, request);
        break;
    case BT_GATEWAY_CANCEL:
        on_cancel(gateway, conn, request);
        break;
    case BT_GATEWAY_MODELS:
        on_models(gateway, conn, request);
        break;
    case BT_GATEWAY_HEALTH:
        on_health(gateway, conn, request);
        break;
    case BT_GATEWAY_STATS:
        on_stats(gateway, conn, request);
        break;
    default:
        refuse(gateway, conn, request, 501, NULL, "method: not one that this server knows");
    }
}

static void
on_message(void *self, uint32_t conn, const uint8_t *bytes, size_t length)
{
    bt_router_gateway *gateway = self;
    bt_gateway_request request;

    bt_wire_scratch_reset(&gateway->read);
    if (bt_gateway_read_request(&request, bytes, length, &gateway->read) != BT_OK) {
        gateway->counts.malformed++;
        bt_sp_drop(gateway->sp, conn, "a message that is no Request of proto/gateway.proto");
        return;
    }
    gateway->counts.calls[request.method]++;
    if (request.method == BT_GATEWAY_CREDIT) {
        bt_gateway_give_credit(gateway, conn, &request);
    } else if (bt_gateway_find(gateway, conn, request.id) != NULL) {
        gateway->counts.malformed++;
        bt_sp_drop(gateway->sp, conn, "a call with the id of one that is under way");
    } else if (request.method != BT_GATEWAY_HEALTH && !may_ask(gateway, request.auth)) {
        gateway->calls->metrics.rejected_auth++;
        refuse(gateway, conn, &request, 401, "invalid_api_key", "this server wants a key: auth");
    } else {
        dispatch(gateway, conn, &request);
    }
}

static void
on_sent(void *self, uint32_t conn)
{
    bt_gateway_wake(self, conn);
}

static void
on_gone(void *self, uint32_t conn)
{
    bt_gateway_leave(self, conn);
}

static bt_time
turn(void *self, bt_time now)
{
    bt_router_gateway *gateway = self;
    bool again;

    bt_gateway_pump(gateway);
    bt_sp_flush(gateway->sp);
    again = gateway->cancelled;
    gateway->cancelled = false;
    return again ? now : BT_TIME_NEVER; // the core's turn has been: what a cancel sends to the nodes waits for the next
}

// ---- open and close ----

static bt_err
open_memory(bt_router_gateway *gateway, bt_why *why)
{
    const bt_sp_options *sp = &gateway->options.sp;
    uint32_t count = gateway->calls->options.calls_max;
    size_t read = sp->message_bytes_max + (64u << 10), write = 3 * sp->out_bytes_max;

    gateway->pool = bt_alloc_array(count, sizeof *gateway->pool);
    gateway->of_conn = bt_alloc_array(sp->connections_max, sizeof *gateway->of_conn);
    // Pages that nobody writes to take no memory: these are as large as the largest message needs.
    bt_wire_scratch_init(&gateway->read, bt_alloc(read), read);
    bt_wire_scratch_init(&gateway->write, bt_alloc(write), write);
    if (gateway->pool == NULL || gateway->of_conn == NULL || gateway->read.memory == NULL ||
        gateway->write.memory == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the gateway");
    }
    for (uint32_t i = 0; i < count; i++) {
        gateway->pool[i].next = gateway->free;
        gateway->free = &gateway->pool[i];
    }
    return BT_OK;
}

bt_err
bt_router_gateway_open(bt_router_gateway **out, bt_loop *loop, bt_calls *calls,
                       const bt_router_gateway_options *options, bt_why *why)
{
    bt_router_gateway *gateway = bt_alloc(sizeof *gateway);
    bt_sp_handler handler = {gateway, on_message, on_sent, on_gone};
    bt_err err;

    if (gateway == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for the gateway");
    }
    gateway->loop = loop;
    gateway->calls = calls;
    gateway->options = *options;
    gateway->opened = bt_loop_now(loop);
    gateway->turn = (bt_turn){.turn = turn, .self = gateway};
    if ((err = open_memory(gateway, why)) != BT_OK ||
        (err = bt_sp_open(&gateway->sp, loop, &options->sp, &handler, why)) != BT_OK) {
        bt_router_gateway_close(gateway);
        return err;
    }
    bt_loop_add_turn(loop, &gateway->turn);
    bt_log_info("GATEWAY-LISTENS", "%s, port %u", options->sp.listen, bt_sp_port(gateway->sp));
    *out = gateway;
    return BT_OK;
}

void
bt_router_gateway_close(bt_router_gateway *gateway)
{
    if (gateway == NULL) {
        return;
    }
    if (gateway->sp != NULL) {
        bt_loop_remove_turn(gateway->loop, &gateway->turn);
        for (uint32_t i = 0; i < gateway->options.sp.connections_max; i++) {
            bt_gateway_leave(gateway, i);
        }
    }
    bt_sp_close(gateway->sp);
    bt_free(gateway->read.memory);
    bt_free(gateway->write.memory);
    bt_free(gateway->of_conn);
    bt_free(gateway->pool);
    bt_free(gateway);
}

void
bt_router_gateway_drain(bt_router_gateway *gateway)
{
    if (gateway != NULL) {
        bt_sp_stop_accepting(gateway->sp);
    }
}

bool
bt_router_gateway_idle(const bt_router_gateway *gateway)
{
    for (uint32_t i = 0; gateway != NULL && i < gateway->options.sp.connections_max; i++) {
        if (gateway->of_conn[i] != NULL || bt_sp_waiting(gateway->sp, i) != 0) {
            return false;
        }
    }
    return true;
}

uint16_t
bt_router_gateway_port(const bt_router_gateway *gateway)
{
    return bt_sp_port(gateway->sp);
}

// ---- metrics ----

typedef struct {
    bt_gateway_counts counts;
    bt_sp_stats sp;
    double connections;
} measured;

#define COUNT(field) (offsetof(measured, counts) + offsetof(bt_gateway_counts, field))
#define SP(field) (offsetof(measured, sp) + offsetof(bt_sp_stats, field))
#define METHOD(number, name)                                                                                           \
    {                                                                                                                  \
        BT_METRIC_COUNTER, COUNT(calls) + (number) * sizeof(uint64_t), "baton:gateway_requests_total",                 \
            "Messages of clients, by method.", "method=\"" name "\"", NULL                                             \
    }
#define CLOSED(field, name)                                                                                            \
    {                                                                                                                  \
        BT_METRIC_COUNTER, SP(field), "baton:gateway_connections_refused_total",                                       \
            "Connections closed by us: crowded (more than there may be), foreign (not our protocol), stalled (too "    \
            "slow).",                                                                                                  \
            "reason=\"" name "\"", NULL                                                                                \
    }

static const bt_metric table[] = {
    {BT_METRIC_GAUGE, offsetof(measured, connections), "baton:gateway_connections", "Clients that are connected.", NULL,
     NULL},
    METHOD(BT_GATEWAY_GENERATE, "generate"),
    METHOD(BT_GATEWAY_CANCEL, "cancel"),
    METHOD(BT_GATEWAY_TOKENIZE, "tokenize"),
    METHOD(BT_GATEWAY_DETOKENIZE, "detokenize"),
    METHOD(BT_GATEWAY_MODELS, "models"),
    METHOD(BT_GATEWAY_HEALTH, "health"),
    METHOD(BT_GATEWAY_STATS, "stats"),
    METHOD(BT_GATEWAY_CREDIT, "credit"),
    METHOD(BT_GATEWAY_METHODS, "unknown"),
    {BT_METRIC_COUNTER, COUNT(malformed), "baton:gateway_malformed_total", "Messages that were no requests.", NULL,
     NULL},
    CLOSED(refused, "crowded"),
    CLOSED(foreign, "foreign"),
    CLOSED(stalled, "stalled"),
    {BT_METRIC_COUNTER, SP(messages_out), "baton:gateway_replies_total", "Messages to clients.", NULL, NULL},
    {BT_METRIC_COUNTER, SP(bytes_in), "baton:gateway_received_bytes_total", "From clients.", NULL, NULL},
    {BT_METRIC_COUNTER, SP(bytes_out), "baton:gateway_sent_bytes_total", "To clients.", NULL, NULL},
    {0},
};

void
bt_router_gateway_write_metrics(const bt_router_gateway *gateway, bt_buf *out, const char *labels)
{
    measured now;

    if (gateway == NULL) {
        return;
    }
    now.counts = gateway->counts;
    bt_sp_read_stats(gateway->sp, &now.sp);
    now.connections = bt_sp_connections(gateway->sp);
    bt_metrics_write(out, table, &now, labels);
}
