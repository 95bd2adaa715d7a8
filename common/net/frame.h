// The head of every frame between two programs, and what it says about the flow.
//
//     0      4      5      6   8        12  16         24      32
//     | BTN1 | kind | lane | 0 | length | 0 | sequence | acked | payload …        little-endian; length counts from the B
//
// DATA frames are counted from 1 in each direction of a connection; `acked` is the last one that the sender has consumed, on every
// frame. Other frames have the number of the last DATA frame before them, so that the loss of the very last one shows too.
// Pure arithmetic: any thread.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_FRAME_HEAD_BYTES 32

typedef enum {
    BT_FRAME_GREET = 1, // dialer → listener: I want in (common/net/challenge.h)
    BT_FRAME_CHALLENGE, // listener → dialer
    BT_FRAME_PROOF,     // dialer → listener
    BT_FRAME_WELCOME,   // listener → dialer
    BT_FRAME_DATA,
    BT_FRAME_ACK, // also says that we live
} bt_frame_kind;

// Each has credits of its own, so that a full one does not hold up another.
typedef enum { BT_LANE_DATA, BT_LANE_CANCEL, BT_LANE_HEARTBEAT, BT_LANES } bt_lane;

typedef struct {
    bt_frame_kind kind;
    bt_lane lane;
    uint64_t sequence, acked;
    uint32_t length; // of the frame
} bt_frame_head;

void bt_frame_write(const bt_frame_head *head, uint8_t out[BT_FRAME_HEAD_BYTES]);
// `length` may be less than a head: BT_ERR_BUSY then, as long as it could become one of ours. BT_ERR_INVALID: it is not.
bt_err bt_frame_read(bt_frame_head *out, const uint8_t *bytes, size_t length);
