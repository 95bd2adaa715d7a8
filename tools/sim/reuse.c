// What one cache could have reused of a trace: the bounds that a cluster's hit rate is looked at beside.
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tools/sim/trace.h"

#include <string.h>

#define NOWHERE UINT32_MAX

// Hash ids as numbers from 0, so that the list can be arrays.
typedef struct {
    uint64_t *keys;
    uint32_t *values;
    uint32_t mask, count;
} numbering;

static uint32_t
number_of(numbering *n, uint64_t key)
{
    uint32_t slot = (uint32_t)bt_mix64(key) & n->mask;

    while (n->values[slot] != NOWHERE && n->keys[slot] != key)
        slot = (slot + 1) & n->mask;
    if (n->values[slot] == NOWHERE) {
        n->keys[slot] = key;
        n->values[slot] = n->count++;
    }
    return n->values[slot];
}

// The blocks of the cache, last used first.
typedef struct {
    uint32_t *next, *previous; // [blocks]; next of one that is not there is itself
    uint32_t first, last, count, limit;
} recency;

static void
take_out(recency *r, uint32_t block)
{
    uint32_t next = r->next[block], previous = r->previous[block];

    *(previous != NOWHERE ? &r->next[previous] : &r->first) = next;
    *(next != NOWHERE ? &r->previous[next] : &r->last) = previous;
    r->next[block] = block;
    r->count--;
}

static void
use(recency *r, uint32_t block)
{
    if (r->next[block] != block)
        take_out(r, block);
    r->next[block] = r->first;
    r->previous[block] = NOWHERE;
    *(r->first != NOWHERE ? &r->previous[r->first] : &r->last) = block;
    r->first = block;
    if (++r->count > r->limit)
        take_out(r, r->last);
}

static uint32_t
least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// Tokens of one prompt that were there; all of it is there afterwards. Used from its end to its beginning, so that what others are built on
// goes last.
static uint32_t
play_row(const sim_trace *trace, const sim_row *row, numbering *n, recency *r)
{
    uint32_t blocks = (row->prompt + SIM_HASH_TOKENS - 1) / SIM_HASH_TOKENS, found = 0;

    if (row->hash == SIM_HASH_NONE)
        return 0;
    while (found < blocks) {
        uint32_t block = number_of(n, trace->hashes[row->hash + found]);

        if (r->next[block] == block)
            break;
        found++;
    }
    for (uint32_t i = blocks; i-- > 0;)
        use(r, number_of(n, trace->hashes[row->hash + i]));
    return least(found * SIM_HASH_TOKENS, row->prompt);
}

static bt_err
open_all(const sim_trace *trace, numbering *n, recency *r)
{
    while (n->mask < 2 * trace->hash_count)
        n->mask = 2 * n->mask + 1;
    n->keys = bt_alloc_array((size_t)n->mask + 1, sizeof *n->keys);
    n->values = bt_alloc_array((size_t)n->mask + 1, sizeof *n->values);
    r->next = bt_alloc_array((size_t)trace->hash_count + 1, sizeof *r->next);
    r->previous = bt_alloc_array((size_t)trace->hash_count + 1, sizeof *r->previous);
    if (n->keys == NULL || n->values == NULL || r->next == NULL || r->previous == NULL)
        return BT_ERR_NO_MEMORY;
    memset(n->values, 0xff, ((size_t)n->mask + 1) * sizeof *n->values);
    for (uint32_t i = 0; i <= trace->hash_count; i++)
        r->next[i] = i;
    return BT_OK;
}

bt_err
sim_trace_reuse(const sim_trace *trace, uint64_t tokens, double *share)
{
    uint64_t limit = tokens == 0 ? UINT32_MAX : tokens / SIM_HASH_TOKENS, found = 0, all = 0;
    numbering n = {.mask = 1};
    recency r = {.first = NOWHERE, .last = NOWHERE, .limit = limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX};
    bt_err err = open_all(trace, &n, &r);

    for (uint32_t i = 0; err == BT_OK && i < trace->count; i++) {
        found += play_row(trace, &trace->rows[i], &n, &r);
        all += trace->rows[i].prompt;
    }
    bt_free(n.keys);
    bt_free(n.values);
    bt_free(r.next);
    bt_free(r.previous);
    if (err == BT_OK)
        *share = all > 0 ? (double)found / (double)all : 0;
    return err;
}
