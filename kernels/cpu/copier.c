// The copier where all memory is the processor's: a call does its work and returns, so that what is built on copiers can be tested
// without a GPU.
#include "kernels/device_impl.h"

#include "common/base/mem.h"
#include "common/kv/trailer.h"

#include <string.h>

typedef struct {
    bt_copier_head head;
    uint64_t tickets, told;
} cpu_copier;

static void
copier_close(bt_copier *copier)
{
    cpu_copier *c = (cpu_copier *)(void *)copier;

    bt_free(c->head.landed);
    bt_free(c);
}

static bt_err
copier_through(bt_copier *copier, uint64_t *ticket)
{
    cpu_copier *c = (cpu_copier *)(void *)copier;

    *ticket = c->told = c->tickets;
    return BT_OK;
}

static bool
copier_arm(bt_copier *copier)
{
    const cpu_copier *c = (const cpu_copier *)(void *)copier;

    return c->told == c->tickets;
}

static int
copier_fd(const bt_copier *copier)
{
    (void)copier;
    return -1;
}

static bt_err
copier_copy(bt_copier *copier, const bt_copier_run *runs, uint32_t count, uint64_t *ticket)
{
    for (uint32_t i = 0; i < count; i++) {
        memcpy(runs[i].to, runs[i].from, runs[i].bytes);
    }
    *ticket = ++((cpu_copier *)(void *)copier)->tickets;
    return BT_OK;
}

static bt_err
copier_clear(bt_copier *copier, const bt_kv_layout *layout, void *pool, const uint32_t *blocks, uint32_t count,
             uint64_t *ticket)
{
    for (uint32_t i = 0; i < count; i++) {
        bt_kv_trailer_clear(layout, (uint8_t *)pool + blocks[i] * layout->block_bytes);
    }
    *ticket = ++((cpu_copier *)(void *)copier)->tickets;
    return BT_OK;
}

static bt_err
copier_stamp(bt_copier *copier, const bt_kv_layout *layout, void *pool, uint64_t epoch,
             const bt_copier_stamping *stampings, uint32_t count, uint64_t *ticket)
{
    for (uint32_t i = 0; i < count; i++) {
        bt_kv_trailer_stamp(layout, (uint8_t *)pool + stampings[i].block * layout->block_bytes, epoch,
                            stampings[i].generation);
    }
    *ticket = ++((cpu_copier *)(void *)copier)->tickets;
    return BT_OK;
}

static void
fetch_block(const bt_kv_layout *layout, uint8_t *to, const uint8_t *from, bt_copier_landed *landed)
{
    size_t end = layout->trailer_offset;

    landed->sum = to != NULL ? bt_kv_checksum_copy(to, from, end, 0) : bt_kv_checksum_part(from, end, 0);
    __atomic_thread_fence(__ATOMIC_ACQ_REL); // the trailer last
    memcpy(&landed->trailer, from + end, sizeof landed->trailer);
    if (to != NULL) {
        memcpy(to + end, from + end, layout->block_bytes - end);
    }
}

static bt_err
copier_fetch(bt_copier *copier, const bt_kv_layout *layout, const bt_copier_blocks *runs, uint32_t run_count,
             bt_copier_way way, uint64_t *ticket)
{
    cpu_copier *c = (cpu_copier *)(void *)copier;
    bt_copier_landed *landed = bt_copier_landing(&c->head, ++c->tickets);

    (void)way;
    for (uint32_t r = 0; r < run_count; r++) {
        for (uint32_t i = 0; i < runs[r].count; i++) {
            size_t at = i * layout->block_bytes;

            fetch_block(layout, runs[r].to != NULL ? (uint8_t *)runs[r].to + at : NULL,
                        (const uint8_t *)runs[r].from + at, landed++);
        }
    }
    *ticket = c->tickets;
    return BT_OK;
}

static const bt_copier_class cpu_copier_class = {
    .close = copier_close,
    .through = copier_through,
    .fd = copier_fd,
    .arm = copier_arm,
    .copy = copier_copy,
    .clear = copier_clear,
    .stamp = copier_stamp,
    .fetch = copier_fetch,
};

bt_err
bt_cpu_copier_open(bt_copier **out, bt_device *device, const bt_copier_options *options, bt_why *why)
{
    cpu_copier *c = bt_alloc(sizeof *c);

    (void)device;
    if (c != NULL) {
        c->head = (bt_copier_head){&cpu_copier_class, *options, NULL};
        c->head.landed = bt_alloc_array((size_t)options->batches * options->blocks, sizeof *c->head.landed);
    }
    if (c == NULL || c->head.landed == NULL) {
        bt_free(c);
        return bt_fail(why, BT_ERR_NO_MEMORY, "copier: no memory for %u batches of %u blocks", options->batches,
                       options->blocks);
    }
    *out = (bt_copier *)(void *)c;
    return BT_OK;
}
