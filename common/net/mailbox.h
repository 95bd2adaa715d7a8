// A bounded queue of fixed-size messages from any thread to one thread that runs a loop, or to threads that wait.
//
// Messages are copied in and out by value; what they point to changes its owner with them. A full box is an answer
// (BT_ERR_BUSY), not a wait. Order is kept for each sender.
#pragma once

#include "common/net/loop.h"

#include <stddef.h>

typedef struct bt_mailbox bt_mailbox;

// Everything is allocated here: capacity × message_bytes.
bt_err bt_mailbox_open(bt_mailbox **out, uint32_t capacity, size_t message_bytes);
// NULL is fine. After all senders have stopped; messages still in it are dropped.
void bt_mailbox_close(bt_mailbox *box);

// Lets a loop read the box: `read` is called for each message, on the loop's thread, at most the box's capacity a turn. The
// message is valid during the call. Detached by bt_mailbox_detach, before the loop closes; closing the box detaches it too.
bt_err bt_mailbox_attach(bt_mailbox *box, bt_loop *loop, void (*read)(void *self, const void *message), void *self);
void bt_mailbox_detach(bt_mailbox *box);

// Any thread. BT_ERR_BUSY when full, BT_ERR_CLOSED after bt_mailbox_end.
bt_err bt_mailbox_post(bt_mailbox *box, const void *message);

// The reading thread, without a loop: takes the oldest message. `try` does not wait and returns false when there is none;
// `wait` waits for one and returns false once the box was ended and is empty.
bool bt_mailbox_try(bt_mailbox *box, void *message);
bool bt_mailbox_wait(bt_mailbox *box, void *message);
// As wait, until `deadline` (on bt_time_now's clock) at the latest: BT_ERR_TIMEOUT, or BT_ERR_CLOSED once ended and empty.
bt_err bt_mailbox_wait_until(bt_mailbox *box, void *message, bt_time deadline);

// Any thread: nothing can be posted any more, and waiting ends when what is there has been taken.
void bt_mailbox_end(bt_mailbox *box);

uint32_t bt_mailbox_count(bt_mailbox *box); // any thread; of the past as soon as it returns
