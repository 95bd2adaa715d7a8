// proto/node.proto, and the choice among all kinds.
#include "common/wire/encode.h"
#include "common/wire/wire_impl.h"

static Baton__Hello *
encode_hello(bt_wire_scratch *scratch, const bt_hello *hello)
{
    Baton__Hello form = BATON__HELLO__INIT;

    form.name = (char *)hello->name;
    form.role = (Baton__Role)(hello->role + 1);
    form.epoch = hello->epoch;
    form.model = hello->model;
    form.weights = hello->weights;
    form.layout = hello->layout;
    form.sequences = hello->sequences;
    form.queue = hello->queue;
    form.blocks = hello->blocks;
    form.block_tokens = hello->block_tokens;
    form.context = hello->context;
    form.draining = hello->draining;
    form.version = hello->version;
    form.kv_format = (Baton__KvFormat)hello->kv_format;
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__Heartbeat *
encode_heartbeat(bt_wire_scratch *scratch, const bt_heartbeat *heartbeat)
{
    Baton__Heartbeat form = BATON__HEARTBEAT__INIT;

    form.number = heartbeat->number;
    form.tokens_number = heartbeat->tokens_number;
    form.running = heartbeat->running;
    form.queued = heartbeat->queued;
    form.blocks_free = heartbeat->blocks_free;
    form.n_sources = heartbeat->source_count;
    form.sources = (uint64_t *)heartbeat->sources;
    return bt_wire_put(scratch, &form, sizeof form);
}

static Baton__Description *
encode_description(bt_wire_scratch *scratch, const bt_description *description)
{
    Baton__Description form = BATON__DESCRIPTION__INIT;

    form.epoch = description->epoch;
    form.layout = description->layout;
    form.blocks = description->blocks;
    form.bytes = (ProtobufCBinaryData){description->byte_count, (uint8_t *)description->bytes};
    return bt_wire_put(scratch, &form, sizeof form);
}

static void
encode_body(bt_wire_scratch *scratch, const bt_message *message, Baton__Message *form)
{
    switch (message->kind) {
    case BT_MESSAGE_HELLO:
        form->body_case = BATON__MESSAGE__BODY_HELLO;
        form->hello = encode_hello(scratch, &message->hello);
        break;
    case BT_MESSAGE_HEARTBEAT:
        form->body_case = BATON__MESSAGE__BODY_HEARTBEAT;
        form->heartbeat = encode_heartbeat(scratch, &message->heartbeat);
        break;
    case BT_MESSAGE_RESERVE:
        form->body_case = BATON__MESSAGE__BODY_RESERVE;
        form->reserve = bt_encode_job(scratch, &message->reserve);
        break;
    case BT_MESSAGE_TICKET:
        form->body_case = BATON__MESSAGE__BODY_TICKET;
        form->ticket = bt_encode_ticket_reply(scratch, &message->ticket);
        break;
    case BT_MESSAGE_START:
        form->body_case = BATON__MESSAGE__BODY_START;
        form->start = bt_encode_start(scratch, &message->start);
        break;
    case BT_MESSAGE_ABORT:
        form->body_case = BATON__MESSAGE__BODY_ABORT;
        form->abort = bt_encode_abort(scratch, &message->abort);
        break;
    case BT_MESSAGE_TOKENS:
        form->body_case = BATON__MESSAGE__BODY_TOKENS;
        form->tokens = bt_encode_tokens(scratch, &message->tokens);
        break;
    case BT_MESSAGE_AWAIT:
        form->body_case = BATON__MESSAGE__BODY_AWAIT;
        form->await = bt_encode_await(scratch, &message->await);
        break;
    case BT_MESSAGE_PREFILL:
        form->body_case = BATON__MESSAGE__BODY_PREFILL;
        form->prefill = bt_encode_prefill(scratch, &message->prefill);
        break;
    case BT_MESSAGE_DESCRIPTION:
        form->body_case = BATON__MESSAGE__BODY_DESCRIPTION;
        form->description = encode_description(scratch, &message->description);
        break;
    case BT_MESSAGE_OFFER:
        form->body_case = BATON__MESSAGE__BODY_OFFER;
        form->offer = bt_encode_offer(scratch, &message->offer);
        break;
    case BT_MESSAGE_TAKEN:
        form->body_case = BATON__MESSAGE__BODY_TAKEN;
        form->taken = bt_encode_taken(scratch, &message->taken);
        break;
    case BT_MESSAGE_NONE:
    case BT_MESSAGE_KINDS:
        break; // bt_message_check has refused them
    }
}

bt_err
bt_wire_draft(bt_wire_drafted *out, const bt_message *message, bt_wire_scratch *scratch)
{
    Baton__Message form = BATON__MESSAGE__INIT;
    const Baton__Message *kept;

    bt_wire_scratch_reset(scratch);
    if (bt_message_check(message) != BT_OK)
        return BT_ERR_INVALID;
    encode_body(scratch, message, &form);
    kept = bt_wire_put(scratch, &form, sizeof form);
    if (scratch->failed)
        return BT_ERR_TOO_LONG;
    *out = (bt_wire_drafted){kept, baton__message__get_packed_size(kept)};
    return BT_OK;
}

void
bt_wire_write(const bt_wire_drafted *draft, uint8_t *out)
{
    baton__message__pack(draft->form, out);
}
