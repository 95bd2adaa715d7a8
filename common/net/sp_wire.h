// SP over TCP as nng's pair0 sockets speak it: a greeting each way, then messages, each behind its length. What sp.h's two sides share.
#pragma once

#include <stdint.h>

#define BT_SP_GREETING_BYTES 8
#define BT_SP_HEAD_BYTES 8

static const uint8_t bt_sp_greeting[BT_SP_GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x10, 0, 0}; // 0x10: pair0

static inline void
bt_sp_write_head(uint8_t out[BT_SP_HEAD_BYTES], uint64_t length)
{
    for (int i = 0; i < BT_SP_HEAD_BYTES; i++)
        out[i] = (uint8_t)(length >> 8 * (7 - i));
}

static inline uint64_t
bt_sp_read_head(const uint8_t head[BT_SP_HEAD_BYTES])
{
    uint64_t length = 0;

    for (int i = 0; i < BT_SP_HEAD_BYTES; i++)
        length = length << 8 | head[i];
    return length;
}
