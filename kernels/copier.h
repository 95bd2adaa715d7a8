// A stream beside a device's own, on which memory moves and blocks of the KV cache are summed, stamped and fetched while steps compute.
//
//     the copier's thread            the copier's stream(s)
//       copy, sum, fetch …  ──────▶    batch 7 | batch 8 | …         each call is a batch and gives it a ticket: 1, 2, …
//       through             ◀──────    "all up to 7 are done"
//
// Batches are done in the order of their tickets, and what a later one reads an earlier one has written; only fetches run beside each
// other, so that none may touch what one in flight writes. Nothing is ordered with the device's operations: what a step wrote may be read
// by a batch that begins after ops->end has returned, and what a batch wrote may be read by a step that begins after the batch is done.
// On the CPU everything is done when a call returns.
//
// A copier belongs to one thread, the device's or another; a device may have several. All memory is taken at open. Host memory that is
// not pinned (bt_device_pin) is copied slowly, and the call may wait for it.
#pragma once

#include "common/base/err.h"
#include "common/base/time.h"
#include "common/kv/layout.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_copier bt_copier;

typedef struct {
    uint32_t batches; // that may be in flight; 0 = 16
    uint32_t blocks;  // of one clear, stamp, sum or fetch; 0 = 1024
    bool notify;      // bt_copier_fd is wanted
} bt_copier_options;

bt_err bt_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why);
void bt_copier_close(bt_copier *copier); // waits for what is in flight; before the device; NULL is fine

// All batches up to `ticket` are done. BT_ERR_DEVICE: the device has failed, for good: nothing of it will be done.
bt_err bt_copier_through(bt_copier *copier, uint64_t *ticket);
// Until that batch is done. BT_ERR_INVALID: 0, which no batch has. BT_ERR_TIMEOUT when `deadline`, on bt_time_now's clock, comes first.
bt_err bt_copier_wait(bt_copier *copier, uint64_t ticket, bt_time deadline);
// Sleeping: watch `fd` for reading (−1 without `notify`, and on the CPU), and sleep only after `arm` said true: then it becomes readable
// when the next batch ends, if one is in flight. False: one has ended since `through` was asked.
int bt_copier_fd(const bt_copier *copier);
bool bt_copier_arm(bt_copier *copier);

// What follows begins a batch. BT_ERR_BUSY: `batches` are in flight. BT_ERR_INVALID: more blocks than were said at open. A batch that has ended
// makes room whether `through` has told it or not: who wants what it landed begins no more than `batches` beyond those it has looked at.

// Copies, in this order, between any memories that this process may name: its own, the device's, another device's that was opened.
typedef struct {
    void *to;
    const void *from;
    size_t bytes;
} bt_copier_run;
bt_err bt_copier_copy(bt_copier *copier, const bt_copier_run *runs, uint32_t count, uint64_t *ticket);

// For pools in the device's memory: what common/kv/trailer.h does on the host's. Blocks lie layout->block_bytes apart.

// Before a lent block is written: its trailer says nothing any more. To be waited for before the step that writes.
bt_err bt_copier_clear(bt_copier *copier, const bt_kv_layout *layout, void *pool, const uint32_t *blocks,
                       uint32_t count, uint64_t *ticket);
// Finished blocks: writes epoch, generation and checksum.
typedef struct {
    uint32_t block;
    uint64_t generation;
} bt_copier_stamping;
bt_err bt_copier_stamp(bt_copier *copier, const bt_kv_layout *layout, void *pool, uint64_t epoch,
                       const bt_copier_stamping *stampings, uint32_t count, uint64_t *ticket);

// What a reader needs to judge a block (bt_kv_trailer_judge): the sum of its bytes, and its trailer, read after them.
typedef struct {
    uint64_t sum; // of trailer_offset bytes, see bt_kv_checksum_part
    bt_kv_trailer trailer;
} bt_copier_landed;
// Of blocks as they lie.
bt_err bt_copier_sum(bt_copier *copier, const bt_kv_layout *layout, const void *first, uint32_t count,
                     uint64_t *ticket);
// Copies blocks, out of this device's memory or a peer's, and takes their sums. The sums are those of the bytes that were written to
// `to`, and each trailer is read, and written to `to`, after the bytes before it, so that it vouches for them.
//     BY_KERNEL  in one pass; for memory of the same GPU, where it moves two thirds of the bytes that copying and then summing would
//     BY_ENGINE  copies, which take no processor of the GPU, and then the sums of what has landed while the next batch is copied; for
//                another GPU's memory
typedef enum { BT_COPIER_BY_KERNEL, BT_COPIER_BY_ENGINE } bt_copier_way;
// Blocks that are neighbours on both sides. A batch may have several runs: a batch costs more than a run.
typedef struct {
    void *to; // NULL, of all runs of a batch: only sums
    const void *from;
    uint32_t count;
} bt_copier_blocks;
#define BT_COPIER_RUNS_MAX 16
bt_err bt_copier_fetch(bt_copier *copier, const bt_kv_layout *layout, const bt_copier_blocks *runs, uint32_t run_count,
                       bt_copier_way way, uint64_t *ticket);
// [blocks] of a sum or fetch that is done, in the order of its runs; good until `batches` more have begun.
const bt_copier_landed *bt_copier_landed_of(const bt_copier *copier, uint64_t ticket);

#ifdef __cplusplus
}
#endif
