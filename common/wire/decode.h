// Protobuf bytes → messages. The bytes are a stranger's: every count, enum, name and pairing is checked, and memory is the scratch
// and nothing else. No state: any thread, with its own scratch.
#pragma once

#include "common/wire/message.h"
#include "common/wire/scratch.h"

// The scratch is reset first; the message and all it points to lie in it and in nothing else. BT_ERR_INVALID for what is malformed or
// outside the limits of message.h, BT_ERR_TOO_LONG for what the scratch does not hold. Fields we do not know are skipped: a newer
// program may send them. A message of a kind that we do not know is BT_ERR_UNSUPPORTED.
bt_err bt_wire_decode(const bt_message **out, const uint8_t *bytes, size_t length, bt_wire_scratch *scratch);
