#include "router/affinity.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/key.h"

#define WAYS 8 // entries of a bucket
#define NOBODY UINT16_MAX
#define GAP_MAX 4 // keys missing in a row after which the rest is not looked for

bt_err
bt_affinity_init(bt_affinity *affinity, uint32_t entries, uint32_t step, uint32_t nodes_max)
{
    uint32_t buckets = 1;

    while (buckets < (entries + WAYS - 1) / WAYS)
        buckets *= 2;
    if (step > BT_KV_KEY_TOKENS_MAX)
        step = (step + BT_KV_KEY_TOKENS_MAX - 1) / BT_KV_KEY_TOKENS_MAX * BT_KV_KEY_TOKENS_MAX;
    *affinity = (bt_affinity){.buckets = buckets, .step = step, .pinned = BT_AFFINITY_NONE};
    affinity->entries = bt_alloc_array(buckets, WAYS * sizeof *affinity->entries);
    affinity->depths = bt_alloc_array(nodes_max, sizeof *affinity->depths);
    affinity->touched = bt_alloc_array(nodes_max, sizeof *affinity->touched);
    if (affinity->entries != NULL && affinity->depths != NULL && affinity->touched != NULL)
        return BT_OK;
    bt_affinity_fini(affinity);
    return BT_ERR_NO_MEMORY;
}

void
bt_affinity_fini(bt_affinity *affinity)
{
    bt_free(affinity->entries);
    bt_free(affinity->depths);
    bt_free(affinity->touched);
    *affinity = (bt_affinity){0};
}

uint32_t
bt_affinity_chain(const bt_affinity *affinity, uint64_t weights, const int32_t *ids, uint32_t count, uint64_t *keys)
{
    uint32_t block = affinity->step < BT_KV_KEY_TOKENS_MAX ? affinity->step : BT_KV_KEY_TOKENS_MAX;
    uint32_t steps = count / affinity->step;
    bt_kv_key key = bt_kv_key_root(weights);

    for (uint32_t i = 0; i < steps; i++) {
        for (uint32_t at = 0; at < affinity->step; at += block)
            key = bt_kv_key_next(weights, key, ids + (size_t)i * affinity->step + at, block);
        keys[i] = key.low | 1; // never 0
    }
    return steps;
}

static uint64_t
key_of_session(uint64_t session)
{
    return bt_mix64(session ^ 0x73657373696f6e) | 1;
}

static bt_affinity_entry *
bucket_of(const bt_affinity *affinity, uint64_t key)
{
    return &affinity->entries[(size_t)(bt_mix64(key) & (affinity->buckets - 1)) * WAYS];
}

static bt_affinity_entry *
find(const bt_affinity *affinity, uint64_t key)
{
    bt_affinity_entry *bucket = bucket_of(affinity, key);

    for (int i = 0; i < WAYS; i++) {
        if (bucket[i].key == key)
            return &bucket[i];
    }
    return NULL;
}

static void
note_depth(bt_affinity *affinity, const bt_affinity_entry *entry, uint32_t depth)
{
    for (int h = 0; h < BT_AFFINITY_HOLDERS && entry->holders[h] != NOBODY; h++) {
        uint32_t node = entry->holders[h];

        if (affinity->depths[node] == 0)
            affinity->touched[affinity->touched_count++] = node;
        affinity->depths[node] = depth;
    }
}

// A node that holds a key holds all before it, also where so many others hold those that it is no longer named there.
void
bt_affinity_look(bt_affinity *affinity, const uint64_t *keys, uint32_t count, uint64_t session)
{
    const bt_affinity_entry *own = session != 0 ? find(affinity, key_of_session(session)) : NULL;
    uint32_t missing = 0;

    while (affinity->touched_count > 0)
        affinity->depths[affinity->touched[--affinity->touched_count]] = 0;
    for (uint32_t i = 0; i < count && missing < GAP_MAX; i++) {
        const bt_affinity_entry *entry = find(affinity, keys[i]);

        missing = entry != NULL ? 0 : missing + 1;
        if (entry != NULL)
            note_depth(affinity, entry, i + 1);
    }
    affinity->pinned = own != NULL && own->holders[0] != NOBODY ? own->holders[0] : BT_AFFINITY_NONE;
}

uint32_t
bt_affinity_tokens(const bt_affinity *affinity, uint32_t node)
{
    return affinity->depths[node] * affinity->step;
}

static bt_affinity_entry *
take(bt_affinity *affinity, uint64_t key)
{
    bt_affinity_entry *entry = find(affinity, key), *bucket = bucket_of(affinity, key);

    if (entry != NULL)
        return entry;
    entry = &bucket[0];
    for (int i = 1; i < WAYS && entry->key != 0; i++) {
        // Ages, so that the clock may run over.
        if (bucket[i].key == 0 || affinity->clock - bucket[i].used > affinity->clock - entry->used)
            entry = &bucket[i];
    }
    entry->key = key;
    for (int h = 0; h < BT_AFFINITY_HOLDERS; h++)
        entry->holders[h] = NOBODY;
    return entry;
}

// The node moves to the front, others make way; the last of a full list is forgotten.
static void
hold(bt_affinity_entry *entry, uint32_t node)
{
    uint16_t moving = (uint16_t)node;

    for (int h = 0; h < BT_AFFINITY_HOLDERS; h++) {
        uint16_t here = entry->holders[h];

        entry->holders[h] = moving;
        if (here == node || here == NOBODY)
            return;
        moving = here;
    }
}

static void
record(bt_affinity *affinity, uint64_t key, uint32_t node)
{
    bt_affinity_entry *entry = take(affinity, key);

    entry->used = affinity->clock;
    hold(entry, node);
}

void
bt_affinity_record(bt_affinity *affinity, const uint64_t *keys, uint32_t count, uint32_t node)
{
    affinity->clock++;
    for (uint32_t i = 0; i < count; i++)
        record(affinity, keys[i], node);
}

void
bt_affinity_pin(bt_affinity *affinity, uint64_t session, uint32_t node)
{
    affinity->clock++;
    if (session != 0)
        record(affinity, key_of_session(session), node);
}

static void
let_go(bt_affinity_entry *entry, uint32_t node)
{
    int kept = 0;

    for (int h = 0; h < BT_AFFINITY_HOLDERS && entry->holders[h] != NOBODY; h++) {
        if (entry->holders[h] != node)
            entry->holders[kept++] = entry->holders[h];
    }
    for (int h = kept; h < BT_AFFINITY_HOLDERS; h++)
        entry->holders[h] = NOBODY;
    if (kept == 0)
        entry->key = 0;
}

void
bt_affinity_forget(bt_affinity *affinity, uint32_t node)
{
    for (size_t i = 0; i < (size_t)affinity->buckets * WAYS; i++) {
        if (affinity->entries[i].key != 0)
            let_go(&affinity->entries[i], node);
    }
}

uint32_t
bt_affinity_used(const bt_affinity *affinity)
{
    uint32_t used = 0;

    for (size_t i = 0; i < (size_t)affinity->buckets * WAYS; i++)
        used += affinity->entries[i].key != 0;
    return used;
}
