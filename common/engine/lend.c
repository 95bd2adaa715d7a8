#include "common/engine/lend.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/kv/trailer.h"

#include <assert.h>

#define SUM_TIME_MAX (30 * BT_SECOND)

static bt_err
open_out(bt_lend *lend, const bt_engine_options *options, bt_why *why)
{
    uint32_t whole = options->chunk_tokens / lend->layout->block_tokens;
    bt_copier_options copier = {.batches = 2};

    lend->blocks_max =
        whole + 2 * options->max_sequences; // an item may begin in one block, and end a prompt in another
    copier.blocks = lend->blocks_max;
    lend->runs = bt_alloc_array(lend->blocks_max, sizeof *lend->runs);
    lend->sums = bt_alloc_array(lend->bytes / lend->layout->block_bytes, sizeof *lend->sums);
    return lend->runs != NULL && lend->sums != NULL ? bt_copier_open(&lend->copier, lend->device, &copier, why)
                                                    : BT_ERR_NO_MEMORY;
}

static bt_err
open_in(bt_lend *lend, const bt_engine_options *options, bt_why *why)
{
    bt_copier_options copier = {.batches = options->max_sequences, .notify = true};

    lend->copies = bt_alloc_array(lend->bytes / lend->layout->block_bytes, sizeof *lend->copies);
    return lend->copies != NULL ? bt_copier_open(&lend->copier, lend->device, &copier, why) : BT_ERR_NO_MEMORY;
}

bt_err
bt_lend_open(bt_lend *lend, const bt_engine_options *options, bt_why *why)
{
    bt_err err;

    if (lend->lent == NULL) {
        return BT_OK;
    }
    if ((err = bt_device_pin(lend->device, lend->lent, lend->bytes, why)) != BT_OK) {
        return err;
    }
    lend->pinned = true;
    err = lend->out ? open_out(lend, options, why) : open_in(lend, options, why);
    return err == BT_ERR_NO_MEMORY ? bt_fail(why, err, "engine: out of memory") : err;
}

void
bt_lend_close(bt_lend *lend)
{
    bt_copier_close(lend->copier);
    if (lend->pinned) {
        bt_device_unpin(lend->device, lend->lent, lend->bytes);
    }
    bt_free(lend->runs);
    bt_free(lend->sums);
    bt_free(lend->copies);
    *lend = (bt_lend){0};
}

// ---- out ----

static void
add_block(bt_lend *lend, bt_block block)
{
    size_t at = block * lend->layout->block_bytes;
    bt_device_rows *last = lend->run_count != 0 ? &lend->runs[lend->run_count - 1] : NULL;

    assert(lend->block_count < lend->blocks_max);
    lend->block_count++;
    if (last != NULL && last->at + last->rows * lend->layout->block_bytes == at) {
        last->rows++;
    } else {
        lend->runs[lend->run_count++] = (bt_device_rows){at, 1};
    }
}

// Full ones, and the one that a prompt ends in. What an answer writes is fetched by nobody.
void
bt_lend_begin(bt_lend *lend, const bt_batch_item *items, uint32_t item_count)
{
    lend->block_count = lend->run_count = 0;
    if (lend->lent == NULL || !lend->out) {
        return;
    }
    for (uint32_t i = 0; i < item_count; i++) {
        uint32_t block_tokens = lend->layout->block_tokens, end = items[i].position + items[i].count;
        uint32_t after = (end == items[i].prompt_count ? end + block_tokens - 1 : end) / block_tokens;

        for (uint32_t b = items[i].position / block_tokens; b < after; b++) {
            add_block(lend, items[i].blocks[b]);
        }
    }
}

bt_err
bt_lend_layer(const bt_lend *lend, uint32_t layer)
{
    size_t at = layer * lend->layout->layer_bytes;

    return lend->run_count == 0
               ? BT_OK
               : bt_device_read_beside(lend->device, lend->lent + at, lend->kv + at, lend->runs, lend->run_count,
                                       lend->layout->layer_bytes, lend->layout->block_bytes);
}

// Asks for the sums of so many runs and waits for them: a batch, since each wait is a journey to the device and back.
static bt_err
sum_batch(bt_lend *lend, const bt_device_rows *runs, uint32_t count, const bt_copier_landed **landed)
{
    bt_copier_blocks blocks[BT_COPIER_RUNS_MAX];
    uint64_t ticket;
    bt_err err;

    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = (bt_copier_blocks){NULL, lend->kv + runs[i].at, runs[i].rows};
    }
    err = bt_copier_fetch(lend->copier, lend->layout, blocks, count, BT_COPIER_BY_KERNEL, &ticket);
    if (err != BT_OK || bt_copier_wait(lend->copier, ticket, bt_time_now() + SUM_TIME_MAX) != BT_OK) {
        return BT_ERR_DEVICE;
    }
    *landed = bt_copier_landed_of(lend->copier, ticket);
    return BT_OK;
}

// The sums of the device's copy are those of the host's: the same bytes.
static bt_err
sum_runs(bt_lend *lend, const bt_device_rows *runs, uint32_t count)
{
    const bt_copier_landed *landed;
    bt_err err = sum_batch(lend, runs, count, &landed);

    for (uint32_t i = 0; i < count && err == BT_OK; i++) {
        bt_block first = (bt_block)(runs[i].at / lend->layout->block_bytes);

        for (uint32_t b = 0; b < runs[i].rows; b++, landed++) {
            lend->sums[first + b] = bt_kv_checksum_end(landed->sum, lend->layout->trailer_offset);
        }
    }
    return err;
}

bt_err
bt_lend_end(bt_lend *lend)
{
    bt_err err = BT_OK;

    for (uint32_t i = 0; i < lend->run_count && err == BT_OK; i += BT_COPIER_RUNS_MAX) {
        uint32_t rest = lend->run_count - i;

        err = sum_runs(lend, lend->runs + i, rest < BT_COPIER_RUNS_MAX ? rest : BT_COPIER_RUNS_MAX);
    }
    return err;
}

// ---- in ----

bt_err
bt_lend_in(bt_lend *lend, const bt_block *blocks, uint32_t count, uint64_t *ticket)
{
    size_t bytes = lend->layout->block_bytes;
    uint32_t runs = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (i != 0 && blocks[i] == blocks[i - 1] + 1) {
            lend->copies[runs - 1].bytes += bytes;
        } else {
            lend->copies[runs++] = (bt_copier_run){lend->kv + blocks[i] * bytes, lend->lent + blocks[i] * bytes, bytes};
        }
    }
    return bt_copier_copy(lend->copier, lend->copies, runs, ticket);
}
