// The merging of BPE: neighbouring symbols become one, best pair first, until no pair is known. O(n log n) in the
// symbols of a piece: a doubly linked list of symbols and a heap of pairs.
//
// What a pair is worth comes from one of two places: a table of ranks by the ids of both (`merges` of GPT-2 and
// tokenizer.json), or the score of the token that both spell together (SentencePiece).
#pragma once

#include "common/text/token_table.h"

typedef struct {
    uint32_t left, right; // ids; left UINT32_MAX = free
    uint32_t rank, merged;
} bt_merge;

typedef struct {
    uint32_t mask;
    bt_merge *slots; // open addressing by both ids; NULL: by score
} bt_merge_table;

// Room for `count` merges (at most BT_MERGES_MAX).
bt_err bt_merge_table_init(bt_merge_table *table, uint32_t count);
void bt_merge_table_add(bt_merge_table *table, bt_merge merge); // of equal pairs the first stays
void bt_merge_table_fini(bt_merge_table *table);

typedef struct {
    const bt_merge_table *ranks;
    const bt_token_table *tokens; // by score: what both spell is looked up here …
    const uint32_t *order;        // … and order[id] is its rank: lower merges first, UINT32_MAX never
} bt_merge_rules;

typedef struct {
    uint32_t prev, next; // UINT32_MAX at the ends
    uint32_t at, len;    // bytes of the piece; len 0 = merged into the one before it
    int32_t id;          // −1 = no token
} bt_symbol;

// The pair of a symbol and the one after it. Its length tells whether it is still there: both can only grow.
typedef struct {
    uint64_t key; // rank, then place from the left
    uint32_t len; // bytes of both
    int32_t merged;
} bt_merge_candidate;

// Symbols and heap of one piece at a time; grows to the longest piece. Zeroed is empty.
typedef struct {
    bt_symbol *symbols;
    bt_merge_candidate *heap;
    uint32_t cap, count; // symbols
    uint32_t heap_count;
} bt_merge_scratch;

// Keeps the symbols that are there.
bt_err bt_merge_scratch_reserve(bt_merge_scratch *scratch, size_t symbols);
void bt_merge_scratch_fini(bt_merge_scratch *scratch);

// Appends a symbol to a piece whose symbols were reserved; count = 0 begins one.
void bt_merge_push(bt_merge_scratch *scratch, uint32_t at, uint32_t len, int32_t id);
// Afterwards the symbols with len != 0 are the result, in order.
void bt_merge_run(bt_merge_scratch *scratch, const bt_merge_rules *rules, const char *piece);
