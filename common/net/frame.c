#include "common/net/frame.h"

#include <string.h>

static const char magic[4] = {'B', 'T', 'N', '1'};

static void
put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t
get(const uint8_t *from, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

void
bt_frame_write(const bt_frame_head *head, uint8_t out[BT_FRAME_HEAD_BYTES])
{
    memset(out, 0, BT_FRAME_HEAD_BYTES);
    memcpy(out, magic, sizeof magic);
    out[4] = (uint8_t)head->kind;
    out[5] = (uint8_t)head->lane;
    put(out + 8, head->length, 4);
    put(out + 16, head->sequence, 8);
    put(out + 24, head->acked, 8);
}

bt_err
bt_frame_read(bt_frame_head *out, const uint8_t *bytes, size_t length)
{
    if (memcmp(bytes, magic, length < sizeof magic ? length : sizeof magic) != 0)
        return BT_ERR_INVALID;
    if (length < BT_FRAME_HEAD_BYTES)
        return BT_ERR_BUSY;
    *out = (bt_frame_head){.kind = (bt_frame_kind)bytes[4],
                           .lane = (bt_lane)bytes[5],
                           .sequence = get(bytes + 16, 8),
                           .acked = get(bytes + 24, 8),
                           .length = (uint32_t)get(bytes + 8, 4)};
    return bytes[4] >= BT_FRAME_GREET && bytes[4] <= BT_FRAME_ACK && bytes[5] < BT_LANES &&
                   out->length >= BT_FRAME_HEAD_BYTES
               ? BT_OK
               : BT_ERR_INVALID;
}
