// Messages → protobuf bytes, in two steps, so that the bytes are written where they are to lie:
//
//     bt_wire_draft(&draft, &message, scratch);     builds protobuf-c's structs, which borrow the message's arrays
//     bt_wire_write(&draft, memory);                draft.bytes of them
//
// No state: any thread, with its own scratch.
#pragma once

#include "common/wire/message.h"
#include "common/wire/scratch.h"

typedef struct {
    const void *form; // ours
    size_t bytes;
} bt_wire_drafted;

// The scratch is reset first and lent until the draft was written. BT_ERR_INVALID for a message outside the limits of message.h,
// BT_ERR_TOO_LONG when the scratch is too small.
bt_err bt_wire_draft(bt_wire_drafted *out, const bt_message *message, bt_wire_scratch *scratch);
void bt_wire_write(const bt_wire_drafted *draft, uint8_t *out);
