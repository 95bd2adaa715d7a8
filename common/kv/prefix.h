// The prefix index: which finished blocks hold the beginning of a prompt.
//
// A full block is found by its key (key.h) and believed only when it was built on the very block matched before it and its
// own ids, stored here, are equal: a hash is never trusted alone. The index keeps its blocks in the pool (pool.h): unheld
// ones stay until the pool needs them, the longest unused first, and one that is held is never evicted.
//
// One thread, the pool's. Memory is allocated at open and never later: one entry a block of the pool.
#pragma once

#include "common/kv/key.h"
#include "common/kv/pool.h"

typedef struct bt_kv_prefix bt_kv_prefix;

// One index a pool. `block_tokens` ≤ BT_KV_KEY_TOKENS_MAX.
bt_err bt_kv_prefix_open(bt_kv_prefix **out, bt_kv_pool *pool, uint32_t block_tokens);
// Close it before its pool; blocks it kept become free when unheld.
void bt_kv_prefix_close(bt_kv_prefix *prefix);

// Where a sequence stands in the index: after which indexed block. Plain data of the sequence's owner.
typedef struct {
    uint64_t weights_digest;
    bt_kv_key key;
    uint64_t serial; // of the entry; a life of an entry has a serial of its own
} bt_kv_prefix_at;

// Before the first block, for blocks written by these weights.
bt_kv_prefix_at bt_kv_prefix_root(uint64_t weights_digest);

// The longest run of indexed blocks that holds the beginning of `ids`, at most `limit` blocks and always short of the last
// id, so that at least one token is left to compute. Each found block is held once for the caller: `out` may
// be the blocks of an empty table. `at` starts as a root and ends after the last block found. Returns their number.
uint32_t bt_kv_prefix_find(bt_kv_prefix *prefix, bt_kv_prefix_at *at, const int32_t *ids, uint32_t count, bt_block *out,
                           uint32_t limit);

// Indexes a finished block that the caller holds: `ids` are its block_tokens tokens, `at` stands after the block before it
// and moves on. Returns the block that is indexed for these tokens: `block`, or an equal older one (which the caller may
// hold in place of its own: the bits are the same, DESIGN 1.7). BT_BLOCK_NONE when what `at` stood on is gone: then this
// and all further blocks of the sequence are not indexed, which costs a later hit and nothing else.
bt_block bt_kv_prefix_add(bt_kv_prefix *prefix, bt_kv_prefix_at *at, const int32_t *ids, bt_block block);

// Blocks in the index, held or idle.
uint32_t bt_kv_prefix_count(const bt_kv_prefix *prefix);
// Forgets everything (weights were changed, a test begins).
void bt_kv_prefix_clear(bt_kv_prefix *prefix);
