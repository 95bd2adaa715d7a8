// A fixed set of KV blocks, lent with reference counts.
//
// The pool knows indices, not bytes: block b lies at base + b · layout.block_bytes, wherever the engine put base. A block is
//
//     FREE ──take──▶ HELD ──last release──▶ FREE, or IDLE when someone keeps it (the prefix index)
//                      ▲───────hold──────── IDLE ──evicted by take, oldest release first──▶ HELD by the taker
//
// so a full cache costs nobody anything: what is idle counts as available. Nothing here locks: a pool belongs to one
// thread. Memory is allocated at open and never later. Release a sequence's blocks from its tail to its head: then a
// prefix outlives what was built on it.
#pragma once

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t bt_block;
#define BT_BLOCK_NONE UINT32_MAX

typedef struct bt_kv_pool bt_kv_pool;

// 1 … 2^30 blocks, all free.
bt_err bt_kv_pool_open(bt_kv_pool **out, uint32_t blocks);
void bt_kv_pool_close(bt_kv_pool *pool);

// Takes `count` blocks, each with one hold, in as few runs of adjacent blocks as the free ones allow; the first run goes
// on at `after` + 1 when that is free (BT_BLOCK_NONE: nowhere in particular). All or nothing: BT_ERR_BUSY when fewer are
// available, and the caller queues or sheds. Idle blocks are evicted only for what is not free. Cost: a scan of a bit a
// block.
bt_err bt_kv_pool_take(bt_kv_pool *pool, bt_block after, uint32_t count, bt_block *out);

// One more hold on a block that is held or idle.
void bt_kv_pool_hold(bt_kv_pool *pool, bt_block block);
void bt_kv_pool_release(bt_kv_pool *pool, bt_block block);

// A kept block stays idle after its last release, until `forget` or until the pool evicts it, which it tells `evicted`
// (before the block is lent again). Keeping is for the prefix index, one a pool.
typedef void bt_kv_pool_evicted(void *arg, bt_block block);
void bt_kv_pool_on_evicted(bt_kv_pool *pool, bt_kv_pool_evicted *evicted, void *arg);
void bt_kv_pool_keep(bt_kv_pool *pool, bt_block block); // the block is held
void bt_kv_pool_forget(bt_kv_pool *pool, bt_block block);

uint32_t bt_kv_pool_blocks(const bt_kv_pool *pool);
uint32_t bt_kv_pool_free(const bt_kv_pool *pool);
uint32_t bt_kv_pool_idle(const bt_kv_pool *pool);
uint32_t bt_kv_pool_available(const bt_kv_pool *pool); // free + idle: what take can give
uint32_t bt_kv_pool_holds(const bt_kv_pool *pool, bt_block block);
bool bt_kv_pool_kept(const bt_kv_pool *pool, bt_block block);

// Grows by one each time the block is lent anew; names one life of the block in offers and trailers. Never 0 once lent.
uint64_t bt_kv_pool_generation(const bt_kv_pool *pool, bt_block block);

// The leak gauge: holds granted and not released, less those that their owners can still name (the lengths of all tables
// and of whatever else holds blocks). 0 when all is well; not 0 at idle is a leak, below 0 a double release.
int64_t bt_kv_pool_leaked(const bt_kv_pool *pool, uint64_t accounted);
