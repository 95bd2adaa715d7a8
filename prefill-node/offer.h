// What decode nodes are told of finished blocks, and what they answer. Private to the node's core.
#pragma once

#include "prefill-node/inside.h"

// The blocks that `computed` has filled, the last one of the prompt even in part: indexed, stamped, and now to be offered.
void bt_offer_finish(bt_prefill_core *core, bt_prompt *prompt, bt_prefill_actions *out);

// Offers what is finished and not offered yet, as far as the actions have room.
void bt_offer_send(bt_prefill_core *core, bt_prefill_actions *out);

void bt_offer_taken(bt_prefill_core *core, uint32_t peer, const bt_taken *taken);
