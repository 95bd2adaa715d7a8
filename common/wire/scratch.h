// Memory that is given out front to back and taken back all at once: what encoding and decoding build in. The caller owns the
// memory and chooses its size once; nothing here allocates. One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *memory; // 16-byte aligned
    size_t bytes, used;
    bool failed; // something did not fit; stays until the reset
} bt_wire_scratch;

static inline void
bt_wire_scratch_init(bt_wire_scratch *scratch, void *memory, size_t bytes)
{
    *scratch = (bt_wire_scratch){.memory = memory, .bytes = bytes};
}

// What was taken before is void.
static inline void
bt_wire_scratch_reset(bt_wire_scratch *scratch)
{
    scratch->used = 0;
    scratch->failed = false;
}

// 16-byte aligned and not cleared; NULL when it does not fit.
void *bt_wire_take(bt_wire_scratch *scratch, size_t bytes);
// Room for an array, cleared; NULL for no elements too.
void *bt_wire_take_array(bt_wire_scratch *scratch, size_t count, size_t bytes);
// A copy; NULL when it does not fit or there are no bytes.
void *bt_wire_put(bt_wire_scratch *scratch, const void *from, size_t bytes);
