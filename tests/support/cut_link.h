// A link for tests, both ends in one thread, that can be cut (all that is under way is lost, both ends see DOWN and UP) and that can
// lose single messages without a word.
#pragma once

#include "common/node/link.h"

typedef struct cut_link cut_link;

cut_link *cut_link_open(void);
void cut_link_close(cut_link *pair);

bt_link *cut_link_end(cut_link *pair, int side); // 0 or 1; closed with the pair
void cut_link_cut(cut_link *pair);
// The next message of this kind that `side` sends is lost.
void cut_link_lose_next(cut_link *pair, int side, bt_message_kind kind);
// `side`'s sends of this kind are answered with BUSY until set to BT_MESSAGE_NONE.
void cut_link_refuse(cut_link *pair, int side, bt_message_kind kind);
