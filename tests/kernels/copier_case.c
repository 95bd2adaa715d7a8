#include "tests/kernels/copier_case.h"

#include "common/base/rng.h"
#include "common/kv/trailer.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EPOCH 77u

static const struct {
    bt_kv_format format;
    uint32_t layers, heads, dim, tokens, group;
} shapes[] = {
    {BT_KV_INT8, 1, 1, 4, 16, 4},      {BT_KV_INT8, 3, 1, 20, 16, 20}, {BT_KV_INT8, 30, 3, 64, 32, 64},
    {BT_KV_INT8, 5, 3, 96, 64, 32},    {BT_KV_F16, 7, 1, 36, 16, 36},  {BT_KV_F32, 3, 5, 64, 32, 64},
    {BT_KV_INT8, 32, 8, 128, 32, 128}, // a block of 2.1 MB
};
_Static_assert(sizeof shapes / sizeof *shapes == COPIER_SHAPES, "as told");
#define BLOCKS 7u

static bt_kv_layout
layout_of(size_t shape)
{
    bt_kv_layout layout;

    ck_assert_int_eq(bt_kv_layout_init(&layout, shapes[shape].format, shapes[shape].layers, shapes[shape].heads,
                                       shapes[shape].dim, shapes[shape].tokens, shapes[shape].group, NULL),
                     BT_OK);
    return layout;
}

static void
fill(bt_rng *rng, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = bt_rng_next(rng);

        memcpy(bytes + i, &word, 8);
    }
}

void
copier_world_open_device(copier_world *w, bt_device_kind kind, bool notify)
{
    bt_device_options options = {.kind = kind, .threads = 1};
    bt_copier_options copier = {.batches = 4, .blocks = 2048, .notify = notify};
    bt_why why = {{0}};

    ck_assert_msg(bt_device_open(&w->device, &options, &why) == BT_OK, "%s", why.text);
    ck_assert_msg(bt_copier_open(&w->copier, w->device, &copier, &why) == BT_OK, "%s", why.text);
}

void
copier_world_open(copier_world *w, bt_device_kind kind, size_t shape, uint32_t blocks)
{
    bt_rng rng = {shape + 1};

    copier_world_open_device(w, kind, false);
    w->layout = layout_of(shape);
    w->blocks = blocks;
    w->bytes = blocks * w->layout.block_bytes;
    w->host = malloc(w->bytes);
    w->back = malloc(w->bytes);
    w->from = bt_device_alloc(w->device, w->bytes);
    w->to = bt_device_alloc(w->device, w->bytes);
    ck_assert(w->host != NULL && w->back != NULL && w->from != NULL && w->to != NULL);
    fill(&rng, w->host, w->bytes);
    ck_assert_int_eq(bt_device_write(w->device, w->from, w->host, w->bytes), BT_OK);
    fill(&rng, w->back, w->bytes); // poison
    ck_assert_int_eq(bt_device_write(w->device, w->to, w->back, w->bytes), BT_OK);
}

void
copier_world_close(copier_world *w)
{
    bt_copier_close(w->copier);
    bt_device_free(w->device, w->from, w->bytes);
    bt_device_free(w->device, w->to, w->bytes);
    bt_device_close(w->device);
    free(w->host);
    free(w->back);
}

void
copier_await(copier_world *w)
{
    ck_assert_int_eq(bt_copier_wait(w->copier, w->ticket, COPIER_SOON), BT_OK);
}

static void
check_landed(const copier_world *w)
{
    const bt_copier_landed *landed = bt_copier_landed_of(w->copier, w->ticket);

    for (uint32_t b = 0; b < w->blocks; b++) {
        const uint8_t *block = w->host + b * w->layout.block_bytes;

        ck_assert_uint_eq(landed[b].sum, bt_kv_checksum_part(block, w->layout.trailer_offset, 0));
        ck_assert_int_eq(memcmp(&landed[b].trailer, block + w->layout.trailer_offset, sizeof landed[b].trailer), 0);
    }
}

// Runs of one, no and several blocks.
static bt_err
sum_in_runs(copier_world *w)
{
    static const uint32_t from[] = {0, 1, 1, 4}, count[] = {1, 0, 3, 3};
    bt_copier_blocks runs[4];

    ck_assert_uint_eq(w->blocks, BLOCKS);
    for (size_t i = 0; i < 4; i++) {
        runs[i] = (bt_copier_blocks){NULL, w->from + from[i] * w->layout.block_bytes, count[i]};
    }
    return bt_copier_fetch(w->copier, &w->layout, runs, 4, BT_COPIER_BY_KERNEL, &w->ticket);
}

void
copier_case_sums(bt_device_kind kind, size_t shape)
{
    copier_world w;

    copier_world_open(&w, kind, shape, BLOCKS);
    for (int round = 0; round < 6; round++) { // more than there are slots: what a batch used it leaves clean
        ck_assert_int_eq(bt_copier_sum(w.copier, &w.layout, w.from, w.blocks, &w.ticket), BT_OK);
        copier_await(&w);
        check_landed(&w);
        ck_assert_int_eq(sum_in_runs(&w), BT_OK);
        copier_await(&w);
        check_landed(&w);
    }
    copier_world_close(&w);
}

