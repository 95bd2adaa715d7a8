#include "common/kv/prefix.h"

#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

#define ROOT_BIT ((uint64_t)1 << 63) // serials of roots: the digest's other bits. Entries count from 1

typedef struct {
    bt_kv_key key;
    uint64_t serial, parent; // serial 0 = this block is not indexed
} bt_prefix_entry;

struct bt_kv_prefix {
    bt_kv_pool *pool;
    uint32_t block_tokens, blocks, count;
    uint64_t last_serial;
    bt_prefix_entry *entries; // [blocks]
    int32_t *ids;             // [blocks, block_tokens]
    bt_block *slots;          // open addressing by key, linear probes, at most half full; BT_BLOCK_NONE = empty
    uint32_t slot_mask;
};

static uint32_t
home_of(const bt_kv_prefix *prefix, bt_kv_key key)
{
    return (uint32_t)key.low & prefix->slot_mask;
}

// The slot that holds `key`, or the empty one where it would go.
static uint32_t
find_slot(const bt_kv_prefix *prefix, bt_kv_key key)
{
    uint32_t slot = home_of(prefix, key);

    while (prefix->slots[slot] != BT_BLOCK_NONE && !bt_kv_key_equal(prefix->entries[prefix->slots[slot]].key, key)) {
        slot = (slot + 1) & prefix->slot_mask;
    }
    return slot;
}

// Empties a slot and moves later ones of its probe run back, so that no run is broken.
static void
clear_slot(bt_kv_prefix *prefix, uint32_t hole)
{
    uint32_t mask = prefix->slot_mask;

    for (uint32_t slot = (hole + 1) & mask; prefix->slots[slot] != BT_BLOCK_NONE; slot = (slot + 1) & mask) {
        uint32_t home = home_of(prefix, prefix->entries[prefix->slots[slot]].key);

        if (((slot - home) & mask) >= ((slot - hole) & mask)) {
            prefix->slots[hole] = prefix->slots[slot];
            hole = slot;
        }
    }
    prefix->slots[hole] = BT_BLOCK_NONE;
}

static void
remove_entry(bt_kv_prefix *prefix, bt_block block)
{
    bt_prefix_entry *entry = &prefix->entries[block];

    assert(entry->serial != 0);
    clear_slot(prefix, find_slot(prefix, entry->key));
    entry->serial = 0;
    prefix->count--;
}

static void
evicted(void *arg, bt_block block)
{
    remove_entry(arg, block);
}

