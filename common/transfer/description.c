#include "common/transfer/description.h"

#include "common/base/rng.h"

#include <string.h>

#define FIXED_BYTES (4 + 2 + 2 + 2 + 4 + 5 * 8 + 2 + 2)
static const char magic[4] = {'B', 'T', 'X', 'D'};

static uint64_t
digest(const uint8_t *data, size_t bytes)
{
    uint64_t hash = bytes;

    for (size_t i = 0; i < bytes; i++) {
        hash = bt_mix64(hash ^ data[i]);
    }
    return hash;
}

static void
put(uint8_t **at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        *(*at)++ = (uint8_t)(value >> 8 * i);
    }
}

static uint64_t
get(const uint8_t **at, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t) * (*at)++ << 8 * i;
    }
    return value;
}

bt_err
bt_description_encode(const bt_description *d, void *out, size_t capacity, size_t *bytes)
{
    size_t needed = FIXED_BYTES + d->address_bytes + d->key_bytes + 8u;
    uint8_t *at = out;

    if (d->address_bytes > BT_DESCRIPTION_ADDRESS_MAX || d->key_bytes > BT_DESCRIPTION_KEY_MAX || needed > capacity) {
        return BT_ERR_TOO_LONG;
    }
    memcpy(at, magic, sizeof magic);
    at += sizeof magic;
    put(&at, BT_DESCRIPTION_VERSION, 2);
    put(&at, d->transport, 2);
    put(&at, d->window, 2);
    put(&at, d->blocks, 4);
    put(&at, d->epoch, 8);
    put(&at, d->identity, 8);
    put(&at, d->layout, 8);
    put(&at, d->block_bytes, 8);
    put(&at, d->base, 8);
    put(&at, d->address_bytes, 2);
    put(&at, d->key_bytes, 2);
    if (d->address_bytes != 0) {
        memcpy(at, d->address, d->address_bytes);
    }
    at += d->address_bytes;
    if (d->key_bytes != 0) {
        memcpy(at, d->key, d->key_bytes);
    }
    at += d->key_bytes;
    put(&at, digest(out, needed - 8), 8);
    *bytes = needed;
    return BT_OK;
}

static bt_err
check_frame(const uint8_t *data, size_t bytes, bt_why *why)
{
    const uint8_t *at = data + 4, *end;
    uint64_t version;

    if (bytes < FIXED_BYTES + 8 || memcmp(data, magic, sizeof magic) != 0) {
        return bt_fail(why, BT_ERR_INVALID, "transfer description: %zu bytes that do not begin as one", bytes);
    }
    if ((version = get(&at, 2)) != BT_DESCRIPTION_VERSION) {
        return bt_fail(why, BT_ERR_UNSUPPORTED, "transfer description: version %llu, expected %d",
                       (unsigned long long)version, BT_DESCRIPTION_VERSION);
    }
    end = data + bytes - 8;
    if (get(&end, 8) != digest(data, bytes - 8)) {
        return bt_fail(why, BT_ERR_INVALID, "transfer description: damaged, its checksum is wrong");
    }
    return BT_OK;
}

static bt_err
check_numbers(const bt_description *d, size_t bytes, bt_why *why)
{
    if (FIXED_BYTES + (size_t)d->address_bytes + d->key_bytes + 8 != bytes) {
        return bt_fail(why, BT_ERR_INVALID, "transfer description: %zu bytes with address %u and key %u", bytes,
                       d->address_bytes, d->key_bytes);
    }
    if (d->address_bytes > BT_DESCRIPTION_ADDRESS_MAX || d->key_bytes > BT_DESCRIPTION_KEY_MAX) {
        return bt_fail(why, BT_ERR_INVALID,
                       "transfer description: address %u or key %u bytes, expected at most %d and %d", d->address_bytes,
                       d->key_bytes, BT_DESCRIPTION_ADDRESS_MAX, BT_DESCRIPTION_KEY_MAX);
    }
    if (d->epoch == 0 || d->window == 0 || d->blocks == 0 || d->block_bytes == 0 || d->block_bytes % 64 != 0 ||
        d->block_bytes > UINT64_MAX / 4 / d->blocks || d->base > UINT64_MAX - (d->blocks + 2ull) * d->block_bytes) {
        return bt_fail(why, BT_ERR_INVALID, "transfer description: epoch %llu, window %u, %u blocks of %llu bytes",
                       (unsigned long long)d->epoch, d->window, d->blocks, (unsigned long long)d->block_bytes);
    }
    return BT_OK;
}

bt_err
bt_description_decode(bt_description *out, const void *data, size_t bytes, bt_why *why)
{
    bt_err err = check_frame(data, bytes, why);
    const uint8_t *at;
    bt_description d;

    if (err != BT_OK) {
        return err;
    }
    at = (const uint8_t *)data + 6;
    d.transport = (uint16_t)get(&at, 2);
    d.window = (uint16_t)get(&at, 2);
    d.blocks = (uint32_t)get(&at, 4);
    d.epoch = get(&at, 8);
    d.identity = get(&at, 8);
    d.layout = get(&at, 8);
    d.block_bytes = get(&at, 8);
    d.base = get(&at, 8);
    d.address_bytes = (uint16_t)get(&at, 2);
    d.key_bytes = (uint16_t)get(&at, 2);
    d.address = at;
    d.key = at + d.address_bytes;
    if ((err = check_numbers(&d, bytes, why)) == BT_OK) {
        *out = d;
    }
    return err;
}