// Where a block of the source is put: three runs change places.
static const uint32_t to_of[BLOCKS] = {4, 5, 6, 0, 1, 2, 3};

// Runs of no, one and several blocks, in another order here than there.
static bt_err
fetch_in_runs(copier_world *w, bt_copier_way way)
{
    static const uint32_t from[] = {0, 3, 3, 4}, count[] = {3, 0, 1, 3};
    size_t block = w->layout.block_bytes;
    bt_copier_blocks runs[4];

    ck_assert_uint_eq(w->blocks, BLOCKS);
    for (size_t i = 0; i < 4; i++) {
        runs[i] = (bt_copier_blocks){w->to + to_of[from[i]] * block, w->from + from[i] * block, count[i]};
    }
    return bt_copier_fetch(w->copier, &w->layout, runs, 4, way, &w->ticket);
}

void
copier_case_fetches(bt_device_kind kind, size_t shape)
{
    copier_world w;

    copier_world_open(&w, kind, shape, BLOCKS);
    for (bt_copier_way way = BT_COPIER_BY_KERNEL; way <= BT_COPIER_BY_ENGINE; way++) {
        ck_assert_int_eq(bt_device_write(w.device, w.to, w.back, w.bytes), BT_OK);
        ck_assert_int_eq(fetch_in_runs(&w, way), BT_OK);
        copier_await(&w);
        check_landed(&w);
        memset(w.back, 0xa5, w.bytes);
        ck_assert_int_eq(bt_device_read(w.device, w.back, w.to, w.bytes), BT_OK);
        for (uint32_t b = 0; b < w.blocks; b++) {
            ck_assert_int_eq(memcmp(w.back + to_of[b] * w.layout.block_bytes, w.host + b * w.layout.block_bytes,
                                    w.layout.block_bytes),
                             0);
        }
        memset(w.back, 0x5a, w.bytes);
    }
    copier_world_close(&w);
}

// Stamps go where they are told, in any order; the bytes before and other blocks stay as they are.
void
copier_case_stamps(bt_device_kind kind, size_t shape)
{
    const bt_copier_stamping stampings[] = {{5, 105}, {0, 100}, {3, 103}};
    const uint32_t cleared[] = {3, 6};
    uint64_t ticket;
    copier_world w;

    copier_world_open(&w, kind, shape, BLOCKS);
    ck_assert_int_eq(bt_copier_stamp(w.copier, &w.layout, w.from, EPOCH, stampings, 3, &ticket), BT_OK);
    ck_assert_int_eq(bt_copier_clear(w.copier, &w.layout, w.from, cleared, 2, &w.ticket), BT_OK);
    copier_await(&w);
    ck_assert_int_eq(bt_device_read(w.device, w.back, w.from, w.bytes), BT_OK);
    for (uint32_t b = 0; b < w.blocks; b++) {
        const uint8_t *block = w.back + b * w.layout.block_bytes, *was = w.host + b * w.layout.block_bytes;
        size_t end = w.layout.trailer_offset + (b == 5 || b == 0 || b == 3 || b == 6 ? 0 : sizeof(bt_kv_trailer));

        ck_assert_int_eq(memcmp(block, was, end), 0);
        if (b == 5 || b == 0) {
            ck_assert_int_eq(bt_kv_trailer_check(&w.layout, block, EPOCH, 100 + b, NULL), BT_KV_GOOD);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        static const bt_kv_trailer nothing;

        ck_assert_int_eq(
            memcmp(w.back + cleared[i] * w.layout.block_bytes + w.layout.trailer_offset, &nothing, sizeof nothing), 0);
    }
    copier_world_close(&w);
}

// In, across to an odd place, and out again: each reads what the one before has written.
void
copier_case_copies(bt_device_kind kind)
{
    size_t bytes = (size_t)8 << 20, odd = 1000003;
    uint8_t *pinned = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *a, *b;
    copier_world w = {0};
    bt_rng rng = {9};

    copier_world_open_device(&w, kind, false);
    ck_assert_int_eq(bt_device_pin(w.device, pinned, bytes, NULL), BT_OK);
    fill(&rng, pinned, bytes);
    a = bt_device_alloc(w.device, bytes);
    b = bt_device_alloc(w.device, bytes);
    {
        const bt_copier_run runs[] = {{a, pinned, odd}, {b + 13, a, odd}, {pinned + 4000037, b + 13, odd}};

        ck_assert_int_eq(bt_copier_copy(w.copier, runs, 3, &w.ticket), BT_OK);
        ck_assert_uint_eq(w.ticket, 1);
    }
    copier_await(&w);
    ck_assert_int_eq(memcmp(pinned, pinned + 4000037, odd), 0);
    bt_device_unpin(w.device, pinned, bytes);
    bt_device_unpin(w.device, pinned, bytes); // twice is fine
    bt_device_free(w.device, a, bytes);
    bt_device_free(w.device, b, bytes);
    bt_copier_close(w.copier);
    bt_device_close(w.device);
    munmap(pinned, bytes);
}
