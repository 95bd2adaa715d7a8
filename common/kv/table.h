// A sequence's blocks in order: block i holds positions i · block_tokens … (i + 1) · block_tokens − 1.
//
// A table owns one hold on each of its blocks and has room for a fixed number of them. It belongs to its pool's thread.
#pragma once

#include "common/kv/pool.h"

typedef struct {
    bt_block *blocks; // [limit], the first `count` are held; what an engine's batch item points at
    uint32_t count, limit;
} bt_kv_table;

bt_err bt_kv_table_init(bt_kv_table *table, uint32_t limit);
// Accepts a zeroed table. The blocks must have been given back: bt_kv_table_shrink(…, 0).
void bt_kv_table_fini(bt_kv_table *table);

// Grows to `count` blocks (no-op when it has as many), next to the last one where the pool can. BT_ERR_TOO_LONG over the
// limit, BT_ERR_BUSY when the pool has too few; either leaves the table as it was.
bt_err bt_kv_table_grow(bt_kv_table *table, bt_kv_pool *pool, uint32_t count);

// Releases all but the first `count` blocks, tail first.
void bt_kv_table_shrink(bt_kv_table *table, bt_kv_pool *pool, uint32_t count);

// Blocks for so many tokens.
static inline uint32_t
bt_kv_blocks_for(uint32_t tokens, uint32_t block_tokens)
{
    return tokens / block_tokens + (tokens % block_tokens != 0);
}
