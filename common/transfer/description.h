// What one side tells the other so that its blocks can be fetched: numbers, and bytes that only the transport understands.
//
// As bytes: "BTXD", then the numbers little-endian in the order below, lengths and bytes of address and key, and a checksum over
// all of it, so that damage never reaches the library that unpacks the key. Any thread.
#pragma once

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define BT_DESCRIPTION_VERSION 1
#define BT_DESCRIPTION_ADDRESS_MAX 2560
#define BT_DESCRIPTION_KEY_MAX 1024

typedef struct {
    uint16_t transport;
    uint16_t window; // operations that its owner serves at once for a peer
    uint32_t blocks; // the proof block lies behind the last one
    uint64_t epoch, identity;
    uint64_t layout, block_bytes;
    uint64_t base; // address in its owner's memory
    uint16_t address_bytes, key_bytes;
    const uint8_t *address, *key; // borrowed
} bt_description;

// BT_ERR_TOO_LONG: does not fit into `capacity`, or address or key are over their limits.
bt_err bt_description_encode(const bt_description *description, void *out, size_t capacity, size_t *bytes);
// The result points into `data`. BT_ERR_INVALID names what is wrong; BT_ERR_UNSUPPORTED: another version.
bt_err bt_description_decode(bt_description *out, const void *data, size_t bytes, bt_why *why);
