// Descriptions of transfer memories, as they come from a peer: decoding alone, with a checksum that is right and as it came.
#include "common/transfer/description.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile uint8_t sink;

static void
decode(const uint8_t *data, size_t bytes)
{
    uint8_t again[8192];
    bt_description d;
    size_t length;
    bt_why why;

    if (bt_description_decode(&d, data, bytes, &why) != BT_OK) {
        return;
    }
    for (size_t i = 0; i < d.address_bytes; i++) {
        sink = d.address[i];
    }
    for (size_t i = 0; i < d.key_bytes; i++) {
        sink = d.key[i];
    }
    assert(bt_description_encode(&d, again, sizeof again, &length) == BT_OK);
    assert(length == bytes && memcmp(again, data, bytes) == 0);
}

// A checksum stands between a fuzzer and what it guards: fields drawn from the input are encoded, which makes it right.
static void
decode_drawn(const uint8_t *data, size_t bytes)
{
    uint8_t out[8192];
    bt_description d;
    size_t length;

    if (bytes < sizeof d) {
        return;
    }
    memcpy(&d, data, sizeof d);
    data += sizeof d;
    bytes -= sizeof d;
    d.address = data;
    d.address_bytes = (uint16_t)(d.address_bytes < bytes ? d.address_bytes : bytes);
    d.key = data + d.address_bytes;
    d.key_bytes = (uint16_t)(d.key_bytes < bytes - d.address_bytes ? d.key_bytes : bytes - d.address_bytes);
    if (bt_description_encode(&d, out, sizeof out, &length) == BT_OK) {
        decode(out, length);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    decode(data, bytes);
    decode_drawn(data, bytes);
    return 0;
}
