#include "common/text/merge.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#define NONE UINT32_MAX
#define PAGES_FROM ((size_t)2 << 20)

static uint32_t
pair_slot(const bt_merge_table *table, uint32_t left, uint32_t right)
{
    uint32_t at = (uint32_t)bt_mix64((uint64_t)left << 32 | right) & table->mask;

    while (table->slots[at].left != NONE && (table->slots[at].left != left || table->slots[at].right != right)) {
        at = (at + 1) & table->mask;
    }
    return at;
}

bt_err
bt_merge_table_init(bt_merge_table *table, uint32_t count)
{
    uint32_t slots = 16;

    if (count > BT_MERGES_MAX) {
        return BT_ERR_TOO_LONG;
    }
    while (slots < count + count / 2) {
        slots *= 2;
    }
    table->slots = bt_alloc_pages(slots * sizeof *table->slots);
    if (table->slots == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    memset(table->slots, 0xff, slots * sizeof *table->slots);
    table->mask = slots - 1;
    return BT_OK;
}

void
bt_merge_table_add(bt_merge_table *table, bt_merge merge)
{
    bt_merge *slot = &table->slots[pair_slot(table, merge.left, merge.right)];

    if (slot->left == NONE) {
        *slot = merge;
    }
}

void
bt_merge_table_fini(bt_merge_table *table)
{
    bt_free_pages(table->slots, ((size_t)table->mask + 1) * sizeof *table->slots);
    *table = (bt_merge_table){0};
}

// Huge pages for a piece of many symbols: faulting in small ones took longer than the merging.
static void *
take(size_t bytes)
{
    return bytes >= PAGES_FROM ? bt_alloc_pages(bytes) : bt_alloc(bytes);
}

static void
give(void *memory, size_t bytes)
{
    if (bytes >= PAGES_FROM) {
        bt_free_pages(memory, bytes);
    } else {
        bt_free(memory);
    }
}

// n symbols begin with n − 1 pairs, and each of at most n − 1 merges adds two.
static size_t
heap_bytes(size_t symbols)
{
    return 3 * symbols * sizeof(bt_merge_candidate);
}

bt_err
bt_merge_scratch_reserve(bt_merge_scratch *scratch, size_t symbols)
{
    bt_merge_scratch grown = {.count = scratch->count};
    size_t cap = scratch->cap != 0 ? scratch->cap : 64;

    if (symbols <= scratch->cap) {
        return BT_OK;
    }
    while (cap < symbols) {
        cap *= 2;
    }
    grown.cap = (uint32_t)cap;
    grown.symbols = take(cap * sizeof *grown.symbols);
    grown.heap = take(heap_bytes(cap));
    if (grown.symbols == NULL || grown.heap == NULL) {
        bt_merge_scratch_fini(&grown);
        return BT_ERR_NO_MEMORY;
    }
    if (scratch->count != 0) {
        memcpy(grown.symbols, scratch->symbols, scratch->count * sizeof *grown.symbols);
    }
    bt_merge_scratch_fini(scratch);
    *scratch = grown;
    return BT_OK;
}

void
bt_merge_scratch_fini(bt_merge_scratch *scratch)
{
    give(scratch->symbols, scratch->cap * sizeof *scratch->symbols);
    give(scratch->heap, heap_bytes(scratch->cap));
    *scratch = (bt_merge_scratch){0};
}

void
bt_merge_push(bt_merge_scratch *scratch, uint32_t at, uint32_t len, int32_t id)
{
    uint32_t i = scratch->count++;

    scratch->symbols[i] = (bt_symbol){.prev = i - 1, .next = NONE, .at = at, .len = len, .id = id};
    if (i != 0) {
        scratch->symbols[i - 1].next = i;
    }
}

static void
heap_push(bt_merge_scratch *scratch, bt_merge_candidate candidate)
{
    bt_merge_candidate *heap = scratch->heap;
    uint32_t i = scratch->heap_count++;

    for (; i != 0 && heap[(i - 1) / 2].key > candidate.key; i = (i - 1) / 2) {
        heap[i] = heap[(i - 1) / 2];
    }
    heap[i] = candidate;
}

static bt_merge_candidate
heap_pop(bt_merge_scratch *scratch)
{
    bt_merge_candidate *heap = scratch->heap, top = heap[0], last = heap[--scratch->heap_count];
    uint32_t i = 0, count = scratch->heap_count;

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child + 1 < count && heap[child + 1].key < heap[child].key) {
            child++;
        }
        if (child >= count || heap[child].key >= last.key) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static bool
worth(const bt_merge_rules *rules, const char *piece, const bt_symbol *left, const bt_symbol *right, uint32_t *rank,
      int32_t *merged)
{
    if (rules->ranks->slots != NULL) {
        const bt_merge *slot;

        if (left->id < 0 || right->id < 0) {
            return false;
        }
        slot = &rules->ranks->slots[pair_slot(rules->ranks, (uint32_t)left->id, (uint32_t)right->id)];
        *rank = slot->rank;
        *merged = (int32_t)slot->merged;
        return slot->left != NONE;
    }
    *merged = bt_token_table_find(rules->tokens, piece + left->at, left->len + right->len);
    *rank = *merged >= 0 ? rules->order[*merged] : NONE;
    return *rank != NONE;
}

static void
consider(bt_merge_scratch *scratch, const bt_merge_rules *rules, const char *piece, uint32_t left, uint32_t right)
{
    uint32_t rank;
    int32_t merged;

    if (left == NONE || right == NONE) {
        return;
    }
    if (worth(rules, piece, &scratch->symbols[left], &scratch->symbols[right], &rank, &merged)) {
        heap_push(scratch, (bt_merge_candidate){.key = (uint64_t)rank << 32 | left,
                                                .len = scratch->symbols[left].len + scratch->symbols[right].len,
                                                .merged = merged});
    }
}

void
bt_merge_run(bt_merge_scratch *scratch, const bt_merge_rules *rules, const char *piece)
{
    scratch->heap_count = 0;
    for (uint32_t i = 1; i < scratch->count; i++) {
        consider(scratch, rules, piece, i - 1, i);
    }
    while (scratch->heap_count != 0) {
        bt_merge_candidate best = heap_pop(scratch);
        uint32_t at = (uint32_t)best.key;
        bt_symbol *left = &scratch->symbols[at], *right;

        if (left->len == 0 || left->next == NONE) {
            continue; // merged meanwhile, or the last one by now
        }
        right = &scratch->symbols[left->next];
        if (left->len + right->len != best.len) {
            continue;
        }
        left->len = best.len;
        left->id = best.merged;
        left->next = right->next;
        right->len = 0;
        if (left->next != NONE) {
            scratch->symbols[left->next].prev = at;
        }
        consider(scratch, rules, piece, left->prev, at);
        consider(scratch, rules, piece, at, left->next);
    }
}
