// Which prefill nodes this node can fetch from: those that it hears and whose memory its edge has read a real block of. Routers are told
// their epochs in heartbeats and send prompts to no others. Private to the node's core. One thread.
#pragma once

#include "decode-node/inside.h"

// The edge has proved the peer's program of this epoch, or lost its memory again. What it says of an earlier epoch changes nothing later.
void bt_source_proved(bt_decode_core *core, uint32_t peer, uint64_t epoch, bool up);

// Brings core->sources up to date; true when that changed something.
bool bt_source_list(bt_decode_core *core);
