// Envelopes.
#include "common/wire/gateway_impl.h"

static const char *const code_names[BT_CODES] = {
    "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
};

const char *
bt_code_name(bt_code code)
{
    return (unsigned)code < BT_CODES ? code_names[code] : "UNKNOWN";
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

void *
bt_gateway_unpack(const ProtobufCMessageDescriptor *kind, const void *bytes, size_t length, bt_wire_scratch *scratch)
{
    ProtobufCAllocator allocator = {take, keep, scratch};

    return protobuf_c_message_unpack(kind, &allocator, length, bytes);
}

bt_err
bt_gateway_pack(bt_str *out, const ProtobufCMessage *form, bt_wire_scratch *scratch)
{
    size_t bytes = scratch->failed ? 0 : protobuf_c_message_get_packed_size(form);
    uint8_t *room = bt_wire_take(scratch, bytes);

    if (room == NULL)
        return BT_ERR_TOO_LONG;
    protobuf_c_message_pack(form, room);
    *out = (bt_str){(const char *)room, bytes};
    return BT_OK;
}

static bt_err
draft(bt_gateway_draft *out, const ProtobufCMessage *form, bt_wire_scratch *scratch)
{
    if (form == NULL || scratch->failed)
        return BT_ERR_TOO_LONG;
    *out = (bt_gateway_draft){form, protobuf_c_message_get_packed_size(form)};
    return BT_OK;
}

bt_err
bt_gateway_draft_request(bt_gateway_draft *out, const bt_gateway_request *request, bt_wire_scratch *scratch)
{
    Baton__Gateway__Request form = BATON__GATEWAY__REQUEST__INIT;

    form.id = request->id;
    form.method = (Baton__Gateway__Method)request->method;
    form.timeout_ms = request->timeout_ms;
    form.credits = request->credits;
    form.auth = bt_gateway_bytes(request->auth);
    form.name = bt_gateway_bytes(request->name);
    form.body = bt_gateway_bytes(request->body);
    return draft(out, bt_wire_put(scratch, &form, sizeof form), scratch);
}

static Baton__Gateway__Status *
encode_status(bt_wire_scratch *scratch, const bt_gateway_status *status)
{
    Baton__Gateway__Status form = BATON__GATEWAY__STATUS__INIT;

    form.code = (Baton__Gateway__Code)status->code;
    form.message = bt_gateway_bytes(status->message);
    form.reason = bt_gateway_bytes(status->reason);
    form.field = bt_gateway_bytes(status->field);
    form.retry_after_ms = status->retry_after_ms;
    return bt_wire_put(scratch, &form, sizeof form);
}

bt_err
bt_gateway_draft_reply(bt_gateway_draft *out, const bt_gateway_reply *reply, bt_wire_scratch *scratch)
{
    Baton__Gateway__Reply form = BATON__GATEWAY__REPLY__INIT;

    form.id = reply->id;
    form.name = bt_gateway_bytes(reply->name);
    form.status = reply->last ? encode_status(scratch, &reply->status) : NULL;
    form.body = bt_gateway_bytes(reply->body);
    return draft(out, bt_wire_put(scratch, &form, sizeof form), scratch);
}

void
bt_gateway_write(const bt_gateway_draft *out, uint8_t *memory)
{
    protobuf_c_message_pack(out->form, memory);
}

bt_err
bt_gateway_read_request(bt_gateway_request *out, const void *bytes, size_t length, bt_wire_scratch *scratch)
{
    const Baton__Gateway__Request *form =
        bt_gateway_unpack(&baton__gateway__request__descriptor, bytes, length, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    if (form->id == 0)
        return BT_ERR_INVALID;
    *out = (bt_gateway_request){
        .id = form->id,
        .method = (unsigned)form->method < BT_GATEWAY_METHODS ? (bt_gateway_method)form->method : BT_GATEWAY_METHODS,
        .timeout_ms = form->timeout_ms,
        .credits = form->credits,
        .auth = bt_gateway_text(form->auth),
        .name = bt_gateway_text(form->name),
        .body = bt_gateway_text(form->body),
    };
    return BT_OK;
}

bt_err
bt_gateway_read_reply(bt_gateway_reply *out, const void *bytes, size_t length, bt_wire_scratch *scratch)
{
    const Baton__Gateway__Reply *form = bt_gateway_unpack(&baton__gateway__reply__descriptor, bytes, length, scratch);

    if (form == NULL)
        return bt_gateway_bad(scratch);
    if (form->id == 0)
        return BT_ERR_INVALID;
    *out = (bt_gateway_reply){.id = form->id, .name = bt_gateway_text(form->name), .body = bt_gateway_text(form->body)};
    if (form->status != NULL) {
        out->last = true;
        out->status = (bt_gateway_status){
            .code = (unsigned)form->status->code < BT_CODES ? (bt_code)form->status->code : BT_CODE_UNKNOWN,
            .message = bt_gateway_text(form->status->message),
            .reason = bt_gateway_text(form->status->reason),
            .field = bt_gateway_text(form->status->field),
            .retry_after_ms = form->status->retry_after_ms,
        };
    }
    return BT_OK;
}
