// One program's end of its connections to others: peers by number, whole messages, order kept per peer.
//
// Two kinds: loopback (both ends in one process, here) and nng (common/net, sockets). Whoever owns the link pulls what arrived and
// pushes what it has to say, both on its loop thread; neither waits. A message that cannot be taken now is BT_ERR_BUSY: RESERVE
// may meet it and stays with the sender; all other kinds are few by the protocol (at most one START and ABORT a request, one TOKENS a
// step) and have room of their own, so that BUSY means the peer does not read, and the link goes down.
#pragma once

#include "common/wire/message.h"

typedef enum { BT_LINK_NOTHING, BT_LINK_UP, BT_LINK_DOWN, BT_LINK_MESSAGE } bt_link_event_kind;

typedef struct {
    bt_link_event_kind kind;
    uint32_t peer;
    const bt_message *message; // with BT_LINK_MESSAGE; borrowed until the next receive
} bt_link_event;

typedef struct bt_link bt_link;

// Takes the next event; false when there is none. UP comes before a peer's first message and after each DOWN.
bool bt_link_receive(bt_link *link, bt_link_event *out);
// Copies or encodes the message. BT_ERR_BUSY see above, BT_ERR_PEER when the peer is not up.
bt_err bt_link_send(bt_link *link, uint32_t peer, const bt_message *message);
// Is there an event to receive now? An edge that left some for its next turn must not sleep.
bool bt_link_pending(const bt_link *link);
void bt_link_close(bt_link *link); // NULL is fine

// What a kind of link implements; its struct begins with this.
typedef struct {
    bool (*receive)(bt_link *link, bt_link_event *out);
    bt_err (*send)(bt_link *link, uint32_t peer, const bt_message *message);
    bool (*pending)(const bt_link *link);
    void (*close)(bt_link *link);
} bt_link_ops;

struct bt_link {
    const bt_link_ops *ops;
};