bt_err
bt_kv_prefix_open(bt_kv_prefix **out, bt_kv_pool *pool, uint32_t block_tokens)
{
    bt_kv_prefix *prefix;
    uint32_t slots = 4;

    if (block_tokens == 0 || block_tokens > BT_KV_KEY_TOKENS_MAX) {
        return BT_ERR_INVALID;
    }
    prefix = bt_alloc(sizeof *prefix);
    if (prefix == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    prefix->pool = pool;
    prefix->block_tokens = block_tokens;
    prefix->blocks = bt_kv_pool_blocks(pool);
    while (slots < 2 * prefix->blocks) { // ≤ 2^31: a pool has at most 2^30 blocks
        slots *= 2;
    }
    prefix->slot_mask = slots - 1;
    prefix->entries = bt_alloc_array(prefix->blocks, sizeof *prefix->entries);
    prefix->ids = bt_alloc_array(prefix->blocks, block_tokens * sizeof *prefix->ids);
    prefix->slots = bt_alloc_array(slots, sizeof *prefix->slots);
    if (prefix->entries == NULL || prefix->ids == NULL || prefix->slots == NULL) {
        bt_kv_prefix_close(prefix);
        return BT_ERR_NO_MEMORY;
    }
    memset(prefix->slots, 0xff, slots * sizeof *prefix->slots);
    bt_kv_pool_on_evicted(pool, evicted, prefix);
    *out = prefix;
    return BT_OK;
}

void
bt_kv_prefix_close(bt_kv_prefix *prefix)
{
    if (prefix == NULL) {
        return;
    }
    if (prefix->count != 0) {
        bt_kv_prefix_clear(prefix);
    }
    bt_kv_pool_on_evicted(prefix->pool, NULL, NULL);
    bt_free(prefix->entries);
    bt_free(prefix->ids);
    bt_free(prefix->slots);
    bt_free(prefix);
}

bt_kv_prefix_at
bt_kv_prefix_root(uint64_t weights_digest)
{
    return (bt_kv_prefix_at){weights_digest, bt_kv_key_root(weights_digest), weights_digest | ROOT_BIT};
}

// The indexed block that holds `ids` after `at`, with `at` moved behind it, or BT_BLOCK_NONE with `at` as it was.
static bt_block
step(const bt_kv_prefix *prefix, bt_kv_prefix_at *at, const int32_t *ids)
{
    bt_kv_key key = bt_kv_key_next(at->weights_digest, at->key, ids, prefix->block_tokens);
    bt_block block = prefix->slots[find_slot(prefix, key)];
    size_t bytes = prefix->block_tokens * sizeof *ids;

    if (block == BT_BLOCK_NONE || prefix->entries[block].parent != at->serial ||
        memcmp(prefix->ids + (size_t)block * prefix->block_tokens, ids, bytes) != 0) {
        return BT_BLOCK_NONE;
    }
    at->key = key;
    at->serial = prefix->entries[block].serial;
    return block;
}

uint32_t
bt_kv_prefix_find(bt_kv_prefix *prefix, bt_kv_prefix_at *at, const int32_t *ids, uint32_t count, bt_block *out,
                  uint32_t limit)
{
    uint32_t most = count == 0 ? 0 : (count - 1) / prefix->block_tokens, found = 0;

    while (found < most && found < limit) {
        bt_block block = step(prefix, at, ids + (size_t)found * prefix->block_tokens);

        if (block == BT_BLOCK_NONE) {
            break;
        }
        bt_kv_pool_hold(prefix->pool, block);
        out[found++] = block;
    }
    return found;
}

// Whether what `at` stands on is still indexed, in the same life.
static bool
alive(const bt_kv_prefix *prefix, const bt_kv_prefix_at *at)
{
    bt_block block;

    if ((at->serial & ROOT_BIT) != 0) {
        return true;
    }
    block = prefix->slots[find_slot(prefix, at->key)];
    return block != BT_BLOCK_NONE && prefix->entries[block].serial == at->serial;
}

bt_block
bt_kv_prefix_add(bt_kv_prefix *prefix, bt_kv_prefix_at *at, const int32_t *ids, bt_block block)
{
    bt_prefix_entry *entry = &prefix->entries[block];
    uint64_t parent = at->serial;
    bt_block same;
    uint32_t slot;

    if (!alive(prefix, at)) {
        return BT_BLOCK_NONE;
    }
    same = step(prefix, at, ids);
    if (same != BT_BLOCK_NONE) {
        return same;
    }
    assert(entry->serial == 0 && "a block is indexed once, for what it holds");
    at->key = bt_kv_key_next(at->weights_digest, at->key, ids, prefix->block_tokens);
    slot = find_slot(prefix, at->key);
    if (prefix->slots[slot] !=
        BT_BLOCK_NONE) { // an orphan of an evicted parent, or a colliding key: the newer one stays
        bt_block old = prefix->slots[slot];

        remove_entry(prefix, old);
        bt_kv_pool_forget(prefix->pool, old);
        slot = find_slot(prefix, at->key);
    }
    *entry = (bt_prefix_entry){.key = at->key, .serial = ++prefix->last_serial, .parent = parent};
    memcpy(prefix->ids + (size_t)block * prefix->block_tokens, ids, prefix->block_tokens * sizeof *ids);
    prefix->slots[slot] = block;
    prefix->count++;
    bt_kv_pool_keep(prefix->pool, block);
    at->serial = entry->serial;
    return block;
}

uint32_t
bt_kv_prefix_count(const bt_kv_prefix *prefix)
{
    return prefix->count;
}

void
bt_kv_prefix_clear(bt_kv_prefix *prefix)
{
    for (bt_block block = 0; block < prefix->blocks; block++) {
        if (prefix->entries[block].serial != 0) {
            remove_entry(prefix, block);
            bt_kv_pool_forget(prefix->pool, block);
        }
    }
}
