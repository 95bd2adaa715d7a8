// The second pool of an engine whose operations work in memory that others cannot fetch from or into (a GPU's): host memory with the same
// blocks, lent to whoever moves them. Private to the engine.
//
//     prefill node    attention of layer i wrote K and V ──▶ the layer's part of the blocks that this step finishes is copied out, beside
//                     layer i + 1; after the last layer the checksums are taken. What is left to wait for is one layer's copy.
//     decode node     fetched blocks are copied in by whoever fetched them, on a thread of its own, before anyone hears that they came.
//
// The host's copy of a block is good from the end of the step that finished it until the block is lent anew: its trailer says so, as in a
// pool that is not apart. The trailer of the device's copy means nothing.
#pragma once

#include "common/engine/engine.h"
#include "common/kv/pool.h"
#include "kernels/copier.h"

typedef struct {
    bt_device *device;
    const bt_kv_layout *layout;
    uint8_t *kv;   // the device's
    uint8_t *lent; // the host's; NULL: not apart, and nothing below does anything
    size_t bytes;  // of each
    bool pinned;
    bool out;              // steps copy out
    bt_copier *copier;     // out: sums, on the step's thread; else copies in, on the thread of whoever fetches
    bt_copier_run *copies; // in: [blocks of the pool]
    // Out:
    bt_device_rows *runs; // [blocks_max] that the step in progress finishes
    uint32_t run_count, block_count, blocks_max;
    uint64_t *sums; // [blocks of the pool] checksums of what steps have finished
} bt_lend;

// `lend` has device, layout, kv, lent, bytes and out.
bt_err bt_lend_open(bt_lend *lend, const bt_engine_options *options, bt_why *why);
void bt_lend_close(bt_lend *lend); // accepts a zeroed one

// Before a step that was found good: which blocks it finishes.
void bt_lend_begin(bt_lend *lend, const bt_batch_item *items, uint32_t item_count);
bt_err bt_lend_layer(const bt_lend *lend, uint32_t layer); // after the layer's attention
bt_err bt_lend_end(bt_lend *lend);                         // after a step that went well

// bt_engine_kv_in
bt_err bt_lend_in(bt_lend *lend, const bt_block *blocks, uint32_t count, uint64_t *ticket);
