// The decode nodes that read this node's memory: a connection of the plane for each program that has described itself, by the number of
// its place here. It outlives its link by a lease, since what is held for the program does too, and is found again when the program comes
// back by another link peer. Private to the node's edge. The loop's thread.
#pragma once

#include "common/node/plane.h"
#include "prefill-node/core.h"

typedef struct {
    uint64_t epoch; // of the program; 0 = nobody
    uint32_t link;  // its peer, or UINT32_MAX: its link is down
    bt_time until;  // then: when its connection ends
} bt_reader;

typedef struct {
    bt_plane *plane;
    uint64_t model, layout;
    bt_time lease;
    bt_reader readers[BT_PREFILL_PEERS_MAX]; // by peer of the plane
    uint64_t hello[BT_PREFILL_PEERS_MAX];    // by peer of the link: epoch of the decode node that said HELLO, 0 = none
    uint64_t refused;                        // descriptions
} bt_readers;

void bt_readers_init(bt_readers *readers, bt_plane *plane, const bt_prefill_limits *limits);

// HELLO and DESCRIPTION matter, others are no concern of it. A DESCRIPTION of a program that is connected changes nothing: after a LOST on
// its side it sends it again, in case it was lost here too.
void bt_readers_hear(bt_readers *readers, bt_time now, uint32_t peer, const bt_message *message);
void bt_readers_lose(bt_readers *readers, bt_time now, uint32_t peer); // the link is down

// Takes what the plane has to tell, ends connections whose time has come. Returns when the next one's comes.
bt_time bt_readers_turn(bt_readers *readers, bt_time now);
uint32_t bt_readers_count(const bt_readers *readers);
