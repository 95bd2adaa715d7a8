#include "common/base/str.h"

size_t
bt_utf8_decode(const char *data, size_t len, uint32_t *code_point)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *byte = (const uint8_t *)data;
    size_t count;
    uint32_t value;

    if (len == 0) {
        return 0;
    }
    if (byte[0] < 0x80) {
        *code_point = byte[0];
        return 1;
    }
    count = byte[0] >= 0xf0 ? 4 : byte[0] >= 0xe0 ? 3 : 2;
    if (byte[0] < 0xc2 || byte[0] > 0xf4 || len < count) {
        return 0;
    }
    value = byte[0] & (0xffu >> (count + 1));
    for (size_t i = 1; i < count; i++) {
        if ((byte[i] & 0xc0) != 0x80) {
            return 0;
        }
        value = value << 6 | (byte[i] & 0x3fu);
    }
    if (value < least[count] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return 0;
    }
    *code_point = value;
    return count;
}

size_t
bt_utf8_encode(uint32_t c, char out[4])
{
    uint8_t *byte = (uint8_t *)out;

    if (c < 0x80) {
        byte[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        byte[0] = (uint8_t)(0xc0 | c >> 6);
        byte[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xd800 && c < 0xe000) {
            return 0;
        }
        byte[0] = (uint8_t)(0xe0 | c >> 12);
        byte[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        byte[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    if (c > 0x10ffff) {
        return 0;
    }
    byte[0] = (uint8_t)(0xf0 | c >> 18);
    byte[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    byte[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    byte[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

size_t
bt_utf8_valid_prefix(const char *data, size_t len)
{
    size_t at = 0;

    while (at < len) {
        uint32_t code_point;
        size_t count = bt_utf8_decode(data + at, len - at, &code_point);

        if (count == 0) {
            break;
        }
        at += count;
    }
    return at;
}
