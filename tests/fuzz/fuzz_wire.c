// Frames between nodes: what is decoded is within its limits, and says the same when it is encoded and decoded again.
#include "common/wire/decode.h"
#include "common/wire/encode.h"
#include "tests/support/draw_message.h"

#include <assert.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define SCRATCH_BYTES (1u << 20)

static _Alignas(16) uint8_t memory[3][SCRATCH_BYTES];

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    bt_wire_scratch first, second, third;
    const bt_message *message, *again;
    bt_wire_drafted draft;
    uint8_t *frame;

    bt_wire_scratch_init(&first, memory[0], SCRATCH_BYTES);
    bt_wire_scratch_init(&second, memory[1], SCRATCH_BYTES);
    bt_wire_scratch_init(&third, memory[2], SCRATCH_BYTES);
    if (bt_wire_decode(&message, data, bytes, &first) != BT_OK)
        return 0;
    assert(bt_message_check(message) == BT_OK);
    if (bt_wire_draft(&draft, message, &second) != BT_OK)
        return 0; // columns need more room than the frame had
    frame = malloc(draft.bytes + 1);
    bt_wire_write(&draft, frame);
    assert(bt_wire_decode(&again, frame, draft.bytes, &third) == BT_OK);
    assert(bt_same_message(message, again));
    free(frame);
    return 0;
}
