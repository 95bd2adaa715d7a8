// proto/node.proto, back, and the choice among all kinds.
#include "common/wire/decode.h"
#include "common/wire/wire_impl.h"

static bool
decode_hello(const Baton__Hello *form, bt_hello *out)
{
    if (form->role < BATON__ROLE__ROLE_DECODE || form->role > BATON__ROLE__ROLE_ROUTER)
        return false;
    out->role = (bt_node_role)(form->role - 1);
    out->epoch = form->epoch;
    out->model = form->model;
    out->weights = form->weights;
    out->layout = form->layout;
    out->sequences = form->sequences;
    out->queue = form->queue;
    out->blocks = form->blocks;
    out->block_tokens = form->block_tokens;
    out->context = form->context;
    out->draining = form->draining;
    out->version = form->version != 0 ? form->version : 1; // absent in the first programs
    out->kv_format = (uint32_t)form->kv_format;
    return bt_decode_name(form->name, out->name);
}

static bool
decode_heartbeat(const Baton__Heartbeat *form, bt_heartbeat *out)
{
    out->number = form->number;
    out->tokens_number = form->tokens_number;
    out->running = form->running;
    out->queued = form->queued;
    out->blocks_free = form->blocks_free;
    out->source_count = (uint32_t)form->n_sources;
    out->sources = form->sources;
    return form->n_sources <= BT_SOURCES_MAX;
}

static bool
decode_description(const Baton__Description *form, bt_description *out)
{
    if (form->bytes.len > BT_DESCRIPTION_BYTES_MAX)
        return false;
    out->epoch = form->epoch;
    out->layout = form->layout;
    out->blocks = form->blocks;
    out->byte_count = (uint32_t)form->bytes.len;
    out->bytes = form->bytes.data;
    return true;
}

static bool
decode_body(bt_wire_scratch *scratch, const Baton__Message *form, bt_message *out)
{
    switch (form->body_case) {
    case BATON__MESSAGE__BODY_HELLO:
        out->kind = BT_MESSAGE_HELLO;
        return decode_hello(form->hello, &out->hello);
    case BATON__MESSAGE__BODY_HEARTBEAT:
        out->kind = BT_MESSAGE_HEARTBEAT;
        return decode_heartbeat(form->heartbeat, &out->heartbeat);
    case BATON__MESSAGE__BODY_RESERVE:
        out->kind = BT_MESSAGE_RESERVE;
        return bt_decode_job(scratch, form->reserve, &out->reserve);
    case BATON__MESSAGE__BODY_TICKET:
        out->kind = BT_MESSAGE_TICKET;
        return bt_decode_ticket_reply(form->ticket, &out->ticket);
    case BATON__MESSAGE__BODY_START:
        out->kind = BT_MESSAGE_START;
        return bt_decode_start(form->start, &out->start);
    case BATON__MESSAGE__BODY_ABORT:
        out->kind = BT_MESSAGE_ABORT;
        return bt_decode_abort(form->abort, &out->abort);
    case BATON__MESSAGE__BODY_TOKENS:
        out->kind = BT_MESSAGE_TOKENS;
        return bt_decode_tokens(scratch, form->tokens, &out->tokens);
    case BATON__MESSAGE__BODY_AWAIT:
        out->kind = BT_MESSAGE_AWAIT;
        return bt_decode_await(form->await, &out->await);
    case BATON__MESSAGE__BODY_PREFILL:
        out->kind = BT_MESSAGE_PREFILL;
        return bt_decode_prefill(scratch, form->prefill, &out->prefill);
    case BATON__MESSAGE__BODY_DESCRIPTION:
        out->kind = BT_MESSAGE_DESCRIPTION;
        return decode_description(form->description, &out->description);
    case BATON__MESSAGE__BODY_OFFER:
        out->kind = BT_MESSAGE_OFFER;
        return bt_decode_offer(scratch, form->offer, &out->offer);
    case BATON__MESSAGE__BODY_TAKEN:
        out->kind = BT_MESSAGE_TAKEN;
        return bt_decode_taken(form->taken, &out->taken);
    default:
        return false;
    }
}

static void *
take(void *scratch, size_t bytes)
{
    return bt_wire_take(scratch, bytes);
}

static void
keep(void *scratch, void *memory)
{
    (void)scratch, (void)memory; // all of it goes with the next reset
}

bt_err
bt_wire_decode(const bt_message **out, const uint8_t *bytes, size_t length, bt_wire_scratch *scratch)
{
    ProtobufCAllocator allocator = {take, keep, scratch};
    Baton__Message *form;
    bt_message *message;

    bt_wire_scratch_reset(scratch);
    form = baton__message__unpack(&allocator, length, bytes);
    message = form != NULL ? bt_wire_take_array(scratch, 1, sizeof *message) : NULL;
    if (message == NULL)
        return scratch->failed ? BT_ERR_TOO_LONG : BT_ERR_INVALID;
    if (form->body_case == BATON__MESSAGE__BODY__NOT_SET)
        return BT_ERR_UNSUPPORTED;
    if (!decode_body(scratch, form, message))
        return scratch->failed ? BT_ERR_TOO_LONG : BT_ERR_INVALID;
    if (bt_message_check(message) != BT_OK)
        return BT_ERR_INVALID;
    *out = message;
    return BT_OK;
}
