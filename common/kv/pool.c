#include "common/kv/pool.h"

#include "common/base/mem.h"

#include <assert.h>
#include <string.h>

typedef struct {
    uint32_t holds;
    bool kept;
    bt_block older, newer; // the idle list
    uint64_t generation;
} bt_pool_block;

struct bt_kv_pool {
    uint32_t blocks, free_count, idle_count, words;
    uint64_t holds;          // of all blocks
    uint64_t *free_bits;     // bit b of word w: block 64 w + b is free
    bt_block oldest, newest; // idle blocks by their last release
    bt_kv_pool_evicted *evicted;
    void *evicted_arg;
    bt_pool_block *of;
};

bt_err
bt_kv_pool_open(bt_kv_pool **out, uint32_t blocks)
{
    bt_kv_pool *pool;

    if (blocks == 0 || blocks > 1u << 30) {
        return BT_ERR_INVALID;
    }
    pool = bt_alloc(sizeof *pool);
    if (pool == NULL) {
        return BT_ERR_NO_MEMORY;
    }
    pool->words = (blocks + 63) / 64;
    pool->free_bits = bt_alloc_array(pool->words, sizeof *pool->free_bits);
    pool->of = bt_alloc_array(blocks, sizeof *pool->of);
    if (pool->free_bits == NULL || pool->of == NULL) {
        bt_kv_pool_close(pool);
        return BT_ERR_NO_MEMORY;
    }
    pool->blocks = pool->free_count = blocks;
    pool->oldest = pool->newest = BT_BLOCK_NONE;
    for (uint32_t b = 0; b < blocks; b++) {
        pool->free_bits[b / 64] |= (uint64_t)1 << b % 64;
    }
    *out = pool;
    return BT_OK;
}

void
bt_kv_pool_close(bt_kv_pool *pool)
{
    if (pool != NULL) {
        bt_free(pool->free_bits);
        bt_free(pool->of);
        bt_free(pool);
    }
}

static bool
is_free(const bt_kv_pool *pool, uint32_t block)
{
    return block < pool->blocks && (pool->free_bits[block / 64] >> block % 64 & 1) != 0;
}

static void
set_free(bt_kv_pool *pool, bt_block block)
{
    pool->free_bits[block / 64] |= (uint64_t)1 << block % 64;
    pool->free_count++;
}

static void
idle_push(bt_kv_pool *pool, bt_block block)
{
    bt_pool_block *b = &pool->of[block];

    b->older = pool->newest;
    b->newer = BT_BLOCK_NONE;
    *(pool->newest != BT_BLOCK_NONE ? &pool->of[pool->newest].newer : &pool->oldest) = block;
    pool->newest = block;
    pool->idle_count++;
}

static void
idle_remove(bt_kv_pool *pool, bt_block block)
{
    bt_pool_block *b = &pool->of[block];

    *(b->older != BT_BLOCK_NONE ? &pool->of[b->older].newer : &pool->oldest) = b->newer;
    *(b->newer != BT_BLOCK_NONE ? &pool->of[b->newer].older : &pool->newest) = b->older;
    pool->idle_count--;
}

static void
evict_oldest(bt_kv_pool *pool)
{
    bt_block block = pool->oldest;

    assert(block != BT_BLOCK_NONE);
    idle_remove(pool, block);
    pool->of[block].kept = false;
    set_free(pool, block);
    if (pool->evicted != NULL) {
        pool->evicted(pool->evicted_arg, block);
    }
}

// The first free block at or after `from`, or the first that is not free; `blocks` when there is none.
static uint32_t
next_where(const bt_kv_pool *pool, uint32_t from, bool want_free)
{
    while (from < pool->blocks) {
        uint64_t word = pool->free_bits[from / 64];
        uint64_t rest = (want_free ? word : ~word) >> from % 64;

        if (rest != 0) {
            uint32_t found = from + (uint32_t)__builtin_ctzll(rest);

            return found < pool->blocks ? found : pool->blocks;
        }
        from = (from / 64 + 1) * 64;
    }
    return pool->blocks;
}

