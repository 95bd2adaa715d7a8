// Messages by chance, within the limits of common/wire/message.h, and their equality down to the last bit.
#pragma once

#include "common/base/rng.h"
#include "common/wire/message.h"

// What it points to lies in static arrays: good until the next draw. `kind` NONE = any.
void bt_draw_message(bt_rng *rng, bt_message_kind kind, bt_message *out);

// Every field and every array, padding included: both must have been built in cleared memory.
bool bt_same_message(const bt_message *a, const bt_message *b);
