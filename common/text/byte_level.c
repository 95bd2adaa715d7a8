#include "common/text/byte_level.h"

static bool
is_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

// The bytes that are not their own letter are 0..0x20, 0x7f..0xa0 and 0xad: 33 + 34 + 1, numbered in this order.
uint32_t
bt_byte_level_letter(uint8_t byte)
{
    if (is_itself(byte)) {
        return byte;
    }
    return 0x100 + (byte <= 0x20 ? byte : byte == 0xad ? 67u : byte - 0x7fu + 33u);
}

int
bt_byte_level_byte(uint32_t c)
{
    if (c < 0x100) {
        return is_itself(c) ? (int)c : -1;
    }
    c -= 0x100;
    return c <= 0x20 ? (int)c : c < 67 ? (int)(c - 33 + 0x7f) : c == 67 ? 0xad : -1;
}

size_t
bt_byte_level_decode(bt_str text, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < text.len;) {
        uint8_t lead = (uint8_t)text.data[i];
        uint32_t c = lead;
        size_t bytes = 1;
        int byte;

        if (lead >= 0x80) {
            bytes = bt_utf8_decode(text.data + i, text.len - i, &c);
        }
        byte = bytes != 0 ? bt_byte_level_byte(c) : -1;
        if (byte < 0) {
            memcpy(out, text.data, text.len);
            return text.len;
        }
        out[used++] = (char)byte;
        i += bytes;
    }
    return used;
}

size_t
bt_byte_level_encode(bt_str bytes, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < bytes.len; i++) {
        uint32_t c = bt_byte_level_letter((uint8_t)bytes.data[i]);

        if (c < 0x80) {
            out[used++] = (char)c;
        } else {
            out[used++] = (char)(0xc0 | c >> 6);
            out[used++] = (char)(0x80 | (c & 0x3f));
        }
    }
    return used;
}