// The shortest free run that holds `count` blocks, or the longest one when none does. Best fit keeps long runs whole.
static uint32_t
find_run(const bt_kv_pool *pool, uint32_t count, uint32_t *length)
{
    uint32_t best = 0, best_length = 0;

    for (uint32_t start = next_where(pool, 0, true); start < pool->blocks;) {
        uint32_t end = next_where(pool, start, false), run = end - start;

        if (best_length < count ? run > best_length : run >= count && run < best_length) {
            best = start;
            best_length = run;
        }
        if (best_length == count) {
            break;
        }
        start = next_where(pool, end, true);
    }
    *length = best_length;
    return best;
}

static void
lend_run(bt_kv_pool *pool, uint32_t start, uint32_t count, bt_block *out)
{
    for (uint32_t i = 0; i < count; i++) {
        bt_pool_block *b = &pool->of[start + i];

        pool->free_bits[(start + i) / 64] &= ~((uint64_t)1 << (start + i) % 64);
        b->holds = 1;
        b->generation++;
        out[i] = start + i;
    }
    pool->free_count -= count;
    pool->holds += count;
}

bt_err
bt_kv_pool_take(bt_kv_pool *pool, bt_block after, uint32_t count, bt_block *out)
{
    uint32_t taken = 0;

    if (count > bt_kv_pool_available(pool)) {
        return BT_ERR_BUSY;
    }
    while (pool->free_count < count) {
        evict_oldest(pool);
    }
    if (after != BT_BLOCK_NONE) {
        while (taken < count && is_free(pool, after + 1 + taken)) {
            taken++;
        }
        lend_run(pool, after + 1, taken, out);
    }
    while (taken < count) {
        uint32_t length, start = find_run(pool, count - taken, &length);

        length = length < count - taken ? length : count - taken;
        lend_run(pool, start, length, out + taken);
        taken += length;
    }
    return BT_OK;
}

void
bt_kv_pool_hold(bt_kv_pool *pool, bt_block block)
{
    bt_pool_block *b = &pool->of[block];

    assert(block < pool->blocks && !is_free(pool, block));
    if (b->holds++ == 0) {
        idle_remove(pool, block);
    }
    pool->holds++;
}

void
bt_kv_pool_release(bt_kv_pool *pool, bt_block block)
{
    bt_pool_block *b = &pool->of[block];

    assert(block < pool->blocks && b->holds > 0);
    pool->holds--;
    if (--b->holds == 0) {
        if (b->kept) {
            idle_push(pool, block);
        } else {
            set_free(pool, block);
        }
    }
}

void
bt_kv_pool_on_evicted(bt_kv_pool *pool, bt_kv_pool_evicted *evicted, void *arg)
{
    pool->evicted = evicted;
    pool->evicted_arg = arg;
}

void
bt_kv_pool_keep(bt_kv_pool *pool, bt_block block)
{
    assert(block < pool->blocks && pool->of[block].holds > 0);
    pool->of[block].kept = true;
}

void
bt_kv_pool_forget(bt_kv_pool *pool, bt_block block)
{
    bt_pool_block *b = &pool->of[block];

    assert(block < pool->blocks && b->kept);
    b->kept = false;
    if (b->holds == 0) {
        idle_remove(pool, block);
        set_free(pool, block);
    }
}

uint32_t
bt_kv_pool_blocks(const bt_kv_pool *pool)
{
    return pool->blocks;
}

uint32_t
bt_kv_pool_free(const bt_kv_pool *pool)
{
    return pool->free_count;
}

uint32_t
bt_kv_pool_idle(const bt_kv_pool *pool)
{
    return pool->idle_count;
}

uint32_t
bt_kv_pool_available(const bt_kv_pool *pool)
{
    return pool->free_count + pool->idle_count;
}

uint32_t
bt_kv_pool_holds(const bt_kv_pool *pool, bt_block block)
{
    assert(block < pool->blocks);
    return pool->of[block].holds;
}

bool
bt_kv_pool_kept(const bt_kv_pool *pool, bt_block block)
{
    assert(block < pool->blocks);
    return pool->of[block].kept;
}

uint64_t
bt_kv_pool_generation(const bt_kv_pool *pool, bt_block block)
{
    assert(block < pool->blocks);
    return pool->of[block].generation;
}

int64_t
bt_kv_pool_leaked(const bt_kv_pool *pool, uint64_t accounted)
{
    return (int64_t)(pool->holds - accounted);
}
