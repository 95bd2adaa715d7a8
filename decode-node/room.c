#include "decode-node/room.h"

#include <assert.h>

bt_err
bt_room_init(bt_room *room, uint32_t blocks, uint32_t block_tokens, uint64_t prompt_weights, uint64_t weights)
{
    bt_err err;

    *room =
        (bt_room){.block_tokens = block_tokens, .weights = prompt_weights, .others_write = prompt_weights != weights};
    if ((err = bt_kv_pool_open(&room->pool, blocks)) != BT_OK ||
        (err = bt_kv_prefix_open(&room->prefix, room->pool, block_tokens)) != BT_OK)
        bt_room_fini(room);
    return err;
}

void
bt_room_fini(bt_room *room)
{
    bt_kv_prefix_close(room->prefix);
    bt_kv_pool_close(room->pool);
    *room = (bt_room){0};
}

uint32_t
bt_room_worst(const bt_room *room, uint32_t prompt_count, uint32_t max_tokens)
{
    return bt_kv_blocks_for(prompt_count + (max_tokens > 0 ? max_tokens - 1 : 0), room->block_tokens);
}

bool
bt_room_grant(bt_room *room, bt_sequence *sequence)
{
    bt_kv_table *table = &sequence->table;
    uint32_t found = 0, findable = sequence->count;

    if (room->others_write && findable > sequence->prompt_count)
        findable = sequence->prompt_count + 1; // blocks of the prompt alone: the search ends short of the last id
    sequence->worst = bt_room_worst(room, sequence->prompt_count, sequence->max_tokens);
    sequence->at = bt_kv_prefix_root(room->weights);
    // Scoring a prompt needs the logits of all its positions, so all of it is computed.
    if (!sequence->prompt_logprobs)
        found = bt_kv_prefix_find(room->prefix, &sequence->at, sequence->ids, findable, table->blocks, table->limit);
    table->count = found;
    if (bt_kv_pool_available(room->pool) < room->promised + (sequence->worst - found)) {
        bt_kv_table_shrink(table, room->pool, 0);
        return false;
    }
    room->promised += sequence->worst - found;
    sequence->indexed = found;
    sequence->computed = found * room->block_tokens;
    sequence->cached_tokens = sequence->computed < sequence->prompt_count ? sequence->computed : sequence->prompt_count;
    return true;
}

void
bt_room_take(bt_room *room, bt_sequence *sequence, uint32_t tokens)
{
    uint32_t before = sequence->table.count, needed = bt_kv_blocks_for(tokens, room->block_tokens);
    bt_err err;

    if (needed <= before)
        return;
    assert(needed <= sequence->worst);
    err = bt_kv_table_grow(&sequence->table, room->pool, needed);
    assert(err == BT_OK); // promised
    (void)err;
    room->promised -= needed - before;
}

void
bt_room_index(bt_room *room, bt_sequence *sequence)
{
    uint32_t tokens = sequence->computed < sequence->indexable ? sequence->computed : sequence->indexable;

    while (!sequence->unindexed && (sequence->indexed + 1) * room->block_tokens <= tokens) {
        bt_block *own = &sequence->table.blocks[sequence->indexed];
        const int32_t *ids = sequence->ids + (size_t)sequence->indexed * room->block_tokens;
        bt_block kept = bt_kv_prefix_add(room->prefix, &sequence->at, ids, *own);

        if (kept == BT_BLOCK_NONE) {
            sequence->unindexed = true;
            return;
        }
        if (kept != *own) {
            // Someone else was first with the same tokens: the bits are the same, one copy is enough.
            bt_kv_pool_hold(room->pool, kept);
            bt_kv_pool_release(room->pool, *own);
            *own = kept;
        }
        sequence->indexed++;
    }
}

void
bt_room_release(bt_room *room, bt_sequence *sequence)
{
    if (!bt_sequence_has_room(sequence))
        return;
    room->promised -= sequence->worst - sequence->table.count;
    bt_kv_table_shrink(&sequence->table, room->pool, 0);
}

void
bt_room_forget(bt_room *room)
{
    bt_kv_prefix_clear(room->prefix);
}
