// What the parts of the gateway's wire share: gateway_call.c (envelopes), gateway_ask.c (arguments), gateway_answer.c (results).
#pragma once

#include "common/wire/gateway.h"

#include "proto/gateway.pb-c.h"

static inline ProtobufCBinaryData
bt_gateway_bytes(bt_str text)
{
    return (ProtobufCBinaryData){text.len, (uint8_t *)text.data};
}

static inline bt_str
bt_gateway_text(ProtobufCBinaryData bytes)
{
    return (bt_str){bytes.data != NULL ? (const char *)bytes.data : "", bytes.len};
}

// The form as bytes, in the scratch.
bt_err bt_gateway_pack(bt_str *out, const ProtobufCMessage *form, bt_wire_scratch *scratch);
// NULL: no such message, or the scratch is full, which it remembers.
void *bt_gateway_unpack(const ProtobufCMessageDescriptor *kind, const void *bytes, size_t length,
                        bt_wire_scratch *scratch);
// What a NULL of the above means.
static inline bt_err
bt_gateway_bad(const bt_wire_scratch *scratch)
{
    return scratch->failed ? BT_ERR_TOO_LONG : BT_ERR_INVALID;
}
