#include "tools/bench_transfer_pool.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/trailer.h"

#include <string.h>

#define HOST_BYTES ((size_t)512 << 20)
#define PATIENCE (60 * BT_SECOND)

static bt_err
open_gpu(bt_device **out, const char *name, bt_why *why)
{
    bt_device_options options = {0};
    bt_err err = bt_device_parse(&options, name, why);

    return err == BT_OK ? bt_device_open(out, &options, why) : err;
}

bt_err
bt_bench_pool_open(bt_bench_pool *p, const char *own, const char *other, bt_why *why)
{
    bt_copier_options options = {0};
    bt_err err;

    *p = (bt_bench_pool){0};
    if (own == NULL) {
        return BT_OK;
    }
    if ((err = open_gpu(&p->device, own, why)) != BT_OK ||
        (err = bt_copier_open(&p->copier, p->device, &options, why)) != BT_OK || strcmp(own, other) == 0) {
        return err;
    }
    if ((err = open_gpu(&p->other, other, why)) != BT_OK ||
        (err = bt_copier_open(&p->pusher, p->other, &options, why)) != BT_OK ||
        (err = bt_device_reach(p->device, p->other, why)) != BT_OK) {
        return err;
    }
    return bt_device_reach(p->other, p->device, why);
}

void
bt_bench_pool_close(bt_bench_pool *p)
{
    bt_device *source = p->other != NULL ? p->other : p->device;

    bt_copier_close(p->pusher);
    bt_copier_close(p->copier);
    if (p->device != NULL) {
        bt_device_free(source, p->from, p->bytes);
        bt_device_free(p->device, p->to, p->bytes);
    } else {
        bt_free_pages(p->from, p->bytes);
        bt_free_pages(p->to, p->bytes);
    }
    bt_device_close(p->other);
    bt_device_close(p->device);
    *p = (bt_bench_pool){0};
}

static void
fill_block(bt_rng *rng, const bt_kv_layout *layout, uint8_t *block)
{
    for (size_t at = 0; at < layout->trailer_offset; at += 8) {
        uint64_t word = bt_rng_next(rng);

        memcpy(block + at, &word, 8);
    }
}

static bt_err
stamp_on_device(bt_bench_pool *p, const bt_kv_layout *layout, uint8_t *block, uint64_t epoch, uint64_t generation)
{
    bt_copier_stamping stamping = {0, generation};
    uint64_t ticket;
    bt_err err = bt_copier_stamp(p->copier, layout, block, epoch, &stamping, 1, &ticket);

    return err == BT_OK ? bt_copier_wait(p->copier, ticket, bt_time_now() + PATIENCE) : err;
}

bt_err
bt_bench_pool_fill(bt_bench_pool *p, const bt_kv_layout *layout, uint8_t *memory, uint32_t blocks, uint64_t epoch,
                   uint64_t generation, bt_why *why)
{
    uint8_t *words = p->device != NULL ? bt_alloc(layout->block_bytes) : NULL;
    bt_rng rng = {1};
    bt_err err = p->device != NULL && words == NULL ? BT_ERR_NO_MEMORY : BT_OK;

    for (uint32_t b = 0; b < blocks && err == BT_OK; b++) {
        uint8_t *block = memory + b * layout->block_bytes;

        fill_block(&rng, layout, words != NULL ? words : block);
        if (words == NULL) {
            bt_kv_trailer_stamp(layout, block, epoch, generation);
        } else if ((err = bt_device_write(p->device, block, words, layout->trailer_offset)) == BT_OK) {
            err = stamp_on_device(p, layout, block, epoch, generation);
        }
    }
    bt_free(words);
    return err == BT_OK ? BT_OK : bt_fail(why, err, "the blocks cannot be written");
}

static bt_err
open_plain(bt_bench_pool *p, size_t bytes, bt_why *why)
{
    p->bytes = p->device != NULL || bytes < HOST_BYTES ? bytes : HOST_BYTES;
    if (p->device != NULL) {
        p->from = bt_device_alloc(p->other != NULL ? p->other : p->device, p->bytes);
        p->to = bt_device_alloc(p->device, p->bytes);
    } else {
        p->from = bt_alloc_pages(p->bytes);
        p->to = bt_alloc_pages(p->bytes);
    }
    if (p->from == NULL || p->to == NULL) {
        return bt_fail(why, BT_ERR_NO_MEMORY, "no memory for plain copies");
    }
    if (p->device == NULL) {
        memset(p->from, 1, p->bytes);
        memset(p->to, 2, p->bytes);
    }
    return BT_OK;
}

// By the copier of either end, if there is one; else by this thread.
static bt_err
copy_once(bt_bench_pool *p, bt_copier *copier)
{
    bt_copier_run run = {p->to, p->from, p->bytes};
    bt_time began = bt_time_now(), until = began + PATIENCE, took;
    uint64_t ticket, through = 0;
    bt_err err = BT_OK;

    if (copier == NULL) {
        memcpy(p->to, p->from, p->bytes);
    } else {
        err = bt_copier_copy(copier, &run, 1, &ticket);
        while (err == BT_OK && through < ticket) { // without bt_copier_wait's naps, which would count
            err = bt_time_now() < until ? bt_copier_through(copier, &through) : BT_ERR_TIMEOUT;
        }
    }
    took = bt_time_now() - began;
    if (err == BT_OK && (double)p->bytes / (double)took > p->gb_per_s) {
        p->gb_per_s = (double)p->bytes / (double)took;
    }
    return err;
}

bt_err
bt_bench_pool_copy(bt_bench_pool *p, size_t bytes, bt_why *why)
{
    bt_err err = p->from == NULL ? open_plain(p, bytes, why) : BT_OK;

    if (err != BT_OK) {
        return err;
    }
    if ((err = copy_once(p, p->copier)) == BT_OK && p->pusher != NULL) {
        err = copy_once(p, p->pusher);
    }
    return err == BT_OK ? BT_OK : bt_fail(why, err, "the plain copy failed");
}
