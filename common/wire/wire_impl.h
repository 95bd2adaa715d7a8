// What the families of messages share: encode_*.c turn structs into protobuf-c's forms, decode_*.c turn them back.
#pragma once

#include "common/wire/message.h"
#include "common/wire/scratch.h"

#include "proto/node.pb-c.h"

// Forms lie in the scratch; NULL when it is full, which the scratch remembers: only the outermost caller asks.
Baton__Job *bt_encode_job(bt_wire_scratch *scratch, const bt_job *job);
Baton__TicketReply *bt_encode_ticket_reply(bt_wire_scratch *scratch, const bt_ticket_reply *reply);
Baton__Start *bt_encode_start(bt_wire_scratch *scratch, const bt_start *start);
Baton__Abort *bt_encode_abort(bt_wire_scratch *scratch, const bt_abort *abort);
Baton__Await *bt_encode_await(bt_wire_scratch *scratch, const bt_await *await);
Baton__Prefill *bt_encode_prefill(bt_wire_scratch *scratch, const bt_prefill *prefill);
Baton__Tokens *bt_encode_tokens(bt_wire_scratch *scratch, const bt_tokens *tokens);
Baton__Offer *bt_encode_offer(bt_wire_scratch *scratch, const bt_offer *offer);
Baton__Taken *bt_encode_taken(bt_wire_scratch *scratch, const bt_taken *taken);
Baton__RequestId *bt_encode_request(bt_wire_scratch *scratch, bt_request_id request);
Baton__Ticket *bt_encode_ticket(bt_wire_scratch *scratch, const bt_ticket *ticket);

// False for what a message may not say. `out` is zeroed before; what is borrowed lies in the form or the scratch.
bool bt_decode_job(bt_wire_scratch *scratch, const Baton__Job *form, bt_job *out);
bool bt_decode_ticket_reply(const Baton__TicketReply *form, bt_ticket_reply *out);
bool bt_decode_start(const Baton__Start *form, bt_start *out);
bool bt_decode_abort(const Baton__Abort *form, bt_abort *out);
bool bt_decode_await(const Baton__Await *form, bt_await *out);
bool bt_decode_prefill(bt_wire_scratch *scratch, const Baton__Prefill *form, bt_prefill *out);
bool bt_decode_tokens(bt_wire_scratch *scratch, const Baton__Tokens *form, bt_tokens *out);
bool bt_decode_offer(bt_wire_scratch *scratch, const Baton__Offer *form, bt_offer *out);
bool bt_decode_taken(const Baton__Taken *form, bt_taken *out);
bool bt_decode_request(const Baton__RequestId *form, bt_request_id *out);
bool bt_decode_ticket(const Baton__Ticket *form, bt_ticket *out);
bool bt_decode_name(const char *text, char out[BT_NODE_NAME_MAX]);

Baton__Error bt_encode_error(bt_err err);
bool bt_decode_error(Baton__Error form, bt_err *out);
