#include "common/kv/trailer.h"
#include "common/transfer/impl.h"

#include <string.h>

void
bt_piece_copy(bt_piece *piece, const bt_kv_layout *layout, bool checksum, uint8_t *target, const uint8_t *source)
{
    size_t words_end = layout->trailer_offset, rest = layout->block_bytes - words_end;

    for (uint32_t i = 0; i < piece->count; i++, target += layout->block_bytes, source += layout->block_bytes) {
        // Also where nobody wants the sum: it costs nothing beside the copy, whose streaming stores beat memcpy's on blocks this size.
        piece->sums[i] = bt_kv_checksum_copy(target, source, words_end, 0);
        // The trailer last: if it is still the old one now, no byte before it was of a later life.
        __atomic_thread_fence(__ATOMIC_ACQ_REL);
        memcpy(target + words_end, source + words_end, rest);
    }
    piece->summed = checksum;
}
