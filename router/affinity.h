// Which nodes have read which beginnings of prompts: a guess, in a table of fixed size, that only makes one placement better than
// another. What is not in it is computed anew; what is wrongly in it too.
//
// A prompt is a chain of keys (common/kv/key.h), one each `step` tokens, seeded with the digest of the weights that read it. An entry names
// a key and the nodes that held it last; a bucket of eight entries drops the one unused for longest. A session is a chain of one key.
// Recording the same again changes nothing. Private to the router's core. One thread. Memory is allocated at init.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define BT_AFFINITY_HOLDERS 10
#define BT_AFFINITY_NONE UINT32_MAX

typedef struct {
    uint64_t key;                          // 0 = empty
    uint32_t used;                         // when it was recorded last
    uint16_t holders[BT_AFFINITY_HOLDERS]; // the latest first; UINT16_MAX = none
} bt_affinity_entry;

typedef struct {
    bt_affinity_entry *entries;
    uint32_t buckets, clock;
    uint32_t step;
    // Of the last look:
    uint32_t *depths;  // [nodes_max] keys found of a node
    uint32_t *touched; // [nodes_max] nodes with a depth
    uint32_t touched_count;
    uint32_t pinned; // the session's node
} bt_affinity;

// `entries` is rounded up to a power of two of buckets; `step` to a multiple of 64 where it is above that.
bt_err bt_affinity_init(bt_affinity *affinity, uint32_t entries, uint32_t step, uint32_t nodes_max);
void bt_affinity_fini(bt_affinity *affinity); // accepts a zeroed one

// The keys of all whole steps of `ids`, count / step of them.
uint32_t bt_affinity_chain(const bt_affinity *affinity, uint64_t weights, const int32_t *ids, uint32_t count,
                           uint64_t *keys);

// Who holds how much of the chain, and whom the session is pinned to (0 = no session). Answers are good until the next look.
void bt_affinity_look(bt_affinity *affinity, const uint64_t *keys, uint32_t count, uint64_t session);
uint32_t bt_affinity_tokens(const bt_affinity *affinity, uint32_t node); // of the beginning, that it should hold

void bt_affinity_record(bt_affinity *affinity, const uint64_t *keys, uint32_t count, uint32_t node);
void bt_affinity_pin(bt_affinity *affinity, uint64_t session, uint32_t node);
// The node is another program now, with an empty cache.
void bt_affinity_forget(bt_affinity *affinity, uint32_t node);

uint32_t bt_affinity_used(const bt_affinity *affinity); // entries, for tests: a walk over all
