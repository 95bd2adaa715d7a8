#include "common/wire/scratch.h"

#include <string.h>

void *
bt_wire_take(bt_wire_scratch *scratch, size_t bytes)
{
    size_t at = (scratch->used + 15) & ~(size_t)15;

    if (scratch->failed || at > scratch->bytes || bytes > scratch->bytes - at) {
        scratch->failed = true;
        return NULL;
    }
    scratch->used = at + bytes;
    return scratch->memory + at;
}

void *
bt_wire_take_array(bt_wire_scratch *scratch, size_t count, size_t bytes)
{
    void *room;

    if (count == 0)
        return NULL;
    if (count > scratch->bytes / bytes) {
        scratch->failed = true;
        return NULL;
    }
    room = bt_wire_take(scratch, count * bytes);
    return room != NULL ? memset(room, 0, count * bytes) : NULL;
}

void *
bt_wire_put(bt_wire_scratch *scratch, const void *from, size_t bytes)
{
    void *room = bytes > 0 ? bt_wire_take(scratch, bytes) : NULL;

    return room != NULL ? memcpy(room, from, bytes) : NULL;
}
