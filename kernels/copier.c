// What is the same for all copiers: limits, waiting, and the call of the kind.
#include "kernels/copier.h"

#include "kernels/device_impl.h"

#include <time.h>

#define SPIN (100 * BT_MICROSECOND)

static bt_copier_head *
head_of(const bt_copier *copier)
{
    return (bt_copier_head *)(void *)(uintptr_t)copier;
}

bt_err
bt_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why)
{
    bt_copier_options o = *options;

    o.batches = o.batches != 0 ? o.batches : 16;
    o.blocks = o.blocks != 0 ? o.blocks : 1024;
    if (o.batches > 1024 || o.blocks > 1u << 20) {
        return bt_fail(why, BT_ERR_INVALID, "copier: %u batches of %u blocks, at most 1024 and 1048576", o.batches,
                       o.blocks);
    }
    return ((const bt_device_head *)(const void *)device)->kind->copier_open(out, device, &o, why);
}

void
bt_copier_close(bt_copier *copier)
{
    if (copier != NULL) {
        head_of(copier)->kind->close(copier);
    }
}

bt_err
bt_copier_through(bt_copier *copier, uint64_t *ticket)
{
    return head_of(copier)->kind->through(copier, ticket);
}

bt_err
bt_copier_wait(bt_copier *copier, uint64_t ticket, bt_time deadline)
{
    const struct timespec nap = {0, 20 * BT_MICROSECOND};
    bt_time began = bt_time_now(), now = began;
    uint64_t through = 0;
    bt_err err;

    if (ticket == 0) {
        return BT_ERR_INVALID; // whoever waits for nothing has not looked at the batch that it began
    }
    while ((err = bt_copier_through(copier, &through)) == BT_OK && through < ticket) {
        if ((now = bt_time_now()) >= deadline) {
            return BT_ERR_TIMEOUT;
        }
        if (now - began > SPIN) {
            nanosleep(&nap, NULL);
        }
    }
    return err;
}

int
bt_copier_fd(const bt_copier *copier)
{
    return head_of(copier)->kind->fd(copier);
}

bool
bt_copier_arm(bt_copier *copier)
{
    return head_of(copier)->kind->arm(copier);
}

bt_err
bt_copier_copy(bt_copier *copier, const bt_copier_run *runs, uint32_t count, uint64_t *ticket)
{
    return head_of(copier)->kind->copy(copier, runs, count, ticket);
}

static bool
fits(const bt_copier *copier, uint32_t count)
{
    return count <= head_of(copier)->options.blocks;
}

bt_err
bt_copier_clear(bt_copier *copier, const bt_kv_layout *layout, void *pool, const uint32_t *blocks, uint32_t count,
                uint64_t *ticket)
{
    return fits(copier, count) ? head_of(copier)->kind->clear(copier, layout, pool, blocks, count, ticket)
                               : BT_ERR_INVALID;
}

bt_err
bt_copier_stamp(bt_copier *copier, const bt_kv_layout *layout, void *pool, uint64_t epoch,
                const bt_copier_stamping *stampings, uint32_t count, uint64_t *ticket)
{
    return fits(copier, count) ? head_of(copier)->kind->stamp(copier, layout, pool, epoch, stampings, count, ticket)
                               : BT_ERR_INVALID;
}

bt_err
bt_copier_sum(bt_copier *copier, const bt_kv_layout *layout, const void *first, uint32_t count, uint64_t *ticket)
{
    bt_copier_blocks run = {NULL, first, count};

    return bt_copier_fetch(copier, layout, &run, 1, BT_COPIER_BY_KERNEL, ticket);
}

bt_err
bt_copier_fetch(bt_copier *copier, const bt_kv_layout *layout, const bt_copier_blocks *runs, uint32_t run_count,
                bt_copier_way way, uint64_t *ticket)
{
    uint32_t count = 0;

    if (run_count > BT_COPIER_RUNS_MAX) {
        return BT_ERR_INVALID;
    }
    for (uint32_t i = 0; i < run_count; i++) {
        if (!fits(copier, runs[i].count) || !fits(copier, count += runs[i].count)) {
            return BT_ERR_INVALID;
        }
    }
    return head_of(copier)->kind->fetch(copier, layout, runs, run_count, way, ticket);
}

const bt_copier_landed *
bt_copier_landed_of(const bt_copier *copier, uint64_t ticket)
{
    return bt_copier_landing(head_of(copier), ticket);
}
