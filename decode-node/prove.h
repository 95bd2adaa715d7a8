// The prefill nodes as the decode node's edge knows them: who has described its memory to us and we ours to it, whose memory is connected and
// proved. Private to the edge; the loop's thread.
//
//     link UP → HELLO ⇄ HELLO → our DESCRIPTION goes, theirs comes → plane: connect, prove → BT_DECODE_SOURCE up
//                                                                       └─ refused, failed or lost: again, with growing pauses
//
// A link that goes does not end the connection of the memory: blocks that were offered may still be fetched. A description of another
// epoch does.
#pragma once

#include "common/node/link.h"
#include "common/node/plane.h"
#include "decode-node/core.h"

typedef struct {
    bool linked, refused; // refused: it is of another model, layout or weights
    bool connecting, proved;
    bool told; // the core knows that it can be fetched from
    char name[BT_NODE_NAME_MAX];
    uint64_t epoch;     // of its HELLO; 0 = none since the link came
    uint64_t described; // of the description that we have; 0 = none
    uint32_t bytes;
    uint8_t description[BT_TRANSFER_DESCRIPTION_MAX];
    bt_time retry, pause;
    bt_transfer_path path; // of the last proof
    char transport[64];
    double gb_per_s;
} bt_prove_node;

typedef struct {
    bt_plane *plane;
    bt_link *link;
    const bt_decode_limits *limits;
    uint32_t count;
    bt_prove_node *nodes; // [count] by link peer
} bt_prove;

// `plane` NULL: count 0, and nothing below does anything.
bt_err bt_prove_init(bt_prove *self, bt_plane *plane, bt_link *link, const bt_decode_limits *limits, uint32_t count);
void bt_prove_fini(bt_prove *self); // accepts a zeroed one; not the plane

// Each after the core has heard of it.
void bt_prove_up(bt_prove *self, uint32_t peer);
void bt_prove_down(bt_prove *self, uint32_t peer);
void bt_prove_hear(bt_prove *self, bt_time now, uint32_t peer, const bt_message *message);
void bt_prove_plane(bt_prove *self, bt_time now, const bt_plane_event *event); // not FETCHED

// Tries again what is due; returns when the next is.
bt_time bt_prove_turn(bt_prove *self, bt_time now);

// What the core has to be told: a node became ready or was lost. False when there is nothing.
bool bt_prove_news(bt_prove *self, uint32_t *peer, uint64_t *epoch, bool *up);
