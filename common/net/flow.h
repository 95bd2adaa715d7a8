// The rules of one connection: what may be sent now, and whether what arrives is new, old, or shows that something was lost.
//
// A sender has a few credits a lane, given back when the other side has consumed what it sent: so neither side buffers more than the
// window, and a peer that is slow is an answer. DATA frames are numbered over all lanes: a gap is an error, whoever sees it closes
// the connection, and both sides start afresh. (nng's raw sockets lose messages silently; these rules hold over any transport.)
// Pure arithmetic, no clock; one thread.
#pragma once

#include "common/net/frame.h"

#define BT_FLOW_WINDOW 52 // the sum of all credits

typedef struct {
    uint64_t sent, acked;                // our DATA frames; the other side has consumed `acked` of them
    uint64_t received, consumed, told;   // theirs; told: what our last frame acknowledged
    uint32_t in_flight[BT_LANES];        // ours that are not acknowledged
    uint32_t unread[BT_LANES];           // theirs that are not consumed
    uint8_t sent_lanes[BT_FLOW_WINDOW];  // of sequence n at n % BT_FLOW_WINDOW
    uint8_t their_lanes[BT_FLOW_WINDOW]; // the same
} bt_flow;

typedef enum {
    BT_FLOW_NEW,       // a DATA frame to be kept
    BT_FLOW_NOTHING,   // an acknowledgement
    BT_FLOW_DUPLICATE, // a DATA frame that was here before: dropped
    BT_FLOW_BROKEN,    // something was lost, or they do not keep to their credits: close
} bt_flow_verdict;

uint32_t bt_flow_credits(bt_lane lane); // when nothing is in flight
bool bt_flow_may_send(const bt_flow *flow, bt_lane lane);
// The head of the next DATA frame, which is in flight from here.
bt_frame_head bt_flow_send(bt_flow *flow, bt_lane lane);
// The head of an ACK frame.
bt_frame_head bt_flow_ack(bt_flow *flow);
bt_flow_verdict bt_flow_receive(bt_flow *flow, const bt_frame_head *head);
// The oldest unread frame has been consumed.
void bt_flow_consume(bt_flow *flow);
// Consumed and not yet acknowledged.
uint64_t bt_flow_owed(const bt_flow *flow);
